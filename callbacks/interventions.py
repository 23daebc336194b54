"""Interventions: does the score depend on the region?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from rich.console import Console

from xbench.data.datamodule import ChestXrayDataModule
from xbench.findings.conditions import FILLS, PROMPTS, SENTENCE, draw
from xbench.findings.prompts import phrase
from xbench.models.answering import AnsweringModel
from xbench.models.base import VLM, SaliencyModel
from xbench.runtime.errors import UsageError
from xbench.types import Batch, Change, Prediction, Query

from .wordings import add_condition


class Interventions(Callback):
    """Scores changed versions of images, and asks in other words, as `--data.interventions` names them.

    A model that draws maps gets each changed image within its whole batch, beside the same images and with the same
    queries, so that nothing but the change moves a score; the rows of what was changed are kept, each change under a
    condition of its own. A model that answers is asked about the changed images alone. Comes after `Evaluation` and
    `CaseKeeper` and before `ResultsWriter`.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print what will be done; raise a UserError for predictions that were made elsewhere."""
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(pl_module, SaliencyModel)
        if stage != "test" or not data.interventions:
            return
        if pl_module.preprocessing.unseen:
            raise UsageError(
                "--data.interventions changes images and asks a model about them again, and predictions that were made "
                "elsewhere have no model to ask. Leave it out."
            )
        if trainer.is_global_zero:
            Console(markup=False, highlight=False).print(plan(data, pl_module), soft_wrap=True)

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LightningModule, outputs: Prediction | None, batch: Batch, batch_idx: int
    ) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(pl_module, SaliencyModel)
        if outputs is None or not data.interventions:
            return
        for condition, changes in rounds(batch):
            changed = replace(with_patches(batch, changes, pl_module), notes=[], failures=[], condition=condition)
            pairs = sorted(pair for change in changes for pair in change.pairs)
            asked = replace(changed, changes=[*changes]).only(*_of_pairs(batch, pairs))
            answer: Any = trainer.strategy.test_step(asked if pl_module.answers else changed, 1)
            add_condition(trainer, answer if pl_module.answers else answer.only(pairs), asked)
        if "prompts" in data.interventions:
            chosen = [pair for pair in np.flatnonzero(batch.truth.scored).tolist() if is_chosen(data, batch, pair)]
            for condition in PROMPTS:
                self._ask(trainer, pl_module, outputs, batch, condition, chosen)

    def _ask(
        self,
        trainer: Trainer,
        model: SaliencyModel,
        outputs: Prediction,
        batch: Batch,
        condition: str,
        chosen: Sequence[int],
    ) -> None:
        """Ask about the regions of some pairs in the words of something else, wherever there are such words."""
        reads = isinstance(model, VLM) or (isinstance(model, AnsweringModel) and model.asked_in_words)
        found = {pair: other_words(batch, pair, condition) for pair in chosen}
        queries = {
            pair: (query, other)
            for pair, (query, other) in found.items()
            if query is not None and (reads or other is not None)
        }
        if not queries:
            return
        rows, wanted = _of_pairs(batch, [*queries])
        asked = replace(batch, changes=[], notes=[], failures=[], condition=condition).only(rows, wanted)
        asked.truth.queries = [query for query, _ in queries.values()]
        others = [other for _, other in queries.values() if other is not None]
        if model.answers:
            prediction: Any = trainer.strategy.test_step(asked, 1)
        elif len(others) == len(queries):
            # The same column of the same output that another pass would give.
            prediction = outputs.only(others)
        else:
            whole = replace(batch, truth=batch.truth.only(range(len(batch)), wanted), notes=[], changes=[])
            own = batch.truth.queries
            whole.truth.queries = [query if other is None else own[other] for query, other in queries.values()]
            prediction = trainer.strategy.test_step(whole, 1)
        add_condition(trainer, prediction, asked)


def rounds(batch: Batch) -> Iterator[tuple[str, list[Change]]]:
    """Yield the changes of a batch condition by condition, so many at a time that no image is changed twice."""
    turns: Counter[tuple[str, int]] = Counter()
    dealt: list[tuple[str, int, Change]] = []
    for change in batch.changes:
        key = change.condition, int(batch.truth.image[change.pairs[0]])
        dealt.append((change.condition, turns[key], change))
        turns[key] += 1
    turn = itemgetter(0, 1)
    for (condition, _), of_round in groupby(sorted(dealt, key=turn), key=turn):
        yield condition, [change for _, _, change in of_round]


def with_patches(batch: Batch, changes: Sequence[Change], model: SaliencyModel) -> Batch:
    """Return a batch with some of its images changed, each once."""
    images, radiographs = batch.images.clone(), [*batch.radiographs]
    for change in changes:
        row = int(batch.truth.image[change.pairs[0]])
        (top, left), (height, width) = change.corner, change.pixels.shape
        if model.answers:
            radiographs[row] = radiographs[row].clone()
        place = (slice(top, top + height), slice(left, left + width))
        (radiographs[row] if model.answers else images[row])[..., *place] = model.preprocessing.normalise(change.pixels)
    return replace(batch, images=images, radiographs=radiographs)


def other_words(batch: Batch, pair: int, condition: str) -> tuple[Query | None, int | None]:
    """Return a pair's query in the words of a condition of `PROMPTS`, and the pair that they are those of, if any.

    The words are a sentence of another field, or those of another finding that the image's labels say is absent, or
    present: the first in the order of `draw`. A finding is asked for as that other one is, a phrase in the package's
    phrase for it.
    """
    truth, own = batch.truth, batch.truth.queries[pair]
    if condition == PROMPTS[2]:
        return own._replace(text=SENTENCE, language="en"), None
    image, label = truth.image[pair], int(condition == PROMPTS[1])
    of_image = [(place, truth.queries[place]) for place in np.flatnonzero(truth.image == image).tolist()]
    there = {query.finding for place, query in of_image if truth.labels[place] == 1}
    others = [
        (draw(truth.image_ids[image], query.name), place, query)
        for place, query in of_image
        if query.finding not in (None, own.finding)
        and truth.labels[place] == label
        and (label or query.finding not in there)
        and (query.text is None or own.text is not None)
    ]
    if not others:
        return None, None
    _, place, query = min(others)
    assert query.finding is not None
    if own.text is None:
        return own._replace(text=query.finding), place
    return own._replace(text=phrase(query.finding), language="en"), None


def is_chosen(data: ChestXrayDataModule, batch: Batch, pair: int) -> bool:
    """Tell whether a pair of a batch is among those that images are changed for."""
    image_id = batch.truth.image_ids[batch.truth.image[pair]]
    return data.chosen is None or batch.truth.queries[pair].name in data.chosen.get(image_id, ())


def plan(data: ChestXrayDataModule, model: SaliencyModel) -> str:
    """Say how many images are changed for how many pairs, and how many passes or questions that takes at most.

    Which pairs have a region, and which of them have room for a control, is known once the images are read.
    """
    chosen = [
        sum(
            record.labels.get(query.name) == 1
            and (data.chosen is None or query.name in data.chosen.get(record.image_id, ()))
            for query in record.looked_for(data.findings)
        )
        for record in data.records
    ]
    pairs, images = sum(chosen), np.count_nonzero(chosen)
    if not pairs:
        rank_zero_warn(f"{data.name}: nothing is labelled present, so --data.interventions changes nothing.")
    each = 2 * sum(one in FILLS for one in data.interventions) + ("keep" in data.interventions)
    once, words = "no_image" in data.interventions, len(PROMPTS) * ("prompts" in data.interventions)
    if not isinstance(model, AnsweringModel):
        # Other findings are among what the model is asked in any case.
        has_phrases = any(query.text is not None for record in data.records for query in record.queries or ())
        words = min(words, len(PROMPTS) if has_phrases else 1) if isinstance(model, VLM) else 0
    names = ", ".join(data.interventions)
    about = f"Interventions ({names}): {pairs} pairs that are labelled present, on {images} of {len(chosen)} images; "
    if isinstance(model, AnsweringModel):
        questions = model.asked_of(1, 0, 1) * (each + once) + model.asked_of(0, 0, 1) * words * model.asked_in_words
        return f"{about}at most {pairs * questions} questions beside those of the run itself."
    size = data.batch_size
    batches = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    passes = sum(max(batch) * each + once + words for batch in batches if any(batch))
    return f"{about}at most {passes} passes of a batch through the model beside the {len(batches)} of the run itself."


def _of_pairs(batch: Batch, pairs: Sequence[int]) -> tuple[list[int], NDArray[np.bool_]]:
    """Return the images that some of the pairs of a batch belong to, and which pairs these are (P,) bool."""
    wanted = np.isin(np.arange(len(batch.truth.queries)), pairs)
    return np.unique(batch.truth.image[wanted]).tolist(), wanted
