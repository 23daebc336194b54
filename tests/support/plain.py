"""The scores once more, as slow loops that follow docs/numbers.md word by word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pointing(saliency: np.ndarray, region: np.ndarray, ties: str = "share") -> float:
    """Whether the peak of a map lies in its region; `ties` says what counts of several peaks."""
    inside = region[saliency == saliency.max()]
    return {"share": inside.sum() / len(inside), "any": float(inside.any()), "first": float(inside[0])}[ties]


def overlaps(saliency: np.ndarray, region: np.ndarray, steps: int = 100) -> tuple[list[float], list[float]]:
    """Dice and IoU of a map brought to [0, 1], at the thresholds k / steps, compared as float32."""
    spread = saliency.max() - saliency.min()
    scaled = (saliency - saliency.min()) / spread if spread > 0 else np.zeros_like(saliency)
    dice, iou = [], []
    for k in range(steps + 1):
        mask = scaled >= np.float32(k / steps)
        both, either = (mask & region).sum(), (mask | region).sum()
        dice.append(2 * both / (mask.sum() + region.sum()))
        iou.append(both / either)
    return dice, iou


def auroc(labels: Sequence[int], scores: Sequence[float]) -> float:
    """Share of (positive, negative) pairs in the right order, ties one half."""
    positive = [score for score, label in zip(scores, labels, strict=True) if label == 1]
    negative = [score for score, label in zip(scores, labels, strict=True) if label == 0]
    wins = sum(1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


def average_precision(labels: Sequence[int], scores: Sequence[float]) -> float:
    """Sum over the distinct scores, highest first, of the gain in recall times the precision there."""
    known = [(score, label) for score, label in zip(scores, labels, strict=True) if label >= 0]
    positives = sum(label for _, label in known)
    total, before = 0.0, 0.0
    for least in sorted({score for score, _ in known}, reverse=True):
        chosen = [label for score, label in known if score >= least]
        recall = sum(chosen) / positives
        total += (recall - before) * sum(chosen) / len(chosen)
        before = recall
    return total
