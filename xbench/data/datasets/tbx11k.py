"""TBX11K: radiographs with boxes of tuberculosis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PureWindowsPath
from typing import Any, ClassVar

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation, image_size
from xbench.data.annotations.tables import read_json
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.findings.names import FINDINGS
from xbench.geometry.shapes import Shape

(_FINDING,) = FINDINGS["tbx11k"]
# Counts on the owners' page.
_REPORTED = {
    split: {"images": images, "images with a box": boxes}
    for split, images, boxes in (("val", 1800, 200), ("train", 6600, 600), ("trainval", 8400, 800))
}
# Images of other collections, which have no boxes even of tuberculosis.
_ELSEWHERE = "extra"
_Image = tuple[str, tuple[int, int] | None, list[Annotation]]


class TBX11K(DownloadedDataset):
    """TBX11K as downloaded; github.com/yun-liu/Tuberculosis. The split `trainval` also from Kaggle's data.csv.

    Boxes are x, y, width and height in fractional pixels of the 512 x 512 images, and become whole pixels as in
    ChestX-ray14. Active, obsolete and uncertain tuberculosis are one finding. An image without a box is negative, but
    positive without a region in the folder `tb`. Splits that begin with `all` add unknown images, those of other
    collections, which have no boxes. The labels of the test images are not public.

    Args:
        root: Folder of the download.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "tbx11k"
    findings = (_FINDING,)
    splits = ("val", "train", "trainval", "all_val", "all_train", "all_trainval")
    layout = "annotations/json/TBX11K_val.json and imgs/tb/<image>.png (of Kaggle: data.csv and images/<image>.png)"
    files: ClassVar = {"annotations": ("TBX11K_{split}.json", "{split}.json", "data.csv@trainval")}
    states_sizes = True
    exhaustive = False  # the folder also has images of other splits

    def image_key(self, path: Path) -> str | None:
        parts = path.with_suffix("").parts
        return "/".join(parts[parts.index(_ELSEWHERE) if _ELSEWHERE in parts else -1 :])

    def listed_key(self, entry: str) -> str:
        """Return the image for a path or a name."""
        name = super().listed_key(entry)
        return (name and self.image_key(Path(*PureWindowsPath(entry).parts[:-1], f"{name}.png"))) or ""

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        path, cases = self.file(folder), []
        for image, size, boxes in self._read_table(path) if path.suffix.lower() == ".csv" else self._read_json(path):
            of_tb = image.startswith("tb")
            if of_tb and not boxes:
                self.note("an image of tuberculosis without a box, scored for recognition only", image)
            unknown = not boxes and image.startswith(f"{_ELSEWHERE}/")
            labels = {} if unknown else {_FINDING: int(of_tb or bool(boxes))}
            cases.append(ImageAnnotations(image, labels, tuple(boxes), size))
        found = {"images": len(cases), "images with a box": sum(bool(case.annotations) for case in cases)}
        self.compare(found, _REPORTED.get(self.split, {}))
        return cases

    def _read_json(self, path: Path) -> Iterator[_Image]:
        content = read_json(self.name, path)
        with self.blamed(path, "its lists of categories, images and annotations"):
            categories = {entry["id"] for entry in content["categories"]}
            images = {entry["id"]: (entry["file_name"], entry["height"], entry["width"]) for entry in content["images"]}
            annotations = [*content["annotations"]]
        drawn: dict[Any, list[Annotation]] = {number: [] for number in images}
        for number, entry in enumerate(annotations, start=1):
            with self.blamed(path, f"annotation {number}"):
                if entry["category_id"] not in categories:
                    raise ValueError(f"there is no category {entry['category_id']!r:.40}")
                drawn[entry["image_id"]].append(Annotation(_FINDING, Shape.from_corner_and_size(*entry["bbox"])))
        for number, (name, height, width) in images.items():
            with self.blamed(path, f"image {number!r:.40}"):
                found = self.listed_key(name), image_size(height, width), drawn[number]
            yield found

    def _read_table(self, path: Path) -> Iterator[_Image]:
        """Read Kaggle's table: each row is a box, written as a Python dict, or an image without one."""
        drawn: dict[str, list[Annotation]] = {}
        for row in self.rows(path, ("fname", "bbox")):
            boxes = drawn.setdefault(self.listed_key(row.name("fname")), [])
            if row["bbox"].casefold() not in ("", "none"):
                with self.blamed(path, f"line {row.line}, bbox"):
                    sides = dict(re.findall(r"'(\w+)': ([-+.\w]+)", row["bbox"]))
                    numbers = [float(sides[side]) for side in ("xmin", "ymin", "width", "height")]
                    boxes.append(Annotation(_FINDING, Shape.from_corner_and_size(*numbers)))
        yield from ((image, None, boxes) for image, boxes in drawn.items())
