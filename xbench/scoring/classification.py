"""Recognition scores per finding: AUROC, average precision, F1 and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xbench.scoring.numbers import recognition_macro, recognition_numbers


@dataclass(frozen=True)
class ClassificationScores:
    """Scores of one finding in [0, 1], and the number of images labeled 1 and 0."""

    auroc: float | None  # area under the ROC curve, ties count one half; None unless both labels are present
    average_precision: float | None  # step-wise area under the precision-recall curve; None unless both are present
    f1: float | None  # of `probability >= 0.5`; None without a positive
    accuracy: float | None  # of `probability >= 0.5`; None without a labeled image
    positives: int
    negatives: int


@dataclass(frozen=True)
class MacroScores:
    """Means over the findings with both labels, and their number; None without such findings."""

    auroc: float | None
    average_precision: float | None
    f1: float | None
    accuracy: float | None
    classes: int


def classification_scores(labels: Tensor, probabilities: Tensor) -> list[ClassificationScores]:
    """Return the scores of each finding from all images at once; processes are not synchronized.

    Ranking is exact: torchmetrics' areas, based on float32 rates, err in the seventh digit. Labels (N, C) are integers:
    1 positive, 0 negative, -1 unknown and left out. Probabilities (N, C) are in [0, 1] where the label is known; use
    float64, because in float32 confident scores near 1 tie. ValueError for other input.

    Examples:
        >>> labels = torch.tensor([[1], [0], [1], [-1]])
        >>> probabilities = torch.tensor([[0.9], [0.6], [0.5], [0.1]], dtype=torch.float64)
        >>> classification_scores(labels, probabilities)[0]  # doctest: +NORMALIZE_WHITESPACE
        ClassificationScores(auroc=0.5, average_precision=0.8333333333333333, f1=0.8, accuracy=0.6666666666666666,
                             positives=2, negatives=1)
    """
    if labels.ndim != 2 or labels.shape != probabilities.shape:
        raise ValueError(
            f"labels and probabilities must both be (N, C), not {tuple(labels.shape)} and {tuple(probabilities.shape)}"
        )
    if labels.dtype in (torch.bool, torch.uint8) or labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels must be signed integers (1, 0, -1), not {labels.dtype}")
    if not probabilities.is_floating_point():
        raise ValueError(f"probabilities must be floating, not {probabilities.dtype}")
    if ((labels < -1) | (labels > 1)).any():
        raise ValueError(f"labels must be 1, 0 or -1, but {sorted(set(labels.unique().tolist()) - {-1, 0, 1})} occur")
    wrong = (labels >= 0) & ~((probabilities >= 0) & (probabilities <= 1))
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(f"probability {probabilities[row, column]} of image {row}, class {column} is not in [0, 1]")
    return [
        ClassificationScores(**recognition_numbers(label.numpy(), probability.numpy()))
        for label, probability in zip(labels.cpu().to(torch.int8).T, probabilities.cpu().double().T, strict=True)
    ]


def macro(scores: Sequence[ClassificationScores]) -> MacroScores:
    """Average without weights over the findings with both labels, the same findings for all four scores.

    Examples:
        >>> one = ClassificationScores(0.5, 0.75, 0.5, 0.5, positives=2, negatives=2)
        >>> no_negative = ClassificationScores(None, None, 1.0, 1.0, positives=2, negatives=0)
        >>> macro([one, no_negative])
        MacroScores(auroc=0.5, average_precision=0.75, f1=0.5, accuracy=0.5, classes=1)
    """
    classes = sum(bool(score.positives and score.negatives) for score in scores)
    return MacroScores(**recognition_macro([vars(score) for score in scores]), classes=classes)
