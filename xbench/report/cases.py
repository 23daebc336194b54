"""Choose cases by their scores alone, and read what their pictures need."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xbench.findings.names import canonical
from xbench.geometry.grid import maps_on_grid
from xbench.predictions.words import Vocabulary
from xbench.report.runs import Run
from xbench.report.schema import NEAR, RunAnalysis
from xbench.runs.answers import AnswerRow
from xbench.runs.files import MENTIONS, READ_TEXTS, Table, reading
from xbench.runs.images import ScoredPair
from xbench.runs.protocols import FOLDER, VOCABULARY, read_protocol, read_protocol_pairs
from xbench.scoring.boxes import draw_boxes
from xbench.scoring.protocols.common import stretched
from xbench.scoring.protocols.words import Words


@dataclass(frozen=True)
class CaseScores:
    """The scores of one run on one pair: distance in image widths, Dice at 0.5.

    `recognized` is None if the run has no threshold for the finding (see `Quadrants`).
    """

    pointing_hit: float
    peak_distance: float
    dice: float
    probability: float
    recognized: bool | None

    @property
    def grounded(self) -> bool:
        """Whether the pointing game counts at least half."""
        return self.pointing_hit >= 0.5

    @property
    def look(self) -> Literal["hit", "near miss", "elsewhere"]:
        """Where the model looks (see `Quadrants`)."""
        return "hit" if self.grounded else "near miss" if self.peak_distance <= NEAR else "elsewhere"


@dataclass(frozen=True)
class ChosenCase:
    """A pair of image and finding, with scores by label of the run, and reasons such as `Best Dice`."""

    image_id: str
    finding: str
    reasons: tuple[str, ...]
    scores: Mapping[str, CaseScores]


Rankings = dict[str, list[int]]
"""Pairs by reason, the clearest example first."""
_FAILURES: Mapping[str, Callable[[CaseScores], bool]] = {
    "Near miss": lambda score: score.recognized is not False and score.look == "near miss",
    "Recognized, elsewhere": lambda score: score.recognized is True and score.look == "elsewhere",
    "Missed": lambda score: score.recognized is None and score.look == "elsewhere",
    "Both wrong": lambda score: score.recognized is False and not score.grounded,
    "Not recognized, on the lesion": lambda score: score.recognized is False and score.grounded,
}


def choose_cases(runs: Sequence[RunAnalysis], count: int, first: str = "") -> tuple[ChosenCase, ...]:
    """Choose up to `count` different pairs that all runs of one dataset scored on the same region and kept.

    Failures come first, of the run labeled `first` (by default the first run), then of the others. The rest have the
    best, worst and median Dice (mean over the runs), the largest difference between two runs, then the best, worst and
    median of each run. Reasons take turns, and so do findings. Runs without maps or shared pairs are left out.
    """
    scored = {run.run.label: of_run for run in runs if (of_run := _scored_pairs(run))}
    scores: dict[str, Mapping[tuple[str, str, bytes], CaseScores]] = {}
    pairs: list[tuple[str, str, bytes]] = []
    for label in sorted(scored, key=lambda label: label != first):
        if common := [pair for pair in pairs or scored[label] if pair in scored[label]]:
            scores[label], pairs = scored[label], common
    if not scores:
        return ()
    chosen: dict[int, list[str]] = {}
    table = {label: [of_run[pair] for pair in pairs] for label, of_run in scores.items()}
    for rankings in _rankings([finding for _, finding, _ in pairs], table):
        choose_in_turns(rankings, count, chosen)
    scored_by = {at: {label: of[at] for label, of in table.items()} for at in chosen}
    return tuple(ChosenCase(*pairs[at][:2], tuple(reasons), scored_by[at]) for at, reasons in chosen.items())


def choose_in_turns(rankings: Rankings, count: int, chosen: dict[int, list[str]]) -> None:
    """Add up to `count` pairs with their reasons to `chosen`; reasons take turns, each with its next new pair."""
    while len(chosen) < count and any(rankings.values()):
        for reason, ranking in rankings.items():
            while ranking:
                pair = ranking.pop(0)
                if pair not in chosen:
                    if len(chosen) < count:
                        chosen[pair] = [reason]
                    break
                if reason not in chosen[pair]:
                    chosen[pair].append(reason)


def _rankings(findings: Sequence[str], scores: Mapping[str, Sequence[CaseScores]]) -> Iterator[Rankings]:
    """Yield failures of the first run, those of the others alone, and pairs with remarkable Dice."""
    dice = np.array([[score.dice for score in of_run] for of_run in scores.values()])
    mean, spread = np.nan_to_num(dice).mean(axis=0), np.ptp(dice, axis=0)
    of_first, of_others = Rankings(), Rankings()
    for reason, fails in _FAILURES.items():
        failed = np.array([[*map(fails, of_run)] for of_run in scores.values()])
        # Among equal numbers of runs, a lower Dice is the clearer example; where the peak is right, a higher one is.
        clearer = mean if reason.endswith("on the lesion") else -mean
        ranked = _in_turns(failed.sum(axis=0) + clearer / 2 + len(scores) * failed[0], findings)
        of_first[reason] = [pair for pair in ranked if failed[0, pair]]
        of_others[reason] = [pair for pair in ranked if failed[:, pair].any() and not failed[0, pair]]
    yield of_first
    yield of_others

    def worths(dice: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        # The lower median is the value of a pair.
        median = np.sort(dice)[(len(dice) - 1) // 2]
        return {"Best Dice": dice, "Worst Dice": -dice, "Median Dice": -np.abs(dice - median)}

    best, worst, typical = worths(dice.mean(axis=0)).items()
    worth = dict((best, worst, ("Largest disagreement", spread), typical))
    if len(scores) > 1:
        worth = {name.replace("Dice", "mean Dice"): value for name, value in worth.items()}
        of_runs = {label: worths(row) for label, row in zip(scores, dice, strict=True)}
        worth |= {f"{name} of {label}": of[name] for name, _ in (best, worst, typical) for label, of in of_runs.items()}
    rankings = {reason: _in_turns(values, findings, 4) for reason, values in worth.items()}
    yield rankings | {"Largest disagreement": [pair for pair in rankings["Largest disagreement"] if spread[pair] > 0]}


def _in_turns(worth: NDArray[np.float64], findings: Sequence[str], part: int = 1) -> list[int]:
    """Order pairs by their worth, with findings in turns; of each finding a `part`-th, at least one."""
    turns: list[tuple[int, int]] = []
    total, seen = Counter(findings), Counter[str]()
    for pair in np.argsort(-worth, kind="stable").tolist():
        turn = seen[findings[pair]]
        seen[findings[pair]] += 1
        if turn < max(1, total[findings[pair]] // part):
            turns.append((turn, pair))
    return [pair for _, pair in sorted(turns, key=lambda entry: entry[0])]


def typical_cases(runs: Sequence[RunAnalysis]) -> dict[str, tuple[int, ChosenCase]]:
    """Return a typical pair of each outcome, with the index of its run, for runs of one model on several datasets.

    Outcomes are `hit`; `elsewhere`, recognized only; and `missed`, neither. Typical is the pair with the Dice nearest
    to the median, among near misses if most are.
    """
    pairs: defaultdict[tuple[str, str], list[tuple[float, int, ChosenCase]]] = defaultdict(list)
    for place, run in enumerate(runs):
        for (image_id, finding, _), scores in _scored_pairs(run).items():
            outcome = "hit" if scores.grounded else "elsewhere" if scores.recognized else "missed"
            case = ChosenCase(image_id, finding, (), {run.run.label: scores})
            if scores.recognized is not None:
                pairs[outcome, scores.look].append((scores.dice, place, case))
    typical = {}
    for outcome in ("hit", "elsewhere", "missed"):
        if of_outcome := max((pairs[outcome, look] for look in ("hit", "elsewhere", "near miss")), key=len):
            median = sorted(dice for dice, _, _ in of_outcome)[(len(of_outcome) - 1) // 2]
            _, place, case = min(of_outcome, key=lambda pair: abs(pair[0] - median))
            typical[outcome] = place, case
    return typical


def _scored_pairs(run: RunAnalysis) -> dict[tuple[str, str, bytes], CaseScores]:
    images, findings, cases = run.run.images, run.run.results.findings, run.run.cases()
    scores = {}
    for row, column in np.argwhere(images.scored):
        pair = images.image_ids[row], findings[column]
        if cases is None or pair not in cases:
            continue
        probability = float(images.probabilities[row, column])
        quadrants = run.quadrants.get(pair[1])
        scores[*pair, bytes(images.region_digests[row, column])] = CaseScores(
            pointing_hit=float(images.pointing_hit[row, column]),
            peak_distance=float(images.peak_distance[row, column]),
            dice=float(images.dice[row, column]),
            probability=probability,
            recognized=None if quadrants is None else probability >= quadrants.threshold,
        )
    return scores


def opposite_sides(runs: Sequence[Run], count: int) -> Iterator[tuple[str, str, ScoredPair, list[str]]]:
    """Yield up to `count` images with an opposite side: label, sides, pair and text, every second part a mention."""
    for run in (run for run in runs if run.pictured and (run.folder / MENTIONS).exists()):
        table, settings = read_protocol_pairs(run.folder, Words.name), read_protocol(run.folder, Words.name)["settings"]
        file = run.folder / FOLDER / VOCABULARY
        accepts = {} if settings["strict"] else Vocabulary.of(file if file.exists() else None).accepts
        with reading(run.folder):
            texts, mentions = (Table(run.folder / name).read().to_pylist() for name in (READ_TEXTS, MENTIONS))
        text_of = {(row["image_id"], row["asked"]): row["text"] for row in texts}
        opposite = np.flatnonzero(table["side"] == "opposite")
        findings = [run.results.findings[column] for column in table["column"][opposite]]
        for place in _in_turns(np.zeros(len(opposite)), findings)[:count]:
            pair = image_id, finding = str(table["image_id"][opposite[place]]), findings[place]
            about, name = pair if pair in text_of else (image_id, None), canonical(finding) or finding
            text, ends = text_of[about], [0]
            names = {name, *accepts.get(name, ())}
            for mention in (row for row in mentions if (row["image_id"], row["asked"]) == about):
                placed = mention["finding"] in names and mention["sides"] and mention["status"] != "negated"
                ends += mention["span"] if placed and mention["span"][0] >= ends[-1] else []
            said, true = (str(table[one][opposite[place]]).replace(" ", " and ") for one in ("sides", "true_sides"))
            parts = [text[start:end] for start, end in pairwise([*ends, len(text)])]
            yield run.label, f"says {said}, is {true}", run.stored.scored_pairs.read(*pair), parts
            count -= 1


@dataclass(frozen=True)
class CaseMap:
    """A run's map of a case: raw in `pair`, and `saliency` on the grid of the region (H, W) in [0, 1].

    `peak` is x and y as shares of width and height, None if nothing is pointed at; `answer` is that of a model that
    answers.
    """

    run: RunAnalysis
    pair: ScoredPair
    saliency: NDArray[np.float32]
    peak: tuple[float, float] | None
    scores: CaseScores
    answer: AnswerRow | None = None


def read_maps(runs: Sequence[RunAnalysis], cases: Iterable[ChosenCase]) -> Iterator[tuple[ChosenCase, list[CaseMap]]]:
    """Read the maps of chosen cases, case by case, of the runs that have scores in them."""
    kept = [(run, pairs) for run in runs if (pairs := run.run.cases()) is not None]
    for case in cases:
        maps = []
        for run, pairs in kept:
            if run.run.label not in case.scores:
                continue
            pair, images = pairs.read(case.image_id, case.finding), run.run.images
            place = images.image_ids.index(case.image_id), run.run.results.findings.index(case.finding)
            x, y = float(images.peak_x[place]), float(images.peak_y[place])
            peak, answer = None if np.isnan(x) else (x, y), answer_of(run.run, pair)
            on_grid, scores = map_on_grid(run.run, pair), case.scores[run.run.label]
            maps.append(CaseMap(run, pair, on_grid, peak, scores, answer))
        yield case, maps


def answer_of(run: Run, pair: ScoredPair) -> AnswerRow | None:
    """Return a model's answer about the place of a pair; None for a model with maps."""
    rows = run.stored.answers.get(pair.image_id, [])
    return next((row for row in rows if row.query == "locate" and row.finding == pair.finding), None)


def map_on_grid(run: Run, pair: ScoredPair) -> NDArray[np.float32]:
    """Return the map of a pair on the grid of its region (H, W), normalized to [0, 1] as for scoring."""
    if (answer := answer_of(run, pair)) is not None:
        return draw_boxes(answer.boxes or (), (pair.region.shape[0], pair.region.shape[1])).astype(np.float32)
    mode = (run.results.provenance.get("model") or {}).get("saliency_upsample", "bilinear")
    assert pair.saliency is not None  # only answers show no map where a pair is scored
    return stretched(maps_on_grid(np.nan_to_num(pair.saliency), pair.view, pair.region.shape, mode))
