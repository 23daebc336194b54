"""Which cases are worth a look: the extremes of a dataset and what is typical, by the scores alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xbench.report.schema import NEAR, RunAnalysis


@dataclass(frozen=True)
class CaseScores:
    """What one run scored on one pair of image and finding.

    Attributes:
        pointing_hit: Share of the map's highest places that lie in the region: 1 or 0 unless several tie.
        peak_distance: From the peak of the map to the region, in film widths.
        dice: Dice at threshold 0.5.
        probability: Of the finding.
        recognised: Whether the probability reaches the run's threshold for the finding (see `Quadrants`); None where
            there is none.
    """

    pointing_hit: float
    peak_distance: float
    dice: float
    probability: float
    recognised: bool | None

    @property
    def grounded(self) -> bool:
        """Whether the pointing game counts at least half."""
        return self.pointing_hit >= 0.5

    @property
    def look(self) -> Literal["hit", "near miss", "elsewhere"]:
        """Where the model looks: at the region, just beside it, or elsewhere (see `Quadrants`)."""
        return "hit" if self.grounded else "near miss" if self.peak_distance <= NEAR else "elsewhere"


@dataclass(frozen=True)
class ChosenCase:
    """A pair of image and finding, and why it was chosen.

    Attributes:
        reasons: What it is an example of, such as `Best Dice` or `Worst Dice of CARZero`.
        scores: Of each run, by its label.
    """

    dataset: str
    image_id: str
    finding: str
    reasons: tuple[str, ...]
    scores: Mapping[str, CaseScores]


def choose_cases(runs: Sequence[RunAnalysis], count: int) -> tuple[ChosenCase, ...]:
    """Choose up to `count` pairs that all runs of one dataset scored on the same region and kept, none of them twice.

    The reasons take turns: best, worst and median Dice (mean over the runs), largest difference between two runs,
    recognised while looking elsewhere, and grounded but not recognised (by most runs), then best, worst and median of
    each run; and again.
    Each first gives its extreme, then that of a finding that it has shown less often, so that no finding takes all,
    and at most a quarter of a finding's pairs. A pair that several reasons lead to is shown once and names them all.
    Runs that kept no maps are left out.
    """
    runs = [run for run in runs if run.run.cases() is not None]
    if not runs or count < 1:
        return ()
    scores = [_scored_pairs(run) for run in runs]
    pairs = [pair for pair in scores[0] if all(pair in other for other in scores)]
    rankings = _rankings(
        [run.run.label for run in runs],
        [finding for _, finding, _ in pairs],
        [[of_run[pair] for pair in pairs] for of_run in scores],
    )
    chosen: dict[int, list[str]] = {}
    while len(chosen) < count and any(rankings.values()):
        for reason, ranking in rankings.items():
            while ranking:
                pair = ranking.pop(0)
                if pair in chosen:
                    chosen[pair].append(reason)
                    continue
                if len(chosen) < count:
                    chosen[pair] = [reason]
                break
    return tuple(
        ChosenCase(
            runs[0].run.dataset,
            *pairs[pair][:2],
            tuple(reasons),
            {run.run.label: of_run[pairs[pair]] for run, of_run in zip(runs, scores, strict=True)},
        )
        for pair, reasons in chosen.items()
    )


def _scored_pairs(run: RunAnalysis) -> dict[tuple[str, str, bytes], CaseScores]:
    """Return the scores of the pairs that a run scored and kept, in their order, by image, finding and region."""
    images, findings, cases = run.run.images, run.run.results.findings, run.run.cases()
    scores = {}
    for row, column in np.argwhere(images.scored):
        pair = images.image_ids[row], findings[column]
        if cases is None or pair not in cases:
            continue
        probability = float(images.probabilities[row, column])
        quadrants = run.quadrants.get(pair[1])
        threshold = None if quadrants is None else quadrants.threshold
        scores[*pair, bytes(images.region_digests[row, column])] = CaseScores(
            pointing_hit=float(images.pointing_hit[row, column]),
            peak_distance=float(images.peak_distance[row, column]),
            dice=float(images.dice[row, column]),
            probability=probability,
            recognised=None if threshold is None else probability >= threshold,
        )
    return scores


def _rankings(
    labels: Sequence[str], findings: Sequence[str], scores: Sequence[Sequence[CaseScores]]
) -> dict[str, list[int]]:
    """Order the pairs that deserve it by every reason, the most deserving first; equal ones as they come.

    The labels are of the runs, the findings of the pairs, the scores of every run for every pair.
    """
    shape = len(labels), len(findings)
    dice = np.array([[score.dice for score in row] for row in scores], dtype=np.float64).reshape(shape)
    mean, spread = dice.mean(axis=0), np.ptp(dice, axis=0)

    def count_of(kind: Callable[[CaseScores], bool]) -> NDArray[np.int64]:
        matches = np.array([[kind(score) for score in row] for row in scores], dtype=np.int64).reshape(shape)
        return np.asarray(matches.sum(axis=0), dtype=np.int64)

    def extremes(worth: NDArray[np.float64]) -> list[int]:
        return _taking_turns(np.argsort(-worth, kind="stable"), findings)

    blind = count_of(lambda score: score.recognised is True and score.look == "elsewhere")
    silent = count_of(lambda score: score.recognised is False and score.grounded)
    rankings = {
        "Best Dice": extremes(mean),
        "Worst Dice": extremes(-mean),
        "Largest disagreement": [pair for pair in extremes(spread) if spread[pair] > 0],
        # Among equal numbers of runs, a lower (or higher) Dice is the clearer example. Dice is at most 1.
        "Recognised, looks elsewhere": [pair for pair in extremes(blind - mean / 2) if blind[pair]],
        "Grounded, not recognised": [pair for pair in extremes(silent + mean / 2) if silent[pair]],
        "Median Dice": extremes(-np.abs(mean - _median(mean))),
    }
    if len(labels) > 1:
        of_runs = list(zip(labels, dice, strict=True))
        rankings |= {f"Best Dice of {label}": extremes(mine) for label, mine in of_runs}
        rankings |= {f"Worst Dice of {label}": extremes(-mine) for label, mine in of_runs}
        rankings |= {f"Median Dice of {label}": extremes(-np.abs(mine - _median(mine))) for label, mine in of_runs}
    return rankings


def _median(values: NDArray[np.float64]) -> float:
    """Return the lower median, which is the value of a pair; NaN without any."""
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else np.nan


def _taking_turns(order: NDArray[np.intp], findings: Sequence[str]) -> list[int]:
    """Return the first quarter of every finding's pairs, one at least, one finding after the other in turns."""
    total, seen = Counter(findings), Counter[str]()
    turns: list[tuple[int, int]] = []
    for pair in order.tolist():
        finding = findings[pair]
        if seen[finding] < max(1, total[finding] // 4):
            turns.append((seen[finding], pair))
        seen[finding] += 1
    return [pair for _, pair in sorted(turns, key=lambda entry: entry[0])]
