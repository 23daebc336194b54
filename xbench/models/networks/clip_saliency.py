"""Maps of CLIP-style vision transformers: where in an image a text is, by six published definitions.

All of them take the text vectors of C classes at once and none lets one class change another's map:

- `patch`: cosine of the text with each patch token of the last block, after the final norm and projection.
- `maskclip`: the same with the values of the last block in place of its tokens, sent through the attention's output
  layer: queries, keys, residual and MLP are left out (C. Zhou et al., "Extract Free Dense Labels from CLIP", ECCV 2022.
  The authors' code for transformers adds the residual and the MLP; the form without them is the usual one since).
- `vv`: the same with a second path beside the last six blocks: each block's attention of its values to themselves,
  without MLP, added to what entered the first of them (Y. Li et al., "CLIP Surgery for Better Explainability with
  Enhancement in Open-Vocabulary Tasks", 2023, architecture surgery alone: feature surgery mixes the classes).
- `gem`: that path with the mean of self-self attention among queries, keys and values, all normalised, iterated once,
  with a temperature from the size of the tokens (W. Bousselham et al., "Grounding Everything: Emerging Localization
  Properties in Vision-Language Transformers", CVPR 2024).
- `grad_attention`: what the class token attends to in the last block, times the gradient of the class's cosine with
  respect to that attention; positive part, mean over heads (H. Chefer et al., "Generic Attention-Model Explainability
  for Interpreting Bi-Modal and Encoder-Decoder Transformers", ICCV 2021, on CLIP, where the authors use one block).
- `legrad`: the gradient alone, with respect to all attention of a block, of the cosine with the average token behind
  that block; positive part, mean over heads and queries, mean over the last two blocks as in the authors' code
  (W. Bousselham et al., "LeGrad: An Explainability Method for Vision Transformers via Feature Formation Sensitivity",
  ICCV 2025).
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

# How many of the last blocks are taken apart: the numbers of the authors' code.
_BLOCKS: dict[Saliency, int] = {"maskclip": 1, "vv": 6, "gem": 6, "grad_attention": 1, "legrad": 2}


def check_saliency(visual: Any, saliency: Saliency, architecture: str) -> None:
    """Raise a UserError if an image tower is not built as a definition needs it."""
    if saliency == "patch":
        return
    blocks, advice = _blocks(visual), ""
    pooled = visual.trunk.global_pool if isinstance(visual, TimmModel) else visual.pool_type
    if len(blocks) < 2 or not all(_is_plain(block) for block in blocks):
        advice = (
            "takes the blocks of the image tower apart, and they are not plain (it normalises queries and keys, turns "
            "them by position, gates the attention, or has a single block). Use --model.saliency patch."
        )
    elif saliency == "grad_attention" and "tok" not in str(pooled):
        advice = (
            "reads what the class token attends to, and the image tower averages its patches instead. Use "
            "--model.saliency legrad."
        )
    if advice:
        raise UsageError(f"--model.saliency {saliency} with {architecture}: it {advice}")


def features_and_maps(model: Any, images: Tensor, text: Tensor, saliency: Saliency) -> tuple[Tensor, Tensor]:
    """Encode square, normalised images (B, 3, h, w) and map the classes of vectors of unit length (C, D) in one pass.

    Returns image vectors (B, D) as the model gives them, and maps (B, C, rows, columns) of the patch grid, float32.
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
        # Gradients where the test loop forbids them, in the precision of the weights and not of autocast.
        device = images.device.type
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device, enabled=False):
            # Copies, for what the test loop computed may not take part in a gradient.
            tokens = [part.to(blocks[0].in_weight.dtype, copy=True) for part in tokens]
            maps = relevance(visual, blocks, tokens, text.clone())
        return features, maps[..., -count:].unflatten(-1, grid)
    if saliency == "maskclip":
        path = blocks[-1].out(blocks[-1].queries_keys_values(tokens[-1])[2])
    else:
        # Each block's other attention, computed from what the block really reads, adds to what the first one reads.
        attend = _self_self if saliency == "gem" else _value_value
        path = tokens[0]
        for block, read in zip(blocks, tokens, strict=True):
            path = path + block.out(attend(block, read))
    return features, cosine_maps(_project(visual, path[:, -count:]).unflatten(1, grid), text)


def _project(visual: Any, tokens: Tensor, normed: bool = False) -> Tensor:
    """Send tokens (..., width) of the last block the way of the class token to the joint space (..., D)."""
    if isinstance(visual, TimmModel):
        tokens = tokens if normed else visual.trunk.norm(tokens)
        return cast(Tensor, visual.head(visual.trunk.head(visual.trunk.fc_norm(tokens))))
    return cast(Tensor, (tokens if normed else visual.ln_post(tokens)) @ visual.proj)


def _last_blocks(model: Any, images: Tensor, count: int) -> tuple[Tensor, list[_Block], list[Tensor], int]:
    """Return image vectors, the last blocks, the tokens (B, N, width) each reads, and how many of these are patches."""
    # Without the first block: open_clip does not return what that one reads.
    blocks = [_Block(block) for block in _blocks(model.visual)[1:]][-count:]
    seen = model.forward_intermediates(
        image=images,
        image_indices=len(blocks) + 1,
        normalize=False,
        image_output_fmt="NLC",
        image_output_extra_tokens=True,
    )
    # A block reads what the one before it gave.
    tokens = seen["image_intermediates"][:-1]
    patches = tokens[0].shape[1]
    if "image_intermediates_prefix" in seen:
        prefixes = seen["image_intermediates_prefix"][:-1]
        tokens = [torch.cat(both, dim=1) for both in zip(prefixes, tokens, strict=True)]
    return seen["image_features"], blocks, tokens, patches


def _value_value(block: _Block, tokens: Tensor) -> Tensor:
    """Attend from values to values, as CLIP Surgery does."""
    _, _, values = block.queries_keys_values(tokens)
    return F.scaled_dot_product_attention(values, values, values)


def _self_self(block: _Block, tokens: Tensor) -> Tensor:
    """Attend from queries to queries, keys to keys and values to values, and average, as GEM does."""
    features = block.queries_keys_values(tokens)
    values = features[2]
    # GEM divides by a temperature: here is its inverse, one number per image.
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
    """Weigh the class token's attention in the last block by its gradient; (B, C, N).

    Behind its attention to the others, the class token goes through the block alone. So every class can have its own
    copy of that one token, and a single backward of the sum gives all gradients.
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
    """Average the positive gradients with respect to the attention in each block; (B, C, N).

    Every class needs a backward through the block, in which the images of the batch do not meet. The attention itself
    is never formed: the gradient with respect to the weight of token j in head h for token i is the product of the
    gradient with respect to what i receives in h with the value of j.
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
    """A block of either kind of tower, taken apart."""

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
        """Split tokens (B, N, width) into queries, keys and values, each (B, heads, N, d)."""
        joint = F.linear(self.norm_1(tokens), self.in_weight, self.in_bias)
        return cast(tuple[Tensor, ...], joint.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind())

    def out(self, attended: Tensor) -> Tensor:
        """Join heads (..., heads, N, d) to what the attention adds to the tokens (..., N, width)."""
        return cast(Tensor, self.scale_1(self.out_layer(attended.transpose(-3, -2).flatten(-2))))

    def mlp(self, tokens: Tensor) -> Tensor:
        """Give tokens behind the attention (..., N, width) what the rest of the block gives them."""
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
