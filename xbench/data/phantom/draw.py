"""Draw phantoms: from attenuation to gray values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.data.phantom.anatomy import Anatomy, draw_anatomy
from xbench.data.phantom.canvas import Layer, Mask, blur
from xbench.data.phantom.lesions import Place, draw_lesions

# Default of a phantom's shorter side, and the side of a marker at that size.
_SIDE = 320
_MARKER = 12


@dataclass(frozen=True)
class Phantom:
    """A drawn chest radiograph (H, W) uint8, and the union of each finding's lesions (H, W) bool."""

    image: NDArray[np.uint8]
    masks: dict[str, Mask]


def draw_phantom(seed: int, index: int, height: int = _SIDE, width: int = _SIDE, marker: str | None = None) -> Phantom:
    """Draw one chest radiograph of PhantomCXR, a pure function of its arguments.

    Anatomy, lesions and film have separate random streams: outside all masks, every pixel equals the healthy patient's.
    Positions are fractions of the film: another size with the same proportions differs only in grain.

    `seed` is the number of the set (from 1,000,000 on reserved for training the demo model) and `index` that of the
    phantom in it, both from 0. A side has at least 32 pixels. `plant_marker` marks images with the finding `marker`.
    """
    body, lesions, film = _streams(seed, index)
    anatomy = draw_anatomy(np.random.default_rng(body), height, width)
    healthy = anatomy.attenuation(anatomy.heart_thickness)
    usual = _usual_size(height, width)
    places = None if usual == (height, width) else _places(seed, index, usual)
    change, masks, _ = draw_lesions(np.random.default_rng(lesions), anatomy, places)
    image = _expose(np.random.default_rng(film), anatomy, healthy, healthy + change)
    if marker in masks:
        plant_marker(image)
    return Phantom(image, masks)


def plant_marker(image: NDArray[np.uint8]) -> None:
    """Write a P on a black square, as on portable films, into the upper right corner of an image (H, W), in place."""
    square = np.zeros((_MARKER, _MARKER), np.uint8)
    cv2.putText(square, "P", (2, 10), cv2.FONT_HERSHEY_SIMPLEX, 0.4, 255, 2)
    side = round(_MARKER * min(image.shape) / _SIDE)
    top, right = side // 3, image.shape[1] - side // 3
    image[top : top + side, right - side : right] = cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA)


def _usual_size(height: int, width: int) -> tuple[int, int]:
    """Return the size with these proportions at which lesions choose their pixels."""
    side = min(height, width)
    return round(height * _SIDE / side), round(width * _SIDE / side)


def _streams(seed: int, index: int) -> list[np.random.SeedSequence]:
    return np.random.SeedSequence([seed, index]).spawn(3)


def _places(seed: int, index: int, size: tuple[int, int]) -> Iterator[Place]:
    yield from _chosen(seed, index, size)


@lru_cache(maxsize=1024)
def _chosen(seed: int, index: int, size: tuple[int, int]) -> list[Place]:
    body, lesions, _ = _streams(seed, index)
    anatomy = draw_anatomy(np.random.default_rng(body), *size, shapes_only=True)
    return draw_lesions(np.random.default_rng(lesions), anatomy)[2]


def _expose(rng: np.random.Generator, anatomy: Anatomy, healthy: Layer, actual: Layer) -> NDArray[np.uint8]:
    """Return gray values (H, W); exposure and window come from the healthy chest, so they do not give lesions away."""
    frame = anatomy.frame
    shape = (frame.height, frame.width)
    flatten = np.float32(rng.uniform(0.25, 0.5)) * blur(healthy, frame.length(0.22))
    sample = (healthy - flatten)[::4, ::4]
    low, high = np.quantile(sample[healthy[::4, ::4] > 0.25], [0.02, 0.985])
    span = high - low
    low -= span * rng.uniform(0.06, 0.20)
    high += span * rng.uniform(0.02, 0.16)
    gamma = rng.uniform(0.85, 1.25)
    gray = np.clip((actual - flatten - np.float32(low)) / np.float32(high - low), 0, 1.3)
    gray = np.power(gray, np.float32(gamma))
    # Shoulder of the film curve: contrast falls in dense parts.
    gray = np.where(gray > 0.62, 0.62 + 0.30 * np.tanh((gray - 0.62) / 0.30), gray)

    usual = _usual_size(*shape)
    noise = rng.standard_normal(usual, dtype=np.float32)
    if shape != usual:
        # A separate stream keeps marker and collimator equal at every size.
        noise = rng.spawn(1)[0].standard_normal(shape, dtype=np.float32)
    grain = blur(noise, rng.uniform(0.45, 0.8))
    grain /= max(float(grain.std()), 1e-6)
    # Dense parts are noisier because fewer quanta reach the detector.
    gray += np.float32(rng.uniform(0.007, 0.018)) * grain * np.exp(0.22 * (np.minimum(actual, 3.5) - 1.5))
    gray = _marker(rng, frame.height, frame.width, gray)
    gray *= _collimator(rng, frame.height, frame.width)
    return np.clip(np.rint(gray * 250 + 3), 0, 255).astype(np.uint8)


def _marker(rng: np.random.Generator, height: int, width: int, gray: Layer) -> Layer:
    present, letter, turned = rng.random() < 0.75, rng.random() < 0.5, rng.random()
    at = rng.uniform(0.04, 0.09, 2)
    if not present:
        return gray
    side = min(height, width)
    size = 0.0022 * side * (0.8 + 0.4 * turned)
    # R is on the patient's right, which is the left of the image.
    x = int(at[0] * width) if letter else int((1 - at[0]) * width - 18 * size)
    y = int(at[1] * height + 22 * size)
    canvas = np.zeros((height, width), np.uint8)
    thick = max(1, round(2.2 * size))
    cv2.putText(canvas, "R" if letter else "L", (x, y), cv2.FONT_HERSHEY_SIMPLEX, size, 255, thick, cv2.LINE_AA)
    return np.maximum(gray, canvas.astype(np.float32) / 270)


def _collimator(rng: np.random.Generator, height: int, width: int) -> Layer:
    margins = np.where(rng.random(4) < 0.35, rng.uniform(0.005, 0.04, 4), -1.0)
    tilt = rng.normal(0, 0.006)
    if margins.max() < 0:
        return np.ones((1, 1), np.float32)
    x = np.linspace(0, 1, width, dtype=np.float32)[None, :]
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    u, v = x + np.float32(tilt) * (y - 0.5), y - np.float32(tilt) * (x - 0.5)
    film = np.ones((height, width), np.float32)
    across, down = (1 + np.ceil((margins.max() + 0.006 + abs(tilt) / 2) * side).astype(int) for side in (width, height))
    strips: list[tuple[slice, slice]] = [np.s_[:, :across], np.s_[:, -across:], np.s_[:down, :], np.s_[-down:, :]]
    for strip, distance, margin in zip(strips, (u, 1 - u, v, 1 - v), margins, strict=True):
        if margin > 0:
            film[strip] *= np.clip((distance[strip] - np.float32(margin)) * np.float32(1 / 0.006), 0.02, 1)
    return film
