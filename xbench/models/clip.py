"""CLIP-style models of open_clip.

A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021. The score is
exp(logit_scale) times the cosine of the pooled image vector and the text vector. The map is by default the cosine of
each patch token of the last block with the text vector, after the patch token went through what the class token goes
through: final norm and projection. `xbench.models.components.clip_saliency` has stronger ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import open_clip

from xbench.errors import UserError
from xbench.models.components.checkpoint import first_line
from xbench.models.components.open_clip import (
    OpenCLIP,
    config_folder,
    known_architecture,
    known_tag,
    own_weights,
)


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
        **options: Those of `xbench.models.components.open_clip.OpenCLIP` and of every vision-language model. Other
            `prompts` replace the present one; of several the mean direction counts.

    Raises:
        UserError: Unknown architecture or tag, weights that cannot be had, read or fitted, an image tower whose
            patches do not share the way of the class token, or a size or definition of maps that it does not allow.
    """

    def __init__(
        self,
        architecture: str = "ViT-B-16-quickgelu",
        pretrained: str | None = "openai",
        checkpoint: str | None = None,
        templates: tuple[str, str] = ("a chest x-ray showing {finding}", "a chest x-ray without {finding}"),
        **options: Any,
    ) -> None:
        folder, tag = config_folder(architecture), {}
        if folder is None:
            architecture = known_architecture(architecture)
            if checkpoint is None:
                tag = known_tag(architecture, pretrained)
        super().__init__(
            architecture,
            folder,
            lambda: Path(checkpoint).expanduser() if checkpoint else own_weights(architecture, folder, tag),
            "Give the --model.architecture that they were trained with.",
            tag,
            templates=templates,
            **options,
        )
        self.pretrained = pretrained if tag else None

    def _load_tokenizer(self) -> Any:
        try:
            return open_clip.get_tokenizer(self.architecture)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise UserError(
                f"The tokeniser of {self.architecture} cannot be loaded ({first_line(error)}). Without a network, put "
                "its files into one folder with the model's open_clip_config.json and give --model.architecture "
                "local-dir:FOLDER."
            ) from error
