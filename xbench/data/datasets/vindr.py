"""VinDr-CXR: radiographs from Hanoi with boxes of 21 findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.data.records import Record
from xbench.findings.names import FINDINGS, canonical, spellings
from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UsageError, UserError

_CORNERS = ("x_min", "y_min", "x_max", "y_max")
_NOTHING = "no finding"
_DICOM = (".dicom", ".dcm")
_CONVERTED = "a copy in PNG or JPEG; that it has the size of the DICOM file, which boxes refer to, cannot be checked"


class VinDrCXR(DownloadedDataset):
    """VinDr-CXR 1.0.0, as it is downloaded; physionet.org/content/vindr-cxr.

    The split `test` is PhysioNet's, 3,000 images whose boxes five radiologists agreed on. The split `train` has three
    readers an image, each of whose boxes has a row; it can be had from PhysioNet or, with 14 classes, from Kaggle
    (vinbigdata-chest-xray-abnormalities-detection), where the findings that are not among those 14 are unknown.

    Boxes are corners in the pixels of the DICOM file, which alone states its size. Where no DICOM file of the split is
    there, copies in PNG or JPEG are read, if they have that size. That they have cannot be checked, and is noted of
    each; copies that their boxes reach beyond are refused.

    A finding's region is the union of its boxes by all readers. A finding is present if it has a box, or if
    `image_labels_*.csv` says so: without a box it is positive without a region. An empty label, or -1, is unknown
    unless there is a box. Boxes of other classes than the 21 (Edema; whether the test split has any is not documented)
    are counted and left out.

    Args:
        root: Folder of the download.
        min_readers: In the split `train`, how many readers must have found something for it to be present: 1 for the
            union of all, 2 for the majority. What fewer found is absent.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "vindr"
    findings = FINDINGS["vindr"]
    splits = ("test", "train")
    layout = (
        "test/<image>.dicom and annotations/annotations_test.csv with image_labels_test.csv beside it (for the split "
        "train: train instead of test, or train.csv of Kaggle)"
    )
    folders: ClassVar = {"test": ("test",), "train": ("train",)}
    files: ClassVar = {"annotations": ("annotations_{split}.csv", "train.csv@train")}

    def __init__(self, root: str, min_readers: int = 1, **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        if min_readers < 1:
            raise UsageError(f"--data.min_readers {min_readers} must be at least 1.")
        self.min_readers = min_readers

    def read_records(self, annotated: bool) -> Sequence[Record]:
        records = super().read_records(annotated)
        for record in records:
            path = record.source.path
            if path is not None and path.suffix.lower() not in _DICOM:
                self.note(_CONVERTED, record.image_id)
                self._check_size(path, [annotation.drawn for annotation in record.source.annotations])
        return records

    def _check_size(self, path: Path, boxes: Sequence[Shape]) -> None:
        width = height = 0
        # What is wrong with the file itself is said when it is decoded.
        with suppress(Exception), Image.open(path, formats=("PNG", "JPEG")) as picture:
            width, height = picture.size
        for box in boxes:
            *_, right, bottom = map(int, box.coordinates)
            # A box may reach a little over the edge of its image; copies in use are made smaller by a third or more.
            if width and (right > 1.02 * width or bottom > 1.02 * height):
                raise UserError(
                    f"{self.name}: {path} has {width} x {height} pixels, and a box on it reaches to ({right}, "
                    f"{bottom}): the copies are not of the size of the DICOM files, in whose pixels the boxes are, "
                    "and which no table states. Take the DICOM files, or copies of their size."
                )

    def _images_of_split(self, folder: Folder) -> Mapping[str, Sequence[Path]]:
        images = super()._images_of_split(folder)
        originals = _originals(images)
        if originals:
            # Copies beside them are not looked at: neither a second file of an image nor one for want of the first.
            folder.images = _originals(folder.images)
        return originals or images

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        path = self.file(folder)
        boxes: defaultdict[str, list[Annotation]] = defaultdict(list)
        readers: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        kaggle = False
        for row in self.rows(path, ("image_id", "class_name", *_CORNERS)):
            kaggle = "class_id" in row.values
            name, label = row.name("image_id"), row.name("class_name")
            annotations = boxes[name]
            if label.casefold() == _NOTHING:
                continue
            finding = canonical(label)
            if finding is None or finding not in self.findings:
                self.note(f"a box or label of {label!r}, which is none of the 21 findings, left out", name)
                continue
            reader = row.get("rad_id")
            readers[name, finding].add(reader)
            if any(row[corner] for corner in _CORNERS):
                left, top, right, bottom = (row.number(corner) for corner in _CORNERS)
                with row.blamed():
                    annotations.append(Annotation(finding, Shape.from_corners(left, top, right, bottom, reader)))
        # What a table has boxes of it was drawn for, whatever Kaggle's usually has.
        known = {*spellings("vindr_kaggle"), *(finding for _, finding in readers)} if kaggle else {*self.findings}
        votes, blank = self._read_labels(folder, boxes, known)
        needed = self.min_readers if self.split == "train" else 1
        cases = []
        for name, drawn in boxes.items():
            labels = {}
            for finding in (f for f in self.findings if f in known):
                found = readers[name, finding] | votes.get((name, finding), set())
                if len(found) >= needed:
                    labels[finding] = 1
                elif (name, finding) not in blank:
                    labels[finding] = 0
            present = tuple(annotation for annotation in drawn if labels.get(annotation.finding))
            cases.append(ImageAnnotations(name, labels, present))
        return cases

    def _read_labels(
        self, folder: Folder, boxes: defaultdict[str, list[Annotation]], known: set[str]
    ) -> tuple[dict[tuple[str, str], set[str]], set[tuple[str, str]]]:
        """Readers by image and finding that they label, and where a cell is empty; adds images without a box's row."""
        votes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        blank: set[tuple[str, str]] = set()
        path = self.optional_file(folder, f"image_labels_{self.split}.csv")
        if path is None:
            return votes, blank
        for row in self.rows(path, ["image_id"]):
            name = row.name("image_id")
            drawn = {annotation.finding for annotation in boxes[name]}
            reader = row.get("rad_id")
            for column in row.values:
                finding = canonical(column)
                if finding not in known or finding is None:
                    continue
                flag = row.flag(column)
                if flag is None:
                    blank.add((name, finding))
                    self.note("an image whose label of some finding is empty; without a box it is unknown", name)
                elif flag:
                    votes[name, finding].add(reader)
                elif finding in drawn and self.split == "test":
                    self.note("a box of a finding that the table of labels calls absent; it is present", name)
        return votes, blank


def _originals(images: Mapping[str, Sequence[Path]]) -> dict[str, list[Path]]:
    """Keep the DICOM files alone."""
    found = {name: [path for path in paths if path.suffix.lower() in _DICOM] for name, paths in images.items()}
    return {name: paths for name, paths in found.items() if paths}
