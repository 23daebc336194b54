"""Requirements for models, one test each; the messages say what to fix."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from xbench.callbacks.evaluation import Evaluation
from xbench.data import ChestXrayDataModule, Radiograph, Record
from xbench.data.phantom import FINDINGS, Phantom, draw_phantom
from xbench.geometry.grid import upsample
from xbench.models.base import VLM, SaliencyModel, first_layer_input
from xbench.runtime.errors import UserError
from xbench.types import Batch, Maps, ModelOutput

# Separates rounding from dependence, because other batch sizes take other paths through matrix products.
_ROUNDING = 1e-3
# Where each layout of a map puts the upper left, upper right, lower left and lower right quarter.
_LOOKS = {
    "right": (0, 1, 2, 3),
    "mirrored, left for right": (1, 0, 3, 2),
    "turned upside down": (2, 3, 0, 1),
    "turned by half": (3, 2, 1, 0),
    "turned by a quarter": (1, 3, 0, 2),
    "turned back by a quarter": (2, 0, 3, 1),
    "transposed, rows for columns": (0, 2, 1, 3),
    "transposed and turned by half": (3, 1, 2, 0),
}
# A correct map that responds equally to the whole image favors no layout.
_NO_EVIDENCE = 0.5


@cache
def _draw_films() -> list[Phantom]:
    shapes = ((256, 256), (288, 224), (224, 288))
    return [draw_phantom(0, index, *shapes[index % 3]) for index in range(6)]


class _Films(ChestXrayDataModule):
    findings = FINDINGS

    def read_records(self, annotated: bool) -> Sequence[Record]:
        films = enumerate(_draw_films())
        return [Record(f"film-{at}", {one: int(one in film.masks) for one in FINDINGS}, film) for at, film in films]

    def load(self, record: Record) -> Radiograph:
        return Radiograph(record.source.image, record.source.masks)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> SaliencyModel:
    """Build the model under test."""
    name = request.config.getoption("--model", None)
    if not name:
        pytest.skip("give --model PACKAGE.CLASS")
    # `python -m xbench.cli` also finds modules in the working directory.
    sys.path.insert(0, str(Path.cwd()))
    module, _, cls = name.rpartition(".")
    built = getattr(importlib.import_module(module), cls)(**yaml.safe_load(request.config.getoption("--model-args")))
    assert isinstance(built, SaliencyModel), f"{name} must derive from xbench.models.VLM"
    return built


@pytest.fixture(scope="module")
def batch(model: SaliencyModel) -> Iterator[Batch]:
    """Four phantoms as model input, after everything that precedes the first batch of a run."""
    batches: list[Batch] = []
    trainer = _trainer(LambdaCallback(on_test_batch_start=lambda *of_run: batches.append(of_run[2])))
    with suppress(UserError):
        trainer.test(model, datamodule=_Films(limit=4, batch_size=4, num_workers=0, cache=False), verbose=False)
    model.eval()
    assert batches, "the model failed before the first batch of a run"
    # The model holds its trainer by a weak reference.
    yield batches[0]
    del trainer


@pytest.fixture(scope="module")
def output(model: SaliencyModel, batch: Batch) -> ModelOutput:
    """The model's output for all of them."""
    return _score(model, batch)


def test_prompts_are_texts(model: SaliencyModel, batch: Batch) -> None:
    """Every finding has prompts, all of them nonempty texts."""
    if not isinstance(model, VLM):
        pytest.skip("no vision-language model")
    assert len(model.prompts) == len(FINDINGS)
    assert all(model.prompts), "a finding has no prompt"
    texts = [text for of_finding in model.prompts for text in of_finding]
    assert all(isinstance(text, str) and text.strip() for text in texts), "a prompt is empty or not a text"


def test_what_goes_into_the_network_is_normalised(model: SaliencyModel, batch: Batch) -> None:
    """Input is (B, 3, h, w); mean and standard deviation fit the pixels and are applied once."""
    assert batch.images.dtype == torch.float32
    assert batch.images.shape[:2] == (len(batch), 3)
    with first_layer_input(batch) as seen:
        _score(model, batch)
    problem = model.input_problem(batch, next(iter(seen), None))
    assert problem is None, problem


def test_output_has_the_shapes_of_the_contract(batch: Batch, output: ModelOutput) -> None:
    """Logits and probabilities are (B, C), saliency (B, C, h, w), all floating-point."""
    shape = (len(batch), len(FINDINGS))
    for name, part in _parts(output):
        expected = "(B, C, rows, columns)" if name == "saliency" else "(B, C)"
        fits = part.shape[:2] == shape and part.ndim == (4 if name == "saliency" else 2)
        assert fits, (
            f"{name} has the shape {tuple(part.shape)}. For B = {shape[0]} images and C = {shape[1]} findings, in "
            f"their order, return {expected}"
        )
        assert part.is_floating_point(), f"{name} is {part.dtype}: return floating-point numbers"


def test_output_is_finite_and_probabilities_are_probabilities(output: ModelOutput) -> None:
    """No value is NaN or infinite, and no probability is outside [0, 1]."""
    for name, part in _parts(output):
        for image, finding, *_ in (~torch.isfinite(part)).nonzero()[:1].tolist():
            pytest.fail(
                f"{name} of image {image} and {FINDINGS[finding]} contain NaN or infinity, which ends a run. Look for "
                "a division by a norm, sum or range of 0 (add an epsilon), a logarithm or root of a number that is 0 "
                "or less, a softmax over only -inf, overflow of half precision, and weights that were not loaded"
            )
    outside = (output.probabilities < 0) | (output.probabilities > 1)
    for image, finding in outside.nonzero()[:1].tolist():
        pytest.fail(
            f"the probability of image {image} and {FINDINGS[finding]} is {output.probabilities[image, finding]:.4g}; "
            "values outside [0, 1] end a run. Squash the score within each finding: logits.sigmoid() for any number, "
            "(1 + cosine) / 2 for a cosine, a softmax over present and absent if the model has both"
        )


def test_maps_cover_the_input(batch: Batch, output: ModelOutput) -> None:
    """Maps are not constant, and their cells are square up to the rounding of a cell."""
    spread = output.saliency.float().flatten(2)
    assert (spread.amax(2) > spread.amin(2)).any(), (
        "every map is constant: return the similarity of each patch, or the attention to it, before any mean over "
        "patches"
    )
    height, width = batch.images.shape[2:]
    rows, columns = output.saliency.shape[2:]
    assert abs(rows - columns * height / width) <= 1 or abs(columns - rows * width / height) <= 1, (
        f"maps have {rows} x {columns} cells for inputs of {height} x {width} pixels: drop class tokens, then reshape "
        "the row of tokens into rows and columns"
    )


def test_the_map_changes_where_the_image_does(model: SaliencyModel, batch: Batch, output: ModelOutput) -> None:
    """Noise in a quarter of the input changes the map in that quarter, so the map is not turned or mirrored."""
    if not isinstance(model, VLM):
        pytest.skip("no vision-language model")
    height, width = batch.images.shape[2:]
    quarters = [
        (..., slice(row * height // 8, (row + 2) * height // 8), slice(column * width // 8, (column + 2) * width // 8))
        for row in (1, 5)
        for column in (1, 5)
    ]
    noise = torch.randn(batch.images.shape[1:], generator=torch.Generator().manual_seed(0))
    moved = []
    for quarter in quarters:
        noisy = batch.only(range(len(batch)))
        noisy.images[quarter] += 0.3 * batch.images.std() * noise[quarter]
        maps = (_score(model, noisy).saliency.float() - output.saliency.float()).abs().mean(dim=1)
        moved.append(upsample(maps, (height, width)))
    change = torch.stack([torch.stack([maps[quarter].mean(dim=(1, 2)) for quarter in quarters]) for maps in moved])
    assert (change.amax(dim=(0, 1)) > 0).all(), "noise in the image changes no map"
    # Sums of logarithms over all four quarters cancel a livelier quarter and a stronger noise.
    evidence = (change + 1e-3 * change.mean(dim=(0, 1))).log().mean(dim=2)
    looks = {look: float(sum(evidence[row, place] for row, place in enumerate(_LOOKS[look]))) for look in _LOOKS}
    likeliest = max(looks, key=lambda look: looks[look])
    assert looks[likeliest] <= looks["right"] + _NO_EVIDENCE, f"maps look {likeliest}"


def test_probabilities_rank_as_logits_do(output: ModelOutput) -> None:
    """Within a finding and a batch, a higher logit never has a lower probability."""
    order = output.logits.argsort(dim=0)
    ranked = output.probabilities.gather(0, order)
    assert (ranked.diff(dim=0) >= -1e-6).all(), (
        "probabilities must rise with the logits; a softmax over the findings breaks this and makes the AUROC of each "
        "finding depend on which others the dataset has"
    )


def test_a_batch_changes_nothing(model: SaliencyModel, batch: Batch, output: ModelOutput) -> None:
    """An image gets the same output alone and in a batch, up to rounding."""
    for index in range(len(batch)):
        single = _score(model, batch.only([index]))
        for (name, part), (_, whole) in zip(_parts(single), _parts(output), strict=True):
            expected = whole[index : index + 1].float()
            scale = float(whole.float().abs().amax()) or 1.0
            difference = float((part.float() - expected).abs().amax())
            assert difference <= _ROUNDING * scale, (
                f"{name} of image {index} differ by {difference:.3g} between alone and a batch of {len(batch)} "
                f"(rounding explains {_ROUNDING * scale:.1g}), so the score depends on other images. In `forward`, "
                "normalize, softmax and take extremes within one image and never over the first dimension, draw no "
                "random numbers, and keep batch normalization and dropout in evaluation mode"
            )


def test_the_same_again(model: SaliencyModel, batch: Batch, output: ModelOutput) -> None:
    """Two passes give the same bits, also with prompts encoded again: dropout is off and nothing is random."""

    def compare(message: str) -> None:
        for (name, part), (_, first) in zip(_parts(_score(model, batch)), _parts(output), strict=True):
            assert torch.equal(part, first), f"{name} differ {message}"

    compare("in a second pass: turn dropout off and draw no random numbers")
    if isinstance(model, VLM):
        queries = model.queries
        with torch.inference_mode():
            model.queries = model.encode_prompts(model.asked())
        try:
            compare("when prompts are encoded again: draw no random numbers in `encode_prompts`")
        finally:
            model.queries = queries


def test_nothing_is_left_of_training(model: SaliencyModel, output: ModelOutput) -> None:
    """No gradients, which take memory in every batch, and no module in training mode."""
    for name, part in _parts(output):
        assert not part.requires_grad, f"detach() the {name}"
    assert all(parameter.grad is None for parameter in model.parameters())
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    assert training == [], f"{', '.join(training[:5])} went back to training mode: do not call train() in `forward`"


@pytest.mark.parametrize("shape", [(320, 320), (400, 300), (300, 400)])
@pytest.mark.parametrize("place", [(0.35, 0.4), (0.6, 0.55)])
def test_the_view_says_where_the_input_lies(
    model: SaliencyModel, shape: tuple[int, int], place: tuple[float, float]
) -> None:
    """Preprocessing puts a bright spot where the view does, to a pixel, wherever it is."""
    height, width = shape
    film = np.full(shape, 60, np.uint8)
    y, x = round(place[0] * height), round(place[1] * width)
    film[y - 10 : y + 10, x - 10 : x + 10] = 220
    pixels, (left, top, right, bottom) = model.preprocessing(film)
    bright = (pixels[0] > (pixels[0].amax() + pixels[0].median()) / 2).nonzero().float() + 0.5
    found = bright.mean(0)
    h, w = pixels.shape[1:]
    expected = (y / height - top) / (bottom - top) * h, (x / width - left) / (right - left) * w
    assert max(abs(float(found[axis]) - expected[axis]) for axis in (0, 1)) <= 1, (
        f"the spot is at row {found[0]:.1f}, column {found[1]:.1f} of the input, and by the view at {expected[0]:.1f}, "
        f"{expected[1]:.1f}: transforms that move pixels must move keypoints too (`apply_to_keypoints`)"
    )


def test_it_runs_in_the_harness(model: SaliencyModel) -> None:
    """A complete evaluation returns every number."""
    evaluation = Evaluation()
    _trainer(evaluation).test(model, datamodule=_Films(batch_size=4, num_workers=0, cache=False), verbose=False)
    assert evaluation.results is not None
    assert evaluation.results.counts.images == 6
    assert evaluation.results.grounding.macro["pointing_game"] is not None
    assert evaluation.results.classification.macro["auroc"] is not None


def _trainer(callback: Callback) -> Trainer:
    names = ("logger", "use_distributed_sampler", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    off: dict[str, Any] = dict.fromkeys(names, False)
    return Trainer(accelerator="cpu", devices=1, callbacks=[callback], **off)


@torch.inference_mode()
def _score(model: SaliencyModel, batch: Batch) -> ModelOutput:
    output = model.score(batch)
    if isinstance(output, ModelOutput):
        return output
    parts = output.logits, output.probabilities, output.shown.values if isinstance(output.shown, Maps) else None
    assert all(part is not None for part in parts), "only models that draw maps and give scores can be tested here"
    return ModelOutput(*(part.unflatten(0, (len(batch), -1)) for part in parts if part is not None))


def _parts(output: ModelOutput) -> Iterator[tuple[str, Tensor]]:
    yield "logits", output.logits
    yield "probabilities", output.probabilities
    yield "saliency", output.saliency
