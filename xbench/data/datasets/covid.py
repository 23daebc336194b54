"""COVID-19 Rural: radiographs of patients with COVID-19, with polygons of the opacities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation, image_size
from xbench.data.annotations.tables import read_json
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.data.decoding import decode_image
from xbench.data.records import Radiograph, Record
from xbench.findings.names import FINDINGS
from xbench.geometry.shapes import Shape, union
from xbench.runtime.errors import UsageError, UserError

(_FINDING,) = FINDINGS["covid"]
_IMAGES, _OUTLINES, _MASKS = "jpgs", "jsons", "pngs_masks"
_BEYOND = "a mask image far beyond the polygons: more of it lies outside than they cover"
# "groud" is the files' own spelling.
_OPACITIES = ("subtle_hazy", "consolidation", "groud_glass_opacity", "ground_glass_opacity")


@dataclass(frozen=True)
class _OutlinedMask(Annotation):
    """A mask image, with the polygons of the same lesions and the size of their image."""

    outlines: tuple[Shape, ...]


class COVID19Rural(DownloadedDataset):
    """COVID-19 Rural with its opacity annotations; github.com/haimingt/opacity_segmentation_covid_chest_X_ray.

    The split `all` is the 221 annotated radiographs. Published evaluations use a test list of 45 images, which comes
    with the MAVL repository: give it as `image_list`.

    An image is positive if its LabelMe file has a polygon of anything but a lung (labels that end in `_lung`); its
    region is the union of these polygons. All patients have COVID-19: a negative image has no visible opacity. Masks
    are used on request only, because 28 of the 221 images have none and their contents are not documented. With masks,
    an image without a polygon of opacity stays negative, a positive one without a mask is positive without a region,
    and the results count masks that go far beyond the polygons. Without a LabelMe file, the mask decides.

    Args:
        root: Folder of the download, `covid_rural_annot` or one above it.
        regions: Whether regions come from the `polygons` or the `masks`.
        **kwargs: `image_list` and the options of every dataset.
    """

    name = "covid"
    names_patients = True
    findings = (_FINDING,)
    splits = ("all",)
    folders: ClassVar = {"all": (_IMAGES,)}
    files: ClassVar = {"": ("jsons/*.json", "pngs_masks/*.png")}
    layout = f"{_IMAGES}/<image>.jpg and {_IMAGES}/jsons/<image>.json, and for masks {_MASKS}/<image>.png"

    def __init__(self, root: str, regions: Literal["polygons", "masks"] = "polygons", **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        if self.annotations is not None:
            raise UsageError("--data.annotations: COVID-19 Rural has one annotation file per image.")
        self.regions = regions

    def image_key(self, path: Path) -> str | None:
        # Skip masks and a model's predictions, which lie beside the images.
        if path.suffix.lower() == ".png" and (path.name.lower().endswith(".jpg.png") or path.parent.name == _MASKS):
            return None
        return path.stem

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        files = [path for path in folder.ending(".json") if path.parent.name == _OUTLINES]
        masks: Mapping[str, list[Path]] = {}
        if self.regions == "masks":
            masks = Folder(self.root, lambda path: path.stem if path.parent.name == _MASKS else None, (".png",)).images
        if not files and not masks:
            raise UserError(
                f"{self.name}: no {_IMAGES}/{_OUTLINES}/<image>.json lies under {self.root}. {folder.hint([_OUTLINES])}"
                f"Expected in --data.root: {self.layout}."
            )
        if several := next((image for image, paths in masks.items() if len(paths) > 1), None):
            paths = ", ".join(map(str, masks[several]))
            raise UserError(f"{self.name}: {several} has several masks: {paths}. Keep one there.")
        cases = [self._read_labelme(path) for path in files]
        if self.regions == "masks":
            outlined = {case.image_id for case in cases}
            cases = [self._with_mask(case, masks.get(case.image_id)) for case in cases]
            for image in [image for image in masks if image not in outlined]:
                self.note("a radiograph without a LabelMe file; its mask image decides whether it is positive", image)
                (path,) = masks[image]
                drawn = (Annotation(_FINDING, path),) if decode_image(path).any() else ()
                cases.append(ImageAnnotations(image, {_FINDING: len(drawn)}, drawn))
        return cases

    def load(self, record: Record) -> Radiograph:
        radiograph = super().load(record)
        region = radiograph.regions.get(_FINDING)
        if region is None:
            return radiograph
        for annotation in record.source.annotations:
            if isinstance(annotation, _OutlinedMask) and annotation.outlines[0].size == region.shape:
                drawn = union(annotation.outlines, *region.shape)
                if (region & ~drawn).sum() > drawn.sum():
                    return replace(radiograph, notes=(*radiograph.notes, _BEYOND))
        return radiograph

    def _read_labelme(self, path: Path) -> ImageAnnotations:
        content = read_json(self.name, self.reading(path))
        annotations = []
        with self.blamed(path, "which is not a LabelMe file of polygons"):
            size = image_size(content["imageHeight"], content["imageWidth"])
            for shape in content["shapes"]:
                label, points = str(shape["label"]).strip(), shape["points"]
                if label.casefold().endswith("_lung"):
                    continue
                if label.casefold() not in _OPACITIES:
                    self.note(f"a polygon of the unknown label {label!r}, taken for an opacity", path.stem)
                if shape["shape_type"] == "rectangle":
                    (x0, y0), (x1, y1) = points
                    points = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
                elif shape["shape_type"] != "polygon":
                    raise ValueError(f"the shape {label!r} is a {shape['shape_type']}, not a polygon")
                annotations.append(Annotation(_FINDING, Shape.from_points(points)))
        return ImageAnnotations(path.stem, {_FINDING: int(bool(annotations))}, tuple(annotations), size)

    def _with_mask(self, case: ImageAnnotations, paths: list[Path] | None) -> ImageAnnotations:
        if not case.annotations:
            if paths:
                self.note("a mask image of a radiograph without a polygon of opacity, not used", case.image_id)
            return case
        if not paths:
            self.note("a radiograph with opacity but without a mask image, scored for recognition only", case.image_id)
            return ImageAnnotations(case.image_id, case.labels)
        assert case.size is not None
        outlines = tuple(part for annotation in case.annotations for part in annotation.parts(*case.size))
        mask = _OutlinedMask(_FINDING, paths[0], outlines)
        return ImageAnnotations(case.image_id, case.labels, (mask,))
