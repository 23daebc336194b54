"""ChestX-Det10: radiographs of ChestX-ray14 with boxes of ten findings. ChestX-Det: three more, and outlines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation
from xbench.data.annotations.tables import AGAIN, read_json
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.findings.names import FINDINGS, canonical
from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UserError

_FRAME = (1024, 1024)


class ChestXDet10(DownloadedDataset):
    """ChestX-Det10 as downloaded; github.com/Deepwise-AILab/ChestX-Det10-Dataset.

    Boxes are whole pixels [x1, y1, x2, y2] of the 1024 x 1024 image, read half-open: columns x1 to x2 - 1. (The owners'
    script includes x2 and y2, so its boxes are a pixel wider and higher.) A region is the union of a finding's boxes; a
    rectangle listed under two findings belongs to both. Findings that an image does not list are negative, so images
    with empty lists are negative for all.

    Args:
        root: Folder of the download, with the images of `test_data.zip` and `train_data.zip` unpacked.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "chestxdet10"
    findings = FINDINGS["chestxdet10"]
    splits = ("test", "train")
    layout = "test.json and test_data/<number>.png (for the split train: train.json and train_data/<number>.png)"
    folders: ClassVar = {"test": ("test_data",), "train": ("train_data",)}
    files: ClassVar = {"annotations": ("{split}.json",)}
    entry_in_words: ClassVar[str] = "file_name, syms and boxes, with a box [x1, y1, x2, y2] for each of the syms"

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        path = self.file(folder)
        entries = read_json(self.name, path)
        if not isinstance(entries, list):
            raise UserError(f"{self.name}: {path} is not a list of images. {AGAIN}")
        cases = []
        for number, entry in enumerate(entries, start=1):
            with self.blamed(path, f"entry {number}", f"Each needs {self.entry_in_words}."):
                cases.append(self._read_entry(entry))
        return cases

    def shapes(self, entry: dict[str, Any]) -> Sequence[Shape]:
        """Return the shape of each of the `syms` of an image."""
        return [Shape.from_corners(x0, y0, x1, y1) for x0, y0, x1, y1 in entry["boxes"]]

    def _read_entry(self, entry: dict[str, Any]) -> ImageAnnotations:
        name = self.listed_key(entry["file_name"])
        if not name:
            raise ValueError("file_name is empty")
        annotations = []
        for label, shape in zip(entry["syms"], self.shapes(entry), strict=True):
            finding = canonical(str(label))
            if finding not in self.findings:
                raise ValueError(f"{str(label)[:60]!r} is not one of the findings")
            annotations.append(Annotation(finding, shape))
        present = {annotation.finding for annotation in annotations}
        labels = {finding: int(finding in present) for finding in self.findings}
        return ImageAnnotations(name, labels, tuple(annotations), _FRAME)


class ChestXDet(ChestXDet10):
    """ChestX-Det as downloaded; github.com/Deepwise-AILab/ChestX-Det-Dataset.

    Each lesion has a box, read as in ChestX-Det10, and a polygon, rasterized by Pillow with its outline and closed if
    it is open. A region is the union of either. Most images are also in ChestX-Det10, in the same splits, so never pool
    the two datasets. An image without findings there may have one of the new findings here.

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
        boxes = super().shapes(entry)
        polygons = [Shape.from_points(points) for points in entry["polygons"]]
        if len(boxes) != len(polygons):
            raise ValueError(f"there are {len(boxes)} boxes and {len(polygons)} polygons")
        return boxes if self.regions == "boxes" else polygons
