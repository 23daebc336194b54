"""A finished run with the maps and regions that it kept, for whoever wants to score them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch

from xbench.errors import UserError
from xbench.geometry.coverage import area_and_centre, region_digest
from xbench.geometry.grid import Upsampling
from xbench.metrics.functional import TieRule
from xbench.metrics.sweep import MAX_THRESHOLDS
from xbench.runs.files import MAPS, PER_IMAGE, PICTURES, REGIONS
from xbench.runs.maps import SavedImage, read_saved_images, readable
from xbench.runs.results import Results, outputs_depend_on, read_results
from xbench.runs.scores import ImageScores, read_per_image
from xbench.types import Batch, ModelOutput, scored_pairs

__all__ = ["Settings", "StoredRun"]


@dataclass(frozen=True)
class Settings:
    """How a run was scored.

    Attributes:
        batch_size: Images per batch.
        grid: Height and width of the evaluation grid, or the pixels of each image.
        upsampling: How maps were enlarged.
        thresholds: Number of thresholds.
        ties: Rule for tied maxima.
        gamma: Share of a grid pixel that a region covers at least.
    """

    batch_size: int
    grid: tuple[int, int] | Literal["native"]
    upsampling: Upsampling
    thresholds: int
    ties: TieRule
    gamma: float

    @classmethod
    def of(cls, provenance: Mapping[str, Any]) -> Self:
        """Read them from the provenance of a run.

        Raises:
            ValueError: It lacks something, or holds what no run writes.
        """
        try:
            outputs_depend_on(provenance)
            data, evaluation, grid = provenance["data"], provenance["evaluation"], provenance["data"]["grid"]
            settings = cls(
                data["batch_size"],
                grid if grid == "native" else tuple(grid),
                provenance["model"]["saliency_upsample"],
                evaluation["thresholds"],
                evaluation["ties"],
                data["gamma"],
            )
            sound = (
                _is_whole(settings.batch_size, 1)
                and (grid == "native" or (len(grid) == 2 and all(_is_whole(side, 1) for side in grid)))
                and settings.upsampling in get_args(Upsampling)
                and _is_whole(settings.thresholds, 3)
                and settings.thresholds <= MAX_THRESHOLDS
                and settings.ties in get_args(TieRule)
                and isinstance(settings.gamma, float | int)
                and 0 < settings.gamma <= 1
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the provenance in results.json lacks something: {error}") from None
        if not sound:
            raise ValueError("the provenance in results.json holds what no run writes")
        return settings


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class StoredRun:
    """A finished run with all that it kept, for metrics of one's own as well.

    Attributes:
        folder: The run's folder.
        results: Its results.
        settings: How it was scored.
        rows: Its scores per image.
    """

    folder: Path
    results: Results
    settings: Settings
    rows: ImageScores

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
        with readable(folder):
            results = read_results(folder / "results.json")
            settings = Settings.of(results.provenance)
            return cls(folder, results, settings, read_per_image(folder / PER_IMAGE, results.findings))

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
            yield self.batch(kept, self.settings.gamma if gamma is None else gamma)

    def kept(self, images: frozenset[str] | None = None) -> Iterator[list[SavedImage]]:
        """Return what the run kept of its images, or of the named ones, batch by batch as they were scored.

        In other company, the interpolation of a crop would round otherwise in the last bit.

        Raises:
            UserError: The run's files are damaged or do not fit together.
        """
        size = self.settings.batch_size
        with readable(self.folder):
            names = iter(self.rows.image_ids)
            chosen: list[SavedImage] = []
            last = -1
            for image in read_saved_images(self.folder):
                if chosen and chosen[0].index // size != image.index // size:
                    yield chosen
                    chosen = []
                if next(names, None) != image.image_id or len(image.saliency) != len(self.results.findings):
                    raise ValueError(f"{MAPS} and {PER_IMAGE} are not of the same images and findings")
                self._check(image, last)
                last = image.index
                if images is None or image.image_id in images:
                    chosen.append(image)
            if next(names, None) is not None:
                raise ValueError(f"{MAPS} has fewer images than {PER_IMAGE}")
            if chosen:
                yield chosen

    def _check(self, image: SavedImage, last: int) -> None:
        row = self._place[image.image_id]
        drawn, scored = (tuple(np.flatnonzero(which[row])) for which in (self.rows.has_region, self.rows.scored))
        if image.index <= last or tuple(image.regions) != drawn or image.scored != scored:
            raise ValueError(f"{image.image_id}: its place or its regions are not those of {PER_IMAGE}")
        if self.settings.grid != "native" and any(each.shape != self.settings.grid for each in image.regions.values()):
            raise ValueError(f"{image.image_id}: its regions are on another grid than that of results.json")

    def batch(self, kept: Sequence[SavedImage], gamma: float) -> tuple[ModelOutput, Batch]:
        """Return what the metrics get of kept images."""
        rows, grid = self.rows, self.settings.grid
        # What the grid of an image without regions was, a run on native grids does not say.
        size = (0, 0) if grid == "native" else grid
        place = [self._place[image.image_id] for image in kept]
        regions = [[coverage.at(gamma) for coverage in image.regions.values()] for image in kept]
        places = np.full((len(kept), len(self.results.findings), 3), np.nan)
        digests = np.zeros(places.shape[:2], "S16")
        for row, image in enumerate(kept):
            for column, region in zip(image.regions, regions[row], strict=True):
                places[row, column] = area_and_centre(region)
                digests[row, column] = region_digest(region)
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
            region_digests=digests,
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
