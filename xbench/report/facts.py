"""The facts that sentences and charts share: scores between floor and ceiling, the best, ties, and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xbench.report.colors import Series, series_of
from xbench.report.names import mean_over, model_title
from xbench.report.schema import Analysis, DatasetAnalysis, Estimate, RunAnalysis, parts_of, shared_datasets

FAR_APART = 0.10
"""Scores that differ by more, although no test tells them apart, come from too few images."""


@dataclass(frozen=True)
class Floor:
    """The best rule that ignores the image: what it does in words, its title in tables, and its score."""

    does: str
    title: str
    value: float


@dataclass(frozen=True)
class Standing:
    """A series and its score, the mean over its runs; each is a mean over at most `findings` findings.

    `tied`: the best, or not significantly different from it. `own`: with the model's own settings.
    """

    label: str
    model: str
    own: bool
    score: Estimate
    runs: tuple[RunAnalysis, ...]
    findings: int
    tied: bool = False

    @property
    def value(self) -> float:
        """The score; 0 where there is none."""
        return self.score.value or 0.0

    @property
    def answers(self) -> str:
        """What the model answers with, `boxes` or `points`; empty for a model with maps."""
        return min((run.run.results.answers.kind for run in self.runs if run.run.results.answers), default="")

    @property
    def over(self) -> str:
        """What its score averages (see `mean_over`)."""
        return mean_over(len(self.runs), self.findings)

    @property
    def lesions(self) -> int:
        """Number of scored pairs."""
        return sum(len(run.run.rows.counts.row) for run in self.runs)

    @property
    def hits(self) -> float:
        """Lesions pointed at; ties of the maximum, and boxes, count by their share in the region."""
        return sum(float(rows["pointing_hit"][rows.counts.row].sum()) for rows in (run.run.rows for run in self.runs))


@dataclass(frozen=True)
class Standings:
    """Scores of one number, best first, as means over `datasets`, those that every series was run on."""

    number: str
    datasets: tuple[DatasetAnalysis, ...] = ()
    rows: tuple[Standing, ...] = ()
    floor: Floor | None = None
    ceiling: float | None = None  # the score of boxes around outlines
    chance: float | None = None  # what a point drawn at random scores
    untested: tuple[str, ...] = ()  # on a single dataset, labels that no paired test compares with the best

    @property
    def models(self) -> list[str]:
        """Names of the models, best first."""
        return list(dict.fromkeys(row.model for row in self.rows))

    @property
    def head(self) -> Standing:
        """The standing that the report is about: the single model's own settings, or the best model."""
        own = [row for row in self.rows if row.own] if len(self.models) == 1 else []
        return (own or self.rows)[0]

    @property
    def tied(self) -> tuple[Standing, ...]:
        """The best and what is not significantly different from it."""
        return tuple(row for row in self.rows if row.tied)

    @property
    def too_few_images(self) -> bool:
        """Whether tied scores are far apart."""
        return len(self.tied) > 1 and self.tied[0].value - self.tied[-1].value > FAR_APART

    def at_floor(self, row: Standing) -> bool:
        """Tell whether a score's interval reaches down to the floor."""
        lowest = row.value if row.score.low is None else row.score.low
        return self.floor is not None and lowest <= self.floor.value

    def undecided(self, row: Standing) -> bool:
        """Tell whether a score's interval contains both the floor and much higher scores."""
        highest = row.value if row.score.high is None else row.score.high
        return self.floor is not None and self.at_floor(row) and highest - self.floor.value > FAR_APART


@dataclass(frozen=True)
class Facts:
    """Input of the sentences: series, and their standings by three numbers."""

    analysis: Analysis
    series: Mapping[str, Series]
    pointing: Standings
    words: Standings
    recognition: Standings

    @property
    def shown(self) -> Standings:
        """The standings that the report opens with."""
        return next((found for found in (self.pointing, self.words) if found.rows), self.recognition)


def facts_of(analysis: Analysis) -> Facts:
    """Return the facts of a report."""
    found = (standings(analysis, number) for number in ("pointing_game", "side_joint", "auroc"))
    return Facts(analysis, series_of(analysis.runs), *found)


def standings(analysis: Analysis, number: str = "pointing_game") -> Standings:
    """Return the standings of a report's series; means are over shared datasets or that with the most series."""
    parts, shared = parts_of(analysis.datasets), shared_datasets(analysis.datasets, number)
    if not any(dataset.values(number) for dataset in shared):
        return Standings(number)
    rows = []
    for label, series in series_of(analysis.runs).items():
        runs = [run for dataset in shared for run in dataset.runs if run.run.label == label]
        scores = [score for run in runs if (score := run.number(number)).value is not None]
        if label not in parts and len(scores) == len(shared):
            findings = max(sum(run.number(number, one).value is not None for one in run.findings) for run in runs)
            rows.append(Standing(label, series.model, series.own, over_datasets(scores), tuple(runs), findings))
    rows.sort(key=lambda row: -row.value)
    untested: list[str] = []
    if len(shared) == 1:
        (dataset,) = shared
        rows = [replace(row, tied=row.label in dataset.tied_with_best.get(number, ())) for row in rows]
        untested = [label for label in dataset.untested(number, rows[0].label) if label not in parts and len(rows) > 1]
    floors, ceilings = _references(shared, number, "floor"), _references(shared, number, "ceiling")
    best = max(floors, key=lambda title: floors[title], default=None)
    words = {"Whole image": "a coin flip" if number == "auroc" else "a uniformly random point"}
    words["Random"] = "a map of random noise"
    if best is not None and best.startswith(model_title("centre")):
        words[best] = "the middle of the image"
    another = "where the finding is on another image"
    says = {"prior": "the most common place", "shuffled": another, "all": "all places at once"}
    words |= {model_title(f"words_{name}"): f"always saying {place}" for name, place in says.items()}
    floor = None if best is None else Floor(words.get(best, best), best, floors[best])
    chance = floors.get("Whole image") if number == "pointing_game" else None
    ceiling = ceilings.get(model_title("outline_boxes"))
    return Standings(number, shared, tuple(rows), floor, ceiling, chance, tuple(untested))


def _references(datasets: Sequence[DatasetAnalysis], number: str, kind: str) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for dataset in datasets:
        for reference in dataset.references:
            if reference.kind == kind and (value := reference.number(number).value) is not None:
                scores.setdefault(reference.title, []).append(value)
    return {title: sum(values) / len(values) for title, values in scores.items() if len(values) == len(datasets)}


def differ(first: Estimate, second: Estimate) -> bool:
    """Tell whether the 95% interval of the difference of two independent scores, by MOVER, leaves out 0."""
    low, high = sorted((first, second), key=lambda score: score.value or 0.0)
    if None in (low.value, low.high, high.value, high.low):
        return False
    below, above = high.value - high.low, low.high - low.value  # type: ignore[operator]
    return bool(high.value - low.value > (below**2 + above**2) ** 0.5)  # type: ignore[operator]


def over_datasets(scores: Sequence[Estimate]) -> Estimate:
    """Return the mean of scores on datasets without a common image; MOVER's interval (see `intervals.combined`)."""
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
