"""What a run leaves behind: the schema of `results.json`, and writing and reading of the files.

Needs no torch, so that reports start fast. Numbers are fractions in [0, 1]; a value that does not exist is None, in
JSON null, never 0 or NaN.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from xbench.protocol.findings import MACRO, findings_problem, is_folder_name, is_name
from xbench.runtime.files import atomic_writer

__all__ = [
    "SIGN_LEVEL",
    "FindingClassification",
    "FindingCounts",
    "FindingGrounding",
    "Macro",
    "Results",
    "macro_mean",
    "outputs_depend_on",
    "read_results",
    "write_per_class",
    "write_results",
]

SCHEMA = 1


SIGN_LEVEL = 0.01
"""Chance of ever taking maps that know nothing for upside down, over all findings of a run and all together."""

_MAX_BYTES = 2**27
"""Of a `results.json` that is read; that of 36 findings and 1,001 thresholds has 3 MB."""


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
        pointing_game_of_minimum: Share of images where the minimum of the map lies in the region.
        sign_p: Corrected p-value of the minimum lying there more often than the maximum. This and the last are None in
            runs of before they were kept.
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
    pointing_game_of_minimum: float | None = None
    sign_p: float | None = None


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
        notes: What is odd about images, their annotations or their normalisation: the `note` in words, the `count` of
            images, and the `first` few by name. What the annotation files say of images outside the run counts too.
        counts: Labels and regions per finding.
        thresholds: The T thresholds of the sweep.
        grounding: Grounding per finding.
        grounding_macro: Means over the findings with at least one scored image.
        classification: Recognition per finding.
        classification_macro: Means over the findings with both labels.
        provenance: What the numbers depend on and how long they took.
        scored_on: What the images were scored on: per finding digests of its `labels` and `regions`, as
            `xbench.runs.scores.scored_on` gives them. None in runs of before they were kept.
        sign_test: Of all findings together `pointing_game_of_minimum`, their mean, and `sign_p`; and in `may_be_wrong`
            the findings whose `sign_p` is at most `SIGN_LEVEL`, and `macro` if that of all is. None likewise.
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
    scored_on: dict[str, dict[str, str]] | None = None
    sign_test: dict[str, Any] | None = None

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
            "scored_on": self.scored_on,
            "grounding": {
                "thresholds": self.thresholds,
                "per_class": {finding: asdict(scores) for finding, scores in self.grounding.items()},
                "macro": self.grounding_macro,
                "sign_test": self.sign_test,
            },
            "classification": {
                "per_class": {finding: asdict(scores) for finding, scores in self.classification.items()},
                "macro": self.classification_macro,
            },
            "provenance": self.provenance,
        }

    def sign_warning(self) -> str | None:
        """Return in a sentence that the maps may have the wrong sign; None where nothing speaks for it."""
        if not (wrong := (self.sign_test or {}).get("may_be_wrong")):
            return None
        scores = {name: vars(one) for name, one in self.grounding.items()}
        scores[MACRO] = {**self.grounding_macro, **(self.sign_test or {})}
        names = ["all findings together" if name == MACRO else name for name in wrong]
        surest = scores[min(wrong, key=lambda name: scores[name]["sign_p"] or 0)]
        low, high = (f"{100 * (surest[key] or 0):.1f} %" for key in ("pointing_game_of_minimum", "pointing_game"))
        return (
            "The sign of the saliency maps may be wrong: their minimum lies in the annotated region more often than "
            f"their maximum, for {', '.join(names)} ({low} against {high}, p = {surest['sign_p'] or 0:.2g}). "
            "Check whether the maps are low where the model sees a finding; if so, negate them and run again."
        )


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
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_BYTES:
        raise ValueError(f"{path} is no results.json: it is a pipe or a device, or has more than {_MAX_BYTES} bytes")
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        schema = content.get("schema") if isinstance(content, dict) else None
        raise ValueError(f"{path} is not a results.json of schema {SCHEMA} (it says {schema!r})")
    try:
        counts, grounding, recognition = content["counts"], content["grounding"], content["classification"]
        results = Results(
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
            scored_on=content.get("scored_on"),
            sign_test=grounding.get("sign_test"),
        )
        problem = _problem(results)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} lacks a part of a results.json: {error}") from error
    if problem:
        raise ValueError(f"{path} is damaged or was not written by a run: {problem}")
    return results


def _no_number(constant: str) -> None:
    raise ValueError(f"it holds {constant}, which is no number")


def _problem(results: Results) -> str | None:
    """Return what a run would not write; None if there is nothing. Results may come from a stranger."""
    for name, fits in ((results.model, is_folder_name), (results.dataset, is_folder_name), (results.split, is_name)):
        if not fits(name):
            return f"{name!r:.60} is no name of a model, a dataset or a split"
    if problem := findings_problem(results.findings):
        return f"among its findings, {problem}"
    if not _is("list[float]", results.thresholds) or not results.thresholds:
        return "its thresholds are no list of numbers"
    for scores in (results.counts, results.grounding, results.classification):
        if [*scores] != [*results.findings]:
            return "it has not every number of every finding"
        for finding, one in scores.items():
            for field in fields(one):
                value = getattr(one, field.name)
                curve = isinstance(value, list) and len(value) != len(results.thresholds)
                if curve or not any(_is(kind, value) for kind in str(field.type).split(" | ")):
                    return f"{field.name} of {finding} is {value!r:.60}"
    if (sign := results.sign_test) is not None:
        numbers = [sign[key] for key in ("pointing_game_of_minimum", "sign_p")]
        if not {*sign["may_be_wrong"]} <= {*results.findings, MACRO} or not all(
            value is None or _is("float", value) for value in numbers
        ):
            return "its test of the sign of maps is none"
    for macro in (results.grounding_macro, results.classification_macro):
        if not all(isinstance(name, str) and (_is("float", mean) or mean is None) for name, mean in macro.items()):
            return "a mean over findings is no number"
    words = (
        (results.skipped, [{"image_id": str, "reason": str}]),
        (results.notes, [{"note": str, "count": int, "first": [str]}]),
    )
    if not _is("int", results.images) or not all(_like(value, shape) for value, shape in words):
        return "its counts of images are none"
    if not _like(results.constant_maps, {"count": int, "first": [{"image_id": str, "finding": str}]}):
        return "its constant maps are no list"
    ground = results.scored_on
    if ground is not None and not _like(ground, {key: {"labels": str, "regions": str} for key in results.findings}):
        return "what it was scored on is no digest of every finding"
    provenance = results.provenance
    parts = [provenance.get(part) for part in ("model", "data", "evaluation")]
    command = provenance.get("command")
    if not all(part is None or isinstance(part, dict) for part in parts) or not isinstance(command, list | None):
        return "its provenance is none"
    return None


def _is(kind: str, value: Any) -> bool:
    match kind:
        case "None":
            return value is None
        case "int":
            return type(value) is int and 0 <= value < 2**53
        case "float":
            return type(value) in (int, float) and abs(value) < 2**53 and math.isfinite(value)
        case "list[float]":
            return isinstance(value, list) and all(_is("float", one) for one in value)
    raise TypeError(kind)


def _like(value: Any, shape: Any) -> bool:
    """Tell whether a value is of a type, a list of what is like the only entry, or a mapping with keys of such."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(_like(one, shape[0]) for one in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and _like(value[key], like) for key, like in shape.items())
    return isinstance(value, shape)


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
    writer.writerow([MACRO] + [macro.get(name) for name in (*grounding, *classification)])
    with atomic_writer(path) as file:
        file.write(text.getvalue().encode())


def outputs_depend_on(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a run's provenance that its logits and maps depend on besides the images."""
    return {key: provenance[key] for key in ("model", "checkpoint_sha256", "prompts", "preprocessing", "precision")}
