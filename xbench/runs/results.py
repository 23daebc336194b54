"""`results.json`: its schema, reading and writing.

The dataclasses mirror the file, from `Results` down. pydantic checks what is read; nothing is checked when a run makes
its results, so that no run of hours ends there. Needs no torch, so that reports start fast. Numbers are fractions in
[0, 1]; a value that does not exist is None, in JSON null, never 0 or NaN.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from xbench.findings.conditions import LEAST
from xbench.findings.names import MACRO, findings_problem, is_folder_name, is_name
from xbench.runs.files import SCHEMAS
from xbench.runtime.files import write_whole
from xbench.scoring.interventions import ANY, OF_ANY, OF_FILL

SIGN_LEVEL = 0.01
"""Chance of ever taking maps that know nothing for upside down, over all findings of a run and all together."""

_MAX_BYTES = 2**27
"""Of a `results.json` that is read; that of 36 findings and 1,001 thresholds has 3 MB."""


Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Number = Annotated[float, Field(strict=True, gt=-(2**53), lt=2**53)]
Macro = dict[str, Number | None]
"""Means over findings, by the name of the number."""


class _Part:
    """A part of the file, which has no keys but those of its fields: an unknown one is no number of a run."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class FindingCounts(_Part):
    """How often a finding occurs among the scored images."""

    positives: Count
    negatives: Count
    with_region: Count  # positives that have an annotated region; grounding is scored on these


@dataclass(frozen=True)
class Skipped(_Part):
    """An image that was left out."""

    image_id: str
    reason: str


@dataclass(frozen=True)
class ConstantMap(_Part):
    """A scored pair whose map is the same everywhere."""

    image_id: str
    finding: str


@dataclass(frozen=True)
class ConstantMaps(_Part):
    """Scored pairs whose map is the same everywhere.

    They are scored as the definitions say: all zeros when normalised, every pixel tied for the maximum.
    """

    count: Count
    first: list[ConstantMap]  # ten at most


@dataclass(frozen=True)
class NoteCount(_Part):
    """What is odd about images, their annotations or their normalisation."""

    note: str
    count: Count  # images; what the annotation files say of images outside the run counts too
    first: list[str]  # names of ten of them at most


@dataclass(frozen=True)
class Counts(_Part):
    """Images, and labels and regions per finding."""

    images: Count  # images scored
    skipped: list[Skipped]
    constant_maps: ConstantMaps
    notes: list[NoteCount]
    per_finding: dict[str, FindingCounts]


@dataclass(frozen=True)
class ScoredOn(_Part):
    """What a finding was scored on, as `xbench.scoring.numbers.scored_on` gives it."""

    labels: str  # digest of the names and labels of all images whose label is known
    regions: str  # digest of the names and regions of all scored pairs


@dataclass(frozen=True)
class FindingGrounding(_Part):
    """Grounding of one finding over the `count` images that have it and its region."""

    count: Count
    pointing_game: Number | None  # share of images where the maximum of the map lies in the region
    dice_fixed: Number | None  # mean Dice at threshold 0.5
    iou_fixed: Number | None  # mean IoU at threshold 0.5
    # largest mean Dice over the thresholds. The threshold is chosen on the images it is scored on, as in the paper's
    # tables, so the number is too high.
    dice_best: Number | None
    iou_best: Number | None  # largest mean IoU over the thresholds, chosen in the same way
    dice_best_threshold: Number | None  # lowest threshold with the largest mean Dice
    iou_best_threshold: Number | None  # lowest threshold with the largest mean IoU
    dice_curve: list[Number] | None  # mean Dice at each threshold
    iou_curve: list[Number] | None  # mean IoU at each threshold
    pointing_game_of_minimum: Number | None = None  # share of images where the minimum of the map lies in the region
    sign_p: Number | None = None  # corrected p-value of the minimum lying there more often than the maximum


@dataclass(frozen=True)
class SignTest(_Part):
    """Whether the maps may have the wrong sign, over all findings together."""

    pointing_game_of_minimum: Number | None  # mean over the findings
    sign_p: Number | None  # p-value of all findings together, corrected
    may_be_wrong: list[str]  # findings whose `sign_p` is at most `SIGN_LEVEL`, and `macro` if that of all together is


@dataclass(frozen=True)
class Grounding(_Part):
    """How well the maps show where findings are."""

    thresholds: Annotated[list[Number], Field(min_length=1)]  # the T thresholds of the sweep
    per_class: dict[str, FindingGrounding]
    macro: Macro  # means over the findings with at least one scored image
    sign_test: SignTest | None = None  # None of a model that answers


@dataclass(frozen=True)
class OwnScale(_Part):
    """Dice and IoU of maps that mean the same on every image, not stretched, at thresholds of their probability."""

    scale: Literal["logit", "probability"]  # what the values of the raw maps are
    per_class: dict[str, dict[str, Count | Number | list[Number] | None]]  # named as in `FindingGrounding`
    macro: Macro  # means over the findings with at least one scored image


@dataclass(frozen=True)
class FindingClassification(_Part):
    """Recognition of one finding over the images whose label is known."""

    auroc: Number | None  # area under the ROC curve; None unless both labels occur
    # area under the precision-recall curve as a sum of steps; None unless both labels occur
    average_precision: Number | None
    f1: Number | None  # F1 at probability >= 0.5; None without a positive
    accuracy: Number | None  # accuracy at probability >= 0.5; None without a label
    positives: Count
    negatives: Count


@dataclass(frozen=True)
class Classification(_Part):
    """How well the scores tell whether findings are there."""

    per_class: dict[str, FindingClassification]
    macro: Macro  # means over the findings with both labels


@dataclass(frozen=True)
class Recognised(_Part):
    """How a model that answers said whether findings are there."""

    asked: Count  # pairs of image and finding
    unreadable: Count  # pairs whose reply says neither. Each counts as the worst, 0 if present and 1 if absent.
    bounded: Count  # pairs for which an endpoint listed only one of yes and no
    # pairs by where their probability comes from: `first token`, `stated confidence`, `decision`
    ways: dict[str, Count]
    decisions_only: bool  # whether there is nothing but yes and no, so that the ROC curve has one step
    # of the share of all probability that yes and no have at the first token; below one half the question was not taken
    # for one of yes or no
    median_mass: Number | None
    readable_only: Macro  # macro numbers without the pairs that cannot be read


@dataclass(frozen=True)
class Tokens(_Part):
    """Tokens of all queries and answers, those too that came from a cache."""

    counted: Count  # answers whose tokens are known
    sent: Count  # tokens of their queries, the image's among them
    received: Count  # tokens of the answers


@dataclass(frozen=True)
class Repeats(_Part):
    """How often a model that is asked again answers as it did first."""

    asked: Count  # answers that came to queries asked again
    same_status: Count  # of these, those with the first answer's status
    same_boxes: Count  # those whose boxes have an IoU above 0.9 with the first answer's, or that have none either

    def in_words(self) -> str:
        """Return how often they agree."""
        status, boxes = (f"{100 * count / self.asked:.1f} %" for count in (self.same_status, self.same_boxes))
        return (
            f"Asked again {self.asked:,} times: {status} have the first answer's status, {boxes} its boxes (IoU > 0.9)."
        )


@dataclass(frozen=True)
class Answers(_Part):
    """What a model that answers said, beside what its boxes score on the grid."""

    family: str
    frame: str  # what the numbers were taken to mean
    reader: str  # Version of the reader
    kind: Literal["boxes", "points"]  # points if there is not one box; Dice and IoU then do not exist
    outlined: Count  # scored pairs whose true boxes are those around outlines or masks
    per_class: dict[str, Macro]  # by finding, as `xbench.metrics.BoxScores` computes them
    macro: Macro  # means over the findings that have such a number
    overall: Macro  # over all pairs together, whatever the finding; the rates of answers are read here
    # macro numbers, and their count of pairs, if answers without a box had counted otherwise
    sensitivity: dict[str, Macro]
    recognition: Recognised | None = None  # None if nobody asked
    tokens: Tokens | None = None  # None if nobody counted
    repeats: Repeats | None = None  # None if nothing was asked again

    def warnings(self) -> list[str]:
        """Return in sentences what is wrong with the answers as a whole."""
        said, share = [], {name: value or 0.0 for name, value in self.overall.items()}
        if (lost := share["unparsable"] + share["truncated"]) > 0.05:
            said.append(
                f"{100 * lost:.1f} % of the answers could not be read to their end (unparsable "
                f"{100 * share['unparsable']:.1f} %, truncated {100 * share['truncated']:.1f} %), and those without a "
                "box count as misses: look at some in predictions.parquet before blaming the model's eyes."
            )
        if share["suspect_frame"] > 0.2:
            said.append(
                f"The numbers of {100 * share['suspect_frame']:.1f} % of the answers do not look like {self.frame}, "
                "the frame that was declared: is it the right one? Another is read with `xbench rescore RUN --frame "
                "NAME`, without asking again."
            )
        done = {
            "reordered": "have corners in the wrong order, which were put right",
            "clipped": "reach over the edge of the image, and were cut off there",
            "dropped": "have boxes without an area or malformed ones, which were left out",
        }
        hint = f"look whether the frame is {self.frame}, and whether the numbers are corners or sizes"
        for name, what in done.items():
            if share[name] > 0.05:
                said.append(f"{100 * share[name]:.1f} % of the answers {what}: {hint}.")
        if (found := self.recognition) is not None:
            if found.median_mass is not None and found.median_mass < 0.5:
                said.append(
                    f"Yes and no have together a median share of {found.median_mass:.2f} of all first tokens, so the "
                    "model did not take the question for one of yes or no: look at how it is asked."
                )
            if found.unreadable:
                said.append(
                    f"{found.unreadable} of {found.asked} replies say neither that a finding is there nor that it is "
                    "not; they count as the worst in recognition."
                )
        return said


@dataclass(frozen=True)
class InterventionNumbers(_Part):
    """What hiding pixels changes, with one fill or with none, as `xbench.scoring.interventions` computes it."""

    per_class: dict[str, dict[str, Count | Number | None]]  # numbers, and how many pairs they are over and lack
    macro: Macro  # means over the findings that have the number


@dataclass(frozen=True)
class Interventions(_Part):
    """Whether scores and decisions depend on the region."""

    pairs: Count  # of image and query, on which was intervened
    reason: str | None  # why there is no `drop`, `control_drop` and `use`; None if there is
    all_pairs: dict[str, InterventionNumbers]  # by fill, and `any` for numbers that depend on none
    correct_only: dict[str, InterventionNumbers]  # over the pairs whose finding the model sees in the image as it is
    sign_over_fills: bool | None  # whether the mean `use` has one sign with all fills; None with fewer than two


@dataclass(frozen=True, kw_only=True)
class Results(_Part):
    """The content of `results.json`."""

    schema: Literal[2] = 2
    model: str
    dataset: str
    split: str
    findings: tuple[str, ...]  # names of the C findings, in the dataset's order; per finding means in this order
    counts: Counts
    scored_on: dict[str, ScoredOn]  # by finding
    grounding: Grounding
    own_scale: OwnScale | None = None  # only of maps of logits or probabilities; the file of any other has not the key
    classification: Classification
    answers: Answers | None = None  # only of a model that answers; the file of any other has not the key
    interventions: Interventions | None = None  # only of a run that hid pixels; the file of any other has not the key
    tables: dict[str, str] = field(default_factory=dict)  # SHA-256 of each table of the run, by its name
    # what the numbers depend on and how long they took; the one part that differs between runs of one command
    provenance: dict[str, Any]

    @property
    def macro(self) -> Macro:
        """Means over findings, of grounding and of recognition."""
        return {**self.grounding.macro, **self.classification.macro}

    @property
    def answered(self) -> str:
        """What the model answers with, `boxes` or `points`; empty for one that shows maps."""
        return self.answers.kind if self.answers else ""

    @property
    def in_words(self) -> bool:
        """Whether the model was asked for words alone, which protocols score."""
        return "ask" in (self.provenance.get("model") or {})

    @property
    def box_numbers(self) -> Mapping[str, Mapping[str, float | None]]:
        """What boxes score by finding, and their means as `MACRO`; nothing of a model that shows maps."""
        return self.answers.per_class | {MACRO: self.answers.macro} if self.answers else {}

    @property
    def masks(self) -> int:
        """How many masks a pair has: one for each threshold, or the only one of an answer."""
        return 1 if self.answers else len(self.grounding.thresholds)

    @property
    def read_as(self) -> dict[str, str]:
        """Family and frame by which answers were read; nothing of a model that shows maps."""
        return {"family": self.answers.family, "frame": self.answers.frame} if self.answers else {}

    def sign_warning(self) -> str | None:
        """Return in a sentence that the maps may have the wrong sign; None where nothing speaks for it."""
        test = self.grounding.sign_test
        if test is None or not test.may_be_wrong:
            return None
        scores = {name: vars(one) for name, one in self.grounding.per_class.items()}
        scores[MACRO] = self.grounding.macro | vars(test)
        names = ["all findings together" if name == MACRO else name for name in test.may_be_wrong]
        surest = scores[min(test.may_be_wrong, key=lambda name: scores[name]["sign_p"] or 0)]
        low, high = (f"{100 * (surest[key] or 0):.1f} %" for key in ("pointing_game_of_minimum", "pointing_game"))
        return (
            "The sign of the saliency maps may be wrong: their minimum lies in the annotated region more often than "
            f"their maximum, for {', '.join(names)} ({low} against {high}, p = {surest['sign_p'] or 0:.2g}). "
            "Check whether the maps are low where the model sees a finding; if so, negate them and run again."
        )


def write_results(path: Path, results: Results) -> None:
    """Write `results.json`; raise a ValueError for NaN and infinity, which the schema does not know."""
    content = asdict(results)
    for name in ("answers", "own_scale", "interventions"):
        if content[name] is None:
            del content[name]
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    # A curve on one line instead of a hundred. Line breaks within strings are escaped, so none can match.
    text = re.sub(r"\[\n\s+([-+.e\d\s,]+?)\n\s+\]", lambda m: f"[{re.sub(chr(10) + ' +', ' ', m[1])}]", text)
    write_whole(path, text + "\n")


def read_results(path: Path) -> Results:
    """Read `results.json`, which may come from a stranger.

    Raises:
        OSError, ValueError: It cannot be read, is of another schema, or holds what no run writes.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_BYTES:
        raise ValueError(f"{path} is no results.json: it is a pipe or a device, or has more than {_MAX_BYTES} bytes")
    try:
        content = from_json(path.read_bytes(), allow_inf_nan=False)
        if isinstance(content, dict) and content.get("schema", 2) != 2:
            raise ValueError(
                f"its schema is {content['schema']!r:.20}, and this version of xbench reads 2: run it again"
            )
        results = _adapter().validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = " / ".join(map(str, first["loc"]))
        problem = f"{place:.200}: {first['msg']:.300} (it says {first['input']!r:.60})"
        raise ValueError(f"{path} is damaged or was not written by a run: {problem}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no results.json: {error}") from None
    if (contradiction := _contradiction(results)) is not None:
        raise ValueError(f"{path} is damaged or was not written by a run: {contradiction}")
    return results


_adapter = cache(lambda: TypeAdapter(Results))  # when it is first needed, for it takes a while


_LOOKED_INTO = dict.fromkeys(("model", "data", "evaluation", "seconds", "versions"), dict) | {"command": list}


def _contradiction(results: Results) -> str | None:
    """Return which parts hold what no run writes or do not fit together; None if all is well."""
    for part, name in (("model", results.model), ("dataset", results.dataset), ("split", results.split)):
        if not (is_name if part == "split" else is_folder_name)(name):
            return f"{name!r:.60} is no name of a {part}"
    if problem := findings_problem(results.findings):
        return f"findings: {problem}"
    # The parts of the provenance that are looked into; whoever looks deeper expects anything.
    for part, kind in _LOOKED_INTO.items():
        if not isinstance(results.provenance.get(part), kind | None):
            return f"provenance / {part} is {results.provenance[part]!r:.60}"
    if results.answered and results.provenance.get("model") is None:
        return "its provenance does not say which model answered"
    findings, grounding = [*results.findings], results.grounding
    answers = results.answers.per_class if results.answers else None
    by_finding: list[Mapping[str, Any] | None] = [results.counts.per_finding, results.scored_on, answers]
    by_finding += [grounding.per_class, results.classification.per_class]
    by_finding += [results.own_scale.per_class] if results.own_scale else []
    changed = results.interventions
    by_fill = [*changed.all_pairs.items(), *changed.correct_only.items()] if changed else []
    by_finding += [numbers.per_class for _, numbers in by_fill]
    if any(part is not None and [*part] != findings for part in by_finding):
        return "it has not every number of every finding"
    for finding, scores in grounding.per_class.items():
        for curve in (scores.dice_curve, scores.iou_curve):
            if curve is not None and len(curve) != len(grounding.thresholds):
                return f"a curve of {finding} has {len(curve)} numbers for {len(grounding.thresholds)} thresholds"
    for fill, numbers in by_fill:
        counts = OF_ANY if fill == ANY else OF_FILL
        for of in numbers.per_class.values():
            if not all(type(of.get(count)) is int and (of[count] or 0) >= 0 for count in ("pairs", *counts)):
                return f"interventions ({fill!r:.20}) do not count their pairs"
            if any((of.get(name) is None) != ((of[count] or 0) < LEAST) for count in counts for name in counts[count]):
                return f"interventions ({fill!r:.20}) have numbers of too few pairs, or lack some"
    if not {*results.tables} <= {*SCHEMAS}:
        return "it names tables that no run has"
    if grounding.sign_test and not {*grounding.sign_test.may_be_wrong} <= {*findings, MACRO}:
        return "its test of the sign of maps names other findings"
    return None
