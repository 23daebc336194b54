"""Sex, age and projection: the numbers of each group of images, and whether the groups differ.

The test exchanges groups between patients with equally many images. So the images of a patient stay together, and a
group that differs between them, as the projection does, differs as before. Findings are seldom equally frequent in the
groups: the statistic is the largest difference between two groups over its standard error, so that the test holds
whatever else they differ in (Chung and Romano 2013, Annals of Statistics 41, 484).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from functools import partial
from itertools import combinations
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from xbench.report.schema import Estimate, RunAnalysis, Subgroup, SubgroupGap, Subgroups
from xbench.report.statistics.measures import Measures, estimate, measure
from xbench.report.statistics.paired import random_for
from xbench.report.statistics.sample import Sample
from xbench.runs.files import RunFileError
from xbench.scoring.numbers import holm

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

AGES = (40, 65)
"""Where the second and the third band of ages begin: ours, fixed before any result was seen."""
GROUPS: Mapping[str, Sequence[str]] = {
    "sex": ("F", "M"),
    "age": (f"under {AGES[0]}", f"{AGES[0]} to {AGES[1] - 1}", f"{AGES[1]} and over"),
    "projection": ("PA", "AP", "lateral"),
}
LEAST = {"auroc": 10, "pointing_game": 30}
"""What a number of a group needs, by key of `NUMBERS`: so many positives and negatives of each finding, or pairs."""
EXCHANGES = 999
_AT_A_TIME = 2_000_000
_ROUNDING = 1e-9
"""A standard error below it is one of rounding, as where each pair of a group is a hit."""


def subgroups(
    runs: Sequence[RunAnalysis], measures: Mapping[str, Measures], folds: int, seed: int, ground: str
) -> tuple[Subgroups, ...]:
    """Return the groups of each run, whose numbers are in `measures` by label; `ground` names dataset and split.

    Attributes that are known of no image are left out. p-values are corrected after Holm for the attributes and numbers
    of a run.
    """
    found: list[Subgroups] = []
    for entry in runs:
        about: Mapping[str, Mapping[str, str | float]] = {}
        with suppress(RunFileError):  # the file may have been left out, and its damage is the matter of `verify`
            about = entry.run.stored.attributes
        own, of_run = measures[entry.run.label], list[Subgroups]()
        for attribute in GROUPS:
            group = np.array([group_of(attribute, about.get(name, {})) for name in own.sample.image_ids], np.int64)
            if (group >= 0).any():
                random = random_for(seed, f"{ground} {attribute} {entry.run.label}")
                of_run.append(_of_attribute(entry, own, attribute, group, folds, random))
        corrected = iter(holm([gap.p for of in of_run for gap in of.gaps if gap.p is not None]))
        for of in of_run:
            gaps = [gap if gap.p is None else replace(gap, p_adjusted=next(corrected)) for gap in of.gaps]
            found.append(replace(of, gaps=tuple(gaps)))
    return tuple(found)


def group_of(attribute: str, about: Mapping[str, str | float]) -> int:
    """Return the place of an image's group in `GROUPS`; -1 if it is not known."""
    value = about.get(attribute, "")
    if isinstance(value, str):
        return GROUPS[attribute].index(value) if value else -1
    return bisect_right(AGES, value)


def _of_attribute(
    entry: RunAnalysis, own: Measures, attribute: str, group: Codes, folds: int, random: np.random.Generator
) -> Subgroups:
    sample, rows, names = own.sample, entry.run.rows, GROUPS[attribute]
    place = {name: image for image, name in enumerate(sample.image_ids)}
    image = np.array([place[name] for name in rows.image_ids], np.int64)[rows.image]
    present = np.bincount(image, rows["label"] == 1, minlength=len(place))
    compared = {key: comparable(own, group, len(names), key) for key in LEAST}
    groups, measured = [], {}
    for code, name in [*enumerate(names), (-1, "not known")]:
        if not (mine := group == code).any():
            continue
        takes = {key: findings & (code in codes) for key, (codes, findings) in compared.items()}
        part = sample.with_pairs(mine[sample.pair_image] & takes["pointing_game"][sample.pair_column])
        labels = np.where(mine[:, None] & takes["auroc"], sample.labels, -1).astype(np.int8)
        measured[code] = measure(replace(part, labels=labels), folds)
        macro = measured[code].macro()
        patients = len(np.unique(sample.image_cluster[mine])) if sample.clustered_by == "patients" else None
        counts = int(mine.sum()), patients, int(present[mine].sum()), int(mine[sample.pair_image].sum())
        groups.append(Subgroup(name, *counts, {key: macro[key] for key in LEAST}))
    gaps = []
    for key, (codes, findings) in compared.items():
        if len(codes) > 1:
            low, *_, high = sorted(codes, key=lambda code: measured[code].macro()[key].value or 0.0)
            difference = _gap(measured[high], measured[low], key, comb(len(codes), 2))
            p = exchange_p(sample, group, codes, np.flatnonzero(findings), key, random)
            gaps.append(SubgroupGap(key, names[high], names[low], int(findings.sum()), difference, p, None))
    return Subgroups(entry.run.label, attribute, tuple(groups), tuple(gaps))


def comparable(own: Measures, group: Codes, groups: int, key: str) -> tuple[list[int], NDArray[np.bool_]]:
    """Return the groups that have a number, and the findings (C,) that have it in each of them."""
    sample, counts = own.sample, np.zeros((groups, len(own.sample.findings)), np.int64)
    if key == "auroc":
        for code, labels in ((code, sample.labels[group == code]) for code in range(groups)):
            counts[code] = np.minimum((labels == 1).sum(axis=0), (labels == 0).sum(axis=0))
        counts[counts < LEAST[key]] = 0
    else:
        known = group[sample.pair_image] >= 0
        np.add.at(counts, (group[sample.pair_image][known], sample.pair_column[known]), 1)
    counts[:, np.isnan(own.point[key])] = 0
    findings = (counts[counts.sum(axis=1) >= LEAST[key]] > 0).all(axis=0)
    return np.flatnonzero(counts[:, findings].sum(axis=1) >= LEAST[key]).tolist(), findings


def _gap(high: Measures, low: Measures, key: str, ways: int) -> Estimate:
    """Return the difference of two groups, with an interval from those of the two (MOVER; see `intervals.combined`).

    They are extremes that could have been picked in so many ways, which makes it wider (Bonferroni).
    """
    one, two = (np.mean([each.influence for each in of.spreads[key] if each], axis=0) for of in (high, low))
    # 0 unless patients have images in both.
    together = float(one @ two) / max(sqrt(float(one @ one) * float(two @ two)), _ROUNDING**2)
    (value, low_end, high_end), (less, least, most) = (
        np.array(astuple(of.macro()[key]), np.float64) for of in (high, low)
    )
    down, up = (
        float(ndtri(1 - 0.025 / ways) / ndtri(0.975) * np.sqrt(max(0.0, a * a + b * b - 2 * together * a * b)))
        for a, b in ((value - low_end, most - less), (high_end - value, less - least))
    )
    difference = float(value - less)
    limits = max(-1.0, difference - down), min(1.0, difference + up)
    return estimate(difference, None if np.isnan((down, up)).any() else limits)


def exchange_p(
    sample: Sample, group: Codes, codes: Sequence[int], columns: Codes, key: str, random: np.random.Generator
) -> float | None:
    """Return the p-value of the differences between groups; None where no two patients can exchange theirs.

    Args:
        sample: Labels and scores of the images.
        group: Group of each image (N,).
        codes: The groups that are compared; images of others are left out.
        columns: Places of the findings that the number is a mean over.
        key: `auroc` or `pointing_game`.
        random: Generator of the exchanges.
    """
    images = np.flatnonzero(np.isin(group, codes))
    images = images[np.argsort(sample.image_cluster[images], kind="stable")]
    own, starts = group[images], np.flatnonzero(np.diff(sample.image_cluster[images], prepend=-1))
    sizes = np.diff([*starts, len(images)])
    # Of patients with equally many images, the places of these (patients, images).
    alike = [starts[sizes == size][:, None] + np.arange(size) for size in np.unique(sizes)]
    if all((own[places] == own[places[0]]).all() for places in alike):
        return None
    hits, pairs = np.zeros((2, *sample.labels.shape))
    np.add.at(hits, (sample.pair_image, sample.pair_column), sample.hit)
    np.add.at(pairs, (sample.pair_image, sample.pair_column), 1)
    given = (sample.labels.astype(np.float64), sample.probabilities) if key == "auroc" else (hits, pairs)
    one, two = (values[images][:, columns] for values in given)
    of_group = partial(_auroc if key == "auroc" else _pointing_game, one, two)

    def statistic(drawn: Codes) -> Floats:
        """Return the largest difference over its standard error, of groups of the images (E, N), (E,)."""
        largest, of_groups = np.zeros(len(drawn)), []
        for code in codes:
            mean, influence = of_group(drawn == code)
            of_groups.append((mean, np.add.reduceat(influence, starts, axis=1)))
        for (mean, influence), (less, other) in combinations(of_groups, 2):
            error = np.sqrt(((influence - other) ** 2).sum(axis=1))
            largest = np.maximum(largest, abs(mean - less) / np.maximum(error, _ROUNDING))
        return largest

    least, far, step = statistic(own[None])[0] * (1 - _ROUNDING), 1, max(1, _AT_A_TIME // len(images))
    for start in range(0, EXCHANGES, step):
        drawn = np.tile(own, (min(step, EXCHANGES - start), 1))
        for places in alike:
            order = random.permuted(np.tile(np.arange(len(places)), (len(drawn), 1)), axis=1)
            drawn[:, places] = own[places][order]
        far += int((statistic(drawn) >= least).sum())
    return far / (EXCHANGES + 1)


def _pointing_game(hits: Floats, pairs: Floats, mine: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the mean over findings in a group (E,), and what each image adds to its error (E, N).

    `hits` and `pairs` are sums of each image (N, C); `mine` says which images are in the group (E, N). A finding that
    an exchange leaves without a pair there is left out.
    """
    count = mine @ pairs
    share = mine @ hits / np.maximum(count, 1)
    weight = (count > 0) / np.maximum(count, 1) / np.maximum((count > 0).sum(axis=1, keepdims=True), 1)
    return (share * count * weight).sum(axis=1), mine * (weight @ hits.T - (weight * share) @ pairs.T)


def _auroc(labels: Floats, scores: Floats, mine: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the same of AUROC, whose error is that of DeLong, DeLong and Clarke-Pearson (1988)."""
    total, known, influence = np.zeros((len(mine), 1)), np.zeros((len(mine), 1)), np.zeros(mine.shape)
    for label, score in zip(labels.T, scores.T, strict=True):
        order = np.argsort(score, kind="stable")
        images = [order[label[order] == kind] for kind in (1, 0)]
        own = [mine[:, kind].astype(np.float64) for kind in images]
        counts = [np.maximum(of.sum(axis=1, keepdims=True), 1) for of in own]
        # Per image, the share of the other kind that its score lies above; tied ones count one half.
        above = []
        for kind, other in ((0, 1), (1, 0)):
            sums = np.pad(own[other].cumsum(axis=1), ((0, 0), (1, 0)))
            ends = (np.searchsorted(score[images[other]], score[images[kind]], side) for side in ("left", "right"))
            above.append(sum(sums[:, end] for end in ends) / 2 / counts[other])
        area = (own[0] * above[0]).sum(axis=1, keepdims=True) / counts[0]
        both = own[0].any(axis=1, keepdims=True) & own[1].any(axis=1, keepdims=True)
        influence[:, images[0]] += both * own[0] * (above[0] - area) / counts[0]
        influence[:, images[1]] += both * own[1] * (1 - above[1] - area) / counts[1]
        total, known = total + both * area, known + both
    return (total / np.maximum(known, 1))[:, 0], influence / np.maximum(known, 1)
