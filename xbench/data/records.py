"""What crosses the room: an image before it is read, decoded, and prepared for a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xbench.findings.queries import Query
from xbench.geometry.grid import View
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape

_of_findings = lru_cache(maxsize=16)(lambda findings: [*map(Query, findings, findings)])


@dataclass(frozen=True)
class Record:
    """What the annotation files say about one image, before a pixel is read."""

    image_id: str
    labels: Mapping[str, int]  # 1 (present) or 0 (absent) by name of the query; what is not a key is unknown
    # Whatever the data module needs to load the image. Only plain values, paths, arrays, shapes, and containers and
    # dataclasses of these if the image is to be prepared.
    source: Any = None
    missing: bool = False  # the annotations name the image, but there is no file; `load` must fail with a `UserError`
    # Every file that `load` reads, so that no prepared copy is used once one has changed; None: cannot be prepared.
    files: tuple[Path, ...] | None = None
    patient_id: str | None = None  # patients count once as evidence; None where the dataset does not say
    queries: tuple[Query, ...] | None = None  # such as phrases of its report; None: the dataset's findings
    # `sex`, `age` and `projection` as stated; the data module spells them as F or M, years, and PA, AP or lateral.
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def looked_for(self, findings: Sequence[str]) -> Sequence[Query]:
        """Return its queries, or those for the findings of its dataset."""
        return self.queries if self.queries is not None else _of_findings(tuple(findings))


@dataclass(frozen=True)
class Radiograph:
    """One decoded image with its annotations."""

    image: NDArray[np.uint8]  # grey (H, W), bright where the body attenuates
    # Union of the annotations by name of the query (h, w), in a frame of any size that shows the same extent. What is
    # not a key has no region.
    regions: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    # What is odd and was put right, such as a box cut off at the edge; in the same words for every image, for the
    # results count them.
    notes: tuple[str, ...] = ()
    reader_agreement: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # mean Dice and IoU of two readers
    # What a region is the union of, item by item as each reader drew it; without a key only the region is known.
    instances: Mapping[str, Sequence[Shape]] = field(default_factory=dict)


Grid = tuple[int, int] | Literal["native"]
"""Height and width of the evaluation grid, or the pixels of each image."""


@dataclass(frozen=True)
class PreparedImage:
    """Everything of a sample that takes time to make: decoded, resized, annotations drawn."""

    pixels: NDArray[np.uint8] | NDArray[np.float32]  # model input before mean and standard deviation (h, w)
    view: View  # part of the radiograph that the model input shows
    display: NDArray[np.uint8]  # the grey radiograph on the evaluation grid (H, W)
    findings: tuple[str, ...]  # names of the K queries that have a region, in their order
    coverage: tuple[Coverage, ...]  # which share of each pixel of the grid their regions cover
    notes: tuple[str, ...] = ()
    reader_agreement: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None  # of the decoded image
    instances: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)

    def sha256(self) -> str:
        """Return the digest of the model input, by which a stored output can be told to be of the same image."""
        found = hashlib.sha256(f"{self.pixels.dtype.str} {self.pixels.shape} {self.view} ".encode())
        found.update(np.ascontiguousarray(self.pixels).data)
        return found.hexdigest()


TIMEOUT = 300.0
"""Seconds that an image may take unless the user says otherwise; file servers that fail come back after minutes."""
