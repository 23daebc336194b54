"""From runs to everything that a report says, as numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import comb

from xbench.errors import UserError
from xbench.report.names import dataset_title
from xbench.report.runs import Collection, Run, widest
from xbench.report.schema import Analysis, DatasetAnalysis, RunAnalysis, StudyRow
from xbench.report.statistics.comparing import common_measures, compare, tied_with_best
from xbench.report.statistics.correlation import correlations
from xbench.report.statistics.lesions import area_bins, area_groups, position_cells, position_groups, quadrants
from xbench.report.statistics.measures import Measures, measure
from xbench.report.statistics.notes import dataset_notes
from xbench.report.statistics.references import references
from xbench.report.statistics.sample import Sample
from xbench.report.statistics.studies import studies

__all__ = ["Progress", "analyse"]

Progress = Callable[[int, int, str], None]
"""Told how many steps are done, of how many, and in words what comes next."""


def analyse(collection: Collection, folds: int = 5, seed: int = 0, progress: Progress | None = None) -> Analysis:
    """Analyse runs; the same runs and seed give the same numbers.

    Args:
        collection: The runs, from `collect`.
        folds: Folds of cross-fitting.
        seed: Of the tests' exchanges, not negative.
        progress: Called before every step and after the last.

    Raises:
        UserError: `folds` is below 2.
    """
    if folds < 2:
        raise UserError(f"Thresholds cannot be chosen on other images with {folds} fold: give 2 at least.", 2)
    grouped: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in collection.runs:
        grouped[run.dataset, run.results.split].append(run)
    steps = _Steps(progress, sum(_steps(runs) for runs in grouped.values()))
    datasets: list[DatasetAnalysis] = []
    study_rows: list[StudyRow] = []
    for place in sorted(grouped):
        dataset, rows = _dataset(grouped[place], folds, seed, steps)
        datasets.append(dataset)
        study_rows += rows
    lines, notes = correlations(datasets)
    steps.finished()
    return Analysis(
        datasets=tuple(datasets),
        correlations=lines,
        studies=tuple(study_rows),
        set_aside=collection.set_aside,
        folds=folds,
        notes=(*_split_notes(datasets), *notes),
    )


class _Steps:
    """Counts what is done."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def next(self, what: str) -> None:
        if self._progress:
            self._progress(self._done, self._total, what)
        self._done += 1

    def finished(self) -> None:
        if self._progress:
            self._progress(self._total, self._total, "done")


def _steps(runs: Sequence[Run]) -> int:
    models = [run for run in runs if not run.instrument]
    return len(runs) + comb(len(models), 2)


def _dataset(runs: Sequence[Run], folds: int, seed: int, steps: _Steps) -> tuple[DatasetAnalysis, Sequence[StudyRow]]:
    name, split = runs[0].dataset, runs[0].results.split
    ground = f"{name}/{split}"
    title = dataset_title(name)
    measures: dict[str, Measures] = {}
    analyses: list[RunAnalysis] = []
    for run in runs:
        steps.next(f"{title}: {run.label}")
        of_run, measures[run.label] = _run(run, folds)
        analyses.append(of_run)
    models = sorted((a for a in analyses if not a.run.instrument), key=_rank)

    def on_common(first: str, second: str) -> tuple[Measures, Measures] | None:
        return common_measures(measures[first], measures[second], folds)

    labels = [analysis.run.label for analysis in models]
    comparisons = compare(labels, on_common, seed, ground, lambda pair: steps.next(f"{title}: {pair}"))
    floors = widest(runs)
    analysis = DatasetAnalysis(
        dataset=name,
        split=split,
        findings=tuple(dict.fromkeys(finding for run in runs for finding in run.results.findings)),
        runs=tuple(models),
        references=references(
            floors,
            measures[floors.label].sample,
            [analysis for analysis in analyses if analysis.run.instrument],
            folds,
        ),
        comparisons=comparisons,
        tied_with_best=tied_with_best({analysis.run.label: analysis.macro for analysis in models}, comparisons),
        notes=dataset_notes(runs, measures),
    )
    # The rows of a study ask for the same few pairs of runs again and again.
    return analysis, studies(models, lru_cache(maxsize=16)(on_common), seed, ground)


def _run(run: Run, folds: int) -> tuple[RunAnalysis, Measures]:
    sample = Sample.of(run)
    areas, positions = area_groups(sample), position_groups(sample, run)
    measures = measure(sample, folds, (*areas, *positions))
    steps = max(1, sample.dice.shape[1] - 1)
    thresholds = {
        finding: {
            name: tuple(place / steps for (column, _), place in sorted(chosen.items()) if column == own)
            for name, chosen in (
                ("dice", measures.fitted.dice_thresholds),
                ("iou", measures.fitted.iou_thresholds),
            )
        }
        for own, finding in enumerate(sample.findings)
    }
    analysis = RunAnalysis(
        run=run,
        clustered_by=sample.clustered_by,
        clusters=len(sample.clusters),
        macro=measures.macro(),
        findings=measures.findings(),
        dice_curve=measures.curve(),
        thresholds=thresholds,
        areas=area_bins(measures, areas),
        positions=position_cells(measures, positions, run),
        quadrants=quadrants(sample, run),
    )
    return analysis, measures


def _rank(analysis: RunAnalysis) -> tuple[float, str]:
    value = analysis.macro["pointing_game"].value
    return (-value if value is not None else 1.0, analysis.run.label)


def _split_notes(datasets: Sequence[DatasetAnalysis]) -> list[str]:
    splits: defaultdict[str, list[str]] = defaultdict(list)
    for dataset in datasets:
        splits[dataset.dataset].append(dataset.split)
    return [
        f"{dataset_title(name)} was run on {len(found)} splits ({', '.join(found)}), which are analysed apart."
        for name, found in splits.items()
        if len(found) > 1
    ]
