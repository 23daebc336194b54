"""An image before it is read, decoded, and prepared for a model."""

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
    """Annotation files' information about one image, before it is read."""

    image_id: str
    labels: Mapping[str, int]  # 1 (present) or 0 (absent) by name of the query; missing keys are unknown
    # What `load` needs. Images with other than plain values, paths, arrays, shapes and dataclasses cannot be prepared.
    source: Any = None
    missing: bool = False  # the image has no file; `load` must raise a `UserError`
    # All files that `load` reads, so that a prepared copy expires when one changes; None: cannot be prepared.
    files: tuple[Path, ...] | None = None
    patient_id: str | None = None  # the unit of independence; None if unknown
    queries: tuple[Query, ...] | None = None  # such as phrases of its report; None: the dataset's findings
    # `sex`, `age` and `projection` as stated; the data module converts them to F or M, years, and PA, AP or lateral.
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def looked_for(self, findings: Sequence[str]) -> Sequence[Query]:
        """Return the image's own queries, or those for the dataset's findings."""
        return self.queries if self.queries is not None else _of_findings(tuple(findings))


@dataclass(frozen=True)
class Radiograph:
    """One decoded image with its annotations."""

    image: NDArray[np.uint8]  # gray (H, W), bright where the body attenuates
    # Unions of annotations (h, w), any size with the same extent, by name of the query.
    regions: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    # Corrected oddities, such as a box cut off at the edge, in the same words for every image: results count them.
    notes: tuple[str, ...] = ()
    # Mean Dice and IoU of any two readers.
    reader_agreement: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # The items of a region, as each reader drew them; without a key only the region is known.
    instances: Mapping[str, Sequence[Shape]] = field(default_factory=dict)


Grid = tuple[int, int] | Literal["native"]
"""Height and width of the evaluation grid; `native` means the pixels of each image."""


@dataclass(frozen=True)
class PreparedImage:
    """The expensive part of a sample: decoded, resized, with regions drawn."""

    pixels: NDArray[np.uint8] | NDArray[np.float32]  # model input before mean and standard deviation (h, w)
    view: View  # part of the radiograph that the model input shows
    display: NDArray[np.uint8]  # the gray radiograph on the evaluation grid (H, W)
    findings: tuple[str, ...]  # names of the K queries with a region
    coverage: tuple[Coverage, ...]  # share of each grid pixel that their regions cover
    notes: tuple[str, ...] = ()
    reader_agreement: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None  # height and width of the decoded image
    instances: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)

    def sha256(self) -> str:
        """Return the digest of the model input, which identifies the image of a stored output."""
        found = hashlib.sha256(f"{self.pixels.dtype.str} {self.pixels.shape} {self.view} ".encode())
        found.update(np.ascontiguousarray(self.pixels).data)
        return found.hexdigest()


TIMEOUT = 300.0
"""Default seconds that decoding an image may take; failing file servers often recover after minutes."""
