"""Recognition scores when images count more than once or not at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from xbench.report.statistics.sample import Sample

__all__ = ["RECOGNITION", "recognition"]

RECOGNITION = ("auroc", "average_precision", "f1", "accuracy")


def recognition(sample: Sample, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return AUROC, average precision, F1 and accuracy per finding, each (B, C).

    They are exactly what `xbench.metrics.classification_scores` gives where every image stands as often as its cluster
    was drawn, and NaN where that gives None: AUROC and average precision need both labels, F1 a positive, accuracy an
    image whose label is known.

    Args:
        sample: The sample.
        weights: How often each cluster is drawn, (K, B), whole numbers.
    """
    columns = [_scores(sample, column, weights) for column in range(len(sample.findings))]
    return {name: np.stack([scores[place] for scores in columns], axis=1) for place, name in enumerate(RECOGNITION)}


def _scores(sample: Sample, column: int, weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    label, score = sample.labels[:, column], sample.probabilities[:, column]
    positive, negative = np.flatnonzero(label == 1), np.flatnonzero(label == 0)
    edges = np.unique(score[positive])

    def summed(images: NDArray[np.int64], group: NDArray[np.int64], groups: int) -> NDArray[np.float64]:
        """Weights of the images in each group, (groups, B)."""
        shape = (groups, len(sample.clusters))
        return csr_array((np.ones(len(images)), (group, sample.image_cluster[images])), shape=shape) @ weights

    # Only the order relative to positives counts. Negatives fall between two scores of positives, or onto one: these
    # are the even and the odd places.
    left, right = (np.searchsorted(edges, score[negative], side) for side in ("left", "right"))
    true = summed(positive, np.searchsorted(edges, score[positive]), len(edges))
    false = summed(negative, left + right, 2 * len(edges) + 1)
    positives, negatives = true.sum(axis=0), false.sum(axis=0)
    up_to = np.cumsum(false, axis=0)
    below, tied = up_to[:-1:2], false[1::2]
    with np.errstate(invalid="ignore", divide="ignore"):
        auroc = (true * (2 * below + tied)).sum(axis=0) / (2 * positives * negatives)
        reached = np.cumsum(true[::-1], axis=0)[::-1]
        said = reached + negatives - below
        precision = np.divide(reached, said, out=np.zeros_like(said), where=said > 0)
        average_precision = np.where(negatives > 0, (true * precision).sum(axis=0) / positives, np.nan)
        decided = [
            summed(images[score[images] >= 0.5], np.zeros(int((score[images] >= 0.5).sum()), np.int64), 1)[0]
            for images in (positive, negative)
        ]
        f1 = np.where(positives > 0, 2 * decided[0] / (decided[0] + decided[1] + positives), np.nan)
        accuracy = (decided[0] + negatives - decided[1]) / (positives + negatives)
    return auroc, average_precision, f1, accuracy
