"""References that show what a number is worth, on every dataset: a ceiling and two floors."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch

from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models.base import SaliencyModel
from xbench.runtime.errors import UserError
from xbench.types import Batch, ModelOutput


class Oracle(SaliencyModel):
    """The ceiling: it is told the ground truth. Its map is the annotated region, its probability the label.

    Whatever it does not score 1 on is wrong in the harness or cannot be reached with the dataset.
    """

    preprocessing = Preprocessing(stretch((224, 224)))
    map_scale = "probability"

    def score(self, batch: Batch) -> ModelOutput:
        """Return labels as logits and regions as maps, which on the native grid must all be of one size."""
        sizes = {regions.shape[1:] for regions in batch.truth.regions}
        if len(sizes) > 1:
            raise UserError(
                f"{self.name}: its maps are the annotated regions themselves, and on the native grid the images of a "
                "batch differ in size: set --data.batch_size 1."
            )
        labels = torch.from_numpy(batch.truth.labels).to(self.device, torch.float32)
        saliency = torch.zeros(*labels.shape, *sizes.pop(), dtype=torch.float32, device=labels.device)
        saliency[torch.from_numpy(batch.truth.has_region)] = torch.cat(batch.truth.regions).float()
        return ModelOutput(logits=labels, probabilities=labels.clamp(min=0), saliency=saliency)


class CentrePrior(SaliencyModel):
    """A floor that knows where findings tend to lie but does not look: one Gaussian blob in the middle of the image.

    It scores every image alike, so its AUROC is one half.

    Args:
        width: Standard deviation of the blob as a share of the image's sides.
        size: Side of the square map in pixels.
    """

    name = "centre"
    preprocessing = Preprocessing(stretch((224, 224)))

    def __init__(self, width: float = 0.2, size: int = 224) -> None:
        super().__init__()
        if width <= 0 or size < 1:
            raise UserError(f"--model.width {width} --model.size {size}: both must be positive.", exit_status=2)
        offset = (torch.arange(size) + 0.5) / size - 0.5
        profile = torch.exp(-0.5 * (offset / width) ** 2)
        self.register_buffer("blob", profile[:, None] * profile[None, :])

    def score(self, batch: Batch) -> ModelOutput:
        """Return zero logits and the blob for every finding."""
        blob = self.get_buffer("blob")
        logits = blob.new_zeros(len(batch), len(self.findings))
        return ModelOutput(logits, torch.sigmoid(logits), blob.expand(*logits.shape, -1, -1))


class UniformRandom(SaliencyModel):
    """The other floor: independent uniform noise as map and as probability.

    The noise is a function of the seed and the image's name alone, so it does not depend on batches or processes. A run
    is one draw of chance; the floor `Random` of a report is the mean of many.

    Args:
        seed: Seed of the noise; that of `--seed_everything` if None, which is 0 outside of a run.
        size: Side of the square map in pixels, that of the patch grid of a ViT-B/16 by default.
    """

    name = "random"
    preprocessing = Preprocessing(stretch((224, 224)))
    map_scale = "probability"

    def __init__(self, seed: int | None = None, size: int = 14) -> None:
        super().__init__()
        if size < 1:
            raise UserError(f"--model.size {size} must be positive.", exit_status=2)
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.size = size

    def score(self, batch: Batch) -> ModelOutput:
        """Return noise."""
        noise = torch.stack([self._noise(image_id) for image_id in batch.truth.image_ids]).to(self.device)
        probabilities, maps = noise[..., -1], noise[..., :-1].unflatten(-1, (self.size, self.size))
        return ModelOutput(torch.logit(probabilities, eps=1e-6), probabilities, maps)

    def provenance(self) -> dict[str, Any]:
        """Return the seed and the size of the maps."""
        return {"seed": self.seed, "size": self.size}

    def _noise(self, image_id: str) -> torch.Tensor:
        digest = hashlib.sha256(f"{self.seed}/{image_id}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        return torch.rand(len(self.findings), self.size**2 + 1, generator=generator)
