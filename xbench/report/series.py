"""How the runs of a report look in its charts, on the page and on paper."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from matplotlib.markers import MarkerStyle

from xbench.report.runs import Run, setting_in_words
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
_DASHES = ((), (5.0, 1.5), (1.2, 1.2), (5.0, 1.2, 1.2, 1.2))


@dataclass(frozen=True)
class Series:
    """What stands for a run in charts, on every dataset alike.

    Attributes:
        name: The label of the run.
        model: Name of the model, as in results.json.
        own: Whether it has the model's own settings.
        colour, dark: On white and on black ground, as `#rrggbb`.
        shape: `circle`, `diamond`, ...; `outline` draws it.
        filled: Whether the shape is filled with the colour; else it is open.
        dash: Lengths of strokes and gaps of its lines, in line widths; a solid line has none.
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
    own = {entry.run.model: entry.run for entry in own_settings(runs)}
    places = _places([*own] if len(own) > 1 else _own_first(by_label, own), {run.model for run in by_label.values()})
    several = {model for model, count in Counter(run.model for run in by_label.values()).items() if count > 1}
    met: defaultdict[str, int] = defaultdict(int)
    found = {}
    for label, run in by_label.items():
        is_own = label == own[run.model].label
        light, dark, shape, filled = _LOOKS[places[run.model if len(own) > 1 else label] % len(_LOOKS)]
        if len(own) > 1 and run.model in several:
            filled = is_own
        met[run.model] += not is_own
        dash = () if is_own else _DASHES[1:][(met[run.model] - 1) % (len(_DASHES) - 1)]
        found[label] = Series(label, run.model, is_own, light, dark, shape, filled, dash)
    return found


def _own_first(runs: Mapping[str, Run], own: Mapping[str, Run]) -> list[str]:
    return sorted(runs, key=lambda label: label != own[runs[label].model].label)


def _places(wanted: Sequence[str], models: set[str]) -> dict[str, int]:
    """Give each of these, models or a single model's labels, its own place among the looks."""
    if len(models) == 1:
        # The first label is that of the model's own settings.
        (model,) = models
        fixed = {wanted[0]: _OF_PAPER.index(model)} if model in _OF_PAPER else {}
    else:
        fixed = {model: _OF_PAPER.index(model) for model in wanted if model in _OF_PAPER}
    left = (place for place in range(len(_OF_PAPER) + len(wanted)) if place not in fixed.values())
    return {name: fixed[name] if name in fixed else next(left) for name in wanted}


def own_in_words(runs: Sequence[RunAnalysis]) -> str:
    """Return the settings that labels leave out, of models that were run with others: `Demo: 224 px`."""
    told = {entry.run.label: entry.run.told_by for entry in own_settings(runs)}
    said = {label: ", ".join(setting_in_words(*one) for one in of.items()) for label, of in told.items()}
    return "; ".join(f"{label}: {words}" for label, words in said.items() if words)
