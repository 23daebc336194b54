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
_CONVERTED = "a copy in PNG or JPEG; whether it has the size of the DICOM file, which boxes refer to, cannot be checked"


class VinDrCXR(DownloadedDataset):
    """VinDr-CXR 1.0.0 as downloaded; physionet.org/content/vindr-cxr.

    The split `test` is PhysioNet's 3,000 images, whose boxes are the consensus of five radiologists. The split `train`
    has three readers per image and a row for each reader's box; it is available from PhysioNet or, with 14 classes,
    from Kaggle (vinbigdata-chest-xray-abnormalities-detection), where the other findings are unknown.

    Boxes are corners in pixels of the DICOM file, which alone states its size. If the split has no DICOM files, PNG or
    JPEG copies are read; they must have the same size. This cannot be checked and is noted for each; copies that are
    too small for their boxes are refused.

    A region is the union of a finding's boxes by all readers. A finding is present if it has a box or a positive label
    in `image_labels_*.csv`; without a box it is positive without a region. An empty label, or -1, is unknown unless
    there is a box. Boxes of other classes than the 21 are counted and left out (Edema; it is not documented whether the
    test split has any).

    Args:
        root: Folder of the download.
        min_readers: For the split `train`, number of readers who must report a finding for it to be present: 1 for the
            union of all, 2 for the majority. With fewer it is absent.
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
        with suppress(Exception), Image.open(path, formats=("PNG", "JPEG")) as picture:
            width, height = picture.size
        for box in boxes:
            *_, right, bottom = map(int, box.coordinates)
            # Boxes may reach slightly over the edge; common copies are smaller by a third or more.
            if width and (right > 1.02 * width or bottom > 1.02 * height):
                raise UserError(
                    f"{self.name}: {path} has {width} x {height} pixels, and a box on it reaches to ({right}, "
                    f"{bottom}): the copies are smaller than the DICOM files, to whose pixels the boxes refer. Use the "
                    "DICOM files, or copies of their size."
                )

    def _images_of_split(self, folder: Folder) -> Mapping[str, Sequence[Path]]:
        images = super()._images_of_split(folder)
        originals = _originals(images)
        if originals:
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
                self.note(f"a box or label of {label!r}, which is not one of the 21 findings, left out", name)
                continue
            reader = row.get("rad_id")
            readers[name, finding].add(reader)
            if any(row[corner] for corner in _CORNERS):
                left, top, right, bottom = (row.number(corner) for corner in _CORNERS)
                with row.blamed():
                    annotations.append(Annotation(finding, Shape.from_corners(left, top, right, bottom, reader)))
        # Any finding with boxes counts as annotated, even outside Kaggle's usual classes.
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
        """Return readers by image and finding, and empty cells; add images without boxes to `boxes`."""
        votes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        blank: set[tuple[str, str]] = set()
        path = self.optional_file(folder, f"image_labels_{self.split}.csv")
        for row in self.rows(path, ["image_id"]) if path else ():
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
    found = {name: [path for path in paths if path.suffix.lower() in _DICOM] for name, paths in images.items()}
    return {name: paths for name, paths in found.items() if paths}
