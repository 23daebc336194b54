"""What the charts of the page draw: shares of 1 as places along an axis, ready for the templates."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from xbench.report.answer import in_words, whole
from xbench.report.names import shared_name
from xbench.report.runs import Run
from xbench.report.schema import (
    NEAR,
    Analysis,
    AreaBin,
    DatasetAnalysis,
    Estimate,
    RunAnalysis,
    floor_of,
    in_order,
    number_of,
)
from xbench.report.series import series_of
from xbench.report.standings import Standings, standings

BAND = 8
"""How many columns of the matrix stand side by side."""
_LABEL, _TALL = 17.0, 400
"""Pixels between the labels of a scatter, and its height."""


@dataclass(frozen=True)
class Entry:
    """A row of a chart: the label of a series, its score or why there is none, and what else is marked, by kind."""

    label: str
    score: Estimate
    best: bool = False
    marks: tuple[tuple[str, float], ...] = ()
    none: str = "not run"


@dataclass(frozen=True)
class Column:
    """A column of the matrix: a finding, a dataset, or the mean, with its floor."""

    title: str
    under: str
    entries: tuple[Entry, ...]
    floor: float | None
    mean: bool = False
    ceiling: float | None = None


def matrix(analysis: Analysis, found: Standings) -> list[list[Column]]:
    """Return the columns of the matrix in bands: the mean first, then datasets, or findings by their films."""
    means = {row.label: row.score for row in found.rows}
    floor = None if found.floor is None else found.floor.value
    datasets = [dataset for dataset in analysis.datasets if dataset.values(found.number)]
    if len(datasets) > 1:
        labels = [label for label in in_order(analysis.runs) if any(label in d.values(found.number) for d in datasets)]
        rest = [_of_dataset(analysis, dataset, labels, found.number) for dataset in datasets]
        scores = {label: means.get(label, _NONE) for label in labels}
        first = _column("All datasets", f"mean of {len(found.datasets)}", scores, floor)
        if len(found.datasets) < len(datasets):
            return [rest[start : start + BAND] for start in range(0, len(rest), BAND)]
    else:
        rest = sorted(
            _of_findings(datasets[0], list(means), found.number), key=lambda column: -int(column.under.split()[0])
        )
        first = _column("All findings" if len(rest) > 1 else (rest[0].title if rest else "Mean"), "mean", means, floor)
        rest = rest if len(rest) > 1 else []
    first = Column(first.title, first.under, first.entries, first.floor, mean=True)
    bands = [rest[start : start + BAND] for start in range(0, len(rest), BAND)] or [[]]
    return [[first, *bands[0]], *bands[1:]]


def _of_dataset(analysis: Analysis, dataset: DatasetAnalysis, labels: Sequence[str], number: str) -> Column:
    by_label = {entry.run.label: entry.macro[number] for entry in dataset.runs}
    under = f"{_count(dataset.runs, number):,} {'lesions' if number != 'auroc' else 'films'}"
    scores = {label: by_label.get(label, _NONE) for label in labels}
    return _column(analysis.heading(dataset), under, scores, _floor(dataset, number), {*by_label})


_NONE = Estimate(None)


def _floor(dataset: DatasetAnalysis, number: str) -> float | None:
    values = [one.macro.get(number, _NONE).value for one in dataset.references if one.kind == "floor"]
    return max((value for value in values if value is not None), default=None)


def _count(runs: Sequence[RunAnalysis], number: str, finding: str | None = None) -> int:
    """Return how many lesions, or how many films where recognition is scored, the runs have at most."""
    if number == "auroc":
        return max((entry.run.results.counts.images for entry in runs), default=0)
    return max(
        (
            sum(
                scores.count
                for name, scores in entry.run.results.grounding.per_class.items()
                if finding in (None, name)
            )
            for entry in runs
        ),
        default=0,
    )


def _of_findings(dataset: DatasetAnalysis, labels: Sequence[str], number: str) -> Iterator[Column]:
    by_label = {entry.run.label: entry for entry in dataset.runs}
    for finding in dataset.findings:
        scores = {label: number_of(by_label[label], number, finding) for label in labels}
        if any(score.value is not None for score in scores.values()):
            floor = floor_of(dataset, finding, number)
            films = _count(dataset.runs, number, finding)
            yield _column(finding, f"{films} films", scores, None if floor is None else floor.value)


def _column(
    title: str, under: str, scores: Mapping[str, Estimate], floor: float | None, run: Collection[str] = ()
) -> Column:
    """Make a column; `run` are labels of runs, which may have no score all the same."""
    best = max((score.value for score in scores.values() if score.value is not None), default=None)
    several = sum(score.value is not None for score in scores.values()) > 1
    entries = [
        Entry(label, score, several and score.value == best, none="no score" if label in run else "not run")
        for label, score in scores.items()
    ]
    return Column(title, under, tuple(entries), floor)


# Recognition and grounding


@dataclass(frozen=True)
class Point:
    """A point of a scatter: whose look it has, what it is called, and where it lies."""

    label: str
    name: str
    x: Estimate
    y: Estimate


@dataclass(frozen=True)
class Named:
    """A label of a scatter: its text, the place of its point, and by how many pixels it stands higher."""

    text: str
    x: float
    y: float
    lift: float
    right: bool


@dataclass(frozen=True)
class Scatter:
    """A scatter of AUROC and pointing game: of one series' findings, or of models, and the floor of the latter."""

    title: str
    points: tuple[Point, ...]
    labels: tuple[Named, ...]
    floor: float | None
    r_squared: float | None = None


def scatters(analysis: Analysis) -> tuple[list[Scatter], list[Scatter]]:
    """Return the large scatters, of which one is shown at a time, and the small ones of each dataset.

    From three models on points are models with their own settings; below, they are the findings of a series.
    """
    looks, found, recognised = series_of(analysis.runs), standings(analysis), standings(analysis, "auroc")
    own = [label for label, series in looks.items() if series.own]
    if len(own) < 3:
        return [scatter for label in looks if (scatter := _findings(analysis, label, looks[label].name))], []
    xs = {row.label: row.score for row in recognised.rows} if recognised.datasets == found.datasets else {}
    means = [
        Point(row.label, row.series.name, xs[row.label], row.score)
        for row in found.rows
        if row.series.own and row.label in xs
    ]
    floor = None if found.floor is None else found.floor.value
    lines = dict(zip((id(dataset) for dataset in analysis.datasets), analysis.lines("models"), strict=False))
    small = []
    for dataset in analysis.datasets if len(analysis.datasets) > 1 else ():
        points = [
            Point(entry.run.label, looks[entry.run.label].name, entry.macro["auroc"], entry.macro["pointing_game"])
            for entry in dataset.runs
            if looks[entry.run.label].own
        ]
        line = lines.get(id(dataset))
        small.append(
            _scatter(
                analysis.heading(dataset), points, _floor(dataset, "pointing_game"), line[0].r_squared if line else None
            )
        )
    large = [_scatter("", means, floor)] if means else []
    return large, [scatter for scatter in small if scatter.points]


def _findings(analysis: Analysis, label: str, name: str) -> Scatter | None:
    points: list[Point] = []
    floors: list[float] = []
    for dataset in analysis.datasets:
        entry = next((entry for entry in dataset.runs if entry.run.label == label), None)
        for finding, numbers in entry.findings.items() if entry else ():
            where = f"{finding}, {analysis.heading(dataset)}" if len(analysis.datasets) > 1 else finding
            points.append(Point(label, where, numbers.get("auroc", _NONE), numbers.get("pointing_game", _NONE)))
        lowest = _floor(dataset, "pointing_game")
        floors += [] if lowest is None else [lowest]
    scatter = _scatter(name, points, sum(floors) / len(floors) if floors else None)
    return scatter if scatter.points else None


def _scatter(title: str, points: Sequence[Point], floor: float | None, r_squared: float | None = None) -> Scatter:
    drawn = tuple(point for point in points if point.x.value is not None and point.y.value is not None)
    return Scatter(title, drawn, tuple(_named(drawn)), floor, r_squared)


def _named(points: Sequence[Point]) -> Iterator[Named]:
    """Place the labels beside their points, pushed apart; points that all but coincide share one."""
    shared: list[tuple[float, float, list[str]]] = []
    for point in sorted(points, key=lambda point: point.y.value or 0.0):
        x, y = point.x.value or 0.0, point.y.value or 0.0
        if shared and abs(shared[-1][0] - x) < 0.012 and abs(shared[-1][1] - y) < 0.012:
            shared[-1][2].append(point.name)
        else:
            shared.append((x, y, [point.name]))
    for (x, y, names), place in zip(shared, _apart([_TALL * y for _, y, _ in shared]), strict=True):
        yield Named(shared_name(names), x, y, place - _TALL * y, x < 0.68)


def _apart(places: Sequence[float]) -> list[float]:
    """Push places, lowest first, apart to the height of a label, within the plot."""
    pushed: list[float] = []
    for place in places:
        pushed.append(max(place, pushed[-1] + _LABEL) if pushed else max(place, 4.0))
    over = pushed[-1] - (_TALL - 3) if pushed else 0.0
    for index in range(len(pushed) - 1, -1, -1):
        limit = pushed[index + 1] - _LABEL if index + 1 < len(pushed) else _TALL - 3
        if over > 0 and pushed[index] > limit:
            pushed[index] = limit
    return pushed


# Lines


@dataclass(frozen=True)
class Line:
    """A line of a chart: points of x and score, of which `marked` carry the symbol of the series."""

    label: str
    points: tuple[tuple[float, Estimate], ...]
    marked: tuple[int, ...]

    @property
    def path(self) -> str:
        """The line as an SVG path in a square of 100, y downwards."""
        known = [(x, point.value) for x, point in self.points if point.value is not None]
        return "M" + "L".join(f"{100 * x:.2f} {100 - 100 * y:.2f}" for x, y in known) if known else ""

    @property
    def band(self) -> str:
        """The intervals along the line as a closed SVG path; empty where there are none."""
        known = [(x, one.low, one.high) for x, one in self.points if one.low is not None and one.high is not None]
        upper = [f"{100 * x:.2f} {100 - 100 * high:.2f}" for x, _, high in known]
        lower = [f"{100 * x:.2f} {100 - 100 * low:.2f}" for x, low, _ in reversed(known)]
        return f"M{'L'.join(upper + lower)}Z" if known else ""


@dataclass(frozen=True)
class Panel:
    """A chart of lines on one dataset, with marks along its horizontal axis."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    floor: tuple[tuple[float, float], ...] = ()

    @property
    def floor_path(self) -> str:
        """The floor as an SVG path."""
        return "M" + "L".join(f"{100 * x:.2f} {100 - 100 * y:.2f}" for x, y in self.floor) if self.floor else ""


def curves(analysis: Analysis) -> list[Panel]:
    """Return mean Dice over thresholds, a panel for each dataset with a curve."""
    order, panels = list(in_order(analysis.runs)), []
    for dataset in analysis.datasets:
        lines = []
        for entry in sorted(dataset.runs, key=lambda entry: order.index(entry.run.label)):
            xs = entry.run.results.grounding.thresholds
            points = tuple(zip(xs, entry.dice_curve, strict=False))
            if any(point.value is not None for _, point in points):
                # Symbols of several curves stand apart.
                step, first = max(1, len(points) // 5), (3 * order.index(entry.run.label)) % max(1, len(points) // 5)
                lines.append(Line(entry.run.label, points, tuple(range(first, len(points), step))))
        whole_image = next((one for one in dataset.references if one.title == "Whole image"), None)
        level = None if whole_image is None else whole_image.macro.get("dice_best", _NONE).value
        floor = () if level is None else ((0.0, level), (1.0, level))
        if lines:
            ticks = ((0.0, "0"), (0.5, "0.5"), (1.0, "1"))
            panels.append(Panel(analysis.heading(dataset), tuple(lines), ticks, floor))
    return panels


def sizes(analysis: Analysis) -> list[Panel]:
    """Return the pointing game by the size of the lesion, a panel for each dataset with more than one size."""
    order, panels = list(in_order(analysis.runs)), []
    for dataset in analysis.datasets:
        entries = [entry for entry in dataset.runs if len(entry.areas) > 1]
        if not entries:
            continue
        widest = max(entries, key=lambda entry: len(entry.areas)).areas
        ends = [0.0, *((place + 0.5) / len(widest) for place in range(len(widest))), 1.0]
        lines = []
        for entry in sorted(entries, key=lambda entry: order.index(entry.run.label)):
            xs = [(place + 0.5) / len(entry.areas) for place in range(len(entry.areas))]
            points = tuple((x, part.scores["pointing_game"]) for x, part in zip(xs, entry.areas, strict=True))
            lines.append(Line(entry.run.label, points, tuple(range(len(points)))))
        # A random point lies in the region as often as the region is large.
        areas = [(part.low + part.high) / 2 for part in widest]
        floor = tuple(zip(ends, [areas[0], *areas, areas[-1]], strict=True))
        ticks = tuple((ends[place + 1], _area(widest[place])) for place in {0, (len(widest) - 1) // 2, len(widest) - 1})
        panels.append(Panel(analysis.heading(dataset), tuple(lines), tuple(sorted(ticks)), floor))
    return panels


def _area(part: AreaBin) -> str:
    low, high = f"{100 * part.low:.2g}", f"{100 * part.high:.2g}"
    return f"{low}%" if low == high else f"{low}\u2013{high}%"


# Thresholds and differences


def gaps(analysis: Analysis) -> list[Column]:
    """Return Dice with cross-fitted thresholds, with the fixed and the best one marked, a column for each dataset."""
    found: list[dict[str, Entry]] = []
    for dataset in analysis.datasets:
        found.append({})
        for label, entry in in_order(dataset.runs).items():
            marks = [(key, entry.macro[f"dice_{key}"].value) for key in ("fixed", "best")]
            known = tuple((key, value) for key, value in marks if value is not None)
            if known:
                found[-1][label] = Entry(label, entry.macro["dice_cross_fitted"], marks=known, none="one mask")
    # Rows stand side by side, so each column has all of them.
    labels = [label for label in in_order(analysis.runs) if any(label in entries for entries in found)]
    columns = []
    for dataset, entries in zip(analysis.datasets, found, strict=True):
        run = {entry.run.label: Entry(entry.run.label, _NONE, none="no score") for entry in dataset.runs}
        rows = tuple((run | entries).get(label, Entry(label, _NONE)) for label in labels)
        references = {one.title: one.macro.get("dice_best", _NONE).value for one in dataset.references}
        if entries:
            floor, ceiling = references.get("Whole image"), references.get("Reader agreement")
            columns.append(Column(analysis.heading(dataset), "", rows, floor, ceiling=ceiling))
    return columns


@dataclass(frozen=True)
class Difference:
    """A paired difference of the pointing game to that of another series, with its adjusted p-value."""

    label: str
    difference: Estimate
    p: float | None
    untested: str


@dataclass(frozen=True)
class Forest:
    """The differences to one series on a dataset; the axis goes from `-reach` to `reach`."""

    title: str
    against: str
    rows: tuple[Difference, ...]
    reach: float

    def place(self, difference: float) -> float:
        """Return where a difference lies along the axis, from 0 to 1."""
        return min(1.0, max(0.0, 0.5 + difference / (2 * self.reach)))


def forests(analysis: Analysis, number: str = "pointing_game") -> list[Forest]:
    """Return the differences to the best series of each dataset; to the own settings where there is one model."""
    looks, found = series_of(analysis.runs), []
    for dataset in analysis.datasets:
        values = dataset.values(number)
        if len(values) < 2:
            continue
        own = [label for label in values if looks[label].own]
        alone = len({series.model for series in looks.values()}) == 1 and own
        against = own[0] if alone else max(values, key=lambda label: values[label])
        rows = []
        for one in dataset.comparisons:
            if one.number == number and against in (one.first, one.second):
                turned = one.first == against
                gap = one.difference
                if turned:
                    ends = [None if end is None else -end for end in (gap.value, gap.high, gap.low)]
                    gap = Estimate(ends[0], ends[1], ends[2])
                other = one.second if turned else one.first
                rows.append(Difference(other, gap, one.p_adjusted, one.untested))
        ends_of = [
            abs(end) for row in rows for end in (row.difference.value, row.difference.low, row.difference.high) if end
        ]
        if rows:
            reach = min(1.0, ceil(10 * max(ends_of, default=0.1)) / 10)
            order = list(looks)
            rows.sort(key=lambda row: order.index(row.label))
            found.append(Forest(analysis.heading(dataset), against, tuple(rows), reach))
    return found


# Outcomes


@dataclass(frozen=True)
class Outcomes:
    """Shares of lesions by outcome, each finding counting the same, then each dataset; `over` names them in words."""

    hit: float
    near: float
    elsewhere: float
    missed: float
    # The part of `hit` that is not recognised.
    silent: float
    over: str = ""

    @property
    def outside(self) -> str:
        """The share recognised with the peak outside, so rounded that all shares sum to 100."""
        return str(100 - int(whole(self.hit)) - int(whole(self.missed)))


def outcomes(datasets: Sequence[DatasetAnalysis], label: str) -> Outcomes | None:
    """Return the shares of a label's lesions by outcome; None where no finding has both labels and a scored pair.

    Where several places of a map are equally high, the share of them in the region counts as a hit, as in the pointing
    game, and the rest as what the map is otherwise.
    """
    found, findings = [], 0
    for entry in (entry for dataset in datasets for entry in dataset.runs if entry.run.label == label):
        shares = [_outcomes(entry.run, finding, one.threshold) for finding, one in entry.quadrants.items()]
        findings = max(findings, len(shares))
        if shares:
            found.append(np.mean(shares, axis=0))
    over = f"{in_words(findings)} findings" if findings > 1 else ""
    if len(found) > 1:
        over = f"{in_words(len(found))} datasets{' and their findings' if over else ''}"
    hit, near, elsewhere, missed, silent = np.mean(found, axis=0).tolist() if found else [0.0] * 5
    return Outcomes(hit, near, elsewhere, missed, silent, over) if found else None


def _outcomes(run: Run, finding: str, threshold: float) -> NDArray[np.float64]:
    """Return the shares of a finding's pairs that hit, nearly hit, look elsewhere, are missed, and hit unrecognised."""
    column, images = run.results.findings.index(finding), run.images
    scored = images.scored[:, column]
    hit = images.pointing_hit[scored, column].astype(np.float64)
    recognised = images.probabilities[scored, column] >= threshold
    near = images.peak_distance[scored, column] <= NEAR
    rest = [recognised & near, recognised & ~near, ~recognised]
    return np.array([hit.mean(), *(((1 - hit) * part).mean() for part in rest), (hit * ~recognised).mean()])
