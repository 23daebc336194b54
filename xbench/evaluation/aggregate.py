"""From scores to the results of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xbench.evaluation.answers import summarise_answers
from xbench.findings.names import MACRO
from xbench.runs.answers import AnswerRow
from xbench.runs.results import (
    SIGN_LEVEL,
    Classification,
    ConstantMap,
    ConstantMaps,
    Counts,
    FindingClassification,
    FindingCounts,
    FindingGrounding,
    Grounding,
    NoteCount,
    Results,
    SignTest,
    Skipped,
    macro_mean,
)
from xbench.runs.scores import ImageScores, scored_on
from xbench.scoring.classification import classification_scores, macro
from xbench.scoring.sign import sign_tests
from xbench.types import Failure, Note

_GROUNDING_NUMBERS = ("pointing_game", "dice_fixed", "iou_fixed", "dice_best", "iou_best")
_OF_A_MAP = (
    *("dice_best", "iou_best", "dice_best_threshold", "iou_best_threshold", "dice_curve", "iou_curve"),
    *("pointing_game_of_minimum", "sign_p"),
)
_CLASSIFICATION_NUMBERS = ("auroc", "average_precision", "f1", "accuracy")


def summarise(
    names: tuple[str, str, str],
    findings: Sequence[str],
    images: ImageScores,
    pointing_game: Mapping[str, Tensor],
    sweep: Mapping[str, Tensor],
    failures: Sequence[Failure] = (),
    constant: Sequence[tuple[int, str, int]] = (),
    notes: Iterable[Note] = (),
    provenance: Mapping[str, Any] | None = None,
    answers: Sequence[AnswerRow] | None = None,
) -> Results:
    """Put the results of a run together.

    `names` are those of model, dataset and split, `pointing_game` and `sweep` what the metrics' `compute` returned, and
    `constant` the pairs whose map is the same everywhere; these and the failures come in the dataset's order. `answers`
    are those of a model that answers: of what needs a map, nothing exists, and a reply that cannot be read counts as
    the worst in recognition. Without any probability there is no recognition.
    """
    said = None if answers is None else summarise_answers(findings, answers, images, (provenance or {})["model"])
    scores = classification_scores(torch.from_numpy(images.labels), torch.from_numpy(images.counted_probabilities))
    unsaid = np.isnan(images.probabilities).all() if said is None else said.recognition is None
    if unsaid and images.probabilities.size:
        scores = [replace(one, auroc=None, average_precision=None, f1=None, accuracy=None) for one in scores]
    recognition = macro(scores)
    names_of_patients = zip(images.patient_ids, images.index.tolist(), strict=True)
    patients = [index if name is None else name for name, index in names_of_patients]
    by_finding, together = sign_tests(images.pointing_hit, images.minimum_hit, patients)
    p_values = dict(zip((*findings, MACRO), (*by_finding, together), strict=True))
    grounding = _grounding(findings, images, pointing_game, sweep, p_values)
    if said is not None:
        lacking = _OF_A_MAP if said.kind == "boxes" else (*_OF_A_MAP, "dice_fixed", "iou_fixed")
        without: dict[str, Any] = dict.fromkeys(lacking)
        grounding = {name: replace(one, **without) for name, one in grounding.items()}
    odd: defaultdict[str, set[str]] = defaultdict(set)
    for note in notes:
        odd[note.text].add(note.image_id)
    model, dataset, split = names
    steps = len(sweep["thresholds"]) - 1
    return Results(
        model=model,
        dataset=dataset,
        split=split,
        findings=tuple(findings),
        counts=Counts(
            images=len(images.image_ids),
            skipped=[Skipped(failure.image_id, failure.reason) for failure in failures],
            constant_maps=ConstantMaps(
                len(constant), [ConstantMap(image_id, findings[column]) for _, image_id, column in constant[:10]]
            ),
            notes=[NoteCount(text, len(ids), sorted(ids)[:10]) for text, ids in sorted(odd.items())],
            per_finding={
                finding: FindingCounts(
                    positives=int((images.labels[:, c] == 1).sum()),
                    negatives=int((images.labels[:, c] == 0).sum()),
                    with_region=int(images.scored[:, c].sum()),
                )
                for c, finding in enumerate(findings)
            },
        ),
        scored_on=scored_on(images, findings),
        grounding=Grounding(
            thresholds=[k / steps for k in range(steps + 1)],
            per_class=grounding,
            macro={
                name: macro_mean([getattr(scores, name) for scores in grounding.values()])
                for name in _GROUNDING_NUMBERS
            },
            sign_test=None
            if said
            else SignTest(
                pointing_game_of_minimum=macro_mean([one.pointing_game_of_minimum for one in grounding.values()]),
                sign_p=together,
                may_be_wrong=[name for name, p in p_values.items() if p is not None and p <= SIGN_LEVEL],
            ),
        ),
        classification=Classification(
            per_class={
                name: FindingClassification(**vars(score)) for name, score in zip(findings, scores, strict=True)
            },
            macro={name: getattr(recognition, name) for name in _CLASSIFICATION_NUMBERS},
        ),
        answers=said,
        provenance=dict(provenance or {}),
    )


def _grounding(
    findings: Sequence[str],
    images: ImageScores,
    pointing_game: Mapping[str, Tensor],
    sweep: Mapping[str, Tensor],
    sign_p: Mapping[str, float | None],
) -> dict[str, FindingGrounding]:
    scores = {}
    fixed = len(sweep["thresholds"]) // 2
    for c, finding in enumerate(findings):
        count = int(sweep["count"][c])
        if not count:
            scores[finding] = FindingGrounding(0, *[None] * 9)
            continue
        dice, iou = sweep["dice"][c].tolist(), sweep["iou"][c].tolist()
        best_dice, best_iou = max(dice), max(iou)
        steps = len(dice) - 1
        scores[finding] = FindingGrounding(
            count=count,
            pointing_game=pointing_game["pointing_game"][c].item(),
            pointing_game_of_minimum=fsum(images.minimum_hit[images.scored[:, c], c]) / count,
            sign_p=sign_p[finding],
            dice_fixed=dice[fixed],
            iou_fixed=iou[fixed],
            dice_best=best_dice,
            iou_best=best_iou,
            # index() finds the first and so the lowest of several best thresholds.
            dice_best_threshold=dice.index(best_dice) / steps,
            iou_best_threshold=iou.index(best_iou) / steps,
            dice_curve=dice,
            iou_curve=iou,
        )
    return scores
