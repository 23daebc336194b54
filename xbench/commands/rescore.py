"""Command `rescore`: score the stored maps and regions of a run by other rules.

Needs neither the model nor the dataset. Thresholds, tie rule, gamma and the choice of images can change; the grid
cannot, because annotations are stored on the run's.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from xbench.findings.names import is_name
from xbench.geometry.grid import Rules
from xbench.predictions import family_named
from xbench.predictions.asking import READER
from xbench.predictions.conventions import Convention
from xbench.runs.answers import answer_rows, answers_table, read_answers
from xbench.runs.files import CONFIG, IMAGES, PAIRS, PERTURBATIONS, PREDICTIONS, RESULTS, SCHEMAS, TRUTH
from xbench.runs.fingerprint import names_digest, utf8, versions
from xbench.runs.finished import FinishedRun
from xbench.runs.folder import new_folder
from xbench.runs.images import SavedImage
from xbench.runs.protocols import is_native, run_view, score_images, score_without_maps, write_protocol, write_words
from xbench.runs.results import Results, write_results
from xbench.runs.summary import numbers_of, summarize
from xbench.runs.tables import about_tables, read_rows, write_tables
from xbench.runs.words import Words, read_lungs
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.files import write_whole, writing
from xbench.runtime.processes import end_with_parent, usable_cores
from xbench.runtime.stopwatch import Stopwatch
from xbench.runtime.strict import load_yaml
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import Table as PairTable
from xbench.scoring.protocols.base import Tuned, groups_of
from xbench.scoring.rows import CHANGED, in_order, with_changes

# Default, and a generous limit.
_USUAL_WORKERS, _MOST_WORKERS = 16, 64

_Scored = TypeVar("_Scored")


def rescore(given: Namespace) -> None:
    """Score a finished run again, and write the results as a new run."""
    run = FinishedRun.open(given.run.expanduser(), PAIRS, IMAGES, PREDICTIONS, TRUTH)
    rules = _rules(run, given.thresholds, given.ties, given.gamma)
    workers = min(_USUAL_WORKERS, usable_cores()) if given.workers is None else given.workers
    if workers > _MOST_WORKERS:
        raise UsageError(f"--workers {workers}: give a number from 0 to {_MOST_WORKERS}.")
    read_as = _reading(run, given.family, given.frame)
    names, every = list(dict.fromkeys(given.protocol)), "all" in given.protocol
    if every:
        shows = run_view(run).shows | ({"words"} if given.words_of_maps else set())
        names = [name for name, protocol in PROTOCOLS.items() if protocol.takes & shows]
        if not names:
            raise UsageError(f"No protocol fits the predictions of {run.folder}.")
    if given.words_of_maps and not run.draws_maps and not run.results.answered:
        raise UsageError(f"--words-of-maps scores peaks of maps and centers of boxes, and {run.folder} has none.")
    lungs = {} if given.lungs is None else read_lungs(given.lungs.expanduser(), run.rows.image_ids)
    words = Words(run, given.words and given.words.expanduser(), lungs, given.strict, given.words_of_maps)
    if words != Words(run) and not any("words" in PROTOCOLS[name].takes for name in names):
        raise UsageError("--words, --lungs, --strict and --words-of-maps need --protocol words.")
    tuning = {} if not given.tune else _tuning(run, names, given.tune, workers)
    same = rules == run.rules and read_as == _reading(run, None, None)
    if names and given.images is None and given.out is None and same:
        _add_protocols(words, names, every, tuning, workers)
        return
    images = None if given.images is None else given.images.expanduser()
    chosen = None if images is None else _chosen(run, images)
    folder = _new_folder(run.folder, given.out)
    try:
        with writing(f"The results cannot be written to {folder}", "Free disk space or give another --out."):
            _write_config(run.folder, folder, rules, chosen is None, read_as)
            split = run.results.split if images is None else images.stem
            results = _score(run, rules, chosen, split, workers, folder, read_as)
    except BaseException:
        # An incomplete run is useless and would block the next attempt.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    table = Table("Macro", "Stored", "Rescored", "Change", title=f"{results.model} on {results.dataset}", box=None)
    for name, other in results.macro.items():
        one = run.results.macro.get(name)
        change = "-" if one is None or other is None else f"{other - one:+.4f}"
        table.add_row(name, *("-" if value is None else f"{value:.4f}" for value in (one, other)), change)
    console = Console(markup=False, highlight=False)
    console.print(table)
    # soft_wrap: a wrapped path cannot be copied.
    console.print(f"Results: {folder / 'results.json'}", soft_wrap=True)
    if names:
        _add_protocols(replace(words, run=FinishedRun.open(folder)), names, every, tuning, workers)


def add_words(folder: Path) -> None:
    """Score a run of words by all protocols for words."""
    names = [name for name, protocol in PROTOCOLS.items() if "words" in protocol.takes]
    _add_protocols(Words(FinishedRun.open(folder)), names, True, {}, 0)


def _add_protocols(words: Words, names: Sequence[str], every: bool, tuning: Mapping[str, Tuned], workers: int) -> None:
    run, view, refused = words.run, run_view(words.run), {}
    if words.of_maps or (run.results.answered and not every):
        view = replace(view, shows=view.shows | {"words"})
    for name in names:
        if reason := PROTOCOLS[name].refuses(view, name in tuning):
            if not every:
                raise UsageError(reason)
            refused[name] = reason
    tables = _protocol_tables(run, [name for name in names if name not in refused], workers, words)
    headings = ("Protocol", Column("Number", no_wrap=True), "Value", "Strict", "Mean over", "Undefined", "Pairs")
    shown = Table(*headings, box=None)
    for name in names:
        if name not in tables:
            refused.setdefault(name, f"{name}: it scores no pair of the run.")
            continue
        numbers = PROTOCOLS[name].results(tables[name], run.results.findings, is_native(run), tuning.get(name))
        with writing(f"{run.folder} cannot be written to", "Give a new folder with --out."):
            numbers |= write_words(words) if "words" in PROTOCOLS[name].takes else {}
            path = write_protocol(run.folder, name, numbers, tables[name])
        if texts := numbers.get("texts"):
            shares = [f"{100 * share:.1f}% {name}" for name, share in texts.items() if name != "count" and share]
            shown.caption = f"Texts: {', '.join([str(texts['count']), *shares])}."
        for place, (number, entry) in enumerate(numbers["numbers"].items()):
            values = ("-" if value is None else f"{value:.4f}" for value in (entry["value"], entry["strict"]))
            about = ("", "") if place else (numbers["title"], str(numbers["pairs"]))
            over = "findings, pooled" if entry["average"] in ("images", "sums") else entry["average"]
            shown.add_row(about[0], number, *values, over, str(entry["undefined"] or ""), about[1])
    console = Console(markup=False, highlight=False)
    console.print(shown)
    for reason in refused.values():
        console.print(f"Left out: {reason}", soft_wrap=True)
    if tables:
        console.print(f"Numbers and pairs: {path.parent}", soft_wrap=True)


def _tuning(run: FinishedRun, names: Sequence[str], given: Sequence[Path], workers: int) -> dict[str, Tuned]:
    """Tune protocols on another run of the same findings, or read published settings."""
    wanted = [PROTOCOLS[name] for name in names if PROTOCOLS[name].tunes]
    if not wanted:
        tuned = " and ".join(protocol.name for protocol in PROTOCOLS.values() if protocol.tunes)
        raise UsageError(f"--tune needs --protocol {tuned}.")
    paths, findings = [path.expanduser() for path in given], run.results.findings
    if any(path.suffix == ".csv" for path in paths):
        read = {protocol.name: protocol.read_tuning(paths, findings) for protocol in wanted}
        settings = {name: tuned for name, tuned in read.items() if tuned is not None}
        if not settings:
            raise UsageError(f"--tune takes a run, not CSV files, for --protocol {' '.join(read)}.")
        return settings
    if len(paths) > 1:
        raise UsageError("--tune takes one run, or CheXlocalize's CSV files.")
    folder = paths[0]
    other = FinishedRun.open(folder, PAIRS, IMAGES, PREDICTIONS, TRUTH)
    if other.results.findings != findings:
        raise UsageError(f"--tune {folder} is a run on other findings than {run.folder}.")
    if shared := {*other.rows.image_ids} & {*run.rows.image_ids}:
        raise UsageError(
            f"--tune {folder} has {len(shared)} images of {run.folder} (first: {min(shared)}): thresholds "
            "tuned on scored images would be too good. Give a run on another split."
        )
    if any(protocol.scales for protocol in wanted) and other.map_scale != run.map_scale:
        scales = f"another scale ({other.map_scale}) than {run.folder} ({run.map_scale})"
        raise UsageError(f"--tune {folder} has maps of {scales}.")
    words = Words(other, of_maps=not other.texts)
    tables = _protocol_tables(other, [protocol.name for protocol in wanted], workers, words)
    tuning = {name: PROTOCOLS[name].tune(groups_of(table, findings)) for name, table in tables.items()}
    if not tuning:
        raise UsageError(f"--tune {folder} has no image whose labels are known.")
    return {name: tuned for name, tuned in tuning.items() if tuned is not None}


def _protocol_tables(run: FinishedRun, names: Sequence[str], workers: int, words: Words) -> dict[str, PairTable]:
    parts: dict[str, list[PairTable]] = {}
    shows_maps = "map" in run_view(run).shows
    of_maps = [name for name in names if shows_maps and "map" in PROTOCOLS[name].takes]
    for _, tables in _by_batches(run, None, workers, partial(score_images, run, of_maps)) if of_maps else ():
        for name, table in tables.items():
            parts.setdefault(name, []).append(table)
    joined = {name: {key: np.concatenate([one[key] for one in of]) for key in of[0]} for name, of in parts.items()}
    return score_without_maps(run, [name for name in names if name not in of_maps], words) | joined


def _reading(run: FinishedRun, family: str | None, frame: str | None) -> dict[str, str]:
    """Return the family and frame of answers; empty for a run with maps."""
    stored = run.results.answers
    if stored is None:
        if family or frame:
            shows = "writes words" if run.results.in_words else "shows maps"
            raise UsageError(f"--family and --frame say how boxes are read, and {run.results.model} {shows}.")
        return {}
    by = family_named(family or stored.family)
    same = by.name == stored.family
    return {"family": by.name, "frame": Convention.named(frame or (stored.frame if same else by.convention.name)).name}


def _rules(run: FinishedRun, thresholds: int | None, ties: str | None, gamma: float | None) -> Rules:
    if thresholds is not None and (thresholds < 3 or thresholds % 2 == 0):
        advice = "give an odd number from 3, such as 101"
        raise UsageError(f"--thresholds {thresholds} omits the fixed threshold 0.5: {advice}.")
    if gamma is not None and not 0 < gamma <= 1:
        raise UsageError(f"--gamma {gamma} must lie in (0, 1].")
    changes: dict[str, Any] = {"thresholds": thresholds, "ties": ties, "gamma": gamma}
    return replace(run.rules, **{name: value for name, value in changes.items() if value is not None})


def _chosen(run: FinishedRun, path: Path) -> frozenset[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--images {path} cannot be read: {error}.") from None
    known = {*run.rows.image_ids}
    unknown = [name for name in names if name not in known]
    if not names or unknown:
        problem = (
            f"names {len(unknown)} images that the run did not score (first: {unknown[0]})" if names else "is empty"
        )
        raise UsageError(f"--images {path} {problem}: it must list names of images as in {PAIRS}, one per line.")
    if not is_name(path.stem):
        raise UsageError(f"--images {path}: the file name becomes the split name and must be printable.")
    return frozenset(names)


def _new_folder(run: Path, out: Path | None) -> Path:
    beside = run.absolute().parent
    with writing(f"{out or beside} cannot be created", "Give another folder with --out."):
        if out is None:
            return new_folder(beside)
        folder = out.expanduser().absolute()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(f"{out} exists already: give a new folder with --out.") from None
        return folder


def _score(
    run: FinishedRun,
    rules: Rules,
    chosen: frozenset[str] | None,
    split: str,
    workers: int,
    folder: Path,
    read_as: Mapping[str, str],
) -> Results:
    import xbench.scoring.measure  # noqa: F401  # before processes are forked; protocols alone need no torch

    stored, provenance, stopwatch = run.results, run.results.provenance, Stopwatch()
    _ = run.answers, run.rows  # read before forking, so that processes share them
    size = provenance["data"]["batch_size"]

    def of_condition(view: FinishedRun) -> Iterator[tuple[int, dict[str, pa.Table]]]:
        for kept, of_batch in _by_batches(view, chosen, workers, partial(score_batch, view, rules, read_as)):
            yield kept[0].index // size, of_batch

    names = [name for name in SCHEMAS if name != PERTURBATIONS or name in stored.tables]

    def scored() -> Iterator[dict[str, pa.Table]]:
        rescored = (PAIRS, PREDICTIONS) if read_as else (PAIRS,)
        for name in names:
            if name not in rescored and (run.folder / name).exists():
                yield from ({name: table} for table in run.saved_tables(name, chosen))
        batches = merge(*map(of_condition, run.under_conditions), key=itemgetter(0))
        for _, parts in groupby(batches, key=itemgetter(0)):
            first, *rest = (tables for _, tables in parts)
            stopwatch.lap("metrics")
            yield {name: in_order([own, *(one[name] for one in rest if name in one)]) for name, own in first.items()}
            stopwatch.lap("logging")

    count = len(run.rows.image_ids) if chosen is None else len(chosen)
    bar: Iterable[dict[str, pa.Table]] = track(
        scored(), "Scoring", -(-count // size), disable=not sys.stderr.isatty(), transient=True
    )
    digests = write_tables(folder, bar, names, about_tables(stored.findings, rules.gamma, provenance))
    changed: dict[str, Any] = {
        "evaluation": {"thresholds": rules.thresholds, "ties": rules.ties},
        "data": provenance["data"] | {"gamma": rules.gamma},
        "model": provenance["model"] | read_as | ({"reader": READER} if read_as else {}),
        "seconds": {stage: round(seconds, 3) for stage, seconds in stopwatch.seconds.items()},
        "rescored": {
            "from": utf8(str(run.folder.absolute())),
            "images": None if chosen is None else names_digest(sorted(chosen)),
            "command": [utf8(word) for word in sys.orig_argv],
            "versions": versions(),
        },
    }
    rows = read_rows(folder / PAIRS, stored.findings)
    results = summarize(
        (stored.model, stored.dataset, split),
        rows,
        numbers_of(rows),
        rules.thresholds,
        # `bench` must not mistake it for the run of its configuration.
        provenance={name: value for name, value in provenance.items() if name != "fingerprint"} | changed,
        answers=[*read_answers(folder / PREDICTIONS)] if read_as else None,
        changed=FinishedRun(folder, stored).changed,
    )
    # Counts of the complete run, even if only some images are rescored.
    counts = replace(results.counts, skipped=stored.counts.skipped, notes=stored.counts.notes)
    results = replace(results, counts=counts, tables=digests)
    write_results(folder / RESULTS, results)
    return results


def _by_batches(
    run: FinishedRun, chosen: frozenset[str] | None, workers: int, score: Callable[[Sequence[SavedImage]], _Scored]
) -> Iterator[tuple[list[SavedImage], _Scored]]:
    """Score the run's batches in order, so that the number of processes does not change results."""
    import xbench.scoring.host  # noqa: F401  # before processes are forked

    if workers == 0:
        yield from ((kept, score(kept)) for kept in run.saved_batches(chosen))
        return
    # Forked processes start at once and share the run's rows.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting: deque[tuple[list[SavedImage], Future[_Scored]]] = deque()
    try:
        with ProcessPoolExecutor(workers, context, _begin_worker, (score,)) as pool:
            for kept in run.saved_batches(chosen):
                waiting.append((kept, pool.submit(_score_in_worker, [replace(image, picture=None) for image in kept])))
                if len(waiting) > 2 * workers:
                    first, scores = waiting.popleft()
                    yield first, scores.result()
            yield from ((first, scores.result()) for first, scores in waiting)
    except BrokenProcessPool:
        raise UserError(
            f"A scoring process was killed, probably because memory ran out. Use fewer --workers than {workers}."
        ) from None


def score_batch(
    run: FinishedRun, rules: Rules, read_as: Mapping[str, str], kept: Sequence[SavedImage]
) -> dict[str, pa.Table]:
    """Measure a batch of saved images; answers are read by the family and frame in `read_as`."""
    from xbench.scoring.measure import measure
    from xbench.types import Answers

    prediction, truth = run.batch(kept, rules.gamma, **read_as)
    tables = {PAIRS: measure(prediction, truth, rules, condition=run.condition)}
    if run.condition:
        # Only the rows tell what was hidden.
        rows = np.concatenate([run.pairs_of[run.row_of[image.image_id]] for image in kept])
        tables[PAIRS] = with_changes(tables[PAIRS], {name: run.rows[name][rows] for name in CHANGED})
    if isinstance(prediction.shown, Answers):
        tables[PREDICTIONS] = answers_table(answer_rows(prediction.shown, truth), run.condition)
    return tables


_task: Callable[[Sequence[SavedImage]], Any]


def _begin_worker(task: Callable[[Sequence[SavedImage]], Any]) -> None:
    global _task
    _task = task
    end_with_parent()
    # Ctrl-C reaches all processes; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "torch" in sys.modules or sys.platform != "linux":
        import torch

        torch.set_num_threads(1)


def _score_in_worker(kept: Sequence[SavedImage]) -> Any:
    return _task(kept)


def _write_config(run: Path, folder: Path, rules: Rules, all_images: bool, read_as: Mapping[str, str]) -> None:
    stored = run / CONFIG
    text = stored.read_text(encoding="utf-8", errors="replace") if stored.is_file() else ""
    if not all_images:
        text = f"# This run has no configuration: it is {utf8(str(run.absolute()))}, rescored on chosen images.\n"
    try:
        config = load_yaml(text)
        config["data"]["init_args"]["gamma"] = rules.gamma
        if read_as:
            options = config["model"]["init_args"]
            options |= {name: value for name, value in read_as.items() if name in options}
        for callback in config["trainer"]["callbacks"]:
            if callback["class_path"].rpartition(".")[2] == "Evaluation":
                callback["init_args"] = {"thresholds": rules.thresholds, "ties": rules.ties}
        text = yaml.safe_dump(config, sort_keys=False)
    except (yaml.YAMLError, TypeError, LookupError, ValueError, AttributeError):
        # Runs started from Python have no configuration, and untrusted ones may be anything.
        pass
    write_whole(folder / CONFIG, text)
