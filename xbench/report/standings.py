"""Who stands where: the score of each series of runs between floor and ceiling, over datasets too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from xbench.report.names import model_title
from xbench.report.schema import Analysis, Comparison, DatasetAnalysis, Estimate, parts_of, shared_datasets
from xbench.report.series import Series, series_of


@dataclass(frozen=True)
class Floor:
    """The best of the answers that ignore the film: its title, what it does in words, and what it scores."""

    title: str
    does: str
    value: float


@dataclass(frozen=True)
class Standing:
    """A series and its score; `tied` with the best where a paired test could not tell them apart."""

    label: str
    series: Series
    score: Estimate
    tied: bool = False


@dataclass(frozen=True)
class Standings:
    """Scores of one number, best first, as means over `datasets`, those that every series was run on.

    Attributes:
        floor: None for numbers without floors.
        chance: What a point drawn at random scores.
        untested: Names of series that no paired test compares with the best; only on a single dataset are there tests.
    """

    number: str
    datasets: tuple[DatasetAnalysis, ...]
    rows: tuple[Standing, ...]
    floor: Floor | None
    chance: float | None
    untested: tuple[str, ...] = ()

    def at_floor(self, row: Standing) -> bool:
        """Tell whether a score's interval reaches down to the floor."""
        lowest = row.score.value if row.score.low is None else row.score.low
        return self.floor is not None and lowest is not None and lowest <= self.floor.value

    def points(self, label: str) -> str:
        """Return who of a series points: "its map points", or of a model that answers "its boxes point"."""
        runs = (entry.run for dataset in self.datasets for entry in dataset.runs if entry.run.label == label)
        kinds = {run.results.answers.kind for run in runs if run.results.answers is not None}
        return {"boxes": "its boxes point", "points": "it points"}[min(kinds)] if kinds else "its map points"

    @property
    def tied(self) -> tuple[Standing, ...]:
        """The best and what is not significantly different from it."""
        return tuple(row for row in self.rows if row.tied)


def standings(analysis: Analysis, number: str = "pointing_game") -> Standings:
    """Return where the series of a report stand; no rows where no run has the number.

    Means are over the datasets that all of them were run on; without one, over the dataset that most were run on.
    """
    series, parts = series_of(analysis.runs), parts_of(analysis.datasets)
    shared = shared_datasets(analysis.datasets, number)
    if not any(dataset.values(number) for dataset in analysis.datasets):
        return Standings(number, (), (), None, None)
    rows = []
    for label in series:
        if label not in parts and all(label in dataset.values(number) for dataset in shared):
            rows.append(
                Standing(label, series[label], over_datasets([_score(dataset, label, number) for dataset in shared]))
            )
    rows.sort(key=lambda row: -(row.score.value or 0.0))
    untested: list[str] = []
    if len(shared) == 1:
        best = rows[0].label
        ties = shared[0].tied_with_best.get(number, frozenset())
        rows = [replace(row, tied=row.label in ties) for row in rows]
        labels = [label for label in shared[0].untested(number, best) if label not in parts]
        untested = [series[label].name for label in labels] if len(rows) > 1 else []
    floors = {
        title: value
        for title in dict.fromkeys(reference.title for dataset in shared for reference in dataset.references)
        if (value := _reference(shared, title, number)) is not None
    }
    floor = max(floors.items(), key=lambda found: found[1], default=None)
    return Standings(
        number,
        shared,
        tuple(rows),
        None if floor is None else Floor(floor[0], _does(floor[0]), floor[1]),
        floors.get("Whole image") if number == "pointing_game" else None,
        tuple(untested),
    )


def _does(title: str) -> str:
    if title.startswith(model_title("centre")):
        return "the middle of the film"
    return {"Whole image": "a random point", "Random": "a random map"}.get(title, title)


def _score(dataset: DatasetAnalysis, label: str, number: str) -> Estimate:
    return next(entry.macro[number] for entry in dataset.runs if entry.run.label == label)


def _reference(datasets: Sequence[DatasetAnalysis], title: str, number: str) -> float | None:
    """Return the mean over datasets of what a floor scores; None where one of them has not got it."""
    found = [
        value
        for dataset in datasets
        for reference in dataset.references
        if reference.title == title and reference.kind == "floor"
        if (value := reference.macro.get(number, Estimate(None)).value) is not None
    ]
    return sum(found) / len(found) if found and len(found) == len(datasets) else None


def over_datasets(scores: Sequence[Estimate]) -> Estimate:
    """Return the mean of scores on datasets with no film in common, each counting the same.

    The interval recovers the variances from the scores' own limits (MOVER: Zou and Donner 2008, Statistics in Medicine
    27, 1693); None if a score has none.
    """
    if len(scores) == 1:
        return scores[0]
    known = [(one.value, one.low, one.high) for one in scores if one.value is not None]
    if len(known) < len(scores) or not known:
        return Estimate(None)
    mean = sum(value for value, _, _ in known) / len(known)
    limits = [(value - low, high - value) for value, low, high in known if low is not None and high is not None]
    if len(limits) < len(known):
        return Estimate(mean)
    below, above = (sum(side**2 for side in sides) ** 0.5 / len(known) for sides in zip(*limits, strict=True))
    return Estimate(mean, max(0.0, mean - below), min(1.0, mean + above))


def paired_test_of(comparisons: Iterable[Comparison], number: str, one: str, other: str) -> Comparison | None:
    """Return the paired test of a number between two labels, if there is one with a p-value."""
    found = (
        entry
        for entry in comparisons
        if entry.number == number and {entry.first, entry.second} == {one, other} and entry.p_adjusted is not None
    )
    return next(found, None)
