"""Checks of a run: all batches, and usable outputs."""

from __future__ import annotations

import numpy as np
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray

from xbench.runtime.errors import UsageError, UserError
from xbench.types import Maps, Prediction, Truth


def check_no_limit(trainer: Trainer, stage: str) -> None:
    """Raise a UsageError if the trainer limits the batches of a stage, `test` or `predict`."""
    limit = getattr(trainer, f"limit_{stage}_batches")
    # The integer 1 means one batch, the float 1.0 all of them.
    if repr(limit) != "1.0":
        raise UsageError(
            f"--trainer.limit_{stage}_batches {limit} (also set by --trainer.fast_dev_run) limits each process "
            "separately and silently omits images: use --data.limit N for the first N images."
        )


def check_values(
    logits: NDArray[np.float64],
    probabilities: NDArray[np.float64],
    finite: NDArray[np.bool_],
    truth: Truth,
    model: str,
    given: tuple[bool, bool] = (True, True),
) -> None:
    """Raise a UserError that names the image if a prediction cannot be scored.

    This happens if a value is not finite, a map does not fit float32 (`finite` (P,) is false), or a probability lies
    outside [0, 1]. `given` states whether the model returned logits and probabilities; missing ones are NaN.
    """
    for is_given, fine, what in (
        (given[0], np.isfinite(logits), "NaN or infinity among the logits"),
        (given[1], np.isfinite(probabilities), "NaN or infinity among the probabilities"),
        (given[1], (probabilities >= 0) & (probabilities <= 1), "a probability outside [0, 1]"),
        (True, finite, "NaN, infinity or a range beyond float32 in the saliency map"),
    ):
        if is_given and not fine.all():
            pair = int(fine.argmin())
            about = f"image {truth.image_ids[truth.image[pair]]}, finding {truth.queries[pair].name}"
            raise UserError(
                f"{model}: {what} for {about}. This output cannot be scored: check the checkpoint and the image, "
                "or try --trainer.precision 32-true."
            )


def check_output(prediction: Prediction, truth: Truth, model: str) -> None:
    """Check maps that are not measured; see `check_values`."""
    if not isinstance(prediction.shown, Maps):
        raise UserError(f"{model} returned no saliency maps, so `predict` has nothing to write: use `test`.")
    # Maps are stored in float32; differences between pixels must fit as well.
    maps = prediction.shown.values.to(torch.float32).flatten(1)
    finite = (maps.amax(1) - maps.amin(1)).isfinite()
    logits, probabilities = (scores.double().cpu().numpy() for scores in prediction.scores(len(maps)))
    check_values(logits, probabilities, finite.cpu().numpy(), truth, model, prediction.given)
