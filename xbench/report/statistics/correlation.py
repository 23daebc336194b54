"""Do models that recognise better also ground better?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

from scipy.stats import linregress

from xbench.report.names import dataset_title, model_title
from xbench.report.runs import ground
from xbench.report.schema import Correlation, DatasetAnalysis, Estimate, RunAnalysis

Point = tuple[str, float, float]


def correlations(datasets: Sequence[DatasetAnalysis]) -> tuple[tuple[Correlation, ...], tuple[str, ...]]:
    """Return the lines through AUROC and pointing game, and what readers must know about them.

    A model enters once per dataset, with its own prompts at its smallest size; references do not. Over models there is
    a line per dataset, and one pooled, whose points are means over datasets as in the paper's Fig. 3; models that were
    not run on all of the datasets are left out of it, for means over different datasets cannot be compared. Over
    findings a point is a model and a finding of a dataset; such points are not independent, so their p-value flatters.
    """
    found, notes = [], []
    of_model: defaultdict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    over_findings: list[Point] = []
    lines_of_findings = []
    for dataset in datasets:
        runs = own_settings(dataset.runs)
        points = []
        of_findings = []
        for run in runs:
            title = model_title(run.run.model)
            if (place := _place(run.macro)) is not None:
                points.append((title, *place))
                of_model[title][f"{dataset.dataset}/{dataset.split}"] = place
            for finding in dataset.findings:
                if finding in run.findings and (place := _place(run.findings[finding])) is not None:
                    of_findings.append((f"{title}: {finding}", *place))
        found.append(_line("models", dataset.dataset, points))
        lines_of_findings.append(_line("findings", dataset.dataset, of_findings))
        over_findings += [(f"{label} ({dataset_title(dataset.dataset)})", x, y) for label, x, y in of_findings]
    everywhere = {name for places in of_model.values() for name in places}
    complete = {title: places for title, places in of_model.items() if len(places) == len(everywhere)}
    pooled = []
    for title, places in sorted(complete.items()):
        x, y = map(fmean, zip(*places.values(), strict=True))
        pooled.append((title, x, y))
    if left_out := sorted({*of_model} - {*complete}):
        notes.append(
            f"The correlation pooled over datasets leaves out {', '.join(left_out)}: not run on all "
            f"{len(everywhere)} datasets, and means over different datasets cannot be compared."
        )
    found += [_line("models", None, pooled), *lines_of_findings, _line("findings", None, over_findings)]
    return tuple(found), tuple(notes)


def own_settings(runs: Sequence[RunAnalysis]) -> list[RunAnalysis]:
    """Return one run per model: with its official prompts where there are several, and then the smallest size.

    Before that come runs that were scored on the labels and regions that most of the runs were.
    """
    common = Counter(ground(run.run) for run in runs)

    def preference(run: RunAnalysis) -> tuple[int, bool, int, str]:
        settings = run.run.settings
        size = settings.get("image_size", "0")
        official = settings.get("prompts") == "official"
        return -common[ground(run.run)], not official, int(size) if size.isdigit() else 0, run.run.label

    chosen: dict[str, RunAnalysis] = {}
    for run in sorted(runs, key=preference):
        chosen.setdefault(run.run.model, run)
    return sorted(chosen.values(), key=lambda run: run.run.label)


def _place(numbers: Mapping[str, Estimate]) -> tuple[float, float] | None:
    auroc, pointing_game = numbers["auroc"].value, numbers["pointing_game"].value
    return None if auroc is None or pointing_game is None else (auroc, pointing_game)


def _line(scope: Literal["models", "findings"], dataset: str | None, points: Sequence[Point]) -> Correlation:
    x, y = [point[1] for point in points], [point[2] for point in points]
    if len(points) < 3 or len(set(x)) < 2:
        return Correlation(scope, dataset, tuple(points), None, None, None, None)
    if len(set(y)) < 2:
        # linregress divides nothing by nothing here.
        return Correlation(scope, dataset, tuple(points), 0.0, y[0], None, None)
    fit = linregress(x, y)
    return Correlation(
        scope, dataset, tuple(points), float(fit.slope), float(fit.intercept), float(fit.rvalue**2), float(fit.pvalue)
    )
