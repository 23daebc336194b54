"""CheXagent-2 with a few thousand random weights, in the files and under the names that its authors published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.convert_slow_tokenizer import bytes_to_unicode

WIDTH, TOWER, SIDE, PATCH = 32, 64, 64, 16
MERGES = ["Y e", "Ye s", "Ġ Yes", "N o", "Ġ No", "e s", "i n", "Ġ t", "Ġt h", "Ġth e", "> (", ") ,"]
TAGS = ["<|img|>", "<|/img|>", "<|imgpad|>", "<|ref|>", "<|/ref|>", "<|box|>", "<|/box|>", "<|quad|>", "<|/quad|>"]


def parts() -> tuple[Any, Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    phi = transformers.PhiForCausalLM(transformers.PhiConfig(**_phi())).eval()
    tower = transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(
            hidden_size=TOWER,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=1,
            image_size=SIDE,
            patch_size=PATCH,
        )
    ).eval()
    for name, one in (*phi.named_parameters(), *tower.named_parameters()):
        # Norms too, so that one left out shows; weak biases, so that inputs do.
        spread, middle = (0.4, 0) if one.ndim > 1 else (0.1, 0) if name.endswith("bias") else (0.4, 1)
        one.data = middle + torch.randn_like(one) * spread
    shapes = {
        "pos_embed": ((SIDE // PATCH) ** 2, TOWER),
        "attn_pool.0.weight": (4 * WIDTH, TOWER),
        "attn_pool.0.bias": (4 * WIDTH,),
        "attn_pool.2.weight": (WIDTH, 4 * WIDTH),
        "attn_pool.2.bias": (WIDTH,),
        "ln_post.weight": (WIDTH,),
        "ln_post.bias": (WIDTH,),
        "proj": (WIDTH, WIDTH),
    }
    # What goes into the norm is small, so that its epsilon shows.
    scale = {name: 3e-4 if name.startswith("attn_pool.2") else 0.3 for name in shapes}
    return phi, tower, {name: torch.randn(shape) * scale[name] for name, shape in shapes.items()}


def vocabulary() -> tuple[dict[str, int], dict[str, int]]:
    """What vocab.json and added_tokens.json hold: bytes, what merges make of them, and Phi-2's and CheXagent's own."""
    words = [*sorted(bytes_to_unicode().values()), *(merge.replace(" ", "") for merge in MERGES), "<|endoftext|>"]
    more = ["    ", "  ", "\t\t", *TAGS, *(f"<|coord_{at}|>" for at in range(10))]
    more += [f"<|extra_{at}|>" for at in range(64 - (len(words) + len(more)) % 64)]
    return {word: at for at, word in enumerate(words)}, {word: at for at, word in enumerate(more, len(words))}


def build(folder: Path) -> Path:
    folder.mkdir(parents=True)
    phi, tower, between = parts()
    tensors = dict(phi.state_dict())
    tensors |= {f"model.visual.model.{name}": value for name, value in tower.state_dict().items()}
    tensors |= {f"model.visual.{name}": value for name, value in between.items()}
    names = sorted(tensors)
    places = {name: f"model-0000{1 + (2 * at >= len(names))}-of-00002.safetensors" for at, name in enumerate(names)}
    for file in set(places.values()):
        one = {name: tensors[name].contiguous() for name in names if places[name] == file}
        save_file(one, folder / file, metadata={"format": "pt"})
    words, added = vocabulary()
    config = _phi() | {
        "architectures": ["CheXagentForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_chexagent.CheXagentForCausalLM"},
        "model_type": "phi",
        "transformers_version": "4.40.0",
        "visual": {"image_size": SIDE, "output_dim": WIDTH, "vision_model_name_or_path": "somebody/siglip"},
    }
    written = {
        "model.safetensors.index.json": {"metadata": {}, "weight_map": places},
        "config.json": config,
        "generation_config.json": {"_from_model_config": True, "eos_token_id": 2, "transformers_version": "4.40.0"},
        "vocab.json": words,
        "added_tokens.json": dict(sorted(added.items())),
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]))
    return folder


def read_words(inputs: Tensor, pixels: Tensor, image_token: int) -> Tensor:
    """Logits (T, V) at each position of one query, put together by hand from the parts."""
    phi, tower, between = parts()
    with torch.no_grad():
        layers = tower(pixels, output_hidden_states=True).hidden_states[-1] + between["pos_embed"]
        hidden = nn.functional.linear(layers, between["attn_pool.0.weight"], between["attn_pool.0.bias"])
        hidden = nn.functional.gelu(hidden)
        hidden = nn.functional.linear(hidden, between["attn_pool.2.weight"], between["attn_pool.2.bias"])
        hidden = (hidden - hidden.mean(-1, keepdim=True)) / (hidden.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        seen = (hidden * between["ln_post.weight"] + between["ln_post.bias"]) @ between["proj"]
        start = inputs.tolist().index(image_token)
        words = phi.model.embed_tokens(inputs[None])
        words = torch.cat([words[:, :start], seen, words[:, start + seen.shape[1] :]], 1)
        return phi(inputs_embeds=words).logits[0]


def _phi() -> dict[str, Any]:
    words, added = vocabulary()
    return {
        "hidden_act": "gelu_new",
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "partial_rotary_factor": 0.4,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "vocab_size": len(words) + len(added),
    }
