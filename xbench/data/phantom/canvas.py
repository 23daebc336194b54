"""Draw curves in the patient's frame as anti-aliased layers of pixels.

One unit of the frame is half the thorax height, about 20 cm; x points right in the image, y down, from the middle of
the chest. The patient's right side is on the left of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Layer = NDArray[np.floating]
Mask = NDArray[np.bool_]

# Fractional bits of OpenCV's fixed-point coordinates.
_SHIFT = 4


@dataclass(frozen=True)
class Frame:
    """Position of the patient's frame in an image: a unit is `scale` pixels, rotated clockwise by `angle` radians."""

    height: int
    width: int
    scale: float
    angle: float
    center: tuple[float, float]

    def pixels(self, points: Points) -> Points:
        """Convert points (..., 2) of the patient's frame to pixels."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        turned: Points = points @ (self.scale * np.array([[cos, sin], [-sin, cos]])) + np.array(self.center)
        return turned

    def grid(self) -> tuple[Layer, Layer]:
        """Return the patient's x and y at every pixel center, two layers (H, W)."""
        x = np.arange(self.width, dtype=np.float32)[None, :] - np.float32(self.center[0])
        y = np.arange(self.height, dtype=np.float32)[:, None] - np.float32(self.center[1])
        cos, sin = np.float32(np.cos(self.angle) / self.scale), np.float32(np.sin(self.angle) / self.scale)
        return x * cos + y * sin, y * cos - x * sin

    def units(self, x: float, y: float) -> Points:
        """Convert a pixel to a point (2,) of the patient's frame."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        dx, dy = x - self.center[0], y - self.center[1]
        return np.array([dx * cos + dy * sin, dy * cos - dx * sin]) / self.scale

    def window(self, point: Points, radius: float) -> tuple[Frame, tuple[slice, slice]]:
        """Return the part of the image within `radius` of a point, as a frame and as rows and columns."""
        x, y = self.pixels(point)
        reach = self.length(radius) + 1
        left, right = (int(np.clip(edge, 0, self.width)) for edge in (x - reach, x + reach + 1))
        top, bottom = (int(np.clip(edge, 0, self.height)) for edge in (y - reach, y + reach + 1))
        center = (self.center[0] - left, self.center[1] - top)
        part = Frame(bottom - top, right - left, self.scale, self.angle, center)
        return part, (slice(top, bottom), slice(left, right))

    def halved(self) -> Frame:
        """Return the same view with pixels of twice the size, for layers without fine detail."""
        center = ((self.center[0] - 0.5) / 2, (self.center[1] - 0.5) / 2)
        return Frame((self.height + 1) // 2, (self.width + 1) // 2, self.scale / 2, self.angle, center)

    def doubled(self, layer: Layer) -> Layer:
        """Return a layer of the halved frame in this frame."""
        size = (2 * layer.shape[1], 2 * layer.shape[0])
        full = np.asarray(cv2.resize(layer, size, interpolation=cv2.INTER_LINEAR), np.float32)
        return full[: self.height, : self.width]

    def length(self, units: float) -> float:
        """Convert a length of the patient's frame to pixels."""
        return units * self.scale

    def fill(self, *contours: Points) -> Layer:
        """Return the coverage (H, W) in [0, 1] of the union of closed contours (N, 2)."""
        canvas = np.zeros((self.height, self.width), np.uint8)
        for contour in contours:
            cv2.fillPoly(canvas, [self._fixed(contour)], 255, cv2.LINE_AA, _SHIFT)
        return np.multiply(canvas, np.float32(1 / 255), dtype=np.float32)

    def stroke(self, curves: Sequence[Points], widths: Sequence[float], strengths: Sequence[float]) -> Layer:
        """Draw open curves (N, 2) over each other, (H, W) in [0, 1]; strokes thinner than a pixel become fainter."""
        canvas = np.zeros((self.height, self.width), np.uint8)
        fixed = self._fixed(np.concatenate(curves))
        ends = np.cumsum([len(curve) for curve in curves]).tolist()
        pieces = [fixed[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        for piece, width, strength in zip(pieces, widths, strengths, strict=True):
            wanted = self.length(width)
            drawn = max(1, round(wanted))
            value = round(255 * strength * min(1.0, wanted / drawn))
            cv2.polylines(canvas, [piece], False, value, drawn, cv2.LINE_AA, _SHIFT)
        return np.multiply(canvas, np.float32(1 / 255), dtype=np.float32)

    def _fixed(self, points: Points) -> NDArray[np.int32]:
        return np.round(self.pixels(points) * (1 << _SHIFT)).astype(np.int32)


def smooth_curve(points: Points, *, closed: bool = False, steps: int = 8) -> Points:
    """Return a uniform Catmull-Rom curve through points (N, 2), with `steps` samples per segment."""
    if closed:
        padded = np.concatenate([points[-1:], points, points[:2]])
    else:
        padded = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    a, b, c, d = padded[:-3, None], padded[1:-2, None], padded[2:-1, None], padded[3:, None]
    t = np.linspace(0, 1, steps, endpoint=False)[None, :, None]
    curve = 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
    curve = curve.reshape(-1, 2)
    return curve if closed else np.concatenate([curve, points[-1:]])


def smooth_step(values: Layer, low: float, high: float) -> Layer:
    """Return 0 below `low`, 1 above `high`, and a cubic between."""
    t: Layer = values - np.float32(low)
    t /= np.float32(high - low)
    np.clip(t, 0, 1, out=t)
    return t * t * (3 - 2 * t)


def blur(layer: Layer, sigma: float) -> Layer:
    """Blur with a Gaussian, sigma in pixels; a wide one on a reduced copy, which looks the same."""
    factor = max(1, int(sigma / 2))
    if factor == 1:
        blurred = cv2.GaussianBlur(layer, (0, 0), max(sigma, 0.1), borderType=cv2.BORDER_REPLICATE)
        return np.asarray(blurred, np.float32)
    height, width = layer.shape
    size = (max(1, width // factor), max(1, height // factor))
    small = cv2.resize(layer, size, interpolation=cv2.INTER_AREA)
    small = cv2.GaussianBlur(small, (0, 0), sigma / factor, borderType=cv2.BORDER_REPLICATE)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR), np.float32)


def dome(coverage: Layer, rim: float, edge: float) -> Layer:
    """Return the thickness of a rounded body from its coverage: `edge` at the border, 1 at `rim` pixels inside."""
    thickness: Layer = np.zeros_like(coverage)
    left, top, width, height = cv2.boundingRect((coverage > 0).astype(np.uint8))
    # With a margin of empty pixels for the distance transform.
    part = slice(max(top - 2, 0), top + height + 2), slice(max(left - 2, 0), left + width + 2)
    covered = coverage[part]
    inside = (covered > 0.5).astype(np.uint8)
    depth = np.asarray(cv2.distanceTransform(inside, cv2.DIST_L2, cv2.DIST_MASK_5), np.float32)
    shallow = np.maximum(depth * np.float32(-1 / rim) + 1, 0)
    thickness[part] = covered * (np.float32(edge) + np.float32(1 - edge) * np.sqrt(1 - shallow * shallow))
    return thickness


def band_noise(rng: np.random.Generator, frame: Frame, size: float) -> Layer:
    """Return Gaussian noise (H, W) of about unit variance, with blobs of `size` in the patient's frame."""
    blob = frame.length(size)
    coarse = rng.standard_normal((int(frame.height / blob) + 2, int(frame.width / blob) + 2), dtype=np.float32)
    fine = cv2.resize(coarse, (frame.width, frame.height), interpolation=cv2.INTER_CUBIC)
    return fine * np.float32(1.3)
