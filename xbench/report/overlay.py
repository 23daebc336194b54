"""The map over a film: every picture of it, in reports, predictions and W&B, is drawn by what stands here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_RAMP = np.array([(0x73, 0x1A, 0x05), (0xDB, 0x52, 0x08), (0xFA, 0x9E, 0x1A), (0xFF, 0xE0, 0x73)], np.float64)
_CLEAR = 0.18
"""Up to this value the map is clear, so that the film can be seen."""
_STEPS = 40
"""As many colours look the same as all of them, and weigh less in a file."""


def coloured(saliency: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a map (H, W) in [0, 1] as red, green, blue and opacity (H, W, 4); what is low is clear."""
    steps = np.round(saliency.astype(np.float64) * _STEPS) / _STEPS
    place = steps * (len(_RAMP) - 1)
    first = np.clip(place.astype(np.int64), 0, len(_RAMP) - 2)
    share = (place - first)[..., None]
    colour = _RAMP[first] * (1 - share) + _RAMP[first + 1] * share
    opacity = 200 * np.clip((steps - _CLEAR) / (1 - _CLEAR), 0, 1) ** 0.8
    return np.concatenate([colour, opacity[..., None]], axis=-1).round().astype(np.uint8)


def tinted(film: NDArray[np.uint8], saliency: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a film (H, W) under a map (H, W) in [0, 1], as red, green and blue (H, W, 3)."""
    over = coloured(saliency).astype(np.float64)
    weight = over[..., 3:] / 255
    mixed: NDArray[np.float64] = film[..., None] * (1 - weight) + over[..., :3] * weight
    return mixed.round().astype(np.uint8)
