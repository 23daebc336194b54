"""Every definition of the maps against an implementation in plain float64 matrices, one image and head at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import numpy as np
import open_clip
import pytest
import torch
import transformers
from deterministic import random_state
from safetensors.torch import save_file
from torch import Tensor

from xbench.models.maps.clip import CLIP
from xbench.models.networks.clip_saliency import Saliency, features_and_maps
from xbench.runtime.errors import UserError

METHODS = get_args(Saliency)
KINDS = ("open_clip", "timm")

# Eight blocks, so that the paths over the last six leave some out.
VISION = {"image_size": 32, "layers": 8, "width": 24, "head_width": 8, "patch_size": 8}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}


def draw(name: str, shape: tuple[int, ...]) -> Tensor:
    noise = random_state(name).standard_normal(shape or (1,)).astype(np.float32).reshape(shape)
    if name.endswith("bias"):
        noise = 0.1 * noise
    elif len(shape) <= 1:
        noise = 1 + 0.1 * noise
    elif not name.startswith("input"):
        noise = 1.5 * noise / math.sqrt(math.prod(shape[1:]))
    return torch.from_numpy(np.asarray(noise, np.float32))


def images_for(model: CLIP) -> Tensor:
    return draw("input images", (3, 3, model.image_size, model.image_size))


def texts(width: int = 16, classes: int = 4) -> Tensor:
    return torch.nn.functional.normalize(draw("input texts", (classes, width)), dim=-1)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    folder = tmp_path_factory.mktemp("dense")
    transformers.BertConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    ).save_pretrained(folder)
    timm = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "", "timm_proj": "linear"}
    bert = {"hf_model_name": str(folder), "hf_tokenizer_name": str(folder), "hf_proj_type": "mlp"}
    configs: dict[str, dict[str, Any]] = {
        "open_clip": {"quick_gelu": True, "vision_cfg": VISION, "text_cfg": TEXT},
        "scaled": {"vision_cfg": VISION | {"ls_init_value": 0.1}, "text_cfg": TEXT},
        "average": {"vision_cfg": VISION | {"pool_type": "avg"}, "text_cfg": TEXT},
        "three": {"vision_cfg": VISION | {"layers": 3}, "text_cfg": TEXT},
        "single": {"vision_cfg": VISION | {"layers": 1}, "text_cfg": TEXT},
        "normed": {"vision_cfg": VISION | {"qk_norm": True}, "text_cfg": TEXT},
        "rotating": {
            "vision_cfg": {"timm_model_name": "eva02_tiny_patch14_224", "timm_pool": "token", "timm_proj": "linear"},
            "text_cfg": TEXT,
        },
        "timm": {"vision_cfg": timm, "text_cfg": bert | {"hf_pooler_type": "cls_last_hidden_state_pooler"}},
    }

    def model(kind: str, saliency: str = "patch") -> CLIP:
        place = folder / kind
        if not place.exists():
            place.mkdir()
            config = {"model_cfg": {"embed_dim": 16, **configs[kind]}}
            (place / "open_clip_config.json").write_text(json.dumps(config))
            shapes = open_clip.create_model(f"local-dir:{place}", load_weights=False, pretrained_text=False)
            weights = {name: draw(name, tuple(value.shape)) for name, value in shapes.state_dict().items()}
            save_file(weights, place / "open_clip_model.safetensors")
        size = 64 if kind == "timm" else None
        return CLIP(f"local-dir:{place}", saliency=saliency, image_size=size)  # type: ignore[arg-type]

    return model


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, build: Callable[..., Any]) -> CLIP:
    return build(request.param)


def maps(model: CLIP, method: Saliency, images: Tensor | None = None, text: Tensor | None = None) -> Tensor:
    images = images_for(model) if images is None else images
    with torch.no_grad():
        return features_and_maps(model.model, images, texts() if text is None else text, method)[1]


class Plain:
    """A vision transformer written out from its state dict, in float64, for one image (3, h, w)."""

    def __init__(self, model: CLIP) -> None:
        weights = {name: value.double() for name, value in model.model.visual.state_dict().items()}
        self.timm = "trunk.cls_token" in weights
        self.weights = {name.removeprefix("trunk."): value for name, value in weights.items()}
        visual = model.model.visual
        first = visual.trunk.blocks[0].attn if self.timm else visual.transformer.resblocks[0].attn
        self.heads = first.num_heads
        self.epsilon = 1e-6 if self.timm else 1e-5
        self.quick = not self.timm and "QuickGELU" in repr(visual)
        self.depth = len(visual.trunk.blocks if self.timm else visual.transformer.resblocks)

    def norm(self, x: Tensor, name: str) -> Tensor:
        rows = []
        for row in x:
            centered = row - row.sum() / len(row)
            rows.append(centered / ((centered**2).sum() / len(row) + self.epsilon).sqrt())
        return torch.stack(rows) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def name(self, block: int, part: str) -> str:
        if self.timm:
            return f"blocks.{block}.{part}"
        ours = {"norm1": "ln_1", "norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
        ours |= {"attn.proj": "attn.out_proj"}
        return f"transformer.resblocks.{block}.{ours[part]}"

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def embed(self, image: Tensor) -> Tensor:
        kernel = self.weights["patch_embed.proj.weight" if self.timm else "conv1.weight"]
        size = kernel.shape[-1]
        places = [(top, left) for top in range(0, image.shape[1], size) for left in range(0, image.shape[2], size)]
        windows = (image[:, top : top + size, left : left + size].double() for top, left in places)
        x = torch.stack([(kernel * window).sum(dim=(1, 2, 3)) for window in windows])
        if self.timm:
            x = torch.cat([self.weights["cls_token"][0], x + self.weights["patch_embed.proj.bias"]])
            return x + self.weights["pos_embed"][0]
        x = torch.cat([self.weights["class_embedding"][None], x]) + self.weights["positional_embedding"]
        return self.norm(x, "ln_pre")

    def heads_of(self, block: int, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys and values (N, d) of every head."""
        joint = f"blocks.{block}.attn.qkv." if self.timm else f"transformer.resblocks.{block}.attn.in_proj_"
        normed = self.norm(x, self.name(block, "norm1"))
        all_heads = normed @ self.weights[f"{joint}weight"].T + self.weights[f"{joint}bias"]
        width = x.shape[1]
        d = width // self.heads
        return [
            tuple(all_heads[:, part * width + h * d : part * width + (h + 1) * d] for part in range(3))
            for h in range(self.heads)
        ]

    def attention(self, block: int, x: Tensor) -> list[Tensor]:
        return [softmax(q @ k.T / math.sqrt(q.shape[1])) for q, k, _ in self.heads_of(block, x)]

    def out(self, block: int, per_head: list[Tensor]) -> Tensor:
        y = self.linear(torch.cat(per_head, dim=1), self.name(block, "attn.proj"))
        return y * self.weights.get(f"transformer.resblocks.{block}.ls_1.gamma", 1.0)

    def block(self, block: int, x: Tensor, attention: list[Tensor] | None = None) -> Tensor:
        attention = self.attention(block, x) if attention is None else attention
        values = [v for _, _, v in self.heads_of(block, x)]
        x = x + self.out(block, [a @ v for a, v in zip(attention, values, strict=True)])
        y = self.linear(self.norm(x, self.name(block, "norm2")), self.name(block, "mlp.fc1"))
        y = y / (1 + torch.exp(-1.702 * y)) if self.quick else y * (1 + torch.erf(y / math.sqrt(2))) / 2
        y = self.linear(y, self.name(block, "mlp.fc2"))
        return x + y * self.weights.get(f"transformer.resblocks.{block}.ls_2.gamma", 1.0)

    def cosines(self, tokens: Tensor, text: Tensor) -> Tensor:
        """(N, C) from tokens as a block gives them."""
        normed = self.norm(tokens, "norm" if self.timm else "ln_post")
        vectors = normed @ (self.weights["head.proj.weight"].T if self.timm else self.weights["proj"])
        return torch.stack([torch.stack([v @ t / v.norm() for t in text.double()]) for v in vectors])

    def inputs(self, image: Tensor) -> list[Tensor]:
        """What every block reads, and what the last one gives."""
        seen = [self.embed(image)]
        for block in range(self.depth):
            seen.append(self.block(block, seen[-1]))
        return seen


def softmax(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
    return powers / powers.sum(dim=1, keepdim=True)


def unit(rows: Tensor) -> Tensor:
    return torch.stack([row / row.norm() for row in rows])


def plain_patch(net: Plain, image: Tensor, text: Tensor) -> Tensor:
    return net.cosines(net.inputs(image)[-1], text)[1:].T


def plain_maskclip(net: Plain, image: Tensor, text: Tensor) -> Tensor:
    last = net.depth - 1
    return net.cosines(net.out(last, [v for _, _, v in net.heads_of(last, net.inputs(image)[last])]), text)[1:].T


def plain_path(net: Plain, image: Tensor, text: Tensor, attend: Callable[[int, Tensor], list[Tensor]]) -> Tensor:
    reads = net.inputs(image)
    first = max(net.depth - 6, 1)
    path = reads[first]
    for block in range(first, net.depth):
        path = path + net.out(block, attend(block, reads[block]))
    return net.cosines(path, text)[1:].T


def plain_vv(net: Plain, image: Tensor, text: Tensor) -> Tensor:
    def attend(block: int, x: Tensor) -> list[Tensor]:
        return [softmax(v @ v.T / math.sqrt(v.shape[1])) @ v for _, _, v in net.heads_of(block, x)]

    return plain_path(net, image, text, attend)


def plain_gem(net: Plain, image: Tensor, text: Tensor) -> Tensor:
    def attend(block: int, x: Tensor) -> list[Tensor]:
        normed = net.norm(x, net.name(block, "norm1"))
        size = sum(row.norm() for row in normed) / len(normed)
        received = []
        for head in net.heads_of(block, x):
            temperature = math.sqrt(head[2].shape[1]) / size
            of_head = []
            for feature in head:
                grouped = unit(feature)
                grouped = softmax(grouped @ grouped.T / temperature) @ grouped
                grouped = unit(grouped)
                of_head.append(softmax(grouped @ grouped.T / temperature) @ head[2])
            received.append(torch.stack(of_head).sum(dim=0) / 3)
        return received

    return plain_path(net, image, text, attend)


def plain_grad_attention(net: Plain, image: Tensor, text: Tensor) -> Tensor:
    """Relevance propagation of Chefer et al. through the last block, by all rows of the attention."""
    last = net.depth - 1
    read = net.inputs(image)[last]
    rows = []
    for one in text:
        attention = [a.requires_grad_() for a in net.attention(last, read)]
        score = net.cosines(net.block(last, read, attention)[:1], one[None])[0, 0]
        gradients = torch.autograd.grad(score, attention)
        weighted = [(a * g).clamp(min=0).detach() for a, g in zip(attention, gradients, strict=True)]
        relevance = torch.eye(len(read), dtype=torch.float64)
        relevance = relevance + (sum(weighted) / net.heads) @ relevance
        rows.append(relevance[0, 1:])
    return torch.stack(rows)


def plain_legrad(net: Plain, image: Tensor, text: Tensor) -> Tensor:
    reads = net.inputs(image)
    rows = []
    for one in text:
        total = torch.zeros(len(reads[0]), dtype=torch.float64)
        for block in (net.depth - 2, net.depth - 1):
            attention = [a.requires_grad_() for a in net.attention(block, reads[block])]
            given = net.block(block, reads[block], attention)
            average = given.sum(dim=0, keepdim=True) / len(given)
            gradients = torch.autograd.grad(net.cosines(average, one[None])[0, 0], attention)
            for gradient in gradients:
                for row in gradient:
                    total += row.clamp(min=0) / (len(gradient) * net.heads * 2)
        rows.append(total[1:])
    return torch.stack(rows)


PLAIN: dict[str, Callable[[Plain, Tensor, Tensor], Tensor]] = {
    "patch": plain_patch,
    "maskclip": plain_maskclip,
    "vv": plain_vv,
    "gem": plain_gem,
    "grad_attention": plain_grad_attention,
    "legrad": plain_legrad,
}


def compare(model: CLIP, method: Saliency) -> None:
    found = maps(model, method)
    assert found.dtype == torch.float32
    assert method not in ("grad_attention", "legrad") or found.min() >= 0
    net = Plain(model)
    for image, of_image in zip(images_for(model), found, strict=True):
        expected = PLAIN[method](net, image, texts()).reshape(of_image.shape)
        # What counts behind the normalization of a map is the error against the range of its values.
        spread = expected.amax(dim=(1, 2)) - expected.amin(dim=(1, 2))
        assert (spread > 1e-2 * expected.abs().amax()).all()
        worst = ((of_image - expected).abs().amax(dim=(1, 2)) / spread).max().item()
        assert worst < 5e-5


@pytest.mark.parametrize("method", METHODS)
def test_against_plain_matrices(tiny: CLIP, method: Saliency) -> None:
    compare(tiny, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["scaled", "three"])
def test_variants_against_plain_matrices(build: Callable[..., Any], kind: str, method: Saliency) -> None:
    """Layer scale belongs to the block; where there are fewer than seven blocks, the first one stays out of a path."""
    compare(build(kind), method)


@pytest.mark.parametrize("method", ["patch", "maskclip", "vv", "gem"])
def test_average_pooling(build: Callable[..., Any], method: Saliency) -> None:
    compare(build("average"), method)


@pytest.mark.parametrize("method", METHODS)
def test_scores_do_not_depend_on_the_definition(build: Callable[..., Any], method: Saliency) -> None:
    plain, other = build("open_clip"), build("open_clip", method)
    queries = texts().unflatten(0, (2, 2))
    with torch.no_grad():
        expected, found = plain(images_for(plain), queries), other(images_for(plain), queries)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.probabilities, expected.probabilities)
    assert torch.equal(found.saliency, maps(other, method, text=queries[:, 0])), "the map is that of the present prompt"
    assert torch.equal(found.saliency, expected.saliency) == (method == "patch")
    assert other.saliency == method


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "grad": nullcontext,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", METHODS)
def test_any_mode_and_no_gradient_left(tiny: CLIP, method: Saliency, mode: str) -> None:
    expected = maps(tiny, method)
    with MODES[mode]():
        queries = texts() * 1.0
        images = images_for(tiny) * 1.0
        enabled = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        features, found = features_and_maps(tiny.model, images, queries, method)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == enabled
        assert torch.equal(found, expected)
        again = found * 2
    for tensor in (features, found, again, images, queries):
        assert not tensor.requires_grad and tensor.grad_fn is None
    for parameter in tiny.parameters():
        assert not parameter.requires_grad and parameter.grad is None


@pytest.mark.parametrize("method", METHODS)
def test_half_precision(build: Callable[..., Any], method: Saliency) -> None:
    model = build("open_clip")
    exact = maps(model, method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        by_autocast = maps(model, method)
    assert not torch.equal(by_autocast.bfloat16().float(), by_autocast), "the last product is not rounded to 16 bits"
    model.to(torch.bfloat16)
    for rough in (by_autocast, maps(model, method, images_for(model).bfloat16())):
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough, exact, rtol=0, atol=0.15 * exact.abs().amax().item())


@pytest.mark.parametrize("kind", ["normed", "rotating", "single"])
def test_towers_without_plain_blocks(build: Callable[..., Any], kind: str) -> None:
    build(kind)
    with pytest.raises(UserError, match=r"gem .*plain blocks"):
        build(kind, "gem")


def test_class_token_is_needed(build: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"reads what the class token attends to"):
        build("average", "grad_attention")
    build("average", "legrad")
