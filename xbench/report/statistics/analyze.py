"""Analyze runs: every number of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, groupby
from math import comb

from xbench.findings.names import MACRO
from xbench.report.names import dataset_title
from xbench.report.notes import Different, dataset_notes
from xbench.report.runs import Collection, Run, ground, widest
from xbench.report.schema import Analysis, DatasetAnalysis, Estimate, RunAnalysis, StudyRow, placed
from xbench.report.statistics.below_half import auroc_warning
from xbench.report.statistics.correlation import correlations
from xbench.report.statistics.interventions import interventions
from xbench.report.statistics.lesions import area_bins, position_cells, quadrants
from xbench.report.statistics.measures import Measures, measure
from xbench.report.statistics.paired import common_measures, compare, tied_with_best
from xbench.report.statistics.perturbations import perturbations
from xbench.report.statistics.phrases import phrase_groups
from xbench.report.statistics.protocols import protocol_scores, word_tests, words_of
from xbench.report.statistics.references import references
from xbench.report.statistics.rewordings import rewordings
from xbench.report.statistics.sample import Sample, differences
from xbench.report.statistics.studies import studies
from xbench.report.statistics.subgroups import subgroups

Progress = Callable[[int, int, str], None]
"""Called before every step and after the last: steps done, all steps, and the next one in words."""
FOLDS = 5


def analyze(collection: Collection, seed: int = 0, progress: Progress = lambda *_: None) -> Analysis:
    """Analyze runs; the same runs and `seed` (of the exchanges in tests, 0 or more) give the same numbers."""
    grouped: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in collection.runs:
        grouped[run.dataset, run.split].append(run)
    pairs = sum(comb(sum(not run.is_reference for run in runs), 2) for runs in grouped.values())
    total, done = len(collection.runs) + pairs, count()

    def begin(what: str) -> None:
        progress(next(done), total, what)

    analyzed = [_dataset(runs, seed, begin) for _, runs in sorted(grouped.items())]
    notes = [
        f"{dataset_title(name)} was run on {len(found)} splits ({', '.join(found)}), which are analyzed separately."
        for name, keys in groupby(sorted(grouped), key=lambda key: key[0])
        if len(found := [split for _, split in keys]) > 1
    ]
    datasets = placed([dataset for dataset, _ in analyzed])
    lines, left_out = correlations(datasets)
    begin("done")
    study_rows = tuple(row for _, rows in analyzed for row in rows)
    return Analysis(tuple(datasets), lines, study_rows, collection.set_aside, FOLDS, (*notes, *left_out))


def _dataset(runs: Sequence[Run], seed: int, tell: Callable[[str], None]) -> tuple[DatasetAnalysis, Sequence[StudyRow]]:
    name, split = runs[0].dataset, runs[0].split
    title, place = dataset_title(name), f"{name}/{split}"
    measures: dict[str, Measures] = {}
    entries: list[RunAnalysis] = []
    for run in runs:
        tell(f"{title}: {run.label}")
        measures[run.label] = measure(Sample.of(run), FOLDS)
        entries.append(analyze_run(run, measures[run.label]))

    def rank(entry: RunAnalysis) -> tuple[float, str]:
        value = entry.macro["pointing_game"].value
        return 1.0 if value is None else -value, entry.run.label

    def on_common(first: str, second: str) -> tuple[Measures, Measures] | None:
        return common_measures(measures[first], measures[second], FOLDS)

    models = sorted((entry for entry in entries if not entry.run.is_reference), key=rank)
    of_references = [entry for entry in entries if entry.run.is_reference]
    labels = [entry.run.label for entry in models]
    comparisons = compare(labels, on_common, seed, place, lambda pair: tell(f"{title}: {pair}"))
    own_runs = [entry.run for entry in models]
    comparisons += tuple(word_tests(own_runs, seed, place))
    floors = widest(runs)
    analysis = DatasetAnalysis(
        dataset=name,
        split=split,
        findings=tuple(dict.fromkeys(finding for run in runs for finding in run.results.findings)),
        runs=tuple(models),
        references=references(floors, measures[floors.label].sample, of_references, FOLDS),
        comparisons=comparisons,
        tied_with_best=tied_with_best({entry.run.label: entry.macro for entry in models}, comparisons),
        notes=dataset_notes(entries, _different_ground(runs, measures)),
        protocols=protocol_scores(own_runs, [entry.run for entry in of_references], seed, place),
        rewordings=rewordings(models, FOLDS, seed, place),
        interventions=interventions(models, seed, place),
        perturbations=perturbations(models),
        subgroups=subgroups([one for one in models if not one.run.results.in_words], measures, FOLDS, seed, place),
    )
    # Rows of a study repeat the same few pairs of runs.
    return analysis, studies(models, lru_cache(maxsize=16)(on_common), seed, place)


def analyze_run(run: Run, measures: Measures) -> RunAnalysis:
    """Return a run with its numbers; those of a sweep of thresholds are empty for boxes and points."""
    sample, answered = measures.sample, run.results.answered
    last = max(1, sample.dice.shape[1] - 1)
    kept = ("dice_fixed", "iou_fixed") if answered == "boxes" else ()

    def existing(numbers: Mapping[str, Estimate]) -> dict[str, Estimate]:
        lost = {key for key in numbers if answered and key.startswith(("dice_", "iou_")) and key not in kept}
        return {**numbers, **dict.fromkeys(lost, Estimate(None))}

    words = words_of(run)
    said = words[0].numbers if words else {}
    return RunAnalysis(
        run=run,
        clustered_by=sample.clustered_by,
        clusters=len(sample.clusters),
        macro={**existing(measures.macro()), **said.get(MACRO, {})},
        findings={name: {**existing(of), **said.get(name, {})} for name, of in measures.findings().items()},
        dice_curve=measures.curve() if not answered else (),
        thresholds={
            finding: {name: tuple((of[own][of[own] >= 0] / last).tolist()) for name, of in measures.thresholds.items()}
            for own, finding in enumerate(sample.findings)
        },
        areas=area_bins(measures),
        positions=position_cells(measures, run),
        quadrants=quadrants(sample, run),
        phrases=phrase_groups(measures, run),
        words=words,
        auroc_warning=auroc_warning(run.results, run.rows),
    )


def _different_ground(runs: Sequence[Run], measures: Mapping[str, Measures]) -> Iterator[Different]:
    groups = [[run for run in runs if ground(run) == one] for one in dict.fromkeys(map(ground, runs))]
    usual = max(groups, key=lambda group: (len(group), group[0].results.counts.images))
    expected = measures[usual[0].label].sample
    for group in groups:
        sample = measures[group[0].label].sample
        if group is not usual and (differ := differences(sample, expected)):
            yield group, usual, len({*sample.image_ids} & {*expected.image_ids}), differ
