"""How all figures look: sizes for print, colours that colour-blind readers can tell apart, and their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from xbench.report.names import model_title
from xbench.report.schema import RunAnalysis

COLUMN, PAGE = 3.4, 7.0
"""Widths in inches of a column and of a page of the usual journals."""

FLOOR: Mapping[str, Any] = {"color": "0.35", "linestyle": (0, (4, 2)), "linewidth": 1}

Line = Literal["-"] | tuple[float, tuple[float, ...]]

# After Okabe and Ito (jfly.uni-koeln.de/color), without yellow, which is too faint on white paper.
_COLOURS = {
    "clip": "#8c8c8c",
    "biomedclip": "#56b4e9",
    "medklip": "#009e73",
    "kad": "#e69f00",
    "mavl": "#cc79a7",
    "carzero": "#d55e00",
    "devide": "#0072b2",
}
# Dark tones of Tol's muted scheme (sronpersonalpages.nl/~pault) and black.
_OTHERS = ("#000000", "#882255", "#117733", "#332288", "#999933")
_MARKERS = "osD^vPX<>*hd"
_LINES: tuple[Line, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_RC: dict[str, Any] = {
    "font.size": 7.5,
    # A `$` in the name of a model or finding must not start a formula.
    "text.parse_math": False,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
    # Text stays text in PDF files; identifiers in SVG files are the same at every run.
    "pdf.fonttype": 42,
    "svg.hashsalt": "xbench",
}


class Style(NamedTuple):
    """How a run is drawn in every figure: the colour is the model's, marker and dashes are the run's own."""

    colour: str
    marker: str
    line: Line


def styles(runs: Mapping[str, RunAnalysis]) -> dict[str, Style]:
    """Return how each run of `in_order` is drawn, by label, and by its model's title where no label says just that."""
    models = {label: entry.run.model for label, entry in runs.items()}
    others = cycle(_OTHERS)
    colours = {model: _COLOURS.get(model) or next(others) for model in dict.fromkeys(models.values())}
    lines = {model: cycle(_LINES) for model in colours}
    markers = cycle(_MARKERS)
    found: dict[str, Style] = {}
    for label, model in models.items():
        found[label] = Style(colours[model], next(markers), next(lines[model]))
        found.setdefault(model_title(model), found[label])
    return found


@contextmanager
def drawing() -> Iterator[None]:
    """Set the look of everything that is drawn and saved within."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)  # type: ignore[arg-type]
        yield


def panels(count: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels, each `height` inches high: a column wide for one, a page for more."""
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3 if count < 7 else 4)
    return grid(count, columns, height, COLUMN if count == 1 else PAGE, **options)


def grid(count: int, columns: int, height: float, width: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels, `columns` of them side by side; sizes in inches."""
    rows = ceil(count / columns)
    figure = Figure(figsize=(width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).flatten().tolist()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def label_left(axis: Axes, text: str) -> None:
    """Label the vertical axis of panels in the first column."""
    place = axis.get_subplotspec()
    if place is None or place.is_first_col():
        axis.set_ylabel(text)


def bare(axis: Axes) -> None:
    """Take ticks and frame away."""
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)


def style_keys(names: Sequence[str], look: Mapping[str, Style], lines: bool) -> list[Artist]:
    """Return legend entries of runs."""
    keys: list[Artist] = []
    for name in names:
        style = look[name]
        line = style.line if lines else "none"
        keys.append(Line2D([], [], color=style.colour, marker=style.marker, linestyle=line, label=name))
    return keys


def legend(figure: Figure, keys: Sequence[Artist]) -> None:
    """Put a legend below the panels, in as many columns as fit, and make room for it."""
    longest = max(len(str(key.get_label())) for key in keys)
    # A character takes about 0.052 inches, a line with its marker 0.45.
    columns = max(1, min(len(keys), int(figure.get_figwidth() / (0.052 * longest + 0.45))))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.16 * ceil(len(keys) / columns) + 0.15)
    figure.legend(handles=list(keys), loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2.4)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PDF, SVG and PNG beside a path without an ending; the same figure gives the same bytes."""
    # Lay out once instead of for each file.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=200)
