"""Base class of the datasets that YAML configures: names of findings, images by path, a table of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xbench.data.annotations.folder import IMAGE_SUFFIXES, Folder
from xbench.data.annotations.items import Annotation, Drawn
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.data.decoding import decode_image
from xbench.data.records import Record
from xbench.findings.names import FINDINGS, canonical, findings_problem, is_folder_name, is_name
from xbench.geometry.shapes import FRACTIONS, Shape
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.files import expand


class OwnDataset(DownloadedDataset):
    """The user's own images and annotations in a common format.

    An annotation file names an image by its path below `root`, or by the last parts of the path if they are unique;
    endings do not matter. Labels that `findings` does not name are left out, counted and listed.

    Args:
        root: Folder of the images. `~` and environment variables are expanded.
        findings: Name of each finding in the annotation files, and its name for models and results, as
            `{nodule: Nodule, eff: Pleural Effusion}`; several labels may have the same finding. A list if the names are
            equal. Any spelling that `list findings` shows becomes the name there.
        name: Name of the dataset in results and run folders.
        split: Name of the split in results.
        recognition_only: Findings that have labels but no annotations: they are scored for recognition only, and
            annotations of them are left out and counted.
        patient: Column of the labels, or key of COCO's images, with the patient. Without one, each image counts as a
            patient.
        **kwargs: `annotations`, `image_list` and the options of every dataset. Files are looked for in the working
            directory, then in `root`.
    """

    advice: ClassVar[str] = "Correct it there."
    states_sizes = True
    text: str | None = None  # column or key of the phrases in the annotation files; None for findings

    def __init__(
        self,
        root: str,
        findings: dict[str, str] | list[str],
        name: str = "own",
        split: str = "all",
        recognition_only: list[str] | None = None,
        patient: str = "patient_id",
        **kwargs: Any,
    ) -> None:
        names = dict(findings) if isinstance(findings, Mapping) else {finding: finding for finding in findings}
        self.names = {str(label).strip(): canonical(finding) or finding for label, finding in names.items()}
        self.findings = tuple(dict.fromkeys(self.names.values()))
        self.recognition_only = tuple(canonical(finding) or finding for finding in recognition_only or ())
        self.name, self.splits, self.patient, self.phrases = name, (split,), patient, self.text is not None
        problem = ""
        if not is_folder_name(name) or not is_name(split):
            problem = f"--data.name {name} --data.split {split}: give printable characters, no slash, no = + - @ first"
        elif name in FINDINGS:
            problem = f"--data.name {name} is the name of a dataset of the package: give another"
        elif (self.findings or self.text is None) and (wrong := findings_problem(self.findings)):
            problem = f"--data.findings: {wrong}"
        elif unknown := [finding for finding in self.recognition_only if finding not in self.findings]:
            problem = f"--data.recognition_only {unknown[0]} is not one of the findings, {', '.join(self.findings)}"
        if problem:
            raise UsageError(f"{problem}.")
        super().__init__(root, split=split, **kwargs)
        self.annotations = self.place(self.annotations)
        self._root_prefix = f"{self.root.as_posix().rstrip('/')}/"
        self._by_last: dict[str, list[str]] = {}
        self._images: Mapping[str, Sequence[Path]] = {}

    def place(self, path: str | Path | None) -> Path | None:
        """Return the path of a file or folder given as an option: in the working directory, or else in `root`."""
        given = None if path is None else expand(path)
        return given if given is None or given.exists() or not (self.root / given).exists() else self.root / given

    def image_key(self, path: Path) -> str | None:
        return path.as_posix().removeprefix(self._root_prefix).rpartition(".")[0]

    def listed_key(self, entry: str) -> str:
        """Return the image for a name in an annotation file; UserError if several images fit."""
        path = entry.strip().replace("\\", "/").removeprefix(self._root_prefix).removeprefix("./")
        path = path.rpartition(".")[0] if path.lower().endswith(IMAGE_SUFFIXES) else path
        if path in self._images:
            return path
        near = [key for key in self._by_last.get(path.rpartition("/")[2], ()) if key.endswith(f"/{path}")]
        if len(near) > 1:
            raise UserError(
                f"{len(near)} images under {self.root} are called {entry!r:.80} (first: {', '.join(near[:3])}): write "
                "the path below --data.root, or set --data.root to a folder that holds one of them."
            )
        return near[0] if near else path

    def finding_of(self, label: str, image_id: str) -> str | None:
        """Return the finding of a label; None, with a note, if unnamed; UserError if it nearly equals a named label."""
        if label in self.names:
            return self.names[label]
        for known in self.names:
            if _folded(known) == _folded(label):
                raise UserError(f"{label!r:.60} is not {known!r}, which --data.findings names: name both there")
        self.note(f"an annotation of {label!r}, which --data.findings does not name, left out", image_id)
        return None

    def drawn(self, finding: str, drawn: Drawn, image_id: str) -> list[Annotation]:
        """Return the annotation; empty, with a note, if the finding is scored for recognition only."""
        if finding not in self.recognition_only:
            return [Annotation(finding, drawn)]
        self.note(f"an annotation of {finding}, which is scored for recognition only, left out", image_id)
        return []

    def check_drawn(self, path: Path, drawn: Iterable[str]) -> None:
        """Raise a UserError if a finding, unless in `recognition_only`, has no annotation on any image."""
        if never := [f for f in self.findings if f not in {*drawn, *self.recognition_only}]:
            raise UserError(
                f"{self.name}: {path} has no annotation of {never[0]}, on any image. If that is intended, add "
                f"it to --data.recognition_only; else correct its name in --data.findings."
            )

    def check_sizes(self, path: Path, cases: Iterable[ImageAnnotations], advice: str) -> None:
        """Raise a UserError, with the advice, if boxes are corners: 19 in 20 fit as corners, a quarter not as sizes."""
        shapes = ((case, annotation.drawn) for case in cases for annotation in case.annotations)
        boxes = [(case, shape) for case, shape in shapes if isinstance(shape, Shape) and shape.kind == "box"]
        first, last = np.array([box.coordinates for _, box in boxes]).reshape(-1, 2, 2).swapaxes(0, 1)
        if ((first >= 0) & (first < last - first)).all(axis=1).sum() < 0.95 * len(boxes):
            return
        inside, over = [], []
        for case, box in boxes[:: len(boxes) // 100 + 1]:
            x, y, right, bottom = box.coordinates.tolist()
            with suppress(UserError, LookupError):
                size = FRACTIONS if box.size == FRACTIONS else case.size
                height, width = (1.01 * side for side in size or decode_image(self._images[case.image_id][0]).shape)
                inside.append(right - x <= width and bottom - y <= height)
                over += [case.image_id] if right > width or bottom > height else []
        if over and sum(inside) >= 0.95 * len(inside) and len(over) >= len(inside) / 4:
            raise UserError(
                f"{self.name}: {path}: as x, y, width and height, {len(over)} of {len(inside)} boxes reach over an "
                f"edge of the image (first: {', '.join(over[:3])}); as corners they fit, so these are corners. {advice}"
            )

    def read_labels(self, path: Path, image_column: str) -> dict[str, dict[str, int]]:
        """Read a table of labels: a row per image, a column per finding with 1, 0, or empty or -1 for unknown."""
        labels: dict[str, dict[str, int]] = {}
        columns: dict[str, list[str]] = {}
        for row in self.rows(path, [image_column]):
            columns = columns or {
                finding: [name for name in row.values if name == finding or self.names.get(name) == finding]
                for finding in self.findings
            }
            absent = [(label, finding) for label, finding in self.names.items() if not columns[finding]]
            if absent and self.text is None:
                wanted = ", ".join(label if label == name else f"{label} (for {name})" for label, name in absent)
                there = f"{', '.join(row.values):.300}. Correct --data.findings or the file."
                raise UserError(f"{self.name}: {path} has no column {wanted}. Its columns: {there}")
            name = row.name(image_column)
            with row.blamed():
                image = self.listed_key(name)
            if image in labels:
                raise row.error(f"{image} is listed twice")
            if patient := row.get(self.patient):
                self._patients[image] = patient
            self._stated[image] = row.get("sex"), row.get("age"), row.get("projection")
            flags = {finding: [row.flag(name) for name in columns[finding]] for finding in self.findings}
            labels[image] = {f: int(1 in own) for f, own in flags.items() if 1 in own or (own and None not in own)}
        return labels

    def read_records(self, annotated: bool) -> Sequence[Record]:
        records = super().read_records(annotated)
        for record in [record for record in records if record.queries is None]:
            drawn = {*self.recognition_only, *(one.finding for one in record.source.annotations)}
            for finding in sorted(f for f, label in record.labels.items() if label == 1 and f not in drawn):
                self.note(f"{finding}, present without annotation, is scored for recognition only", record.image_id)
        return records

    def is_cut_off(self, shape: Shape) -> bool:
        cut_off = shape.leaves()
        if cut_off and not shape.draw().any():
            height, width = shape.size
            raise UserError(f"It lies outside the image of {width} x {height} pixels. {self.advice}")
        return cut_off

    def _images_of_split(self, folder: Folder) -> Mapping[str, Sequence[Path]]:
        self._images = super()._images_of_split(folder)
        self._by_last = {}
        for image in self._images:
            self._by_last.setdefault(image.rpartition("/")[2], []).append(image)
        return self._images


def _folded(label: str) -> str:
    return " ".join(label.replace("_", " ").replace("-", " ").split()).casefold()
