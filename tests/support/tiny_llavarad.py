"""LLaVA-Rad with a few thousand random weights, in the files and under the names that its authors published."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
import transformers
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

WIDTH, TOWER, SIDE, PATCH, RANK, ALPHA = 32, 64, 70, 14, 2, 6
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LETTERS = [*map(chr, range(33, 127))]
WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{at:02X}>" for at in range(256)), "▁the", "the", "he", "th", "▁", *LETTERS]
CONFIG: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "vocab_size": len(WORDS),
}


def parts() -> tuple[Any, Any, nn.Sequential, dict[str, Tensor]]:
    torch.manual_seed(0)
    words = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG, attn_implementation="eager")).eval()
    tower = VisionTransformer(
        *(SIDE, PATCH),
        num_classes=0,
        global_pool="",
        embed_dim=TOWER,
        depth=3,
        num_heads=1,
        mlp_ratio=2,
        init_values=1.0,
    ).eval()
    projector = nn.Sequential(nn.Linear(TOWER, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    for name, one in (*words.named_parameters(), *tower.named_parameters(), *projector.named_parameters()):
        # Norms too, so that one left out shows.
        spread, middle = (0.3, 0) if one.ndim > 1 else (0.1, 0) if name.endswith("bias") else (0.3, 1)
        one.data = middle + torch.randn_like(one) * spread
    adapter = {}
    for name, one in words.named_parameters():
        if name.removesuffix(".weight").endswith(TARGETS):
            stem = name.removesuffix(".weight")
            adapter[f"{stem}.lora_A.weight"] = torch.randn(RANK, one.shape[1]) * 0.3
            adapter[f"{stem}.lora_B.weight"] = torch.randn(one.shape[0], RANK) * 0.3
    return words, tower, projector, adapter


def sentencepiece(words: list[str]) -> bytes:
    """The protocol buffer of a SentencePiece model that has these pieces, the likeliest first."""
    stored = b""
    for at, word in enumerate(words):
        kind = 2 if at == 0 else 3 if at < 3 else 6 if at < 259 else 1
        text = word.encode()
        piece = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", -float(at)) + b"\x18" + bytes([kind])
        stored += b"\x0a" + bytes([len(piece)]) + piece
    return stored + b"\x12\x02\x18\x02"  # and that it is byte-pair encoding


def build(folder: Path) -> tuple[Path, Path]:
    own, vicuna = folder / "llava-rad", folder / "vicuna"
    own.mkdir(parents=True)
    vicuna.mkdir()
    words, tower, projector, adapter = parts()
    weights = dict(words.state_dict()) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    names = sorted(weights)
    for part, some in enumerate((names[::2], names[1::2]), 1):
        torch.save({name: weights[name] for name in some}, vicuna / f"pytorch_model-0000{part}-of-00002.bin")
    (vicuna / "tokenizer.model").write_bytes(sentencepiece(WORDS))
    torch.save({f"base_model.model.{name}": one for name, one in adapter.items()}, own / "adapter_model.bin")
    linear = {f"base_model.model.model.mm_projector.{name}": one for name, one in projector.state_dict().items()}
    torch.save(linear, own / "non_lora_trainables.bin")
    open_clip = {f"module.visual.trunk.{name}": one for name, one in tower.state_dict().items()}
    open_clip |= {"module.visual.head.proj.weight": torch.ones(4, TOWER), "module.text.proj.weight": torch.ones(2)}
    open_clip |= {"module.logit_scale": torch.ones(())}
    stored = {"epoch": 3, "name": "run", "state_dict": open_clip, "optimizer": {"state": {0: torch.ones(3)}}}
    torch.save(stored, own / "biomedclipcxr_518_checkpoint.pt")
    settings = CONFIG | {
        "model_type": "llava",
        "architectures": ["LlavaLlamaForCausalLM"],
        "image_aspect_ratio": "square",
        "mm_hidden_size": TOWER,
        "mm_projector_type": "mlp2x_gelu",
        "mm_use_im_patch_token": False,
        "mm_use_im_start_end": False,
        "mm_vision_select_feature": "patch",
        "mm_vision_select_layer": -2,
        "mm_vision_tower": "biomedclip_cxr_518",
    }
    lora = {"peft_type": "LORA", "bias": "none", "r": RANK, "lora_alpha": ALPHA, "target_modules": [*TARGETS]}
    seen = {"vision_cfg": {"timm_model_name": "vit_base_patch14_dinov2.lvd142m", "image_size": SIDE}}
    written = {"config.json": settings, "adapter_config.json": lora, "biomedclipcxr_518.json": seen}
    for name, content in written.items():
        (own / name).write_text(json.dumps(content))
    return own, vicuna


def by_hand(before: list[int], pixels: Tensor, after: list[int]) -> Any:
    """What Vicuna gives for one query that goes through it at once, with attention, the adapter applied beside it."""
    words, tower, projector, adapter = parts()
    layers = dict(words.named_modules())
    for name in [name for name in adapter if ".lora_A." in name]:
        stem = name.removesuffix(".lora_A.weight")
        down, up = adapter[name], adapter[f"{stem}.lora_B.weight"]
        layers[stem].register_forward_hook(
            lambda _, given, out, down=down, up=up: out + ALPHA / RANK * (given[0] @ down.T) @ up.T
        )
    with torch.no_grad():
        seen = tower.forward_intermediates(pixels, indices=[1], output_fmt="NLC", intermediates_only=True)[0]
        hidden = projector(seen)
        first, last = (words.model.embed_tokens(torch.tensor([ids])) for ids in (before, after))
        read = torch.cat([first, hidden, last], 1)
        return words(inputs_embeds=read, output_attentions=True)
