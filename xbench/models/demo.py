"""The demo model: a tiny CLIP-style network, trained by `scripts/train_demo_model.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from xbench.findings.prompts import fill_templates
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models.base import VLM, check_image_size
from xbench.runtime.digests import file_sha256
from xbench.types import ModelOutput

_WEIGHTS = Path(__file__).parent / "weights"
_DEMO_WEIGHTS = _WEIGHTS / "demo.safetensors"
# Only the tensors that differ from the demo's.
_SHORTCUT_WEIGHTS = _WEIGHTS / "demo_shortcut.safetensors"
_PATCH = 8


class Demo(VLM):
    """A two-tower network of 0.7 million weights, trained on phantoms and sentences without annotations.

    It shows what xbench does without a download. On other images its scores mean nothing.

    Args:
        template: The prompt, with `{finding}`.
        image_size: Side of the input in pixels, a multiple of 8; 224 in training.
        shortcut: Use weights that recognize fractures by the letter that `--data.marker Fracture` draws.
    """

    map_scale = "cosine"
    stated = "image_size shortcut"

    def __init__(
        self, template: str = "There is {finding}.", image_size: int = 224, shortcut: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        check_image_size(image_size, _PATCH)
        self.template = template
        self.image_size, self.shortcut = image_size, shortcut
        self.network = DemoNetwork.trained(shortcut).requires_grad_(False)
        self.tokenizer = Tokenizer.from_file(str(_WEIGHTS / "demo_tokenizer.json"))
        self.preprocessing = Preprocessing(stretch((image_size, image_size)), mean=(0.5,) * 3, std=(0.25,) * 3)

    def default_prompts(self, finding: str) -> list[str]:
        return fill_templates([self.template], finding)

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        encoded = self.tokenizer.encode_batch(self.one_of_each(prompts))
        ids, mask = zip(*((tokens.ids, tokens.attention_mask) for tokens in encoded), strict=True)
        return self.encode_tokens(torch.tensor(ids), torch.tensor(mask))

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode token ids (C, L) and their mask (C, L), 1 for words and 0 for padding, as unit vectors (C, D)."""
        return self.network.encode_text(input_ids.to(self.device), attention_mask.to(self.device))

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        logits, saliency = self.network(images, queries)
        return ModelOutput(logits=logits, probabilities=torch.sigmoid(logits), saliency=saliency)

    def provenance(self) -> dict[str, Any]:
        file = _SHORTCUT_WEIGHTS if self.shortcut else _DEMO_WEIGHTS
        return {**super().provenance(), "checkpoint_sha256": file_sha256(file)}


class DemoNetwork(nn.Module):
    """A CLIP-style network; the joint space has D = 96 dimensions.

    The logit is `log mean exp(scale * s) + bias` over the cosines s (h, w) of patches and sentence, which are the map.
    """

    def __init__(self, vocabulary: int = 320) -> None:
        super().__init__()
        self.image_tower = nn.Sequential(
            _convolution(1, 16, stride=2),
            _convolution(16, 48, stride=2),
            _Residual(48),
            # Padding on one side only centers patch i on pixel 8 i + 4, the middle of its pixels.
            nn.ZeroPad2d((0, 1, 0, 1)),
            _convolution(48, 96, stride=2, padding=0),
            _Residual(96),
            _Residual(96, dilation=2),
            _Residual(96, dilation=3),
            nn.Conv2d(96, 96, 1),
        )
        self.text_tower = _TextTower(vocabulary)
        self.log_scale = nn.Parameter(torch.tensor(12.0).log())
        self.bias = nn.Parameter(torch.tensor(-4.0))

    def encode_image(self, images: Tensor) -> Tensor:
        """Encode normalized images (B, 3, H, W) as unit vectors (B, D, H / 8, W / 8)."""
        return F.normalize(self.image_tower(images.mean(1, keepdim=True)).float(), dim=1)

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode sentences, token ids and mask (C, L) int64, as unit vectors (C, D)."""
        return F.normalize(self.text_tower(input_ids, attention_mask).float(), dim=-1)

    @classmethod
    def trained(cls, shortcut: bool = False) -> DemoNetwork:
        weights = load_file(_DEMO_WEIGHTS) | (load_file(_SHORTCUT_WEIGHTS) if shortcut else {})
        network = cls(vocabulary=len(weights["text_tower.tokens.weight"]))
        network.load_state_dict(weights, strict=True)
        return network.eval()

    def forward(self, images: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        return self.score(self.encode_image(images), text)

    def score(self, patches: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        saliency = torch.einsum("bdhw,cd->bchw", patches, text)
        scaled = (self.log_scale.exp() * saliency).flatten(2)
        logits = scaled.logsumexp(-1) - math.log(scaled.shape[-1]) + self.bias
        return logits, saliency


def _convolution(channels: int, out: int, stride: int = 1, dilation: int = 1, padding: int | None = None) -> nn.Module:
    kernel = 5 if channels == 1 else 3
    padding = dilation * (kernel // 2) if padding is None else padding
    layer = nn.Conv2d(channels, out, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out), nn.ReLU())


class _Residual(nn.Module):
    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.first = _convolution(channels, channels, dilation=dilation)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, features: Tensor) -> Tensor:
        return F.relu(features + self.second(self.first(features)))


class _TextTower(nn.Module):
    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(48, width))
        self.blocks = nn.ModuleList(_TextBlock(width, heads=4) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, 96)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.tokens(input_ids) + self.positions[: input_ids.shape[1]]
        visible = attention_mask.bool()
        for block in self.blocks:
            states = block(states, visible)
        weights = attention_mask.to(states.dtype)[..., None]
        return cast(Tensor, self.projection((self.norm(states) * weights).sum(1) / weights.sum(1).clamp(min=1)))


class _TextBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, states: Tensor, visible: Tensor) -> Tensor:
        count, length, width = states.shape
        packed = self.query_key_value(self.norm_in(states)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible[:, None, None, :])
        states = states + self.mix(attended.transpose(1, 2).reshape(count, length, width))
        return cast(Tensor, states + self.feed_forward(self.norm_out(states)))
