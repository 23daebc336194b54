"""Callback for interventions: does the score depend on the region?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from rich.console import Console

from xbench.data.datamodule import ChestXrayDataModule
from xbench.findings.conditions import FILLS, HIDING, LEAST, OF_MAPS, PROMPTS, SENTENCE, draw
from xbench.findings.prompts import phrase
from xbench.findings.queries import PHRASES
from xbench.models.answering import AnsweringModel
from xbench.models.base import VLM, SaliencyModel
from xbench.runtime.errors import UsageError
from xbench.types import Batch, Change, Prediction, Query, Truth

from .evaluation import Evaluation


class Interventions(Callback):
    """Scores changed images, and prompts in other words, as `--data.interventions` requests.

    A model with maps gets each changed image in its original batch with all queries, because other batches would change
    scores too; only the rows of changed images are kept, by condition. A model that answers gets the changed images
    alone. Must come after `Evaluation` and `CaseKeeper`, and before `ResultsWriter`.
    """

    def setup(self, trainer: Trainer, pl_module: SaliencyModel, stage: str) -> None:  # type: ignore[override]
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        if stage != "test" or not data.interventions:
            return
        if pl_module.preprocessing.unseen:
            raise UsageError(
                "--data.interventions runs the model on changed images, which predictions made elsewhere do not allow: "
                "omit it."
            )
        if trainer.is_global_zero and {*data.interventions} - {*OF_MAPS}:
            Console(markup=False, highlight=False).print(plan(data, pl_module), soft_wrap=True)

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: SaliencyModel, outputs: Prediction | None, batch: Batch, batch_idx: int
    ) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        if outputs is None or not data.interventions:
            return
        for changes in rounds(batch):
            changed = with_patches(batch, changes, pl_module)
            pairs = sorted(pair for change in changes for pair in change.pairs)
            asked = changed.only(*_of_pairs(batch, pairs))
            answer: Any = trainer.strategy.test_step(asked if pl_module.answers else changed, 1)
            Evaluation.of(trainer).add(trainer, answer if pl_module.answers else answer.only(pairs), asked)
        for condition in PROMPTS if "prompts" in data.interventions else ():
            self._ask(trainer, pl_module, outputs, batch, condition)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data, results = trainer.datamodule, Evaluation.of(trainer).results  # type: ignore[attr-defined]
        if {*HIDING} & {*data.interventions} and results is not None and results.interventions is None:
            rank_zero_warn(f"{data.name}: no positive pair has a region, so --data.interventions hid nothing.")

    def _ask(self, trainer: Trainer, model: SaliencyModel, outputs: Prediction, batch: Batch, condition: str) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        truth, reads = batch.truth, isinstance(model, VLM) or getattr(model, "asked_in_words", False)
        found: dict[int, tuple[Query, int | None]] = {}
        for pair in np.flatnonzero(truth.scored).tolist():
            words = other_words(truth, pair, condition)
            chosen = truth.queries[pair].name in data.chosen.get(truth.image_ids[truth.image[pair]], ())
            # Maps of other findings need no text.
            if chosen and words is not None and (reads or not (model.answers or words[1] is None)):
                found[pair] = words
        if not found:
            return
        rows, wanted = _of_pairs(batch, [*found])
        asked = replace(batch, changes=[], condition=condition).only(rows, wanted)
        asked.truth.queries = [query for query, _ in found.values()]
        columns = [other for _, other in found.values() if other is not None]
        if model.answers:
            prediction: Any = trainer.strategy.test_step(asked, 1)
        elif len(columns) == len(found):
            # Another pass would give the same column.
            prediction = outputs.only(columns)
        else:
            whole = replace(batch, truth=truth.only(range(len(batch)), wanted), notes=[])
            whole.truth.queries = [query if other is None else truth.queries[other] for query, other in found.values()]
            prediction = trainer.strategy.test_step(whole, 1)
        Evaluation.of(trainer).add(trainer, prediction, asked)


def rounds(batch: Batch) -> list[list[Change]]:
    """Group the changes of a batch into rounds of one condition that change no image twice."""
    turns: Counter[tuple[str, int]] = Counter()
    dealt: dict[tuple[str, int], list[Change]] = {}
    for change in batch.changes:
        key = change.condition, int(batch.truth.image[change.pairs[0]])
        dealt.setdefault((change.condition, turns[key]), []).append(change)
        turns[key] += 1
    return [*dealt.values()]


def with_patches(batch: Batch, changes: Sequence[Change], model: SaliencyModel) -> Batch:
    """Return a batch with changed images, each changed once, under the condition of the changes."""
    images, radiographs = batch.images.clone(), [*batch.radiographs]
    for change in changes:
        row = int(batch.truth.image[change.pairs[0]])
        if model.answers:
            radiographs[row] = radiographs[row].clone()
        pixels = (radiographs if model.answers else images)[row]
        (top, left), (height, width) = change.corner, change.pixels.shape
        pixels[..., top : top + height, left : left + width] = model.preprocessing.normalise(change.pixels)
    about: dict[str, Any] = {"condition": changes[0].condition, "changes": [*changes], "notes": []}
    return replace(batch, images=images, radiographs=radiographs, **about)


def other_words(truth: Truth, pair: int, condition: str) -> tuple[Query, int | None] | None:
    """Return a pair's query in other words of a condition of `PROMPTS`, and the pair of these; or None.

    The words are a sentence of another field, or those of another finding with an absent or present label, the first in
    the order of `draw`. For a phrase they are the package's phrase for that finding.
    """
    own, image, label = truth.queries[pair], truth.image[pair], int(condition == PROMPTS[1])
    if condition == PROMPTS[2]:
        return own._replace(text=SENTENCE, language="en"), None
    of_image = [(place, truth.queries[place]) for place in np.flatnonzero(truth.image == image).tolist()]
    there = {query.finding for place, query in of_image if truth.labels[place] == 1}
    others = [
        (draw(truth.image_ids[image], query.name), query.finding, place)
        for place, query in of_image
        if query.finding not in (None, own.finding)
        and truth.labels[place] == label
        and (label or query.finding not in there)
        and (query.text is None or own.text is not None)
    ]
    if not others:
        return None
    _, finding, place = min(others)
    if own.text is None:
        return own._replace(text=finding), place
    return own._replace(text=phrase(str(finding)), language="en"), None


def plan(data: ChestXrayDataModule, model: SaliencyModel) -> str:
    """Describe the number of pairs, and the maximum of passes or questions, because regions are not known yet."""
    chosen = [len(data.chosen.get(record.image_id, ())) for record in data.records]
    each = 2 * sum(one in FILLS for one in data.interventions) + ("keep" in data.interventions)
    once, words = "no_image" in data.interventions, len(PROMPTS) * ("prompts" in data.interventions)
    names = ", ".join(one for one in data.interventions if one not in OF_MAPS)
    images = np.count_nonzero(chosen)
    about = f"Interventions ({names}): {sum(chosen)} positive pairs on {images} of {len(chosen)} "
    about += f"images (numbers of a finding need {LEAST} pairs{_too_few(data)}); "
    if isinstance(model, AnsweringModel):
        questions = model.asked_of(1, 0, 1) * (each + once) + model.asked_of(0, 0, 1) * words * model.asked_in_words
        return f"{about}at most {sum(chosen) * questions} questions in addition to those of the run."
    # The model is asked about other findings anyway.
    has_phrases = any(query.text is not None for record in data.records for query in record.queries or ())
    words = min(words, len(PROMPTS) if has_phrases else 1) if isinstance(model, VLM) else 0
    size = data.batch_size
    batches = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    passes = sum(max(batch) * each + once + words for batch in batches if any(batch))
    return f"{about}at most {passes} passes of a batch through the model in addition to the {len(batches)} of the run."


def _too_few(data: ChestXrayDataModule) -> str:
    """Return what would help if no finding can reach `LEAST` pairs; else empty."""
    drawn, present = Counter[str](), Counter[str]()
    for record in data.records:
        names = data.chosen.get(record.image_id, ())
        for query in record.looked_for(data.findings):
            present[query.finding or PHRASES] += record.labels.get(query.name) == 1
            drawn[query.finding or PHRASES] += query.name in names
    if max(drawn.values(), default=0) >= LEAST:
        return ""
    finding, most = max(present.items(), key=itemgetter(1), default=("", 0))
    if most >= LEAST:
        return f", and no finding can reach them: give --data.pairs {LEAST * len(present)}"
    images = len(data.records)
    enough = f"; about {-(-LEAST * images // most)} images like these would do" if most else ""
    return f", and no finding can reach them: {finding} has the most, {most} on {images} images{enough}"


def _of_pairs(batch: Batch, pairs: Sequence[int]) -> tuple[list[int], NDArray[np.bool_]]:
    wanted = np.isin(np.arange(len(batch.truth.queries)), pairs)
    return np.unique(batch.truth.image[wanted]).tolist(), wanted
