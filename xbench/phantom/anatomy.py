"""The healthy chest: shapes in the patient's frame, and the layers of attenuation they cast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xbench.phantom.canvas import Frame, Layer, Mask, Points, band_noise, blur, dome, smooth_curve, smooth_step
from xbench.phantom.vessels import vessel_tree

__all__ = ["Anatomy", "Lung", "Rib", "draw_anatomy", "heart_layer", "rib_layer"]

# How much of the air in front of and behind the heart is displaced by it.
_HEART_DISPLACES = 0.86
_AIR = 1.55


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
class Rib:
    """One rib, from the spine round the side to its front end.

    Attributes:
        side: -1 or +1, as in Lung.
        curve: Its midline (N, 2) in the patient's frame.
        width: In units of the patient's frame.
        turn: Index in `curve` where the posterior arch ends at the side.
    """

    side: int
    curve: Points
    width: float
    turn: int


@dataclass(frozen=True)
class Anatomy:
    """A healthy chest: all that a lesion needs to know of its surroundings.

    Attributes:
        frame: The pose.
        lungs: Right, left.
        ribs: All ribs.
        heart: Outline (N, 2) of the heart in the patient's frame.
        heart_thickness: Its thickness (H, W) in [0, 1].
        hidden: Where the heart cannot be told from mediastinum and abdomen (H, W) in [0, 1].
        vessels: Vessels and fine lung texture (H, W), as attenuation.
        solid: All that is not air (H, W), as attenuation.
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
        """Attenuation (H, W) along the rays, with the heart of the given thickness (H, W) in [0, 1]."""
        air = (self.lungs[0].air + self.lungs[1].air) * (1 - np.float32(_HEART_DISPLACES) * heart)
        return self.solid + self.vessels * (1 - np.float32(0.75) * heart) - np.float32(_AIR) * air + self._blood(heart)

    def aeration(self) -> Layer:
        """Attenuation (H, W) that the lungs would gain if their air were replaced by fluid."""
        air = self.lungs[0].air + self.lungs[1].air
        return np.float32(_AIR) * air * (1 - np.float32(_HEART_DISPLACES) * self.heart_thickness)

    def _blood(self, heart: Layer) -> Layer:
        return np.float32(0.40) * heart * (1 - self.hidden)


def heart_layer(frame: Frame, *contours: Points) -> Layer:
    """Thickness (H, W) in [0, 1] of a heart with the union of the outlines."""
    return blur(dome(frame.fill(*contours), frame.length(0.22), 0.5), frame.length(0.008))


def rib_layer(frame: Frame, curves: list[Points], widths: list[float]) -> Layer:
    """Tubes with a brighter cortex (H, W) in [0, 1]: ribs, clavicles."""
    solid = frame.stroke(curves, widths, [1.0] * len(curves))
    marrow = frame.stroke(curves, [0.6 * width for width in widths], [1.0] * len(curves))
    return blur(solid - np.float32(0.42) * blur(marrow, frame.length(0.006)), frame.length(0.005))


def draw_anatomy(rng: np.random.Generator, height: int, width: int) -> Anatomy:
    """A healthy chest in a random pose and of a random build."""
    frame = _pose(rng, height, width)
    build = _Build.random(rng)
    lungs = (_lung(frame, build, -1), _lung(frame, build, 1))
    ribs = tuple(rib for side in (-1, 1) for rib in _ribs(rng, build, side, lungs[(side + 1) // 2]))
    vessels = np.zeros((height, width), np.float32)
    gain = rng.uniform(0.38, 0.62)
    for lung in lungs:
        curves, widths, strengths = vessel_tree(rng, lung.hilum, lung.side)
        tree = blur(frame.stroke(curves, widths, strengths), frame.length(0.004))
        vessels += np.float32(gain) * tree * np.minimum(1.3 * lung.air, 1)
    texture = band_noise(rng, height, width, frame.length(0.03)) + band_noise(rng, height, width, frame.length(0.013))
    vessels += np.float32(rng.uniform(0.015, 0.035)) * texture * (lungs[0].air + lungs[1].air)
    mediastinum = _mediastinum(frame, build)
    belly = _belly(frame, build)
    solid = _soft_tissue(rng, frame, build, lungs, mediastinum) + _bones(rng, frame, build, ribs, belly)
    heart = build.warp(_heart(build))
    return Anatomy(frame, lungs, ribs, heart, heart_layer(frame, heart), np.maximum(mediastinum, belly), vessels, solid)


@dataclass(frozen=True)
class _Build:
    """What differs from patient to patient."""

    breadth: float
    tallness: float
    twist: float
    lean: float
    inspiration: tuple[float, float]
    heart: float
    fat: float

    @staticmethod
    def random(rng: np.random.Generator) -> _Build:
        depth = rng.normal(0, 0.045)
        return _Build(
            breadth=rng.uniform(0.92, 1.08),
            tallness=rng.uniform(0.93, 1.07),
            twist=rng.normal(0, 0.035),
            lean=rng.normal(0, 0.02),
            inspiration=(depth + rng.normal(0, 0.012), depth + rng.normal(0, 0.012)),
            heart=rng.uniform(0.88, 1.06),
            fat=rng.uniform(0.0, 1.0),
        )

    def warp(self, points: Points) -> Points:
        """From the model patient to this one: breadth, height, rotation of the trunk and a slight bend."""
        x, y = points[..., 0], points[..., 1]
        x = self.breadth * (x + self.twist * (x * x - 0.3) + self.lean * y * y)
        return np.stack([x, self.tallness * y], -1)


def _pose(rng: np.random.Generator, height: int, width: int) -> Frame:
    side = min(height, width)
    scale = side / 2 * rng.uniform(0.93, 1.12)
    shift = rng.normal(0, 0.025, 2) * side
    centre = (width / 2 + shift[0], height / 2 + shift[1] + 0.03 * side)
    return Frame(height, width, scale, rng.normal(0, np.radians(2.0)), centre)


def _both(points: list[tuple[float, float]], side: int) -> Points:
    return np.array(points, dtype=np.float64) * np.array([side, 1.0])


def _lung(frame: Frame, build: _Build, side: int) -> Lung:
    down = build.inspiration[(side + 1) // 2] + (0.05 if side == 1 else 0.0)
    lateral = [(0.17, -0.72), (0.27, -0.80), (0.38, -0.76), (0.50, -0.60), (0.60, -0.36), (0.67, -0.05), (0.715, 0.28)]
    lateral += [(0.735, 0.50 + 0.8 * down), (0.73, 0.62 + 0.8 * down)]
    base = [(0.73, 0.62 + 0.8 * down), (0.66, 0.53 + 0.9 * down), (0.54, 0.45 + down), (0.40, 0.415 + down)]
    base += [(0.25, 0.43 + down), (0.09, 0.50 + down)]
    medial = [(0.09, 0.50 + down), (0.085, 0.20), (0.09, -0.10), (0.10, -0.40), (0.13, -0.60), (0.17, -0.72)]
    # Three separate curves, so that the costophrenic angle stays sharp.
    parts = [smooth_curve(_both(part, side)) for part in (lateral, base, medial)]
    contour = build.warp(np.concatenate([part[:-1] for part in parts]))
    coverage = blur(frame.fill(contour), frame.length(0.006))
    air = dome(coverage, frame.length(0.26), 0.42)
    hilum = build.warp(_both([(0.15, -0.04 if side == -1 else -0.08)], side))[0]
    return Lung(side, contour, hilum, coverage > 0.5, air)


def _ribs(rng: np.random.Generator, build: _Build, side: int, lung: Lung) -> list[Rib]:
    wall = lung.contour / np.array([build.breadth, build.tallness])
    order = np.argsort(wall[:, 1])
    ribs = []
    step = rng.uniform(0.112, 0.124)
    slope = rng.uniform(0.85, 1.15)
    for number in range(10):
        start = -0.74 + step * number + rng.normal(0, 0.004)
        drop = slope * (0.12 + 0.019 * number)
        fall = slope * (0.16 + 0.022 * number)
        level = start + drop
        nearby = np.abs(wall[order, 1] - level) < 0.05
        edge = np.abs(wall[order, 0][nearby]).max() if nearby.any() else 0.74
        reach = min(edge, 0.74) + 0.03
        back, front = np.linspace(0.0, np.pi / 2, 14), np.linspace(np.pi / 2, 2.65, 12)[1:]
        inner = 0.26 + 0.012 * number
        x = np.concatenate([0.035 + (reach - 0.035) * np.sin(back), inner + (reach - inner) * np.sin(front)])
        y_back = start - 0.028 * np.sin(2 * back) + drop * (1 - np.cos(back)) ** 1.2
        y_front = start + drop - fall * np.cos(front)
        y = np.concatenate([y_back, y_front])
        curve = build.warp(np.stack([side * x, y], -1))
        ribs.append(Rib(side, curve, (0.046 if number else 0.055) * rng.uniform(0.92, 1.08), len(back) - 1))
    return ribs


def _heart(build: _Build) -> Points:
    outline = [(0.0, -0.20), (0.14, -0.17), (0.215, -0.04), (0.32, 0.13), (0.415, 0.31), (0.435, 0.45), (0.35, 0.56)]
    outline += [(0.18, 0.60), (0.0, 0.57), (-0.13, 0.50), (-0.19, 0.34), (-0.185, 0.16), (-0.135, 0.0), (-0.11, -0.15)]
    points = np.array(outline, dtype=np.float64)
    points[:, 0] *= build.heart
    points[:, 1] += 0.7 * sum(build.inspiration) / 2 * np.clip(points[:, 1] + 0.2, 0, None)
    return smooth_curve(points, closed=True)


def _mediastinum(frame: Frame, build: _Build) -> Layer:
    column = [(0.10, -1.6), (0.10, -0.85), (0.12, -0.62), (0.135, -0.30), (0.13, 0.0), (0.12, 0.4), (0.15, 0.8), (0.2, 1.6)]
    sides = [smooth_curve(_both(column, side)) for side in (1, -1)]
    return blur(frame.fill(build.warp(np.concatenate([sides[0], sides[1][::-1]]))), frame.length(0.022))


def _belly(frame: Frame, build: _Build) -> Layer:
    _, y = frame.grid()
    level = 0.43 + sum(build.inspiration) / 2
    return smooth_step(y / np.float32(build.tallness), level, level + 0.14)


def _soft_tissue(
    rng: np.random.Generator, frame: Frame, build: _Build, lungs: tuple[Lung, Lung], mediastinum: Layer
) -> Layer:
    wall = 0.84 + 0.07 * build.fat
    neck = 0.23 + 0.04 * build.fat
    half = [(neck, -1.6), (neck, -1.02), (0.36, -0.93), (0.62, -0.86), (0.92, -0.80), (1.20, -0.68), (1.60, -0.30)]
    half += [(1.60, 0.10), (1.22, -0.12), (1.02, -0.28), (wall + 0.04, -0.22), (wall, 0.0), (wall + 0.01, 0.4)]
    half += [(wall + 0.02, 0.8), (wall + 0.02, 1.6)]
    right, left = smooth_curve(_both(half, -1)), smooth_curve(_both(half, 1))
    body = blur(frame.fill(build.warp(np.concatenate([left, right[::-1]]))), frame.length(0.006))
    trunk = np.float32(2.1 + 0.3 * build.fat) * dome(body, frame.length(0.34), 0.30)

    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    ring = np.stack([np.cos(angles), np.sin(angles)], -1)
    size = rng.uniform(0.075, 0.098)
    knob = frame.fill(build.warp(np.array([0.105, -0.335]) + ring * np.array([size, 1.1 * size])))
    descending = smooth_curve(np.array([(0.13, -0.30), (0.135, 0.0), (0.11, 0.3), (0.08, 0.6)]))
    aorta = frame.stroke([build.warp(descending)], [0.10], [1.0])
    tissue = 0.48 * mediastinum + 0.5 * dome(knob, frame.length(0.08), 0.45)
    tissue = blur(tissue, frame.length(0.009)) + 0.18 * blur(aorta, frame.length(0.01))

    hila = np.zeros_like(trunk)
    for lung in lungs:
        spread = np.array([[0.0, -0.05], [0.035 * lung.side, 0.0], [0.025 * lung.side, 0.07]])
        stem = smooth_curve(lung.hilum + spread)
        hila += np.float32(0.34) * blur(frame.stroke([stem], [0.085], [1.0]), frame.length(0.022))

    bend = rng.normal(0, 0.012)
    windpipe = build.warp(smooth_curve(np.array([(0, -1.6), (0, -0.9), (bend, -0.55), (-0.012, -0.22)])))
    carina = np.array([-0.012, -0.23])
    main_right = build.warp(smooth_curve(np.stack([carina, carina + (-0.06, 0.08), carina + (-0.13, 0.15)])))
    main_left = build.warp(smooth_curve(np.stack([carina, carina + (0.08, 0.07), carina + (0.19, 0.12)])))
    airway = frame.stroke([main_left, main_right, windpipe], [0.042, 0.048, 0.068], [0.55, 0.6, 1.0])
    airway = np.float32(-0.5) * blur(airway, frame.length(0.011))

    _, y = frame.grid()
    belly = np.float32(0.5) * np.clip((y / np.float32(build.tallness) - 0.35) / 0.6, 0, 1) * body
    bubble = np.zeros_like(trunk)
    if rng.random() < 0.6:
        at = np.array([rng.uniform(0.32, 0.46), 0.68 + build.inspiration[1]])
        shape = build.warp(at + ring * np.array([rng.uniform(0.08, 0.15), rng.uniform(0.045, 0.07)]))
        bubble = np.float32(-0.6) * blur(frame.fill(shape), frame.length(0.015))
    breasts = np.zeros_like(trunk)
    if rng.random() < 0.45:
        size = rng.uniform(0.30, 0.36)
        for side in (-1, 1):
            at = np.array([side * rng.uniform(0.43, 0.47), rng.uniform(0.30, 0.36)])
            breasts += frame.fill(build.warp(at + ring * np.array([size, 0.85 * size])))
        breasts = np.float32(rng.uniform(0.12, 0.3)) * blur(breasts, frame.length(0.03)) * body
    return trunk + tissue * body + hila + airway * body + belly + bubble + breasts


def _bones(rng: np.random.Generator, frame: Frame, build: _Build, ribs: tuple[Rib, ...], belly: Layer) -> Layer:
    density = rng.uniform(0.85, 1.2)
    back = rib_layer(frame, [rib.curve[: rib.turn + 3] for rib in ribs], [rib.width for rib in ribs])
    front = rib_layer(frame, [rib.curve[rib.turn :] for rib in ribs], [1.08 * rib.width for rib in ribs])
    clavicles, blades, plates = [], [], []
    for side in (-1, 1):
        tilt = rng.normal(0, 0.025)
        line = [(0.075, -0.56), (0.20, -0.585), (0.36, -0.66 + tilt), (0.52, -0.745 + tilt), (0.70, -0.80 + 2 * tilt)]
        clavicles.append(build.warp(smooth_curve(_both(line, side))))
        out = rng.uniform(-0.03, 0.07)
        blade = [(0.60 + out, -0.70), (0.64 + out, -0.40), (0.72 + out, -0.06), (0.78 + out, -0.10), (0.86, -0.55)]
        blade += [(0.98, -0.74), (0.80, -0.80)]
        blades.append(build.warp(smooth_curve(_both(blade, side), closed=True)))
        angles = np.linspace(0, 2 * np.pi, 20, endpoint=False)
        plates.append(build.warp(_both([(1.0, -0.70)], side) + 0.11 * np.stack([np.cos(angles), np.sin(angles)], -1)))
    collar = rib_layer(frame, clavicles, [0.06, 0.06])
    scapula = frame.fill(*blades)
    scapula = np.float32(0.10) * scapula + np.float32(0.13) * frame.stroke(blades, [0.018] * 2, [1.0] * 2)
    heads = np.float32(0.5) * dome(frame.fill(*plates), frame.length(0.06), 0.5)
    bones = 0.40 * back * (1 - 0.4 * belly) + 0.22 * front * (1 - 0.85 * belly) + 0.42 * collar + blur(scapula, frame.length(0.008)) + blur(heads, 1.0)
    return np.float32(density) * (bones + _spine(rng, frame, build))


def _spine(rng: np.random.Generator, frame: Frame, build: _Build) -> Layer:
    pitch = rng.uniform(0.108, 0.122)
    levels = np.arange(-1.2, 1.5, pitch)
    bodies, discs, processes = [], [], []
    for level in levels:
        half = 0.062 + 0.012 * max(level, 0)
        low, high = level - 0.42 * pitch, level + 0.42 * pitch
        waist = 0.9 * half
        box = [(-half, low), (half, low), (waist, level), (half, high), (-half, high), (-waist, level)]
        bodies.append(build.warp(np.array(box)))
        discs.append(build.warp(np.array([(-0.95 * half, high + 0.006), (0.95 * half, high + 0.006)])))
        processes.append(build.warp(np.array([(0.0, level + 0.01), (0.0, level + 0.055)])))
    column = np.float32(0.22) * frame.fill(*bodies)
    column += np.float32(0.14) * frame.stroke(discs, [0.010] * len(discs), [1.0] * len(discs))
    column += np.float32(0.12) * frame.stroke(processes, [0.02] * len(discs), [1.0] * len(discs))
    return blur(column, frame.length(0.008))
