"""What `rescore` does: a finished run scored again by other rules, from the maps and regions that it kept.

Neither the model nor the dataset is needed. Thresholds, tie rule, gamma and the choice of images can change; another
evaluation grid cannot, for the annotations are kept on the run's.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import pyarrow as pa
import torch
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

from xbench.cases import MAPS, PICTURES, REGIONS, KeptImage, read_kept, write_kept
from xbench.coverage import area_and_centre
from xbench.errors import UserError
from xbench.metrics import PointingGame, ThresholdSweep
from xbench.provenance import outputs_depend_on, versions
from xbench.results import Results, atomic_writer, read_results, write_per_class, write_results
from xbench.rows import CURVES, PER_IMAGE, ImageRows, PairCounts, read_per_image, write_pair_counts, write_per_image
from xbench.scoring import BatchScores, score_batch
from xbench.stopwatch import Stopwatch
from xbench.summary import summarise
from xbench.types import Batch, ModelOutput, scored_pairs

__all__ = ["StoredRun", "rescore"]

_TIES = ("share", "any", "first")


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


@dataclass
class _Collected:
    """Scores of a run that is scored again.

    Attributes:
        images: Scores per image, part by part.
        pairs: Pixel counts per scored pair, likewise.
        constant: Scored pairs whose map is the same everywhere.
    """

    images: list[ImageRows] = field(default_factory=list)
    pairs: list[PairCounts] = field(default_factory=list)
    constant: list[tuple[int, str, int]] = field(default_factory=list)

    def add(self, scores: BatchScores) -> None:
        self.images.append(scores.images)
        self.pairs.append(scores.pairs)
        self.constant += scores.constant


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"rescore: {message}. See python -m xbench.cli rescore --help.", exit_status=2)


def rescore(arguments: Sequence[str]) -> None:
    """Score a finished run again and write the results as a run of their own.

    Args:
        arguments: The run's folder and the rules that change.

    Raises:
        UserError: Wrong arguments, a run that kept too little, or a folder that cannot be written.
    """
    parser = _Parser(
        prog="python -m xbench.cli rescore",
        description="Scores a finished run again by other rules, without the model and without the dataset, from the "
        "maps and regions that it kept. What is not given stays as it was. The evaluation grid cannot change.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a finished run")
    parser.add_argument("--thresholds", type=int, help="number of thresholds from 0 to 1; odd")
    parser.add_argument("--ties", choices=_TIES, help="what counts when several pixels share the maximum of a map")
    parser.add_argument("--gamma", type=float, help="share of a grid pixel that an annotation must cover, in (0, 1]")
    parser.add_argument(
        "--images", type=Path, metavar="FILE", help="score only the images that this text file names, one a line"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder for the results; by default beside RUN")
    given = parser.parse_args(arguments)
    run = StoredRun.open(given.run.expanduser())
    rules = _rules(run, given.thresholds, given.ties, given.gamma)
    chosen = None if given.images is None else _chosen(run, given.images.expanduser())
    folder = _new_folder(run.folder, given.out)
    console = Console(markup=False, highlight=False)
    try:
        results = _score(run, rules, chosen, given.images, folder)
        _write_config(run.folder, folder, rules, chosen is None)
    except OSError as error:
        raise UserError(f"The results cannot be written to {folder}: {error.strerror or error}.") from error
    console.print(_changes(run.results, results))
    # soft_wrap: a path that the terminal breaks cannot be copied.
    console.print(f"Results: {folder / 'results.json'}", soft_wrap=True)


@dataclass(frozen=True)
class _Rules:
    """By which a run is scored.

    Attributes:
        thresholds: Number of thresholds.
        ties: Rule for tied maxima.
        gamma: Share of a grid pixel that a region must cover.
    """

    thresholds: int
    ties: Any
    gamma: float


def _rules(run: StoredRun, thresholds: int | None, ties: str | None, gamma: float | None) -> _Rules:
    stored = run.results.provenance["evaluation"]
    if thresholds is not None and (thresholds < 3 or thresholds % 2 == 0):
        raise UserError(
            f"--thresholds {thresholds} leaves out the fixed threshold 0.5; give an odd number from 3, such as 101.",
            exit_status=2,
        )
    if gamma is not None and not 0 < gamma <= 1:
        raise UserError(f"--gamma {gamma} must lie in (0, 1].", exit_status=2)
    return _Rules(
        stored["thresholds"] if thresholds is None else thresholds,
        stored["ties"] if ties is None else ties,
        run.gamma if gamma is None else gamma,
    )


def _chosen(run: StoredRun, path: Path) -> frozenset[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--images {path} cannot be read: {error}.", exit_status=2) from None
    unknown = [name for name in names if name not in {*run.rows.image_ids}]
    if not names or unknown:
        problem = (
            f"names {len(unknown)} images that the run did not score (first: {unknown[0]})" if names else "is empty"
        )
        raise UserError(
            f"--images {path} {problem}: it must hold names of images one a line, as in {PER_IMAGE}.", exit_status=2
        )
    return frozenset(names)


def _new_folder(run: Path, out: Path | None) -> Path:
    if out is None:
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        candidates = [run.absolute().parent / (stamp + suffix) for suffix in ("", *(f"-{n}" for n in range(2, 1000)))]
    else:
        candidates = [out.expanduser().absolute()]
    for folder in candidates:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"{folder} cannot be made: {error.strerror}. Give another folder with --out.") from None
        return folder
    raise UserError(f"{candidates[0]} exists already: give a new folder with --out.", exit_status=2)


def _score(run: StoredRun, rules: _Rules, chosen: frozenset[str] | None, images: Path | None, folder: Path) -> Results:
    """Score and write everything but the configuration; return the results."""
    stored, provenance = run.results, run.results.provenance
    classes = len(stored.findings)
    pointing_game, sweep = PointingGame(classes, ties=rules.ties), ThresholdSweep(classes, rules.thresholds)
    collected, stopwatch = _Collected(), Stopwatch()
    upsampling = provenance["model"]["saliency_upsample"]
    native = provenance["data"]["grid"] == "native"

    def scored() -> Iterator[KeptImage]:
        for kept in run.kept(chosen):
            stopwatch.lap("loading")
            output, batch = run.batch(kept, rules.gamma)
            scores = score_batch(output, batch, upsampling, pointing_game, sweep, native, stopwatch)
            collected.add(scores)
            stopwatch.lap("metrics")
            yield from kept
            stopwatch.lap("logging")

    count = len(run.rows.image_ids) if chosen is None else len(chosen)
    bar: Iterable[KeptImage] = track(scored(), "Scoring", count, disable=not sys.stderr.isatty(), transient=True)
    write_kept(folder, stored.findings, rules.gamma, outputs_depend_on(provenance), bar)
    rows, pairs = ImageRows.concatenate(collected.images), PairCounts.concatenate(collected.pairs)
    results = replace(
        summarise(
            (stored.model, stored.dataset, stored.split if images is None else images.stem),
            stored.findings,
            rows,
            pointing_game.compute(),
            sweep.compute(),
            constant=sorted(collected.constant),
            provenance=provenance
            | {
                "evaluation": {"thresholds": rules.thresholds, "ties": rules.ties},
                "data": provenance["data"] | {"gamma": rules.gamma},
                "seconds": {stage: round(seconds, 3) for stage, seconds in stopwatch.seconds.items()},
                "rescored": {
                    "from": str(run.folder.absolute()),
                    "images": None
                    if chosen is None
                    else hashlib.sha256("\n".join(sorted(chosen)).encode()).hexdigest(),
                    "command": sys.orig_argv,
                    "versions": versions(),
                },
            },
        ),
        # Whatever images are chosen now, these were not there to choose from, and these were odd.
        skipped=stored.skipped,
        notes=stored.notes,
    )
    write_per_image(folder / PER_IMAGE, rows, results.findings)
    write_pair_counts(folder / CURVES, pairs, results.findings)
    write_per_class(folder / "per_class.csv", results)
    write_results(folder / "results.json", results)
    return results


def _write_config(run: Path, folder: Path, rules: _Rules, all_images: bool) -> None:
    """Write the run's configuration with the new rules in it, so that a fresh run would follow them too."""
    stored = run / "config.yaml"
    text = stored.read_text(encoding="utf-8") if stored.is_file() else ""
    if not all_images:
        text = f"# No configuration gives this run: it is {run.absolute()}, scored again on chosen images.\n"
    try:
        config = yaml.safe_load(text)
        config["data"]["init_args"]["gamma"] = rules.gamma
        for callback in config["trainer"]["callbacks"]:
            if callback["class_path"].rpartition(".")[2] == "Evaluation":
                callback["init_args"] = {"thresholds": rules.thresholds, "ties": rules.ties}
        text = yaml.safe_dump(config, sort_keys=False)
    except (yaml.YAMLError, TypeError, KeyError, AttributeError):
        # A run that was started from Python has no configuration.
        pass
    with atomic_writer(folder / "config.yaml") as file:
        file.write(text.encode())


def _changes(stored: Results, results: Results) -> Table:
    """Macro numbers before and after."""
    table = Table("Macro", "As stored", "Now", "Change", title=f"{results.model} on {results.dataset}", box=None)
    before: Mapping[str, float | None] = {**stored.grounding_macro, **stored.classification_macro}
    now: Mapping[str, float | None] = {**results.grounding_macro, **results.classification_macro}
    for name in now:
        one, other = before.get(name), now[name]
        change = "-" if one is None or other is None else f"{other - one:+.4f}"
        table.add_row(name, *("-" if value is None else f"{value:.4f}" for value in (one, other)), change)
    return table


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(f"{folder}: a file of the run cannot be read: {' '.join(str(error).split())}")
