"""What must be so for the numbers of a run to be right: outputs that can be scored, each image exactly once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray

from xbench.runtime.errors import UsageError, UserError
from xbench.types import Maps, Prediction, Truth


def check_no_limit(trainer: Trainer, stage: str) -> None:
    """Refuse the trainer's limit on the batches of a stage, `test` or `predict`."""
    limit = getattr(trainer, f"limit_{stage}_batches")
    # The integer 1 means one batch, the fraction 1.0 all of them.
    if repr(limit) != "1.0":
        raise UsageError(
            f"--trainer.limit_{stage}_batches {limit} (also set by --trainer.fast_dev_run) limits each process by "
            "itself and leaves images out without a trace: use --data.limit N for the first N images."
        )


def check_each_once(positions: Sequence[int], count: int) -> None:
    """Prove that the processes of a run did each of `count` images exactly once, or raise a RuntimeError.

    `positions` are those of the images that were done or could not be read, in any order.
    """
    if sorted(positions) != list(range(count)):
        raise RuntimeError(
            f"{count} images were to be done once each, but {len(positions)} were, {len({*positions})} of them "
            "different. Set use_distributed_sampler to false and let the data module deal the batches."
        )


def check_values(
    logits: NDArray[np.float64],
    probabilities: NDArray[np.float64],
    finite: NDArray[np.bool_],
    truth: Truth,
    model: str,
    given: tuple[bool, bool] = (True, True),
) -> None:
    """Refuse a prediction that cannot be scored, by a UserError that names the image.

    That is one where a value is not finite, a map does not fit float32 (`finite` (P,) is false), or a probability
    lies outside [0, 1]. `given` tells whether the model returned logits, and whether probabilities; others are NaN.
    """
    # NaN compares as false.
    for is_given, fine, what in (
        (given[0], np.isfinite(logits), "NaN or infinity among the logits"),
        (given[1], np.isfinite(probabilities), "NaN or infinity among the probabilities"),
        (given[1], (probabilities >= 0) & (probabilities <= 1), "a probability lies outside [0, 1]"),
        (True, finite, "NaN, infinity or a range beyond float32 among the saliency"),
    ):
        if is_given and not fine.all():
            pair = int(fine.argmin())
            about = f"image {truth.image_ids[truth.image[pair]]}, finding {truth.queries[pair].name}"
            raise UserError(
                f"{model}: {what} for {about}. Such an output cannot be scored: check the checkpoint and the image, "
                "and try --trainer.precision 32-true."
            )


def check_output(prediction: Prediction, truth: Truth, model: str) -> None:
    """Refuse maps as `check_values` does, where they are not measured."""
    if not isinstance(prediction.shown, Maps):
        raise UserError(f"{model} returned no saliency maps, and `predict` writes nothing else: use `test`.")
    # Maps as they are kept, in float32; the differences between their pixels must fit as well.
    maps = prediction.shown.values.to(torch.float32).flatten(1)
    finite = (maps.amax(1) - maps.amin(1)).isfinite()
    logits, probabilities = (scores.double().cpu().numpy() for scores in prediction.scores(len(maps)))
    check_values(logits, probabilities, finite.cpu().numpy(), truth, model, prediction.given)
