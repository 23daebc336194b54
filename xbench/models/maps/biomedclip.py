"""BiomedCLIP: a vision transformer and PubMedBERT, trained on figures and captions of biomedical articles.

S. Zhang et al., "BiomedCLIP: a multimodal biomedical foundation model pretrained from fifteen million scientific
image-text pairs", 2023. Score and maps are those of `xbench.models.maps.clip`.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import transformers
from open_clip.tokenizer import HFTokenizer

from xbench.models.maps.clip import CLIP, read_config, weights_in
from xbench.models.networks.checkpoint import explained
from xbench.runtime.errors import UsageError, UserError

_HUB = "hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"

_TEXT_ENCODER = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"
_TEXT_ENCODERS = (_TEXT_ENCODER, _TEXT_ENCODER.replace("BiomedBERT", "PubMedBERT"))

# The authors' open_clip_config.json; mean, standard deviation and resizing are open_clip's defaults.
_MODEL: dict[str, Any] = {
    "embed_dim": 512,
    "vision_cfg": {
        "timm_model_name": "vit_base_patch16_224",
        "timm_model_pretrained": False,
        "timm_pool": "",
        "timm_proj": "linear",
        "image_size": 224,
    },
    "text_cfg": {
        "hf_model_name": _TEXT_ENCODER,
        "hf_tokenizer_name": _TEXT_ENCODER,
        "hf_proj_type": "mlp",
        "hf_pooler_type": "cls_last_hidden_state_pooler",
        "context_length": 256,
    },
}


class BiomedCLIP(CLIP):
    """BiomedCLIP through open_clip, with prompts that begin like the authors' ("this is a photo of").

    Args:
        checkpoint: File of the authors' weights (open_clip_pytorch_model.bin, or as .safetensors), or a folder in
            open_clip's layout with weights, configuration and tokenizer; downloaded from the Hugging Face hub by
            default.
        text_encoder: Folder, or name on the Hugging Face hub, of a BERT's config.json and tokenizer. By default those
            in the folder of the checkpoint, or the authors'.
        templates: Present and absent prompt, each with `{finding}`.
    """

    title, stated = _HUB, "text_encoder"
    advice = "Give --model.checkpoint the file that the authors of BiomedCLIP released."

    def __init__(
        self,
        checkpoint: str | None = None,
        text_encoder: str | None = None,
        templates: tuple[str, str] = (
            "this is a photo of a chest x-ray showing {finding}",
            "this is a photo of a chest x-ray without {finding}",
        ),
        **options: Any,
    ) -> None:
        place = Path(str(checkpoint or "").removeprefix("local-dir:")).expanduser()
        folder = place if checkpoint and place.is_dir() else None
        path = weights_in(folder, f"--model.checkpoint {folder}") if folder else place
        config = _config(folder)
        text = config["model_cfg"]["text_cfg"]
        with tempfile.TemporaryDirectory() as built:
            text["hf_model_name"] = _text_config(text_encoder, text["hf_model_name"], folder, built)
            Path(built, "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
            file = str(path) if checkpoint else None
            super().__init__(f"local-dir:{built}", None, file, templates=templates, **options)
        beside = folder and any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json"))
        source = text_encoder or (str(folder) if beside else text.get("hf_tokenizer_name") or _TEXT_ENCODER)
        self.text_source = os.path.expanduser(source)
        self._context_length = text["context_length"]

    @cached_property
    def _tokenizer(self) -> Any:
        advice = (
            f"Without a network, give --model.text_encoder a folder with the files of {_TEXT_ENCODER}: vocab.txt, "
            "tokenizer_config.json and config.json."
        )
        with explained(f"The tokenizer of {self.text_source} cannot be loaded", advice):
            tokenizer = HFTokenizer(self.text_source, context_length=self._context_length, trust_remote_code=False)
        known, expected = len(tokenizer.tokenizer), self.model.text.config.vocab_size
        if known != expected:
            raise UserError(
                f"The tokenizer of {self.text_source} has {known} tokens, but BiomedCLIP was trained with {expected}. "
                f"Give --model.text_encoder the files of {_TEXT_ENCODER}."
            )
        return tokenizer


def _config(folder: Path | None) -> dict[str, Any]:
    if folder is None or not (folder / "open_clip_config.json").is_file():
        return {"model_cfg": copy.deepcopy(_MODEL), "preprocess_cfg": {}}
    config = read_config(folder)
    text = config["model_cfg"].get("text_cfg", {})
    if not {"hf_model_name", "context_length"} <= text.keys():
        raise UsageError(
            f"--model.checkpoint {folder}: the text_cfg in its open_clip_config.json lacks hf_model_name or "
            "context_length, so it is not a BiomedCLIP. Run other open_clip models with xbench.models.CLIP and "
            f"--model.architecture local-dir:{folder}."
        )
    return config


def _text_config(text_encoder: str | None, configured: str, folder: Path | None, bert: str) -> str:
    if text_encoder is not None:
        advice = f"Give a folder with the files of {_TEXT_ENCODER}, or leave the option out for the authors' own."
        with explained(f"--model.text_encoder {text_encoder}: its config.json cannot be loaded", advice):
            place = os.path.expanduser(text_encoder)
            transformers.AutoConfig.from_pretrained(place, trust_remote_code=False).save_pretrained(bert)
    elif configured in _TEXT_ENCODERS:
        transformers.BertConfig(vocab_size=30522).save_pretrained(bert)
    elif not Path(configured).is_dir() and folder is not None and (folder / "config.json").is_file():
        return str(folder)
    else:
        return configured
    return bert
