"""Recognition scores of a sample, with how far they may be from the truth."""

from __future__ import annotations

import numpy as np

from xbench.report.statistics.intervals import Spread, auroc, average_precision, f1, share
from xbench.report.statistics.sample import Sample

__all__ = ["RECOGNITION", "recognition"]

RECOGNITION = ("auroc", "average_precision", "f1", "accuracy")


def recognition(sample: Sample) -> dict[str, list[Spread | None]]:
    """Return AUROC, average precision, F1 and accuracy of each finding.

    The values are those of `xbench.metrics.classification_scores`, and None where it gives None: AUROC and average
    precision need both labels, F1 a positive, accuracy an image whose label is known.
    """
    columns = [_of_finding(sample, column) for column in range(len(sample.findings))]
    return {name: [spreads[name] for spreads in columns] for name in RECOGNITION}


def _of_finding(sample: Sample, column: int) -> dict[str, Spread | None]:
    known = sample.labels[:, column] >= 0
    present, scores = sample.labels[known, column] == 1, sample.probabilities[known, column]
    said, clusters, count = scores >= 0.5, sample.image_cluster[known], len(sample.clusters)
    both = present.any() and not present.all()
    return {
        "auroc": auroc(present, scores, clusters, count) if both else None,
        "average_precision": average_precision(present, scores, clusters, count) if both else None,
        "f1": f1(present, said, clusters, count) if present.any() else None,
        "accuracy": share((said == present).astype(np.float64), clusters, count) if len(present) else None,
    }
