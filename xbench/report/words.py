"""What a report found on one dataset, in words."""

from __future__ import annotations

from collections.abc import Iterator

from xbench.report.schema import NUMBERS, DatasetAnalysis, Estimate
from xbench.report.tables.table import percentage

__all__ = ["dataset_in_words", "tests_in_words"]

_BEST = ("pointing_game", "dice_cross_fitted", "auroc")
_FEW = 10
"""Pairs below which a share of them is no finding."""


def dataset_in_words(dataset: DatasetAnalysis) -> tuple[str, ...]:
    """Return points of a sentence or two in plain text; nothing is said that is not computed."""
    return (
        *(text for key in _BEST for text in _best(dataset, key)),
        *_calibration(dataset),
        *_optimism(dataset),
        *_recognised_elsewhere(dataset),
        *_chance(dataset),
        *dataset.notes,
    )


def _best(dataset: DatasetAnalysis, key: str) -> Iterator[str]:
    values = _values(dataset, key)
    if not values:
        return
    title, highest = NUMBERS[key].title, max(values.values())
    leaders = [label for label, value in values.items() if value == highest]
    estimate = next(entry.macro[key] for entry in dataset.runs if entry.run.label == leaders[0])
    said = f"{title}: {_listed(leaders)} with {percentage(highest)}{_interval(estimate)}."
    if len(values) == 1:
        yield said
        return
    yield said + (tests_in_words(dataset, key, leaders[0]) if len(leaders) == 1 else "")


def tests_in_words(dataset: DatasetAnalysis, number: str, best: str) -> str:
    """Return from whom paired tests tell the best run, from whom not, and who was not tested, with a space before it.

    Args:
        dataset: With at least two runs that have the number.
        number: One that is tested.
        best: Label of the run that has the most.
    """
    tied = sorted(dataset.tied_with_best.get(number, frozenset()) - {best})
    untested = dataset.untested(number, best)
    tested = len(_values(dataset, number)) - 1 - len(untested)
    said = ""
    if tied:
        said += f" A paired test cannot tell it from {_listed(tied)}."
    elif tested:
        said += f" A paired test tells it from every {'model it was tested against' if untested else 'other model'}."
    if untested:
        said += f" It could not be tested against {_listed(untested)}, so this is no ranking: the notes say why."
    return said


def _calibration(dataset: DatasetAnalysis) -> Iterator[str]:
    gaps = _values(dataset, "dice_gap")
    if gaps:
        label = max(gaps, key=lambda label: gaps[label])
        begin = "Largest calibration gap: threshold 0.5" if len(gaps) > 1 else "Threshold 0.5"
        yield (f"{begin} costs {label} {percentage(gaps[label])} points of Dice against its best threshold.")


def _optimism(dataset: DatasetAnalysis) -> Iterator[str]:
    optimism = _values(dataset, "dice_optimism")
    if optimism:
        label = max(optimism, key=lambda label: optimism[label])
        mean = sum(optimism.values()) / len(optimism)
        most = f" on average, most that of {label} ({percentage(optimism[label])})" if len(optimism) > 1 else ""
        yield (
            f"Choosing the threshold on the images that are scored flatters Dice by {percentage(mean)} points{most}."
        )


def _recognised_elsewhere(dataset: DatasetAnalysis) -> Iterator[str]:
    shares = [
        (shares.elsewhere, entry, finding, shares.count)
        for entry in dataset.runs
        for finding, shares in entry.quadrants.items()
        if shares.count >= _FEW
    ]
    leaders = sorted(shares, key=lambda share: -share[0])[:3]
    if leaders and leaders[0][0] > 0:
        said = [
            f"{finding} by {entry.run.label} ({percentage(share)} % of {count} images)"
            for share, entry, finding, count in leaders
            if share > 0
        ]
        yield f"Most often recognised while the map points elsewhere: {_listed(said)}."


def _chance(dataset: DatasetAnalysis) -> Iterator[str]:
    for reference in dataset.references:
        expected, spread = (
            reference.macro.get("pointing_game", Estimate(None)).value,
            reference.spread.get("pointing_game"),
        )
        if expected is not None and spread is not None:
            yield (
                f"Random maps have a pointing game of {percentage(expected)} % in the mean of many draws, and a "
                f"standard deviation of {percentage(spread)} points in runs that draw one map for every pair."
            )


def _values(dataset: DatasetAnalysis, key: str) -> dict[str, float]:
    values = {entry.run.label: entry.macro.get(key, Estimate(None)).value for entry in dataset.runs}
    return {label: value for label, value in values.items() if value is not None}


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return " %"
    return f" % (95 % interval {percentage(estimate.low)} to {percentage(estimate.high)})"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
