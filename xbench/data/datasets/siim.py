"""SIIM-ACR Pneumothorax: radiographs with and without masks of the pneumothorax."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation, RunLengths
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.findings.names import FINDINGS
from xbench.runtime.errors import UsageError, UserError

(_FINDING,) = FINDINGS["siim"]
_FRAME = (1024, 1024)


class SIIMPneumothorax(DownloadedDataset):
    """SIIM-ACR Pneumothorax as downloaded; kaggle.com/c/siim-acr-pneumothorax-segmentation.

    An image with a mask in the annotation file is positive; its region is the union of its masks, which may be in
    distant rows. An image with -1 is negative. Run lengths are relative and column by column: see `RunLengths` in
    `annotations/items.py`.

    The split `all` is every annotated image; `stage1_train` and `stage1_test` are those with a file in
    `dicom-images-train` or `dicom-images-test`. The lists of published evaluations are not in the download: give one as
    `image_list`.

    Args:
        root: Folder of the download. Images are found by name anywhere below it, as DICOM, or converted to PNG or JPEG
            if they are still square.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "siim"
    findings = (_FINDING,)
    splits = ("all", "stage1_train", "stage1_test")
    files: ClassVar = {"annotations": ("train-rle.csv", "stage_2_train.csv")}
    layout = (
        "dicom-images-train/<study>/<series>/<image>.dcm, dicom-images-test/... or stage_2_images/<image>.dcm, with "
        "train-rle.csv or stage_2_train.csv beside them"
    )
    folders: ClassVar = {"stage1_train": ("dicom-images-train",), "stage1_test": ("dicom-images-test",)}

    exhaustive = False  # the public files include images of the second stage, whose labels are not public

    def __init__(self, root: str, **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        if self.image_list is not None and self.split != "all":
            raise UsageError(f"--data.image_list and --data.split {self.split} both choose images: leave one out.")

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        path = self.file(folder, names=self.files["annotations"])
        masks: defaultdict[str, list[Annotation]] = defaultdict(list)
        negative = set()
        for row in self.rows(path, ("ImageId", "EncodedPixels")):
            name, mask = row.name("ImageId"), row.name("EncodedPixels")
            if mask == "-1":
                negative.add(name)
            elif not row.ended and len(mask.split()) % 2:
                raise row.error("the file is cut off within this mask: its numbers are not pairs")
            else:
                masks[name].append(Annotation(_FINDING, RunLengths(mask)))
        if both := sorted(negative & masks.keys()):
            raise UserError(
                f"siim: {path} calls {len(both)} images negative (-1) but gives them masks (first: {both[0]!r:.80})."
            )
        cases = {name: ImageAnnotations(name, {_FINDING: 1}, tuple(drawn), _FRAME) for name, drawn in masks.items()}
        cases |= {name: ImageAnnotations(name, {_FINDING: 0}, (), _FRAME) for name in negative}
        if self.split == "all":
            return cases.values()
        (place,) = self.folders[self.split]
        chosen = [cases[image] for image in folder.in_folder(place) if image in cases]
        if not chosen:
            raise UserError(
                f"siim: split {self.split}: no image in a folder {place} under {self.root} is "
                f"annotated. (train-rle.csv annotates the stage-1 training images only; stage_2_train.csv all of "
                "stage 1.)"
            )
        for name in sorted(cases.keys() - folder.images.keys()):
            self.note("an annotated image without a file; it is in neither split, which go by the folder", name)
        return chosen
