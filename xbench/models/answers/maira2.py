"""MAIRA-2: DINOv2 encodes patches of a radiograph, which Vicuna reads as words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from transformers import Dinov2Backbone, Dinov2Config, LlamaConfig, LlamaForCausalLM

from xbench.models.answers.local import OFFLINE, Architecture, Local, load_network
from xbench.models.networks.checkpoint import config_of, explained
from xbench.models.networks.reads_patches import PatchProcessor, ReadsPatches
from xbench.predictions.asking import Question
from xbench.runtime.errors import UserError

EXAMPLE = "microsoft/maira-2"
IMAGE_HERE = "<image>"  # place of the image in a question
_TENSORS = {  # patterns of published tensor names, and the names here
    "^vision_tower": "model.vision_tower",
    "^multi_modal_projector": "model.multi_modal_projector",
    r"^language_model\.model": "model",
    r"^language_model\.lm_head": "lm_head",
}


class Maira2(Local):
    """MAIRA-2 (Microsoft), which answers where phrases are on a frontal radiograph.

    It sees only the central square of the radiograph, and its numbers are hundredths of that square. It cannot be asked
    whether a finding is present.

    Args:
        checkpoint: Folder from `hf download`, or the name of a downloaded checkpoint.
        **options: Those of `xbench.models.Local`; in your own questions, `<image>` marks the place of the image.
    """

    architecture = Architecture({}, EXAMPLE, tokens=150, recognizes=False)

    def __init__(self, checkpoint: str | None = None, **options: Any) -> None:
        super().__init__("maira2", checkpoint, recognise=False, processor=None, **options)

    def _load(self, dtype: str) -> tuple[Any, Any]:
        config = _config(self.checkpoint)
        advice = f"Give the files of {EXAMPLE}."
        network = load_network(Maira2Network, self.checkpoint, dtype, advice, config=config, key_mapping=dict(_TENSORS))
        network.image_token = config.image_token
        side = network.model.vision_tower.config.image_size
        patches = (side // network.model.vision_tower.config.patch_size) ** 2
        return network, Processor(self.checkpoint, config.image_token, side, patches)

    def _turns(self, query: Question, image: Image.Image | None) -> list[dict[str, Any]]:
        before, found, after = query.text.partition(IMAGE_HERE)
        texts = [{"type": "text", "text": text, "index": None} for text in (before, after)]
        shown = {"type": "image", "image": image, "text": None, "index": 0}
        parts = [texts[0], shown, texts[1]] if found else [shown, texts[0]]
        turns = super()._turns(query, image)
        return [*turns[:-1], {"role": "user", "content": parts}]


class Maira2Network(ReadsPatches, LlamaForCausalLM):
    """Vicuna that reads the patches of an image in place of image tokens."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.vision_tower = Dinov2Backbone(Dinov2Config(**config.visual))
        widths = [self.model.vision_tower.config.hidden_size, *[config.hidden_size] * config.projector_layers]
        layers = [part for seen, width in pairwise(widths) for part in (nn.Linear(seen, width), nn.GELU())]
        self.model.multi_modal_projector = nn.ModuleDict({"layers": nn.Sequential(*layers[:-1])})
        self.post_init()  # type: ignore[no-untyped-call]

    def patches(self, pixels: Tensor) -> Tensor:
        # Only the feature map has the last norm applied.
        (seen,) = self.model.vision_tower(pixels).feature_maps
        return self.model.multi_modal_projector["layers"](seen[:, 1:])  # type: ignore[no-any-return]


class Processor(PatchProcessor):
    """Applies the checkpoint's chat template to turns, and crops the central square of an image."""

    def __init__(self, folder: Path, image_token: int, side: int, patches: int) -> None:
        needed = "tokenizer.json, tokenizer_config.json, the chat template and preprocessor_config.json"
        with explained(f"The processor in {folder} cannot be loaded", f"Fetch {needed} from {EXAMPLE} again."):
            self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder, **OFFLINE)
            # Tokenizers of older transformers read neither of these files.
            if (file := folder / "chat_template.jinja").is_file():
                self.chat_template = file.read_text(encoding="utf-8")
            elif (file := folder / "chat_template.json").is_file():
                self.chat_template = json.loads(file.read_text(encoding="utf-8"))["chat_template"]
            else:
                self.chat_template = self.tokenizer.chat_template
            settings = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
            self._mean, self._std = (torch.tensor(settings[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
            sides = {settings["size"]["shortest_edge"], *settings["crop_size"].values()}
        self.side, self.mark = side, self.tokenizer.convert_ids_to_tokens(image_token)
        problems = {
            f"has no token {image_token}, which stands for the image": self.mark is None,
            "has another image size than the network": sides != {side},
            "has no chat template": not self.chat_template,
        }
        for problem in [text for text, there in problems.items() if there]:
            raise UserError(f"The processor in {folder} {problem}. Fetch its files from {EXAMPLE}.")
        self.span = self.mark * patches

    def words(self, turn: Sequence[Any]) -> str:
        return self.tokenizer.apply_chat_template(  # type: ignore[no-any-return]
            turn, chat_template=self.chat_template, tokenize=False, add_generation_prompt=True
        )

    def pixels(self, image: Image.Image) -> Tensor:
        """Return DINOv2's input (1, 3, S, S): the normalized central square, stretched to 0 to 255 and truncated."""
        gray = np.asarray(image.convert("L"), np.float32)
        low, high = gray.min(), gray.max()
        stretched = ((gray - low) / (high - low) * 255 if high > low else np.zeros_like(gray)).astype(np.uint8)
        shorter = min(stretched.shape)
        height, width = (int(self.side * one / shorter) for one in stretched.shape)
        shown = Image.fromarray(stretched).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        left, top = (width - self.side) // 2, (height - self.side) // 2
        square = np.asarray(shown.crop((left, top, left + self.side, top + self.side)), np.float32) / 255
        return ((torch.from_numpy(square).permute(2, 0, 1) - self._mean) / self._std)[None]


def _config(folder: Path) -> LlamaConfig:
    settings: Any = config_of(folder, "MAIRA-2", EXAMPLE, model_type=("maira2",), projector_hidden_act=("gelu", None))
    with explained(f"{folder} has no config.json of MAIRA-2", f"Fetch it again from {EXAMPLE}."):
        words, visual = (
            {name: value for name, value in settings[part].items() if name != "model_type"}
            for part in ("text_config", "vision_config")
        )
        config = LlamaConfig(**words)
        config.visual = visual | {"apply_layernorm": True, "reshape_hidden_states": False}
        config.projector_layers = int(settings["projector_n_layers"])
        config.image_token = int(settings.get("image_token_index", settings.get("image_token_id")))
        tower = Dinov2Config(**config.visual)
        if tower.out_features != tower.stage_names[-1:]:
            raise ValueError(f"it takes {', '.join(tower.out_features)} of DINOv2")
    return config
