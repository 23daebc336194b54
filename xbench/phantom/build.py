"""What differs from patient to patient: pose and build."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xbench.phantom.canvas import Frame, Points


@dataclass(frozen=True)
class Build:
    """A patient's proportions, around those of the model patient.

    Attributes:
        breadth: Of the chest, relative.
        tallness: Of the chest, relative.
        twist: Rotation of the trunk, which makes one side broader.
        lean: Bend of the trunk to one side.
        inspiration: How much lower the right and the left diaphragm stand, in units of the patient's frame.
        heart: Breadth of the heart, relative.
        fat: Soft tissue over the ribs, in [0, 1].
    """

    breadth: float
    tallness: float
    twist: float
    lean: float
    inspiration: tuple[float, float]
    heart: float
    fat: float

    @staticmethod
    def random(rng: np.random.Generator) -> Build:
        """A patient."""
        depth = rng.normal(0, 0.045)
        return Build(
            breadth=rng.uniform(0.92, 1.08),
            tallness=rng.uniform(0.93, 1.07),
            twist=rng.normal(0, 0.035),
            lean=rng.normal(0, 0.02),
            inspiration=(depth + rng.normal(0, 0.012), depth + rng.normal(0, 0.012)),
            heart=rng.uniform(0.88, 1.06),
            fat=rng.uniform(0.0, 1.0),
        )

    def warp(self, points: Points) -> Points:
        """Points (..., 2) of the model patient in this one."""
        x, y = points[..., 0], points[..., 1]
        warped = np.empty_like(points)
        warped[..., 0] = self.breadth * (x + self.twist * (x * x - 0.3) + self.lean * y * y)
        warped[..., 1] = self.tallness * y
        return warped


def random_pose(rng: np.random.Generator, height: int, width: int) -> Frame:
    """How the patient stands before the detector."""
    side = min(height, width)
    scale = side / 2 * rng.uniform(0.93, 1.12)
    shift = rng.normal(0, 0.025, 2) * side
    centre = (width / 2 + shift[0], height / 2 + shift[1] + 0.03 * side)
    return Frame(height, width, scale, rng.normal(0, np.radians(2.0)), centre)


def mirrored(points: list[tuple[float, float]], side: int) -> Points:
    """Points given for the left side of the patient, on side -1 (right) or +1 (left)."""
    moved: Points = np.array(points, dtype=np.float64) * np.array([side, 1.0])
    return moved


def ring(centre: tuple[float, float], breadth: float, tallness: float) -> Points:
    """An ellipse (24, 2) with the given half axes."""
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    return np.stack([centre[0] + breadth * np.cos(angles), centre[1] + tallness * np.sin(angles)], -1)
