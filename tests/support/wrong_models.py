"""Models that each break one thing that the harness takes for granted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import albumentations as A
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from toys import Brightness

from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.transforms import CenterCrop, PillowResize
from xbench.models.demo import Demo
from xbench.types import Batch, ModelOutput


class Coarse(Brightness):
    """The sound one that the others spoil: 7 x 7 maps."""

    other_preprocessing: Preprocessing | None = None

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.preprocessing = self.other_preprocessing or self.preprocessing

    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency = F.avg_pool2d(output.saliency, 8)
        return self.spoilt(output)

    def spoilt(self, output: ModelOutput) -> ModelOutput:
        return output


def spoils(name: str, spoil: Callable[[ModelOutput], ModelOutput], base: type[Coarse] = Coarse) -> type[Coarse]:
    return type(name, (base,), {"spoilt": lambda self, output: spoil(base.spoilt(self, output))})


def spoils_map(name: str, spoil: Callable[[Tensor], Tensor], base: type[Coarse] = Coarse) -> type[Coarse]:
    return spoils(name, lambda output: replace(output, saliency=spoil(output.saliency)), base)


def spoils_logits(name: str, spoil: Callable[[Tensor], Tensor]) -> type[Coarse]:
    def spoilt(output: ModelOutput) -> ModelOutput:
        logits = spoil(output.logits)
        return ModelOutput(logits, logits.sigmoid(), output.saliency)

    return spoils(name, spoilt)


def with_corner(saliency: Tensor) -> Tensor:
    saliency[..., 4:, :3] += 50 * saliency.mean(dim=(2, 3), keepdim=True)
    return saliency


def with_nan(saliency: Tensor) -> Tensor:
    saliency[1, 2, 3, 3] = torch.nan
    return saliency


# Sound too: one corner of its map is about the image as a whole, as single tokens of vision transformers are.
Lopsided = spoils_map("Lopsided", with_corner)
LopsidedMirrored = spoils_map("LopsidedMirrored", lambda saliency: saliency.flip(-1), Lopsided)
NormalizesOverTheBatch = spoils_logits("NormalizesOverTheBatch", lambda logits: (logits - logits.mean(0)) * 1.5)
DropoutLeftOn = spoils_logits("DropoutLeftOn", F.dropout)
FlatMap = spoils_map("FlatMap", lambda saliency: saliency.flatten(2))
MapInARow = spoils_map("MapInARow", lambda saliency: saliency.flatten(2)[:, :, None])
Transposed = spoils_map("Transposed", lambda saliency: saliency.mT)
Mirrored = spoils_map("Mirrored", lambda saliency: saliency.flip(-1))
NaN = spoils_map("NaN", with_nan)
NoProbabilities = spoils("NoProbabilities", lambda output: replace(output, probabilities=10 * output.logits))


class DrawsItsText(Coarse):
    def encode_prompts(self, prompts):
        return super().encode_prompts(prompts) * (1 + 0.01 * torch.rand(len(prompts)))


def prepares(name: str, preprocessing: Preprocessing) -> type[Coarse]:
    return type(name, (Coarse,), {"other_preprocessing": preprocessing})


# A crop that does not tell where the corners went.
_HIDDEN_CROP = A.Lambda(image=lambda image, **_: np.ascontiguousarray(image[16:, 8:-8]), p=1.0)
_SQUARE, _HALVES = stretch((56, 56)), {"mean": (0.5,) * 3, "std": (0.5,) * 3}
LyingView = prepares("LyingView", Preprocessing([PillowResize(72), CenterCrop(72), _HIDDEN_CROP], (0, 0, 0), (1, 1, 1)))
# Mean and standard deviation of pixels from 0 to 255, which get here as 0 to 1.
MeanOf255 = prepares("MeanOf255", Preprocessing(_SQUARE, mean=(127.5,) * 3, std=(63.75,) * 3))
TimesThe255th = prepares("TimesThe255th", Preprocessing(_SQUARE, std=(1 / 255,) * 3))
ForgetsToNormalize = prepares("ForgetsToNormalize", Preprocessing(_SQUARE))
# In the geometry, and then again.
NormalizesTwice = prepares("NormalizesTwice", Preprocessing([*_SQUARE, A.Normalize(mean=0.5, std=0.5)], **_HALVES))


class DividesTwice(Coarse):
    """By 255 in `forward`, as its authors' script does, behind a preprocessing that has done so."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 3, kernel_size=1, bias=False)
        torch.nn.init.dirac_(self.stem.weight)

    def forward(self, images, queries):
        return super().forward(self.stem(images / 255) * 255, queries)


class GradientLeft(Coarse):
    def forward(self, images, queries):
        with torch.inference_mode(False), torch.enable_grad():
            return super().forward(images.clone().requires_grad_(), queries.clone())


class SwitchesToTraining(Coarse):
    def forward(self, images, queries):
        self.train()
        return super().forward(images, queries)


class SoftmaxOverFindings(Coarse):
    """Which asks whether a finding is more likely than the others, not whether it is there."""

    def encode_prompts(self, prompts):
        return super().encode_prompts(prompts) * torch.linspace(0.5, 2, len(prompts))

    def spoilt(self, output):
        return ModelOutput(output.logits, output.logits.softmax(1), output.saliency)


class EmptyPrompt(Coarse):
    def default_prompts(self, finding):
        return [" "]


class Constant(Coarse):
    def __init__(self) -> None:
        super().__init__(fault="constant")


class NegatedDemo(Demo):
    """What is left of a good model when somebody loses a minus sign."""

    def score(self, batch: Batch) -> ModelOutput:
        output = super().score(batch)
        return replace(output, saliency=-output.saliency)
