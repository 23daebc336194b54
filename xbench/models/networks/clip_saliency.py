"""Maps of CLIP-style vision transformers: where in an image a text is, by six published definitions.

Each takes the text vectors of C classes at once, and no class changes another's map:

- `patch`: cosine of the text with each patch token of the last block, after the final norm and projection.
- `maskclip`: `patch` with the last block's values, sent through the attention's output layer, in place of its tokens:
  queries, keys, residual and MLP are omitted (C. Zhou et al., "Extract Free Dense Labels from CLIP", ECCV 2022; the
  authors' code for transformers adds residual and MLP, later work does not).
- `vv`: `patch` with a second path beside the last six blocks: each block's attention of its values to themselves,
  without MLP, added to the input of the first of them (Y. Li et al., "CLIP Surgery for Better Explainability with
  Enhancement in Open-Vocabulary Tasks", 2023; only architecture surgery, because feature surgery mixes the classes).
- `gem`: `vv` with the mean of self-self attention among normalized queries, keys and values, iterated once, with a
  temperature from the size of the tokens (W. Bousselham et al., "Grounding Everything: Emerging Localization Properties
  in Vision-Language Transformers", CVPR 2024).
- `grad_attention`: the class token's attention in the last block, times the gradient of the class's cosine with respect
  to that attention; positive part, mean over heads (H. Chefer et al., "Generic Attention-Model Explainability for
  Interpreting Bi-Modal and Encoder-Decoder Transformers", ICCV 2021, where the authors use one block of CLIP).
- `legrad`: the gradient, with respect to all attention of a block, of the cosine with the average token after that
  block; positive part, mean over heads and queries, mean over the last two blocks as in the authors' code (W.
  Bousselham et al., "LeGrad: An Explainability Method for Vision Transformers via Feature Formation Sensitivity", ICCV
  2025).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from open_clip.timm_model import TimmModel
from open_clip.transformer import ResidualAttentionBlock
from timm.layers.attention import Attention as TimmAttention
from timm.models.vision_transformer import Block as TimmBlock
from torch import Tensor, nn

from xbench.models.networks.dual_encoder import cosine_maps
from xbench.runtime.errors import UsageError

Saliency = Literal["patch", "maskclip", "vv", "gem", "grad_attention", "legrad"]

# Number of last blocks to take apart, as in the authors' code.
_BLOCKS: dict[Saliency, int] = {"maskclip": 1, "vv": 6, "gem": 6, "grad_attention": 1, "legrad": 2}


def check_saliency(visual: Any, saliency: Saliency, architecture: str) -> None:
    """Raise a UserError if an image tower does not fit a definition."""
    if saliency == "patch":
        return
    blocks, advice = _blocks(visual), ""
    pooled = visual.trunk.global_pool if isinstance(visual, TimmModel) else visual.pool_type
    if len(blocks) < 2 or not all(_is_plain(block) for block in blocks):
        advice = (
            "needs plain blocks, but the image tower normalizes queries and keys, rotates them by position, gates the "
            "attention, or has a single block. Use --model.saliency patch."
        )
    elif saliency == "grad_attention" and "tok" not in str(pooled):
        advice = "reads what the class token attends to, but the tower averages patches. Use --model.saliency legrad."
    if advice:
        raise UsageError(f"--model.saliency {saliency} with {architecture}: it {advice}")


def features_and_maps(model: Any, images: Tensor, text: Tensor, saliency: Saliency) -> tuple[Tensor, Tensor]:
    """Encode square, normalized images (B, 3, h, w), and map the classes of unit vectors (C, D) in one pass.

    Return image vectors (B, D), not normalized, and maps (B, C, rows, columns) of the patch grid, float32.
    """
    visual = model.visual
    if saliency == "patch":
        seen = model.forward_intermediates(image=images, image_indices=1, normalize_intermediates=True, normalize=False)
        patches = _project(visual, seen["image_intermediates"][0].permute(0, 2, 3, 1), normed=True)
        return seen["image_features"], cosine_maps(patches, text)
    features, blocks, tokens, count = _last_blocks(model, images, _BLOCKS[saliency])
    grid = (math.isqrt(count), -1)
    if saliency in ("grad_attention", "legrad"):
        relevance = _grad_attention if saliency == "grad_attention" else _legrad
        # The test loop disables gradients; autocast would lower their precision.
        device = images.device.type
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device, enabled=False):
            # Copies, because tensors from inference mode cannot take part in a gradient.
            tokens = [part.to(blocks[0].in_weight.dtype, copy=True) for part in tokens]
            maps = relevance(visual, blocks, tokens, text.clone())
        return features, maps[..., -count:].unflatten(-1, grid)
    if saliency == "maskclip":
        path = blocks[-1].out(blocks[-1].queries_keys_values(tokens[-1])[2])
    else:
        # Add each block's other attention, computed from the block's real input, to the input of the first block.
        attend = _self_self if saliency == "gem" else _value_value
        path = tokens[0]
        for block, read in zip(blocks, tokens, strict=True):
            path = path + block.out(attend(block, read))
    return features, cosine_maps(_project(visual, path[:, -count:]).unflatten(1, grid), text)


def _project(visual: Any, tokens: Tensor, normed: bool = False) -> Tensor:
    """Project tokens (..., width) of the last block to the joint space (..., D), like the class token."""
    if isinstance(visual, TimmModel):
        tokens = tokens if normed else visual.trunk.norm(tokens)
        return cast(Tensor, visual.head(visual.trunk.head(visual.trunk.fc_norm(tokens))))
    return cast(Tensor, (tokens if normed else visual.ln_post(tokens)) @ visual.proj)


def _last_blocks(model: Any, images: Tensor, count: int) -> tuple[Tensor, list[_Block], list[Tensor], int]:
    """Return image vectors, the last blocks, their inputs (B, N, width), and the number of patches among the N."""
    # open_clip does not return the input of the first block.
    blocks = [_Block(block) for block in _blocks(model.visual)[1:]][-count:]
    seen = model.forward_intermediates(
        image=images,
        image_indices=len(blocks) + 1,
        normalize=False,
        image_output_fmt="NLC",
        image_output_extra_tokens=True,
    )
    tokens = seen["image_intermediates"][:-1]
    patches = tokens[0].shape[1]
    if "image_intermediates_prefix" in seen:
        prefixes = seen["image_intermediates_prefix"][:-1]
        tokens = [torch.cat(both, dim=1) for both in zip(prefixes, tokens, strict=True)]
    return seen["image_features"], blocks, tokens, patches


def _value_value(block: _Block, tokens: Tensor) -> Tensor:
    _, _, values = block.queries_keys_values(tokens)
    return F.scaled_dot_product_attention(values, values, values)


def _self_self(block: _Block, tokens: Tensor) -> Tensor:
    features = block.queries_keys_values(tokens)
    values = features[2]
    # The inverse of GEM's temperature, one number per image.
    sharpness = block.norm_1(tokens).norm(dim=-1).mean(dim=1) * values.shape[-1] ** -0.5
    sharpness = sharpness.to(values.dtype)[:, None, None, None]
    attended = torch.zeros_like(values)
    for feature in features:
        unit = F.normalize(feature, dim=-1)
        grouped = F.scaled_dot_product_attention(unit * sharpness, unit, unit, scale=1.0)
        unit = F.normalize(grouped, dim=-1)
        attended = attended + F.scaled_dot_product_attention(unit * sharpness, unit, values, scale=1.0)
    return attended / len(features)


def _grad_attention(visual: Any, blocks: Sequence[_Block], tokens: Sequence[Tensor], text: Tensor) -> Tensor:
    """Multiply the class token's attention in the last block by its gradient, (B, C, N).

    After its attention, the class token passes through the block alone. So each class has its own copy of that token,
    and one backward pass of the sum gives all gradients.
    """
    block, read = blocks[-1], tokens[-1]
    queries, keys, values = block.queries_keys_values(read)
    attention = (queries[:, :, :1] @ keys.mT * keys.shape[-1] ** -0.5).softmax(dim=-1)
    attention = attention.expand(len(text), *attention.shape).detach().requires_grad_()
    class_tokens = block.mlp(read[:, :1] + block.out(attention @ values)).squeeze(-2)
    vectors = F.normalize(_project(visual, class_tokens).float(), dim=-1)
    (gradient,) = torch.autograd.grad((vectors * text[:, None]).sum(), attention)
    weighted = (gradient * attention.detach()).float().clamp(min=0)
    return cast(Tensor, weighted.mean(dim=2).squeeze(2).transpose(0, 1))


def _legrad(visual: Any, blocks: Sequence[_Block], tokens: Sequence[Tensor], text: Tensor) -> Tensor:
    """Average the positive gradients with respect to the attention in each block, (B, C, N).

    Images do not interact in the backward pass of a class. The attention is never formed: the gradient for the weight
    of token j in head h for token i is the product of the gradient for what i receives in h with the value of j.
    """
    layers = []
    for block, read in zip(blocks, tokens, strict=True):
        queries, keys, values = block.queries_keys_values(read)
        received = F.scaled_dot_product_attention(queries, keys, values).detach().requires_grad_()
        average = block.mlp(read + block.out(received)).mean(dim=1)
        cosines = F.normalize(_project(visual, average).float(), dim=-1) @ text.T
        per_class = []
        for cosine in cosines.sum(dim=0):
            (gradient,) = torch.autograd.grad(cosine, received, retain_graph=True)
            per_class.append((gradient @ values.mT).float().clamp(min=0).mean(dim=(1, 2)))
        layers.append(torch.stack(per_class, dim=1))
    return torch.stack(layers).mean(dim=0)


class _Block:
    def __init__(self, block: Any) -> None:
        attention = block.attn
        self.heads, self.mlp_layers = attention.num_heads, block.mlp
        if isinstance(block, TimmBlock):
            self.in_weight, self.in_bias, self.out_layer = attention.qkv.weight, attention.qkv.bias, attention.proj
            self.norm_1, self.norm_2, self.scale_1, self.scale_2 = block.norm1, block.norm2, block.ls1, block.ls2
        else:
            self.in_weight, self.in_bias = attention.in_proj_weight, attention.in_proj_bias
            self.out_layer = attention.out_proj
            self.norm_1, self.norm_2, self.scale_1, self.scale_2 = block.ln_1, block.ln_2, block.ls_1, block.ls_2

    def queries_keys_values(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, each (B, heads, N, d), of tokens (B, N, width)."""
        joint = F.linear(self.norm_1(tokens), self.in_weight, self.in_bias)
        return cast(tuple[Tensor, ...], joint.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind())

    def out(self, attended: Tensor) -> Tensor:
        """Return what attended heads (..., heads, N, d) add to the tokens (..., N, width)."""
        return cast(Tensor, self.scale_1(self.out_layer(attended.transpose(-3, -2).flatten(-2))))

    def mlp(self, tokens: Tensor) -> Tensor:
        """Apply the rest of the block to tokens (..., N, width) after the attention."""
        return cast(Tensor, tokens + self.scale_2(self.mlp_layers(self.norm_2(tokens))))


def _blocks(visual: Any) -> Sequence[nn.Module]:
    blocks = visual.trunk.blocks if isinstance(visual, TimmModel) else visual.transformer.resblocks
    return cast(Sequence[nn.Module], blocks)


def _is_plain(block: nn.Module) -> bool:
    if type(block) is TimmBlock:
        attention = block.attn
        additions = (getattr(attention, name, None) for name in ("q_norm", "k_norm", "norm", "gate"))
        plain = all(addition is None or isinstance(addition, nn.Identity) for addition in additions)
        return type(attention) is TimmAttention and plain
    return type(block) is ResidualAttentionBlock
