"""The healthy chest: pose, build, bones, soft tissue, vessels and lungs, as attenuation along the rays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.data.phantom.canvas import Frame, Layer, Mask, Points, band_noise, blur, dome, smooth_curve, smooth_step


class Build:
    """Proportions: `twist` broadens one side, `lean` bends the trunk, `inspiration` lowers the diaphragms."""

    def __init__(self, rng: np.random.Generator) -> None:
        depth = rng.normal(0, 0.045)
        self.breadth, self.tallness = rng.uniform(0.92, 1.08), rng.uniform(0.93, 1.07)
        self.twist, self.lean = rng.normal(0, 0.035), rng.normal(0, 0.02)
        self.inspiration = depth + rng.normal(0, 0.012), depth + rng.normal(0, 0.012)
        self.heart, self.fat = rng.uniform(0.88, 1.06), rng.uniform(0.0, 1.0)

    def warp(self, points: Points) -> Points:
        """Return points (..., 2) of the model patient in this patient."""
        x, y = points[..., 0], points[..., 1]
        warped = np.empty_like(points)
        warped[..., 0] = self.breadth * (x + self.twist * (x * x - 0.3) + self.lean * y * y)
        warped[..., 1] = self.tallness * y
        return warped

    def curve(self, points: Sequence[tuple[float, float]], side: int = 1, closed: bool = False) -> Points:
        """Return a smooth curve through points of the model patient's left side, on side -1 (right) or +1 (left)."""
        return self.warp(smooth_curve(np.array(points) * np.array([side, 1.0]), closed=closed))

    def outline(self, edge: Sequence[tuple[float, float]]) -> Points:
        """Return the outline between an edge on the left side and its mirror image."""
        return np.concatenate([self.curve(edge), self.curve(edge, -1)[::-1]])

    def ring(self, center: tuple[float, float], breadth: float, tallness: float) -> Points:
        """Return an ellipse (24, 2) with the given half axes."""
        angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        x, y = center[0] + breadth * np.cos(angles), center[1] + tallness * np.sin(angles)
        return self.warp(np.stack([x, y], -1))


@dataclass(frozen=True)
class Rib:
    """A rib: its midline (N, 2) from the spine to its front end, and the index where the posterior arch ends."""

    curve: Points
    width: float
    turn: int


def build_ribs(rng: np.random.Generator, build: Build, side: int, lung: Points) -> list[Rib]:
    """Return the ribs of one side, around the outline (N, 2) of its lung."""
    number = np.arange(10)[:, None]
    start = -0.74 + rng.uniform(0.112, 0.124) * number + rng.normal(0, 0.004, (10, 1))
    slope = rng.uniform(0.85, 1.15)
    drop, fall = slope * (0.12 + 0.019 * number), slope * (0.16 + 0.022 * number)
    wall = np.abs(lung[:, 0]) / build.breadth
    near = np.abs(lung[:, 1] / build.tallness - (start + drop)) < 0.05
    edge = np.where(near.any(1), np.where(near, wall, 0).max(1), 0.74)[:, None]
    reach, inner = np.minimum(edge, 0.74) + 0.03, 0.26 + 0.012 * number
    back, front = np.linspace(0.0, np.pi / 2, 14), np.linspace(np.pi / 2, 2.65, 12)[1:]
    x = np.concatenate([0.035 + (reach - 0.035) * np.sin(back), inner + (reach - inner) * np.sin(front)], 1)
    y_back = start - 0.028 * np.sin(2 * back) + drop * (1 - np.cos(back)) ** 1.2
    y = np.concatenate([y_back, start + drop - fall * np.cos(front)], 1)
    curves = build.warp(np.stack([side * x, y], -1))
    widths = rng.uniform(0.042, 0.050, 10).tolist()
    return [Rib(curve, width, len(back) - 1) for curve, width in zip(curves, widths, strict=True)]


def rib_layer(frame: Frame, curves: Sequence[Points], widths: Sequence[float]) -> Layer:
    """Return tubes with a brighter cortex (H, W) in [0, 1]."""
    return blur(_tubes(frame, curves, widths), frame.length(0.0065))


def rib_contrast(air: Layer) -> Layer:
    """Return the visibility of ribs (H, W) in [0, 1]: scatter hides them without air (H, W) behind."""
    contrast: Layer = np.float32(0.25) + np.float32(0.75) * np.minimum(np.float32(1.6) * air, 1)
    return contrast


def rib_cage(rng: np.random.Generator, frame: Frame, ribs: Sequence[Rib], air: Layer) -> Layer:
    """Return the attenuation (H, W) of the ribs in front of the lungs' air (H, W) in [0, 1]."""
    back = _tubes(frame, [rib.curve[: rib.turn + 3] for rib in ribs], [rib.width for rib in ribs])
    half = frame.halved()
    front = _tubes(half, [rib.curve[rib.turn :] for rib in ribs], [1.08 * rib.width for rib in ribs])
    # Bone turns to cartilage in front.
    front *= np.float32(0.16) * smooth_step(np.abs(half.grid()[0]), 0.24, 0.5)
    bones = np.float32(0.34) * back + frame.doubled(front)
    return np.float32(rng.uniform(0.85, 1.2)) * blur(bones, frame.length(0.0075)) * rib_contrast(air)


def skeleton_layer(rng: np.random.Generator, frame: Frame, build: Build) -> Layer:
    """Return the attenuation (H, W) of shoulders and spine."""
    half = frame.halved()
    clavicles, blades, heads, shafts = [], [], [], []
    for side in (-1, 1):
        tilt, out = rng.normal(0, 0.025), rng.uniform(-0.03, 0.07)
        line = [(0.075, -0.56), (0.20, -0.585), (0.36, -0.66 + tilt), (0.52, -0.745 + tilt)]
        clavicles.append(build.curve([*line, (0.70, -0.79 + tilt), (0.90, -0.80)], side))
        blade = [(0.60 + out, -0.70), (0.64 + out, -0.40), (0.72 + out, -0.06), (0.78 + out, -0.10), (0.86, -0.55)]
        blades.append(build.curve([*blade, (0.98, -0.74), (0.80, -0.80)], side, closed=True))
        heads.append(build.ring((side * 1.0, -0.69), 0.10, 0.115))
        shafts.append(build.warp(np.array([(side * 1.02, -0.66), (side * 1.2, -0.45), (side * 1.5, -0.1)])))
    bones = np.float32(0.08) * half.fill(*blades) + np.float32(0.10) * half.stroke(blades, [0.018] * 2, [1.0] * 2)
    bones += np.float32(0.36) * _tubes(half, clavicles, [0.058, 0.058])
    arms = np.float32(0.9) * _tubes(half, shafts, [0.1, 0.1])
    arms = np.maximum(arms, dome(half.fill(*heads), half.length(0.09), 0.3))
    bones += np.float32(0.34) * blur(arms, half.length(0.012))
    return frame.doubled(blur(bones, half.length(0.009)) + _spine(rng, half, build))


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
    column = np.float32(0.10) * frame.fill(*bodies)
    column += np.float32(0.035) * frame.stroke(list(build.warp(discs)), [0.010] * count, [1.0] * count)
    column += np.float32(0.05) * frame.stroke(list(build.warp(processes)), [0.02] * count, [1.0] * count)
    return blur(column, frame.length(0.012))


def tissue_layer(rng: np.random.Generator, frame: Frame, build: Build, hila: list[Points], mediastinum: Layer) -> Layer:
    """Return the attenuation (H, W) of all tissue except bones, lungs and heart."""
    wall, neck = 0.84 + 0.07 * build.fat, 0.23 + 0.04 * build.fat
    edge = [(neck, -1.6), (neck, -1.02), (0.36, -0.93), (0.62, -0.86), (0.92, -0.80), (1.20, -0.68), (1.60, -0.30)]
    edge += [(1.60, 0.10), (1.22, -0.12), (1.02, -0.28), (wall + 0.04, -0.22), (wall, 0.0), (wall + 0.01, 0.4)]
    edge += [(wall + 0.02, 0.8), (wall + 0.02, 1.6)]
    body = blur(frame.fill(build.outline(edge)), frame.length(0.006))
    trunk = np.float32(2.1 + 0.3 * build.fat) * dome(body, frame.length(0.34), 0.30)

    half = frame.halved()
    inner = _great_vessels(rng, half, build, hila) - _airways(rng, half, build)
    inner += _breasts(rng, half, build) - _gastric_bubble(rng, half, build)
    _, y = frame.grid()
    down: Layer = np.clip((y / np.float32(build.tallness) - 0.35) / 0.6, 0, 1)
    # The belly is equally dense beside and in front of the spine.
    inner_full: Layer = frame.doubled(inner) + np.float32(0.46) * mediastinum * (1 - np.float32(0.6) * down)
    inner_full += np.float32(0.5) * down
    return trunk + inner_full * body


def _great_vessels(rng: np.random.Generator, frame: Frame, build: Build, hila: list[Points]) -> Layer:
    size = rng.uniform(0.075, 0.098)
    knob = frame.fill(build.ring((0.105, -0.335), size, 1.1 * size))
    layer = np.float32(0.16) * blur(dome(knob, frame.length(0.08), 0.45), frame.length(0.015))
    descending = build.curve([(0.13, -0.30), (0.135, 0.0), (0.11, 0.3), (0.08, 0.6)])
    # The aorta disappears in front of the belly.
    seen = np.float32(0.18) * (1 - smooth_step(frame.grid()[1] / np.float32(build.tallness), 0.1, 0.5))
    layer += seen * blur(frame.stroke([descending], [0.10], [1.0]), frame.length(0.01))
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
    curves = [build.curve(line) for line in lines]
    return np.float32(0.36) * blur(frame.stroke(curves, [0.042, 0.048, 0.07], [0.5, 0.55, 1.0]), frame.length(0.015))


def _gastric_bubble(rng: np.random.Generator, frame: Frame, build: Build) -> Layer:
    seen = rng.random() < 0.6
    at = (rng.uniform(0.30, 0.42), 0.60 + build.inspiration[1])
    shape = build.ring(at, rng.uniform(0.08, 0.15), rng.uniform(0.045, 0.07))
    # Gas above, a level of fluid below.
    gas = frame.fill(shape) * smooth_step(frame.grid()[1] / np.float32(build.tallness), at[1] + 0.035, at[1] + 0.02)
    return np.float32(0.32 * seen) * blur(gas, frame.length(0.014))


def _breasts(rng: np.random.Generator, frame: Frame, build: Build) -> Layer:
    seen, size, density = rng.random() < 0.45, rng.uniform(0.30, 0.36), rng.uniform(0.12, 0.3)
    places = [(side * rng.uniform(0.43, 0.47), rng.uniform(0.30, 0.36)) for side in (-1, 1)]
    shapes = [frame.fill(build.ring(at, size, 0.85 * size)) for at in places]
    return np.float32(density * seen) * blur(shapes[0] + shapes[1], frame.length(0.03))


def _vessel_tree(rng: np.random.Generator, hilum: Points, side: int) -> tuple[list[Points], list[float], list[float]]:
    stems = 9
    angles = np.linspace(-1.35, 1.42, stems) + rng.normal(0, 0.09, stems)
    starts = np.repeat(hilum[None], stems, 0) + rng.normal(0, 0.018, (stems, 2)) + np.array([side * 0.015, 0.02])
    widths, lengths = rng.uniform(0.021, 0.030, stems), rng.uniform(0.14, 0.22, stems)
    levels = []
    for division in range(4):
        bend = rng.normal(0, 0.38, len(angles))
        t = np.linspace(0, 1, 5)[None, :]
        heading = angles[:, None] + bend[:, None] * t
        step = lengths[:, None] / 4 * np.stack([side * np.cos(heading), np.sin(heading)])
        path = starts[:, None] + np.moveaxis(np.cumsum(step, -1) - step[..., :1], 0, -1)
        levels.append((path, widths, 0.95 * 0.72**division))
        starts = np.repeat(path[:, -1], 2, 0)
        fork = rng.uniform(0.18, 0.55, len(angles))
        angles = np.stack([angles + bend + fork, angles + bend - 0.8 * fork], -1).reshape(-1)
        lengths = np.repeat(lengths, 2) * rng.uniform(0.66, 1.0, 2 * len(lengths))
        widths = np.repeat(widths, 2) * rng.uniform(0.58, 0.80, 2 * len(widths))
    curves = [curve for path, _, _ in reversed(levels) for curve in path]
    strengths = [strength for path, _, strength in reversed(levels) for _ in path]
    return curves, np.concatenate([width for _, width, _ in reversed(levels)]).tolist(), strengths


@dataclass(frozen=True)
class Lung:
    """A lung field: side -1 is the patient's right (left of the image); air is its thickness (H, W) in [0, 1]."""

    side: int
    contour: Points
    hilum: Points
    mask: Mask
    air: Layer


@dataclass(frozen=True)
class Anatomy:
    """A healthy chest; layers (H, W) are attenuation unless they are in [0, 1]."""

    frame: Frame
    lungs: tuple[Lung, Lung]  # right, left
    ribs: tuple[Rib, ...]  # the right ones from above, then the left ones
    heart: Points  # outline (N, 2) in the patient's frame
    heart_thickness: Layer  # in [0, 1]
    bones: Layer  # ribs
    hidden: Layer  # how much mediastinum and abdomen hide the heart, in [0, 1]
    vessels: Layer  # vessels and fine lung texture
    solid: Layer  # all else except air

    def air(self) -> Layer:
        """Return the thickness of both lungs (H, W) in [0, 1]."""
        return self.lungs[0].air + self.lungs[1].air

    def attenuation(self, heart: Layer) -> Layer:
        """Return the attenuation (H, W) with a heart of the given thickness (H, W) in [0, 1]."""
        blood = np.float32(0.40) * heart * (1 - self.hidden)
        shadows: Layer = self.vessels * (1 - np.float32(0.75) * heart) + self.bones * (1 - np.float32(0.8) * heart)
        return self.solid + shadows - self._air(heart) + blood

    def aeration(self) -> Layer:
        """Return the attenuation (H, W) that fluid instead of air would add to the lungs."""
        return self._air(self.heart_thickness)

    def _air(self, heart: Layer) -> Layer:
        # The heart displaces part of the air around it.
        return np.float32(1.55) * self.air() * (1 - np.float32(0.97) * heart)


def heart_layer(frame: Frame, *contours: Points) -> Layer:
    """Return the thickness (H, W) in [0, 1] of a heart with the union of the outlines."""
    return blur(dome(frame.fill(*contours), frame.length(0.22), 0.5), frame.length(0.008))


def draw_anatomy(rng: np.random.Generator, height: int, width: int, *, shapes_only: bool = False) -> Anatomy:
    """Draw a healthy chest with random pose and build; with `shapes_only` only lungs, ribs and heart."""
    side = min(height, width)
    scale, shift = side / 2 * rng.uniform(0.93, 1.12), rng.normal(0, 0.025, 2) * side
    center = (width / 2 + shift[0], height / 2 + shift[1] + 0.03 * side)
    frame = Frame(height, width, scale, rng.normal(0, np.radians(2.0)), center)
    build = Build(rng)
    lungs = (_lung(frame, build, -1), _lung(frame, build, 1))
    ribs = tuple(rib for lung in lungs for rib in build_ribs(rng, build, lung.side, lung.contour))
    heart = build.warp(_heart(build))
    thickness = heart_layer(frame, heart)
    if shapes_only:
        empty = np.zeros((height, width), np.float32)
        return Anatomy(frame, lungs, ribs, heart, thickness, empty, empty, empty, empty)
    column = [(0.12, -1.6), (0.13, -0.95), (0.12, -0.62), (0.135, -0.30), (0.13, 0.0), (0.12, 0.4), (0.15, 0.8)]
    half, level = frame.halved(), 0.43 + sum(build.inspiration) / 2
    mediastinum = frame.doubled(blur(half.fill(build.outline([*column, (0.2, 1.6)])), half.length(0.04)))
    belly = smooth_step(frame.grid()[1] / np.float32(build.tallness), level, level + 0.14)
    solid = tissue_layer(rng, frame, build, [lung.hilum for lung in lungs], mediastinum)
    solid += skeleton_layer(rng, frame, build)
    bones = rib_cage(rng, frame, ribs, lungs[0].air + lungs[1].air)
    vessels = _lung_markings(rng, frame, lungs)
    return Anatomy(frame, lungs, ribs, heart, thickness, bones, np.maximum(mediastinum, belly), vessels, solid)


def _lung(frame: Frame, build: Build, side: int) -> Lung:
    # The right dome is higher because of the liver below it.
    down = build.inspiration[(side + 1) // 2] + (0.05 if side == 1 else 0.0)
    lateral = [(0.15, -0.66), (0.19, -0.77), (0.29, -0.82), (0.42, -0.75), (0.54, -0.57), (0.63, -0.32)]
    lateral += [(0.69, -0.03), (0.72, 0.28), (0.735, 0.50 + 0.8 * down), (0.73, 0.62 + 0.8 * down)]
    base = [(0.73, 0.62 + 0.8 * down), (0.66, 0.53 + 0.9 * down), (0.54, 0.45 + down), (0.40, 0.415 + down)]
    base += [(0.25, 0.43 + down), (0.09, 0.50 + down)]
    # The left lung recedes at the arch of the aorta.
    aorta = [(0.15, -0.23), (0.185, -0.33), (0.15, -0.43)] if side == 1 else [(0.13, -0.25), (0.125, -0.42)]
    medial = [(0.09, 0.50 + down), (0.085, 0.20), (0.10, -0.10), *aorta, (0.13, -0.56)]
    medial += [(0.15, -0.66)]
    # Three separate curves keep the costophrenic angle sharp.
    contour = np.concatenate([build.curve(part, side)[:-1] for part in (lateral, base, medial)])
    coverage = blur(frame.fill(contour), frame.length(0.006))
    hilum = build.warp(np.array([side * 0.15, -0.04 if side == -1 else -0.08]))
    return Lung(side, contour, hilum, coverage > 0.5, dome(coverage, frame.length(0.26), 0.42))


def _heart(build: Build) -> Points:
    outline = [(0.0, -0.22), (0.14, -0.20), (0.215, -0.08), (0.30, 0.04), (0.39, 0.19), (0.435, 0.34)]
    outline += [(0.43, 0.46), (0.34, 0.56), (0.18, 0.60), (0.0, 0.57), (-0.13, 0.50), (-0.19, 0.34)]
    outline += [(-0.185, 0.16), (-0.135, 0.0), (-0.11, -0.15)]
    points = np.array(outline, dtype=np.float64)
    points[:, 0] *= build.heart
    points[:, 1] += 0.35 * sum(build.inspiration) * np.clip(points[:, 1] + 0.2, 0, None)
    return smooth_curve(points, closed=True)


def _lung_markings(rng: np.random.Generator, frame: Frame, lungs: tuple[Lung, Lung]) -> Layer:
    right, left = (_vessel_tree(rng, lung.hilum, lung.side) for lung in lungs)
    strokes = frame.stroke(right[0] + left[0], right[1] + left[1], right[2] + left[2])
    tree = blur(strokes, max(frame.length(0.004), 0.4))
    air = lungs[0].air + lungs[1].air
    texture = band_noise(rng, frame, 0.03) + band_noise(rng, frame, 0.013)
    gain, grain = rng.uniform(0.30, 0.46), rng.uniform(0.02, 0.045)
    return np.float32(gain) * tree * np.minimum(np.float32(1.3) * air, 1) + np.float32(grain) * texture * air
