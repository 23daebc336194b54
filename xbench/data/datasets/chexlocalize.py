"""CheXlocalize: the CheXpert validation and test radiographs with segmentations of ten findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import Any, ClassVar, Literal

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation, RunLengths, image_size
from xbench.data.annotations.tables import AGAIN, read_json
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.findings.names import FINDINGS, canonical
from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UserError


class CheXlocalize(DownloadedDataset):
    """CheXlocalize as downloaded; Stanford AIMI, 23c56a0d-15de-405b-87c8-99c30138950c.

    Images, frontal and lateral, and labels come from the CheXpert table of labels. Regions come from
    `gt_segmentations_*.json`, or without it from the contours in `gt_annotations_*.json`, rasterized with Pillow as the
    owners do, which gives the same masks. A finding with an empty segmentation and a positive label is positive without
    a region, because it cannot be seen in this view.

    Fracture, Pleural Other and Pneumonia have labels; whether the files of the test split also segment them is not
    documented. Their segmentations are used if present; otherwise these findings are scored for recognition only. A
    segmented finding counts as present even if its label is negative; the results count such cases.

    Args:
        root: Folder with both the segmentations and the radiographs, the CheXpert test and validation images in full
            resolution. (The small CheXpert images differ in proportions by a rounding error and are accepted.)
        views: `all` radiographs, or only `frontal` ones.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "chexlocalize"
    names_patients = True
    findings = FINDINGS["chexlocalize"]
    splits = ("test", "val")
    layout = (
        "CheXlocalize/gt_segmentations_test.json, CheXpert/test_labels.csv and "
        "CheXpert/test/<patient>/<study>/<view>.jpg (for the split val: val instead of test, and val_labels.csv or "
        "CheXpert's valid.csv)"
    )
    files: ClassVar = {
        "annotations": ("gt_segmentations_{split}.json", "gt_annotations_{split}.json"),
        "labels": ("{split}_labels.csv", "valid.csv@val"),
    }
    folders: ClassVar = {"test": ("test",), "val": ("val", "valid")}

    def __init__(self, root: str, views: Literal["all", "frontal"] = "all", **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        self.views, self.exhaustive = views, views == "all"

    def image_key(self, path: Path) -> str | None:
        *folders, _ = path.parts[-3:]
        return "_".join([*folders, path.stem]) if folders and folders[0].startswith("patient") else None

    def listed_key(self, entry: str) -> str:
        """Return the image for a path, ignoring folders above the patient, or for a name."""
        name = super().listed_key(entry)
        return self.image_key(Path(*PureWindowsPath(entry).parts[-3:-1], f"{name}.jpg")) or name

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        segmented = self._read_segmentations(folder)
        cases: dict[str, ImageAnnotations] = {}
        path = self.file(folder, "labels")
        for row in self.rows(path, ["Path"]):
            name = self.listed_key(row.name("Path"))
            if name in cases:
                raise row.error(f"{name} is listed twice")
            lateral = "lateral" in (row.get("Frontal/Lateral").casefold(), name.rpartition("_")[2])
            self._stated[name] = row.get("Sex"), row.get("Age"), "lateral" if lateral else row.get("AP/PA")
            columns = {finding: column for column in row.values if (finding := canonical(column)) in self.findings}
            if missing := [finding for finding in self.findings if finding not in columns]:
                raise row.error(f"there is no column for {', '.join(missing)}")
            labels = {f: flag for f, column in columns.items() if (flag := row.flag(column)) is not None}
            case = segmented.pop(name, ImageAnnotations(name, {}))
            for finding in {a.finding for a in case.annotations if labels.get(a.finding) != 1}:
                labels[finding] = 1
                self.note("a segmentation of a finding that the table of labels does not give; it is present", name)
            cases[name] = replace(case, labels=labels)
        for name in segmented:
            self.note("a segmentation of an image that the table of labels does not name, left out", name)
        return [case for case in cases.values() if self.views == "all" or case.image_id.endswith("_frontal")]

    def _read_segmentations(self, folder: Folder) -> dict[str, ImageAnnotations]:
        path = self.file(folder)
        content = read_json(self.name, path)
        cases = {}
        if not isinstance(content, dict):
            raise UserError(f"{self.name}: {path} has no segmentations by image. {AGAIN}")
        for name, entry in content.items():
            with self.blamed(path, f"{name!r:.80}"):
                cases[name] = self._read_entry(name, entry)
        return cases

    def _read_entry(self, name: str, entry: Mapping[str, Any]) -> ImageAnnotations:
        drawn: list[Annotation] = []
        size: tuple[int, int] | None = None
        shapes: Sequence[Shape | RunLengths]
        stated = image_size(*entry["img_size"]) if "img_size" in entry else None
        for label, value in entry.items():
            if stated is None:
                height, width = value["size"]
                mask = RunLengths.of_coco(value["counts"], height, width)
                # Each finding has a mask, which may be empty.
                own, shapes = mask.size, [] if mask.empty else [mask]
            elif label == "img_size":
                continue
            else:
                own, shapes = stated, [Shape.from_points(contour) for contour in value]
            finding = canonical(label)
            if finding not in self.findings:
                self.note(f"a segmentation of {label!r}, which is not one of the findings, left out", name)
                continue
            if size not in (None, own):
                raise ValueError("its masks differ in size")
            size = own
            drawn += [Annotation(finding, shape) for shape in shapes]
        return ImageAnnotations(name, {}, tuple(drawn), size)
