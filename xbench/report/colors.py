"""Colors and shapes of runs in charts, and colors of maps over images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, product

import numpy as np
from numpy.typing import NDArray

from xbench.report.schema import RunAnalysis, in_order
from xbench.report.statistics.correlation import own_settings

# On white and on black; also for people who are blind to a color. Shapes differ in gray.
_COLORS = (
    ("#2b6dff", "#517ffc"),
    ("#964009", "#f96a3f"),
    ("#149048", "#36ed90"),
    ("#5d1498", "#e999ff"),
    ("#a8800a", "#fcdf21"),
    ("#cb1778", "#eb84ad"),
    ("#1c252e", "#eef2f6"),
)
# With names of matplotlib, and relative sizes that look equal. The first seven go with the colors.
SHAPES: Mapping[str, tuple[str, float]] = {
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
# After seven, colors repeat with other, open shapes.
_LOOKS = [(*color, shape, True) for color, shape in zip(_COLORS, SHAPES, strict=False)]
_LOOKS += [(*color, shape, False) for shape, color in product([*SHAPES][7:], _COLORS)]
_OF_PAPER = ("devide", "carzero", "mavl", "medklip", "biomedclip", "kad", "clip")
_DASHES = ((5.0, 1.5), (1.2, 1.2), (5.0, 1.2, 1.2, 1.2))


@dataclass(frozen=True)
class Series:
    """The look of a run in charts, the same on every dataset.

    `own`: it has the model's own settings. `color` is on white and `dark` on black, as `#rrggbb`; the shape is `filled`
    or open; `dash` has strokes and gaps in line widths, empty for a solid line.
    """

    model: str
    own: bool
    color: str
    dark: str
    shape: str
    filled: bool
    dash: tuple[float, ...]


@cache
def outline(shape: str) -> str:
    """Return a shape as an SVG path around (0, 0) with a radius of about 1, y downward."""
    if shape == "circle":
        return "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0 -1 0Z"
    from matplotlib.markers import MarkerStyle  # a page of one model has circles alone

    code, size = SHAPES[shape]
    marker = MarkerStyle(code)
    (corners,) = marker.get_path().transformed(marker.get_transform()).to_polygons(closed_only=True)
    points = np.asarray(corners)[:-1] * (2 * size, -2 * size)
    return "M" + "L".join(f"{x:.3f} {y:.3f}" for x, y in points) + "Z"


def series_of(runs: Sequence[RunAnalysis]) -> dict[str, Series]:
    """Return the series of each run of a report by its label, in the order of tables.

    Models of the paper always have the same color and shape; others get those left. A single model has one look for
    each of its settings; of several models, own settings are filled and others open.
    """
    models = {label: entry.run.model for label, entry in in_order(runs).items()}
    own = {entry.run.model: entry.run.label for entry in own_settings(runs)}
    several = len(own) > 1
    wanted = [*own] if several else sorted(models, key=lambda label: label not in own.values())
    # Of a single model its own settings have the model's look.
    fixed = {name: _OF_PAPER.index(model) for name, model in zip(wanted, own, strict=False) if model in _OF_PAPER}
    left = (place for place in range(len(_LOOKS) + len(wanted)) if place not in fixed.values())
    places = {name: fixed[name] if name in fixed else next(left) for name in wanted}
    labels, dashes = Counter(models.values()), {model: cycle(_DASHES) for model in own}
    series = {}
    for label, model in models.items():
        is_own = label == own[model]
        light, dark, shape, filled = _LOOKS[places[model if several else label] % len(_LOOKS)]
        if several and labels[model] > 1:
            filled = is_own
        series[label] = Series(model, is_own, light, dark, shape, filled, () if is_own else next(dashes[model]))
    return series


_RAMP = np.array([(0x73, 0x1A, 0x05), (0xDB, 0x52, 0x08), (0xFA, 0x9E, 0x1A), (0xFF, 0xE0, 0x73)], np.float64)
# Largest clear value.
_CLEAR = 0.18
# This many colors look the same as all, and make files smaller.
_STEPS = 40


def colored(saliency: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a map (H, W) in [0, 1] as red, green, blue and opacity (H, W, 4); low values are clear."""
    steps = np.round(saliency.astype(np.float64) * _STEPS) / _STEPS
    place = steps * (len(_RAMP) - 1)
    first = np.clip(place.astype(np.int64), 0, len(_RAMP) - 2)
    share = (place - first)[..., None]
    color = _RAMP[first] * (1 - share) + _RAMP[first + 1] * share
    opacity = 200 * np.clip((steps - _CLEAR) / (1 - _CLEAR), 0, 1) ** 0.8
    return np.concatenate([color, opacity[..., None]], axis=-1).round().astype(np.uint8)


def tinted(film: NDArray[np.uint8], saliency: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return an image (H, W) under a map (H, W) in [0, 1], as red, green and blue (H, W, 3)."""
    over = colored(saliency).astype(np.float64)
    weight = over[..., 3:] / 255
    mixed: NDArray[np.float64] = film[..., None] * (1 - weight) + over[..., :3] * weight
    return mixed.round().astype(np.uint8)
