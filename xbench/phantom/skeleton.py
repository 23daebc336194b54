"""Bones: ribs, clavicles, shoulder blades, spine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.phantom.build import Build, mirrored, ring
from xbench.phantom.canvas import Frame, Layer, Points, blur, dome, smooth_curve

_POSTERIOR = 0.40
_ANTERIOR = 0.22
_CLAVICLE = 0.42
_RIBS = 10


@dataclass(frozen=True)
class Rib:
    """One rib, from the spine round the side to its front end.

    Attributes:
        curve: Its midline (N, 2) in the patient's frame.
        width: In units of the patient's frame.
        turn: Index in `curve` where the posterior arch ends at the side.
    """

    curve: Points
    width: float
    turn: int


def build_ribs(rng: np.random.Generator, build: Build, side: int, lung: Points) -> list[Rib]:
    """The ribs of one side, round the outline (N, 2) of its lung."""
    number = np.arange(_RIBS)[:, None]
    start = -0.74 + rng.uniform(0.112, 0.124) * number + rng.normal(0, 0.004, (_RIBS, 1))
    slope = rng.uniform(0.85, 1.15)
    drop, fall = slope * (0.12 + 0.019 * number), slope * (0.16 + 0.022 * number)
    # Each rib reaches as far out as the lung does at the level where the rib turns to the front.
    wall = np.abs(lung[:, 0]) / build.breadth
    near = np.abs(lung[:, 1] / build.tallness - (start + drop)) < 0.05
    edge = np.where(near.any(1), np.where(near, wall, 0).max(1), 0.74)[:, None]
    reach, inner = np.minimum(edge, 0.74) + 0.03, 0.26 + 0.012 * number
    back, front = np.linspace(0.0, np.pi / 2, 14), np.linspace(np.pi / 2, 2.65, 12)[1:]
    x = np.concatenate([0.035 + (reach - 0.035) * np.sin(back), inner + (reach - inner) * np.sin(front)], 1)
    y_back = start - 0.028 * np.sin(2 * back) + drop * (1 - np.cos(back)) ** 1.2
    y = np.concatenate([y_back, start + drop - fall * np.cos(front)], 1)
    curves = build.warp(np.stack([side * x, y], -1))
    widths = rng.uniform(0.042, 0.050, _RIBS).tolist()
    return [Rib(curve, width, len(back) - 1) for curve, width in zip(curves, widths, strict=True)]


def rib_layer(frame: Frame, curves: Sequence[Points], widths: Sequence[float]) -> Layer:
    """Tubes with a brighter cortex (H, W) in [0, 1]."""
    return blur(_tubes(frame, curves, widths), frame.length(0.0065))


def skeleton_layer(rng: np.random.Generator, frame: Frame, build: Build, ribs: Sequence[Rib], belly: Layer) -> Layer:
    """Attenuation (H, W) of all bones; ribs fade where the abdomen `belly` (H, W) in [0, 1] covers them."""
    density = rng.uniform(0.85, 1.2)
    back = _tubes(frame, [rib.curve[: rib.turn + 3] for rib in ribs], [rib.width for rib in ribs])
    front = _tubes(frame, [rib.curve[rib.turn :] for rib in ribs], [1.08 * rib.width for rib in ribs])
    half = frame.halved()
    clavicles, blades, heads = [], [], []
    for side in (-1, 1):
        tilt, out = rng.normal(0, 0.025), rng.uniform(-0.03, 0.07)
        line = [(0.075, -0.56), (0.20, -0.585), (0.36, -0.66 + tilt), (0.52, -0.745 + tilt), (0.70, -0.80 + 2 * tilt)]
        clavicles.append(build.warp(smooth_curve(mirrored(line, side))))
        blade = [(0.60 + out, -0.70), (0.64 + out, -0.40), (0.72 + out, -0.06), (0.78 + out, -0.10), (0.86, -0.55)]
        blade += [(0.98, -0.74), (0.80, -0.80)]
        blades.append(build.warp(smooth_curve(mirrored(blade, side), closed=True)))
        heads.append(build.warp(ring((side * 1.0, -0.70), 0.11, 0.11)))
    bones = np.float32(_POSTERIOR) * back * (1 - np.float32(0.4) * belly)
    bones += np.float32(_ANTERIOR) * front * (1 - np.float32(0.85) * belly)
    bones += np.float32(_CLAVICLE) * _tubes(frame, clavicles, [0.06, 0.06])
    scapula = np.float32(0.10) * half.fill(*blades) + np.float32(0.13) * half.stroke(blades, [0.018] * 2, [1.0] * 2)
    broad = blur(scapula + np.float32(0.5) * dome(half.fill(*heads), half.length(0.06), 0.5), half.length(0.008))
    return np.float32(density) * (blur(bones, frame.length(0.0065)) + frame.doubled(broad + _spine(rng, half, build)))


def _tubes(frame: Frame, curves: Sequence[Points], widths: Sequence[float]) -> Layer:
    solid = frame.stroke(curves, widths, [1.0] * len(curves))
    marrow = frame.stroke(curves, [0.6 * width for width in widths], [1.0] * len(curves))
    return solid - np.float32(0.40) * marrow


def _spine(rng: np.random.Generator, frame: Frame, build: Build) -> Layer:
    pitch = rng.uniform(0.108, 0.122)
    level = np.arange(-1.2, 1.5, pitch)
    half = 0.062 + 0.012 * np.maximum(level, 0)
    low, high, none = level - 0.42 * pitch, level + 0.42 * pitch, np.zeros_like(level)
    x = np.stack([-half, half, 0.9 * half, half, -half, -0.9 * half], -1)
    bodies = build.warp(np.stack([x, np.stack([low, low, level, high, high, level], -1)], -1))
    discs = np.stack([np.stack([-0.95 * half, 0.95 * half], -1), np.stack([high, high], -1) + 0.006], -1)
    processes = np.stack([np.stack([none, none], -1), np.stack([level + 0.01, level + 0.055], -1)], -1)
    count = len(level)
    column = np.float32(0.22) * frame.fill(*bodies)
    column += np.float32(0.14) * frame.stroke(list(build.warp(discs)), [0.010] * count, [1.0] * count)
    column += np.float32(0.12) * frame.stroke(list(build.warp(processes)), [0.02] * count, [1.0] * count)
    return blur(column, frame.length(0.008))
