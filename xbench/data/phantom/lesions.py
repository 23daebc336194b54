"""Draw the findings: their presence, positions and pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from xbench.data.phantom.anatomy import Anatomy, Lung, Rib, heart_layer, rib_contrast, rib_layer
from xbench.data.phantom.canvas import Layer, Mask, Points, band_noise, blur, smooth_step
from xbench.findings.names import FINDINGS as FINDINGS_BY_DATASET

FINDINGS = FINDINGS_BY_DATASET["phantom"]

# Findings are independent, so that one does not predict another; 0.84 ** 8 = 25% of films are normal.
_PREVALENCE = 0.16

# Soft-edged lesions are cut off below this share of their peak, where they are invisible, in film and mask.
_CUT = 0.12

_SLACK = 12

_Change = tuple[Layer, Mask]
_Choice = Callable[[np.random.Generator, float], Points]
_Range = tuple[float, float]


@dataclass(frozen=True)
class Place:
    """A point (2,) of the patient's frame in the free lung, and the number of pixels that it was chosen from."""

    pixels: int
    point: Points


def draw_lesions(
    rng: np.random.Generator, anatomy: Anatomy, places: Iterator[Place] | None = None
) -> tuple[Layer, dict[str, Mask], list[Place]]:
    """Draw the lesions of one chest, at `places` if a drawing of another size determined them.

    Return the change of attenuation (H, W), exactly 0 outside the masks; the union of lesions (H, W), bool, by finding;
    and the positions of lesions that may lie anywhere in the lungs.
    """
    chances = rng.random(len(FINDINGS))
    present = {finding for finding, chance in zip(FINDINGS, chances, strict=True) if chance < _PREVALENCE}
    total = np.zeros_like(anatomy.solid)
    chosen: list[Place] = []
    masks: dict[str, Mask] = {}
    room = (anatomy.lungs[0].mask | anatomy.lungs[1].mask) & (anatomy.heart_thickness < 0.05)
    for finding, draw, number in _PLAN:
        # Each finding has its own stream, so that its presence does not move others.
        own = np.random.default_rng(rng.integers(0, 2**63, 4))
        if finding not in present:
            continue
        mask = np.zeros(total.shape, bool)
        for _ in range(1 + int(own.choice(len(number), p=number))):
            change, region = draw(own, anatomy, partial(_place, anatomy, room & ~mask, places, chosen))
            total += change
            mask |= region
        if mask.any():
            masks[finding] = mask
        if finding in ("Cardiomegaly", "Pleural Effusion", "Pneumothorax"):
            room &= ~mask
    return total, {finding: masks[finding] for finding in FINDINGS if finding in masks}, chosen


def _soft(profile: Layer, strength: Layer | float) -> _Change:
    body = np.clip((profile - np.float32(_CUT)) * np.float32(1 / (1 - _CUT)), 0, None)
    mask = body > 0.02
    return np.where(mask, body * strength, np.float32(0)), mask


def _place(
    anatomy: Anatomy,
    room: Mask,
    places: Iterator[Place] | None,
    chosen: list[Place],
    rng: np.random.Generator,
    margin: float,
) -> Points:
    if places is not None:
        place = next(places)
        # Advance the stream equally at every size.
        rng.integers(place.pixels)
        return place.point
    inner = np.flatnonzero(blur(room.astype(np.float32), anatomy.frame.length(margin)) > 0.80)
    if not len(inner):
        inner = np.flatnonzero(room if room.any() else anatomy.lungs[0].mask | anatomy.lungs[1].mask)
    row, column = divmod(int(inner[rng.integers(len(inner))]), anatomy.frame.width)
    chosen.append(Place(len(inner), anatomy.frame.units(column, row)))
    return chosen[-1].point


def _ball(
    rng: np.random.Generator, anatomy: Anatomy, place: _Choice, radii: _Range, margin: float, core: float, dense: _Range
) -> _Change:
    """Draw a ball that keeps `margin` radii from the border of the lung, opaque up to `core` of its radius."""
    radius = rng.uniform(*radii)
    at, density = place(rng, margin * radius), rng.uniform(*dense)
    frame, part = anatomy.frame.window(at, 1.4 * radius)
    x, y = frame.grid()
    dx, dy = x - np.float32(at[0]), y - np.float32(at[1])
    angle = np.arctan2(dy, dx)
    outline = np.ones_like(angle)
    for order in (2, 3, 4, 5, 7):
        wave = np.cos(order * angle + np.float32(rng.uniform(0, 2 * np.pi)))
        outline += np.float32(0.1 * rng.uniform(0.3, 1.0) / np.sqrt(order)) * wave
    reach = np.hypot(dx, dy) / (np.float32(radius) * outline)
    ball = (1 - np.float32(0.3) * np.minimum(reach, 1) ** 2) * (1 - smooth_step(reach, core, 1.0))
    change, mask = np.zeros(anatomy.solid.shape, np.float32), np.zeros(anatomy.solid.shape, bool)
    change[part], mask[part] = _soft(ball, density)
    return change, mask


def _consolidation(rng: np.random.Generator, anatomy: Anatomy, place: _Choice) -> _Change:
    frame = anatomy.frame
    center = place(rng, 0.05)
    lung = _lung_at(anatomy, center)
    x, y = frame.grid()
    along, across = rng.uniform(0.17, 0.34), rng.uniform(0.15, 0.28)
    tilt = rng.uniform(0, np.pi)
    dx, dy = x - np.float32(center[0]), y - np.float32(center[1])
    cos, sin = float(np.cos(tilt)), float(np.sin(tilt))
    u, v = (dx * cos + dy * sin) / along, (dy * cos - dx * sin) / across
    fluff = band_noise(rng, frame, 0.11) + np.float32(0.6) * band_noise(rng, frame, 0.05)
    reach = np.sqrt(u * u + v * v)
    profile = smooth_step(1 - reach + 0.14 * fluff * np.clip(2 * reach - 0.5, 0, 1), 0.0, 0.6)
    if rng.random() < 0.35:
        # A lobe's border: one side of a nearly level line through the center stays clear.
        line = np.float32(rng.choice([-1, 1])) * (dy + np.float32(rng.uniform(-0.3, 0.3)) * dx) + np.float32(0.05)
        profile = profile * smooth_step(line, 0.0, 0.02)
    profile = profile * smooth_step(lung.air, 0.2, 0.5)
    density = np.float32(rng.uniform(0.5, 0.66)) * (0.9 + 0.07 * fluff)
    bronchi = 1.7 * anatomy.vessels
    return _soft(profile, np.clip(density * anatomy.aeration() - bronchi, 0.15, None))


def _atelectasis(rng: np.random.Generator, anatomy: Anatomy, place: _Choice) -> _Change:
    frame = anatomy.frame
    center = place(rng, 0.08)
    lung = _lung_at(anatomy, center)
    if rng.random() < 0.25:
        # A collapsed segment: a wedge from near the hilum to the pleura.
        away = center - lung.hilum
        away /= max(float(np.hypot(*away)), 1e-6)
        across = np.array([-away[1], away[0]])
        length, spread = rng.uniform(0.28, 0.45), rng.uniform(0.07, 0.13)
        tip, end = lung.hilum + 0.08 * away, lung.hilum + (0.08 + length) * away
        middle = (tip + end) / 2
        outline = [tip, middle + 0.3 * spread * across, end + spread * across, end - spread * across]
        outline.append(middle - 0.3 * spread * across)
        profile = blur(frame.fill(np.stack(outline)), frame.length(0.02))
        return _soft(profile * smooth_step(lung.air, 0.1, 0.4), 0.5 * np.maximum(anatomy.aeration(), 0.4))
    slope = rng.normal(0, 0.35)
    half = rng.uniform(0.11, 0.20)
    direction = np.array([np.cos(slope), np.sin(slope)])
    normal = np.array([-direction[1], direction[0]])
    sag = rng.normal(0, 0.025)
    curves = []
    for shift in [0.0] if rng.random() < 0.6 else [-0.035, 0.035]:
        t = np.linspace(-1, 1, 15)[:, None]
        reach = half * rng.uniform(0.6, 1.0)
        line = center + normal * (shift + sag * (1 - t * t)) + direction * reach * (t + rng.uniform(-0.2, 0.2))
        taper = normal * rng.uniform(0.013, 0.022) * np.sqrt(1 - t * t)
        curves.append(np.concatenate([line + taper, (line - taper)[::-1]]))
    band = frame.fill(*curves)
    profile = blur(band, frame.length(0.010)) * smooth_step(lung.air, 0.1, 0.4)
    return _soft(profile, rng.uniform(0.45, 0.65))


def _effusion(rng: np.random.Generator, anatomy: Anatomy, place: _Choice) -> _Change:
    sides = [(0,), (1,), (0, 1)][rng.choice(3, p=[0.36, 0.36, 0.28])]
    changes, masks = zip(*(_effusion_of(rng, anatomy, anatomy.lungs[side]) for side in sides), strict=True)
    return np.sum(changes, axis=0), np.any(masks, axis=0)


def _effusion_of(rng: np.random.Generator, anatomy: Anatomy, lung: Lung) -> _Change:
    x, y = anatomy.frame.grid()
    outer, floor = np.abs(lung.contour[:, 0]).max(), lung.contour[:, 1].max()
    # The largest effusions leave only the apex aerated.
    height = rng.choice([rng.uniform(0.18, 0.32), rng.uniform(0.32, 0.60), rng.uniform(0.6, 1.7)], p=[0.4, 0.35, 0.25])
    # The meniscus climbs along the side wall and, less, along the mediastinum.
    lateral = np.clip(np.abs(x) / np.float32(outer), 0, 1.1)
    rise = np.clip((lateral - 0.4) / 0.6, 0, None) ** 2 + 0.25 * np.clip((0.4 - lateral) / 0.4, 0, None) ** 2
    climb = 0.10 + 0.22 * min(height, 0.7)
    surface = np.float32(floor - height + climb) - np.float32(climb) * rise
    # Behind the dome, fluid fills the recess, which hides the diaphragm.
    depth = np.array([0.0, rng.uniform(0.08, 0.14)])
    recess = blur(anatomy.frame.fill(lung.contour, lung.contour + depth), anatomy.frame.length(0.02))
    beside = 0.2 * smooth_step(lateral, 0.2, 0.7) * (1 - anatomy.heart_thickness)
    fluid = rng.uniform(0.86, 0.98) * anatomy.aeration() + beside
    profile = np.maximum(recess, np.minimum(8 * lung.air, 1)) * smooth_step(y - surface, 0.0, 0.06)
    near = 0.40 if height < 0.32 else 0.25 if height < 0.6 else 0.0
    profile = profile * smooth_step(lateral, near, near + 0.2) * smooth_step(fluid, 0.04, 0.2)
    return _soft(profile, np.maximum(fluid - 0.8 * anatomy.vessels - 0.7 * anatomy.bones, 0.03))


def _pneumothorax(rng: np.random.Generator, anatomy: Anatomy, place: _Choice) -> _Change:
    frame = anatomy.frame
    lung = anatomy.lungs[rng.integers(2)]
    points = lung.contour
    low, high = points[:, 1].min(), points[:, 1].max()
    level = (points[:, 1] - low) / (high - low)
    outer = np.abs(points[:, 0]) / np.abs(points[:, 0]).max()
    depth = rng.uniform(0.2, 0.48)
    reach = rng.uniform(0.55, 0.86)
    fade = np.clip((reach - level) / 0.35, 0, 1) * np.clip((outer - 0.15 - 0.5 * level) / 0.25, 0, 1)
    inward = (depth * fade)[:, None] * (lung.hilum + np.array([0.0, 0.08]) - points)
    around = np.concatenate([inward[-_SLACK:], inward, inward[:_SLACK]])
    window = np.full(2 * _SLACK + 1, 1 / (2 * _SLACK + 1))
    retracted = points + np.stack([np.convolve(column, window, "valid") for column in around.T], -1)
    left_free = np.clip(frame.fill(points) - frame.fill(retracted), 0, 1) * (lung.air > 0.05)
    mask = (blur(left_free, frame.length(0.004)) > 0.5) & lung.mask
    inside = mask.astype(np.float32)
    emptied = -inside * (anatomy.vessels * 0.95 + np.float32(rng.uniform(0.16, 0.26)) * np.minimum(1.2 * lung.air, 1))
    pleura = blur(frame.stroke([retracted], [0.012], [1.0]), frame.length(0.0055))
    near = (blur(inside, frame.length(0.012)) > 0.15) & lung.mask
    line = np.where(near, np.float32(rng.uniform(0.34, 0.5)) * pleura, 0)
    mask = mask | (line > 0.1)
    return np.where(mask, emptied + line, 0).astype(np.float32), mask


def _cardiomegaly(rng: np.random.Generator, anatomy: Anatomy, place: _Choice) -> _Change:
    normal = anatomy.heart
    breadth, tallness = rng.uniform(1.36, 1.62), rng.uniform(1.02, 1.12)
    middle, bottom = float(normal[:, 0].mean()) - 0.05, float(normal[:, 1].max())
    # The great vessels at the top keep their width.
    level = np.clip((normal[:, 1] - normal[:, 1].min()) / (bottom - normal[:, 1].min()) / 0.45, 0, 1)
    widen = 1 + (breadth - 1) * level
    swollen = np.stack([(normal[:, 0] - middle) * widen + middle, (normal[:, 1] - bottom) * tallness + bottom], -1)
    before, after = anatomy.heart_thickness, heart_layer(anatomy.frame, normal, swollen)
    mask = after > 0.25
    change = anatomy.attenuation(after) - anatomy.attenuation(before)
    return np.where(mask, change, 0).astype(np.float32), mask


def _fracture(rng: np.random.Generator, anatomy: Anatomy, place: _Choice) -> _Change:
    rib, at = _site(rng, anatomy)
    frame, part = anatomy.frame.window(rib.curve[at], 4 * rib.width)
    back = at <= rib.turn
    curve = rib.curve[: rib.turn + 3] if back else rib.curve[rib.turn :]
    point = rib.curve[at]
    along = rib.curve[at + 1] - rib.curve[at - 1]
    along /= np.hypot(*along)
    across = np.array([-along[1], along[0]])

    steps = np.linspace(0, len(curve) - 1, 12 * len(curve))
    dense = np.stack([np.interp(steps, np.arange(len(curve)), line) for line in curve.T], -1)
    position = (dense - point) @ along
    near = np.hypot(*(dense - point).T) < 4 * rib.width
    offset = rng.choice([-1, 1]) * rng.uniform(0.65, 1.05) * rib.width
    angle = rng.normal(0, 0.18)
    gap = rng.uniform(0.010, 0.020)
    far = near & (position > gap)
    moved = dense[far] + offset * across + angle * position[far, None] * across
    stays = dense[near & (position < -gap)]
    old = rib_layer(frame, [dense[near]], [rib.width])
    new = np.maximum(rib_layer(frame, [moved], [rib.width]), rib_layer(frame, [stays], [rib.width]))
    corners = np.array([[-0.45], [0.45]]) * rib.width * across
    ends = [piece[0] + corners for piece in (moved[:2], stays[-2:]) if len(piece)]
    new += np.float32(0.3) * blur(frame.stroke(ends, [0.013] * len(ends), [1.0] * len(ends)), frame.length(0.003))

    x, y = frame.grid()
    middle = (point + offset / 2 * across).astype(np.float32)
    distance = np.hypot(x - middle[0], y - middle[1])
    reach = rng.uniform(1.8, 2.4) * rib.width
    window = 1 - smooth_step(distance, 0.7 * reach, reach)
    change = np.float32(0.50 if back else 0.46) * window * (new - old) * rib_contrast(anatomy.air()[part])
    visible = (np.abs(change) > 0.03).astype(np.float32)
    mask = (blur(visible, max(frame.length(0.008), 0.8)) > 0.25) & (window > 0.05)
    whole = np.zeros_like(anatomy.solid), np.zeros(anatomy.solid.shape, bool)
    whole[0][part], whole[1][part] = np.where(mask, change, 0), mask
    return whole


def _site(rng: np.random.Generator, anatomy: Anatomy) -> tuple[Rib, int]:
    frame = anatomy.frame
    lowest = max(lung.contour[:, 1].max() for lung in anatomy.lungs) - 0.12
    margin = 0.03 * min(frame.height, frame.width)
    sites = []
    for rib in anatomy.ribs[1:9] + anatomy.ribs[11:19]:
        # Ribs are too faint to show a break at the side of the chest and at the front ends.
        for at in (*range(4, rib.turn - 4), rib.turn + 4, rib.turn + 5):
            x, y = frame.pixels(rib.curve[at])
            inside = margin < x < frame.width - margin and margin < y < frame.height - margin
            if inside and rib.curve[at][1] < lowest:
                sites.append((rib, at))
    return sites[rng.integers(len(sites))]


def _lung_at(anatomy: Anatomy, point: Points) -> Lung:
    right, left = anatomy.lungs
    return right if point[0] < (right.hilum[0] + left.hilum[0]) / 2 else left


# In drawing order (those that fill a whole side first), with the probabilities of one, two, ... lesions.
_PLAN: tuple[tuple[str, Callable[[np.random.Generator, Anatomy, _Choice], _Change], tuple[float, ...]], ...] = (
    ("Cardiomegaly", _cardiomegaly, (1.0,)),
    ("Pleural Effusion", _effusion, (1.0,)),
    ("Pneumothorax", _pneumothorax, (1.0,)),
    ("Consolidation", _consolidation, (0.7, 0.3)),
    ("Mass", partial(_ball, radii=(0.085, 0.155), margin=0.7, core=0.35, dense=(0.7, 0.95)), (0.85, 0.15)),
    ("Atelectasis", _atelectasis, (0.6, 0.4)),
    ("Nodule", partial(_ball, radii=(0.024, 0.052), margin=1.3, core=0.3, dense=(0.62, 0.85)), (0.5, 0.3, 0.2)),
    ("Fracture", _fracture, (0.55, 0.3, 0.15)),
)
