"""A dataset of the user's own: a table of boxes and a table of labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation
from xbench.data.datasets.downloaded import ImageAnnotations
from xbench.data.datasets.own import OwnDataset
from xbench.data.datasets.phrases import ImagePhrases
from xbench.geometry.shapes import FRACTIONS, Shape
from xbench.runtime.errors import UsageError, UserError

_SIDES = {"xywh": ("x", "y", "width", "height"), "xyxy": ("x1", "y1", "x2", "y2")}


class CsvDataset(OwnDataset):
    """Images with a CSV file of boxes, one per row, and a CSV file of labels, one image per row.

    The table of labels lists the images and has a column for each finding: 1, 0, or unknown (empty or -1). A box makes
    an unknown finding present; a box of an absent finding is an error. A present finding without a box is scored for
    recognition only.

    Args:
        root: Folder of the images.
        findings: Findings of the columns of labels and of the boxes, as `{nodule: Nodule, eff: Pleural Effusion}`.
        annotations: The table of boxes; by default `boxes.csv` below `root`.
        labels: The table of labels; by default `labels.csv` below `root`.
        columns: Names of columns that differ from `image`, `finding`, and `x`, `y`, `width`, `height` or `x1`, `y1`,
            `x2`, `y2`, as `{image: file, finding: class}`.
        box: `xywh` for the upper left corner and the size, `xyxy` for two corners, the second just outside the box.
        units: `pixels` of the image, or `fractions` of its width and height.
        text: Column of the boxes that holds a phrase. Phrases then replace findings as queries; the labels need no
            column for each finding, and the boxes need no `finding`. Without a box, the column `label` states whether
            the phrase is present, or else the label of its finding does.
        **kwargs: `name`, `split`, `recognition_only`, `patient`, `image_list` and the options of every dataset.
    """

    name = "csv"
    files: ClassVar = {"annotations": ("boxes.csv",), "labels": ("labels.csv",)}
    layout = "boxes.csv and labels.csv, and the images that they name"
    advice = "Correct it, or describe the format with --data.columns, --data.box and --data.units."

    def __init__(
        self,
        root: str,
        findings: dict[str, str] | list[str],
        annotations: str | None = None,
        labels: str | None = None,
        columns: dict[str, str] | None = None,
        box: Literal["xywh", "xyxy"] = "xywh",
        units: Literal["pixels", "fractions"] = "pixels",
        text: str | None = None,
        name: str = "csv",
        **kwargs: Any,
    ) -> None:
        self.text = text
        super().__init__(root, findings, annotations=annotations, name=name, **kwargs)
        self.labels = self.place(labels)
        self.box, self.units = box, units
        usual = ("image", "finding", *_SIDES[box], *([] if text is None else ["label"]))
        self.columns = {column: column for column in usual} | (columns or {})
        if unknown := self.columns.keys() - {*usual}:
            raise UsageError(f"--data.columns {min(unknown)}: give {', '.join(usual)}.")

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        labels = self.read_labels(self.file(folder, "labels"), self.columns["image"])
        path, sides = self.file(folder), [self.columns[side] for side in _SIDES[self.box]]
        read = self._read_boxes if self.text is None else self._read_phrases
        cases = read(path, labels, sides)
        if self.box == "xywh":
            self.check_sizes(path, cases, "Set --data.box xyxy, with the columns x1, y1, x2, y2.")
        return cases

    def _read_boxes(self, path: Path, labels: dict[str, dict[str, int]], sides: list[str]) -> list[ImageAnnotations]:
        boxes: defaultdict[str, list[Annotation]] = defaultdict(list)
        drawn, lines = set(), dict[tuple[str, str, bytes], int]()
        key_of = cache(self.listed_key)  # an image may have many boxes
        for row in self.rows(path, [self.columns["image"], self.columns["finding"], *sides]):
            name, label = row.name(self.columns["image"]), row[self.columns["finding"]]
            with row.blamed():
                image = key_of(name)
                if image not in labels:
                    raise UserError(f"the table of labels lacks {image}")
                if not label and not any(row[side] for side in sides):
                    continue
                finding = self.finding_of(label, image)
            if finding is None:
                continue
            if labels[image].get(finding) == 0:
                raise row.error(f"there is a box of {finding}, which the table of labels calls absent on {image}")
            if finding not in labels[image]:
                self.note("a box of a finding that the table of labels calls unknown; it is present", image)
                labels[image][finding] = 1
            x, y, right, bottom = map(row.number, sides)
            with row.blamed():
                shape = self._shape(x, y, right, bottom)
                if (first := lines.setdefault((image, label, shape.coordinates.tobytes()), row.line)) != row.line:
                    raise UserError(f"the box of {label} on {image} repeats line {first}: remove one")
                boxes[image] += self.drawn(finding, shape, image)
            drawn.add(finding)
        self.check_drawn(path, drawn)
        return [ImageAnnotations(image, flags, tuple(boxes[image])) for image, flags in labels.items()]

    def _read_phrases(self, path: Path, labels: dict[str, dict[str, int]], sides: list[str]) -> list[ImageAnnotations]:
        phrases, text = {image: ImagePhrases() for image in labels}, str(self.text)
        for row in self.rows(path, [self.columns["image"], text, *sides]):
            name, said, label = row.name(self.columns["image"]), row.name(text), row.get(self.columns["finding"])
            numbers = [row.number(side) for side in sides] if any(row[side] for side in sides) else []
            stated = self.columns["label"] in row.values
            flag = row.flag(self.columns["label"]) if stated else None
            with row.blamed():
                image = self.listed_key(name)
                if image not in labels:
                    raise UserError(f"the table of labels lacks {image}")
                finding = self.finding_of(label, image) if label else None
                if label and finding is None:
                    continue
                flag = flag if stated else labels[image].get(finding or "")
                if phrases[image].add(said, finding, flag, [self._shape(*numbers)] if numbers else []):
                    raise UserError(f"{said!r:.60} is present in one row of {image} and absent in another")
        return [of_image.case(image) for image, of_image in phrases.items()]

    def _shape(self, x: float, y: float, right: float, bottom: float) -> Shape:
        if self.units == "pixels":
            if max(map(abs, (x, y, right, bottom))) <= 1:
                raise UserError(f"the box {x}, {y}, {right}, {bottom} is in --data.units fractions, not pixels")
            make = Shape.from_corner_and_size if self.box == "xywh" else Shape.from_corners
            shape = make(x, y, right, bottom)
        else:
            edges = (x, y, x + right, y + bottom) if self.box == "xywh" else (x, y, right, bottom)
            if max(map(abs, edges)) > 2:
                raise UserError(f"the box ({', '.join(map(str, edges))}) is not in fractions of the image")
            shape = Shape("box", FRACTIONS, np.array(edges))
        left, top, *corner = shape.coordinates.tolist()
        if corner[0] <= left or corner[1] <= top:
            raise UserError(f"the box {x}, {y}, {right}, {bottom} ({self.box}) contains no pixel")
        return shape
