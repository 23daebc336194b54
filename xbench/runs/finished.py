"""A finished run with the maps and regions that it kept, for whoever wants to score them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch

from xbench.errors import UserError
from xbench.geometry.grid import Upsampling
from xbench.metrics.sweep import MAX_THRESHOLDS
from xbench.runs.files import MAPS, PER_IMAGE, PICTURES, REGIONS
from xbench.runs.maps import SavedImage, read_saved_images, readable
from xbench.runs.results import Results, outputs_depend_on, read_results
from xbench.runs.scores import ImageScores, read_per_image
from xbench.types import GroundTruth, ModelOutput, Rules, TieRule

__all__ = ["StoredRun"]


def _rules(provenance: Mapping[str, Any]) -> tuple[int, Rules]:
    """Return how many images a batch of a run had, and how they were scored.

    Raises:
        ValueError: The provenance lacks something, or holds what no run writes.
    """
    try:
        outputs_depend_on(provenance)
        data, evaluation, grid = provenance["data"], provenance["evaluation"], provenance["data"]["grid"]
        rules = Rules(
            grid if grid == "native" else tuple(grid),
            provenance["model"]["saliency_upsample"],
            data["gamma"],
            evaluation["thresholds"],
            evaluation["ties"],
        )
        sound = (
            _is_whole(data["batch_size"], 1)
            and (grid == "native" or (len(grid) == 2 and all(_is_whole(side, 1) for side in grid)))
            and rules.upsampling in get_args(Upsampling)
            and _is_whole(rules.thresholds, 3)
            and rules.thresholds <= MAX_THRESHOLDS
            and rules.ties in get_args(TieRule)
            and isinstance(rules.gamma, float | int)
            and 0 < rules.gamma <= 1
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"the provenance in results.json lacks something: {error}") from None
    if not sound:
        raise ValueError("the provenance in results.json holds what no run writes")
    return data["batch_size"], rules


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class StoredRun:
    """A finished run with all that it kept, for metrics of one's own as well.

    Attributes:
        folder: The run's folder.
        results: Its results.
        batch_size: Images of a batch.
        rules: How it was scored.
        rows: Its scores per image.
    """

    folder: Path
    results: Results
    batch_size: int
    rules: Rules
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
            batch_size, rules = _rules(results.provenance)
            return cls(folder, results, batch_size, rules, read_per_image(folder / PER_IMAGE, results.findings))

    def batches(self, gamma: float | None = None) -> Iterator[tuple[ModelOutput, GroundTruth]]:
        """Return what the model said and what the annotations say, as the run's metrics got it.

        On native grids, the empty `regions` of an image without any are (0, 0, 0).

        Args:
            gamma: Share of a grid pixel that a region must cover, in (0, 1]; as in the run if None.

        Raises:
            UserError: The run's files are damaged or do not fit together.
        """
        for kept in self.kept():
            yield self.batch(kept, self.rules.gamma if gamma is None else gamma)

    def kept(self, images: frozenset[str] | None = None) -> Iterator[list[SavedImage]]:
        """Return what the run kept of its images, or of the named ones, batch by batch as they were scored.

        In other company, the interpolation of a crop would round otherwise in the last bit.

        Raises:
            UserError: The run's files are damaged or do not fit together.
        """
        size = self.batch_size
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
        if self.rules.grid != "native" and any(each.shape != self.rules.grid for each in image.regions.values()):
            raise ValueError(f"{image.image_id}: its regions are on another grid than that of results.json")

    def batch(self, kept: Sequence[SavedImage], gamma: float) -> tuple[ModelOutput, GroundTruth]:
        """Return what a batch of kept images is scored from."""
        rows, grid = self.rows, self.rules.grid
        place = [self._place[image.image_id] for image in kept]
        output = ModelOutput(
            torch.from_numpy(rows.logits[place]),
            torch.from_numpy(rows.probabilities[place]),
            torch.from_numpy(np.stack([image.saliency for image in kept])),
        )
        truths = [
            GroundTruth.of_image(
                image.index,
                image.image_id,
                rows.patient_ids[row],
                image.view,
                labels=rows.labels[row],
                coverage=image.regions,
                reader_agreement=np.stack([rows.reader_dice[row], rows.reader_iou[row]], axis=-1),
                gamma=gamma,
                # What the grid of an image without regions was, a run on native grids does not say.
                size=grid if grid != "native" else next((one.shape for one in image.regions.values()), (0, 0)),
            )
            for row, image in zip(place, kept, strict=True)
        ]
        return output, GroundTruth.concatenate(truths)

    _place: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", {image_id: row for row, image_id in enumerate(self.rows.image_ids)})
