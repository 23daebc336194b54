"""RadZero: a sentence's similarity to each patch is the map, and weights the patches for the score.

"RadZero: Similarity-Based Cross-Attention for Explainable Vision-Language Alignment in Chest X-ray with Zero-Shot
Multi-Task Capability", NeurIPS 2025, arXiv 2504.07416. A DINOv2 trained on radiographs, with two more layers, gives the
image tokens; an MPNet gives the sentence vector. Both share a layer norm. A similarity is a cosine divided by a learned
temperature.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Dinov2Config, Dinov2Model, MPNetConfig, MPNetModel
from transformers.models.dinov2.modeling_dinov2 import Dinov2Encoder

from xbench.geometry.transforms import MinMax, PillowResize, Preprocessing
from xbench.models.base import VLM, check_image_size
from xbench.models.maps.carzero import OFFICIAL_NAMES
from xbench.models.networks.bert import encode_in_chunks, find_file, load_tokeniser, tokenise, weights_file
from xbench.models.networks.checkpoint import explained, fill, locate, read_remarks, read_tensors, undrawn
from xbench.types import MapScale, ModelOutput

_HUB = "Deepnoid/RadZero"
_PATCH, _PADDING, _TOKENS = 14, 1, 512
_VISION: dict[str, Any] = {"patch_size": _PATCH, "use_mask_token": False}
_TEXT: dict[str, Any] = {"vocab_size": 30527, "max_position_embeddings": 514, "layer_norm_eps": 1e-5}
_UNUSED = ("vision_model.embeddings.mask_token", "text_model.pooler.*", "text_model.embeddings.position_ids")
# Projections of attention: names in transformers 4, which wrote the released file, and names in transformers 5.
_ATTENTION = {f"attention.attention.{name}.": f"attention.{name[0]}_proj." for name in ("query", "key", "value")}
_ATTENTION["attention.output.dense."] = "attention.o_proj."
# Parts of the loss function in training; some names in the released file have a prefix.
_OF_LOSS = ("layer_norm.weight", "layer_norm.bias", "loss_temperature")


class RadZero(VLM):
    """RadZero. Its maps compare between images: their sigmoid is a probability for each patch.

    Args:
        checkpoint: The authors' `model.safetensors`, or a folder with it; downloaded from the Hugging Face hub by
            default.
        text_encoder: Hugging Face id or local folder with the tokenizer and `preprocessor_config.json`. By default the
            folder of the checkpoint if it has a tokenizer, otherwise the authors' repository.
        image_size: Side in pixels of the square that the radiograph is stretched to; by default the authors' (518).
        positions: Bicubic interpolation of the position embeddings from S x S to N x N patches: by the factor (N + 0.1)
            / S (`scale`), as in transformers 4.39, which trained the model, or to the size N (`size`), as in newer
            versions.
    """

    map_scale: MapScale = "logit"
    wording, called, saliency = "There is {}", OFFICIAL_NAMES, "similarity"
    stated = "checkpoint text_encoder image_size positions saliency"
    vision_model: Any
    align_transformer: Any
    text_model: Any
    layer_norm: Any

    def __init__(
        self,
        checkpoint: str | None = None,
        text_encoder: str | None = None,
        image_size: int | None = None,
        positions: Literal["scale", "size"] = "scale",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        folder = Path(checkpoint or "").expanduser()
        if checkpoint and not folder.is_dir():
            self.checkpoint = locate(checkpoint, "RadZero", f"It is in the repository {_HUB} on huggingface.co.")
            folder = self.checkpoint.parent
        else:
            self.checkpoint = weights_file(checkpoint or _HUB)
        beside = checkpoint and {"vocab.txt", "tokenizer.json"} & {file.name for file in folder.iterdir()}
        self.text_source = text_encoder or (str(folder) if beside else _HUB)
        self.settings, self.positions = _settings(self.checkpoint, self.text_source), positions
        self.image_size: int = self.settings["size"] if image_size is None else image_size
        check_image_size(self.image_size, _PATCH)
        resize = PillowResize(self.image_size, "both", self.settings["interpolation"])
        self.preprocessing = Preprocessing([MinMax(), resize], self.settings["mean"], self.settings["std"])
        tensors = read_tensors(self.checkpoint)
        for name, network in undrawn(lambda: _networks(tensors)).items():
            self.add_module(name, network)
        self.loss_temperature = nn.Parameter(torch.zeros(1))
        self._names = {_own_name(name, self.state_dict()): name for name in tensors}
        fill(self, {own: tensors[name] for own, name in self._names.items()}, self.checkpoint, "RadZero", _UNUSED)

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        tokeniser = load_tokeniser(self.text_source)
        return self.encode_tokens(*tokenise(tokeniser, self.one_of_each(prompts), _TOKENS, self.name))

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode tokenized prompts (C, L) int64 as sentence vectors (C, 768), the mean of their tokens."""
        mask = input_ids != _PADDING if attention_mask is None else attention_mask
        return encode_in_chunks(self._mean_state, input_ids.to(self.device), mask.long().to(self.device))

    def _mean_state(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.text_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        sums: Tensor = (states * attention_mask[..., None]).sum(dim=1)
        return sums / attention_mask.sum(dim=1, keepdim=True)

    def image_tokens(self, images: Tensor) -> Tensor:
        """Return DINOv2's tokens (B, 1 + rows * columns, 768) of images (B, 3, h, w), the class token first."""
        vision = self.vision_model
        tokens = [vision.embeddings.cls_token.expand(len(images), -1, -1), vision.embeddings.patch_embeddings(images)]
        positions = self._position_embeddings(images.shape[-2] // _PATCH, images.shape[-1] // _PATCH)
        return cast(Tensor, vision.layernorm(vision.encoder(torch.cat(tokens, dim=1) + positions).last_hidden_state))

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, h, w) against sentence vectors (C, 768).

        Maps (B, C, rows, columns) are similarities of patches and sentence. The logit is the similarity of the sum of
        all tokens, class token included, weighted by the softmax of their similarities.
        """
        tokens = self.align_transformer.transformer_layers(self.image_tokens(images)).last_hidden_state
        tokens, sentences = self.layer_norm(tokens), self.layer_norm(queries)
        # Under autocast the products would fall back to 16 bits, too few to rank cosines.
        with torch.autocast(images.device.type, enabled=False):
            tokens, sentences = F.normalize(tokens.float(), dim=-1), F.normalize(sentences.float(), dim=-1)
            temperature = self.loss_temperature.float().exp()
            similarities = sentences @ tokens.mT / temperature
            attended = F.normalize(similarities.softmax(dim=-1) @ tokens, dim=-1)
            logits = (attended * sentences).sum(dim=-1) / temperature
        saliency = similarities[..., 1:].unflatten(-1, (images.shape[-2] // _PATCH, -1))
        return ModelOutput(logits, logits.sigmoid(), saliency)

    def weights(self) -> Mapping[str, Tensor]:
        return {self._names[name]: tensor for name, tensor in self.state_dict().items()}

    def remarks(self) -> Mapping[str, str]:
        return {"preprocessing": json.dumps(self.settings)}

    def _position_embeddings(self, rows: int, columns: int) -> Tensor:
        stored: Tensor = self.vision_model.embeddings.position_embeddings
        side = isqrt(stored.shape[1] - 1)
        if rows == columns == side:
            return stored
        grid = stored[:, 1:].float().unflatten(1, (side, side)).permute(0, 3, 1, 2)
        factors = ((rows + 0.1) / side, (columns + 0.1) / side)
        target: Any = {"scale_factor": factors} if self.positions == "scale" else {"size": (rows, columns)}
        grid = F.interpolate(grid, mode="bicubic", **target).flatten(2).mT
        return torch.cat([stored[:, :1], grid.to(stored.dtype)], dim=1)


def _settings(checkpoint: Path, source: str) -> dict[str, Any]:
    if noted := read_remarks(checkpoint).get("preprocessing"):
        return cast(dict[str, Any], json.loads(noted))
    file = find_file(source, "preprocessor_config.json")
    with explained(f"{file} is not a preprocessor_config.json of RadZero", f"Take the file of {_HUB}."):
        found = json.loads(file.read_text(encoding="utf-8"))
        (size,) = {found["size"]["height"], found["size"]["width"]}
        interpolation = {2: "bilinear", 3: "bicubic"}[found.get("resample", 3)]
        return {"size": size, "interpolation": interpolation, "mean": found["image_mean"], "std": found["image_std"]}


def _networks(tensors: Mapping[str, Tensor]) -> nn.ModuleDict:
    stored = tensors.get("vision_model.embeddings.position_embeddings", torch.empty(1, 257, 0))
    vision = Dinov2Model(Dinov2Config(**_VISION, image_size=_PATCH * isqrt(stored.shape[1] - 1)))
    align = Dinov2Encoder(Dinov2Config(**_VISION | {"num_hidden_layers": 2}))
    text = MPNetModel(MPNetConfig(**_TEXT), add_pooling_layer=False)
    networks = {"vision_model": vision, "text_model": text, "layer_norm": nn.LayerNorm(vision.config.hidden_size)}
    return nn.ModuleDict({**networks, "align_transformer": nn.ModuleDict({"transformer_layers": align})})


def _own_name(name: str, known: Collection[str]) -> str:
    for old, new in _ATTENTION.items():
        name = next((own for own in (name.replace(old, new), name.replace(new, old)) if own in known), name)
    return next((own for own in _OF_LOSS if name.endswith(own)), name)
