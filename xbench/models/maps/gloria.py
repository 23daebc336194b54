"""GLoRIA: words of a sentence attend to the cells of a radiograph.

S.-C. Huang, L. Shen, M. P. Lungren and S. Yeung, "GLoRIA: A Multimodal Global-Local Representation Learning Framework
for Label-efficient Medical Image Recognition", ICCV 2021. The score is the mean of the cosine of image and sentence and
a local similarity from the attention of each word to the cells. The map is that attention. AFLoc shares the networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50  # type: ignore[import-untyped]

from xbench.geometry.transforms import Preprocessing, on_black_canvas
from xbench.models.base import VLM, too_long
from xbench.models.networks.checkpoint import fill, locate, read_remarks, read_tensors, undrawn
from xbench.models.networks.report_text import TOKENS, ReportText, clean
from xbench.runtime.errors import UserError
from xbench.types import MapScale, ModelOutput

_TOKENISER = "emilyalsentzer/Bio_ClinicalBERT"
# Side of the input in pixels, and side to which the network enlarges it.
_INPUT, _ENLARGED = 224, 299
_UNUSED = (
    "text_encoder.model.embeddings.position_ids",
    # AFLoc's projections for training.
    "img_encoder.local2_embedder.weight",
    "img_encoder.local_f_embedder.weight",
)


class LocalGlobal(VLM):
    """The networks of GLoRIA and AFLoc from one checkpoint: a BERT, and a ResNet whose third stage gives the cells.

    A radiograph is fitted on a black square and enlarged to 299 x 299 in the network, which gives 19 x 19 cells.

    Args:
        checkpoint: File of the authors, or its tensors in a .safetensors file.
        text_encoder: Hugging Face id or local folder of the tokenizer. The weights come from the checkpoint.
    """

    title: ClassVar[str]
    source: ClassVar[str]
    canvas: ClassVar[int]
    image_size, cleaned = _INPUT, staticmethod(clean)
    stated = "checkpoint text_encoder image_size saliency"

    def __init__(self, checkpoint: str | None = None, text_encoder: str = _TOKENISER, **options: Any) -> None:
        super().__init__(**options)
        self.checkpoint = locate(checkpoint, self.title, self.source)
        self.text_source = text_encoder
        self.preprocessing = Preprocessing(on_black_canvas(self.canvas, _INPUT), mean=(0.5,) * 3, std=(0.5,) * 3)
        # Official names begin with the module of the training script.
        prefix = f"{self.title.lower()}."
        tensors = {name.rpartition(prefix)[2]: tensor for name, tensor in read_tensors(self.checkpoint).items()}
        self.img_encoder = undrawn(lambda: _ImageEncoder(tensors))
        self.text_encoder = ReportText(tensors, text_encoder, self.title, _TOKENISER)
        # Without the training script's prefix, the two models have the same names.
        converted = read_remarks(self.checkpoint).get("model", "")
        if converted in ("gloria", "afloc") and converted != self.title.lower():
            raise UserError(f"{self.checkpoint} was converted from a file of {converted}, not of {self.title}.")
        fill(self, tensors, self.checkpoint, self.title, _UNUSED)


class GLoRIA(LocalGlobal):
    """GLoRIA. A finding may have several prompts: score and map are those of the best match to the image.

    The authors standardize scores over a batch; here a score does not depend on other images. Probabilities are
    sigmoids.

    Args:
        checkpoint: The authors' `chexpert_resnet50.ckpt` or `chexpert_resnet18.ckpt`, or its tensors as safetensors.
        saliency: The map: mean or maximum of the words' attention, or the dot product of cells and sentence (`dot`).
        count: Rows of the word table to use: as many as `words`, or as `characters` of the prompt, as in the authors'
            code.
    """

    title, canvas, wording = "GLoRIA", 256, "There is {}"
    stated = "count"
    source = (
        "It is chexpert_resnet50.ckpt, linked from the README of github.com/marshuang80/gloria; the weights have "
        "no stated license."
    )

    def __init__(
        self,
        checkpoint: str | None = None,
        saliency: Literal["attention_mean", "attention_max", "dot"] = "attention_mean",
        count: Literal["words", "characters"] = "words",
        **options: Any,
    ) -> None:
        super().__init__(checkpoint, **options)
        self.saliency, self.count = saliency, count
        self.map_scale: MapScale = "attention" if saliency == "attention_mean" else "none"

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Return vectors (C, P, 97, 768): each prompt's sentence and words, padded with NaN."""
        flat = [prompt for of_class in prompts for prompt in of_class]
        counts = [len(prompt) - prompt.count("[") for prompt in flat] if self.count == "characters" else None
        if counts and max(counts) >= TOKENS:
            too_long(flat[counts.index(max(counts))], TOKENS - 1, "GLoRIA with --model.count characters", "characters")
            counts = [min(count, TOKENS - 1) for count in counts]
        text = self.encode_tokens(*self.text_encoder.tokenise(flat), counts)
        return nn.utils.rnn.pad_sequence(text.split([*map(len, prompts)]), batch_first=True, padding_value=torch.nan)

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Encode tokenized prompts (N, L) as sentence and words (N, 97, 768), NaN after the given count of words."""
        text = self.text_encoder(input_ids.to(self.device), attention_mask.to(self.device))
        words = (text[:, 1:] != 0).any(-1).sum(-1) - 2 if counts is None else torch.tensor(counts, device=text.device)
        beyond = torch.arange(TOKENS - 1, device=text.device) >= words[:, None]
        return torch.cat([text[:, :1], text[:, 2:].masked_fill(beyond[..., None], torch.nan)], dim=1)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, 224, 224): logits (B, C) from -3 to 3, and maps (B, C, 19, 19)."""
        whole, cells = (part.float() for part in self.img_encoder(images))
        with torch.autocast(images.device.type, enabled=False):
            asked = queries.flatten(0, 1).float()
            counts = [*asked[:, 1:, 0].isnan().logical_not().sum(dim=1).tolist()]
            seen = [self._attend(cells, prompt[0], prompt[1 : 1 + n]) for prompt, n in zip(asked, counts, strict=True)]
            local, maps = zip(*seen, strict=True)
            similarity = (torch.stack(local, dim=1) + _cosine(whole[:, None], asked[None, :, 0])) / 2
            lacking = torch.tensor(counts, device=images.device) == 0
            similarity = similarity.masked_fill(lacking, -torch.inf).unflatten(1, queries.shape[:2])
            logits, best = similarity.max(dim=2)
            of_class = torch.stack(maps, dim=1).unflatten(1, queries.shape[:2])
            chosen = of_class.take_along_dim(best[..., None, None, None], dim=2).squeeze(2)
            return ModelOutput(logits, torch.sigmoid(logits), chosen)

    def _attend(self, cells: Tensor, sentence: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the local similarity (B) of cells (B, 768, h, w) and words (n, 768), and the maps (B, h, w)."""
        flat = cells.flatten(2).transpose(1, 2)
        if not len(words):
            return flat.new_full((len(flat),), torch.nan), flat.new_zeros(len(flat), *cells.shape[2:])
        attention = (4 * (flat @ words.T).softmax(dim=2)).softmax(dim=1)
        local = 5 * _cosine(words, attention.mT @ flat).amax(dim=1)
        if self.saliency == "dot":
            seen = flat @ sentence
        else:
            seen = attention.mean(dim=2) if self.saliency == "attention_mean" else attention.amax(dim=2)
        return local, seen.unflatten(1, cells.shape[2:])

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "saliency": {"kind": self.saliency}}


class _ImageEncoder(nn.Module):
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        deep = "img_encoder.model.layer1.0.conv3.weight" in tensors
        self.model = resnet50() if deep or "img_encoder.model.conv1.weight" not in tensors else resnet18()
        width = self.model.fc.in_features
        self.model.fc = nn.Identity()
        self.global_embedder = nn.Linear(width, 768)
        self.local_embedder = nn.Conv2d(width // 2, 768, 1, bias=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors (B, 768) of images and (B, 768, 19, 19) of their cells, not normalized."""
        net = self.model
        seen = F.interpolate(images, (_ENLARGED, _ENLARGED), mode="bilinear", align_corners=True)
        seen = net.maxpool(net.relu(net.bn1(net.conv1(seen))))
        cells = net.layer3(net.layer2(net.layer1(seen)))
        return self.global_embedder(net.layer4(cells).mean(dim=(2, 3))), self.local_embedder(cells)


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(one, dim=-1) * torch.linalg.vector_norm(other, dim=-1)
    product: Tensor = torch.linalg.vecdot(one, other)
    return product.div(lengths.clamp(min=1e-8))
