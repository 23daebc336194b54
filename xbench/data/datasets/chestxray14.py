"""ChestX-ray14: the radiographs of the NIH with boxes of eight findings, and with labels read from their reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import ClassVar

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation
from xbench.data.annotations.tables import read_image_list
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.findings.names import CHESTXRAY14_CLASSES, FINDINGS, canonical
from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UserError

_LABELS = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
_FRAME = (1024, 1024)
# The file's own header has a comma within a name.
_HEADER = ("Image Index", "Finding Label", "x", "y", "w", "h")


class ChestXray14(DownloadedDataset):
    """ChestX-ray14 as downloaded; nihcc.app.box.com/v/ChestXray-NIHCC.

    The split `test` is the official test list, 25,596 images. The split `boxes` is the 880 of them with boxes.

    Boxes are x, y, width and height in fractional pixels of the released 1024 x 1024 images (the table of labels states
    the size of the originals). A box covers columns int(x) to int(x) + int(width) - 1; rows are analogous. Not every
    lesion has a box: a finding with a label but no box is positive without a region, and scored for recognition only.
    Labels were mined from reports. Without the table of labels (`Data_Entry_2017_v2020.csv`), findings without a box
    are unknown, not negative.

    Args:
        root: Folder of the download; the twelve archives may share one `images` folder or have one each.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "chestxray14"
    names_patients = True
    exhaustive = False  # the download has far more images than a split
    findings = FINDINGS["chestxray14"]
    classes = CHESTXRAY14_CLASSES
    splits = ("boxes", "test")
    files: ClassVar = {"annotations": ("BBox_List_2017.csv",), "list": ("test_list.txt@test",)}
    layout = (
        f"images/<image>.png (or images_001/images/..., images_012/images/...), BBox_List_2017.csv and {_LABELS[0]}"
    )

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        boxes = self._read_boxes(folder)
        labels = self._read_labels(folder)
        if self.split == "boxes":
            names: Iterable[str] = boxes
        else:
            path = self.file(folder, "list")
            listed = [self.listed_key(entry) for entry in read_image_list(self.name, path)]
            if not any(name in labels or name in boxes or name in folder.images for name in listed):
                raise UserError(
                    f"{self.name}: {path} names no image of this dataset (first: {listed[0]!r:.60}). Use the file as "
                    "its owners publish it."
                )
            names = listed
        return [self._case(name, boxes.get(name, []), labels) for name in dict.fromkeys(names)]

    def _case(self, name: str, boxes: list[Annotation], labels: Mapping[str, frozenset[str]]) -> ImageAnnotations:
        boxed = {box.finding for box in boxes}
        known: dict[str, int] = dict.fromkeys(boxed, 1)
        if name in labels:
            known |= {finding: int(finding in labels[name] or finding in boxed) for finding in self.findings}
            if boxed - labels[name]:
                self.note("a box of a finding that the table of labels does not give the image", name)
        elif labels:
            self.note("an image that the table of labels does not name; findings without a box are unknown", name)
        return ImageAnnotations(name, known, tuple(boxes), _FRAME)

    def _read_boxes(self, folder: Folder) -> dict[str, list[Annotation]]:
        path = self.file(folder)
        boxes: defaultdict[str, list[Annotation]] = defaultdict(list)
        for row in self.rows(path, _HEADER, header=_HEADER):
            finding = canonical(row["Finding Label"])
            if finding not in self.findings:
                raise row.error(f"the finding {row['Finding Label']!r} is not one of the eight")
            numbers = [row.number(column) for column in ("x", "y", "w", "h")]
            with row.blamed():
                box = Shape.from_corner_and_size(*numbers)
            boxes[self.listed_key(row.name("Image Index"))].append(Annotation(finding, box))
        return dict(boxes)

    def _read_labels(self, folder: Folder) -> dict[str, frozenset[str]]:
        path = self.optional_file(folder, *_LABELS)
        # These come before the columns whose names contain commas.
        columns = ("Image Index", "Finding Labels")
        labels: dict[str, frozenset[str]] = {}
        for row in self.rows(path, columns, header=columns) if path else ():
            name = self.listed_key(row.name("Image Index"))
            if name in labels:
                raise row.error(f"{name} is listed twice")
            names = row.name("Finding Labels").split("|")
            self._stated[name] = row.get("Patient Gender"), row.get("Patient Age"), row.get("View Position")
            labels[name] = frozenset(finding for label in names if (finding := canonical(label)))
        return labels
