"""Base class of downloaded datasets: find files, match them with annotations, draw regions."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, ClassVar

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn

from xbench.data.annotations.folder import IMAGE_SUFFIXES, Folder, names_in
from xbench.data.annotations.items import Annotation, one_item, reader_agreement
from xbench.data.annotations.tables import AGAIN, Row, read_csv, read_image_list, reason
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.decoding import decode_image
from xbench.data.records import Radiograph, Record
from xbench.findings.attributes import ATTRIBUTES
from xbench.findings.queries import Query
from xbench.geometry.shapes import Mask, Shape
from xbench.runtime.errors import UserError
from xbench.runtime.files import expand
from xbench.types import Note

_NOT_ENDED = "the last row of a table without a line end, which may have been cut off within its last value"
_NOT_DRAWN = "a present phrase has no annotation, so no number counts it"
_OTHER_SIZE = "an image of another size than its annotation file states; shapes are drawn in the stated one"
_CUT_OFF = "an annotation reaches over the edge of the image and is cut off there"


@dataclass(frozen=True)
class ImageAnnotations:
    """Labels of one image as in `Record`, and all annotations.

    `size` is the height and width that the annotations refer to; None for those of the image file. Keys of labels and
    findings of annotations are names of `queries`, if the image has its own.
    """

    image_id: str
    labels: Mapping[str, int]
    annotations: tuple[Annotation, ...] = ()
    size: tuple[int, int] | None = None
    queries: tuple[Query, ...] | None = None
    others: tuple[Annotation, ...] = ()  # by further readers; used for agreement, not for regions


@dataclass(frozen=True)
class Source:
    """`Record.source` of a download: the image file, or None if missing, and its annotations."""

    path: Path | None
    annotations: tuple[Annotation, ...] = ()
    size: tuple[int, int] | None = None
    others: tuple[Annotation, ...] = ()


class DownloadedDataset(ChestXrayDataModule):
    """A dataset as downloaded: images in some folder, and annotation files that name them.

    Images are found by name anywhere below `root`, or below the split's folder if the download has one. Annotated
    images without a file count as missing; unannotated images are left out and counted.

    Args:
        root: Folder of the download. `~` and environment variables are expanded.
        annotations: Annotation file, if it lies outside of `root` or has another name.
        image_list: Text or CSV file that names an image in the first column of each line: use exactly these images of
            the split, each once.
        **kwargs: The options of every dataset.
    """

    layout: ClassVar[str]  # files expected in `root`, in words, for messages
    phrases: bool = False  # whether images have their own phrases, so that prediction needs the annotation files, too
    exhaustive: bool = True  # whether the annotation files name every image of the split; each other one gets a note
    percentiles: ClassVar[tuple[float, float] | None] = None  # window of a PNG of more than 8 bits: see `decode_image`
    suffixes: ClassVar[Sequence[str]] = IMAGE_SUFFIXES  # endings of the image files, in lower case
    advice: ClassVar[str] = AGAIN  # what to do about a wrong annotation file, for messages
    folders: ClassVar[Mapping[str, Sequence[str]]] = {}  # names of the image folders of each split, if separate
    # Names of required annotation files (one of each list, see `names_in`), by the option that names such a file
    # elsewhere. Must be a literal: it is read from the source before PyTorch is imported.
    files: ClassVar[Mapping[str, Sequence[str]]] = {}
    states_sizes: ClassVar[bool] = False  # whether annotation files state image sizes, which may differ from the files'
    names_patients: ClassVar[bool] = False  # whether image names start with the patient's, up to the first `_`

    def __init__(self, root: str, annotations: str | None = None, image_list: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = expand(root)
        if not os.path.isdir(self.root):
            what = "is a file; unpack it and give the folder" if os.path.isfile(self.root) else "is not a folder"
            raise UserError(f"{self.name}: --data.root {self.root} {what}. Expected there: {self.layout}.")
        self.annotations = None if annotations is None else expand(annotations)
        self.image_list = None if image_list is None else expand(image_list)
        self._files_read: list[Path] = []
        self._archives: list[Path] = []
        self._elsewhere: list[Path] = []
        self._patients: dict[str, str] = {}  # by image, from the annotation files
        self._stated: dict[str, Sequence[Any]] = {}  # sex, age and projection by image, from the annotation files

    @abstractmethod
    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        """Read the split's annotation files with `file`, `reading` and `note`; UserError if missing or malformed."""

    def image_key(self, path: Path) -> str | None:
        """Return an image's name in the annotation files: by default its file name without the ending."""
        return path.stem

    def note(self, text: str, image_id: str) -> None:
        """Count something odd about the annotations of an image."""
        self.notes.append(Note(text if len(text) <= 200 else f"{text[:197]}...", image_id))

    def file(self, folder: Folder, option: str = "annotations", names: Sequence[str] = ()) -> Path:
        """Return a file given as an option, or else the first under `root` with one of the names (default: `files`)."""
        given: Path | None = getattr(self, option, None)
        if given is None:
            if not names:
                first, *others = names_in(self.split, self.files[option])
                names = [first] if folder.find(first) else [first, *others]
            shown = option if hasattr(self, option) else ""
            given = folder.choose(self.name, names, self.layout, shown, (self.split, *self.splits))
        elif not os.path.exists(given):
            raise UserError(f"{self.name}: --data.{option} {given} does not exist. Correct the path.")
        return self.reading(given)

    def optional_file(self, folder: Folder, *names: str) -> Path | None:
        """Return the file under `root` with one of these names; None if it is not even in an archive."""
        return self.file(folder, "", names) if folder.find(*names) or folder.packed(*names) else None

    def rows(self, path: Path, columns: Sequence[str], header: Sequence[str] | None = None) -> Iterator[Row]:
        """Read a table whose first column is the image as `read_csv` does, and note a possibly cut-off end."""
        for row in read_csv(self.name, path, columns, header, self.advice):
            if not row.ended:
                self.note(_NOT_ENDED, self.listed_key(row.name(columns[0])))
            yield row

    @contextmanager
    def blamed(self, path: Path, entry: str, advice: str = "") -> Iterator[None]:
        """Turn an error about an entry of a file into a `UserError` that names the entry."""
        try:
            yield
        except (UserError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(f"{self.name}: {path}, {entry}: {reason(error):.500}. {advice or self.advice}") from None

    def compare(self, found: Mapping[str, int], published: Mapping[str, int]) -> None:
        """Warn if counts of the annotation files differ from published counts."""
        wrong = {what: (found.get(what, 0), count) for what, count in published.items() if found.get(what, 0) != count}
        if wrong:
            listed = "; ".join(f"{what}: {there:,} instead of {count:,}" for what, (there, count) in wrong.items())
            rank_zero_warn(
                f"{self.name}: the annotation files do not match their published counts ({listed}). They may be "
                "another release, or incomplete; they are read unchanged."
            )

    def reading(self, path: Path) -> Path:
        """Record that an annotation file was used, for the digests in the results; return it."""
        self._files_read.append(path)
        return path

    def read_records(self, annotated: bool) -> Sequence[Record]:
        """Return the images of the split by name, missing ones included; UserError for duplicates and bad files."""
        self._files_read, self._patients, self._stated = [], {}, {}
        folder = Folder(self.root, self.image_key, self.suffixes)
        self._archives = folder.archives
        images = self._images_of_split(folder)
        cases: dict[str, ImageAnnotations] = {}
        for case in self.read_annotations(folder) if annotated or self.phrases else ():
            if case.image_id in cases:
                raise UserError(
                    f"{self.name}: {case.image_id!r:.80} is annotated twice in {self._files_in_words()}. Remove one."
                )
            cases[case.image_id] = case if annotated else ImageAnnotations(case.image_id, {}, queries=case.queries)
            present = {name for name, label in case.labels.items() if label == 1} if case.queries else set()
            if present - {annotation.finding for annotation in case.annotations}:
                self.note(_NOT_DRAWN, case.image_id)
        names = set(cases) if annotated or self.phrases else set(images)
        if annotated and self.exhaustive:
            for name in sorted(images.keys() - names):
                self.note("an image that the annotation files do not name, left out", name)
        if self.image_list is not None:
            entries = read_image_list(self.name, self.reading(self.image_list))
            listed = {self.listed_key(entry) for entry in entries}
            if unknown := sorted(listed - names):
                raise UserError(
                    f"{self.name}: {len(unknown)} of {len(listed)} images of {self.image_list} are not in the split "
                    f"{self.split!r} (first: {unknown[0]!r}). Correct --data.image_list or --data.split."
                )
            names = listed
        self._elsewhere = [folder.images[name][0] for name in sorted(names - images.keys()) if name in folder.images]
        self.notes = [*dict.fromkeys(self.notes)]
        return [self._record(name, cases.get(name, ImageAnnotations(name, {})), images) for name in sorted(names)]

    def load(self, record: Record) -> Radiograph:
        """Decode an image and draw each finding's region, the union of its annotations, in their own frame."""
        source: Source = record.source
        if source.path is None:
            raise UserError(f"The image {record.image_id} has no file under {self.root}.")
        image = decode_image(source.path, self.percentiles)
        height, width = source.size or image.shape
        # Resized copies may differ in proportions by one pixel of rounding.
        off = abs(height * image.shape[1] - width * image.shape[0])
        if source.annotations and off > max(height, width, *image.shape):
            raise UserError(
                f"{source.path} is {image.shape[1]} x {image.shape[0]} pixels, and its annotations are drawn for "
                f"{width} x {height}, which has other proportions. Use the original image."
            )
        regions: dict[str, Mask] = {}
        items: defaultdict[str, list[Shape]] = defaultdict(list)
        of_all: defaultdict[str, list[Shape]] = defaultdict(list)
        notes = [_OTHER_SIZE] if self.states_sizes and source.annotations and image.shape != (height, width) else []
        for place, annotation in enumerate((*source.annotations, *source.others)):
            finding = annotation.finding
            try:
                parts = annotation.parts(height, width)
                notes += [_CUT_OFF for part in parts if self.is_cut_off(part)]
                item = one_item(parts)
                drawn = item.draw()
            except UserError as error:
                where = f"{self._files_in_words()}, image {record.image_id}, {finding}"
                raise UserError(f"{where}: {error}") from None
            kept = [item] if drawn.any() else []
            of_all[finding] += kept
            if place < len(source.annotations):
                region = regions.setdefault(finding, np.zeros((height, width), np.bool_))
                region |= drawn
                items[finding] += kept
        agreement = {finding: scores for finding, drawn in of_all.items() if (scores := reader_agreement(drawn))}
        return Radiograph(image, regions, tuple(dict.fromkeys(notes)), agreement, items)

    def is_cut_off(self, shape: Shape) -> bool:
        """Tell whether a shape reaches beyond its image, which is worth a note."""
        return shape.leaves()

    def where_images_are(self) -> str:
        if self._elsewhere:
            return (
                f"{len(self._elsewhere)} of them lie outside the folder of the split {self.split!r} (first: "
                f"{self._elsewhere[0]}): do the annotations belong to another --data.split?"
            )
        first = ", ".join(map(str, self._archives[:3]))
        unpack = f"Archives that are not unpacked lie there ({first}): unpack them. " if first else ""
        for above in [*self.root.absolute().parents][:2]:
            if near := [name for name in self.folders.get(self.split, ()) if os.path.isdir(above / name)]:
                return f"{unpack}There is {above / near[0]}: did you mean --data.root {above}?"
        return f"{unpack}Expected under {self.root}: {self.layout}."

    def annotation_files(self) -> Sequence[Path]:
        return self._files_read

    def _record(self, name: str, case: ImageAnnotations, images: Mapping[str, Sequence[Path]]) -> Record:
        paths = images.get(name, [])
        if len(paths) > 1:
            raise UserError(
                f"{self.name}: image {name!r:.80} has several files: {', '.join(map(str, paths))}; set --data.root to "
                "a folder that holds one copy."
            )
        path = paths[0] if paths and os.path.exists(paths[0]) else None
        masks = tuple(a.drawn for a in case.annotations if isinstance(a.drawn, Path))
        source = Source(path, case.annotations, case.size, case.others)
        files = (path, *masks) if path else None
        patient = name.partition("_")[0] if self.names_patients else self._patients.get(name)
        attributes = {key: text for key, text in zip(ATTRIBUTES, self._stated.get(name, ()), strict=False) if text}
        return Record(name, case.labels, source, path is None, files, patient, case.queries, attributes)

    def _images_of_split(self, folder: Folder) -> Mapping[str, Sequence[Path]]:
        # Use only the split's folder if there is one: copies or masks elsewhere may have the same name.
        return folder.in_folder(*self.folders.get(self.split, ())) or folder.images

    def listed_key(self, entry: str) -> str:
        """Return the image for an entry of an image list: a path or a name, with or without an ending."""
        file = PureWindowsPath(entry).name
        return file.rpartition(".")[0] if file.lower().endswith(IMAGE_SUFFIXES) else file

    def _files_in_words(self) -> str:
        more = f" and {len(self._files_read) - 3} more" if len(self._files_read) > 3 else ""
        return ", ".join(map(str, self._files_read[:3])) + more
