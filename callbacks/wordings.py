"""Callback for phrases in other words: does the map follow?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from xbench.data.datamodule import ChestXrayDataModule
from xbench.findings.phrases import Wording, reworded
from xbench.runtime.errors import UsageError
from xbench.types import Batch, Prediction

from .evaluation import Evaluation


class Wordings(Callback):
    """Scores phrases in the words of `--data.wordings`; after `Evaluation` and `CaseKeeper`, before `ResultsWriter`."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        wanted = getattr(trainer.datamodule, "wordings", None)  # type: ignore[attr-defined]
        if stage == "test" and wanted and not getattr(pl_module, "asked_in_words", True):
            raise UsageError(
                "--data.wordings runs the model on other words, which predictions made elsewhere do not allow: omit it."
            )

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LightningModule, outputs: Prediction | None, batch: Batch, batch_idx: int
    ) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        for wording in data.wordings if outputs is not None and outputs.shown is not None else ():
            if (changed := in_other_words(batch, wording)) is None:
                continue
            prediction: Any = trainer.strategy.test_step(changed, 1)
            Evaluation.of(trainer).add(trainer, prediction, changed)


def in_other_words(batch: Batch, wording: Wording) -> Batch | None:
    """Return the images of a batch with their scored phrases in other words; None without such words."""
    truth = batch.truth
    scored, queries = truth.scored, [*truth.queries]
    for pair in np.flatnonzero(scored).tolist():
        beside = np.flatnonzero(scored & (truth.image == truth.image[pair]) & (truth.digests != truth.digests[pair]))
        # Rotate, so that phrases of an image do not all become its first one.
        others = [truth.queries[place] for place in sorted(beside.tolist(), key=lambda place: (place < pair, place))]
        query = reworded(truth.queries[pair], others, wording)
        scored[pair], queries[pair] = query is not None, query or queries[pair]
    if not scored.any():
        return None
    chosen = batch.only(np.unique(truth.image[scored]).tolist(), scored)
    own = [query for query, kept in zip(queries, scored.tolist(), strict=True) if kept]
    truth = replace(chosen.truth, queries=own)
    return replace(chosen, truth=truth, condition=f"wording: {wording}", failures=[], changes=[])
