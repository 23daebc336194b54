"""A folder of radiographs without annotations, for `predict`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_warn

from xbench.data.annotations.folder import IMAGE_SUFFIXES, Folder
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.decoding import decode_image
from xbench.data.records import Radiograph, Record
from xbench.findings.names import FINDINGS, TABLE, chosen, findings_problem
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.files import expand
from xbench.types import Note

_LEFT_OUT = "a file that is not PNG, JPEG or DICOM, left out"


class ImageFolder(ChestXrayDataModule):
    """A folder of radiographs in PNG, JPEG or DICOM, or one such file, without annotations.

    Includes all images below the folder, named by their paths and in that order. DICOM files need no ending. Other
    files are left out and counted; hidden ones are ignored. `test` refuses such a folder because there is nothing to
    score; use `predict`.

    Args:
        root: The folder or file. `~` and environment variables are expanded.
        findings: Findings to ask the model for, as a list or separated by commas, in any spelling that `list findings`
            shows or in words of your own. By default the eight findings of the phantoms, which every model of the
            package knows.
        grid: As in every dataset, but by default each image's own pixels, so that pictures keep their proportions.
        **kwargs: The options of every dataset.
    """

    name = "folder"
    splits = ("all",)

    def __init__(
        self,
        root: str,
        findings: list[str] | str | None = None,
        grid: int | tuple[int, int] | Literal["native"] = "native",
        **kwargs: Any,
    ) -> None:
        super().__init__(grid=grid, **kwargs)
        self.root = expand(root)
        if not self.root.exists():
            raise UsageError(f"folder: --data.root {self.root}: there is no such folder or file.")
        self.findings = FINDINGS["phantom"] if findings is None else chosen(findings)
        if problem := findings_problem(self.findings):
            raise UsageError(f"folder: --data.findings: {problem}.")
        known = [finding.name for finding in TABLE]
        for finding in self.findings:
            if finding not in known and (near := get_close_matches(finding, known, n=1, cutoff=0.8)):
                rank_zero_warn(
                    f"folder: --data.findings: {finding} is not a name that xbench knows, so the model is asked for it "
                    f"in these words. Did you mean {near[0]}?"
                )

    def setup(self, stage: str) -> None:
        if stage == "test":
            raise UsageError(
                "folder: a folder of images has no annotations, so there is nothing to score: use `predict`, which "
                "writes scores, maps and pictures. Images with boxes or masks need a dataset (docs/own-data.md)."
            )
        super().setup(stage)

    def read_records(self, annotated: bool) -> Sequence[Record]:
        files = Folder(self.root, lambda path: path.relative_to(self.root).as_posix(), suffixes=("",)).images
        paths = {name: path for name, (path,) in files.items()}
        if self.root.is_file():
            paths = {self.root.name: self.root}
        images = {name: path for name, path in sorted(paths.items()) if _is_image(path)}
        if not images:
            others = f"{len(paths)} other files do (first: {min(paths)!r:.80})" if paths else "nor does any other"
            raise UserError(f"folder: no PNG, JPEG or DICOM file lies below --data.root {self.root}; {others}.")
        self.notes += [Note(_LEFT_OUT, ascii(name)[1:-1]) for name in sorted(paths.keys() - images.keys())]
        return [Record(name, {}, path, files=(path,)) for name, path in images.items()]

    def load(self, record: Record) -> Radiograph:
        return Radiograph(decode_image(record.source))


def _is_image(path: Path) -> bool:
    """Recognize an image by its ending or first bytes; include unreadable files, to be reported later."""
    if path.name.lower().endswith(IMAGE_SUFFIXES):
        return True
        # The index file of a DICOM disk has the same first bytes.
    if path.name.upper() == "DICOMDIR" or not os.path.isfile(path):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(132)
    except OSError:
        return True
    return head.startswith((b"\x89PNG\r\n", b"\xff\xd8\xff")) or head[128:] == b"DICM"
