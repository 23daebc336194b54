"""CheXagent-2: SigLIP encodes patches of a radiograph, which Phi-2 reads as words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from numpy import asarray, float32
from PIL import Image
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PhiConfig, PhiForCausalLM, SiglipVisionConfig, SiglipVisionModel

from xbench.models.answers.local import Architecture, Dtype, Local, load_network
from xbench.models.networks.checkpoint import config_of, explained, first_line
from xbench.models.networks.reads_patches import PatchProcessor, ReadsPatches
from xbench.runtime.errors import UserError

EXAMPLE = "StanfordAIMI/CheXagent-2-3b"
END, IMAGE, START_IMAGE, END_IMAGE = "<|endoftext|>", "<|imgpad|>", "<|img|>", "<|/img|>"
_TAGS = (START_IMAGE, END_IMAGE, IMAGE, "<|ref|>", "<|/ref|>", "<|box|>", "<|/box|>")

# Required, because transformers' defaults would make Phi-2 generate nonsense without an error.
_SETTINGS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("hidden_act", "layer_norm_eps", "partial_rotary_factor"),
)


class CheXagent2(Local):
    """CheXagent-2 (Stanford AIMI), which answers where findings are and whether they are present.

    The radiograph is stretched to a square, so its numbers are hundredths of the whole.

    Args:
        checkpoint: Folder from `hf download`, or the name of a downloaded checkpoint.
        dtype: Data type of the weights; the authors use bfloat16, and `auto` keeps the stored type.
    """

    architecture = Architecture({}, EXAMPLE, tokens=512)

    def __init__(self, checkpoint: str | None = None, dtype: Dtype = "bfloat16", **options: Any) -> None:
        super().__init__("chexagent2", checkpoint, processor=None, dtype=dtype, **options)

    def _load(self, dtype: str) -> tuple[Any, Any]:
        config = _config(self.checkpoint)
        advice = f"Give the files of {EXAMPLE}."
        network = load_network(CheXagent2Network, self.checkpoint, dtype, advice, config=config)
        tokenizer = _tokenizer(self.checkpoint)
        network.image_token = tokenizer.convert_tokens_to_ids(IMAGE)
        network.generation_config.eos_token_id = tokenizer.eos_token_id
        return network, Processor(tokenizer, config.visual["image_size"], len(network.model.visual.pos_embed))


class CheXagent2Network(ReadsPatches, PhiForCausalLM):
    """Phi-2 that reads the patches of an image in place of image tokens."""

    def __init__(self, config: PhiConfig) -> None:
        super().__init__(config)
        self.model.visual = Patches(config.visual, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def patches(self, pixels: Tensor) -> Tensor:
        return self.model.visual(pixels)  # type: ignore[no-any-return]


class Patches(nn.Module):
    """Patches as words: SigLIP's last layer before its norm, then two linear layers and a matrix."""

    def __init__(self, tower: Mapping[str, Any], width: int) -> None:
        super().__init__()
        self.model = SiglipVisionModel(SiglipVisionConfig(**tower))  # its pooling head is stored and not used
        seen = tower["hidden_size"]
        self.pos_embed = nn.Parameter(torch.empty((tower["image_size"] // tower["patch_size"]) ** 2, seen))
        self.attn_pool = nn.Sequential(nn.Linear(seen, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.ln_post = nn.LayerNorm(width, eps=1e-6)
        self.proj = nn.Parameter(torch.empty(width, width))

    def forward(self, pixels: Tensor) -> Tensor:
        layers = self.model.encoder(inputs_embeds=self.model.embeddings(pixels)).last_hidden_state
        return self.ln_post(self.attn_pool(layers + self.pos_embed)) @ self.proj  # type: ignore[no-any-return]


class Processor(PatchProcessor):
    """Applies CheXagent-2's chat format to turns, and stretches images to the square."""

    def __init__(self, tokenizer: Any, side: int, patches: int) -> None:
        self.tokenizer, self.side = tokenizer, side
        self.mark, self.span = START_IMAGE + END_IMAGE, START_IMAGE + IMAGE * patches + END_IMAGE

    def words(self, turn: Sequence[Any]) -> str:
        words = ""
        for message in turn:
            parts = (f"Picture 1:{self.mark}\n" if "image" in part else part["text"] for part in message["content"])
            words += f"<|{message['role']}|>\n{''.join(parts)}{END}\n"
        return f"{words}<|assistant|>\n"

    def pixels(self, image: Image.Image) -> Tensor:
        """Return SigLIP's input (1, 3, S, S) in [-1, 1] for an image of any size."""
        square = image.convert("RGB").resize((self.side, self.side), Image.Resampling.BICUBIC)
        return torch.from_numpy(asarray(square, float32) / 127.5 - 1).permute(2, 0, 1)[None]


def _config(folder: Path) -> PhiConfig:
    settings = config_of(folder, "CheXagent-2", EXAMPLE, _SETTINGS)
    shapes: dict[str, list[int]] = {}
    tower = "model.visual.model."
    advice = f"Give --model.checkpoint a folder as `hf download {EXAMPLE} --local-dir FOLDER` leaves it."
    with explained(f"The weights in {folder} cannot be read as CheXagent-2's", advice):
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        width, _, patch, _ = shapes[f"{tower}embeddings.patch_embedding.weight"]
        patches, _ = shapes[f"{tower}embeddings.position_embedding.weight"]
        wide, _ = shapes[f"{tower}encoder.layers.0.mlp.fc1.weight"]
    own = {name: value for name, value in settings.items() if name not in ("auto_map", "visual")}
    config = PhiConfig.from_dict(own)
    config.visual = {
        "hidden_size": width,
        "intermediate_size": wide,
        "num_hidden_layers": sum(name.startswith(f"{tower}encoder.") and name.endswith("fc1.bias") for name in shapes),
        "num_attention_heads": max(1, width // 64),  # as in all SigLIP models but the largest
        "image_size": math.isqrt(patches) * patch,
        "patch_size": patch,
    }
    return config


def _tokenizer(folder: Path) -> Any:
    """Return Phi-2's tokenizer with CheXagent-2's added tokens, each at the id that the files give."""
    try:
        added = json.loads((folder / "added_tokens.json").read_text(encoding="utf-8"))
        core = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens([END])
        for word in sorted(added, key=added.__getitem__):
            core.add_tokens([AddedToken(word, special=word.startswith("<|"), normalized=False)])
        moved = [word for word, place in added.items() if core.token_to_id(word) != place]
        missing = [word for word in (END, *_TAGS) if core.token_to_id(word) is None]
    except Exception as error:  # tokenizers raises plain exceptions
        needed = f"vocab.json, merges.txt and added_tokens.json of {EXAMPLE}"
        raise UserError(f"The tokenizer in {folder} cannot be read ({first_line(error)}). Fetch {needed}.") from error
    if moved or missing:
        what = f"lacks {', '.join(missing)}" if missing else f"gives {', '.join(moved[:3])} ids unlike its files"
        raise UserError(f"The tokenizer in {folder} {what}: it is not CheXagent-2's. Fetch its files from {EXAMPLE}.")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, bos_token=END, unk_token=END)
