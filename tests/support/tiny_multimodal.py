"""Multimodal models of transformers with a few thousand random weights, as `save_pretrained` leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

# Roles as the templates of such models write them: an image wherever it stands among the parts of a turn.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
}
_TOWER: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def tokenizer(special: dict[str, str], bins: int = 0) -> Any:
    """A tokeniser of bytes: any text goes in and comes out; `special` are named tokens of the model."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", *special.values()]
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys([*words, *letters]))}
    core = Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        extra_special_tokens=special,
        additional_special_tokens=["<|im_start|>"],
    )
    made.add_tokens([f"<loc_{bin}>" for bin in range(bins)], special_tokens=True)
    return made


def build(kind: str, folder: Path) -> Path:
    torch.manual_seed(0)
    network, processor = _BUILDERS[kind]()
    network.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    network.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _ids(words: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(words),
        "pad_token_id": words.pad_token_id,
        "eos_token_id": words.eos_token_id,
        "bos_token_id": words.bos_token_id,
    }


def _llava_onevision() -> tuple[Any, Any]:
    words = tokenizer({"image_token": "<image>", "video_token": "<video>"})
    tower = transformers.SiglipVisionConfig(**_TOWER, image_size=28, patch_size=14, vision_use_head=False)
    pins = [[28, 28], [28, 56], [56, 28]]
    config = transformers.LlavaOnevisionConfig(
        vision_config=tower,
        text_config=transformers.Qwen2Config(**_TEXT, **_ids(words)),
        image_token_index=words.image_token_id,
        video_token_index=words.video_token_id,
        image_grid_pinpoints=pins,
    )
    processor = transformers.LlavaOnevisionProcessor(
        transformers.LlavaOnevisionImageProcessor(size={"height": 28, "width": 28}, image_grid_pinpoints=pins),
        words,
        transformers.LlavaOnevisionVideoProcessor(),
        num_image_tokens=4,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
    )
    return transformers.LlavaOnevisionForConditionalGeneration(config), processor


def _gemma3() -> tuple[Any, Any]:
    words = tokenizer({"image_token": "<img>", "boi_token": "<boi>", "eoi_token": "<eoi>"})
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**_TOWER, image_size=28, patch_size=14, vision_use_head=False),
        text_config=transformers.Gemma3TextConfig(**_TEXT, **_ids(words), head_dim=8, sliding_window=64),
        mm_tokens_per_image=4,
        boi_token_index=words.boi_token_id,
        eoi_token_index=words.eoi_token_id,
        image_token_index=words.image_token_id,
    )
    processor = transformers.Gemma3Processor(
        transformers.Gemma3ImageProcessor(size={"height": 28, "width": 28}),
        words,
        chat_template=TEMPLATE.replace("IMAGE", "<boi>"),
        image_seq_length=4,
    )
    return transformers.Gemma3ForConditionalGeneration(config), processor


def _qwen(name: str, config: Any, patch: int, **tower: Any) -> tuple[Any, Any]:
    words = tokenizer(
        {
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_start_token": "<|vision_start|>",
            "vision_end_token": "<|vision_end|>",
        }
    )
    tokens = {f"{one}_id": getattr(words, f"{one}_id") for one in ("image_token", "video_token")}
    tokens |= {f"{one}_id": getattr(words, f"{one}_id") for one in ("vision_start_token", "vision_end_token")}
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    if name == "Qwen3VL":
        rope["mrope_interleaved"] = True
    text = {**_TEXT, **_ids(words), "rope_parameters": rope} | ({"head_dim": 8} if name == "Qwen3VL" else {})
    made = config(text_config=text, vision_config={"depth": 2, "num_heads": 2, "patch_size": patch, **tower}, **tokens)
    processor = getattr(transformers, f"{name}Processor")(
        transformers.Qwen2VLImageProcessor(
            patch_size=patch, merge_size=2, size={"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
        ),
        words,
        (transformers.Qwen3VLVideoProcessor if name == "Qwen3VL" else transformers.Qwen2VLVideoProcessor)(),
        chat_template=TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(made), processor


def _internvl() -> tuple[Any, Any]:
    words = tokenizer(
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        }
    )
    config = transformers.InternVLConfig(
        vision_config=transformers.InternVLVisionConfig(**_TOWER, image_size=28, patch_size=14),
        text_config=transformers.Qwen2Config(**_TEXT, **_ids(words)),
        image_token_id=words.context_image_token_id,
        image_seq_length=1,
    )
    processor = transformers.InternVLProcessor(
        transformers.GotOcr2ImageProcessor(size={"height": 28, "width": 28}, crop_to_patches=True, max_patches=4),
        words,
        transformers.InternVLVideoProcessor(),
        image_seq_length=1,
        chat_template=TEMPLATE.replace("IMAGE", "<IMG_CONTEXT>\n"),
    )
    return transformers.InternVLForConditionalGeneration(config), processor


def _florence2() -> tuple[Any, Any]:
    words = tokenizer({"image_token": "<image>"}, bins=1000)
    image = transformers.CLIPImageProcessor(
        size={"height": 32, "width": 32}, crop_size={"height": 32, "width": 32}, do_center_crop=False
    )
    image.image_seq_length = 2
    text = transformers.BartConfig(
        **_ids(words),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=512,
        decoder_start_token_id=words.eos_token_id,
        forced_eos_token_id=None,
    )
    tower = {
        "depths": (1, 1),
        "patch_size": (7, 3),
        "patch_stride": (4, 8),
        "patch_padding": (3, 1),
        "patch_prenorm": (False, True),
        "embed_dim": (8, 16),
        "num_heads": (2, 2),
        "num_groups": (2, 2),
        "window_size": 4,
        "projection_dim": 16,
    }
    config = transformers.Florence2Config(text_config=text, vision_config=tower, image_token_id=words.image_token_id)
    network = transformers.Florence2ForConditionalGeneration(config)
    network.generation_config.decoder_start_token_id = words.eos_token_id
    return network, transformers.Florence2Processor(image, words)


_SHARED = {"hidden_size": 16, "out_hidden_size": 16, "intermediate_size": 32}
_BUILDERS: dict[str, Any] = {
    "llava_onevision": _llava_onevision,
    "gemma3": _gemma3,
    "qwen2_5_vl": lambda: _qwen(
        "Qwen2_5_VL", transformers.Qwen2_5_VLConfig, 14, **_SHARED, window_size=28, fullatt_block_indexes=[1]
    ),
    "qwen3_vl": lambda: _qwen(
        "Qwen3VL", transformers.Qwen3VLConfig, 16, **_SHARED, deepstack_visual_indexes=[0], num_position_embeddings=16
    ),
    "qwen2_vl": lambda: _qwen("Qwen2VL", transformers.Qwen2VLConfig, 14, embed_dim=16, hidden_size=16, mlp_ratio=2),
    "internvl": _internvl,
    "florence2": _florence2,
}
FAMILY_OF = {
    "llava_onevision": "radvlm",
    "gemma3": "medgemma",
    "qwen2_5_vl": "qwen25vl",
    "qwen3_vl": "qwen3vl",
    "qwen2_vl": "qwen3vl",
    "internvl": "internvl",
    "florence2": "florence2",
}
