"""Dual encoders of Hugging Face transformers: any SigLIP or CLIP, such as MedSigLIP and XraySigLIP.

SigLIP (X. Zhai et al., "Sigmoid Loss for Language Image Pre-Training", ICCV 2023) has no class token: a learned probe
attends to the patches. Its map is LeGrad (W. Bousselham et al., "LeGrad: An Explainability Method for Vision
Transformers via Feature Formation Sensitivity", ICCV 2025), as in the authors' code for this head.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import albumentations as A
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from xbench.geometry.transforms import PillowResize, Preprocessing, TensorResize
from xbench.models.base import check_at_least_one, check_image_size
from xbench.models.networks.bert import find_file, load_tokeniser, parse_sentencepiece, tokenise, weights_file
from xbench.models.networks.checkpoint import explained, fill, read_tensors, undrawn
from xbench.models.networks.dual_encoder import DualEncoder, compare, cosine_maps
from xbench.runtime.errors import UsageError, UserError
from xbench.types import ModelOutput

Saliency = Literal["patch", "legrad", "legrad_corrected", "value"]
_MAPS: dict[str, tuple[Saliency, ...]] = {"siglip": ("legrad", "legrad_corrected", "value"), "clip": ("patch",)}


class HFDual(DualEncoder):
    """A SigLIP or CLIP of Hugging Face transformers, with the tokenizer and image settings of its repository.

    Args:
        checkpoint: Folder from `hf download`, the file of weights in one, or a name on the Hugging Face hub.
        title: Short name of the model in results and run folders.
        templates: Present and absent prompt, each with `{finding}`.
        pairs: Whether the probability is the softmax with the absent prompt, a CLIP's default, or else SigLIP's
            sigmoid.
        saliency: CLIP: `patch`, the cosine of each patch after final norm and projection. SigLIP: `legrad`;
            `legrad_corrected`, the default of the authors' code, which zeroes cells where "a photo of a" exceeds 0.8 of
            its range, then stretches each map to [0, 1]; `value`, unpublished, the cosine of each patch sent alone
            through the pooling head.
        legrad_blocks: Number of last blocks that LeGrad sums over.
        legrad_norm: Whether to apply the final norm before the pooling head, as in the model. LeGrad's code omits it.
        image_size: Side of the square input in pixels, by default that of training. Positions are interpolated.
        resize: `file` follows preprocessor_config.json; `tensorflow` is bilinear without antialiasing, as in MedSigLIP.
    """

    name, stated, checkpoint_part = "hf", "kind pairs image_size saliency", "model"

    def __init__(
        self,
        checkpoint: str | None = None,
        title: str | None = None,
        templates: tuple[str, str] = ("a chest x-ray showing {finding}", "a chest x-ray without {finding}"),
        pairs: bool | None = None,
        saliency: Saliency | None = None,
        legrad_blocks: int = 2,
        legrad_norm: bool = False,
        image_size: int | None = None,
        resize: Literal["file", "tensorflow"] = "file",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_at_least_one(legrad_blocks=legrad_blocks)
        if not checkpoint:
            example = "StanfordAIMI/XraySigLIP__vit-b-16-siglip-512__webli"
            raise UsageError(f"Give --model.checkpoint a folder or a name on the Hugging Face hub, such as {example}.")
        file = Path(checkpoint).expanduser()
        self.source = str(file.parent) if file.is_file() else checkpoint
        config = self._settings("config.json")
        self.kind = str(config.get("model_type"))
        if self.kind not in _MAPS:
            raise UserError(f"--model.checkpoint {checkpoint} is of type {self.kind}. Give a siglip or clip model.")
        self.name = title or self.name
        self.pairs = self.kind == "clip" if pairs is None else pairs
        self.templates = [templates[0]], [templates[1]] if self.pairs else []
        self.saliency = saliency or _MAPS[self.kind][0]
        if self.saliency not in _MAPS[self.kind]:
            raise UsageError(f"--model.saliency {saliency}: give a {self.kind} model {' or '.join(_MAPS[self.kind])}.")
        self.map_scale = "none" if self.saliency.startswith("legrad") else "cosine"
        self.exploratory = "no paper describes them" if self.saliency == "value" else ""
        self._legrad = legrad_blocks, legrad_norm
        family = "Siglip" if self.kind == "siglip" else "CLIP"
        with explained(f"The settings of {checkpoint} are not those of a {self.kind} model", "Fetch them again."):
            settings = getattr(transformers, f"{family}Config")(**config)
            # Always in float32, regardless of the settings.
            self.model: Any = undrawn(lambda: getattr(transformers, f"{family}Model")(settings)).float()
            of_images = self._settings("preprocessor_config.json")
            processor = getattr(transformers, f"{family}ImageProcessor").from_dict(of_images)
            self.image_size: int = settings.vision_config.image_size if image_size is None else image_size
            self.preprocessing = preprocessing(processor, self.image_size, resize == "tensorflow")
        check_image_size(self.image_size, settings.vision_config.patch_size)
        for tower in (self.model.text_model, self.model.vision_model):
            tower.embeddings.position_ids.copy_(torch.arange(tower.embeddings.position_ids.shape[1])[None])
        self.checkpoint = file if file.is_file() else weights_file(self.source, "checkpoint")
        network, tensors = f"the {self.kind} model of config.json", read_tensors(self.checkpoint)
        advice = "Give --model.checkpoint a folder whose files belong together."
        fill(self.model, tensors, self.checkpoint, network, ("*.embeddings.position_ids",), advice)
        if not self.pairs and not getattr(self.model, "logit_bias", None):
            raise UserError(
                f"--model.checkpoint {checkpoint} has no logit_bias, or a logit_bias of 0, so the sigmoid of a single "
                "prompt is not a probability. Give --model.pairs true."
            )

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        if self.kind == "siglip":
            # Like SigLIP's tokenizer: lower case, no punctuation, single spaces.
            plain = str.maketrans("", "", string.punctuation)
            texts = [" ".join(text.lower().translate(plain).split()) for text in texts]
        length = self.model.config.text_config.max_position_embeddings
        return self.encode_tokens(tokenise(self._tokenizer, texts, length, self.name)[0])

    @torch.no_grad()
    def encode_tokens(self, input_ids: Tensor) -> Tensor:
        """Encode token ids (N, L) int64, padded to full length for SigLIP, as unit vectors (N, D) float32."""
        return F.normalize(self.model.get_text_features(input_ids.to(self.device)).pooler_output.float(), dim=-1)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, h, w) against text vectors, pairs (C, 2, D) or (C, D).

        Without pairs, probabilities are sigmoids for a SigLIP, and the softmax over the C classes for a CLIP.
        """
        model, vision = self.model, self.model.vision_model
        text, grid = queries[:, 0] if queries.ndim == 3 else queries, (images.shape[-2] // vision.config.patch_size, -1)
        seen = vision(images, interpolate_pos_encoding=True, output_hidden_states="legrad" in self.saliency)
        pooled, tokens = seen.pooler_output, seen.last_hidden_state
        if self.kind == "clip":
            pooled, patches = model.visual_projection(pooled), vision.post_layernorm(tokens[:, 1:])
            maps = cosine_maps(model.visual_projection(patches).unflatten(1, grid), text)
        elif self.saliency == "value":
            maps = cosine_maps(_pool(vision.head, _attend(vision.head, tokens)[1]).unflatten(1, grid), text)
        else:
            maps = self._relevance(seen.hidden_states, text).unflatten(-1, grid)
        logits = model.logit_scale.float().exp() * compare(pooled, queries)
        if queries.ndim == 2 and self.kind == "clip":
            return ModelOutput(logits, logits.softmax(dim=1), maps)
        logits = logits if queries.ndim == 3 else logits + model.logit_bias.float()
        return ModelOutput(logits, torch.sigmoid(logits), maps)

    @cached_property
    def empty(self) -> Tensor:
        return self.encode_texts(["a photo of a"])

    def _relevance(self, states: Sequence[Tensor], text: Tensor) -> Tensor:
        """Sum LeGrad's maps (B, C, N) over the last of the states (B, N, width) after the blocks."""
        (count, norm), vision = self._legrad, self.model.vision_model
        corrected = self.saliency == "legrad_corrected"
        maps = torch.zeros((), device=text.device)
        # The test loop disables gradients; autocast would lower their precision.
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(text.device.type, enabled=False):
            text = torch.cat([text, self.empty.to(text.device)]) if corrected else text.clone()
            for state in states[-count:]:
                state = state.to(vision.head.probe.dtype, copy=True)
                maps = maps + _legrad(vision.head, vision.post_layernorm(state) if norm else state, text)
        if corrected:
            maps = _stretched(maps[:, :-1].masked_fill(_stretched(maps[:, -1:]) > 0.8, 0))
        return maps

    def _settings(self, name: str) -> dict[str, Any]:
        file = find_file(self.source, name, option="checkpoint")
        with explained(f"{file} cannot be read", "Fetch it again."):
            return dict(json.loads(file.read_text(encoding="utf-8")))

    @cached_property
    def _tokenizer(self) -> Any:
        if self.kind == "clip":
            return load_tokeniser(self.source, "checkpoint")
        # SigLIP's own class needs the SentencePiece library; T5's has the same rules.
        model = parse_sentencepiece(find_file(self.source, "spiece.model", option="checkpoint"), "Fetch it again.")
        rules = {"_spm_precompiled_charsmap": model.normalizer_spec.precompiled_charsmap or None, "extra_ids": 0}
        pieces = [(piece.piece, piece.score) for piece in model.pieces]
        return transformers.T5Tokenizer(pieces, pad_token="</s>", **rules)


def preprocessing(processor: Any, side: int, tensorflow: bool) -> Preprocessing:
    """Return the steps of an image processor of transformers, for a square input of `side` pixels."""
    size, crop = processor.size, processor.crop_size if getattr(processor, "do_center_crop", None) else None
    interpolation: Any = {1: "lanczos", 2: "bilinear", 3: "bicubic"}[processor.resample]
    geometry: list[A.BasicTransform] = [PillowResize(side, "both", interpolation)]
    if tensorflow:
        geometry = [TensorResize(side, "bilinear", whole=True)]
    elif size.shortest_edge:
        shorter = round(side * size.shortest_edge / crop.height) if crop else side
        geometry = [PillowResize(shorter, "shortest", interpolation), A.CenterCrop(side, side)]
    return Preprocessing(geometry, processor.image_mean, processor.image_std)


def _attend(head: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the probe of a pooling head attends to in tokens (B, N, width), and their values (B, heads, N, d)."""
    own, inputs = head.attention, (head.probe.expand(len(tokens), -1, -1), tokens, tokens)
    parts = zip(inputs, own.in_proj_weight.chunk(3), own.in_proj_bias.chunk(3), strict=True)
    queries, keys, values = (F.linear(*part).unflatten(-1, (own.num_heads, -1)).transpose(1, 2) for part in parts)
    return F.scaled_dot_product_attention(queries, keys, values), values


def _pool(head: Any, received: Tensor) -> Tensor:
    """Send attended tokens (..., heads, N, d) through the rest of the pooling head to vectors (..., N, width)."""
    joined = head.attention.out_proj(received.transpose(-3, -2).flatten(-2))
    return joined + head.mlp(head.layernorm(joined))  # type: ignore[no-any-return]


def _legrad(head: Any, tokens: Tensor, text: Tensor) -> Tensor:
    """Return the positive gradients of the cosines by the probe's attention, averaged over heads, (B, C, N).

    The gradient of a token's weight is the gradient of the attended vector times the token's value.
    """
    received, values = _attend(head, tokens)
    # One copy of the attended vector per text, so that a single backward gives all gradients.
    received = received.expand(len(text), *received.shape).detach().requires_grad_()
    vectors = F.normalize(_pool(head, received).squeeze(-2).float(), dim=-1)
    (gradient,) = torch.autograd.grad((vectors * text[:, None]).sum(), received)
    return (gradient @ values.detach().mT).float().clamp(min=0).mean(dim=2).squeeze(-2).transpose(0, 1)


def _stretched(maps: Tensor) -> Tensor:
    low, high = maps.amin(-1, keepdim=True), maps.amax(-1, keepdim=True)
    return (maps - low) / (high - low).clamp(min=torch.finfo(maps.dtype).tiny)
