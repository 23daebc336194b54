"""The network of the demo model: a small image tower, a small text tower, and a joint space for patches and sentences.

It was trained on PhantomCXR by `scripts/train_demo_model.py`, from images and sentences alone: no mask, box or point
was ever shown to it, so what its saliency knows of places it learned from words.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DemoNetwork", "load_demo_network"]

_WEIGHTS = "demo.safetensors"


class DemoNetwork(nn.Module):
    """A CLIP-style network whose score is a smooth maximum of patch-sentence similarities.

    The logit of image b and sentence c is `log mean exp(scale * s) + bias` over the cosine similarities s (h, w) of its
    patches with the sentence, with a learned scale and bias; the similarities are the saliency map. The sigmoid of the
    logit is the probability that the sentence is true of the image.

    Args:
        vocabulary: Number of tokens; token 0 is padding.
        dimension: D, size of the joint space.
        text_width: Width of the text tower.
        max_length: Longest sentence in tokens.
    """

    def __init__(self, vocabulary: int = 320, dimension: int = 96, text_width: int = 64, max_length: int = 48) -> None:
        super().__init__()
        self.image_tower = nn.Sequential(
            _convolution(1, 16, stride=2),
            _convolution(16, 48, stride=2),
            _Residual(48),
            # Kernels of odd size centre patch i on pixel 8 i; padding this stage on one side alone makes it 8 i + 4, in
            # the middle of the eight pixels that upsampling takes the patch to cover.
            nn.ZeroPad2d((0, 1, 0, 1)),
            _convolution(48, 96, stride=2, padding=0),
            _Residual(96),
            _Residual(96, dilation=2),
            _Residual(96, dilation=3),
            nn.Conv2d(96, dimension, 1),
        )
        self.text_tower = _TextTower(vocabulary, text_width, max_length, dimension)
        self.log_scale = nn.Parameter(torch.tensor(12.0).log())
        self.bias = nn.Parameter(torch.tensor(-4.0))

    def encode_image(self, images: Tensor) -> Tensor:
        """Patch features of images.

        Args:
            images: (B, 3, H, W) float, (pixel / 255 - 0.5) / 0.25; the three channels are averaged. H and W are
                multiples of 8; the network was trained at 224.

        Returns:
            (B, D, H / 8, W / 8) float, of unit length along D.
        """
        return functional.normalize(self.image_tower(images.mean(1, keepdim=True)).float(), dim=1)

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Sentence vectors.

        Args:
            input_ids: (C, L) int64.
            attention_mask: (C, L) int64, 1 for tokens and 0 for padding.

        Returns:
            (C, D) float, of unit length.
        """
        return functional.normalize(self.text_tower(input_ids, attention_mask).float(), dim=-1)

    def forward(self, images: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and saliency of every image for every sentence.

        Args:
            images: (B, 3, H, W), as in `encode_image`.
            text: (C, D), from `encode_text`.

        Returns:
            Logits (B, C) and saliency (B, C, H / 8, W / 8), cosines in [-1, 1].
        """
        return self.score(self.encode_image(images), text)

    def score(self, patches: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """As `forward`, from patch features (B, D, h, w) of `encode_image`."""
        saliency = torch.einsum("bdhw,cd->bchw", patches, text)
        scaled = (self.log_scale.exp() * saliency).flatten(2)
        logits = scaled.logsumexp(-1) - math.log(scaled.shape[-1]) + self.bias
        return logits, saliency


def load_demo_network(folder: str | Path) -> DemoNetwork:
    """The trained network, in evaluation mode.

    Args:
        folder: Where `demo.safetensors` lies.

    Raises:
        FileNotFoundError: If the file is missing.
        RuntimeError: If its tensors are not exactly those of the network.
    """
    weights = load_file(Path(folder) / _WEIGHTS)
    network = DemoNetwork(vocabulary=len(weights["text_tower.tokens.weight"]))
    network.load_state_dict(weights, strict=True)
    return network.eval()


def _convolution(
    channels: int, out: int, stride: int = 1, dilation: int = 1, padding: int | None = None
) -> nn.Sequential:
    kernel = 5 if channels == 1 else 3
    padding = dilation * (kernel // 2) if padding is None else padding
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, padding, dilation, bias=False), nn.BatchNorm2d(out), nn.ReLU()
    )


class _Residual(nn.Module):
    """Two 3 x 3 convolutions beside the identity."""

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.first = _convolution(channels, channels, dilation=dilation)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, features: Tensor) -> Tensor:
        return functional.relu(features + self.second(self.first(features)))


class _TextTower(nn.Module):
    """A two-layer transformer with a mean over the tokens."""

    def __init__(self, vocabulary: int, width: int, max_length: int, dimension: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(max_length, width))
        layers = [_TextBlock(width, heads=4) for _ in range(2)]
        self.blocks = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, dimension)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.tokens(input_ids) + self.positions[: input_ids.shape[1]]
        visible = attention_mask.bool()
        for block in self.blocks:
            states = block(states, visible)
        weights = attention_mask.to(states.dtype)[..., None]
        return self.projection((self.norm(states) * weights).sum(1) / weights.sum(1).clamp(min=1))


class _TextBlock(nn.Module):
    """Pre-norm self-attention and a feed-forward layer."""

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
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible[:, None, None, :])
        states = states + self.mix(attended.transpose(1, 2).reshape(count, length, width))
        return states + self.feed_forward(self.norm_out(states))
