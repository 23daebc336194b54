"""The content of charts, for the page and for figures on paper: shares of 1, labels of runs, and words."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from xbench.report.colors import series_of
from xbench.report.facts import Facts, Standings
from xbench.report.names import mean_over, model_title, whole
from xbench.report.runs import Run
from xbench.report.schema import NEAR, Analysis, Comparison, Correlation, DatasetAnalysis, Estimate, RunAnalysis, Scope
from xbench.scoring.numbers import macro_mean

BAND = 8
"""Columns of the matrix side by side."""
_NONE = Estimate(None)


# Rows


@dataclass(frozen=True)
class Entry:
    """A row of a column: label of the series, score or the reason for none, and other marks by kind."""

    label: str
    score: Estimate
    best: bool = False
    marks: Mapping[str, float] = field(default_factory=dict)
    none: str = "not run"


@dataclass(frozen=True)
class Column:
    """Scores of one number on a finding, a dataset, or in the mean, with floor, chance and ceiling."""

    title: str
    under: str
    entries: tuple[Entry, ...]
    floor: float | None
    chance: float | None = None
    ceiling: float | None = None
    mean: bool = False


def matrix(analysis: Analysis, found: Standings) -> list[list[Column]]:
    """Return the columns of the matrix in bands: the mean first, then datasets, or findings by their images."""
    means = {row.label: row.score for row in found.rows}
    datasets = [dataset for dataset in analysis.datasets if dataset.values(found.number)]
    if len(datasets) > 1:
        labels = [label for label in analysis.by_label if any(label in d.values(found.number) for d in datasets)]
        means = {label: means.get(label, _NONE) for label in labels}
        columns = [of_dataset(analysis, dataset, labels, found.number) for dataset in datasets]
        title, under = "All datasets", f"mean of {len(found.datasets)}"
    else:
        columns = [*_of_findings(datasets[0], [*means], found.number)]
        title, under = "All findings" if len(columns) > 1 else columns[0].title if columns else "Mean", "mean"
        columns = columns if len(columns) > 1 else []
    bands = [columns[start : start + BAND] for start in range(0, len(columns), BAND)] or [[]]
    # The mean needs datasets that all series were run on.
    if len(datasets) == 1 or len(found.datasets) == len(datasets):
        mean = _column(title, under, means, Estimate(None if found.floor is None else found.floor.value))
        bands[0] = [replace(mean, mean=True), *bands[0]]
    return bands


def of_dataset(analysis: Analysis, dataset: DatasetAnalysis, labels: Sequence[str], number: str) -> Column:
    """Return the scores of series on a dataset, in the order of `labels`."""
    by_label = {entry.run.label: entry.number(number) for entry in dataset.runs}
    under = f"{_count(dataset.runs, number):,} {'lesions' if number != 'auroc' else 'images'}"
    scores = {label: by_label.get(label, _NONE) for label in labels}
    column = _column(analysis.heading(dataset), under, scores, dataset.floor(number), {*by_label})
    chance, ceiling = (_reference(dataset, title, number) for title in ("Random", "Reader agreement"))
    return replace(column, chance=chance, ceiling=ceiling)


def _reference(dataset: DatasetAnalysis, title: str, number: str) -> float | None:
    return next((one.number(number).value for one in dataset.references if one.title == title), None)


def _count(runs: Sequence[RunAnalysis], number: str, finding: str | None = None) -> int:
    if number == "auroc":
        return max((entry.run.results.counts.images for entry in runs), default=0)
    scored = [{name: of.count for name, of in entry.run.results.grounding.per_class.items()} for entry in runs]
    if number == "side_joint":
        scored = [dict(one.counts) for entry in runs for one in entry.words]
    return max((sum(of[name] for name in of if finding in (None, name)) for of in scored), default=0)


def _of_findings(dataset: DatasetAnalysis, labels: Sequence[str], number: str) -> Iterator[Column]:
    by_label = {entry.run.label: entry for entry in dataset.runs}
    images = {finding: _count(dataset.runs, number, finding) for finding in dataset.findings}
    for finding in sorted(images, key=lambda finding: -images[finding]):
        scores = {label: by_label[label].number(number, finding) for label in labels}
        if any(score.value is not None for score in scores.values()):
            yield _column(finding, f"{images[finding]} images", scores, dataset.floor(number, finding))


def _column(name: str, under: str, scores: Mapping[str, Estimate], floor: Estimate, ran: Container[str] = ()) -> Column:
    """Make a column; the runs labeled `ran` were run, even without a score."""
    known = [score.value for score in scores.values() if score.value is not None]
    best = max(known) if len(known) > 1 else None
    entries = [
        Entry(label, score, best is not None and score.value == best, none="no score" if label in ran else "not run")
        for label, score in scores.items()
    ]
    return Column(name, under, tuple(entries), floor.value)


def gaps(analysis: Analysis) -> list[Column]:
    """Return Dice with cross-fitted thresholds by dataset, with the fixed and the best one marked."""
    of_datasets = [{entry.run.label: _gap(entry) for entry in dataset.runs} for dataset in analysis.datasets]
    # All columns have the same rows.
    marked = {label for entries in of_datasets for label, entry in entries.items() if entry.marks}
    labels = [label for label in analysis.by_label if label in marked]
    return [
        Column(
            analysis.heading(dataset),
            "",
            tuple(entries.get(label, Entry(label, _NONE)) for label in labels),
            _reference(dataset, "Whole image", "dice_best"),
            ceiling=_reference(dataset, "Reader agreement", "dice_best"),
        )
        for dataset, entries in zip(analysis.datasets, of_datasets, strict=True)
        if any(len(entry.marks) > 1 for entry in entries.values())  # boxes have one mask, and no threshold to choose
    ]


def _gap(entry: RunAnalysis) -> Entry:
    found = {key: entry.macro[f"dice_{key}"].value for key in ("fixed", "best")}
    marks = {key: value for key, value in found.items() if value is not None}
    score = entry.macro["dice_cross_fitted"] if marks else _NONE
    return Entry(entry.run.label, score, marks=marks, none="one mask" if marks else "no score")


# Recognition and grounding


@dataclass(frozen=True)
class Point:
    """A point of a scatter: label of its series, name, and coordinates."""

    label: str
    name: str
    x: Estimate
    y: Estimate


@dataclass(frozen=True)
class Scatter:
    """A scatter of AUROC and pointing game, of the points with both."""

    title: str
    points: tuple[Point, ...]
    floor: float | None = None  # of the pointing game
    line: Correlation | None = None
    means: tuple[Point, ...] = ()  # of the findings of each model, where the points are those of several models


def scatters(facts: Facts) -> tuple[list[Scatter], list[Scatter]]:
    """Return the large scatters of the page, shown one at a time, and the small ones of each dataset.

    Points are models with their own settings if there are three or more, else the findings of a series.
    """
    analysis, found, recognized = facts.analysis, facts.pointing, facts.recognition
    own, small = [label for label, series in facts.series.items() if series.own], list[Scatter]()
    if len(own) < 3:
        large = [_findings(analysis, label) for label in facts.series]
    else:
        xs = {row.label: row.score for row in recognized.rows} if recognized.datasets == found.datasets else {}
        rows = [row for row in found.rows if row.own and row.label in xs]
        means = [Point(row.label, row.label, xs[row.label], row.score) for row in rows]
        large = [Scatter("", tuple(means), None if found.floor is None else found.floor.value)]
        # The line over all datasets comes last.
        of_datasets = zip(analysis.datasets, analysis.lines("models"), strict=False)
        for dataset, (line, _) in of_datasets if len(analysis.datasets) > 1 else ():
            runs = [entry for entry in dataset.runs if entry.run.label in own]
            points = _placed([(entry.run.label, entry.run.label, entry.macro) for entry in runs])
            floor = dataset.floor("pointing_game").value
            small.append(Scatter(analysis.heading(dataset), points, floor, line))
    return [one for one in large if one.points], [one for one in small if one.points]


def _findings(analysis: Analysis, label: str) -> Scatter:
    several = len(analysis.datasets) > 1
    floors = [dataset.floor("pointing_game").value for dataset in analysis.datasets]
    of_findings = [
        (label, f"{finding}, {analysis.heading(dataset)}" if several else finding, numbers)
        for dataset in analysis.datasets
        for entry in dataset.runs
        if entry.run.label == label
        for finding, numbers in entry.findings.items()
    ]
    return Scatter(label, _placed(of_findings), macro_mean(floors))


def _placed(points: Iterable[tuple[str, str, Mapping[str, Estimate]]]) -> tuple[Point, ...]:
    found = [Point(label, name, of.get("auroc", _NONE), of.get("pointing_game", _NONE)) for label, name, of in points]
    return tuple(point for point in found if point.x.value is not None and point.y.value is not None)


def lines_of(analysis: Analysis, scope: Scope) -> list[Scatter]:
    """Return the points of every least-squares line: over all datasets, or on the only one, first; then on each.

    Lines through fewer than three models or two findings are left out.
    """
    own = {model_title(series.model): label for label, series in series_of(analysis.runs).items() if series.own}
    several = len(analysis.datasets) > 1
    found: list[Scatter] = []
    for line, title in analysis.lines(scope):
        if len(line.points) < {"models": 3, "findings": 2}[scope] or (line.dataset is None and not several):
            continue
        points: list[Point] = []
        by_owner: dict[str, list[tuple[float, float]]] = {}
        for name, x, y in line.points:
            # Findings are called `model: finding`.
            owner = max((model for model in own if name == model or name.startswith(f"{model}: ")), key=len)
            points.append(Point(own[owner], name.removeprefix(f"{owner}: "), Estimate(x), Estimate(y)))
            by_owner.setdefault(owner, []).append((x, y))
        means = [
            Point(own[owner], owner, *(Estimate(fmean(values)) for values in zip(*places, strict=True)))
            for owner, places in by_owner.items()
            if scope == "findings" and len(by_owner) > 1
        ]
        scatter = Scatter(title if several else "", tuple(points), line=line, means=tuple(means))
        found.insert(0 if line.dataset is None else len(found), scatter)
    return found


def named_places(points: Iterable[Point], in_turn: bool = False) -> list[tuple[float, float, str]]:
    """Return coordinates and names of points; nearly equal ones (with `in_turn`, only neighbors) share a name."""
    found: list[tuple[float, float, list[str]]] = []
    for point in points:
        x, y = point.x.value or 0.0, point.y.value or 0.0
        for at_x, at_y, names in found[-1:] if in_turn else found:
            if abs(at_x - x) < 0.012 and abs(at_y - y) < 0.012:
                names.append(point.name)
                break
        else:
            found.append((x, y, [point.name]))
    called = [(x, y, names if len(names) < 3 else [f"{names[0]} and {len(names) - 1} others"]) for x, y, names in found]
    return [(x, y, ", ".join(names)) for x, y, names in called]


def apart(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Move things of these sizes as little as possible so that none overlap.

    They keep their order, and stay between `low` and `high` if they fit.

    >>> apart([50, 50, 90], [10, 10, 10], 0, 100)
    [45.0, 55.0, 90.0]
    """
    from scipy.optimize import isotonic_regression  # takes longer than most charts

    order = np.argsort(wanted, kind="stable")
    size = np.array(sizes, float)[order]
    # From the middle of the first to that of each, if they touch.
    along = np.cumsum(size) - (size + size[:1]) / 2
    start = isotonic_regression(np.array(wanted, float)[order] - along).x
    first, last = low + size[:1] / 2, high - size[-1:] / 2 - along[-1:]
    found = np.empty(len(size))
    found[order] = along + np.maximum(np.minimum(start, last), first)
    return [float(place) for place in found]


# Parts of the image


def positions(facts: Facts) -> Iterator[tuple[str, str, list[tuple[float | None, str]]]]:
    """Yield the pointing game by part, of every series on one dataset or of the first on several; then the peaks.

    Each with a title or the label of a series, and nine parts of the image, row by row: a share, and the number of
    lesions.
    """
    several, head = len(facts.analysis.datasets) > 1, facts.shown.head
    for dataset in facts.analysis.datasets:
        runs = {label: entry for label, entry in dataset.by_label.items() if entry.positions}
        for label in [head.label] if several else [*runs][:7]:
            if label in runs:
                cells = [(cell.scores["pointing_game"].value, f"{cell.count:,}") for cell in runs[label].positions]
                yield facts.analysis.heading(dataset), "" if several else label, cells
        if not several and head.label in runs:
            name = head.label if len(runs) > 1 else f"its {'answers' if head.answers else 'maps'}"
            yield f"Peaks of {name}, %", "", [(cell.peaks, "") for cell in runs[head.label].positions]


# Lines


@dataclass(frozen=True)
class Line:
    """A line of a chart: points of x and score, with the symbol of the series at the indices in `marked`."""

    label: str
    points: tuple[tuple[float, Estimate], ...]
    marked: Sequence[int]

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points with a score."""
        return [(x, score.value) for x, score in self.points if score.value is not None]

    @property
    def band(self) -> list[tuple[float, float, float]]:
        """Intervals along the line: x and both ends."""
        return [(x, one.low, one.high) for x, one in self.points if one.low is not None and one.high is not None]


@dataclass(frozen=True)
class Panel:
    """A chart of lines on one dataset, with marks along its horizontal axis."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    floor: tuple[tuple[float, float], ...] = ()


def curves(analysis: Analysis) -> list[Panel]:
    """Return mean Dice over thresholds, a panel for each dataset with a curve."""
    order, panels = list(analysis.by_label), []
    for dataset in analysis.datasets:
        lines = []
        for label, entry in dataset.by_label.items():
            points = tuple(zip(entry.run.results.grounding.thresholds, entry.dice_curve, strict=False))
            if any(point.value is not None for _, point in points):
                # Symbols of several curves stand apart.
                step = max(1, len(points) // 5)
                lines.append(Line(label, points, range((3 * order.index(label)) % step, len(points), step)))
        level = _reference(dataset, "Whole image", "dice_best")
        if lines:
            floor = () if level is None else ((0.0, level), (1.0, level))
            panels.append(Panel(analysis.heading(dataset), tuple(lines), ((0.0, "0"), (0.5, "0.5"), (1.0, "1")), floor))
    return panels


def sizes(analysis: Analysis, number: str = "pointing_game", by_area: bool = False) -> list[Panel]:
    """Return a number by the size of the lesion, a panel for each dataset with more than one size.

    Groups are evenly spaced, or `by_area` at the middle of their areas as a share of the image. The floor is a random
    point in the pointing game, and the whole image in Dice.
    """
    panels = []
    for dataset in analysis.datasets:
        entries = {label: entry.areas for label, entry in dataset.by_label.items() if len(entry.areas) > 1}
        lines: list[Line] = []
        floors: dict[float, float] = {}
        for label, areas in entries.items():
            xs = [(part.low * part.high) ** 0.5 for part in areas] if by_area else _side_by_side(len(areas))
            points = tuple((x, part.scores.get(number, _NONE)) for x, part in zip(xs, areas, strict=True))
            lines.append(Line(label, points, range(len(points))))
            # A random point hits as often as the region is large.
            whole_image = xs if number == "pointing_game" else [part.whole_image for part in areas]
            floors |= dict(zip(xs, whole_image, strict=True))
        if not lines:
            continue
        floor, ticks = sorted(floors.items()), list[tuple[float, str]]()
        if not by_area:
            areas = max(entries.values(), key=len)
            middles, chances = _side_by_side(len(areas)), [(part.low + part.high) / 2 for part in areas]
            floor = [(0.0, chances[0]), *zip(middles, chances, strict=True), (1.0, chances[-1])]
            last = len(areas) - 1
            for place in sorted({0, last // 2, last}):
                ends = dict.fromkeys(f"{100 * end:.2g}" for end in (areas[place].low, areas[place].high))
                ticks.append((middles[place], "\u2013".join(ends) + "%"))
        panels.append(Panel(analysis.heading(dataset), tuple(lines), tuple(ticks), tuple(floor)))
    return panels


def _side_by_side(count: int) -> list[float]:
    return [(place + 0.5) / count for place in range(count)]


# Differences


@dataclass(frozen=True)
class Forest:
    """The differences of other series to one on a dataset, on an axis from `-reach` to `reach`."""

    title: str
    against: str
    rows: tuple[Comparison, ...]
    reach: float

    def place(self, difference: float) -> float:
        """Return where a difference lies along the axis, from 0 to 1."""
        return min(1.0, max(0.0, 0.5 + difference / (2 * self.reach)))


def forests(analysis: Analysis, number: str = "pointing_game") -> list[Forest]:
    """Return differences to the best series of each dataset, or to a single model's own settings."""
    looks, found = series_of(analysis.runs), []
    order, alone = list(looks), len({series.model for series in looks.values()}) == 1
    for dataset in analysis.datasets:
        values = dataset.values(number)
        if len(values) < 2:
            continue
        own = [label for label in values if alone and looks[label].own]
        against = own[0] if own else max(values, key=lambda label: values[label])
        rows = []
        for one in dataset.comparisons:
            if one.number == number and against in (one.first, one.second):
                rows.append(one.turned() if one.first == against else one)
        ends = [end for row in rows for end in (row.difference.value, row.difference.low, row.difference.high)]
        if rows:
            reach = min(1.0, ceil(10 * max((abs(end) for end in ends if end), default=0.1)) / 10)
            rows.sort(key=lambda row: order.index(row.first))
            found.append(Forest(analysis.heading(dataset), against, tuple(rows), reach))
    return found


# Outcomes


@dataclass(frozen=True)
class Outcomes:
    """Shares of lesions by outcome, each finding counting the same, then each dataset; `over` names them.

    `silent` is the part of `hit` that is not recognized.
    """

    hit: float
    near: float
    elsewhere: float
    missed: float
    silent: float
    over: str = ""

    @property
    def outside(self) -> str:
        """The share recognized with the peak outside, rounded so that all shares sum to 100."""
        return str(100 - int(whole(self.hit)) - int(whole(self.missed)))


def outcomes(datasets: Sequence[DatasetAnalysis], label: str) -> Outcomes | None:
    """Return the shares of a label's lesions by outcome; None if no finding has both labels and a scored pair."""
    runs = [entry for dataset in datasets for entry in dataset.runs if entry.run.label == label and entry.quadrants]
    if not runs:
        return None
    found = [[_outcomes(entry.run, name, one.threshold) for name, one in entry.quadrants.items()] for entry in runs]
    over = mean_over(len(runs), max(len(entry.quadrants) for entry in runs))
    hit, near, elsewhere, missed, silent = np.mean([np.mean(of, axis=0) for of in found], axis=0).tolist()
    return Outcomes(hit, near, elsewhere, missed, silent, over)


def _outcomes(run: Run, finding: str, threshold: float) -> NDArray[np.float64]:
    """Return the shares of a finding's pairs: hit, near miss, elsewhere, missed, and hit but not recognized."""
    column, rows = run.results.findings.index(finding), run.rows
    own = rows.counts.row[rows.finding[rows.counts.row] == column]
    hit = rows["pointing_hit"][own]
    recognized = run.images.probabilities[rows.image[own], column] >= threshold
    near = rows["peak_distance"][own] <= NEAR
    rest = [recognized & near, recognized & ~near, ~recognized]
    return np.array([hit.mean(), *(((1 - hit) * part).mean() for part in rest), (hit * ~recognized).mean()])
