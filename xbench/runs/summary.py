"""Results from the rows of a run, for the run itself, `rescore` and `verify`. Needs no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xbench.findings.names import MACRO
from xbench.runs import results
from xbench.runs.answers import AnswerRow
from xbench.scoring import numbers
from xbench.scoring.boxes import box_iou
from xbench.scoring.interventions import intervened, intervention_numbers
from xbench.scoring.numbers import Numbers, macro_mean
from xbench.scoring.rows import Rows

if TYPE_CHECKING:
    from xbench.types import Failure, Note

_SWEEP = ("dice_fixed", "iou_fixed", "dice_best", "iou_best")
_GROUNDING = ("pointing_game", *_SWEEP)
_SENSITIVE = ("pointing_game", "dice_fixed", "iou_fixed", "box_iou", "acc_50")
"""Numbers in the sensitivity analysis of unreadable answers."""


@dataclass(frozen=True)
class RunNumbers:
    """Numbers of a run's metrics by finding; `boxes` has one more entry, for all findings."""

    pointing: Sequence[Numbers]
    sweep: Sequence[Numbers]
    own: Sequence[Numbers]
    boxes: Sequence[Numbers]
    classification: Sequence[Numbers]


def numbers_of(rows: Rows) -> RunNumbers:
    """Compute the metrics from all rows of a run."""
    count, group = len(rows.findings), rows.finding
    recognized, probabilities = numbers.recognized_findings(rows), numbers.counted_probabilities(rows)
    return RunNumbers(
        numbers.pointing_numbers(numbers.pointing_sums(rows, group, count)),
        numbers.sweep_numbers(numbers.sweep_sums(rows, group, count)),
        numbers.sweep_numbers(numbers.own_sums(rows, group, count)),
        numbers.box_numbers_and_all(numbers.box_sums(rows, group, count)),
        numbers.recognition_by_finding(rows["label"], probabilities, recognized, count),
    )


def summarize(
    names: tuple[str, str, str],
    rows: Rows,
    computed: RunNumbers,
    thresholds: int,
    failures: Sequence[Failure] = (),
    notes: Iterable[Note] = (),
    provenance: Mapping[str, Any] | None = None,
    answers: Sequence[AnswerRow] | None = None,
    changed: Mapping[str, Rows] | None = None,
) -> results.Results:
    """Assemble the results of a run.

    `names` are model, dataset and split; `computed` is the output of the metrics and `thresholds` their number in the
    sweep. `answers` may be in any order and without texts. `changed` are rows under interventions, by condition.
    """
    findings = rows.findings
    said = None if answers is None else _answers(rows, computed.boxes, answers, (provenance or {})["model"])
    by_finding, together = ([None] * len(findings), None) if said else numbers.sign_tests(rows)
    grounding = {
        finding: _grounding(rows, place, computed, by_finding[place], said) for place, finding in enumerate(findings)
    }
    constant = numbers.constant_maps(rows)
    odd: defaultdict[str, set[str]] = defaultdict(set)
    for note in notes:
        odd[note.text].add(note.image_id)
    model, dataset, split = names
    minimum = macro_mean(one.pointing_game_of_minimum for one in grounding.values())
    p_values = dict(zip((*findings, MACRO), (*by_finding, together), strict=True))
    sign = results.SignTest(
        minimum, together, [name for name, p in p_values.items() if p is not None and p <= results.SIGN_LEVEL]
    )
    return results.Results(
        model=model,
        dataset=dataset,
        split=split,
        findings=findings,
        counts=results.Counts(
            images=len(rows.image_ids),
            skipped=[results.Skipped(failure.image_id, failure.reason) for failure in failures],
            constant_maps=results.ConstantMaps(len(constant), [results.ConstantMap(*pair) for pair in constant[:10]]),
            notes=[results.NoteCount(text, len(ids), sorted(ids)[:10]) for text, ids in sorted(odd.items())],
            per_finding={
                finding: results.FindingCounts(
                    positives=int((rows["label"][rows.finding == place] == 1).sum()),
                    negatives=int((rows["label"][rows.finding == place] == 0).sum()),
                    with_region=int((rows["has_region"] & (rows["label"] == 1))[rows.finding == place].sum()),
                )
                for place, finding in enumerate(findings)
            },
        ),
        scored_on={finding: results.ScoredOn(**digests) for finding, digests in numbers.scored_on(rows).items()},
        grounding=results.Grounding(
            thresholds=[k / (thresholds - 1) for k in range(thresholds)],
            per_class=grounding,
            macro={name: macro_mean(getattr(one, name) for one in grounding.values()) for name in _GROUNDING},
            sign_test=None if said else sign,
        ),
        own_scale=_own_scale(rows, computed.own, ((provenance or {}).get("model") or {}).get("map_scale")),
        classification=results.Classification(
            per_class={
                name: results.FindingClassification(**scores)
                for name, scores in zip(findings, computed.classification, strict=True)
            },
            macro=numbers.recognition_macro(computed.classification),
        ),
        answers=said,
        interventions=_interventions(rows, changed or {}),
        provenance=dict(provenance or {}),
    )


def _grounding(
    rows: Rows, place: int, computed: RunNumbers, sign_p: float | None, answers: results.Answers | None
) -> results.FindingGrounding:
    sweep, pointing = computed.sweep[place], computed.pointing[place]
    if not pointing["count"]:
        return results.FindingGrounding(0, *[None] * 9)
    scored = rows.counts.row[rows.finding[rows.counts.row] == place]
    minimum = None if answers else fsum(rows["minimum_hit"][scored].tolist()) / len(scored)
    found = pointing | sweep | {"pointing_game_of_minimum": minimum, "sign_p": sign_p}
    if answers is not None and answers.kind == "points":
        found |= dict.fromkeys(("dice_fixed", "iou_fixed"))
    return results.FindingGrounding(**found)


def _own_scale(rows: Rows, computed: Sequence[Numbers], scale: Any) -> results.OwnScale | None:
    if scale not in ("logit", "probability") or not len(rows.own.row):
        return None
    macro = {name: macro_mean(scores[name] for scores in computed) for name in _SWEEP}
    return results.OwnScale(scale, dict(zip(rows.findings, computed, strict=True)), macro)


def _interventions(rows: Rows, changed: Mapping[str, Rows]) -> results.Interventions | None:
    if (pairs := intervened(rows, changed)) is None:
        return None
    found = intervention_numbers(pairs)
    for name in ("all_pairs", "correct_only"):
        found[name] = {fill: results.InterventionNumbers(**numbers) for fill, numbers in found[name].items()}
    return results.Interventions(**found)


def _answers(
    rows: Rows, boxes: Sequence[Numbers], asked: Sequence[AnswerRow], about: Mapping[str, Any]
) -> results.Answers:
    per_class = dict(zip(rows.findings, boxes, strict=False))
    means = [name for name in boxes[0] if name not in ("pairs", "negatives")]
    points = bool(np.nansum(rows["points"])) and not np.nansum(rows["boxes"])
    return results.Answers(
        family=str(about.get("family")),
        frame=str(about.get("frame")),
        reader=str(about.get("reader")),
        kind="points" if points else "boxes",
        outlined=int(np.nansum(rows["outlined"])),
        per_class=per_class,
        macro={name: macro_mean(scores[name] for scores in per_class.values()) for name in means},
        overall=boxes[-1],
        sensitivity=_sensitivity(rows, points),
        recognition=_recognition([row for row in asked if row.query == "recognise"], rows),
        tokens=_tokens(asked),
        repeats=_repeats(asked),
    )


def _repeats(asked: Sequence[AnswerRow]) -> results.Repeats | None:
    first = {(row.image_id, row.finding): row for row in asked if row.query == "locate"}
    both = [(row, first[row.image_id, row.finding]) for row in asked if row.query == "again"]
    boxes = [(row.boxes or (), other.boxes or ()) for row, other in both]
    alike = sum(box_iou(*of) > 0.9 if all(of) else not any(of) for of in boxes)
    return results.Repeats(len(both), sum(row.status == other.status for row, other in both), alike) if both else None


def _tokens(asked: Sequence[AnswerRow]) -> results.Tokens | None:
    known = [row for row in asked if (row.tokens_in, row.tokens_out) != (None, None)]
    sent, received = sum(row.tokens_in or 0 for row in known), sum(row.tokens_out or 0 for row in known)
    return results.Tokens(len(known), sent, received) if known else None


def _sensitivity(rows: Rows, only_points: bool) -> dict[str, dict[str, float | None]]:
    """Return macro numbers and pairs with other rules for unreadable answers."""
    scored = rows.counts.row
    columns = [rows[name][scored] for name in ("pointing_hit", "dice", "iou", "box_iou")]
    columns.append((columns[-1] > 0.5 + numbers.ROUNDING).astype(np.float64))
    values = np.nan_to_num(np.stack(columns, axis=1))
    status, finding = rows["answer_status"][scored], rows.finding[scored]

    def means(values: NDArray[np.float64], kept: NDArray[np.bool_]) -> dict[str, float | None]:
        groups = [values[kept & (finding == place)] for place in range(len(rows.findings))]
        found: dict[str, float | None] = {"pairs": int(kept.sum())}
        for at, name in enumerate(_SENSITIVE):
            each = [fsum(group[:, at].tolist()) / len(group) for group in groups if len(group)]
            found[name] = None if only_points and name != "pointing_game" else macro_mean(each)
        return found

    def counted(which: str, value: float) -> dict[str, float | None]:
        return means(np.where((status == which)[:, None], value, values), np.ones(len(scored), np.bool_))

    return {
        "answered_only": means(values, status == "answered"),
        "truncated_as_misses": counted("truncated", 0),
        "unparsable_as_useless": counted("unparsable", 0),
        "unparsable_as_perfect": counted("unparsable", 1),
    }


def _recognition(asked: Sequence[AnswerRow], rows: Rows) -> results.Recognized | None:
    if not asked:
        return None
    ways = {row.way for row in asked if row.probability is not None}
    masses, recognized = [row.mass for row in asked if row.mass is not None], numbers.recognized_findings(rows)
    labels = np.where(np.isnan(rows["probability"]), -1, rows["label"]).astype(np.int8)
    readable = numbers.recognition_by_finding(labels, rows["probability"], recognized, len(rows.findings))
    return results.Recognized(
        asked=len(asked),
        unreadable=sum(row.probability is None for row in asked),
        bounded=sum(bool(row.bounded) for row in asked),
        ways={
            way: sum(row.way == way and row.probability is not None for row in asked)
            for way in sorted(filter(None, ways))
        },
        decisions_only=ways == {"decision"},
        median_mass=median(masses) if masses else None,
        readable_only=numbers.recognition_macro(readable),
    )
