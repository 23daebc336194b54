"""CLIP-style models of open_clip, with plain dense patch-text similarity as saliency.

A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021. The score is
exp(logit_scale) times the cosine of the pooled image vector and the text vector. The map is the cosine of each patch
token of the last block with the text vector, after the patch token went through what the class token goes through:
final norm and projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from open_clip.timm_model import TimmModel
from torch import Tensor

from xbench.errors import UserError
from xbench.models._open_clip import first_line, load
from xbench.models.base import VLM, file_sha256
from xbench.preprocessing import CentreCrop, PillowResize, Preprocessing
from xbench.prompts import fill_templates
from xbench.types import ModelOutput

__all__ = ["CLIP"]


class CLIP(VLM):
    """A CLIP-style model of open_clip with a vision transformer as image tower.

    Every finding gets a pair of prompts, present and absent: its logit is the difference of the two scaled cosines,
    its probability their softmax, and its map the cosine of the patches with the present prompt.

    Args:
        architecture: open_clip's name of the model. OpenAI, MetaCLIP and DFN weights need the one with `-quickgelu`.
            `local-dir:FOLDER` and `hf-hub:ORGANISATION/NAME` take configuration, weights and tokeniser from a folder or
            from the Hugging Face hub.
        pretrained: open_clip's tag of the weights. Left aside with `checkpoint`, `local-dir:` and `hf-hub:`.
        checkpoint: File of weights to load instead (.safetensors, .pt, .pth or .bin). open_clip's default mean,
            standard deviation and resizing go with it, unless the architecture is a `local-dir:` or `hf-hub:` one.
        templates: Present and absent prompt, each with `{finding}`.
        resize_mode: `shortest` resizes the shorter side and crops the rest of the longer one away, `longest` resizes
            the longer side and pads with black, `squash` stretches. By default what the weights were trained with.

    Raises:
        UserError: Unknown architecture or tag, weights that cannot be had, read or fitted, or an image tower whose
            patches do not share the way of the class token.
    """

    def __init__(
        self,
        architecture: str = "ViT-B-16-quickgelu",
        pretrained: str | None = "openai",
        checkpoint: str | None = None,
        templates: tuple[str, str] = ("a chest x-ray showing {finding}", "a chest x-ray without {finding}"),
        resize_mode: Literal["shortest", "longest", "squash"] | None = None,
    ) -> None:
        super().__init__()
        self.templates = templates
        loaded = load(architecture, pretrained, checkpoint)
        self.architecture, self.pretrained, self.checkpoint = loaded.architecture, loaded.pretrained, loaded.checkpoint
        self.model = loaded.model
        self.preprocessing = _preprocessing(self.model.visual.preprocess_cfg, resize_mode, self.architecture)

    def default_prompts(self, finding: str) -> list[str]:
        """Return the present and the absent prompt."""
        return fill_templates(self.templates, finding)

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode C pairs (or C single prompts) as `encode_tokens` does.

        Raises:
            UserError: A prompt is too long for the model, or the tokeniser cannot be had.
        """
        flat = [prompt for of_finding in prompts for prompt in of_finding]
        length = self._tokenizer.context_length
        input_ids = self._tokenizer(flat)
        # open_clip cuts long prompts off without a word. With twice the room a prompt that fits gains padding alone.
        unhurried = self._tokenizer(flat, context_length=2 * length)
        padding = self._tokenizer([""], context_length=2 * length).mode().values
        cut = (unhurried != padding).sum(dim=1) != (input_ids != padding).sum(dim=1)
        if cut.any():
            raise UserError(
                f"The prompt {flat[int(cut.int().argmax())]!r} is longer than the {length} tokens that "
                f"{self.architecture} reads. Shorten --model.templates or the name of the finding."
            )
        return self.encode_tokens(input_ids.unflatten(0, (len(prompts), -1)).squeeze(1))

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode tokenised prompts.

        Args:
            input_ids: (C, L) for one prompt per class, or (C, 2, L) for pairs of present and absent; int64.
            attention_mask: Same shape. open_clip derives its own mask from the padding, so this one must agree.

        Returns:
            Text vectors of unit length, (C, D) or (C, 2, D) float32: the queries of `forward`.

        Raises:
            UserError: Not one or two prompts per class, or an attention mask that open_clip cannot follow.
        """
        if input_ids.ndim not in (2, 3) or (input_ids.ndim == 3 and input_ids.shape[1] != 2):
            raise UserError(
                f"{self.name} takes one prompt per class (C, L) or a pair of present and absent (C, 2, L), got token "
                f"ids of shape {tuple(input_ids.shape)}. Give two --model.templates."
            )
        config = getattr(getattr(self.model, "text", None), "config", None)
        if attention_mask is not None and config is not None:
            followed = input_ids != config.pad_token_id
            if not torch.equal(attention_mask.bool(), followed):
                raise UserError(
                    f"{self.name} reads every token but padding (id {config.pad_token_id}), and the attention mask "
                    "says otherwise. Leave the mask out or pad with that id."
                )
        features = self.model.encode_text(input_ids.flatten(0, -2).to(self.device))
        return F.normalize(features.float(), dim=-1).unflatten(0, input_ids.shape[:-1])

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score images against text vectors.

        Args:
            images: (B, 3, h, w) float, normalised.
            queries: From `encode_tokens`. For pairs (C, 2, D), a class is scored against its own absent prompt; for
                single prompts (C, D), the probabilities are the softmax over the C classes, as in the CLIP paper.

        Returns:
            Logits and probabilities (B, C); saliency (B, C, rows, columns) of the patch grid, cosines. All float32.
        """
        seen = self.model.forward_intermediates(
            image=images, image_indices=1, normalize_intermediates=True, normalize=False
        )
        patches = self._project(seen["image_intermediates"][0].permute(0, 2, 3, 1))
        # Under autocast the products below would fall back to 16 bits, too few to rank cosines.
        with torch.autocast(images.device.type, enabled=False):
            pooled = F.normalize(seen["image_features"].float(), dim=-1)
            patches = F.normalize(patches.float(), dim=-1)
            scale = self.model.logit_scale.float().exp()
            cosines = torch.einsum("bd,c...d->bc...", pooled, queries)
            if queries.ndim == 3:
                logits = scale * (cosines[..., 0] - cosines[..., 1])
                probabilities = torch.sigmoid(logits)
            else:
                bias = 0 if self.model.logit_bias is None else self.model.logit_bias.float()
                logits = scale * cosines + bias
                probabilities = logits.softmax(dim=1)
            present = queries[:, 0] if queries.ndim == 3 else queries
            saliency = torch.einsum("bhwd,cd->bchw", patches, present)
        return ModelOutput(logits=logits, probabilities=probabilities, saliency=saliency)

    def provenance(self) -> dict[str, Any]:
        """Return architecture, tag, weights and prompts."""
        return {
            "architecture": self.architecture,
            "pretrained": self.pretrained,
            "checkpoint": str(self.checkpoint),
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "saliency": "patch",
            **super().provenance(),
        }

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            return open_clip.get_tokenizer(self.architecture)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise UserError(
                f"The tokeniser of {self.architecture} cannot be loaded ({first_line(error)}). Without a network, put "
                "its files into one folder with the model's open_clip_config.json and give --model.architecture "
                "local-dir:FOLDER."
            ) from error

    def _project(self, tokens: Tensor) -> Tensor:
        """Send normed tokens (..., width) the way of the class token to the joint space (..., D)."""
        visual = self.model.visual
        if isinstance(visual, TimmModel):
            return visual.head(visual.trunk.head(visual.trunk.fc_norm(tokens)))
        return tokens @ visual.proj


class _FitInSquare(PillowResize):
    """Resize the longer side and pad the shorter one evenly, as open_clip does in its mode `longest`."""

    def __init__(self, size: int, interpolation: Literal["bilinear", "bicubic"], fill: int) -> None:
        super().__init__(size, "longest", interpolation)
        self.fill = fill

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        top, left = self._offset(img.shape)
        resized = super().apply(img, **params)
        square = np.full((self.size, self.size), self.fill, np.uint8)
        square[top : top + resized.shape[0], left : left + resized.shape[1]] = resized
        return square

    def apply_to_keypoints(self, keypoints: NDArray[np.float32], **params: Any) -> NDArray[np.float32]:
        top, left = self._offset(params["shape"])
        moved = super().apply_to_keypoints(keypoints, **params)
        moved[:, 0] += left
        moved[:, 1] += top
        return moved

    def _target(self, shape: Sequence[int]) -> tuple[int, int]:
        ratio = max(shape[:2]) / self.size
        # Here open_clip rounds; for `shortest` it follows torchvision, which truncates.
        return round(shape[0] / ratio), round(shape[1] / ratio)

    def _offset(self, shape: Sequence[int]) -> tuple[int, int]:
        height, width = self._target(shape)
        return (self.size - height) // 2, (self.size - width) // 2


def _preprocessing(config: dict[str, Any], resize_mode: str | None, architecture: str) -> Preprocessing:
    """Say in our terms what open_clip's evaluation transform does with `preprocess_cfg`."""
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise UserError(f"{architecture} takes images of {height} x {width} pixels; only square inputs are supported.")
    interpolation: Literal["bilinear", "bicubic"] = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
    geometries: dict[str, list[PillowResize | CentreCrop]] = {
        "shortest": [PillowResize(height, "shortest", interpolation), CentreCrop(height)],
        "longest": [_FitInSquare(height, interpolation, config["fill_color"])],
        "squash": [PillowResize(height, "both", interpolation)],
    }
    return Preprocessing(geometries[resize_mode or config["resize_mode"]], config["mean"], config["std"])
