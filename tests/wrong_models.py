"""Models that each break one thing that the harness takes for granted."""

from __future__ import annotations

import albumentations as A
import numpy as np
import torch
import torch.nn.functional as F
from toys import Brightness

from xbench.preprocessing import CentreCrop, PillowResize, Preprocessing
from xbench.types import ModelOutput


class Coarse(Brightness):
    """The sound one that the others spoil: 7 x 7 maps."""

    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency = F.avg_pool2d(output.saliency, 8)
        return output


class Lopsided(Coarse):
    """Sound too: one corner of its map is about the image as a whole, as single tokens of vision transformers are."""

    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency[..., 4:, :3] += 50 * output.saliency.mean(dim=(2, 3), keepdim=True)
        return output


class LopsidedMirrored(Lopsided):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency = output.saliency.flip(-1)
        return output


class NormalisesOverTheBatch(Coarse):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        logits = (output.logits - output.logits.mean(0)) * 1.5
        return ModelOutput(logits, logits.sigmoid(), output.saliency)


class DropoutLeftOn(Coarse):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        logits = F.dropout(output.logits)
        return ModelOutput(logits, logits.sigmoid(), output.saliency)


class DrawsItsText(Coarse):
    def encode_prompts(self, prompts):
        return super().encode_prompts(prompts) * (1 + 0.01 * torch.rand(len(prompts)))


class FlatMap(Coarse):
    """A row of tokens that nobody gave two dimensions."""

    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency = output.saliency.flatten(2)
        return output


class MapInARow(Coarse):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency = output.saliency.flatten(2)[:, :, None]
        return output


class Transposed(Coarse):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency = output.saliency.mT
        return output


class Mirrored(Coarse):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency = output.saliency.flip(-1)
        return output


class _HiddenCrop(A.ImageOnlyTransform):
    """A crop that does not tell where the corners went."""

    def __init__(self) -> None:
        super().__init__(p=1.0)

    def apply(self, img, **params):
        return np.ascontiguousarray(img[16:, 8:-8])


class LyingView(Coarse):
    def __init__(self) -> None:
        super().__init__()
        self.preprocessing = Preprocessing([PillowResize(72), CentreCrop(72), _HiddenCrop()])


class GradientLeft(Coarse):
    def forward(self, images, queries):
        with torch.inference_mode(False), torch.enable_grad():
            return super().forward(images.clone().requires_grad_(), queries.clone())


class SwitchesToTraining(Coarse):
    def forward(self, images, queries):
        self.train()
        return super().forward(images, queries)


class NaN(Coarse):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        output.saliency[1, 2, 3, 3] = torch.nan
        return output


class NoProbabilities(Coarse):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        return ModelOutput(output.logits, 10 * output.logits, output.saliency)


class SoftmaxOverFindings(Coarse):
    """Which asks whether a finding is more likely than the others, not whether it is there."""

    def encode_prompts(self, prompts):
        return super().encode_prompts(prompts) * torch.linspace(0.5, 2, len(prompts))

    def forward(self, images, queries):
        output = super().forward(images, queries)
        return ModelOutput(output.logits, output.logits.softmax(1), output.saliency)


class EmptyPrompt(Coarse):
    def default_prompts(self, finding):
        return [" "]


class Constant(Coarse):
    def __init__(self) -> None:
        super().__init__(fault="constant")
