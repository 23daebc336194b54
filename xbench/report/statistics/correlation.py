"""Do models that recognise better also ground better?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

import numpy as np
from scipy.stats import linregress

from xbench.report.names import dataset_title, model_title
from xbench.report.runs import own_settings as own_runs
from xbench.report.schema import Correlation, DatasetAnalysis, Estimate, RunAnalysis

Point = tuple[str, float, float]


def correlations(datasets: Sequence[DatasetAnalysis]) -> tuple[tuple[Correlation, ...], tuple[str, ...]]:
    """Return the lines through AUROC and pointing game, and what readers must know about them.

    A model enters once per dataset, with its own prompts at its smallest size; references do not. Over models there is
    a line per dataset, and one pooled, whose points are means over datasets as in the paper's Fig. 3; models that were
    not run on all of the datasets are left out of it, for means over different datasets cannot be compared. Over
    findings a point is a model and a finding of a dataset; unless all are of one model and dataset these are not
    independent, and have no p-value. An AUROC of probabilities that are all alike is 0.5 by construction and no point.
    """
    of_models, of_findings, over_findings = [], [], []
    of_model: defaultdict[str, dict[str, Point]] = defaultdict(dict)
    for dataset in datasets:
        points, findings = [], []
        for run in own_settings(dataset.runs):
            title = model_title(run.run.model)
            told = {finding for finding in dataset.findings if _told_apart(run, finding)}
            for point in _point(title, run.macro) if told else ():
                points.append(point)
                of_model[title][f"{dataset.dataset}/{dataset.split}"] = point
            for finding in (name for name in dataset.findings if name in told):
                findings += _point(f"{title}: {finding}", run.findings.get(finding, {}))
        of_models.append(_line("models", dataset.dataset, points, len(points)))
        of_findings.append(_line("findings", dataset.dataset, findings, _models(findings)))
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
    of_models.append(_line("models", None, pooled, len(pooled)))
    several = len({line.dataset for line in of_findings if line.points}) > 1
    of_findings.append(_line("findings", None, over_findings, _models(over_findings), several))
    return (*of_models, *of_findings), (note,) if left_out else ()


def own_settings(runs: Sequence[RunAnalysis]) -> list[RunAnalysis]:
    """Return the run with each model's own settings, sorted by label."""
    entries = {id(entry.run): entry for entry in runs}
    return sorted((entries[id(run)] for run in own_runs([entry.run for entry in runs]).values()), key=_label)


def _label(entry: RunAnalysis) -> str:
    return entry.run.label


def _point(label: str, numbers: Mapping[str, Estimate]) -> list[Point]:
    """Return the point of these numbers, if both of them exist."""
    x, y = (numbers.get(key, Estimate(None)).value for key in ("auroc", "pointing_game"))
    return [] if x is None or y is None else [(label, x, y)]


def _told_apart(run: RunAnalysis, finding: str) -> bool:
    """Tell whether a run's probabilities of a finding differ between images whose label is known."""
    if finding not in run.run.results.findings:
        return False
    images, column = run.run.images, run.run.results.findings.index(finding)
    return len(np.unique(images.probabilities[images.labels[:, column] >= 0, column])) > 1


def _models(points: Sequence[Point]) -> int:
    return len({label.partition(": ")[0] for label, _, _ in points})


def _line(
    scope: Literal["models", "findings"],
    dataset: str | None,
    points: Sequence[Point],
    models: int,
    several: bool = False,
) -> Correlation:
    x, y = [point[1] for point in points], [point[2] for point in points]
    independent = scope == "models" or (models == 1 and not several)
    if len(points) < 3 or len(set(x)) < 2:
        return Correlation(scope, dataset, tuple(points), None, None, None, None, models, independent)
    if len(set(y)) < 2:
        # linregress divides nothing by nothing here.
        return Correlation(scope, dataset, tuple(points), 0.0, y[0], None, None, models, independent)
    fit = linregress(x, y)
    p = float(fit.pvalue) if independent else None
    numbers = float(fit.slope), float(fit.intercept), float(fit.rvalue**2), p
    return Correlation(scope, dataset, tuple(points), *numbers, models, independent)
