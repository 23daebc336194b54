"""A finished run with the maps and regions that it kept, for whoever wants to score them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import torch

from xbench.cases import MAPS, PICTURES, REGIONS, KeptImage, read_kept
from xbench.coverage import area_and_centre
from xbench.errors import UserError
from xbench.results import Results, read_results
from xbench.rows import PER_IMAGE, ImageRows, read_per_image
from xbench.types import Batch, ModelOutput, scored_pairs

__all__ = ["StoredRun"]


@dataclass(frozen=True)
class StoredRun:
    """A finished run with all that it kept, for metrics of one's own as well.

    Attributes:
        folder: The run's folder.
        results: Its results.
        rows: Its scores per image.
    """

    folder: Path
    results: Results
    rows: ImageRows

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a run.

        Raises:
            UserError: There is no finished run, or it kept no maps.
        """
        missing = [
            name for name in ("results.json", PER_IMAGE, MAPS, REGIONS, PICTURES) if not (folder / name).is_file()
        ]
        if missing:
            raise UserError(
                f"{folder} cannot be scored again: it has no {missing[0]}. Give the folder of a finished run that was "
                "made with CaseKeeper among trainer.callbacks, as it is by default.",
                exit_status=2,
            )
        try:
            results = read_results(folder / "results.json")
            return cls(folder, results, read_per_image(folder / PER_IMAGE, results.findings))
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise _unreadable(folder, error) from None

    @property
    def gamma(self) -> float:
        """Share of a grid pixel that the run's regions cover at least."""
        return float(self.results.provenance["data"]["gamma"])

    def batches(self, gamma: float | None = None) -> Iterator[tuple[ModelOutput, Batch]]:
        """Return what the model said and what the annotations say, as the run's metrics got it.

        Batches have no images and no pictures. On native grids, the empty `regions` of an image without any are
        (0, 0, 0).

        Args:
            gamma: Share of a grid pixel that a region must cover, in (0, 1]; as in the run if None.

        Raises:
            UserError: The run's files are damaged or do not fit together.
        """
        for kept in self.kept():
            yield self.batch(kept, self.gamma if gamma is None else gamma)

    def kept(self, images: frozenset[str] | None = None) -> Iterator[list[KeptImage]]:
        """Return what the run kept of its images, or of the named ones, batch by batch as they were scored.

        In other company, the interpolation of a crop would round otherwise in the last bit.

        Raises:
            UserError: The run's files are damaged or do not fit together.
        """
        size = int(self.results.provenance["data"]["batch_size"])
        try:
            names = iter(self.rows.image_ids)
            chosen: list[KeptImage] = []
            for image in read_kept(self.folder):
                if chosen and chosen[0].index // size != image.index // size:
                    yield chosen
                    chosen = []
                if next(names, None) != image.image_id or len(image.saliency) != len(self.results.findings):
                    raise ValueError(f"{MAPS} and {PER_IMAGE} are not of the same images and findings")
                if images is None or image.image_id in images:
                    chosen.append(image)
            if next(names, None) is not None:
                raise ValueError(f"{MAPS} has fewer images than {PER_IMAGE}")
            if chosen:
                yield chosen
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise _unreadable(self.folder, error) from None

    def batch(self, kept: Sequence[KeptImage], gamma: float) -> tuple[ModelOutput, Batch]:
        """Return what the metrics get of kept images."""
        rows, grid = self.rows, self.results.provenance["data"]["grid"]
        # What the grid of an image without regions was, a run on native grids does not say.
        size = (0, 0) if grid == "native" else grid
        place = [self._place[image.image_id] for image in kept]
        regions = [[coverage.at(gamma) for coverage in image.regions.values()] for image in kept]
        places = np.full((len(kept), len(self.results.findings), 3), np.nan)
        for row, image in enumerate(kept):
            for column, region in zip(image.regions, regions[row], strict=True):
                places[row, column] = area_and_centre(region)
        output = ModelOutput(
            torch.from_numpy(rows.logits[place]),
            torch.from_numpy(rows.probabilities[place]),
            torch.from_numpy(np.stack([image.saliency for image in kept])),
        )
        batch = Batch(
            index=torch.tensor([image.index for image in kept]),
            image_ids=[image.image_id for image in kept],
            images=torch.empty(len(kept), 0),
            views=[image.view for image in kept],
            display=[],
            labels=torch.from_numpy(rows.labels[place]),
            regions=[
                torch.from_numpy(np.stack(drawn)) if drawn else torch.zeros(0, *size, dtype=torch.bool)
                for drawn in regions
            ],
            coverage=[tuple(image.regions.values()) for image in kept],
            has_region=torch.from_numpy(rows.has_region[place]),
            scored=scored_pairs(rows.labels[place], rows.has_region[place]),
            region_places=places,
            reader_agreement=np.stack([rows.reader_dice[place], rows.reader_iou[place]], axis=-1),
            image_sha256=[image.image_sha256 for image in kept],
            patient_ids=[rows.patient_ids[row] for row in place],
            notes=[],
            failures=[],
        )
        return output, batch

    _place: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", {image_id: row for row, image_id in enumerate(self.rows.image_ids)})


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(f"{folder}: a file of the run cannot be read: {' '.join(str(error).split())}")
