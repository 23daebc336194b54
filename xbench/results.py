"""What a run leaves behind: the schema of `results.json`, and writing and reading of the files.

Needs no torch, so that reports start fast. Numbers are fractions in [0, 1]; a value that does not exist is None, in
JSON null, never 0 or NaN.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

__all__ = [
    "FindingClassification",
    "FindingCounts",
    "FindingGrounding",
    "Macro",
    "Results",
    "atomic_writer",
    "macro_mean",
    "read_results",
    "write_per_class",
    "write_results",
]

SCHEMA = 1


@dataclass(frozen=True)
class FindingCounts:
    """How often a finding occurs among the scored images.

    Attributes:
        positives: Images labelled present.
        negatives: Images labelled absent.
        with_region: Images labelled present that have an annotated region; grounding is scored on these.
    """

    positives: int
    negatives: int
    with_region: int


@dataclass(frozen=True)
class FindingGrounding:
    """Grounding of one finding over the `count` images that have it and its region.

    Attributes:
        count: Images scored.
        pointing_game: Share of images where the maximum of the map lies in the region.
        dice_fixed: Mean Dice at threshold 0.5.
        iou_fixed: Mean IoU at threshold 0.5.
        dice_best: Largest mean Dice over the thresholds. The threshold is chosen on the images it is scored on, as in
            the paper's tables, so the number flatters.
        iou_best: Likewise the largest mean IoU.
        dice_best_threshold: Lowest threshold with the largest mean Dice.
        iou_best_threshold: Lowest threshold with the largest mean IoU.
        dice_curve: Mean Dice at each threshold.
        iou_curve: Mean IoU at each threshold.
    """

    count: int
    pointing_game: float | None
    dice_fixed: float | None
    iou_fixed: float | None
    dice_best: float | None
    iou_best: float | None
    dice_best_threshold: float | None
    iou_best_threshold: float | None
    dice_curve: list[float] | None
    iou_curve: list[float] | None


@dataclass(frozen=True)
class FindingClassification:
    """Recognition of one finding over the images whose label is known.

    Attributes:
        auroc: Area under the ROC curve; None unless both labels occur.
        average_precision: Area under the precision-recall curve as a sum of steps; None unless both labels occur.
        f1: F1 at probability >= 0.5; None without a positive.
        accuracy: Accuracy at probability >= 0.5; None without a label.
        positives: Images labelled present.
        negatives: Images labelled absent.
    """

    auroc: float | None
    average_precision: float | None
    f1: float | None
    accuracy: float | None
    positives: int
    negatives: int


Macro = dict[str, float | None]
"""Means over findings, by the name of the number."""


@dataclass(frozen=True)
class Results:
    """The content of `results.json`.

    Attributes:
        model: Name of the model.
        dataset: Name of the dataset.
        split: Name of the split.
        findings: Names of the C findings, in the dataset's order.
        images: Images scored.
        skipped: Images left out, each with `image_id` and `reason`.
        constant_maps: Pairs of image and finding whose map is the same everywhere: `count`, and the `first` few by
            `image_id` and `finding`. They are scored as the definitions say: all zeros when normalised, every pixel
            tied for the maximum.
        notes: What is odd about images or their annotations and was put right: the `note` in words, the `count` of
            images, and the `first` few by name. What the annotation files say of images outside the run counts too.
        counts: Labels and regions per finding.
        thresholds: The T thresholds of the sweep.
        grounding: Grounding per finding.
        grounding_macro: Means over the findings with at least one scored image.
        classification: Recognition per finding.
        classification_macro: Means over the findings with both labels.
        provenance: What the numbers depend on and how long they took.
    """

    model: str
    dataset: str
    split: str
    findings: tuple[str, ...]
    images: int
    skipped: list[dict[str, str]]
    constant_maps: dict[str, Any]
    notes: list[dict[str, Any]]
    counts: dict[str, FindingCounts]
    thresholds: list[float]
    grounding: dict[str, FindingGrounding]
    grounding_macro: Macro
    classification: dict[str, FindingClassification]
    classification_macro: Macro
    provenance: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the nested mapping that is written to `results.json`."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "dataset": self.dataset,
            "split": self.split,
            "findings": list(self.findings),
            "counts": {
                "images": self.images,
                "skipped": self.skipped,
                "constant_maps": self.constant_maps,
                "notes": self.notes,
                "per_finding": {finding: asdict(count) for finding, count in self.counts.items()},
            },
            "grounding": {
                "thresholds": self.thresholds,
                "per_class": {finding: asdict(scores) for finding, scores in self.grounding.items()},
                "macro": self.grounding_macro,
            },
            "classification": {
                "per_class": {finding: asdict(scores) for finding, scores in self.classification.items()},
                "macro": self.classification_macro,
            },
            "provenance": self.provenance,
        }


def macro_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that exist; None when none does."""
    existing = [value for value in values if value is not None]
    return sum(existing) / len(existing) if existing else None


def write_results(path: Path, results: Results) -> None:
    """Write `results.json`.

    Raises:
        ValueError: A number is NaN or infinite, which the schema does not know.
    """
    with atomic_writer(path) as file:
        text = json.dumps(results.as_json(), indent=2, allow_nan=False, ensure_ascii=False)
        # A curve on one line instead of a hundred. Line breaks within strings are escaped, so none can match.
        text = re.sub(r"\[\n\s+([-+.e\d\s,]+?)\n\s+\]", lambda m: f"[{re.sub(chr(10) + ' +', ' ', m[1])}]", text)
        file.write((text + "\n").encode())


def read_results(path: Path) -> Results:
    """Read `results.json`.

    Raises:
        ValueError: It is no such file, or one of another schema.
        OSError: It cannot be read.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        schema = content.get("schema") if isinstance(content, dict) else None
        raise ValueError(f"{path} is not a results.json of schema {SCHEMA} (it says {schema!r})")
    try:
        counts, grounding, recognition = content["counts"], content["grounding"], content["classification"]
        return Results(
            model=content["model"],
            dataset=content["dataset"],
            split=content["split"],
            findings=tuple(content["findings"]),
            images=counts["images"],
            skipped=counts["skipped"],
            constant_maps=counts["constant_maps"],
            notes=counts["notes"],
            counts={finding: FindingCounts(**count) for finding, count in counts["per_finding"].items()},
            thresholds=grounding["thresholds"],
            grounding={finding: FindingGrounding(**scores) for finding, scores in grounding["per_class"].items()},
            grounding_macro=grounding["macro"],
            classification={
                finding: FindingClassification(**scores) for finding, scores in recognition["per_class"].items()
            },
            classification_macro=recognition["macro"],
            provenance=content["provenance"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} lacks a part of a results.json: {error}") from error


def write_per_class(path: Path, results: Results) -> None:
    """Write `per_class.csv`: a row per finding, then the macro row; empty where a value does not exist."""
    grounding = [field.name for field in fields(FindingGrounding) if not field.name.endswith("_curve")]
    classification = [field.name for field in fields(FindingClassification)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["finding", *grounding, *classification])
    for finding in results.findings:
        scores, recognition = results.grounding[finding], results.classification[finding]
        writer.writerow(
            [finding]
            + [getattr(scores, name) for name in grounding]
            + [getattr(recognition, name) for name in classification]
        )
    macro: Mapping[str, float | None] = {**results.grounding_macro, **results.classification_macro}
    writer.writerow(["macro"] + [macro.get(name) for name in (*grounding, *classification)])
    with atomic_writer(path) as file:
        file.write(text.getvalue().encode())


@contextmanager
def atomic_writer(path: Path) -> Iterator[Any]:
    """Open a binary file that appears under its name complete or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
