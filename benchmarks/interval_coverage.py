"""Measure whether intervals and tests of a report keep their promises; `docs/intervals.md` shows the result.

    python benchmarks/interval_coverage.py > benchmarks/interval_coverage.txt     about twenty minutes of one core
    python benchmarks/interval_coverage.py --replicates 50     quickly, to see that everything runs

Data sets are drawn at random from known truths, and go through the code of reports itself. 95 % intervals should hold
the truth in 95 of 100, tests of two equal models should find a difference in 5 of 100. Figures outside 93 to 97, or
outside 3 to 7 for tests, are bold.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from xbench.report.schema import NUMBERS
from xbench.report.statistics import paired
from xbench.report.statistics.measures import measure
from xbench.report.statistics.paired import compare, macro_difference
from xbench.report.statistics.sample import Sample

FINDINGS, FOLDS = 3, 5
THRESHOLDS = np.linspace(0, 1, 21)
AREA = 2, 3
"""Beta distribution of the share of a box inside the lesion that it touches."""
TRUTHS = 400_000
"""Maps behind the true curves: their means have a standard error of 0.0005."""


@dataclass(frozen=True)
class World:
    """What data sets are drawn from.

    Attributes:
        images: How many.
        per_patient: Images of each patient.
        prevalence: Share of images with a finding.
        exact: Whether every data set has exactly this share of positives.
        findings: How many.
        hit: Chance that a map points at the lesion, or that a box touches it.
        auroc: Of every finding.
        alike: How much of the variance of scores and maps is the patient's, 0 to 1.
        boxes: Whether hits are shares of area: 0 if the box does not touch the lesion, else drawn from `AREA`.
    """

    images: int
    per_patient: int = 1
    prevalence: float = 0.2
    hit: float = 0.5
    auroc: float = 0.8
    alike: float = 0.4
    exact: bool = False
    findings: int = FINDINGS
    boxes: bool = False

    @property
    def shift(self) -> float:
        """How far the scores of positives lie above those of negatives, in standard deviations."""
        return float(np.sqrt(2) * ndtri(self.auroc))

    @property
    def positives(self) -> int:
        """How many images have a finding, on average or in every data set."""
        return round(self.prevalence * self.images)

    def __str__(self) -> str:
        patients = f", {self.per_patient} per patient" if self.per_patient > 1 else ""
        rare = f", {100 * self.prevalence:.0f} % positive" if self.prevalence < 0.2 else ""
        if self.boxes:
            return f"{self.positives} of {self.images}{patients}, {100 * self.hit:.0f} % touch"
        if self.exact:
            auroc = f", AUROC {self.auroc}" if self.auroc != 0.8 else ""
            findings = f", {self.findings} findings" if self.findings != FINDINGS else ""
            return f"{self.positives} of {self.images}{auroc}{findings}"
        return f"{self.images}{patients}{rare}"


WORLDS = {
    "ordinary": [World(60), World(200), World(60, 3), World(200, 3), World(200, prevalence=0.05)],
    "near 0": [World(n, k, hit=0.03, auroc=0.55) for n, k in ((60, 1), (200, 1), (200, 3))],
    "near 1": [World(n, k, hit=0.97, auroc=0.97) for n, k in ((60, 1), (200, 1), (200, 3))],
    "few positives": [
        World(208, prevalence=8 / 208, auroc=0.95, exact=True),
        World(315, prevalence=15 / 315, auroc=0.95, exact=True),
        World(100, prevalence=10 / 100, auroc=0.9, exact=True),
        World(30, exact=True),
        World(30, exact=True, findings=8),
    ],
    "boxes": [
        World(n, k, hit=hit, exact=True, boxes=True)
        for n, k in ((30, 1), (60, 1), (60, 3), (200, 1), (200, 3))
        for hit in (0.03, 0.1, 0.5, 0.97)
    ],
}
TESTS = "tests of equal models"
EQUAL = [World(60), World(200), World(60, 3), World(200, 3), World(60, hit=0.9, auroc=0.95)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=1_500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=(*WORLDS, TESTS), help="one table")
    given = parser.parse_args()
    print(f"{given.replicates:,} data sets a row; standard error of 95: {100 * error(0.95, given.replicates):.1f}.")
    for name, worlds in WORLDS.items():
        if given.only in (None, name):
            print(f"\n{name}\n\n" + "\n".join(coverage(worlds, given.replicates, given.seed)), flush=True)
    if given.only in (None, TESTS):
        print(f"\n{TESTS}\n\n" + "\n".join(sizes(EQUAL, given.replicates, given.seed)), flush=True)


def marked(percent: float, low: float, high: float) -> str:
    """A percentage, bold where it does not lie between two others."""
    return f"{percent:.1f}" if low <= round(percent, 1) <= high else f"**{percent:.1f}**"


def error(share: float, count: int) -> float:
    """Standard error of a share of so many."""
    return float(np.sqrt(share * (1 - share) / count))


def coverage(worlds: list[World], replicates: int, seed: int) -> Iterator[str]:
    """Rows of Markdown: of each number and world how often its interval holds the truth."""
    held: defaultdict[tuple[str, int, str], list[bool]] = defaultdict(list)
    keys = ["pointing_game"] if worlds[0].boxes else [*NUMBERS]
    for place, world in enumerate(worlds):
        random = np.random.default_rng([seed, place])
        truth = truths(world)
        cross_fitted: defaultdict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
        for _ in range(replicates):
            sample, other = draw(world, random)
            one, two = measure(sample, FOLDS), measure(other, FOLDS)
            of = {"finding": one.findings()["0"], "macro": one.macro()}
            of["difference"] = {key: macro_difference(one, two, key) for key in paired.TESTED}
            for scope, numbers in of.items():
                for key, estimate in numbers.items():
                    if estimate.low is None or key not in keys:
                        continue
                    assert estimate.low <= estimate.value <= estimate.high, (key, estimate)
                    if scope != "difference" and key.endswith("_cross_fitted"):
                        cross_fitted[key, scope].append((estimate.value, estimate.low, estimate.high))
                        continue
                    true = 0.0 if scope == "difference" else truth[key]
                    held[key, place, scope].append(estimate.low <= true <= estimate.high)
        for (key, scope), found in cross_fitted.items():
            # What thresholds chosen on so few other images are worth: by definition the mean over data sets.
            value, low, high = np.array(found).T
            held[key, place, scope] = [*(low <= value.mean()) & (value.mean() <= high)]
    yield "| number | of | " + " | ".join(map(str, worlds)) + " |"
    yield "| --- | --- |" + " ---: |" * len(worlds)
    for key in keys:
        for scope in ("finding", "macro", "difference"):
            shares = [held.get((key, place, scope)) for place in range(len(worlds))]
            if any(shares):
                cells = ("-" if not share else marked(100 * float(np.mean(share)), 93, 97) for share in shares)
                yield f"| `{key}` | {scope} | {' | '.join(cells)} |"


def sizes(worlds: list[World], replicates: int, seed: int) -> Iterator[str]:
    """Rows of Markdown: of each tested number and world how often p is at most 0.05 for equal models."""
    # The size of the test does not depend on how many exchanges are drawn; fewer are quicker.
    paired._EXCHANGES = 399
    found = {}
    for place, world in enumerate(worlds):
        random = np.random.default_rng([seed, 100 + place])
        p_values: defaultdict[str, list[float]] = defaultdict(list)
        for replicate in range(replicates):
            first, second = draw(world, random)
            both = measure(first, FOLDS), measure(second, FOLDS)
            for entry in compare("AB", lambda *_, both=both: both, replicate, "", lambda _: None):
                if entry.p is not None:
                    p_values[entry.number].append(entry.p)
        found[place] = {key: marked(100 * float(np.mean(np.array(p) <= 0.05)), 3, 7) for key, p in p_values.items()}
    yield "| number | " + " | ".join(f"{world}{', easy' if world.hit > 0.5 else ''}" for world in worlds) + " |"
    yield "| --- |" + " ---: |" * len(worlds)
    for key in paired.TESTED:
        yield f"| `{key}` | " + " | ".join(found[place].get(key, "-") for place in found) + " |"


def draw(world: World, random: np.random.Generator) -> tuple[Sample, Sample]:
    """Return what two equally good models score on the same images."""
    n, patients = world.images, np.arange(world.images) // world.per_patient
    count = int(patients[-1]) + 1
    chances = random.random((n, world.findings))
    drawn = chances.argsort(0).argsort(0) < world.positives if world.exact else chances < world.prevalence
    labels = drawn.astype(np.int8)
    image, column = np.nonzero(labels == 1)
    shared = normals(world, random, patients, labels.shape)
    samples = []
    for _ in range(2):
        own = normals(world, random, patients, labels.shape)
        noise = np.sqrt(0.5) * (shared + own)
        curves, touching = dice_curves(world, noise[image, column], random), noise[image, column] < ndtri(world.hit)
        hit = touching * random.beta(*AREA, touching.shape) if world.boxes else touching.astype(float)
        samples.append(
            Sample(
                findings=tuple(map(str, range(world.findings))),
                clustered_by="patients",
                clusters=tuple(f"{place:04d}" for place in range(count)),
                image_ids=tuple(f"{place:04d}" for place in range(n)),
                image_cluster=patients,
                labels=labels,
                probabilities=ndtr(noise + world.shift * labels - world.shift / 2),
                pair_image=image,
                pair_column=column,
                hit=hit,
                dice=curves,
                iou=curves / (2 - curves),
                area=np.full(len(image), 0.1),
                region=np.full(len(image), b"0" * 16),
                row=np.arange(len(image)),
                boxes=world.boxes,
            )
        )
    return samples[0], samples[1]


def normals(
    world: World, random: np.random.Generator, patients: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Standard normal numbers that images of one patient share in part."""
    if world.per_patient == 1:
        return random.normal(size=shape)
    of_patient = random.normal(size=(int(patients[-1]) + 1, shape[1]))[patients]
    return np.sqrt(world.alike) * of_patient + np.sqrt(1 - world.alike) * random.normal(size=shape)


def dice_curves(world: World, noise: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Dice at each threshold: a map that points at the lesion has a hump somewhere, another next to nothing."""
    pointing = noise < ndtri(world.hit)
    height = np.where(pointing, random.beta(5, 3, noise.shape), random.beta(1, 12, noise.shape))
    middle = random.normal(0.35, 0.15, noise.shape)
    return height[:, None] * np.exp(-(((THRESHOLDS - middle[:, None]) / 0.35) ** 2))


def truths(world: World) -> Mapping[str, float]:
    """The numbers of an endless data set."""
    random = np.random.default_rng(1)
    sums = {"dice": np.zeros(len(THRESHOLDS)), "iou": np.zeros(len(THRESHOLDS))}
    for _ in range(10):
        dice = dice_curves(world, random.normal(size=TRUTHS // 10), random)
        for name, curves in (("dice", dice), ("iou", dice / (2 - dice))):
            sums[name] += curves.sum(axis=0) / TRUTHS
    middle = len(THRESHOLDS) // 2
    numbers = {
        f"{name}_{how}": float(value)
        for name, curve in sums.items()
        for how, value in (("best", curve.max()), ("fixed", curve[middle]))
    }
    share, shift = world.prevalence, world.shift

    def step(score: float) -> float:
        true, false = share * norm.sf(score - shift), (1 - share) * norm.sf(score)
        return float(norm.pdf(score - shift) * true / (true + false))

    sensitivity = norm.cdf(shift / 2)
    return {
        **numbers,
        "dice_gap": numbers["dice_best"] - numbers["dice_fixed"],
        "pointing_game": world.hit * (AREA[0] / sum(AREA) if world.boxes else 1),
        "auroc": world.auroc,
        "average_precision": quad(step, -8, 8 + shift)[0],
        "accuracy": sensitivity,
        "f1": 2 * share * sensitivity / (share * sensitivity + (1 - share) * (1 - sensitivity) + share),
    }


if __name__ == "__main__":
    sys.exit(main())
