"""What the XBench paper printed, to put beside our own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from xbench.findings import FINDINGS

__all__ = ["PublishedCounts", "published_positives", "remark"]


@dataclass(frozen=True)
class PublishedCounts:
    """Positive images per finding that somebody scored.

    Attributes:
        by: Who.
        counts: Images by canonical name of the finding; None where the published digits leave it open.
    """

    by: str
    counts: Mapping[str, int | None]


def published_positives(dataset: str) -> list[PublishedCounts]:
    """Return the published numbers of positive images of a dataset; none for one that the paper does not have."""
    return [
        PublishedCounts(entry["by"], dict(zip(FINDINGS[dataset], entry["counts"], strict=True)))
        for entry in _read()["positives"].get(dataset, ())
    ]


def remark(dataset: str) -> str:
    """Return what is known about the images that the published numbers belong to."""
    text: str = _read()["remarks"].get(dataset, "")
    return text


@cache
def _read() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(files("xbench").joinpath("published.yaml").read_text(encoding="utf-8"))
    return content
