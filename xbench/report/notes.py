"""What makes numbers doubtful, and what a reader must know before setting runs side by side."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from xbench.report.names import count_of, dataset_title
from xbench.report.runs import Run, part_of, widest
from xbench.report.schema import NUMBERS, RunAnalysis
from xbench.runtime.notes import CUT_OFF_NOTE, DOUBT_NOTE, EXPLORATORY_NOTE, INPUT_NOTE, SUPERVISED_NOTE

Different = tuple[Sequence[Run], Sequence[Run], int, Mapping[str, tuple[int, int]]]
"""Runs scored alike, the runs scored as most were, how many images both scored, and by finding on how many of these the
labels differ, and on how many others the regions."""


def warnings(runs: Sequence[RunAnalysis]) -> tuple[str, ...]:
    """Return doubts about whole runs, such as maps that look inverted."""
    return tuple(
        f"{run.run.label} on {dataset_title(run.run.dataset)}: {warning}"
        for run in runs
        for warning in (
            *filter(None, [run.run.results.sign_warning(), run.auroc_warning]),
            *(run.run.results.answers.warnings() if run.run.results.answers else ()),
        )
    )


def dataset_notes(entries: Sequence[RunAnalysis], different: Iterable[Different]) -> tuple[str, ...]:
    """Return notes on comparing the runs of a dataset and split, and on each run."""
    runs = [entry.run for entry in entries]
    images = {run.label: frozenset(run.images.image_ids) for run in runs}
    notes = []
    if len({*images.values()}) > 1:
        counts = ", ".join(f"{label} {len(ids):,}" for label, ids in images.items())
        notes.append(
            f"The runs scored different images: {counts}; {len(frozenset.intersection(*images.values())):,} are common "
            "to all. Tables show each run on its own images; tests compare two runs on the images that both scored."
        )
    notes += [
        f"{run.label} scored {len(images[run.label]):,} of the {len(images[whole.label]):,} images of {whole.label}: "
        "the same model and dataset on fewer images."
        for run in runs
        if (whole := part_of(run, runs))
    ]
    notes += _ground_notes(runs, different)
    # Runs are told apart by a value; a note shows it in words.
    values: dict[str, list[tuple[Hashable, str]]] = {
        "The runs scored different findings, so their means over findings cannot be compared": [
            (run.results.findings, count_of(len(run.results.findings), "finding")) for run in runs
        ],
        "The runs read different annotation files; paired tests use the labels and regions that agree": [
            ("", run.settings.get("annotation", "none")) for run in runs
        ],
        "The runs swept different numbers of thresholds": [
            ("", str(len(run.results.grounding.thresholds))) for run in runs
        ],
    }
    for sentence, of_runs in values.items():
        groups = {value: [run for run, of in zip(runs, of_runs, strict=True) if of == value] for value in of_runs}
        if len(groups) > 1:
            said = [f"{words} ({_labels(group)})" for (_, words), group in groups.items()]
            notes.append(f"{sentence}: {'; '.join(said)}.")
    boxes = [run for run in runs if run.results.answered]
    if boxes and len(boxes) < len(runs):
        notes.append(
            f"{_labels(boxes)}: answers with boxes or points need no threshold, so numbers that depend on one are "
            "missing. Compare their Dice and IoU (in the columns At 0.5) with the cross-fitted values of maps, as the "
            "paired tests do, never with their best."
        )
    return (*notes, *(note for entry in entries for note in _notes_of(entry)))


def _notes_of(entry: RunAnalysis) -> Iterator[str]:
    run, results = entry.run, entry.run.results
    yield from _disagreement(entry)
    for warning in filter(None, (results.sign_warning(), entry.auroc_warning)):
        yield f"{run.label}: {warning}"
    if limit := run.settings.get("limit"):
        yield f"{run.label} was limited to the first {limit} images: its numbers do not describe the dataset."
    for note in results.counts.notes:
        if note.note.startswith((INPUT_NOTE, EXPLORATORY_NOTE, SUPERVISED_NOTE, DOUBT_NOTE)):
            yield f"{run.label}: {note.note}."
        if note.note.startswith(CUT_OFF_NOTE):
            yield f"{run.label}: {note.note} ({count_of(note.count, 'image')})."
    if skipped := results.counts.skipped:
        yield (
            f"{run.label} left out {count_of(len(skipped), 'image')} that could not be scored; the first is "
            f"{skipped[0].image_id}: {skipped[0].reason}"
        )
    if not results.answered and (count := int(np.isnan(run.rows["peak_x"][run.rows.counts.row]).sum())):
        yield f"{run.label} lacks the maps of {count_of(count, 'scored pair')}, which count as misses."
    if count := results.counts.constant_maps.count:
        yield (
            f"{run.label} has {count_of(count, 'constant saliency map')}, the same value at every pixel, scored as "
            "zeros, with all pixels tied for the maximum."
        )


def _disagreement(entry: RunAnalysis) -> Iterator[str]:
    results, wrong = entry.run.results, []
    for finding, derived in {"macro": entry.macro, **entry.findings}.items():
        halves = results.grounding.per_class.get(finding), results.classification.per_class.get(finding)
        stored = dict(results.macro) if finding == "macro" else {}
        for half in halves:
            stored |= {} if half is None else vars(half)
        for key in (key for key in stored if key in NUMBERS):
            value, own = stored[key], derived[key].value
            # Far above the rounding of a run's sums, far below what a table shows.
            if (value is None) is not (own is None) or abs((value or 0.0) - (own or 0.0)) > 1e-9:
                wrong.append(f"{key} of {finding}, {value} there and {own} by the tables")
    if wrong:
        yield (
            f"{entry.run.label}: results.json in {entry.run.folder} disagrees with the tables beside it in "
            f"{count_of(len(wrong), 'number')}; the first is {wrong[0]}. This report follows the tables. Check that "
            "these files belong together."
        )


def _ground_notes(runs: Sequence[Run], different: Iterable[Different]) -> list[str]:
    """Name runs with other labels or regions than most, the findings, and the options that explain it."""
    notes = []
    for group, usual, images, differ in different:
        where = []
        for place, what in enumerate(("labels", "regions")):
            # The findings that differ, each with on how many images, the most first.
            counts = {finding: of_finding[place] for finding, of_finding in differ.items() if of_finding[place]}
            most = sorted(counts, key=lambda finding: -counts[finding])
            more = f" and {count_of(len(most) - 5, 'more finding')}" if len(most) > 5 else ""
            if counts:
                where.append(f"the {what} of {', '.join(f'{name} on {counts[name]:,}' for name in most[:5])}{more}")
        notes.append(
            f"{_labels(group)} and {_labels(usual)} were scored on different labels or regions: "
            f"{_options(group, usual)}. Of {count_of(images, 'image')} that both scored, {' and '.join(where)} differ. "
            "Paired tests and pictures leave these pairs out; tests of AUROC leave out only images whose labels "
            "differ. Do not compare the other numbers of these runs."
        )
    if notes:
        used = f"the labels and regions of {widest(runs).label}"
        notes.append(f"Floors and ceilings without a run of their own use {used}.")
    return notes


def _options(group: Sequence[Run], usual: Sequence[Run]) -> str:
    said = []
    for name in sorted({"annotation"}.union(*(run.data_settings for run in (*group, *usual)))):
        mine, theirs = ({run.settings.get(name, "none") for run in runs} for runs in (group, usual))
        if not mine & theirs:
            said.append(f"{name.replace('_', ' ')} {' or '.join(sorted(mine))} against {' or '.join(sorted(theirs))}")
    return ", ".join(said) or "no recorded option explains it"


def _labels(runs: Sequence[Run]) -> str:
    return ", ".join(run.label for run in runs)
