"""Grounding metrics for any evaluation loop, from raw maps and regions to numbers per class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from xbench.geometry.grid import FULL_VIEW, TieRule
from xbench.predictions.answer import Answer
from xbench.scoring import numbers
from xbench.scoring.boxes import answer_columns
from xbench.scoring.map_measures import Measurer, Measures, check_ties
from xbench.scoring.metrics import RowMetric
from xbench.scoring.numbers import BOX_COUNTS, BOX_SUMS, Sums, counted, mean, summed
from xbench.scoring.protocols.base import mean as defined_mean
from xbench.scoring.protocols.detections import IOUS, MOST, Floats, average_precision, froc, match
from xbench.scoring.sweep import check_thresholds, threshold_values


class _PerClass(RowMetric):
    _thresholds = 2

    def __init__(self, num_classes: int, **shapes: tuple[int, ...]) -> None:
        super().__init__(num_classes, **shapes)
        self.num_classes = num_classes
        self._measurer = Measurer()

    def update(self, saliency: Tensor, regions: Tensor, valid: Tensor) -> None:
        """Add the valid pairs of a batch; ValueError for wrong shapes or dtypes, non-finite maps or empty regions.

        Saliency (B, C, h, w) is raw values; regions (B, C, H, W) are bool on the evaluation grid; valid (B, C) bool
        marks positive classes with a region.
        """
        if saliency.ndim == 4 and saliency.shape[1] != self.num_classes:
            raise ValueError(
                f"saliency has {saliency.shape[1]} classes, but the metric was made for {self.num_classes}"
            )
        _check_inputs(saliency, regions, valid)
        rows, classes = valid.nonzero(as_tuple=True)
        # index_select copies whole maps, five times as fast as indexing, which copies pixel by pixel.
        places = rows * self.num_classes + classes
        maps, inside = (part.flatten(0, 1).index_select(0, places) for part in (saliency, regions))
        measures = self._measurer(maps, list(inside), [FULL_VIEW] * len(maps), self._thresholds)
        finite = measures.finite
        fine = finite & (measures.counts()[2] > 0)
        if not fine.all():
            pair = int(fine.argmin())
            problem = (
                "its region is empty, but it is valid" if finite[pair] else "its saliency has NaN or infinite values"
            )
            raise ValueError(f"pair (image {rows[pair]} of the batch, class {classes[pair]}): {problem}")
        self.add(self._sums_of(measures, classes.cpu().numpy()))

    @abstractmethod
    def _sums_of(self, measures: Measures, classes: NDArray[np.int64]) -> Sums: ...

    def _mean(self, name: str) -> Tensor:
        totals = self.totals()
        return torch.from_numpy(mean(totals[name], totals["count"])).to(self.device)

    def _count(self) -> Tensor:
        return torch.from_numpy(self.totals()["count"]).clone().to(self.device)

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        # torchmetrics squeezes results with one element, which would turn (C,) into a scalar for one class.
        squeezing = super()._wrap_compute(compute)

        @wraps(compute)
        def keeping(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            values = squeezing(*args, **kwargs)
            return {name: value.reshape(1) if value.ndim == 0 else value for name, value in values.items()}

        return keeping


class PointingGame(_PerClass):
    """Mean pointing game per class.

    Raw maps are resized bilinearly to the grid of the regions. A pair is a hit if its map's maximum lies in the region;
    `pointing_hits` documents the rules for ties, which are frequent. Sums are exact.

    Args:
        num_classes: C, the number of findings, at least 1.
        ties: `"share"`, `"any"` or `"first"`.

    Examples:
        >>> metric = PointingGame(num_classes=2)
        >>> saliency = torch.tensor([[[[0.0, 2.0]], [[5.0, 5.0]]]])
        >>> regions = torch.tensor([[[[False, True]], [[False, True]]]])
        >>> metric.update(saliency, regions, torch.tensor([[True, True]]))
        >>> metric.compute()["pointing_game"]
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, num_classes: int, ties: TieRule = "share") -> None:
        super().__init__(num_classes, count=(num_classes,), hit_sum=(num_classes,))
        check_ties(ties)
        self.ties: TieRule = ties

    def compute(self) -> dict[str, Tensor]:
        """Return `pointing_game` (C,) float64, NaN for a class without valid pairs, and `count` (C,) int64."""
        return {"pointing_game": self._mean("hit_sum"), "count": self._count()}

    def _sums_of(self, measures: Measures, classes: NDArray[np.int64]) -> Sums:
        hits = measures.hits(self.ties)
        return {"count": counted(classes, self.findings), "hit_sum": summed(hits, classes, self.findings)}


class ThresholdSweep(_PerClass):
    """Mean Dice and IoU per class at each of T thresholds.

    Raw maps are resized bilinearly to the grid of the regions and stretched to [0, 1]. The mask at threshold
    t_k = k / (T - 1) as float32 is M >= t_k. Dice and IoU are averaged over the valid pairs of a class. Sums are whole
    multiples of 2**-40, which neither order nor half precision changes.

    Args:
        num_classes: C, the number of findings, at least 1.
        thresholds: T, the number of thresholds from 0 to 1, both included.

    Examples:
        >>> metric = ThresholdSweep(num_classes=1, thresholds=3)
        >>> saliency = torch.tensor([[[[0.0, 2.0], [3.0, 4.0]]]])
        >>> metric.update(saliency, saliency > 2, torch.tensor([[True]]))
        >>> metric.compute()["dice"]
        tensor([[0.6667, 0.8000, 0.6667]], dtype=torch.float64)
    """

    def __init__(self, num_classes: int, thresholds: int = 101) -> None:
        check_thresholds(thresholds)
        shape = (num_classes, thresholds)
        super().__init__(num_classes, count=(num_classes,), dice_sum=shape, iou_sum=shape)
        self.thresholds = self._thresholds = thresholds

    def compute(self) -> dict[str, Tensor]:
        """Return means `dice` and `iou` (C, T), NaN without valid pairs, `count` (C,) and `thresholds` (T,)."""
        curves = {"dice": self._mean("dice_sum"), "iou": self._mean("iou_sum"), "count": self._count()}
        return curves | {"thresholds": threshold_values(self.thresholds).to(self.device)}

    def _sums_of(self, measures: Measures, classes: NDArray[np.int64]) -> Sums:
        mask, overlap, region = measures.counts()
        sums = {
            name: summed(score(mask, overlap, region[:, None]), classes, self.findings)
            for name, score in (("dice_sum", numbers.dice), ("iou_sum", numbers.iou))
        }
        return {"count": counted(classes, self.findings)} | sums


class BoxScores(RowMetric):
    """Scores of answers per finding, with exact sums; no box counts as 0, and the counts state why it is missing."""

    def __init__(self, num_classes: int) -> None:
        shapes = {"counts": (num_classes, len(BOX_COUNTS)), "score_sum": (num_classes, len(BOX_SUMS))}
        super().__init__(num_classes, **shapes)

    def update(
        self,
        answers: Sequence[Answer],
        classes: Sequence[int],
        annotated: Sequence[ArrayLike | None],
        instances: bool = True,
    ) -> None:
        """Add pairs: an answer, a finding and the annotated boxes (M, 4) of each, as fractions of the radiograph.

        None means that the finding is absent. Without `instances`, only the union of the annotated boxes is known.
        """
        if not answers:
            return
        rows = [answer_columns(answer, true, instances) for answer, true in zip(answers, annotated, strict=True)]
        names = {name for row in rows for name in row} | {*BOX_SUMS, "matched_30", "matched_50", "annotated"}
        values = {name: [row.get(name) for row in rows] for name in (*names, "one_by_one")}
        columns = {
            name: np.array([np.nan if one is None else one for one in column]) for name, column in values.items()
        }
        positive = np.array([true is not None for true in annotated])
        self.add(numbers.box_column_sums(columns, positive, np.array(classes, np.int64), self.findings))

    def compute(self) -> list[dict[str, float | int | None]]:
        """Return the scores of each finding, see `xbench.scoring.numbers.box_numbers`."""
        return numbers.box_numbers(self.totals())


def _check_inputs(saliency: Tensor, regions: Tensor, valid: Tensor) -> None:
    pairs = saliency.shape[:2]
    if saliency.ndim != 4 or not saliency.is_floating_point() or 0 in saliency.shape[2:]:
        raise ValueError(
            f"saliency must be a floating tensor (B, C, h, w), not {tuple(saliency.shape)} {saliency.dtype}"
        )
    if regions.ndim != 4 or regions.dtype != torch.bool or regions.shape[:2] != pairs or 0 in regions.shape[2:]:
        raise ValueError(
            f"regions must be a bool tensor ({', '.join(map(str, pairs))}, H, W) beside this saliency, "
            f"not {tuple(regions.shape)} {regions.dtype}"
        )
    if valid.shape != pairs or valid.dtype != torch.bool:
        raise ValueError(
            f"valid must be a bool tensor {tuple(pairs)} beside this saliency, not {tuple(valid.shape)} {valid.dtype}"
        )


class LesionDetections(RowMetric):
    """FROC and COCO's mean average precision of scored detections, boxes or connected parts of maps, per class.

    Detections are sorted by image before counting, so the order of updates and the number of processes do not matter.

    Args:
        num_classes: C, the number of findings, at least 1.
        ious: Overlaps at which a detection finds a lesion.
        most: Number of detections per image that count, those with the highest scores, as in COCO.
    """

    detections: list[Tensor]
    images: Tensor
    lesions: Tensor

    def __init__(self, num_classes: int, ious: Sequence[float] = IOUS, most: int = MOST) -> None:
        super().__init__(num_classes, images=(num_classes,), lesions=(num_classes,))
        if not ious or not all(0 < iou <= 1 for iou in ious) or most < 1:
            raise ValueError("there must be overlaps in (0, 1] and a detection")
        self.ious, self.most = tuple(ious), most
        self.add_state("detections", [], dist_reduce_fx="cat")

    def update(self, index: int, column: int, scores: Floats, iou: Floats) -> None:
        """Add the detections of one image and finding: scores (D,), IoU with its L lesions (D, L), and its index."""
        kept = np.argsort(-scores, kind="stable")[: self.most]
        hits = [match(iou[kept], scores[kept], least) >= 0 for least in self.ious]
        places = [np.full(len(kept), place) for place in (column, index)]
        rows = np.stack([*places, np.arange(len(kept)), scores[kept], *hits], axis=1).astype(np.float64)
        self.detections.append(torch.from_numpy(rows).to(self.device))
        self.images[column] += 1
        self.lesions[column] += iou.shape[1]

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather the states of all processes; one without images adds empty rows of the others' shape."""
        if not len(self.detections):
            self.detections = [torch.zeros(0, 4 + len(self.ious), dtype=torch.float64, device=self.device)]
        super().sync(*args, **kwargs)

    def compute(self) -> list[Mapping[str, Any]]:
        """Return per class and overlap `froc` (a `Froc`) and `ap`, None if undefined, and `map`, the mean `ap`."""
        parts = self.detections if isinstance(self.detections, list) else [self.detections]
        rows = torch.cat(parts).cpu().numpy() if parts else np.zeros((0, 4 + len(self.ious)))
        rows = rows[np.lexsort(rows[:, 2::-1].T)]
        scores: list[Mapping[str, Any]] = []
        for column, (images, lesions) in enumerate(zip(self.images.tolist(), self.lesions.tolist(), strict=True)):
            of_class = rows[rows[:, 0] == column]
            hits = {iou: of_class[:, 4 + place] > 0 for place, iou in enumerate(self.ious)}
            ap = {iou: average_precision(of_class[:, 3], hit, lesions) for iou, hit in hits.items()}
            curves = {iou: froc(of_class[:, 3], hit, lesions, images) for iou, hit in hits.items()}
            scores.append({"froc": curves, "ap": ap, "map": defined_mean(ap.values())})
        return scores
