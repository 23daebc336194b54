"""MAVL: MedKLIP with nine texts per finding, each with its own query.

V. M. H. Phan, Y. Xie, Y. Qi, L. Liu, L. Liu, B. Zhang, Z. Liao, Q. Wu, M.-S. To, J. W. Verjans, "Decomposing Disease
Descriptions for Enhanced Pathology Detection: A Multi-Aspect Vision-Language Pre-Training Framework", CVPR 2024. The
score comes from a linear layer on the concatenated decoded queries of a finding. The map is the mean attention of four
of them to the patches, over the decoder's four layers and four heads.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from open_clip.modified_resnet import AttentionPool2d
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from xbench.models.maps.medklip import TRUNK_WIDTH, WIDTH, BookModel, BookNetwork, trunk
from xbench.models.networks.checkpoint import fill, locate, read_tensors, undrawn
from xbench.models.networks.query_decoder import absent_or_present, choose, classify
from xbench.runtime.errors import UsageError, UserError
from xbench.types import ModelOutput

_SOURCE = (
    "README.md of github.com/HieuPhan33/MAVL links the folder with checkpoint_full_46.pth, for classification, and "
    "checkpoint_full_40.pth, for grounding; no license is stated."
)

_NORMAL = {"normal", "clear", "clear lungs"}


class MAVL(BookModel):
    """MAVL with the weights of its authors.

    The nine texts of a finding are its explanation, then statements on border, fluid, location, opacity, other,
    patterns, shape and texture. The book works as in `xbench.models.MedKLIP`.

    Args:
        checkpoint: A file of the authors (`checkpoint_full_46.pth`), or its tensors as safetensors.
        concepts: File with the eight further texts on each entry of `book`, in the order above; needed with `book`.
        mode: Source of the score. `feature`: the decoded queries. `text`: the cosines of the image with the queries,
            each compared with those of the first two entries, a normal radiograph and clear lungs; the authors use it
            for COVID-19 and for rare findings.
        aspects: Texts whose attention makes the map; 0 is the explanation.
        merge: How to combine them: `avg` or `max` over `aspects`, or `global` for only the explanation.
        **options: Those of `xbench.models.maps.medklip.BookModel`. Nine prompts of a finding replace its texts, eight
            all but the explanation, one the explanation.
    """

    stated = "mode"

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        book: str | None = None,
        concepts: str | None = None,
        mode: Literal["feature", "text"] = "feature",
        aspects: tuple[int, ...] = (0, 6, 7, 8),
        merge: Literal["avg", "max", "global"] = "avg",
        **options: Any,
    ) -> None:
        path = locate(checkpoint, "MAVL", _SOURCE)
        # The authors' scripts remove this string wherever it occurs.
        tensors = {name.replace("module.", ""): tensor for name, tensor in read_tensors(path).items()}
        classifier = tensors.get("classifier.weight")
        texts = 9 if classifier is None else max(1, classifier.shape[-1] // WIDTH)
        model = undrawn(lambda: _Network(texts))
        fill(model, tensors, path, "MAVL", ignored=("temp",))
        if (book is None) != (concepts is None):
            raise UsageError(
                "MAVL's book is two files: give both --model.book with the explanations and --model.concepts with the "
                "other texts on the same entries."
            )
        super().__init__(model, path, texts=texts, concepts=concepts, book=book, **options)
        self.mode, self.merge = mode, merge
        self.aspects = [0] if merge == "global" else choose("aspects", aspects, texts)
        self.saliency |= {"aspects": self.aspects, "merge": merge}
        if merge == "max":
            self.map_scale = "none"
        if mode == "text" and not {name.lower() for name in list(self._entries)[:2]} <= _NORMAL:
            raise UsageError(
                "--model.mode text compares each finding with a normal radiograph and clear lungs, so the first two "
                f"entries of {book} must be normal and clear."
            )

    def setup(self, stage: str) -> None:
        super().setup(stage)
        records = getattr(self.trainer.datamodule, "records", ())  # type: ignore[attr-defined]
        if self.mode == "text" and any(query.text for record in records for query in record.queries or ()):
            raise UsageError(
                "--model.mode text compares findings with two entries of the book, but the phrases of this dataset are "
                "asked without the book. Leave the option out."
            )

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, H, W) against queries (C, 9, 256) that are asked together.

        Logits are present minus absent in mode `feature`. Maps of single texts, and their mean, sum to 1.
        """
        features = self.model.backbone(images)
        decoded, attention = self.decode(self.model.image_tokens(features), queries)
        seen = attention[:, :, self.aspects]
        saliency = seen.amax(dim=2) if self.merge == "max" else seen.mean(dim=2)
        if self.mode == "feature":
            return absent_or_present(classify(self.model.classifier, decoded.flatten(2)), saliency)
        probabilities = self._compared(self.model.pool(features), queries)
        return ModelOutput(probabilities.logit(), probabilities, saliency)

    def _compared(self, images: Tensor, queries: Tensor) -> Tensor:
        """Compare image vectors (B, 256) with queries (C, 9, 256), each against those of the two normal entries."""
        if len(queries) < 2:
            raise UserError("MAVL's mode `text` needs the queries of its two normal entries before all others.")
        with torch.autocast(images.device.type, enabled=False):
            images, queries = (F.normalize(vectors.float(), dim=-1) for vectors in (images, queries))
            cosines = torch.einsum("bd,ckd->bck", images, queries)
            lead = cosines[:, :, None] - cosines[:, None, :2]
            return lead.sigmoid().mean(dim=(2, 3))


class _Network(BookNetwork):
    def __init__(self, texts: int) -> None:
        super().__init__(head_inputs=texts * WIDTH)
        self.backbone = trunk()
        self.res_l1 = nn.Sequential(nn.Conv2d(TRUNK_WIDTH, TRUNK_WIDTH, 1), nn.PReLU())
        self.res_l2 = nn.Conv2d(TRUNK_WIDTH, WIDTH, 1)
        self.pool = _AttentionPool(14, TRUNK_WIDTH, 8, WIDTH)
        # Used only in training, but every file of the authors contains it.
        self.location_emb = nn.Conv1d(WIDTH, 768, kernel_size=texts, stride=texts)

    def image_tokens(self, features: Tensor) -> Tensor:
        return cast(Tensor, self.res_l2(self.res_l1(features)))


class _AttentionPool(AttentionPool2d):  # type: ignore[misc]
    """CLIP's attention pool for any grid: the mean of all positions attends to itself and to each of them."""

    def forward(self, features: Tensor) -> Tensor:
        grid = list(features.shape[2:])
        positions = resample_abs_pos_embed(self.positional_embedding[None], grid, antialias=False)
        tokens = features.flatten(2).transpose(1, 2)
        tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1) + positions
        projected = self.q_proj(tokens[:, :1]), self.k_proj(tokens), self.v_proj(tokens)
        query, keys, values = (part.unflatten(-1, (8, -1)).transpose(1, 2) for part in projected)
        pooled = F.scaled_dot_product_attention(query, keys, values)
        return cast(Tensor, self.c_proj(pooled.transpose(1, 2).flatten(1)))
