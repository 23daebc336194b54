"""Branching lung vessels: from the hilum outwards, thinner and fainter with each division."""

from __future__ import annotations

import numpy as np

from xbench.phantom.canvas import Points

_STEMS = 9
_DIVISIONS = 4


def vessel_tree(rng: np.random.Generator, hilum: Points, side: int) -> tuple[list[Points], list[float], list[float]]:
    """The vessels of one lung.

    Args:
        rng: Source of chance.
        hilum: Root (2,) in the patient's frame.
        side: -1 for the patient's right lung, +1 for the left one.

    Returns:
        Curves in the patient's frame, finest first, with their widths (same units) and strengths in [0, 1].
    """
    angles = np.linspace(-1.35, 1.42, _STEMS) + rng.normal(0, 0.09, _STEMS)
    starts = np.repeat(hilum[None], _STEMS, 0) + rng.normal(0, 0.018, (_STEMS, 2)) + np.array([side * 0.015, 0.02])
    widths = rng.uniform(0.021, 0.030, _STEMS)
    lengths = rng.uniform(0.14, 0.22, _STEMS)
    levels = []
    for division in range(_DIVISIONS):
        bend = rng.normal(0, 0.25, len(angles))
        t = np.linspace(0, 1, 5)[None, :]
        heading = angles[:, None] + bend[:, None] * t
        step = lengths[:, None] / 4 * np.stack([side * np.cos(heading), np.sin(heading)])
        path = starts[:, None] + np.moveaxis(np.cumsum(step, -1) - step[..., :1], 0, -1)
        levels.append((path, widths, 0.95 * 0.80**division))
        starts = np.repeat(path[:, -1], 2, 0)
        fork = rng.uniform(0.18, 0.55, len(angles))
        angles = np.stack([angles + bend + fork, angles + bend - 0.8 * fork], -1).reshape(-1)
        lengths = np.repeat(lengths, 2) * rng.uniform(0.66, 1.0, 2 * len(lengths))
        widths = np.repeat(widths, 2) * rng.uniform(0.58, 0.80, 2 * len(widths))
    curves: list[Points] = []
    all_widths: list[float] = []
    strengths: list[float] = []
    for path, width, strength in reversed(levels):
        curves += list(path)
        all_widths += width.tolist()
        strengths += [strength] * len(path)
    return curves, all_widths, strengths
