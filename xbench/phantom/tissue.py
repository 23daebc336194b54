"""Soft tissue and what lies in it: trunk, mediastinum, great vessels, airways, abdomen."""

from __future__ import annotations

import numpy as np

from xbench.phantom.build import Build, mirrored, ring
from xbench.phantom.canvas import Frame, Layer, Points, blur, dome, smooth_curve, smooth_step


def mediastinum_layer(frame: Frame, build: Build) -> Layer:
    """The mediastinum without the heart, (H, W) in [0, 1]."""
    column = [(0.10, -1.6), (0.10, -0.85), (0.12, -0.62), (0.135, -0.30), (0.13, 0.0), (0.12, 0.4), (0.15, 0.8)]
    right, left = (smooth_curve(mirrored([*column, (0.2, 1.6)], side)) for side in (-1, 1))
    half = frame.halved()
    outline = build.warp(np.concatenate([left, right[::-1]]))
    return frame.doubled(blur(half.fill(outline), half.length(0.022)))


def belly_layer(frame: Frame, build: Build) -> Layer:
    """The abdomen below the diaphragm, (H, W) in [0, 1]."""
    _, y = frame.grid()
    level = 0.43 + sum(build.inspiration) / 2
    return smooth_step(y / np.float32(build.tallness), level, level + 0.14)


def tissue_layer(rng: np.random.Generator, frame: Frame, build: Build, hila: list[Points], mediastinum: Layer) -> Layer:
    """Attenuation (H, W) of all that is neither bone, lung nor heart.

    Args:
        rng: Source of chance.
        frame: The pose.
        build: The patient.
        hila: Roots (2,) of the right and the left lung.
        mediastinum: Of `mediastinum_layer`.
    """
    wall, neck = 0.84 + 0.07 * build.fat, 0.23 + 0.04 * build.fat
    edge = [(neck, -1.6), (neck, -1.02), (0.36, -0.93), (0.62, -0.86), (0.92, -0.80), (1.20, -0.68), (1.60, -0.30)]
    edge += [(1.60, 0.10), (1.22, -0.12), (1.02, -0.28), (wall + 0.04, -0.22), (wall, 0.0), (wall + 0.01, 0.4)]
    edge += [(wall + 0.02, 0.8), (wall + 0.02, 1.6)]
    right, left = (smooth_curve(mirrored(edge, side)) for side in (-1, 1))
    body = blur(frame.fill(build.warp(np.concatenate([left, right[::-1]]))), frame.length(0.006))
    trunk = np.float32(2.1 + 0.3 * build.fat) * dome(body, frame.length(0.34), 0.30)

    half = frame.halved()
    inner = _great_vessels(rng, half, build, hila) - _airways(rng, half, build)
    inner += _breasts(rng, half, build) - _gastric_bubble(rng, half, build)
    _, y = frame.grid()
    inner_full = frame.doubled(inner) + np.float32(0.48) * mediastinum
    inner_full += np.float32(0.5) * np.clip((y / np.float32(build.tallness) - 0.35) / 0.6, 0, 1)
    return trunk + inner_full * body


def _great_vessels(rng: np.random.Generator, frame: Frame, build: Build, hila: list[Points]) -> Layer:
    size = rng.uniform(0.075, 0.098)
    knob = frame.fill(build.warp(ring((0.105, -0.335), size, 1.1 * size)))
    layer = np.float32(0.5) * blur(dome(knob, frame.length(0.08), 0.45), frame.length(0.009))
    descending = build.warp(smooth_curve(np.array([(0.13, -0.30), (0.135, 0.0), (0.11, 0.3), (0.08, 0.6)])))
    layer += np.float32(0.18) * blur(frame.stroke([descending], [0.10], [1.0]), frame.length(0.01))
    stems = []
    for side, hilum in zip((-1, 1), hila, strict=True):
        stems.append(smooth_curve(hilum + np.array([[0.0, -0.05], [0.035 * side, 0.0], [0.025 * side, 0.07]])))
    return layer + np.float32(0.34) * blur(frame.stroke(stems, [0.085] * 2, [1.0] * 2), frame.length(0.022))


def _airways(rng: np.random.Generator, frame: Frame, build: Build) -> Layer:
    bend, end = rng.normal(0, 0.012), (-0.012, -0.22)
    lines = [
        [end, (0.07, -0.15), (0.18, -0.10)],
        [end, (-0.07, -0.14), (-0.14, -0.07)],
        [(0.0, -1.6), (0.0, -0.9), (bend, -0.55), end],
    ]
    curves = [build.warp(smooth_curve(np.array(line))) for line in lines]
    return np.float32(0.5) * blur(frame.stroke(curves, [0.042, 0.048, 0.068], [0.55, 0.6, 1.0]), frame.length(0.011))


def _gastric_bubble(rng: np.random.Generator, frame: Frame, build: Build) -> Layer:
    seen = rng.random() < 0.6
    at = (rng.uniform(0.32, 0.46), 0.68 + build.inspiration[1])
    shape = build.warp(ring(at, rng.uniform(0.08, 0.15), rng.uniform(0.045, 0.07)))
    return np.float32(0.6 * seen) * blur(frame.fill(shape), frame.length(0.015))


def _breasts(rng: np.random.Generator, frame: Frame, build: Build) -> Layer:
    seen, size, density = rng.random() < 0.45, rng.uniform(0.30, 0.36), rng.uniform(0.12, 0.3)
    places = [(side * rng.uniform(0.43, 0.47), rng.uniform(0.30, 0.36)) for side in (-1, 1)]
    shapes = [frame.fill(build.warp(ring(at, size, 0.85 * size))) for at in places]
    return np.float32(density * seen) * blur(shapes[0] + shapes[1], frame.length(0.03))
