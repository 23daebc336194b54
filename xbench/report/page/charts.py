"""What the page's charts are drawn from, as plain mappings for JSON; missing values are None, never NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from xbench.report.names import model_order
from xbench.report.schema import NUMBERS, Analysis, Correlation, Estimate, Reference, RunAnalysis
from xbench.report.tables.cells import heading, labels_in_order

__all__ = ["chart_data"]


def chart_data(analysis: Analysis) -> dict[str, Any]:
    """Return everything that the charts show."""
    models = {run.run.label: run.run.model for dataset in analysis.datasets for run in dataset.runs}
    labels = labels_in_order(run for dataset in analysis.datasets for run in dataset.runs)
    # Each of the paper's seven models has a colour of its own in the style sheet; three are left for others.
    others = [model for model in dict.fromkeys(models[label] for label in labels) if model_order(model) >= 7]
    places = {model: 7 + number % 3 for number, model in enumerate(others)}
    return {
        "models": labels,
        "colours": [places.get(models[label], model_order(models[label])) for label in labels],
        "numbers": {key: {"title": number.title, "meaning": number.meaning} for key, number in NUMBERS.items()},
        "datasets": [
            {
                "title": heading(dataset, analysis),
                "findings": dataset.findings,
                "runs": [_run(run) for run in dataset.runs],
                "references": [_reference(reference) for reference in dataset.references],
            }
            for dataset in analysis.datasets
        ],
        "correlations": list(_correlations(analysis)),
    }


def _run(run: RunAnalysis) -> dict[str, Any]:
    return {
        "label": run.run.label,
        "macro": _estimates(run.macro),
        "thresholds": [round(value, 4) for value in run.run.results.grounding.thresholds],
        "curve": [_estimate(point) for point in run.dice_curve],
        "areas": [
            {
                "low": _number(area.low),
                "high": _number(area.high),
                "count": area.count,
                "whole": _number(area.whole_image),
                "scores": _estimates(area.scores),
            }
            for area in run.areas
        ],
        "positions": [
            {
                "row": cell.row,
                "column": cell.column,
                "count": cell.count,
                "peaks": _number(cell.peaks),
                "scores": _estimates(cell.scores),
            }
            for cell in run.positions
        ],
        "quadrants": {
            finding: {
                "both": _number(share.both),
                "near_miss": _number(share.near_miss),
                "elsewhere": _number(share.elsewhere),
                "grounded_only": _number(share.grounded_only),
                "neither": _number(share.neither),
                "count": share.count,
            }
            for finding, share in run.quadrants.items()
            if share.count
        },
    }


def _reference(reference: Reference) -> dict[str, Any]:
    return {"title": reference.title, "kind": reference.kind, "macro": _estimates(reference.macro)}


def _correlations(analysis: Analysis) -> Iterator[dict[str, Any]]:
    for scope in ("models", "findings"):
        of_scope = [entry for entry in analysis.correlations if entry.scope == scope]
        # One per dataset in their order: with several splits the name alone would not tell which.
        places = iter(analysis.datasets)
        for entry in of_scope:
            title = None if entry.dataset is None else _title(entry, analysis, places)
            if entry.points:
                yield {
                    "scope": scope,
                    "dataset": title,
                    "points": [[label, _number(auroc), _number(hit)] for label, auroc, hit in entry.points],
                    "slope": _number(entry.slope),
                    "intercept": _number(entry.intercept),
                    "r_squared": _number(entry.r_squared),
                    "p": _number(entry.p),
                }


def _title(entry: Correlation, analysis: Analysis, datasets: Iterator[Any]) -> str:
    return next((heading(dataset, analysis) for dataset in datasets if dataset.dataset == entry.dataset), "")


def _estimates(estimates: Mapping[str, Estimate]) -> dict[str, list[float | None]]:
    return {key: _estimate(estimate) for key, estimate in estimates.items()}


def _estimate(estimate: Estimate) -> list[float | None]:
    return [_number(estimate.value), _number(estimate.low), _number(estimate.high)]


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 6)
