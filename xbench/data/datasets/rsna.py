"""RSNA Pneumonia: radiographs with and without boxes of lung opacity suspicious for pneumonia."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PureWindowsPath
from typing import ClassVar

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation
from xbench.data.annotations.tables import Row
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.findings.names import FINDINGS
from xbench.geometry.shapes import Shape

(_FINDING,) = FINDINGS["rsna"]
_FRAME = (1024, 1024)
_COLUMNS = ("patientId", "x", "y", "width", "height", "Target")
_LIST_COLUMNS = ("ID", "img_path", "boxes", "classes")


class RSNAPneumonia(DownloadedDataset):
    """RSNA Pneumonia Detection Challenge as downloaded; kaggle.com/c/rsna-pneumonia-detection-challenge.

    An image with Target 1 is positive; its region is the union of its boxes, one per row. An image with Target 0 is
    negative, whether the radiologists found it normal or not.

    The split `train` is all 26,684 images with public labels. Published zero-shot evaluations score 5,337 of them, the
    test list of the MedKLIP and MAVL repositories: give that list as `image_list`, or as `annotations`, because it
    holds the same boxes.

    The original files of MD.ai (`<study>/<series>/<image>.dcm`) lack the patientId in their names; with the list as
    `annotations` they are found by its `img_path`.

    Args:
        root: Folder of the download.
        annotations: The annotation file, if it is not `stage_2_train_labels.csv` under `root`: that table elsewhere, or
            a list with the columns ID, img_path, boxes and classes.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "rsna"
    findings = (_FINDING,)
    splits = ("train",)
    files: ClassVar = {"annotations": ("stage_2_train_labels.csv",)}
    layout = "stage_2_train_images/<patientId>.dcm with stage_2_train_labels.csv beside it"
    folders: ClassVar = {"train": ("stage_2_train_images",)}

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        path, self.exhaustive = self.file(folder), self.annotations is None
        is_list = False
        with suppress(OSError), open(path, encoding="utf-8-sig", errors="replace") as file:
            is_list = "boxes" in file.readline(1000)
        return self._read_list(path, folder) if is_list else self._read_table(path)

    def _read_table(self, path: Path) -> Iterable[ImageAnnotations]:
        boxes: defaultdict[str, list[Annotation]] = defaultdict(list)
        targets: dict[str, int] = {}
        for row in self.rows(path, _COLUMNS):
            name, target = row.name("patientId"), row.flag("Target")
            if target is None:
                raise row.error(f"Target is {row['Target']!r}, not 0 or 1")
            if targets.setdefault(name, target) != target:
                raise row.error(f"{name} has Target {target} here and {targets[name]} in an earlier row")
            if target:
                boxes[name].append(_annotation(row, *(row.number(column) for column in _COLUMNS[1:5])))
            elif any(row[column] for column in _COLUMNS[1:5]):
                raise row.error("there is a box, and Target is 0")
        return [
            ImageAnnotations(name, {_FINDING: target}, tuple(boxes[name]), _FRAME) for name, target in targets.items()
        ]

    def _read_list(self, path: Path, folder: Folder) -> Iterable[ImageAnnotations]:
        # Add the list's names to the index, because MD.ai's files have others.
        by_tail = {path.parts[-3:]: paths for paths in folder.images.values() for path in paths}
        cases = {}
        for row in self.rows(path, _LIST_COLUMNS):
            name = row.name("ID")
            if name not in folder.images and (tail := PureWindowsPath(row["img_path"]).parts[-3:]) in by_tail:
                folder.images[name] = by_tail[tail]
            boxes = []
            for text in filter(None, row["boxes"].split("|")):
                try:
                    x, y, width, height = (float(number) for number in text.split(";"))
                except ValueError:
                    raise row.error(f"boxes holds {text!r}, which is not x;y;width;height") from None
                boxes.append(_annotation(row, x, y, width, height))
            if name in cases:
                raise row.error(f"{name} is listed twice")
            target = row.flag("classes")
            if target is None or target != bool(boxes):
                raise row.error(f"classes is {row['classes']!r}, and there are {len(boxes)} boxes")
            cases[name] = ImageAnnotations(name, {_FINDING: target}, tuple(boxes), _FRAME)
        return cases.values()


def _annotation(row: Row, x: float, y: float, width: float, height: float) -> Annotation:
    with row.blamed():
        return Annotation(_FINDING, Shape.from_corner_and_size(x, y, width, height))
