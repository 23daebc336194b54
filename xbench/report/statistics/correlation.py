"""Relate recognition to grounding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from scipy.special import stdtr

from xbench.report.names import dataset_title, model_title
from xbench.report.runs import own_settings as own_runs
from xbench.report.schema import Correlation, DatasetAnalysis, Estimate, RunAnalysis, Scope

Point = tuple[str, float, float]


def correlations(datasets: Sequence[DatasetAnalysis]) -> tuple[tuple[Correlation, ...], tuple[str, ...]]:
    """Return the lines through AUROC and pointing game, and notes on them.

    A model enters once per dataset, with its own prompts at its smallest size; references do not. Over models there is
    a line per dataset, and one through means over datasets, as in the paper's Fig. 3, without the models that were not
    run on all of them. Over findings a point is a model and a finding of a dataset; points of several models or
    datasets are not independent and have no p-value. Findings with one probability for all images are no points,
    because their AUROC is 0.5 by construction.
    """
    of_models, of_findings, over_findings = [], [], []
    of_model: defaultdict[str, dict[int, Point]] = defaultdict(dict)
    for place, dataset in enumerate(datasets):
        points, findings = [], []
        for run in own_settings(dataset.runs):
            title = model_title(run.run.model)
            told = [finding for finding in dataset.findings if _told_apart(run, finding)]
            for point in _point(title, run.macro) if told else ():
                points.append(point)
                of_model[title][place] = point
            for finding in told:
                findings += _point(f"{title}: {finding}", run.findings.get(finding, {}))
        of_models.append(_line("models", dataset.dataset, points))
        of_findings.append(_line("findings", dataset.dataset, findings))
        over_findings += [(f"{label} ({dataset_title(dataset.dataset)})", x, y) for label, x, y in findings]
    everywhere = sum(bool(line.points) for line in of_models)
    pooled = [
        (title, fmean(x for _, x, _ in points.values()), fmean(y for *_, y in points.values()))
        for title, points in sorted(of_model.items())
        if len(points) == everywhere
    ]
    left_out = [title for title, points in sorted(of_model.items()) if len(points) < everywhere]
    note = (
        f"The correlation pooled over datasets leaves out {', '.join(left_out)}: not run on all {everywhere} datasets, "
        "and means over different datasets cannot be compared."
    )
    of_models.append(_line("models", None, pooled))
    several = len({line.dataset for line in of_findings if line.points}) > 1
    of_findings.append(_line("findings", None, over_findings, several))
    return (*of_models, *of_findings), (note,) if left_out else ()


def own_settings(runs: Sequence[RunAnalysis]) -> list[RunAnalysis]:
    """Return the run with each model's own settings, sorted by label."""
    entries = {id(entry.run): entry for entry in runs}
    own = (entries[id(run)] for run in own_runs([entry.run for entry in runs]).values())
    return sorted(own, key=lambda entry: entry.run.label)


def _point(label: str, numbers: Mapping[str, Estimate]) -> list[Point]:
    x, y = (numbers.get(key, Estimate(None)).value for key in ("auroc", "pointing_game"))
    return [] if x is None or y is None else [(label, x, y)]


def _told_apart(run: RunAnalysis, finding: str) -> bool:
    if finding not in run.run.results.findings:
        return False
    images, column = run.run.images, run.run.results.findings.index(finding)
    return len(np.unique(images.probabilities[images.labels[:, column] >= 0, column])) > 1


def _line(scope: Scope, dataset: str | None, points: Sequence[Point], several: bool = False) -> Correlation:
    x, y = [point[1] for point in points], [point[2] for point in points]
    models = len(points if scope == "models" else {label.partition(": ")[0] for label, _, _ in points})
    independent = scope == "models" or (models == 1 and not several)
    slope = intercept = r_squared = p = None
    if len(points) >= 3 and len(set(x)) > 1:
        slope, intercept = 0.0, y[0]
        if len(set(y)) > 1:
            # As scipy.stats.linregress, digit by digit; importing that takes longer than most reports' numbers.
            of_x, of_both, _, of_y = np.cov(x, y, bias=True).flat
            r, freedom = np.clip(of_both / np.sqrt(of_x * of_y), -1.0, 1.0), len(points) - 2
            slope, r_squared = float(of_both / of_x), float(r**2)
            intercept = float(np.mean(y) - slope * np.mean(x))
            t = r * np.sqrt(freedom / ((1.0 - r + 1e-20) * (1.0 + r + 1e-20)))
            p = float(2 * stdtr(freedom, -abs(t))) if independent else None
    return Correlation(scope, dataset, tuple(points), slope, intercept, r_squared, p, models, independent)
