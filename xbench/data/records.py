"""What crosses the room: an image before it is read, decoded, and prepared for a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xbench.findings.queries import Query
from xbench.geometry.grid import View
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape


@dataclass(frozen=True)
class Record:
    """What the annotation files say about one image, before a pixel is read.

    Attributes:
        labels: 1 (present) or 0 (absent) by name of the query; what is not a key is unknown.
        source: Whatever the data module needs to load the image. Only plain values, paths, arrays, shapes, and
            containers and dataclasses of these if the image is to be prepared.
        missing: The annotations name the image, but there is no file; `load` must fail with a `UserError`.
        files: Every file that `load` reads for this image, so that a prepared copy is never used once one has changed.
            Without them (None) the image cannot be prepared.
        patient_id: Whose image it is, for patients count once as evidence; None where the dataset does not say.
        queries: What is looked for on the image, such as phrases of its report; None: the dataset's findings.
    """

    image_id: str
    labels: Mapping[str, int]
    source: Any = None
    missing: bool = False
    files: tuple[Path, ...] | None = None
    patient_id: str | None = None
    queries: tuple[Query, ...] | None = None

    def looked_for(self, findings: Sequence[str]) -> Sequence[Query]:
        """Return its queries, or those for the findings of its dataset."""
        return self.queries if self.queries is not None else [Query(finding, finding) for finding in findings]


@dataclass(frozen=True)
class Radiograph:
    """One decoded image with its annotations.

    Attributes:
        image: Grey image (H, W), uint8, bright where the body attenuates.
        regions: Union of the annotations by name of the query (h, w), bool. The frame may be of another size than the
            image as long as it shows the same extent. What is not a key has no region.
        notes: What is odd about the image or its annotations and was put right, such as a box cut off at the edge; in
            the same words for every image, for the results count them.
        reader_agreement: Mean Dice and IoU between the regions of any two readers, by query that several drew.
        instances: By query what its region is the union of, item by item as each reader drew it; without that key,
            nothing but the region is known.
    """

    image: NDArray[np.uint8]
    regions: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reader_agreement: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    instances: Mapping[str, Sequence[Shape]] = field(default_factory=dict)


Grid = tuple[int, int] | Literal["native"]
"""Height and width of the evaluation grid, or the pixels of each image."""


@dataclass(frozen=True)
class PreparedImage:
    """Everything of a sample that takes time to make: decoded, resized, annotations drawn.

    Attributes:
        pixels: Model input before mean and standard deviation (h, w): uint8, or float32 in [0, 1].
        view: Part of the radiograph that the model input shows.
        display: The grey radiograph on the evaluation grid (H, W), uint8.
        findings: Names of the K queries that have a region, in their order.
        coverage: Which share of each pixel of the evaluation grid their regions cover, K of them.
        image_size: Height and width of the decoded image in pixels.
        instances: By query, of those that have a region: the items that it is the union of, as far as known.
    """

    pixels: NDArray[np.uint8] | NDArray[np.float32]
    view: View
    display: NDArray[np.uint8]
    findings: tuple[str, ...]
    coverage: tuple[Coverage, ...]
    notes: tuple[str, ...] = ()
    reader_agreement: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    instances: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)

    def sha256(self) -> str:
        """Return the digest of the model input, by which a stored output can be told to be of the same image."""
        found = hashlib.sha256(f"{self.pixels.dtype.str} {self.pixels.shape} {self.view} ".encode())
        found.update(np.ascontiguousarray(self.pixels).data)
        return found.hexdigest()


TIMEOUT = 300.0
"""Seconds that an image may take unless the user says otherwise; file servers that fail come back after minutes."""
