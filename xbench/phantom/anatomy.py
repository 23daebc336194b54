"""The healthy chest: its parts, put together along the rays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xbench.phantom.build import Build, mirrored, random_pose
from xbench.phantom.canvas import Frame, Layer, Mask, Points, band_noise, blur, dome, smooth_curve
from xbench.phantom.skeleton import Rib, build_ribs, skeleton_layer
from xbench.phantom.tissue import belly_layer, mediastinum_layer, tissue_layer
from xbench.phantom.vessels import vessel_tree

_AIR = 1.55

# How much of the air in front of and behind the heart is displaced by it, and how dense its blood is.
_HEART_DISPLACES = 0.86
_BLOOD = 0.40


@dataclass(frozen=True)
class Lung:
    """One lung field.

    Attributes:
        side: -1 for the patient's right lung (left of the image), +1 for the left one.
        contour: Closed outline (N, 2) in the patient's frame.
        hilum: Its root (2,) in the patient's frame.
        mask: (H, W) bool.
        air: Thickness of the air (H, W) in [0, 1].
    """

    side: int
    contour: Points
    hilum: Points
    mask: Mask
    air: Layer


@dataclass(frozen=True)
class Anatomy:
    """A healthy chest: all that a lesion needs to know of its surroundings.

    Attributes:
        frame: The pose.
        lungs: Right, left.
        ribs: The right ones from above, then the left ones.
        heart: Outline (N, 2) of the heart in the patient's frame.
        heart_thickness: Its thickness (H, W) in [0, 1].
        hidden: Where the heart cannot be told from mediastinum and abdomen (H, W) in [0, 1].
        vessels: Vessels and fine lung texture (H, W), as attenuation.
        solid: All else that is not air (H, W), as attenuation.
    """

    frame: Frame
    lungs: tuple[Lung, Lung]
    ribs: tuple[Rib, ...]
    heart: Points
    heart_thickness: Layer
    hidden: Layer
    vessels: Layer
    solid: Layer

    def attenuation(self, heart: Layer) -> Layer:
        """Attenuation (H, W) along the rays, with a heart of the given thickness (H, W) in [0, 1]."""
        blood = np.float32(_BLOOD) * heart * (1 - self.hidden)
        return self.solid + self.vessels * (1 - np.float32(0.75) * heart) - self._air(heart) + blood

    def aeration(self) -> Layer:
        """Attenuation (H, W) that the lungs would gain if their air were replaced by fluid."""
        return self._air(self.heart_thickness)

    def _air(self, heart: Layer) -> Layer:
        return np.float32(_AIR) * (self.lungs[0].air + self.lungs[1].air) * (1 - np.float32(_HEART_DISPLACES) * heart)


def heart_layer(frame: Frame, *contours: Points) -> Layer:
    """Thickness (H, W) in [0, 1] of a heart with the union of the outlines."""
    return blur(dome(frame.fill(*contours), frame.length(0.22), 0.5), frame.length(0.008))


def draw_anatomy(rng: np.random.Generator, height: int, width: int) -> Anatomy:
    """A healthy chest in a random pose and of a random build."""
    frame = random_pose(rng, height, width)
    build = Build.random(rng)
    lungs = (_lung(frame, build, -1), _lung(frame, build, 1))
    ribs = tuple(rib for lung in lungs for rib in build_ribs(rng, build, lung.side, lung.contour))
    mediastinum, belly = mediastinum_layer(frame, build), belly_layer(frame, build)
    solid = tissue_layer(rng, frame, build, [lung.hilum for lung in lungs], mediastinum)
    solid += skeleton_layer(rng, frame, build, ribs, belly)
    heart = build.warp(_heart(build))
    thickness = heart_layer(frame, heart)
    vessels = _lung_markings(rng, frame, lungs)
    return Anatomy(frame, lungs, ribs, heart, thickness, np.maximum(mediastinum, belly), vessels, solid)


def _lung(frame: Frame, build: Build, side: int) -> Lung:
    # The right dome stands higher, with the liver below it.
    down = build.inspiration[(side + 1) // 2] + (0.05 if side == 1 else 0.0)
    lateral = [(0.17, -0.72), (0.27, -0.80), (0.38, -0.76), (0.50, -0.60), (0.60, -0.36), (0.67, -0.05), (0.715, 0.28)]
    lateral += [(0.735, 0.50 + 0.8 * down), (0.73, 0.62 + 0.8 * down)]
    base = [(0.73, 0.62 + 0.8 * down), (0.66, 0.53 + 0.9 * down), (0.54, 0.45 + down), (0.40, 0.415 + down)]
    base += [(0.25, 0.43 + down), (0.09, 0.50 + down)]
    medial = [(0.09, 0.50 + down), (0.085, 0.20), (0.09, -0.10), (0.10, -0.40), (0.13, -0.60), (0.17, -0.72)]
    # Three separate curves, so that the costophrenic angle stays sharp.
    parts = [smooth_curve(mirrored(part, side)) for part in (lateral, base, medial)]
    contour = build.warp(np.concatenate([part[:-1] for part in parts]))
    coverage = blur(frame.fill(contour), frame.length(0.006))
    hilum = build.warp(mirrored([(0.15, -0.04 if side == -1 else -0.08)], side))[0]
    return Lung(side, contour, hilum, coverage > 0.5, dome(coverage, frame.length(0.26), 0.42))


def _heart(build: Build) -> Points:
    outline = [(0.0, -0.20), (0.14, -0.17), (0.215, -0.04), (0.32, 0.13), (0.415, 0.31), (0.435, 0.45), (0.35, 0.56)]
    outline += [(0.18, 0.60), (0.0, 0.57), (-0.13, 0.50), (-0.19, 0.34), (-0.185, 0.16), (-0.135, 0.0), (-0.11, -0.15)]
    points = np.array(outline, dtype=np.float64)
    points[:, 0] *= build.heart
    points[:, 1] += 0.35 * sum(build.inspiration) * np.clip(points[:, 1] + 0.2, 0, None)
    return smooth_curve(points, closed=True)


def _lung_markings(rng: np.random.Generator, frame: Frame, lungs: tuple[Lung, Lung]) -> Layer:
    right, left = (vessel_tree(rng, lung.hilum, lung.side) for lung in lungs)
    strokes = frame.stroke(right[0] + left[0], right[1] + left[1], right[2] + left[2])
    tree = blur(strokes, max(frame.length(0.004), 0.4))
    air = lungs[0].air + lungs[1].air
    texture = band_noise(rng, frame, 0.03) + band_noise(rng, frame, 0.013)
    gain, grain = rng.uniform(0.38, 0.62), rng.uniform(0.015, 0.035)
    return np.float32(gain) * tree * np.minimum(np.float32(1.3) * air, 1) + np.float32(grain) * texture * air
