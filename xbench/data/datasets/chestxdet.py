"""ChestX-Det: ChestX-Det10 with three more findings, and an outline beside each box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from xbench.data.datasets.chestxdet10 import ChestXDet10
from xbench.findings.names import FINDINGS
from xbench.geometry.shapes import Shape


class ChestXDet(ChestXDet10):
    """ChestX-Det, as it is downloaded; github.com/Deepwise-AILab/ChestX-Det-Dataset.

    Each lesion has a box, read as in ChestX-Det10, and a polygon, rasterised by Pillow with its outline and closed
    where it is not. A finding's region is the union of one or the other. Most images are those of ChestX-Det10, in the
    same splits, so the two are never to be pooled; an image that is empty there may have one of the new findings here.

    Args:
        root: Folder of the download, with the images of `test_data.zip` and `train_data.zip` unpacked.
        regions: `boxes`, as ChestX-Det10 is scored, or `polygons`.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "chexdet"
    findings = FINDINGS["chexdet"]
    layout = (
        "ChestX_Det_test.json and test_data/<number>.png (for the split train: ChestX_Det_train.json and "
        "train_data/<number>.png)"
    )
    files: ClassVar = {"annotations": ("ChestX_Det_{split}.json",)}
    entry_in_words: ClassVar[str] = (
        "file_name, syms, boxes and polygons, with a box [x1, y1, x2, y2] and a polygon [[x, y], ...] for each of the "
        "syms"
    )

    def __init__(self, root: str, regions: Literal["boxes", "polygons"] = "boxes", **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        self.regions = regions

    def shapes(self, entry: dict[str, Any]) -> Sequence[Shape]:
        """Return what is drawn for each of the `syms` of an image: its box or its polygon."""
        boxes = super().shapes(entry)
        polygons = [Shape.from_points(points) for points in entry["polygons"]]
        if len(boxes) != len(polygons):
            raise ValueError(f"there are {len(boxes)} boxes and {len(polygons)} polygons")
        return boxes if self.regions == "boxes" else polygons
