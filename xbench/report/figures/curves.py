"""Figures of Dice over thresholds and of grounding over lesion size, a panel per dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from xbench.report.figures.style import FLOOR, Style, label_left, legend, panels, style_keys
from xbench.report.schema import NUMBERS, Analysis, AreaBin, DatasetAnalysis, Estimate, RunAnalysis
from xbench.report.tables.cells import heading, labels_in_order

__all__ = ["against_area", "dice_over_thresholds"]

_MARKED = (0.1, 0.3, 0.5, 0.7, 0.9)


def dice_over_thresholds(analysis: Analysis, look: Mapping[str, Style]) -> Figure:
    """A curve per model, with the whole image's Dice as floor."""
    figure, axes = _panels(analysis)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        for entry in _last_first(dataset):
            thresholds = entry.run.results.grounding.thresholds
            marked = [place for place, threshold in enumerate(thresholds) if round(threshold, 6) in _MARKED]
            _band(axis, thresholds, entry.dice_curve, look[entry.run.label], marked, len(dataset.runs))
        for reference in dataset.references:
            floor = reference.macro.get("dice_fixed", Estimate(None)).value
            if reference.title == "Whole image" and floor is not None:
                axis.axhline(100 * floor, **FLOOR)
        axis.set(xlabel="Threshold", xlim=(0, 1))
        axis.set_ylim(bottom=0)
        label_left(axis, "Dice (%)")
    _legend(figure, analysis, look, "Whole image")
    return figure


def against_area(analysis: Analysis, key: str, look: Mapping[str, Style]) -> Figure:
    """A curve per model over the area of regions; the floor is the whole image, of the pointing game a random point."""
    points = key == "pointing_game"
    figure, axes = _panels(analysis)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        floor: dict[float, float] = {}
        for entry in _last_first(dataset):
            middles = [_middle(part) for part in entry.areas]
            scores = [part.scores.get(key, Estimate(None)) for part in entry.areas]
            percent = [100 * middle for middle in middles]
            _band(axis, percent, scores, look[entry.run.label], range(len(percent)), len(dataset.runs))
            for middle, part in zip(middles, entry.areas, strict=True):
                # A random point lies in a region with a chance of the region's area.
                floor[100 * middle] = 100 * (middle if points else part.whole_image)
        axis.plot(sorted(floor), [floor[area] for area in sorted(floor)], **FLOOR)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(lambda value, _: "")
        axis.set_xlabel("Area of the region (%)")
        axis.set_ylim(0, 100 if points else None)
        label_left(axis, f"{NUMBERS[key].title} (%)")
    _legend(figure, analysis, look, "Random point" if points else "Whole image")
    return figure


def _panels(analysis: Analysis) -> tuple[Figure, list[Axes]]:
    figure, axes = panels(len(analysis.datasets), 2.0 if len(analysis.datasets) > 1 else 2.4)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        axis.set_title(heading(dataset, analysis))
        axis.grid(color="0.92", linewidth=0.5)
    return figure, axes


def _legend(figure: Figure, analysis: Analysis, look: Mapping[str, Style], floor: str) -> None:
    labels = labels_in_order(entry for dataset in analysis.datasets for entry in dataset.runs)
    legend(figure, [*style_keys(labels, look, lines=True), Line2D([], [], **FLOOR, label=floor)])


def _last_first(dataset: DatasetAnalysis) -> list[RunAnalysis]:
    """Runs against the order of the legend, so that what stands first there lies on top."""
    labels = labels_in_order(dataset.runs)
    return sorted(dataset.runs, key=lambda entry: -labels.index(entry.run.label))


def _middle(part: AreaBin) -> float:
    # On a logarithmic axis; areas are never zero.
    return float((part.low * part.high) ** 0.5)


def _band(
    axis: Axes, x: Sequence[float], estimates: Sequence[Estimate], style: Style, marked: Sequence[int], curves: int
) -> None:
    known = [(place, at, e) for place, (at, e) in enumerate(zip(x, estimates, strict=True)) if e.value is not None]
    if not known:
        return
    at = [place for _, place, _ in known]
    values = [100 * e.value for _, _, e in known if e.value is not None]
    marks = [position for position, (place, _, _) in enumerate(known) if place in marked]
    axis.plot(at, values, color=style.colour, linestyle=style.line, marker=style.marker, markevery=marks, markersize=3)
    if all(e.low is not None and e.high is not None for _, _, e in known):
        low, high = ([100 * getattr(e, end) for _, _, e in known] for end in ("low", "high"))
        # The more bands lie on each other, the fainter.
        axis.fill_between(at, low, high, color=style.colour, alpha=min(0.15, 0.5 / curves), linewidth=0)
