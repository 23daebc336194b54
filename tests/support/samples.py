"""Small samples for tests of statistics, and every number of a sample by plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xbench.report.statistics.sample import Sample


def random_sample(
    seed: int, images: int = 40, findings: int = 3, thresholds: int = 11, per_patient: int = 2, levels: int = 8
) -> Sample:
    draw = np.random.default_rng(seed)
    labels = draw.choice([-1, 0, 1], p=[0.1, 0.5, 0.4], size=(images, findings)).astype(np.int8)
    image, column = np.nonzero((labels == 1) & (draw.random(labels.shape) < 0.8))
    pairs = len(image)
    patients = np.arange(images) // per_patient
    curve = draw.integers(0, 9, (pairs, thresholds)) / 8
    return Sample(
        findings=tuple(f"finding {place}" for place in range(findings)),
        clustered_by="patients",
        clusters=tuple(f"patient {place:03d}" for place in range(patients.max() + 1)),
        image_ids=tuple(f"image {place:03d}" for place in range(images)),
        image_cluster=patients,
        labels=labels,
        probabilities=draw.integers(0, levels, labels.shape) / (levels - 1),
        pair_image=image,
        pair_column=column,
        hit=draw.choice([0.0, 0.5, 1.0], size=pairs),
        dice=curve,
        iou=curve / (2 - curve),
        area=draw.uniform(0.01, 0.5, pairs),
        region=np.full(pairs, b"0123456789abcdef"),
        row=np.arange(pairs),
    )


def scored_by_another(sample: Sample, seed: int) -> Sample:
    draw = np.random.default_rng(seed)
    dice = draw.integers(0, 9, sample.dice.shape) / 8
    return replace(
        sample,
        probabilities=draw.integers(0, 8, sample.probabilities.shape) / 7,
        hit=draw.choice([0.0, 0.5, 1.0], size=len(sample.hit)),
        dice=dice,
        iou=dice / (2 - dice),
    )


def of_images(sample: Sample, images: Sequence[int]) -> Sample:
    images = np.array([*images])
    new = np.full(len(sample.image_ids), -1)
    new[images] = np.arange(len(images))
    sample = sample.with_pairs(new[sample.pair_image] >= 0)
    clusters = np.unique(sample.image_cluster[images])
    return replace(
        sample,
        clusters=tuple(sample.clusters[place] for place in clusters),
        image_ids=tuple(sample.image_ids[place] for place in images),
        image_cluster=np.searchsorted(clusters, sample.image_cluster[images]),
        labels=sample.labels[images],
        probabilities=sample.probabilities[images],
        pair_image=new[sample.pair_image],
    )


def plain_numbers(sample: Sample, folds: np.ndarray, column: int) -> dict[str, float]:
    """Every grounding number of a finding, by definition; NaN where it does not exist."""
    nan = float("nan")
    pairs = [pair for pair in range(len(sample.hit)) if sample.pair_column[pair] == column]
    numbers = dict.fromkeys(("pointing_game", "dice_best", "iou_best", "dice_fixed", "iou_fixed"), nan)
    numbers |= dict.fromkeys(("dice_cross_fitted", "iou_cross_fitted", "dice_optimism", "dice_gap"), nan)
    if pairs:
        middle = sample.dice.shape[1] // 2
        numbers["pointing_game"] = float(np.mean([sample.hit[pair] for pair in pairs]))
        for name in ("dice", "iou"):
            scores = getattr(sample, name)
            means = [np.mean([scores[pair, t] for pair in pairs]) for t in range(scores.shape[1])]
            numbers[f"{name}_best"], numbers[f"{name}_fixed"] = float(max(means)), float(means[middle])
            numbers[f"{name}_cross_fitted"] = plain_cross_fitted(scores, folds, pairs)
    numbers["dice_optimism"] = numbers["dice_best"] - numbers["dice_cross_fitted"]
    numbers["dice_gap"] = numbers["dice_best"] - numbers["dice_fixed"]
    return numbers


def plain_cross_fitted(scores: np.ndarray, folds: np.ndarray, pairs: Sequence[int]) -> float:
    found = []
    for pair in pairs:
        others = [other for other in pairs if folds[other] != folds[pair]]
        if folds[pair] < 0 or not others:
            return float("nan")
        best = max(range(scores.shape[1]), key=lambda t: (round(sum(scores[o, t] for o in others), 9), -t))
        found.append(scores[pair, best])
    return float(np.mean(found))


def placements(present: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Whether each positive scores above each negative, ties counting half, (positives, negatives)."""
    positive, negative = scores[present][:, None], scores[~present]
    return (positive > negative) + 0.5 * (positive == negative)


def delong(present: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Difference of two AUROCs on the same images and its standard error, after DeLong and others (1988)."""
    one, other = placements(present, first), placements(present, second)
    differences = one.mean(1) - other.mean(1), one.mean(0) - other.mean(0)
    return differences[0].mean(), np.sqrt(sum(values.var(ddof=1) / len(values) for values in differences))
