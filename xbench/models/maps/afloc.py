"""AFLoc: similarity of the cells of a radiograph to the vector of a whole sentence.

"Multi-modal vision-language model for generalizable annotation-free pathology localization and clinical diagnosis",
Nature Biomedical Engineering 2025 (arXiv 2401.02044). The networks are GLoRIA's. The map is the dot product of cells
and sentence, unnormalized and smoothed by a Gaussian; the score is the cosine of image and sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from xbench.models.maps.gloria import LocalGlobal
from xbench.runtime.errors import UsageError
from xbench.types import ModelOutput


class AFLoc(LocalGlobal):
    """AFLoc, which sees the whole radiograph. Values compare only within a map; probabilities are sigmoids of cosines.

    Args:
        checkpoint: A `.ckpt` file of the authors, or its tensors in a .safetensors file.
        sigma: Standard deviation of the Gaussian over the map, in cells of 19 x 19; 0 for none.
    """

    title, canvas, wording = "AFLoc", 224, "Findings suggesting {}"
    saliency = "dot"
    source = (
        "The README of github.com/YH0517/AFLoc links the folder that contains it; the weights have no stated license."
    )

    def __init__(self, checkpoint: str | None = None, sigma: float = 1.5, **options: Any) -> None:
        if not 0 <= sigma < 19:
            raise UsageError(f"--model.sigma {sigma} must be at least 0 and below 19.")
        super().__init__(checkpoint, **options)
        self.map_sigma = sigma

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        return self.encode_tokens(*self.text_encoder.tokenise(self.one_of_each(prompts)))

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode tokenized prompts (C, L) as vectors (C, 768)."""
        text: Tensor = self.text_encoder(input_ids.to(self.device), attention_mask.to(self.device))
        return text[:, 0]

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, 224, 224) against sentences (C, 768): cosines, and maps (B, C, 19, 19)."""
        whole, cells = (part.float() for part in self.img_encoder(images))
        with torch.autocast(images.device.type, enabled=False):
            sentences = queries.float()
            maps = self.smoothed(torch.einsum("bdhw,cd->bchw", cells, sentences))
            logits = F.cosine_similarity(whole[:, None], sentences[None], dim=-1)
            return ModelOutput(logits, torch.sigmoid(logits), maps)
