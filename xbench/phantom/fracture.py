"""Rib fractures: a gap, a step, and broken ends that stand off the line."""

from __future__ import annotations

import numpy as np

from xbench.phantom.anatomy import Anatomy
from xbench.phantom.canvas import Frame, Layer, Mask, Points, blur, smooth_step
from xbench.phantom.skeleton import Rib, rib_layer


def draw_fracture(rng: np.random.Generator, anatomy: Anatomy) -> tuple[Layer, Mask]:
    """One broken rib.

    Args:
        rng: Source of chance.
        anatomy: The healthy chest.

    Returns:
        The change of attenuation (H, W), 0 outside the mask, and the mask (H, W) bool round the break.
    """
    rib, at = _site(rng, anatomy)
    frame, part = anatomy.frame.window(rib.curve[at], 4 * rib.width)
    back = at <= rib.turn
    curve = rib.curve[: rib.turn + 3] if back else rib.curve[rib.turn :]
    point = rib.curve[at]
    along = rib.curve[at + 1] - rib.curve[at - 1]
    along /= np.hypot(*along)
    across = np.array([-along[1], along[0]])

    dense = _dense(curve)
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
    ends = [_end(piece, across, rib.width) for piece in (moved[:2], stays[-2:]) if len(piece)]
    new += np.float32(0.55) * blur(frame.stroke(ends, [0.013] * len(ends), [1.0] * len(ends)), frame.length(0.003))

    x, y = frame.grid()
    middle = (point + offset / 2 * across).astype(np.float32)
    distance = np.hypot(x - middle[0], y - middle[1])
    reach = rng.uniform(1.35, 1.75) * rib.width
    window = 1 - smooth_step(distance, 0.7 * reach, reach)
    change = np.float32(0.58 if back else 0.52) * window * (new - old)
    mask = _covering(frame, window, change)
    whole = np.zeros_like(anatomy.solid), np.zeros(anatomy.solid.shape, bool)
    whole[0][part], whole[1][part] = np.where(mask, change, 0), mask
    return whole


def _site(rng: np.random.Generator, anatomy: Anatomy) -> tuple[Rib, int]:
    frame = anatomy.frame
    lowest = max(lung.contour[:, 1].max() for lung in anatomy.lungs) - 0.12
    margin = 0.03 * min(frame.height, frame.width)
    sites = []
    for rib in anatomy.ribs[1:9] + anatomy.ribs[11:19]:
        # The front ends are too faint on a film for a break to be seen there.
        for at in range(4, rib.turn + 6):
            x, y = frame.pixels(rib.curve[at])
            inside = margin < x < frame.width - margin and margin < y < frame.height - margin
            if inside and rib.curve[at][1] < lowest:
                sites.append((rib, at))
    return sites[rng.integers(len(sites))]


def _dense(curve: Points) -> Points:
    steps = np.linspace(0, len(curve) - 1, 12 * len(curve))
    knots = np.arange(len(curve))
    return np.stack([np.interp(steps, knots, curve[:, 0]), np.interp(steps, knots, curve[:, 1])], -1)


def _end(piece: Points, across: Points, width: float) -> Points:
    corners: Points = piece[0] + np.array([[-0.45], [0.45]]) * width * across
    return corners


def _covering(frame: Frame, window: Layer, change: Layer) -> Mask:
    """The pixels that changed visibly, without the holes between them."""
    visible = (np.abs(change) > 0.03).astype(np.float32)
    return (blur(visible, max(frame.length(0.008), 0.8)) > 0.25) & (window > 0.05)
