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
    findings a point is a model and a finding of a dataset; these are not independent, so their p-value is too small.
    """
    of_models, of_findings, over_findings = [], [], []
    of_model: defaultdict[str, dict[str, Point]] = defaultdict(dict)
    for dataset in datasets:
        points, findings = [], []
        for run in own_settings(dataset.runs):
            title = model_title(run.run.model)
            for point in _point(title, run.macro):
                points.append(point)
                of_model[title][f"{dataset.dataset}/{dataset.split}"] = point
            for finding in dataset.findings:
                findings += _point(f"{title}: {finding}", run.findings.get(finding, {}))
        of_models.append(_line("models", dataset.dataset, points))
        of_findings.append(_line("findings", dataset.dataset, findings))
        over_findings += [(f"{label} ({dataset_title(dataset.dataset)})", x, y) for label, x, y in findings]
    everywhere = {place for points in of_model.values() for place in points}
    pooled, left_out = [], []
    for title, places in sorted(of_model.items()):
        _, x, y = zip(*places.values(), strict=True)
        if len(places) == len(everywhere):
            pooled.append((title, fmean(x), fmean(y)))
        else:
            left_out.append(title)
    note = (
        f"The correlation pooled over datasets leaves out {', '.join(left_out)}: not run on all "
        f"{len(everywhere)} datasets, and means over different datasets cannot be compared."
    )
    of_models.append(_line("models", None, pooled))
    of_findings.append(_line("findings", None, over_findings))
    return (*of_models, *of_findings), (note,) if left_out else ()


def own_settings(runs: Sequence[RunAnalysis]) -> list[RunAnalysis]:
    """Return one run per model: with its official prompts where there are several, and then the smallest size.

    Before that come runs that were scored on the labels and regions that most of the runs were.
    """
    common = Counter(ground(run.run) for run in runs)

    def preference(run: RunAnalysis) -> tuple[int, bool, int, str]:
        size, official = run.run.settings.get("image_size", "0"), run.run.settings.get("prompts") == "official"
        return -common[ground(run.run)], not official, int(size) if size.isdigit() else 0, run.run.label

    chosen: dict[str, RunAnalysis] = {}
    for run in sorted(runs, key=preference):
        chosen.setdefault(run.run.model, run)
    return sorted(chosen.values(), key=lambda run: run.run.label)


def _point(label: str, numbers: Mapping[str, Estimate]) -> list[Point]:
    """Return the point of these numbers, if both of them exist."""
    x, y = (numbers.get(key, Estimate(None)).value for key in ("auroc", "pointing_game"))
    return [] if x is None or y is None else [(label, x, y)]


def _line(scope: Literal["models", "findings"], dataset: str | None, points: Sequence[Point]) -> Correlation:
    x, y = [point[1] for point in points], [point[2] for point in points]
    if len(points) < 3 or len(set(x)) < 2:
        return Correlation(scope, dataset, tuple(points), None, None, None, None)
    if len(set(y)) < 2:
        # linregress divides nothing by nothing here.
        return Correlation(scope, dataset, tuple(points), 0.0, y[0], None, None)
    fit = linregress(x, y)
    numbers = float(fit.slope), float(fit.intercept), float(fit.rvalue**2), float(fit.pvalue)
    return Correlation(scope, dataset, tuple(points), *numbers)
