"""What a written download contains, in the words of the harness."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.findings.queries import Query


@dataclass(frozen=True)
class Box:
    """An annotated box: columns x1 .. x2 - 1, rows y1 .. y2 - 1 of the frame, before clipping; or with fractions."""

    finding: str
    x1: Any
    y1: Any
    x2: Any
    y2: Any
    reader: str = ""


@dataclass
class Official:
    """A folder laid out like a download.

    Attributes:
        images: What decoding must give, (H, W) uint8, by image.
        labels: 1 or 0 by image and canonical finding; a finding that is not a key is unknown. Images without any
            annotation are not keys.
        masks: Union of the annotations of each finding that has a region, (H, W) bool, by image and finding. The keys
            are those of `labels`.
        boxes: Every annotated box by image, if the dataset has boxes.
        splits: Names of the images by split, the default one first. An image that nothing names is in none.
        outside: Image and finding of annotations that reach beyond the frame.
        queries: What is looked for by image, in a dataset of phrases; `labels` and `masks` then go by their names.
        patients: Whose an image is, where a file says so.
        tolerance: Largest error of a gray level that a lossy format leaves.
    """

    root: Path
    images: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    masks: dict[str, dict[str, NDArray[np.bool_]]] = field(default_factory=dict)
    boxes: dict[str, list[Box]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    splits: dict[str, list[str]] = field(default_factory=dict)
    outside: list[tuple[str, str]] = field(default_factory=list)
    queries: dict[str, list[Query]] = field(default_factory=dict)
    patients: dict[str, str] = field(default_factory=dict)
    tolerance: int = 0

    def add(self, image_id: str, image: NDArray[np.uint8], file: Path, *splits: str) -> Path:
        self.images[image_id] = image
        self.files[image_id] = file
        for split in splits:
            self.splits.setdefault(split, []).append(image_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def annotate(self, image_id: str, labels: Mapping[str, int]) -> None:
        self.labels[image_id] = dict(labels)
        self.masks[image_id] = {}

    def say(
        self, image_id: str, finding: str | None, text: str, language: str, label: int, boxes: Sequence[tuple[Any, ...]]
    ) -> None:
        """Take up a phrase of an image, which may be there already, with boxes: x1, y1, x2, y2 and the reader."""
        queries = self.queries.setdefault(image_id, [])
        same = [query for query in queries if (query.finding, query.text) == (finding, text)]
        number = 1 + sum(query.finding == finding for query in queries)
        query = same[0] if same else Query(f"{finding or 'Phrase'} {number}", finding, text, language)
        queries += [] if same else [query]
        self.labels[image_id][query.name] = label
        for *edges, reader in boxes:
            self.fill(image_id, Box(query.name, *edges, reader))

    def mark(self, image_id: str, finding: str, mask: NDArray[np.bool_]) -> None:
        regions = self.masks[image_id]
        regions[finding] = mask | regions[finding] if finding in regions else mask.copy()

    def fill(self, image_id: str, box: Box) -> None:
        height, width = self.images[image_id].shape
        mask = np.zeros((height, width), np.bool_)
        mask[max(box.y1, 0) : max(box.y2, 0), max(box.x1, 0) : max(box.x2, 0)] = True
        self.boxes.setdefault(image_id, []).append(box)
        self.mark(image_id, box.finding, mask)
        if min(box.x1, box.y1) < 0 or box.x2 > width or box.y2 > height:
            self.outside.append((image_id, box.finding))


def write_lines(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


def scatter(rows: Sequence[str], step: int = 5) -> list[str]:
    """Every fifth row, then the next ones: of up to four consecutive rows no two stay neighbors."""
    return [row for start in range(step) for row in rows[start::step]]


def hexadecimal(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def seed_of(*words: object) -> int:
    return zlib.crc32(repr(words).encode())
