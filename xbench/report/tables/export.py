"""Every number of a report with its interval, for other programs: `analysis.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from xbench.report.runs import Run
from xbench.report.schema import Analysis
from xbench.runtime.files import atomic_writer

__all__ = ["write_analysis"]

SCHEMA = 1


def write_analysis(path: Path, analysis: Analysis) -> None:
    """Write an analysis with the names of its classes' attributes as keys; of a run, what tells it from others.

    Raises:
        ValueError: A number is NaN or infinite; what does not exist is null.
    """
    content = {"schema": SCHEMA, **_plain(analysis)}
    with atomic_writer(path) as file:
        file.write((json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode())


def _plain(value: Any) -> Any:
    if isinstance(value, Run):
        return {
            "label": value.label,
            "model": value.model,
            "folder": str(value.folder),
            "images": value.results.counts.images,
            "settings": dict(value.settings),
            "thresholds": list(value.results.grounding.thresholds),
        }
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value
