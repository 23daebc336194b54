"""A dataset of the user's own, annotated in COCO's format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation, Drawn, RunLengths, image_size
from xbench.data.annotations.tables import read_json, reason
from xbench.data.datasets.downloaded import ImageAnnotations
from xbench.data.datasets.own import OwnDataset
from xbench.data.datasets.phrases import ImagePhrases
from xbench.findings.attributes import ATTRIBUTES
from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UserError

Size = tuple[int, int] | None


class CocoDataset(OwnDataset):
    """Images with a JSON file in COCO's format: boxes, polygons and run lengths, compressed or not.

    The file lists the images; a listed image without an annotation of a finding is negative for it. A region is the
    union of the finding's annotations. Annotations are in the stated width and height of an image; its file may be a
    smaller copy with the same proportions.

    Args:
        root: Folder of the images.
        findings: Findings of the file's categories, as `{nodule: Nodule, eff: Pleural Effusion}`.
        annotations: The JSON file; by default `annotations.json` below `root`.
        text: Key of an annotation that holds a phrase. Phrases then replace findings as queries, and need no category.
            Without a box or an outline, `label` is 1 (present), 0 (absent) or -1 (unknown).
        shapes: `outlines` draws the segmentation, or the box of an annotation without one; `boxes` draws all boxes.
        **kwargs: `name`, `split`, `recognition_only`, `patient`, `image_list` and the options of every dataset.
    """

    coco_ids: tuple[Mapping[object, str], Mapping[object, str]] | None = None
    """Names of images and of findings by their ids in the file, to read COCO results; None before reading."""
    name = "coco"
    files: ClassVar = {"annotations": ("annotations.json",)}
    layout = "annotations.json in COCO's format, and the images that it names"

    def __init__(
        self,
        root: str,
        findings: dict[str, str] | list[str],
        annotations: str | None = None,
        shapes: Literal["outlines", "boxes"] = "outlines",
        text: str | None = None,
        name: str = "coco",
        **kwargs: Any,
    ) -> None:
        self.text = text
        super().__init__(root, findings, annotations=annotations, name=name, **kwargs)
        self.shapes = shapes

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        path = self.file(folder)
        content = read_json(self.name, path, self.advice)
        parts = ("images", "annotations", "categories")
        if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in parts):
            raise UserError(f"{self.name}: {path} is not COCO's format: it needs lists of {', '.join(parts)}.")
        labels = self._unique(path, content["categories"], "category", lambda entry: str(entry["name"]).strip())
        if absent := [label for label in self.names if label not in labels.values()]:
            there = f"{', '.join(map(repr, labels.values())):.300}. Correct --data.findings or the file."
            raise UserError(f"{self.name}: {path} has no category {absent[0]!r:.60}. Its categories: {there}")
        images = self._unique(path, content["images"], "image", self._read_image)
        found = {number: self.names.get(label, label) for number, label in labels.items()}
        self.coco_ids = {number: image for number, (image, _) in images.items()}, found
        sizes: dict[object, Size] = {number: size for number, (_, size) in images.items()}
        drawn: defaultdict[object, list[Annotation]] = defaultdict(list)
        present: defaultdict[object, set[str]] = defaultdict(set)
        phrases = {number: ImagePhrases() for number in images}
        places = dict[tuple[object, ...], int]()
        outlined, boxed = False, []
        for place, entry in enumerate(content["annotations"], 1):
            where = f"annotation {place}"
            try:
                where += f" (id {entry.get('id')!r:.20})"
                number = self._listed(images, entry["image_id"], "image")
                image = images[number][0]
                label, finding = "", None
                if self.text is None or "category_id" in entry:
                    label = labels[self._listed(labels, entry["category_id"], "category")]
                    where += f" on {image}, {label!r:.60}"
                    finding = self.finding_of(label, image)
                    if finding is None:
                        continue
                shape, sizes[number] = self._read_shape(entry, sizes[number])
                if self.text is not None:
                    text, items = entry.get(self.text), [] if shape is None else [shape]
                    if phrases[number].add(text, finding, entry.get("label"), items):
                        raise ValueError("its phrase is present in one annotation and absent in another")
                if finding is None or self.text is not None:
                    continue
                present[number].add(finding)
                if shape is None and finding not in self.recognition_only:
                    raise ValueError(
                        "it has neither a segmentation nor a bbox: add one, or the finding to --data.recognition_only"
                    )
                if entry.get("iscrowd"):
                    self.note("an annotation with iscrowd 1, drawn like any other", image)
                if shape is None:
                    continue
                if (first := places.setdefault((number, label, shape), place)) != place:
                    raise ValueError(f"it repeats annotation {first}: remove one")
                if isinstance(shape, Shape) and shape.kind == "box":
                    boxed += [image] if self.shapes == "outlines" else []
                else:
                    outlined = True
                drawn[number] += self.drawn(finding, shape, image)
            except (UserError, LookupError, TypeError, ValueError, AttributeError) as error:
                raise UserError(f"{self.name}: {path}, {where}: {reason(error):.500}. {self.advice}") from None
        for image in boxed if outlined else ():
            self.note("a box drawn in place of an outline, which other annotations of the file have", image)
        cases = []
        for number, (image, _) in images.items():
            flags = {finding: int(finding in present[number]) for finding in self.findings}
            case = ImageAnnotations(image, flags, tuple(drawn[number]), sizes[number])
            cases.append(case if self.text is None else phrases[number].case(image, sizes[number]))
        self.check_sizes(path, cases, "Write each bbox as x, y, width and height.")
        return cases

    def _unique(self, path: Path, entries: list[Any], kind: str, read: Callable[[Any], Any]) -> dict[object, Any]:
        found: dict[object, Any] = {}
        for place, entry in enumerate(entries, 1):
            with self.blamed(path, f"{kind} {place}"):
                number = entry["id"]
                if number in found:
                    raise ValueError(f"the id {number!r:.60} occurs twice")
                found[number] = read(entry)
        return found

    def _listed(self, known: Mapping[object, Any], number: object, kind: str) -> object:
        if number not in known:
            raise ValueError(f"there is no {kind} with the id {number!r:.60}")
        return number

    def _read_image(self, entry: Mapping[str, Any]) -> tuple[str, Size]:
        name = entry["file_name"]
        if not isinstance(name, str) or not name.strip():
            raise ValueError("file_name is empty")
        image = self.listed_key(name)
        if (patient := entry.get(self.patient)) not in (None, ""):
            self._patients[image] = str(patient)
        self._stated[image] = [entry.get(name) for name in ATTRIBUTES]
        stated = entry.get("height"), entry.get("width")
        return image, None if stated == (None, None) else image_size(*stated)

    def _read_shape(self, entry: Mapping[str, Any], size: Size) -> tuple[Drawn | None, Size]:
        outline = entry.get("segmentation")
        drawn: Drawn | None = None
        if outline and self.shapes == "outlines":
            if isinstance(outline, Mapping):
                height, width = outline["size"]
                mask = RunLengths.of_coco(outline["counts"], height, width)
                if size not in (None, mask.size):
                    raise ValueError(f"its mask has {width} x {height} pixels, and the image {size[1]} x {size[0]}")
                if not mask.decode(height, width).any():
                    raise ValueError("its mask is empty: remove the annotation; images without one are negative")
                return mask, mask.size
            polygons = tuple(_polygon(part) for part in outline)
            drawn = polygons[0] if len(polygons) == 1 else polygons
        elif entry.get("bbox"):
            x, y, width, height = entry["bbox"]
            drawn = Shape.from_corner_and_size(x, y, width, height)
            left, top, right, bottom = drawn.coordinates
            if right == left or bottom == top:
                raise ValueError(f"its bbox, {width} x {height} pixels, contains no whole pixel")
        if size is not None and drawn is not None:
            for part in Annotation("", drawn).parts(*size):
                self.is_cut_off(part)
        return drawn, size


def _polygon(part: Any) -> Shape:
    if not isinstance(part, list) or len(part) < 6 or len(part) % 2:
        raise ValueError("a polygon must be at least three points, [x1, y1, x2, y2, x3, y3], within the list of parts")
    polygon = Shape.from_points(zip(part[::2], part[1::2], strict=True), outline=False)
    if not np.ptp(polygon.coordinates.reshape(-1, 2), axis=0).all():
        raise ValueError("a polygon encloses nothing")
    return polygon
