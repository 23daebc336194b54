"""MAIRA-2 with a few thousand random weights, in the files and under the names that its authors published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn

WIDTH, TOWER, SIDE, PATCH = 32, 24, 42, 14
TAGS = ["<obj>", "</obj>", "<box>", "</box>", *(f"<{axis}{at}>" for axis in "xy" for at in range(100)), "<image>"]
LETTERS = sorted({*map(chr, range(33, 127)), "▁"})
WORDS = ["<unk>", "<s>", "</s>", *LETTERS, *TAGS]
IMAGE = WORDS.index("<image>")
MEAN, STD = 0.5307, 0.2583
TEMPLATE = (
    "{% for turn in messages %}You look at films. USER: {% for part in turn.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def words_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {"factor": 1.5, "type": "linear"},
        "vocab_size": len(WORDS),
    } | changes


def tower_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "dinov2",
        "hidden_size": TOWER,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "mlp_ratio": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
        "out_features": ["stage2"],
        "out_indices": [2],
        "reshape_hidden_states": False,
    } | changes


def parts() -> tuple[Any, Any, list[nn.Linear]]:
    torch.manual_seed(0)
    words = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_without_type(words_config()))).eval()
    settings = {name: value for name, value in _without_type(tower_config()).items() if not name.startswith("out_")}
    tower = transformers.Dinov2Model(transformers.Dinov2Config(**settings)).eval()
    linear = [nn.Linear(TOWER if not place else WIDTH, WIDTH) for place in range(4)]
    for name, one in (*words.named_parameters(), *tower.named_parameters()):
        # Norms too, so that one left out shows; weak biases, so that inputs do.
        spread, middle = (0.4, 0) if one.ndim > 1 else (0.1, 0) if name.endswith("bias") else (0.4, 1)
        one.data = middle + torch.randn_like(one) * spread
    for layer in linear:
        layer.weight.data = torch.randn_like(layer.weight) * 0.4
    return words, tower, linear


def tokenizer() -> Tokenizer:
    """Letters and tags, with a token before each text, as Llama's."""
    core = Tokenizer(models.BPE({word: at for at, word in enumerate(WORDS)}, [], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="first"), decoders.Fuse()])
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return core


def build(folder: Path) -> Path:
    folder.mkdir(parents=True)
    words, tower, linear = parts()
    tensors = {
        name.replace("model.", "language_model.model.", 1)
        if name.startswith("model.")
        else f"language_model.{name}": one
        for name, one in words.state_dict().items()
    }
    tensors |= {f"vision_tower.{name}": one for name, one in tower.state_dict().items()}
    for place, layer in enumerate(linear):
        own = {name: one.detach() for name, one in layer.state_dict().items()}
        tensors |= {f"multi_modal_projector.layers.{2 * place}.{name}": one for name, one in own.items()}
    save_file({name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["Maira2ForConditionalGeneration"],
        "auto_map": {"AutoModelForCausalLM": "modeling_maira2.Maira2ForConditionalGeneration"},
        "image_token_index": IMAGE,
        "model_type": "maira2",
        "projector_hidden_act": "gelu",
        "projector_n_layers": 4,
        "text_config": words_config(),
        "vision_config": tower_config(),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    }
    pictures = {
        "image_processor_type": "BitImageProcessor",
        "crop_size": {"height": SIDE, "width": SIDE},
        "size": {"shortest_edge": SIDE},
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
        "resample": 3,
    }
    own = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    written = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        "preprocessor_config.json": pictures,
        "tokenizer_config.json": own | {"pad_token": "<unk>", "auto_map": {"AutoProcessor": "processing_maira2.P"}},
        "chat_template.json": {"chat_template": TEMPLATE},
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def read_words(inputs: Tensor, pixels: Tensor) -> Tensor:
    """Logits (T, V) at each position of one query, put together by hand from the parts."""
    words, tower, linear = parts()
    with torch.no_grad():
        hidden = tower(pixels).last_hidden_state[:, 1:]
        for place, layer in enumerate(linear):
            hidden = layer(nn.functional.gelu(hidden) if place else hidden)
        start = inputs.tolist().index(IMAGE)
        read = words.model.embed_tokens(inputs[None])
        read = torch.cat([read[:, :start], hidden, read[:, start + hidden.shape[1] :]], 1)
        return words(inputs_embeds=read).logits[0]


def _without_type(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "model_type"}
