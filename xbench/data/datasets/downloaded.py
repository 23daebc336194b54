"""What the datasets share that are downloads: finding files, matching them with annotations, drawing regions."""

from __future__ import annotations

import os
from abc import abstractmethod
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
from xbench.runtime.paths import expand
from xbench.types import Note

_NOT_ENDED = "the last row of a table without a line end, which may have been cut off within its last value"
_NOT_DRAWN = "a phrase is present and nothing is drawn of it, so no number counts it"
_OTHER_SIZE = "an image of another size than its annotation file states; shapes are drawn in the stated one"
_CUT_OFF = "an annotation reaches over the edge of the image and is cut off there"


@dataclass(frozen=True)
class ImageAnnotations:
    """Labels of one image as in `Record`, and everything that anyone drew on it.

    `size` is the height and width that the annotations refer to; None for those of the image file. Labels and
    annotations go by the names of `queries`, if the image has its own.
    """

    image_id: str
    labels: Mapping[str, int]
    annotations: tuple[Annotation, ...] = ()
    size: tuple[int, int] | None = None
    queries: tuple[Query, ...] | None = None  # as in `Record`
    others: tuple[Annotation, ...] = ()  # of further readers, whose agreement counts and who draw no region


@dataclass(frozen=True)
class Source:
    """What an image of a download is loaded from (`Record.source`): its file, if there is one, and its annotations."""

    path: Path | None
    annotations: tuple[Annotation, ...] = ()
    size: tuple[int, int] | None = None
    others: tuple[Annotation, ...] = ()
    percentiles: tuple[float, float] | None = None  # of its window, if it has more than 8 bits


class DownloadedDataset(ChestXrayDataModule):
    """A dataset as it is downloaded: images in some folder, annotations in files that name them.

    Images are found by name anywhere below `root`, or below the folder of the split where the download has one;
    annotated images without a file count as missing, files that no annotation names are left out and counted.

    Args:
        root: Folder of the download. `~` and environment variables are expanded.
        annotations: The file of annotations, where it does not lie under `root` or is called otherwise.
        image_list: A text or CSV file that names an image in the first column of each line: exactly these images of
            the split are taken, each once.
        **kwargs: The options of every dataset.

    Attributes:
        layout: What is expected in `root`, in words, for messages.
        suffixes: Endings of its image files, in lower case.
        phrases: Whether images have phrases of their own, so that prediction needs the annotation files, too.
        exhaustive: Whether the annotation files name every image of the split, so that any other is worth a note.
        percentiles: Window of images in PNG with more than 8 bits, as `decode_image` takes it.
        advice: What to do about an annotation file that is wrong, for messages.
        folders: Names of the folders that hold the images of a split, where the download separates them.
        files: Names of the annotation files that must be there, by the option that names such a file elsewhere: one of
            each list, as `names_in` reads them. A literal: before PyTorch is imported, it is read from the source.
    """

    layout: ClassVar[str]
    phrases: bool = False
    exhaustive: bool = True
    percentiles: ClassVar[tuple[float, float] | None] = None
    suffixes: ClassVar[Sequence[str]] = IMAGE_SUFFIXES
    advice: ClassVar[str] = AGAIN
    folders: ClassVar[Mapping[str, Sequence[str]]] = {}
    files: ClassVar[Mapping[str, Sequence[str]]] = {}
    states_sizes: ClassVar[bool] = False  # whether annotation files state the size of each image, which may differ
    names_patients: ClassVar[bool] = False  # whether images are called after their patient, up to the first `_`

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
        self._patients: dict[str, str] = {}  # whose an image is, where an annotation file says so
        self._stated: dict[str, Sequence[Any]] = {}  # its sex, age and projection, as an annotation file has them

    @abstractmethod
    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        """Read the annotation files of the split, each image once; UserError where files are missing or malformed.

        Calls `note` for whatever is odd, and `file` or `reading` for each file that is read.
        """

    def image_key(self, path: Path) -> str | None:
        """Return what the annotation files call the image in a file: by default the file's name without its ending."""
        return path.stem

    def note(self, text: str, image_id: str) -> None:
        """Count something odd about the annotations of an image."""
        self.notes.append(Note(text if len(text) <= 200 else f"{text[:197]}...", image_id))

    def file(self, folder: Folder, option: str = "annotations", names: Sequence[str] = ()) -> Path:
        """Return a file to be read: the one that an option names, or else the one under `root` with one of the names.

        By default these are those in `files`, the first alone if it is there. UserError unless there is just one file.
        """
        given: Path | None = getattr(self, option, None)
        if given is None:
            if not names:
                first, *others = names_in(self.split, self.files[option])
                names = [first] if folder.find(first) else [first, *others]
            shown = option if hasattr(self, option) else ""
            given = folder.choose(self.name, names, self.layout, shown, (self.split, *self.splits))
        return self.reading(given)

    def optional_file(self, folder: Folder, *names: str) -> Path | None:
        """Return the file under `root` with one of these names; None if there is none, not even in an archive."""
        return self.file(folder, "", names) if folder.find(*names) or folder.packed(*names) else None

    def rows(self, path: Path, columns: Sequence[str], header: Sequence[str] | None = None) -> Iterator[Row]:
        """Read a table row by row as `read_csv` does, its first column being the image, and note a doubtful end."""
        for row in read_csv(self.name, path, columns, header, self.advice):
            if not row.ended:
                self.note(_NOT_ENDED, self.listed_key(row.name(columns[0])))
            yield row

    @contextmanager
    def blamed(self, path: Path, entry: str, advice: str = "") -> Iterator[None]:
        """Turn an error about what an entry of a file holds into a `UserError` about that entry."""
        try:
            yield
        except (UserError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(f"{self.name}: {path}, {entry}: {reason(error):.500}. {advice or self.advice}") from None

    def compare(self, found: Mapping[str, int], published: Mapping[str, int]) -> None:
        """Print where counts of the annotation files differ from what their owners or users report."""
        wrong = {what: (found.get(what, 0), count) for what, count in published.items() if found.get(what, 0) != count}
        if wrong:
            listed = "; ".join(f"{what}: {there:,} instead of {count:,}" for what, (there, count) in wrong.items())
            rank_zero_warn(
                f"{self.name}: the annotation files do not hold what is reported of them ({listed}). Are they another "
                "release, or a part? They are read as they are."
            )

    def reading(self, path: Path) -> Path:
        """Remember an annotation file, whose digest goes into the results; return it."""
        self._files_read.append(path)
        return path

    def read_records(self, annotated: bool) -> Sequence[Record]:
        """List the images of the split by name, an annotated one without a file as missing.

        Raises a `UserError` for missing or malformed annotation files, and an image annotated twice or with two files.
        """
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
                    f"{self.split!r} (first: {unknown[0]!r}). Give another --data.image_list or --data.split."
                )
            names = listed
        self._elsewhere = [folder.images[name][0] for name in sorted(names - images.keys()) if name in folder.images]
        # Notes count images, so each counts once for an image.
        self.notes = [*dict.fromkeys(self.notes)]
        return [self._record(name, cases.get(name, ImageAnnotations(name, {})), images) for name in sorted(names)]

    def load(self, record: Record) -> Radiograph:
        """Decode an image and draw each finding's region, the union of its annotations, in the size they refer to.

        Raises a `UserError` for a missing or unreadable file, other proportions than those of the annotations, and a
        malformed annotation.
        """
        source: Source = record.source
        if source.path is None:
            raise UserError(f"No file of the image {record.image_id} lies under {self.root}.")
        image = decode_image(source.path, source.percentiles)
        height, width = source.size or image.shape
        # Resized it shows the same extent, with a pixel of either for rounding.
        off = abs(height * image.shape[1] - width * image.shape[0])
        if source.annotations and off > max(height, width, *image.shape):
            raise UserError(
                f"{source.path} is {image.shape[1]} x {image.shape[0]} pixels, and its annotations are drawn for "
                f"{width} x {height}: they do not fit a copy of other proportions. Take the original image."
            )
        regions: dict[str, Mask] = {}
        items: dict[str, list[Shape]] = {}
        of_all: dict[str, list[Shape]] = {}
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
            if drawn.any():
                of_all.setdefault(finding, []).append(item)
            if place >= len(source.annotations):
                continue
            region = regions.setdefault(finding, np.zeros((height, width), np.bool_))
            of_finding = items.setdefault(finding, [])
            if drawn.any():
                region |= drawn
                of_finding.append(item)
        agreement = {finding: reader_agreement(of_finding) for finding, of_finding in of_all.items()}
        several = {finding: scores for finding, scores in agreement.items() if scores is not None}
        return Radiograph(image, regions, tuple(dict.fromkeys(notes)), several, items)

    def is_cut_off(self, shape: Shape) -> bool:
        """Tell whether a shape reaches over the edge of its image, which is worth a note."""
        return shape.leaves()

    def where_images_are(self) -> str:
        if self._elsewhere:
            return (
                f"{len(self._elsewhere)} of them lie outside the folder of the split {self.split!r} (first: "
                f"{self._elsewhere[0]}): are the annotations those of another --data.split?"
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
        # A link may lead nowhere.
        path = paths[0] if paths and os.path.exists(paths[0]) else None
        masks = tuple(a.drawn for a in case.annotations if isinstance(a.drawn, Path))
        source = Source(path, case.annotations, case.size, case.others, self.percentiles)
        files = (path, *masks) if path else None
        patient = name.partition("_")[0] if self.names_patients else self._patients.get(name)
        attributes = {key: text for key, text in zip(ATTRIBUTES, self._stated.get(name, ()), strict=False) if text}
        return Record(name, case.labels, source, path is None, files, patient, case.queries, attributes)

    def _images_of_split(self, folder: Folder) -> Mapping[str, Sequence[Path]]:
        # Where there is a folder of the split, nothing else is taken: a copy or mask elsewhere may have the same name.
        return folder.in_folder(*self.folders.get(self.split, ())) or folder.images

    def listed_key(self, entry: str) -> str:
        """Return the image that an entry of an image list names: a path or a name, with or without an ending."""
        file = PureWindowsPath(entry).name
        return file.rpartition(".")[0] if file.lower().endswith(IMAGE_SUFFIXES) else file

    def _files_in_words(self) -> str:
        more = f" and {len(self._files_read) - 3} more" if len(self._files_read) > 3 else ""
        return ", ".join(map(str, self._files_read[:3])) + more
