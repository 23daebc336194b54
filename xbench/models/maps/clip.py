"""CLIP-style models of open_clip.

A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021. The score is
exp(logit_scale) times the cosine of the pooled image vector and the text vector. The map is by default the cosine of
each patch token of the last block with the text vector, after the patch token went through what the class token goes
through: final norm and projection. `xbench.models.networks.clip_saliency` has stronger ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import open_clip

from xbench.models.networks.checkpoint import explained
from xbench.models.networks.open_clip import OpenCLIP, activation_error, downloaded, from_hub, read_config, weights_in
from xbench.runtime.errors import UserError


class CLIP(OpenCLIP):
    """A CLIP-style model of open_clip with a vision transformer as image tower.

    Args:
        architecture: open_clip's name of the model. OpenAI, MetaCLIP and DFN weights need the one with `-quickgelu`.
            `local-dir:FOLDER` and `hf-hub:ORGANISATION/NAME` take configuration, weights and tokeniser from a folder or
            from the Hugging Face hub.
        pretrained: open_clip's tag of the weights. Left aside with `checkpoint`, `local-dir:` and `hf-hub:`.
        checkpoint: File of weights to load instead (.safetensors, .pt, .pth or .bin). open_clip's default mean,
            standard deviation and resizing go with it, unless the architecture is a `local-dir:` or `hf-hub:` one.
        templates: Present and absent prompt, each with `{finding}`.
        **options: Those of `xbench.models.networks.open_clip.OpenCLIP`. Other `prompts` replace the present one; of
            several the mean direction counts.
    """

    def __init__(
        self,
        architecture: str = "ViT-B-16-quickgelu",
        pretrained: str | None = "openai",
        checkpoint: str | None = None,
        templates: tuple[str, str] = ("a chest x-ray showing {finding}", "a chest x-ray without {finding}"),
        **options: Any,
    ) -> None:
        folder, tag = _config_folder(architecture), {}
        if folder is None:
            architecture = _known_architecture(architecture)
            if checkpoint is None:
                tag = _known_tag(architecture, pretrained)
        super().__init__(
            architecture,
            folder,
            lambda: Path(checkpoint).expanduser() if checkpoint else _own_weights(architecture, folder, tag),
            "Give the --model.architecture that they were trained with.",
            tag,
            templates=templates,
            **options,
        )
        self.pretrained = pretrained if tag else None

    @cached_property
    def _tokenizer(self) -> Any:
        folder = _config_folder(self.architecture)
        config = read_config(folder, "")["model_cfg"] if folder else open_clip.get_model_config(self.architecture)
        # open_clip's own tokenisers do not know the option.
        of_transformers = config.get("text_cfg", {}).get("hf_tokenizer_name")
        options = {"trust_remote_code": False} if of_transformers else {}
        advice = (
            "Without a network, put its files into one folder with the model's open_clip_config.json and give "
            "--model.architecture local-dir:FOLDER."
        )
        with explained(f"The tokeniser of {self.architecture} cannot be loaded", advice):
            return open_clip.get_tokenizer(self.architecture, **options)


def _config_folder(architecture: str) -> Path | None:
    """Return the folder of a `local-dir:` or `hf-hub:` model's configuration, None for one that open_clip knows."""
    scheme, _, place = architecture.partition(":")
    if scheme not in ("local-dir", "hf-hub"):
        return None
    hub = scheme == "hf-hub"
    folder = from_hub(architecture, "open_clip_config.json").parent if hub else Path(place).expanduser()
    read_config(folder, f"--model.architecture {architecture}")
    return folder


def _known_architecture(architecture: str) -> str:
    """Return the name under which open_clip knows a model, which it lets be written `ViT-B/32` too."""
    name, known = architecture.replace("/", "-"), open_clip.list_models()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
        raise UserError(
            f"--model.architecture {architecture} is no model of open_clip {open_clip.__version__}. "
            f"Nearest of its {len(known)}: {', '.join(near) or 'none'}. A folder is given as local-dir:FOLDER.",
            exit_status=2,
        )
    return name


def _known_tag(architecture: str, pretrained: str | None) -> dict[str, Any]:
    """Return open_clip's entry of a tag: where the weights are, and their mean, std and resizing."""
    tag = open_clip.get_pretrained_cfg(architecture, pretrained) if pretrained else {}
    if not tag:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise UserError(
            f"--model.pretrained {pretrained} is no tag of weights for {architecture}; it has: {tags}. Weights in a "
            "file are given by --model.checkpoint.",
            exit_status=2,
        )
    if tag.get("quick_gelu") and not open_clip.get_model_config(architecture).get("quick_gelu"):
        raise activation_error(architecture, f"The weights {pretrained}", "QuickGELU")
    return tag


def _own_weights(architecture: str, folder: Path | None, tag: Mapping[str, Any]) -> Path:
    """Return the file of a model's own weights, downloaded if need be."""
    if folder is None:
        source = f"huggingface.co/{tag['hf_hub']}" if tag["hf_hub"] else tag["url"]
        return downloaded(architecture, source, lambda: open_clip.download_pretrained(tag))
    if architecture.startswith("hf-hub:"):
        return from_hub(architecture)
    return weights_in(folder, f"--model.architecture {architecture}")
