"""The numbers of the XBench paper, to put beside our own. Models and datasets are named as in results.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from xbench.findings.names import FINDINGS


@dataclass(frozen=True)
class PublishedCounts:
    """Who scored how many positive images of each finding; None where the published digits leave it open."""

    by: str
    counts: Mapping[str, int | None]


@dataclass(frozen=True)
class PublishedGrounding:
    """A model on a dataset in Table 1, as fractions: means over findings, each best on the images that are scored."""

    pointing_game: float
    dice_best: float
    iou_best: float


@dataclass(frozen=True)
class PublishedPointingGame:
    """A model on a dataset in Tables 2 to 5, as fractions; `mean` as printed, not always that of the findings."""

    mean: float
    findings: Mapping[str, float]

    @property
    def mean_of_findings(self) -> float:
        """The mean of the printed findings."""
        return sum(self.findings.values()) / len(self.findings)


@dataclass(frozen=True)
class Protocol:
    """The settings with which the paper scored, and the number of images of all datasets and of findings there.

    `image_size` is the side of the model input in pixels, `gamma` the share of a pixel from which the region covers it.
    """

    batch_size: int
    image_size: int
    thresholds: int
    fixed_threshold: float
    gamma: float
    images: int
    findings: int


def published_positives(dataset: str) -> list[PublishedCounts]:
    """Return the published numbers of positive images of a dataset; none for one that the paper does not have."""
    return [
        PublishedCounts(entry["by"], dict(zip(FINDINGS[dataset], entry["counts"], strict=True)))
        for entry in _read()["positives"].get(dataset, ())
    ]


def published_split(dataset: str) -> str | None:
    """Return the split of a dataset that the published numbers belong to; None for one that the paper does not have."""
    split: str | None = _read()["splits"].get(dataset)
    return split


def remark(dataset: str) -> str:
    """Return what is known about the images that the published numbers belong to."""
    return str(_read()["remarks"].get(dataset, ""))


def published_grounding(dataset: str) -> dict[str, PublishedGrounding]:
    """Return a dataset's columns of Table 1, by model; nothing for a dataset that the paper does not have."""
    return {
        model: PublishedGrounding(*map(_fraction, scores[dataset]))
        for model, scores in _read()["grounding"].items()
        if dataset in scores
    }


def published_pointing_game(dataset: str) -> dict[str, PublishedPointingGame]:
    """Return a dataset's table among Tables 2 to 5, by model; nothing for a dataset that has none."""
    return {
        model: PublishedPointingGame(
            _fraction(row["mean"]), dict(zip(FINDINGS[dataset], map(_fraction, row["findings"]), strict=True))
        )
        for model, row in _read()["pointing_game"].get(dataset, {}).items()
    }


def published_dice_gaps() -> dict[str, float]:
    """Return Dice at the best threshold less Dice at 0.5, averaged over the datasets, as fractions by model."""
    return {model: _fraction(gap) for model, gap in _read()["dice_gap"].items()}


def published_r_squared() -> float:
    """Return the published coefficient of determination between AUROC and pointing game over models."""
    return float(_read()["r_squared"])


def published_protocol() -> Protocol:
    """Return the settings with which the paper scored."""
    return Protocol(**_read()["protocol"])


def inconsistencies(dataset: str, table: Literal["grounding", "pointing_game"]) -> tuple[str, ...]:
    """Return what does not agree with itself, or is easily misread, in a dataset's part of Table 1 or Tables 2 to 5."""
    return tuple(
        entry["text"]
        for entry in _read()["inconsistencies"]
        if table in entry["tables"] and dataset in entry.get("datasets", published_datasets())
    )


def published_datasets() -> tuple[str, ...]:
    """Return the names of the datasets that the paper has."""
    return tuple(next(iter(_read()["grounding"].values())))


def _fraction(percentage: float) -> float:
    # What is printed has two decimals; a division alone would leave 0.15620000000000001 of 15.62.
    return round(percentage / 100, 6)


@cache
def _read() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    return content
