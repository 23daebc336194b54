"""Score a finished run again by other rules, from the maps and regions that it kept.

Neither the model nor the dataset is needed. Thresholds, tie rule, gamma and the choice of images can change; another
evaluation grid cannot, for the annotations are kept on the run's.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

from xbench.commands.arguments import rescore_parser
from xbench.commands.configs import check_yaml
from xbench.errors import UserError
from xbench.evaluation.aggregate import summarise
from xbench.evaluation.provenance import utf8, versions
from xbench.evaluation.scoring import add_scores, score_batch
from xbench.metrics import PointingGame, ThresholdSweep
from xbench.protocol.findings import is_name
from xbench.runs.files import CONFIG, CURVES, MAPS, PER_CLASS, PER_IMAGE, PICTURES, REGIONS, RESULTS
from xbench.runs.finished import FinishedRun
from xbench.runs.folder import new_folder
from xbench.runs.maps import SavedImage, write_saved_images
from xbench.runs.results import Results, outputs_depend_on, write_per_class, write_results
from xbench.runs.scores import BatchScores, ImageScores, pair_counts_writer, write_per_image
from xbench.runtime.files import atomic_writer
from xbench.runtime.processes import end_with_parent
from xbench.runtime.stopwatch import Stopwatch
from xbench.types import Rules

# Far more than one process can read for.
_MOST_WORKERS = 64


def rescore(arguments: Sequence[str]) -> None:
    """Score a finished run again, and write the results as a run of their own."""
    given = rescore_parser().parse_args(arguments)
    run = FinishedRun.open(given.run.expanduser(), PER_IMAGE, MAPS, REGIONS, PICTURES)
    rules = _rules(run, given.thresholds, given.ties, given.gamma)
    if not 0 <= given.workers <= _MOST_WORKERS:
        raise UserError(
            f"--workers {given.workers}: give a number of processes from 0 to {_MOST_WORKERS}.", exit_status=2
        )
    chosen = None if given.images is None else _chosen(run, given.images.expanduser())
    folder = _new_folder(run.folder, given.out)
    try:
        _write_config(run.folder, folder, rules, chosen is None)
        results = _score(run, rules, chosen, given.images, given.workers, folder)
    except BaseException as error:
        # A part of a run is of no use, and would be in the way of the next attempt.
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"The results cannot be written to {folder}: {error.strerror or error}.") from error
        raise
    table = Table("Macro", "As stored", "Now", "Change", title=f"{results.model} on {results.dataset}", box=None)
    for name, other in results.macro.items():
        one = run.results.macro.get(name)
        change = "-" if one is None or other is None else f"{other - one:+.4f}"
        table.add_row(name, *("-" if value is None else f"{value:.4f}" for value in (one, other)), change)
    console = Console(markup=False, highlight=False)
    console.print(table)
    # soft_wrap: a path that the terminal breaks cannot be copied.
    console.print(f"Results: {folder / 'results.json'}", soft_wrap=True)


def _rules(run: FinishedRun, thresholds: int | None, ties: str | None, gamma: float | None) -> Rules:
    if thresholds is not None and (thresholds < 3 or thresholds % 2 == 0):
        raise UserError(
            f"--thresholds {thresholds} leaves out the fixed threshold 0.5; give an odd number from 3, such as 101.",
            exit_status=2,
        )
    if gamma is not None and not 0 < gamma <= 1:
        raise UserError(f"--gamma {gamma} must lie in (0, 1].", exit_status=2)
    changes: dict[str, Any] = {"thresholds": thresholds, "ties": ties, "gamma": gamma}
    return replace(run.rules, **{name: value for name, value in changes.items() if value is not None})


def _chosen(run: FinishedRun, path: Path) -> frozenset[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--images {path} cannot be read: {error}.", exit_status=2) from None
    known = {*run.image_scores.image_ids}
    unknown = [name for name in names if name not in known]
    if not names or unknown:
        problem = (
            f"names {len(unknown)} images that the run did not score (first: {unknown[0]})" if names else "is empty"
        )
        raise UserError(
            f"--images {path} {problem}: it must hold names of images one a line, as in {PER_IMAGE}.", exit_status=2
        )
    if not is_name(path.stem):
        raise UserError(f"--images {path}: the results are named after the file, which has no fit name.", exit_status=2)
    return frozenset(names)


def _new_folder(run: Path, out: Path | None) -> Path:
    beside = run.absolute().parent
    try:
        if out is None:
            return new_folder(beside)
        folder = out.expanduser().absolute()
        folder.mkdir(parents=True)
        return folder
    except FileExistsError:
        raise UserError(f"{out} exists already: give a new folder with --out.", exit_status=2) from None
    except OSError as error:
        raise UserError(f"{out or beside} cannot be made: {error.strerror}. Give another folder with --out.") from None


def _score(
    run: FinishedRun, rules: Rules, chosen: frozenset[str] | None, images: Path | None, workers: int, folder: Path
) -> Results:
    """Score and write everything but the configuration; return the results."""
    stored, provenance, stopwatch = run.results, run.results.provenance, Stopwatch()
    classes = len(stored.findings)
    pointing_game, sweep = PointingGame(classes, rules.ties), ThresholdSweep(classes, rules.thresholds)
    parts: list[ImageScores] = []
    constant: list[tuple[int, str, int]] = []

    def scored() -> Iterator[SavedImage]:
        for kept, scores in _scores(run, rules, chosen, workers):
            add_scores(scores, pointing_game, sweep)
            parts.append(scores.images)
            constant.extend(scores.constant)
            add_pairs(scores.pairs)
            stopwatch.lap("metrics")
            yield from kept
            stopwatch.lap("logging")

    count = len(run.image_scores.image_ids) if chosen is None else len(chosen)
    bar: Iterable[SavedImage] = track(scored(), "Scoring", count, disable=not sys.stderr.isatty(), transient=True)
    with pair_counts_writer(folder / CURVES, stored.findings, rules.thresholds) as add_pairs:
        write_saved_images(folder, stored.findings, rules.gamma, outputs_depend_on(provenance), bar)
    rows = ImageScores.concatenate(parts)
    results = summarise(
        (stored.model, stored.dataset, stored.split if images is None else images.stem),
        stored.findings,
        rows,
        pointing_game.compute(),
        sweep.compute(),
        constant=sorted(constant),
        provenance=provenance
        | {
            "evaluation": {"thresholds": rules.thresholds, "ties": rules.ties},
            "data": provenance["data"] | {"gamma": rules.gamma},
            "seconds": {stage: round(seconds, 3) for stage, seconds in stopwatch.seconds.items()},
            "rescored": {
                "from": utf8(str(run.folder.absolute())),
                "images": None if chosen is None else hashlib.sha256("\n".join(sorted(chosen)).encode()).hexdigest(),
                "command": [utf8(word) for word in sys.orig_argv],
                "versions": versions(),
            },
        },
    )
    # Of the whole run, even when only some of its images are scored again.
    counts = replace(results.counts, skipped=stored.counts.skipped, notes=stored.counts.notes)
    results = replace(results, counts=counts)
    write_per_image(folder / PER_IMAGE, rows, results.findings)
    write_per_class(folder / PER_CLASS, results)
    write_results(folder / RESULTS, results)
    return results


def _scores(
    run: FinishedRun, rules: Rules, chosen: frozenset[str] | None, workers: int
) -> Iterator[tuple[list[SavedImage], BatchScores]]:
    """Score batch by batch, each as a whole and in order, so that the number of processes changes nothing."""
    if workers == 0:
        for kept in run.saved_batches(chosen):
            yield kept, score_batch(*run.batch(kept, rules.gamma), rules)
        return
    # Forked they start at once, with the run's rows in the memory that they share.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting: deque[tuple[list[SavedImage], Future[BatchScores]]] = deque()
    try:
        with ProcessPoolExecutor(workers, context, _begin_worker, (run, rules)) as pool:
            for kept in run.saved_batches(chosen):
                waiting.append((kept, pool.submit(_score_in_worker, [replace(image, picture=None) for image in kept])))
                if len(waiting) > 2 * workers:
                    first, scores = waiting.popleft()
                    yield first, scores.result()
            yield from ((first, scores.result()) for first, scores in waiting)
    except BrokenProcessPool:
        raise UserError(
            "A process that scores was killed; if nobody did it, memory has run out. Run the command again with fewer "
            f"--workers than {workers}."
        ) from None


_task: tuple[FinishedRun, Rules]


def _begin_worker(run: FinishedRun, rules: Rules) -> None:
    global _task
    _task = run, rules
    end_with_parent()
    # Ctrl-C reaches all processes; the one that waits for the workers answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _score_in_worker(kept: Sequence[SavedImage]) -> BatchScores:
    run, rules = _task
    return score_batch(*run.batch(kept, rules.gamma), rules)


def _write_config(run: Path, folder: Path, rules: Rules, all_images: bool) -> None:
    """Write the run's configuration with the new rules in it, so that a fresh run would follow them too."""
    stored = run / CONFIG
    text = stored.read_text(encoding="utf-8", errors="replace") if stored.is_file() else ""
    if not all_images:
        text = f"# No configuration gives this run: it is {utf8(str(run.absolute()))}, scored again on chosen images.\n"
    try:
        check_yaml(text)
        config = yaml.safe_load(text)
        config["data"]["init_args"]["gamma"] = rules.gamma
        for callback in config["trainer"]["callbacks"]:
            if callback["class_path"].rpartition(".")[2] == "Evaluation":
                callback["init_args"] = {"thresholds": rules.thresholds, "ties": rules.ties}
        text = yaml.safe_dump(config, sort_keys=False)
    except (yaml.YAMLError, TypeError, LookupError, ValueError, AttributeError):
        # A run that was started from Python has no configuration, and a stranger's may be anything.
        pass
    with atomic_writer(folder / CONFIG) as file:
        file.write(text.encode())
