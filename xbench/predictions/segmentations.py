"""Masks and points that people drew, in JSON by image and finding, as those of CheXlocalize's human benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xbench.predictions.files import named
from xbench.predictions.source import Pair, Source, matched
from xbench.runtime.errors import UserError
from xbench.runtime.strict import unique_keys

_LARGEST = 2**31


def drawn_in(path: Path) -> Literal["masks", "points"] | None:
    """Return what a JSON file holds by image and finding; None of a list, which COCO results are."""
    content = _content(path)
    if content is None:
        return None
    entries = [entry for of_image in content.values() for entry in of_image.values()]
    return "points" if entries and isinstance(entries[0], list) else "masks"


def read_points(path: Path) -> dict[Pair, list[list[float]]]:
    """Return the points of each pair, in pixels of its image, each in the middle of the pixel that it names.

    Raises:
        UserError: The file cannot be read, or holds something else.
    """
    found = {}
    for pair, points in _entries(path):
        with named(path, of=f"image {pair[0]}, finding {pair[1]}"):
            numbers = np.array(points).reshape(-1, 2) if points else np.zeros((0, 2))
            if numbers.shape != (len(points), 2) or numbers.dtype.kind not in "if" or not np.isfinite(numbers).all():
                raise ValueError(f"{points!r:.80} are no points")
            found[pair] = (np.trunc(numbers) + 0.5).tolist()
    return found


class Segmentations(Source):
    """Masks in COCO's compressed run lengths: `{image: {finding: {"size": [h, w], "counts": "..."}}}`.

    Args:
        path: The JSON file.
        images: Of the dataset.
        findings: Of the dataset.
        words: What `words_for` gives.
    """

    def __init__(
        self, path: Path, images: Sequence[str], findings: Sequence[str], words: Mapping[str, Sequence[str]]
    ) -> None:
        self._path, self._masks = path, dict(_entries(path))
        found, unknown = matched(self._masks, images, findings, words, "--predictions")
        self.maps, self._theirs, self.scores = found.keys(), found, {}
        self.unknown = [", ".join(pair) for pair in unknown]

    def read(self, image_id: str, findings: Sequence[str]) -> list[NDArray[np.float32] | None]:
        """Return the masks of an image as maps of 0 and 1, None for those that are missing."""
        maps: list[NDArray[np.float32] | None] = []
        for finding in findings:
            theirs = self._theirs.get((image_id, finding))
            if theirs is None:
                maps.append(None)
                continue
            with named(self._path, of=f"image {image_id}, finding {finding}"):
                maps.append(decoded(self._masks[theirs]))
        return maps


def decoded(mask: Any) -> NDArray[np.float32]:
    """Return a mask (h, w) of 0 and 1 from its size and run lengths; a ValueError unless they fill it."""
    try:
        (height, width), text = mask["size"], mask["counts"]
        sides = isinstance(height, int) and isinstance(width, int) and 0 < height * width < 2**30
        if not sides or not isinstance(text, str) or min(text, default="0") < "0" or max(text, default="0") > "o":
            raise TypeError
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"{mask!r:.80} is no mask in run lengths") from None
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (1 << shift) * bool(bits & 16)
            # From the third on, what a run is longer than the one before the last.
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    if shift or min(runs, default=-1) < 0 or sum(runs) != height * width:
        raise ValueError(f"the run lengths do not fill {width} x {height} pixels")
    values = np.repeat(np.arange(len(runs)) % 2, runs).astype(np.float32)
    return np.ascontiguousarray(values.reshape(width, height).T)


def _entries(path: Path) -> list[tuple[Pair, Any]]:
    content = _content(path)
    if content is None:
        raise UserError(f"{path} has nothing by image and finding.", exit_status=2)
    return [((image, finding), entry) for image, of in content.items() for finding, entry in of.items()]


def _content(path: Path) -> dict[str, dict[str, Any]] | None:
    with named(path):
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
    if not isinstance(content, dict) or not all(isinstance(of, dict) for of in content.values()):
        return None
    return content
