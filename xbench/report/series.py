"""How the runs of a report look in its charts, on the page and on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, product

import numpy as np
from matplotlib.markers import MarkerStyle

from xbench.report.runs import setting_in_words
from xbench.report.schema import RunAnalysis, in_order
from xbench.report.statistics.correlation import own_settings

# Colours on white and on black ground, told apart by people who are blind to a colour (the shapes tell them in grey).
_COLOURS = (
    ("#2b6dff", "#517ffc"),
    ("#964009", "#f96a3f"),
    ("#149048", "#36ed90"),
    ("#5d1498", "#e999ff"),
    ("#a8800a", "#fcdf21"),
    ("#cb1778", "#eb84ad"),
    ("#1c252e", "#eef2f6"),
)
# As matplotlib calls them, with the size that makes them look equally large. The first seven go with the colours.
_SHAPES: Mapping[str, tuple[str, float]] = {
    "circle": ("o", 1.0),
    "diamond": ("D", 0.88),
    "triangle-up": ("^", 1.08),
    "square": ("s", 0.92),
    "triangle-down": ("v", 1.08),
    "plus": ("P", 1.14),
    "star": ("*", 1.5),
    "pentagon": ("p", 1.12),
    "hexagon": ("h", 1.08),
    "cross": ("X", 1.1),
    "triangle-left": ("<", 1.08),
    "triangle-right": (">", 1.08),
    "thin-diamond": ("d", 1.12),
    "octagon": ("8", 1.04),
}
_LOOKS = [(*colour, shape, True) for colour, shape in zip(_COLOURS, _SHAPES, strict=False)]
# From the eighth on colours come again with other shapes, open.
_LOOKS += [(*colour, shape, False) for shape, colour in product([*_SHAPES][7:], _COLOURS)]
_OF_PAPER = ("devide", "carzero", "mavl", "medklip", "biomedclip", "kad", "clip")
_DASHES = ((5.0, 1.5), (1.2, 1.2), (5.0, 1.2, 1.2, 1.2))


@dataclass(frozen=True)
class Series:
    """The look of a run in charts, on every dataset alike.

    `own` if it has the model's own settings; `colour` is on white ground and `dark` on black, as `#rrggbb`; the shape
    is `filled` or open; `dash` has the strokes and gaps of its lines in line widths, none for a solid line.
    """

    name: str
    model: str
    own: bool
    colour: str
    dark: str
    shape: str
    filled: bool
    dash: tuple[float, ...]

    @property
    def marker(self) -> tuple[str, float]:
        """The shape as matplotlib calls it, and its relative size."""
        return _SHAPES[self.shape]


@cache
def outline(shape: str) -> str:
    """Return a shape as an SVG path around (0, 0), with a radius of about 1, y downwards."""
    if shape == "circle":
        return "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0 -1 0Z"
    code, size = _SHAPES[shape]
    marker = MarkerStyle(code)
    path = marker.get_path().transformed(marker.get_transform())
    (corners,) = path.to_polygons(closed_only=True)
    points = np.asarray(corners)[:-1] * (2 * size, -2 * size)
    return "M" + "L".join(f"{x:.3f} {y:.3f}" for x, y in points) + "Z"


def series_of(runs: Sequence[RunAnalysis]) -> dict[str, Series]:
    """Return the series of each run of a report by its label, in the order of tables.

    A model has a colour and a shape by its name: the paper's models always the same, others those that are left. With
    one model alone each of its settings has its own; with several, a model's own settings are filled and its others
    open.
    """
    by_label = {label: entry.run for label, entry in in_order(runs).items()}
    own = {entry.run.model: entry.run.label for entry in own_settings(runs)}
    several = len(own) > 1
    wanted = [*own] if several else sorted(by_label, key=lambda label: label not in own.values())
    # Of a single model its own settings have the model's look.
    fixed = {name: _OF_PAPER.index(model) for name, model in zip(wanted, own, strict=False) if model in _OF_PAPER}
    left = (place for place in range(len(_LOOKS) + len(wanted)) if place not in fixed.values())
    places = {name: fixed[name] if name in fixed else next(left) for name in wanted}
    labels, dashes = Counter(run.model for run in by_label.values()), {model: cycle(_DASHES) for model in own}
    series = {}
    for label, run in by_label.items():
        is_own = label == own[run.model]
        light, dark, shape, filled = _LOOKS[places[run.model if several else label] % len(_LOOKS)]
        if several and labels[run.model] > 1:
            filled = is_own
        dash = () if is_own else next(dashes[run.model])
        series[label] = Series(label, run.model, is_own, light, dark, shape, filled, dash)
    return series


def own_in_words(runs: Sequence[RunAnalysis]) -> str:
    """Return the settings that labels leave out, of models that were run with others: `Demo: 224 px`."""
    settings = {entry.run.label: entry.run.told_by.items() for entry in own_settings(runs)}
    words = {label: ", ".join(setting_in_words(*setting) for setting in of_run) for label, of_run in settings.items()}
    return "; ".join(f"{label}: {text}" for label, text in words.items() if text)
