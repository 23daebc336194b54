"""Schema, reader and writer of `results.json`.

The dataclasses mirror the file. pydantic checks files that are read but not new results, so that no long run fails at
the end. Needs no torch. Numbers are fractions in [0, 1]; missing ones are None, never 0 or NaN.
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

SIGN_LEVEL = 0.01  # family-wise error rate of the sign test for uninformative maps, over findings and macro
_MAX_BYTES = 2**27  # size limit; 36 findings with 1,001 thresholds take 3 MB


Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Number = Annotated[float, Field(strict=True, gt=-(2**53), lt=2**53)]
Macro = dict[str, Number | None]  # means over findings, by name of the number


class _Part:
    """Base class for sections of results.json; unknown keys are rejected."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class FindingCounts(_Part):
    """Number of scored images with a finding."""

    positives: Count
    negatives: Count
    with_region: Count  # positives with an annotated region; scored for grounding


@dataclass(frozen=True)
class Skipped(_Part):
    """A skipped image."""

    image_id: str
    reason: str


@dataclass(frozen=True)
class ConstantMap(_Part):
    """A scored pair with a constant map."""

    image_id: str
    finding: str


@dataclass(frozen=True)
class ConstantMaps(_Part):
    """Scored pairs with a constant map, which counts as all zeros with every pixel tied for the maximum."""

    count: Count
    first: list[ConstantMap]  # at most ten


@dataclass(frozen=True)
class NoteCount(_Part):
    """A note about images, annotations or normalization."""

    note: str
    count: Count  # images, including annotated ones outside of the run
    first: list[str]  # at most ten names


@dataclass(frozen=True)
class Counts(_Part):
    """Images, and labels and regions per finding."""

    images: Count  # scored images
    skipped: list[Skipped]  # unreadable images left out: `image_id`, `reason`
    constant_maps: ConstantMaps  # scored pairs with a constant map: `count`, and the `first` ten
    notes: list[NoteCount]  # oddities such as boxes cut at the edge: `note`, `count` of images, the `first` ten
    per_finding: dict[str, FindingCounts]  # `positives`, `negatives`, `with_region` (positives with a region)


@dataclass(frozen=True)
class ScoredOn(_Part):
    """Digests of the data that a finding was scored on; see `xbench.scoring.numbers.scored_on`."""

    labels: str  # names and labels of images with a known label
    regions: str  # names and regions of scored pairs


@dataclass(frozen=True)
class FindingGrounding(_Part):
    """Grounding of one finding over `count` positive images with a region: shares and means over these."""

    count: Count  # scored pairs
    pointing_game: Number | None  # share of pairs with the maximum in the region
    dice_fixed: Number | None  # at threshold 0.5
    iou_fixed: Number | None  # at threshold 0.5
    dice_best: Number | None  # largest over thresholds, too high because chosen on the scored images
    iou_best: Number | None  # largest over thresholds, too high because chosen on the scored images
    dice_best_threshold: Number | None  # lowest threshold of the largest
    iou_best_threshold: Number | None  # lowest threshold of the largest
    dice_curve: list[Number] | None  # at each threshold
    iou_curve: list[Number] | None  # at each threshold
    pointing_game_of_minimum: Number | None = None  # share of pairs with the minimum in the region
    sign_p: Number | None = None  # corrected p-value of the sign test


@dataclass(frozen=True)
class SignTest(_Part):
    """Test whether maps have the wrong sign, over all findings."""

    pointing_game_of_minimum: Number | None  # mean over findings
    sign_p: Number | None  # corrected p-value over all findings
    may_be_wrong: list[str]  # findings, and `macro`, with `sign_p` at most `SIGN_LEVEL`


@dataclass(frozen=True)
class Grounding(_Part):
    """Numbers of grounding."""

    thresholds: Annotated[list[Number], Field(min_length=1)]  # of the sweep, 0 to 1
    per_class: dict[str, FindingGrounding]  # by finding, the keys below
    macro: Macro  # means over the findings with a scored pair
    sign_test: SignTest | None = None  # over all findings; `null` for a model that answers


@dataclass(frozen=True)
class OwnScale(_Part):
    """Dice and IoU of maps of logits or probabilities, thresholded without normalization."""

    scale: Literal["logit", "probability"]  # values of the raw maps
    per_class: dict[str, dict[str, Count | Number | list[Number] | None]]  # keys of `FindingGrounding`
    macro: Macro  # means over the findings with at least one scored image


@dataclass(frozen=True)
class FindingClassification(_Part):
    """Recognition of one finding over the images with a known label."""

    auroc: Number | None  # `null` unless both labels occur
    average_precision: Number | None  # `null` unless both labels occur
    f1: Number | None  # at probability 0.5
    accuracy: Number | None  # at probability 0.5
    positives: Count  # images
    negatives: Count  # images


@dataclass(frozen=True)
class Classification(_Part):
    """Numbers of recognition."""

    per_class: dict[str, FindingClassification]  # by finding, the keys below
    macro: Macro  # means over the findings with both labels


@dataclass(frozen=True)
class Recognized(_Part):
    """Recognition from answers."""

    asked: Count  # pairs of image and finding
    unreadable: Count  # pairs without a clear reply; each counts as the worst, 0 if present and 1 if absent
    bounded: Count  # pairs with only one of yes and no listed by the endpoint
    # pairs by source of the probability: `first token`, `stated confidence`, `decision`
    ways: dict[str, Count]
    decisions_only: bool  # only yes and no, so the ROC curve has one step
    # Median joint probability of yes and no at the first token; below 0.5 the model did not take the question for yes
    # or no.
    median_mass: Number | None
    readable_only: Macro  # macro numbers over readable pairs


@dataclass(frozen=True)
class Tokens(_Part):
    """Tokens of all queries and answers, including cached ones."""

    counted: Count  # answers with known tokens
    sent: Count  # tokens of their queries, including images
    received: Count


@dataclass(frozen=True)
class Repeats(_Part):
    """Agreement of repeated answers with the first ones."""

    asked: Count  # repeated answers
    same_status: Count  # with the first answer's status
    same_boxes: Count  # with boxes of IoU above 0.9 with the first answer's, or none in both

    def in_words(self) -> str:
        """Describe the agreement."""
        status, boxes = (f"{100 * count / self.asked:.1f}%" for count in (self.same_status, self.same_boxes))
        return (
            f"Asked again {self.asked:,} times: {status} have the first answer's status, {boxes} its boxes (IoU > 0.9)."
        )


@dataclass(frozen=True)
class Answers(_Part):
    """Numbers of answers, in addition to those of their boxes on the grid."""

    family: str  # format of the answers
    frame: str  # declared meaning of the numbers
    reader: str  # version of the reader
    kind: Literal["boxes", "points"]  # `boxes`, or `points` if no answer has a box
    outlined: Count  # pairs whose true boxes surround outlines or masks
    per_class: dict[str, Macro]  # scores of boxes by finding
    macro: Macro  # means over findings
    overall: Macro  # over all scored pairs; also the rates of answers
    sensitivity: dict[str, Macro]  # what `macro` would be by [other rules](answers.md#a-run) for answers without a box
    recognition: Recognized | None = None  # yes or no, with counts
    tokens: Tokens | None = None  # answers `counted`, tokens `sent` and `received`
    repeats: Repeats | None = None  # questions `asked` again, and how many answers were the same

    def warnings(self) -> list[str]:
        """Describe problems of the answers as a whole."""
        said, share = [], {name: value or 0.0 for name, value in self.overall.items()}
        if (lost := share["unparsable"] + share["truncated"]) > 0.05:
            said.append(
                f"{100 * lost:.1f}% of the answers could not be read completely (unparsable "
                f"{100 * share['unparsable']:.1f}%, truncated {100 * share['truncated']:.1f}%) and "
                "count as misses if they have no box: look at some in predictions.parquet."
            )
        if share["suspect_frame"] > 0.2:
            said.append(
                f"The numbers of {100 * share['suspect_frame']:.1f}% of the answers do not look like the declared "
                f"frame {self.frame}. If it is wrong, use another one: `xbench rescore RUN --frame NAME`."
            )
        done = {
            "reordered": "have swapped corners, which were corrected",
            "clipped": "have boxes beyond the edge of the image, which were cut off",
            "dropped": "have malformed boxes or boxes without area, which were dropped",
        }
        hint = f"check that the frame is {self.frame}, and that the numbers are corners, not sizes"
        for name, what in done.items():
            if share[name] > 0.05:
                said.append(f"{100 * share[name]:.1f}% of the answers {what}: {hint}.")
        if (found := self.recognition) is not None:
            if found.median_mass is not None and found.median_mass < 0.5:
                said.append(
                    f"The median joint probability of yes and no as first tokens is {found.median_mass:.2f}, so the "
                    "model did not take the question for yes or no: check its wording."
                )
            if found.unreadable:
                said.append(
                    f"{found.unreadable} of {found.asked} replies state neither presence nor absence of the finding; "
                    "they count as the worst in recognition."
                )
        return said


@dataclass(frozen=True)
class InterventionNumbers(_Part):
    """Effects of hidden pixels, with one fill or none; see `xbench.scoring.interventions`."""

    per_class: dict[str, dict[str, Count | Number | None]]  # numbers, and counts of their pairs and of missing ones
    macro: Macro  # means over findings


@dataclass(frozen=True)
class Interventions(_Part):
    """Effects of interventions on scores and decisions."""

    pairs: Count  # changed pairs
    reason: str | None  # `null`, or for a model without scores, why it has no `use`
    all_pairs: dict[str, InterventionNumbers]  # by fill (or `any`), with `per_class` and `macro`
    correct_only: dict[str, InterventionNumbers]  # the same over pairs recognized in the unchanged image
    sign_over_fills: bool | None  # whether the mean `use` has one sign with all fills


@dataclass(frozen=True, kw_only=True)
class Results(_Part):
    """The content of `results.json`."""

    schema: Literal[2] = 2  # version of the file's layout
    model: str  # name
    dataset: str  # name
    split: str  # name
    findings: tuple[str, ...]  # names, in the order of all tables
    counts: Counts
    scored_on: dict[str, ScoredOn]
    grounding: Grounding
    own_scale: OwnScale | None = None  # None, and no key in the file, unless maps are logits or probabilities
    classification: Classification
    answers: Answers | None = None  # the same unless the model answers
    interventions: Interventions | None = None  # the same unless the run hid pixels
    tables: dict[str, str] = field(default_factory=dict)  # SHA-256 of each table
    # dependencies and times; only this section differs between runs of one command
    provenance: dict[str, Any]

    @property
    def macro(self) -> Macro:
        """Means over findings, of grounding and recognition."""
        return {**self.grounding.macro, **self.classification.macro}

    @property
    def answered(self) -> str:
        """`boxes` or `points` for a model that answers; empty for one with maps."""
        return self.answers.kind if self.answers else ""

    @property
    def box_file(self) -> bool:
        """Whether the answers are boxes from a file."""
        of_file = "predictions_sha256" in self.provenance["model"]
        return of_file and self.answers is not None and self.answers.family == "endpoint"

    @property
    def in_words(self) -> bool:
        """Whether the model was asked only for words, which protocols score."""
        return "ask" in (self.provenance.get("model") or {})

    @property
    def box_numbers(self) -> Mapping[str, Mapping[str, float | None]]:
        """Numbers of boxes by finding, and their means as `MACRO`; empty for a model with maps."""
        return self.answers.per_class | {MACRO: self.answers.macro} if self.answers else {}

    @property
    def masks(self) -> int:
        """Number of masks of a pair: one per threshold, or one for an answer."""
        return 1 if self.answers else len(self.grounding.thresholds)

    @property
    def read_as(self) -> dict[str, str]:
        """Family and frame of answers; empty for a model with maps."""
        return {"family": self.answers.family, "frame": self.answers.frame} if self.answers else {}

    def sign_warning(self) -> str | None:
        """Return a warning that maps may have the wrong sign; None without evidence."""
        test = self.grounding.sign_test
        if test is None or not test.may_be_wrong:
            return None
        scores = {name: vars(one) for name, one in self.grounding.per_class.items()}
        scores[MACRO] = self.grounding.macro | vars(test)
        names = ["all findings together" if name == MACRO else name for name in test.may_be_wrong]
        surest = scores[min(test.may_be_wrong, key=lambda name: scores[name]["sign_p"] or 0)]
        low, high = (f"{100 * (surest[key] or 0):.1f}%" for key in ("pointing_game_of_minimum", "pointing_game"))
        return (
            "The sign of the saliency maps may be wrong: their minimum lies in the annotated region more often than "
            f"their maximum, for {', '.join(names)} ({low} against {high}, p = {surest['sign_p'] or 0:.2g}). "
            "If the maps are low where the model sees a finding, negate them and run again."
        )


def write_results(path: Path, results: Results) -> None:
    """Write `results.json`; raise a ValueError for NaN and infinity."""
    content = {name: part for name, part in asdict(results).items() if part is not None}
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    # Put curves on one line. Strings contain no raw line breaks that could match.
    text = re.sub(r"\[\n\s+([-+.e\d\s,]+?)\n\s+\]", lambda m: f"[{re.sub(chr(10) + ' +', ' ', m[1])}]", text)
    write_whole(path, text + "\n")


def read_results(path: Path) -> Results:
    """Read `results.json`; OSError or ValueError if it is unreadable, of another schema, or not written by a run."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_BYTES:
        raise ValueError(f"{path} is not a results.json: it is a pipe or a device, or has more than {_MAX_BYTES} bytes")
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
        problem = f"{place:.200}: {first['msg']:.300} (got {first['input']!r:.60})"
        raise ValueError(f"{path} is damaged or was not written by a run: {problem}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a results.json: {error}") from None
    if (contradiction := _contradiction(results)) is not None:
        raise ValueError(f"{path} is damaged or was not written by a run: {contradiction}")
    return results


_adapter = cache(lambda: TypeAdapter(Results))  # created on first use, because it takes time


_LOOKED_INTO = dict.fromkeys(("model", "data", "evaluation", "seconds", "versions"), dict) | {"command": list}


def _contradiction(results: Results) -> str | None:
    """Describe inconsistent sections; None if all is well."""
    for part, name in (("model", results.model), ("dataset", results.dataset), ("split", results.split)):
        if not (is_name if part == "split" else is_folder_name)(name):
            return f"{name!r:.60} is not the name of a {part}"
    if problem := findings_problem(results.findings):
        return f"findings: {problem}"
    # Sections of the provenance that readers use; they expect anything deeper.
    for part, kind in _LOOKED_INTO.items():
        if not isinstance(results.provenance.get(part), kind | None):
            return f"provenance / {part} is {results.provenance[part]!r:.60}"
    if results.answered and results.provenance.get("model") is None:
        return "its provenance lacks the model that answered"
    findings, grounding = [*results.findings], results.grounding
    changed = results.interventions
    by_fill = [*changed.all_pairs.items(), *changed.correct_only.items()] if changed else []
    parts = [
        grounding,
        results.classification,
        results.own_scale,
        results.answers,
        *(numbers for _, numbers in by_fill),
    ]
    by_finding = [results.counts.per_finding, results.scored_on, *(part.per_class for part in parts if part)]
    if any([*numbers] != findings for numbers in by_finding):
        return "it lacks numbers of findings"
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
                return f"interventions ({fill!r:.20}) have numbers from too few pairs, or lack some"
    if not {*results.tables} <= {*SCHEMAS}:
        return "it names unknown tables"
    if grounding.sign_test and not {*grounding.sign_test.may_be_wrong} <= {*findings, MACRO}:
        return "its sign test names other findings"
    return None
