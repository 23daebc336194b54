"""Callback for deletion and insertion curves and randomization of weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from rich.console import Console

from xbench.data.datamodule import ChestXrayDataModule, drawn_pairs
from xbench.findings.conditions import OF_MAPS
from xbench.geometry.grid import FULL_VIEW, maps_on_grid
from xbench.models.redrawing import Layer, layers_of, redrawn, same_words, words_of
from xbench.runs.files import PERTURBATIONS
from xbench.runs.images import table_of
from xbench.scoring.perturbations import STEPS, changed, ranking, region_in_view, similarities
from xbench.types import Batch, Maps, Prediction, Truth

from .evaluation import Evaluation

_Row = tuple[int, str, str, str | None, str, str, int, str | None, float]

_ORDERS = ("map", "random", "region")


class Perturbations(Callback):
    """Changes images in the order of a map's pixels, and randomizes weights, as `--data.interventions` requests.

    It handles the first `--data.curve_pairs` pairs. `kinds` holds the
    requested names. Must come after `Evaluation` and before `ResultsWriter`.
    """

    kinds: Sequence[str] = ()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        self.kinds = [kind for kind in OF_MAPS if stage == "test" and kind in data.interventions]
        if not self.kinds:
            return
        names = ", ".join(self.kinds)
        if pl_module.answers:
            rank_zero_warn(f"{pl_module.name} answers without maps, so --data.interventions skips {names}.")
            self.kinds = []
            return
        self._chosen = drawn_pairs(data.records, data.findings, data.curve_pairs)
        size, pairs = data.batch_size, sum(map(len, self._chosen.values()))
        passes = pairs * sum(len(_ORDERS) * -(-len(STEPS[kind]) // size) for kind in self.kinds if kind in STEPS)
        if "randomisation" in self.kinds:
            places = {place // size for place, record in enumerate(data.records) if record.image_id in self._chosen}
            passes += 2 * len(layers_of(pl_module)) * len(places)
        if trainer.is_global_zero:
            text = f"Maps ({names}): {pairs} pairs; at most {passes} passes of a batch through the model."
            Console(markup=False, highlight=False).print(text, soft_wrap=True)

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LightningModule, outputs: Prediction | None, batch: Batch, batch_idx: int
    ) -> None:
        rows: list[_Row] = []
        if self.kinds and outputs is not None and isinstance(outputs.shown, Maps):
            batch, truth = replace(batch, notes=[], failures=[]), batch.truth
            chosen = [
                query.name in self._chosen.get(truth.image_ids[image], ())
                for query, image in zip(truth.queries, truth.image, strict=True)
            ]
            pairs = np.flatnonzero(truth.scored & chosen).tolist()
            maps = _on_input(outputs, batch, pl_module)
            for pair in pairs:
                rows += self._curves(trainer, batch, pair, maps[pair])
            if pairs and "randomisation" in self.kinds:
                rows += _randomisation(trainer, pl_module, batch, pairs, maps)
            # Sort like all tables, in the dataset's order.
            rows.sort(key=itemgetter(0))
        if rows:
            Evaluation.of(trainer).latest(trainer)[PERTURBATIONS] = table_of(PERTURBATIONS, rows)
        Evaluation.of(trainer).stopwatch.lap("forward")

    def _curves(self, trainer: Trainer, batch: Batch, pair: int, values: NDArray[np.float32]) -> Iterator[_Row]:
        """Yield the probability after each step: by map, at random, region first. Batches keep their size."""
        truth, row = batch.truth, int(batch.truth.image[pair])
        key, image = _key(truth, pair), batch.images[row].float().cpu().numpy()
        region: Any = truth.regions[pair]
        seen = region_in_view(region.cpu().numpy(), truth.views[row], values.shape)
        size = trainer.datamodule.batch_size  # type: ignore[attr-defined]
        alone = batch.only([row] * size, np.arange(len(truth.queries)) == pair)
        for kind in (kind for kind in self.kinds if kind in STEPS):
            for of, first in zip(_ORDERS, (values, np.zeros_like(values), seen), strict=True):
                versions = changed(kind, image, ranking(first, key[1]), key[1])
                while some := [*islice(versions, size)]:
                    images = np.stack([version for _, version in some] + [some[-1][1]] * (size - len(some)))
                    asked = replace(alone, images=torch.from_numpy(images).to(batch.images), condition=kind)
                    prediction: Any = trainer.strategy.test_step(asked, 1)
                    _, scores = prediction.scores(size)
                    for (percent, _), score in zip(some, scores.double().cpu().tolist(), strict=False):
                        yield *key, kind, of, percent, None, score


def _randomisation(
    trainer: Trainer, model: Any, batch: Batch, pairs: Sequence[int], maps: NDArray[np.float32]
) -> Iterator[_Row]:
    """Yield the similarity of maps before and after randomizing each layer, alone and with all above it.

    A layer belongs to the tower `text` if it changes encoded prompts, else to `image`. As a comparison, also yield the
    similarity to maps of the batch's other images for the same finding.
    """
    truth, towers = batch.truth, dict[str, list[Layer]](image=[], text=[])

    def measured(how: str, place: int, layer: str) -> list[_Row]:
        prediction: Any = trainer.strategy.test_step(replace(batch, condition=how), 1)
        again = _on_input(prediction, batch, model)
        return [
            (*_key(truth, pair), how, measure, place, layer, value)
            for pair in pairs
            for measure, value in similarities(maps[pair], again[pair]).items()
        ]

    for place, layer in enumerate(layers_of(model)):
        before = words_of(model)
        with redrawn(model, [layer]) as names:
            rows = [row for name in names for row in measured("independent", place, name)]
            tower = "image" if same_words(before, words_of(model)) else "text"
        towers[tower].append(layer)
        yield from ((*row[:4], f"independent: {tower}", *row[5:]) for row in rows)
    for tower, layers in towers.items():
        with redrawn(model, layers) as names:
            for place, name in enumerate(names):
                yield from measured(f"cascading: {tower}", place, name)
    for pair in pairs:
        finding, image = truth.queries[pair].finding, truth.image[pair]
        alike = [place for place, query in enumerate(truth.queries) if finding and query.finding == finding]
        others = [similarities(maps[pair], maps[place]) for place in alike if truth.image[place] != image]
        for measure in others[0] if others else ():
            known = [other[measure] for other in others if not math.isnan(other[measure])]
            value = math.fsum(known) / len(known) if known else math.nan
            yield *_key(truth, pair), "other images", measure, 0, None, value


def _on_input(prediction: Prediction, batch: Batch, model: Any) -> NDArray[np.float32]:
    """Return the maps of all pairs on the model input (P, h, w)."""
    shown: Any = prediction.shown
    size = (batch.images.shape[-2], batch.images.shape[-1])
    return maps_on_grid(shown.values.float().cpu().numpy(), FULL_VIEW, size, model.saliency_upsample)


def _key(truth: Truth, pair: int) -> tuple[int, str, str, str | None]:
    image, query = int(truth.image[pair]), truth.queries[pair]
    return int(truth.index[image]), truth.image_ids[image], query.name, query.finding
