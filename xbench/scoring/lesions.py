"""Lesion by lesion, as a torchmetrics class: which ones scored detections find. docs/numbers.md has the definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from xbench.scoring.protocols.base import mean
from xbench.scoring.protocols.detections import IOUS, MOST, Floats, average_precision, froc, match


class LesionDetections(Metric):
    """FROC and COCO's mean average precision of scored detections, boxes or connected parts of maps, per class.

    Detections of all images are kept with what they find at each overlap, and put in the order of images before
    anything is counted, so that neither the order of updates nor processes change a bit.

    Args:
        num_classes: C, the number of findings, at least 1.
        ious: Overlaps at which a detection finds a lesion.
        most: How many detections of an image count, those with the highest scores, as in COCO.
    """

    full_state_update = False
    detections: list[Tensor]
    images: Tensor
    lesions: Tensor

    def __init__(self, num_classes: int, ious: Sequence[float] = IOUS, most: int = MOST) -> None:
        super().__init__()
        if num_classes < 1 or not ious or not all(0 < iou <= 1 for iou in ious) or most < 1:
            raise ValueError("there must be a class, overlaps in (0, 1] and a detection")
        self.ious, self.most = tuple(ious), most
        self.add_state("detections", [], dist_reduce_fx="cat")
        for name in ("images", "lesions"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

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
        """Gather the states of all processes, with no row from one that saw no image, in the shape of the others."""
        if not len(self.detections):
            self.detections = [torch.zeros(0, 4 + len(self.ious), dtype=torch.float64, device=self.device)]
        super().sync(*args, **kwargs)

    def compute(self) -> list[Mapping[str, Any]]:
        """Return per class and overlap `froc` (a `Froc`) and `ap`, None if undefined, and `map`, the mean `ap`."""
        parts = self.detections if isinstance(self.detections, list) else [self.detections]
        rows = torch.cat(parts).cpu().numpy() if parts else np.zeros((0, 4 + len(self.ious)))
        rows = rows[np.lexsort(rows[:, 2::-1].T)]
        numbers: list[Mapping[str, Any]] = []
        for column, (images, lesions) in enumerate(zip(self.images.tolist(), self.lesions.tolist(), strict=True)):
            of_class = rows[rows[:, 0] == column]
            hits = {iou: of_class[:, 4 + place] > 0 for place, iou in enumerate(self.ious)}
            ap = {iou: average_precision(of_class[:, 3], hit, lesions) for iou, hit in hits.items()}
            curves = {iou: froc(of_class[:, 3], hit, lesions, images) for iou, hit in hits.items()}
            numbers.append({"froc": curves, "ap": ap, "map": mean(ap.values())})
        return numbers
