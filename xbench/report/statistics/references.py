"""Floors and ceilings: what useless and perfect answers score on a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xbench.report.runs import Run
from xbench.report.schema import Estimate, Reference, RunAnalysis
from xbench.report.statistics.chance import chance
from xbench.report.statistics.measures import measure
from xbench.report.statistics.sample import Sample

__all__ = ["references"]

_FLOORS = ("centre", "random")
_AGREEMENT = ("dice_best", "iou_best", "dice_cross_fitted", "iou_cross_fitted", "dice_fixed", "iou_fixed")


def references(run: Run, sample: Sample, instruments: Sequence[RunAnalysis], folds: int) -> tuple[Reference, ...]:
    """Return the floors, then the ceilings.

    Args:
        run: The run whose labels and regions the floors and ceilings without a run are computed from.
        sample: Its sample.
        instruments: The dataset's runs of instruments.
        folds: Folds of cross-fitting.
    """
    # Scores that do not depend on the threshold need no more than two folds.
    whole = measure(whole_image(sample), folds=2)
    floors = [Reference("Whole image", "floor", whole.macro(), whole.findings())]
    ceilings: list[Reference] = []
    if (drawn := chance(run, sample)) is not None:
        of_chance = measure(drawn.sample, folds)
        known = _without_f1(of_chance.macro())
        by_finding = {finding: _without_f1(numbers) for finding, numbers in of_chance.findings().items()}
        floors.append(Reference("Random", "floor", known, by_finding, drawn.spread))
    for analysis in instruments:
        title, macro, findings = analysis.run.label, analysis.macro, analysis.findings
        if analysis.run.model == "random" and drawn is not None:
            # One draw of what stands there already.
            continue
        if analysis.run.model in _FLOORS:
            floors.append(Reference(title, "floor", macro, findings))
        else:
            ceilings.append(Reference(title, "ceiling", macro, findings))
    if (agreement := reader_agreement(run, sample)) is not None:
        of_readers = measure(agreement, folds=2)
        macro = {key: value for key, value in of_readers.macro().items() if key in _AGREEMENT}
        findings = {
            finding: {key: value for key, value in numbers.items() if key in _AGREEMENT}
            for finding, numbers in of_readers.findings().items()
        }
        ceilings.append(Reference("Reader agreement", "ceiling", macro, findings))
    return tuple(floors + ceilings)


def _without_f1(numbers: dict[str, Estimate]) -> dict[str, Estimate]:
    """Leave out F1 and accuracy, which depend on where probabilities lie and not on their order alone."""
    return {key: value for key, value in numbers.items() if key not in ("f1", "accuracy")}


def whole_image(sample: Sample) -> Sample:
    """Return the sample of who finds everything in every image and marks all of it.

    With a region that takes the share a of the grid, Dice is 2a / (1 + a), IoU is a, and so is the chance that a random
    point lies in the region, for which the pointing game stands. Its probabilities are all 1: AUROC is 0.5, average
    precision and accuracy are the share of positives.
    """
    area = sample.area
    return replace(
        sample,
        probabilities=np.ones_like(sample.probabilities),
        hit=area,
        dice=(2 * area / (1 + area))[:, None],
        iou=area[:, None],
        chances=True,
    )


def reader_agreement(run: Run, sample: Sample) -> Sample | None:
    """Return the sample in which a pair scores the agreement of its readers; None where no finding had several."""
    row_of = {image_id: row for row, image_id in enumerate(run.images.image_ids)}
    rows = np.array([row_of[sample.image_ids[image]] for image in sample.pair_image], dtype=np.int64)
    dice, iou = (scores[rows, sample.pair_column] for scores in (run.images.reader_dice, run.images.reader_iou))
    several = ~np.isnan(dice)
    if not several.any():
        return None
    return replace(
        sample,
        pair_image=sample.pair_image[several],
        pair_column=sample.pair_column[several],
        hit=sample.hit[several],
        dice=dice[several, None],
        iou=iou[several, None],
        area=sample.area[several],
        region=sample.region[several],
    )
