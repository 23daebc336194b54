"""What the harness asks of a model's output before it is scored."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from xbench.errors import UserError
from xbench.types import Batch, ModelOutput


def check_output(output: ModelOutput, batch: Batch, model: str, findings: Sequence[str]) -> None:
    """Refuse an output that cannot be scored.

    Args:
        output: What the model returned for the batch.
        batch: B images.
        model: Name of the model.
        findings: Names of the C findings.

    Raises:
        UserError: A shape is wrong, a value is not finite, or a probability lies outside [0, 1]; names the image.
    """
    expected = (len(batch), len(findings))
    shapes = {name: tuple(getattr(output, name).shape) for name in ("logits", "probabilities", "saliency")}
    if not (shapes["logits"] == shapes["probabilities"] == shapes["saliency"][:2] == expected) or (
        len(shapes["saliency"]) != 4
    ):
        raise UserError(
            f"{model}: for {expected[0]} images and {expected[1]} findings, logits and probabilities must be "
            f"{expected} and saliency {expected} + (h, w), but the model returned "
            f"{', '.join(f'{name} {shape}' for name, shape in shapes.items())}."
        )
    for name in ("logits", "probabilities", "saliency"):
        values: Tensor = getattr(output, name)
        finite = values.isfinite().flatten(2).all(2) if values.ndim > 2 else values.isfinite()
        _refuse(~finite, f"NaN or infinity among the {name}", batch, model, findings)
    outside = (output.probabilities < 0) | (output.probabilities > 1)
    _refuse(outside, "a probability lies outside [0, 1]", batch, model, findings)


def _refuse(wrong: Tensor, what: str, batch: Batch, model: str, findings: Sequence[str]) -> None:
    if not wrong.any():
        return
    row, column = wrong.nonzero()[0].tolist()
    raise UserError(
        f"{model}: {what} for image {batch.image_ids[row]}, finding {findings[column]}. Such an output cannot be "
        "scored: check the checkpoint and the image, and try --trainer.precision 32-true."
    )
