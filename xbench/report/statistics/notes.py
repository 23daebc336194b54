"""What a reader must know before setting the runs of a dataset side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import isnan

from xbench.geometry.preprocessing import INPUT_NOTE
from xbench.report.runs import Run, ground, widest
from xbench.report.statistics.measures import Measures, macro
from xbench.report.statistics.sample import Sample, differences

__all__ = ["dataset_notes"]


def dataset_notes(runs: Sequence[Run], measures: Mapping[str, Measures]) -> tuple[str, ...]:
    """Return notes in sentences.

    Args:
        runs: Of one dataset and split.
        measures: By label of the run.
    """
    notes = _different_images(runs, {label: measure.sample for label, measure in measures.items()})
    notes += _different_ground(runs, {label: measure.sample for label, measure in measures.items()})
    notes += _different(
        runs,
        lambda run: ", ".join(run.results.findings),
        "The runs scored different findings, so their macro numbers are means over different findings",
        lambda run: f"{len(run.results.findings)} findings",
    )
    notes += _different(
        runs,
        lambda run: run.settings.get("annotation", "none"),
        "The runs read different annotation files; paired tests use the labels and regions that agree",
    )
    notes += _different(
        runs,
        lambda run: str(len(run.results.grounding.thresholds)),
        "The runs swept different numbers of thresholds",
    )
    for run in runs:
        results = run.results
        if wrong := _disagreement(run, measures[run.label]):
            notes.append(wrong)
        if warning := results.sign_warning():
            notes.append(f"{run.label}: {warning}")
        if limit := run.settings.get("limit"):
            notes.append(f"{run.label} was limited to the first {limit} images: no number of it describes the dataset.")
        notes += [f"{run.label}: {note.note}." for note in results.counts.notes if note.note.startswith(INPUT_NOTE)]
        if skipped := results.counts.skipped:
            notes.append(
                f"{run.label} left out {_count(len(skipped), 'image')} that could not be scored; the first is "
                f"{skipped[0].image_id}: {skipped[0].reason}"
            )
        if count := results.counts.constant_maps.count:
            notes.append(
                f"{run.label} has {_count(count, 'constant saliency map')}, the same value at every pixel, scored as "
                "zeros with all pixels tied for the maximum."
            )
    return tuple(notes)


_NAMED = 5
"""Findings that a note names one by one."""

_TOLERANCE = 1e-9
"""Far above the rounding of a run's sums, far below what a table shows."""


def _disagreement(run: Run, measures: Measures) -> str | None:
    """Say that the run's tables give other numbers than its results.json, if so."""
    results, point = run.results, measures.point
    stored = {"macro": results.macro}
    derived = {"macro": {key: macro(point, key) for key in point}}
    for column, finding in enumerate(measures.sample.findings):
        both = results.grounding.per_class.get(finding), results.classification.per_class.get(finding)
        stored[finding] = {key: value for half in both if half is not None for key, value in vars(half).items()}
        derived[finding] = {key: float(values[column]) for key, values in point.items()}
    wrong = [
        (finding, key, numbers[key], derived[finding][key])
        for finding, numbers in stored.items()
        for key in numbers
        if key in point and not _agree(numbers[key], derived[finding][key])
    ]
    if not wrong:
        return None
    finding, key, says, give = wrong[0]
    return (
        f"{run.label}: results.json in {run.folder} disagrees with the tables beside it in "
        f"{_count(len(wrong), 'number')}; the first is {key} of {finding}, {says} there and "
        f"{None if isnan(give) else give} by the tables, which this report follows. Do these files belong together?"
    )


def _agree(stored: float | None, derived: float) -> bool:
    if stored is None or isnan(derived):
        return stored is None and isnan(derived)
    return abs(stored - derived) <= _TOLERANCE


def _different_images(runs: Sequence[Run], samples: Mapping[str, Sample]) -> list[str]:
    sets = {run.label: frozenset(samples[run.label].image_ids) for run in runs}
    if len(set(sets.values())) < 2:
        return []
    common = len(frozenset.intersection(*sets.values()))
    counts = ", ".join(f"{label} {len(images):,}" for label, images in sets.items())
    return [
        f"The runs scored different images: {counts}; {common:,} are common to all. Tables show each run on its own "
        "images, tests compare two runs on the images that both scored."
    ]


def _different_ground(runs: Sequence[Run], samples: Mapping[str, Sample]) -> list[str]:
    """Say which runs have other labels or regions than most on images that both scored, where, and by which options."""
    groups: defaultdict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        groups[ground(run)].append(run)
    usual = max(groups.values(), key=lambda group: (len(group), group[0].results.counts.images))
    notes = []
    for group in groups.values():
        one, other = samples[group[0].label], samples[usual[0].label]
        differ = {} if group is usual else differences(one, other)
        if differ:
            images = len({*one.image_ids} & {*other.image_ids})
            where = [
                f"the {what} of {_listed({finding: counts[place] for finding, counts in differ.items()})}"
                for place, what in enumerate(("labels", "regions"))
                if any(counts[place] for counts in differ.values())
            ]
            notes.append(
                f"{_labels(group)} and {_labels(usual)} were scored on different ground: {_options(group, usual)}. Of "
                f"{_count(images, 'image')} that both scored, {' and '.join(where)} differ. Paired tests and pictures "
                "leave these pairs out, tests of AUROC only images whose labels differ; the other numbers of these "
                "runs, each on its own ground, cannot be compared."
            )
    if notes:
        notes.append(f"Floors and ceilings that no run gives are those of {widest(runs).label}.")
    return notes


def _options(group: Sequence[Run], usual: Sequence[Run]) -> str:
    """Name the settings of the dataset in which no run of a group agrees with a run of the other."""
    said = []
    names = {name for run in (*group, *usual) for name in run.data_settings} | {"annotation"}
    for name in sorted(names):
        mine, theirs = ({run.settings.get(name, "none") for run in runs} for runs in (group, usual))
        if not mine & theirs:
            said.append(f"{name.replace('_', ' ')} {' or '.join(sorted(mine))} against {' or '.join(sorted(theirs))}")
    return ", ".join(said) or "no option on record says why"


def _labels(runs: Sequence[Run]) -> str:
    return ", ".join(run.label for run in runs)


def _listed(counts: Mapping[str, int]) -> str:
    """Name the findings that differ, each with on how many images, the most first."""
    most = sorted((finding for finding in counts if counts[finding]), key=lambda finding: -counts[finding])
    more = f" and {_count(len(most) - _NAMED, 'more finding')}" if len(most) > _NAMED else ""
    return ", ".join(f"{finding} on {counts[finding]:,}" for finding in most[:_NAMED]) + more


def _different(
    runs: Sequence[Run], what: Callable[[Run], str], sentence: str, shown: Callable[[Run], str] | None = None
) -> list[str]:
    having: defaultdict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        having[what(run)].append(run)
    if len(having) < 2:
        return []
    groups = "; ".join(
        f"{(shown or what)(group[0])} ({', '.join(run.label for run in group)})" for group in having.values()
    )
    return [f"{sentence}: {groups}."]


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
