"""What the page's charts are drawn from, as plain values for JSON; missing ones are None, never NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal

from xbench.report.names import model_order
from xbench.report.schema import NUMBERS, Analysis, Estimate, RunAnalysis, in_order


def chart_data(analysis: Analysis) -> dict[str, Any]:
    """Return everything that the charts show."""
    models = {label: run.run.model for label, run in in_order(analysis.runs).items()}
    # Each of the paper's seven models has a colour of its own in the style sheet; three are left for others.
    others = [model for model in dict.fromkeys(models.values()) if model_order(model) >= 7]
    places = {model: 7 + number % 3 for number, model in enumerate(others)}
    return {
        "models": list(models),
        "colours": [places.get(model, model_order(model)) for model in models.values()],
        "numbers": {key: {"title": number.title, "meaning": number.meaning} for key, number in NUMBERS.items()},
        "datasets": [
            {
                "title": analysis.heading(dataset),
                "findings": dataset.findings,
                "runs": [_run(run) for run in dataset.runs],
                "references": [
                    {"title": reference.title, "kind": reference.kind, "macro": _plain(reference.macro)}
                    for reference in dataset.references
                ],
            }
            for dataset in analysis.datasets
        ],
        "correlations": [*_correlations(analysis, "models"), *_correlations(analysis, "findings")],
    }


def _run(run: RunAnalysis) -> dict[str, Any]:
    return {
        "label": run.run.label,
        "macro": _plain(run.macro),
        "thresholds": [round(value, 4) for value in run.run.results.grounding.thresholds],
        "curve": _plain(run.dice_curve),
        "areas": _plain(run.areas),
        "positions": _plain(run.positions),
        "quadrants": _plain({finding: shares for finding, shares in run.quadrants.items() if shares.count}),
    }


def _correlations(analysis: Analysis, scope: Literal["models", "findings"]) -> Iterator[dict[str, Any]]:
    for line, title in analysis.lines(scope):
        if line.points:
            # The page has words of its own for all datasets together.
            yield {**_plain(line), "dataset": None if line.dataset is None else title}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: estimates as [value, low, high], other parts of an analysis by field."""
    if isinstance(value, Estimate):
        return [_plain(number) for number in (value.value, value.low, value.high)]
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
