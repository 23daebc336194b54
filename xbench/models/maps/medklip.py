"""MedKLIP: a decoder asks the patches of a radiograph about explanations of findings.

C. Wu, X. Zhang, Y. Zhang, Y. Wang, W. Xie, "MedKLIP: Medical Knowledge Enhanced Language-Image Pre-Training for X-ray
Diagnosis", ICCV 2023. The score is that of a linear layer on the decoded query; the map is the attention of the query
to the patches, mean over the decoder's four layers and four heads.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from xbench.models.networks.book import TRUNK_WIDTH, WIDTH, BookModel, BookNetwork, trunk
from xbench.models.networks.checkpoint import fill, locate, read_tensors, undrawn
from xbench.models.networks.query_decoder import absent_or_present, classify
from xbench.types import ModelOutput

_SOURCE = (
    "checkpoints/README.md of github.com/MediaBrain-SJTU/MedKLIP links the folder that holds checkpoint_final.pth; no "
    "licence is given."
)


class MedKLIP(BookModel):
    """MedKLIP with the weights of its authors.

    Every image is asked about all entries of a book together, on which the scores depend. The authors' book is the file
    `observation explanation.json` of their repository, which has no licence and so is not included: give its path as
    `book`. Findings are then scored by the entries of the authors' scripts, those of CheXpert by MAVL's. A finding
    without an entry is appended, in the words of the package. Without `book` everything is in the words of the package:
    a normal radiograph, clear lungs, and all its findings.

    Args:
        checkpoint: The authors' file (`checkpoint_final.pth`), or its tensors as safetensors.
        **options: Those of `xbench.models.networks.book.BookModel`. A finding's prompt replaces its explanation.
    """

    def __init__(self, checkpoint: str | None = None, **options: Any) -> None:
        path = locate(checkpoint, "MedKLIP", _SOURCE)
        model = undrawn(_Network)
        fill(model, read_tensors(path), path, "MedKLIP")
        super().__init__(model, path, texts=1, concepts=None, **options)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalised images (B, 3, H, W) against queries (C, 1, 256) that are asked together.

        Returns:
            Logits (B, C), present minus absent, and the probabilities of present, their sigmoid; saliency (B, C, rows,
            columns), the attention of each query to the image. Each map sums to 1. All float32.
        """
        decoded, attention = self.decode(self.model.image_tokens(images), queries)
        return absent_or_present(classify(self.model.classifier, decoded.squeeze(2)), attention.squeeze(2))


class _Network(BookNetwork):
    """MedKLIP's network under the names of the authors' file."""

    def __init__(self) -> None:
        super().__init__(head_inputs=WIDTH)
        self.res_features = trunk()
        self.res_l1 = nn.Linear(TRUNK_WIDTH, TRUNK_WIDTH)
        self.res_l2 = nn.Linear(TRUNK_WIDTH, WIDTH)
        # Of use in training alone, but every file of the authors has it.
        self.cl_fc = nn.Linear(WIDTH, 768)

    def image_tokens(self, images: Tensor) -> Tensor:
        """Encode images (B, 3, H, W) as tokens (B, 256, H / 16, W / 16)."""
        tokens = self.res_features(images).permute(0, 2, 3, 1)
        return cast(Tensor, self.res_l2(self.res_l1(tokens).relu()).permute(0, 3, 1, 2))
