"""CLIP-style models of open_clip.

A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021. The score is
exp(logit_scale) times the cosine of the pooled image vector and the text vector. The map is by default the cosine of
each patch token of the last block with the text vector, after the patch token went through what the class token goes
through: final norm and projection. `xbench.models.components.clip_saliency` has stronger ones.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from xbench.errors import UserError
from xbench.geometry.preprocessing import CentreCrop, PillowResize, Preprocessing
from xbench.models.base import VLM, file_sha256
from xbench.models.components.clip_saliency import Saliency, check_saliency, features_and_maps
from xbench.models.components.open_clip import Loaded, activation, first_line, load
from xbench.protocol.prompts import fill_templates
from xbench.types import ModelOutput

__all__ = ["CLIP", "OpenCLIP", "ResizeMode"]

ResizeMode = Literal["shortest", "longest", "squash"]


class OpenCLIP(VLM):
    """What models of open_clip share; a subclass loads one.

    Every finding gets a pair of prompts, present and absent: its logit is the difference of the two scaled cosines,
    its probability their softmax, and its map that of the present prompt.
    """

    def __init__(
        self,
        loaded: Loaded,
        templates: tuple[str, str],
        resize_mode: ResizeMode | None,
        saliency: Saliency,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.templates = templates
        self.saliency = saliency
        self.architecture, self.pretrained, self.checkpoint = loaded.architecture, loaded.pretrained, loaded.checkpoint
        self.model = loaded.model
        check_saliency(self.model.visual, saliency, self.architecture)
        self.preprocessing = _preprocessing(self.model.visual.preprocess_cfg, resize_mode, self.architecture)
        self.image_size = self.model.visual.image_size[0]

    def default_prompts(self, finding: str) -> list[str]:
        """Return the present and the absent prompt."""
        return fill_templates(self.templates, finding)

    def word_prompts(self, finding: str, texts: Sequence[str]) -> list[str]:
        """Return the texts as prompts of the present finding, and the absent prompt last.

        Names and phrases go into the template; what says more than that stands for itself.
        """
        absent = self.default_prompts(finding)[1]
        if self.prompt_source in ("name", "phrase"):
            texts = [self.templates[0].format(finding=text) for text in texts]
        return [*texts, absent]

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode C pairs (or C single prompts) as `encode_tokens` does.

        Of more than two prompts the last is the absent one, and the mean direction of the others the present one.

        Raises:
            UserError: A prompt is too long for the model, some classes lack the absent one, or the tokeniser cannot be
                had.
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
                f"{self.architecture} reads. Shorten --model.templates, the name of the finding, or the text in "
                "--model.prompts."
            )
        counts = [len(of_finding) for of_finding in prompts]
        if {*counts} == {1}:
            return self.encode_tokens(input_ids)
        if {*counts} == {2}:
            return self.encode_tokens(input_ids.unflatten(0, (-1, 2)))
        if min(counts) < 2:
            raise UserError(f"{self.name} takes an absent prompt for every finding or for none.")
        # A file of prompts may word one finding by more texts than another.
        classes = self.encode_tokens(input_ids).split(counts)
        present = torch.stack([F.normalize(texts[:-1].mean(dim=0), dim=-1) for texts in classes])
        return torch.stack([present, torch.stack([texts[-1] for texts in classes])], dim=1)

    def queries_depend_on(self) -> dict[str, Any]:
        """Return digest and architecture of the weights, and the token ids."""
        tokens = self._tokenizer([prompt for of_finding in self.prompts for prompt in of_finding])
        return {
            "architecture": self.architecture,
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "tokens": tokens.tolist(),
        }

    def weights(self) -> Mapping[str, Tensor]:
        """Return the tensors under open_clip's names."""
        return self.model.state_dict()

    def remarks(self) -> Mapping[str, str]:
        """Return the activation, QuickGELU or GELU: with the other one the weights would fit as well."""
        return {"activation": activation(self.model)}

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode tokenised prompts.

        Args:
            input_ids: (C, L) or (C, 1, L) for one prompt per class, or (C, 2, L) for pairs of present and absent;
                int64.
            attention_mask: Same shape. open_clip derives its own mask from the padding, so this one must agree.

        Returns:
            Text vectors of unit length, (C, D) or (C, 2, D) float32: the queries of `forward`.

        Raises:
            UserError: Not one or two prompts per class, or an attention mask that open_clip cannot follow.
        """
        if input_ids.ndim == 3 and input_ids.shape[1] == 1:
            input_ids = input_ids[:, 0]
            attention_mask = None if attention_mask is None else attention_mask[:, 0]
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
            Logits and probabilities (B, C); saliency (B, C, rows, columns) of the patch grid. All float32.
        """
        present = queries[:, 0] if queries.ndim == 3 else queries
        pooled, saliency = features_and_maps(self.model, images, present, self.saliency)
        # Under autocast the products below would fall back to 16 bits, too few to rank cosines.
        with torch.autocast(images.device.type, enabled=False):
            pooled = F.normalize(pooled.float(), dim=-1)
            scale = self.model.logit_scale.float().exp()
            cosines = torch.einsum("bd,c...d->bc...", pooled, queries)
            if queries.ndim == 3:
                logits = scale * (cosines[..., 0] - cosines[..., 1])
                probabilities = torch.sigmoid(logits)
            else:
                bias = 0 if self.model.logit_bias is None else self.model.logit_bias.float()
                logits = scale * cosines + bias
                probabilities = logits.softmax(dim=1)
        return ModelOutput(logits=logits, probabilities=probabilities, saliency=saliency)

    def provenance(self) -> dict[str, Any]:
        """Return architecture, tag, weights, size, definition of the maps, and prompts."""
        return {
            "architecture": self.architecture,
            "pretrained": self.pretrained,
            "checkpoint": str(self.checkpoint),
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "image_size": self.image_size,
            "saliency": self.saliency,
            **super().provenance(),
        }

    @cached_property
    def _tokenizer(self) -> Any:
        return self._load_tokenizer()

    @abstractmethod
    def _load_tokenizer(self) -> Any:
        """Return a tokeniser of open_clip, or raise a UserError. Token ids can be encoded without."""


class CLIP(OpenCLIP):
    """A CLIP-style model of open_clip with a vision transformer as image tower.

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
        image_size: Side of the square input in pixels, a multiple of the patch size. At another size than the weights
            were trained with, the position embeddings are interpolated. By default the size of the architecture.
        saliency: Definition of the maps, see `xbench.models.components.clip_saliency`: `patch`, `maskclip`, `vv` and
            `gem` cost one pass over the image tower or little more, `grad_attention` one more token of one block per
            class, `legrad` two more blocks per class.
        **options: Those of every vision-language model, see `xbench.models.VLM`. Other `prompts` replace the present
            one; of several the mean direction counts.

    Raises:
        UserError: Unknown architecture or tag, weights that cannot be had, read or fitted, an image tower whose
            patches do not share the way of the class token, or a size or definition of maps that it does not allow.
    """

    def __init__(
        self,
        architecture: str = "ViT-B-16-quickgelu",
        pretrained: str | None = "openai",
        checkpoint: str | None = None,
        templates: tuple[str, str] = ("a chest x-ray showing {finding}", "a chest x-ray without {finding}"),
        resize_mode: ResizeMode | None = None,
        image_size: int | None = None,
        saliency: Saliency = "patch",
        **options: Any,
    ) -> None:
        loaded = load(architecture, pretrained, checkpoint, image_size)
        super().__init__(loaded, templates, resize_mode, saliency, **options)

    def _load_tokenizer(self) -> Any:
        try:
            return open_clip.get_tokenizer(self.architecture)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise UserError(
                f"The tokeniser of {self.architecture} cannot be loaded ({first_line(error)}). Without a network, put "
                "its files into one folder with the model's open_clip_config.json and give --model.architecture "
                "local-dir:FOLDER."
            ) from error


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


def _preprocessing(config: dict[str, Any], resize_mode: ResizeMode | None, architecture: str) -> Preprocessing:
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
