"""SIIM-ACR Pneumothorax: radiographs with masks of the pneumothorax, and without one."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from xbench.data.base import ChestXrayDataModule, Radiograph, Record
from xbench.data.decoding import decode_image
from xbench.data.rle import decode_relative_rle
from xbench.errors import UserError
from xbench.findings import FINDINGS

__all__ = ["SIIMPneumothorax"]

(_FINDING,) = FINDINGS["siim"]
# Masks are drawn in the frame of the official images, whatever the size of the copy at hand.
_FRAME = 1024
_TABLES = ("train-rle.csv", "stage_2_train.csv")
_SUFFIXES = (".dcm", ".dicom", ".png", ".jpg", ".jpeg")
_FOLDERS = {"stage1_train": "dicom-images-train", "stage1_test": "dicom-images-test"}
_LAYOUT = (
    "dicom-images-train/<study>/<series>/<image>.dcm, dicom-images-test/... or stage_2_images/<image>.dcm, with "
    f"{_TABLES[0]} or {_TABLES[1]} beside them"
)


@dataclass(frozen=True)
class _Source:
    path: Path | None
    masks: tuple[str, ...]


class SIIMPneumothorax(ChestXrayDataModule):
    """SIIM-ACR Pneumothorax, as it is downloaded; kaggle.com/c/siim-acr-pneumothorax-segmentation.

    An image is positive if the annotation file gives it a mask; its region is the union of its masks, which lie
    scattered over the file. It is negative if the file says -1. Images that the file does not name are not scored.

    The split `all` is every image that the annotation file names; `stage1_train` and `stage1_test` are those of them
    whose file lies in `dicom-images-train` and `dicom-images-test`. The lists that published evaluations use do not
    come with the download: give such a one as `image_list`.

    Args:
        root: Folder of the download. Images are found by name anywhere below it, as DICOM, or converted to PNG or JPEG
            if they are still square. `~` and environment variables are expanded.
        annotations: The annotation file, where it is not `train-rle.csv` or `stage_2_train.csv` under `root`.
        image_list: A text or CSV file that names an image in the first column of each line: exactly these are taken,
            each once.
        **kwargs: The options of every dataset.

    Raises:
        UserError: `root` is not a folder, an option is out of its range, or `image_list` is given with another split
            than `all`.
    """

    name = "siim"
    findings = (_FINDING,)
    splits = ("all", *_FOLDERS)

    def __init__(self, root: str, annotations: str | None = None, image_list: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = _expand(root)
        if not self.root.is_dir():
            raise UserError(f"siim: --data.root {self.root} is not a folder. Expected there: {_LAYOUT}.")
        if image_list is not None and self.split != "all":
            raise UserError(
                f"--data.image_list and --data.split {self.split} choose images both: leave one out.", exit_status=2
            )
        self.annotations = None if annotations is None else _expand(annotations)
        self.image_list = None if image_list is None else _expand(image_list)
        self._files_read: list[Path] = []

    def read_records(self, annotated: bool) -> Sequence[Record]:
        """List the images of the split by name.

        An annotated image without a file is listed as missing.

        Raises:
            UserError: The annotation file or the list is missing or malformed, an image has two files, or none
                has any.
        """
        images, tables = _find_files(self.root)
        masks: Mapping[str, Sequence[str]] = {}
        self._files_read = []
        names: Collection[str] = images.keys()
        if annotated:
            table = self._choose_table(tables)
            names = masks = _read_table(table)
            self._files_read.append(table)
        if self.image_list is not None:
            names = _read_list(self.image_list)
            self._files_read.append(self.image_list)
            if annotated and (unknown := sorted(names - masks.keys())):
                raise UserError(
                    f"siim: {len(unknown)} of {len(names)} images of {self.image_list} are not annotated in {table} "
                    f"(first: {unknown[0]!r})."
                )
        if names and not images.keys() & names:
            raise UserError(
                f"siim: not one of {len(names)} images has a file under {self.root} (first: {min(names)}.dcm). "
                f"Expected there: {_LAYOUT}."
            )
        names = self._in_split(names, images)
        for name in sorted(names):
            if len(images.get(name, ())) > 1:
                raise UserError(
                    f"siim: image {name} has several files: {', '.join(map(str, images[name]))}. Which one to score is "
                    "not for us to guess: set --data.root to a folder that holds one copy."
                )
        return [
            Record(
                name,
                {_FINDING: int(bool(masks[name]))} if annotated else {},
                _Source(next(iter(images.get(name, ())), None), tuple(masks.get(name, ()))),
                missing=name not in images,
            )
            for name in sorted(names)
        ]

    def load(self, record: Record) -> Radiograph:
        """Decode an image and draw the union of its masks in the official frame, 1024 x 1024.

        Raises:
            UserError: The file is missing or unreadable, not square (the masks would not fit), or a mask is malformed.
        """
        source: _Source = record.source
        if source.path is None:
            raise UserError(f"No file {record.image_id}.dcm (or .png, .jpg) lies under {self.root}.")
        image = decode_image(source.path)
        height, width = image.shape
        if record.labels and height != width:
            raise UserError(
                f"{source.path} is {width} x {height}: the masks are drawn for the square official image, and do not "
                "fit a copy of another shape."
            )
        if not source.masks:
            return Radiograph(image)
        try:
            return Radiograph(image, {_FINDING: decode_relative_rle(source.masks, _FRAME, _FRAME)})
        except UserError as error:
            raise UserError(f"{self._files_read[0]}, image {record.image_id}: {error}") from None

    def annotation_files(self) -> Sequence[Path]:
        """Return the annotation file and the list of images that the records were read from."""
        return self._files_read

    def _choose_table(self, found: Sequence[Path]) -> Path:
        if self.annotations is not None:
            return self.annotations
        if len(found) > 1:
            raise UserError(
                f"siim: several annotation files lie under {self.root}: {', '.join(map(str, found))}. They do not "
                "annotate the same images: choose one with --data.annotations."
            )
        if found:
            return found[0]
        above = (folder / name for folder in self.root.absolute().parents[:3] for name in _TABLES)
        near = next((path for path in above if path.is_file()), None)
        hint = f"There is {near}: did you mean --data.root {near.parent}? " if near else ""
        raise UserError(
            f"siim: neither {_TABLES[0]} nor {_TABLES[1]} lies under {self.root}. {hint}Expected in --data.root: "
            f"{_LAYOUT}. An annotation file elsewhere is named with --data.annotations."
        )

    def _in_split(self, names: Collection[str], images: Mapping[str, Sequence[Path]]) -> Collection[str]:
        if self.split == "all":
            return names
        folder = _FOLDERS[self.split]
        chosen = [name for name in names if any(folder in path.absolute().parts for path in images.get(name, ()))]
        if not chosen:
            raise UserError(
                f"siim: split {self.split}: none of the images lies in a folder {folder} under {self.root} and is "
                f"annotated. ({_TABLES[0]} annotates the stage-1 training images only; {_TABLES[1]} all of stage 1.)"
            )
        if homeless := len(names - images.keys()):
            rank_zero_warn(
                f"siim: {homeless} annotated images have no file under {self.root}. The split {self.split} goes by the "
                "folder of the file, so they are in neither split and not counted."
            )
        return chosen


def _expand(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def _find_files(root: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """Image files by the name of the image, and annotation files, anywhere under a folder."""
    images: defaultdict[str, list[Path]] = defaultdict(list)
    tables = []
    seen = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        # Parts of a download are often links to another disk, and a link may lead back up.
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for file in sorted(files):
            stem, suffix = os.path.splitext(file)
            if file in _TABLES:
                tables.append(Path(folder, file))
            elif suffix.lower() in _SUFFIXES and not file.startswith("."):
                images[stem].append(Path(folder, file))
    return dict(images), tables


def _read_table(path: Path) -> dict[str, list[str]]:
    """Encoded masks of each annotated image; none for a negative one."""
    masks: defaultdict[str, list[str]] = defaultdict(list)
    negative = set()
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            if not {"ImageId", "EncodedPixels"} <= set(header):
                raise UserError(f"siim: {path} has the columns {header}; ImageId and EncodedPixels are expected.")
            for row in filter(None, reader):
                fields = {name: value.strip() for name, value in zip(header, row, strict=False)}
                if len(row) != len(header) or not fields["ImageId"] or not fields["EncodedPixels"]:
                    raise UserError(f"siim: {path}, line {reader.line_num}: not a value for each of {header}.")
                if fields["EncodedPixels"] == "-1":
                    negative.add(fields["ImageId"])
                else:
                    masks[fields["ImageId"]].append(fields["EncodedPixels"])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"siim: the annotation file {path} cannot be read: {error}.") from error
    if both := sorted(negative & masks.keys()):
        raise UserError(
            f"siim: {path} calls {len(both)} images negative (-1) and gives them masks as well (first: {both[0]})."
        )
    return {**masks, **{name: [] for name in negative}}


def _read_list(path: Path) -> set[str]:
    """Names of images in the first column of a text or CSV file, without folder and suffix."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"siim: --data.image_list {path} cannot be read: {error}.") from error
    entries = [line.partition(",")[0].strip(' "\t') for line in lines]
    if entries and entries[0].casefold() == "imageid":
        del entries[0]
    files = [os.path.basename(entry) for entry in entries if entry]
    return {os.path.splitext(file)[0] if file.lower().endswith(_SUFFIXES) else file for file in files}
