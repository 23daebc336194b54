"""CARZero: one cross-attention decoder lets sentence and image look at each other, in both directions.

H. Lai, Q. Yao, Z. Jiang, R. Wang, Z. He, X. Tao and S. K. Zhou, "CARZero: Cross-Attention Alignment for Radiology
Zero-Shot Classification", CVPR 2024. In direction A the sentence vector of a class is the query and the 197 image
tokens are the memory; in direction B the class token of the image is the query, and the sentence vector and 97 word
vectors of a class are the memory. One head turns every decoded query into a number, and the score is the mean of the
two. The map is the cross-attention of direction A.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import albumentations as A
import cv2
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor, nn

from xbench.geometry.preprocessing import CentreCrop, PillowResize, Preprocessing
from xbench.models.networks.bert import bert_like, encode_in_chunks, tokenise, vocabulary
from xbench.models.networks.checkpoint import fill, locate, read_tensors, undrawn, with_first_names
from xbench.models.networks.query_decoder import DecoderModel, KeysValues, QueryDecoder
from xbench.models.networks.vit import ViTB16
from xbench.runtime.errors import UserError
from xbench.types import ModelOutput

_TOKENISER = "Laihaoran/BioClinicalMPBERT"
_WIDTH, _LAYERS, _HEADS, _PATCH = 768, 4, 4, 16

TOKENS = 97
"""Length to which every prompt is padded, and rows of its table of words."""

OFFICIAL_NAMES = {
    "Calcification": "Tissue Calcification",
    "Consolidation": "Pulmonary Consolidation",
    "Edema": "Pulmonary Edema",
    "Emphysema": "Pulmonary Emphysema",
    "Fracture": "Bone Fracture",
    "Infiltration": "Pulmonary Infiltration",
    "Mass": "Pulmonary Mass",
    "Nodule": "Lung Nodule",
    "Pulmonary Fibrosis": "Fibrosis",
}
"""What the authors call a finding in their prompts for ChestX-ray14, CheXpert and ChestX-Det10, if not by its name."""

TextQueries = tuple[Tensor, list[KeysValues]]
"""What `CARZero.forward` needs of C classes: the sentence vectors (C, 768), queries of direction A, and for each layer
keys and values (C, heads, 98, 768 / heads) of the text, the memory of direction B."""


class CARZero(DecoderModel):
    """CARZero with its vision transformer (ViT-B/16), its BERT and its fusion decoder, all from one checkpoint.

    The official score is an unbounded number whose zero means nothing; only its rank within a class does. Probabilities
    are its sigmoid, which keeps the ranks, so that AUROC and average precision are those of the official score.

    Args:
        checkpoint: The authors' `CARZero_best_model.ckpt`, or its tensors in a .safetensors file.
        text_encoder: Hugging Face id or local folder of the tokeniser. The weights come from the checkpoint.
        **options: Those of `xbench.models.networks.query_decoder.DecoderModel`. The canvas that the input is cropped
            from grows with `image_size`. The authors repeat each value of a map 16 x 16 (`saliency_upsample` of
            `nearest`).

    Attributes:
        word_pieces: Which tokens make a word, read from the tokeniser on first use; assign one to do without.
    """

    def __init__(self, checkpoint: str | None = None, text_encoder: str = _TOKENISER, **options: Any) -> None:
        path = locate(checkpoint, "CARZero", _SOURCE)
        super().__init__(path, _PATCH, (_LAYERS, _HEADS), text_encoder=text_encoder, **options)
        self.preprocessing = preprocessing(self.image_size)
        # Official names have the module `CARZero` of the training script in front.
        tensors = {name.rpartition("CARZero.")[2]: tensor for name, tensor in read_tensors(path).items()}
        first = tensors.get("fusion_module.mlp_head.0.weight")
        self.img_encoder = undrawn(lambda: _ImageEncoder(ViTB16(224)))
        self.fusion_module = undrawn(lambda: _Fusion(linear_head=first is not None and len(first) == 1))
        self.text_encoder = _TextEncoder(bert_like(tensors, "text_encoder.model."))
        tensors = with_first_names(tensors, {"fusion_module.decoder_norm.": "fusion_module.decoder.norm."})
        fill(self, tensors, path, "CARZero", _UNUSED)
        self.requires_grad_(False).eval()

    def default_prompts(self, finding: str) -> list[str]:
        """Return the official prompt, "There is" and what the authors call the finding; else its name."""
        return [f"There is {OFFICIAL_NAMES.get(finding, finding)}"]

    def word_prompts(self, finding: str, texts: Sequence[str]) -> Sequence[str]:
        """Return the texts, names and phrases in the official sentence: alone, a single word would be dropped."""
        return [f"There is {text}" for text in texts] if self.prompt_source in ("name", "phrase") else texts

    def tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask (C, 97) of one prompt per class, cleaned."""
        raw = self.one_of_each(prompts)
        cleaned = [clean(prompt) for prompt in raw]
        if "" in cleaned:
            raise UserError(
                f"CARZero drops sentences of a single word, and of the prompt {raw[cleaned.index('')]!r} nothing is "
                'left. Write a sentence, such as "There is Edema".'
            )
        return tokenise(self.text_source, cleaned, TOKENS, self.name)

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> TextQueries:
        """Encode tokenised prompts, and project what direction B attends to once for all images.

        Token ids are (C, L) or (C, 1, L) int64, each row from [CLS] to [SEP] and then padded, L at most 97.
        """
        text = self.encode_text(input_ids, attention_mask)
        return text[:, 0], self.fusion_module.keys_values(text)

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the text vectors (C, 98, 768) of tokenised prompts: sentence, words, then zeros."""
        ids, mask = (part[:, 0] for part in self.by_class(input_ids, attention_mask, 1))
        pieces = self._pieces(ids, mask)
        pieces.check(ids)
        return encode_in_chunks(lambda ids, mask: aggregate(self.text_encoder(ids, mask), ids, pieces), ids, mask)

    def forward(self, images: Tensor, queries: TextQueries) -> ModelOutput:
        """Score normalised images (B, 3, image_size, image_size) against the text of C classes, from `encode_tokens`.

        Maps (B, C, rows, columns) are attention weights that sum to less than 1, as the class token takes its share.
        """
        sentences, text_memory = queries
        fusion = self.fusion_module
        tokens = self.img_encoder(images)
        by_sentence, attention = fusion(sentences, fusion.keys_values(tokens), attention_of=self.layers)
        # Queries do not see each other, so all images can ask one class at once: here the classes are the batch.
        by_image, _ = fusion(tokens[:, 0], text_memory)
        logits = (by_sentence + by_image.T) / 2
        saliency = self.mean_attention(attention)[..., 1:]
        rows = images.shape[-2] // _PATCH
        return ModelOutput(logits, torch.sigmoid(logits), saliency.unflatten(-1, (rows, -1)))

    def _pieces(self, input_ids: Tensor, attention_mask: Tensor) -> WordPieces:
        """Return the vocabulary's word pieces; without a vocabulary, every token is a word and the last one `[SEP]`."""
        if self.word_pieces is not None:
            return self.word_pieces
        continues = torch.zeros(self.text_encoder.model.config.vocab_size, dtype=torch.bool)
        return WordPieces(continues, int(input_ids[0, int(attention_mask[0].sum()) - 1]))

    @cached_property
    def word_pieces(self) -> WordPieces | None:
        """Return the vocabulary's word pieces; None, with a warning, without a vocabulary."""
        try:
            pieces = WordPieces.of(vocabulary(self.text_source))
        except UserError as error:
            # Only reached with token ids from elsewhere: to make them from prompts takes the same files.
            rank_zero_warn(
                f"CARZero cannot tell which tokens make a word, and takes each for one. Maps are not concerned, scores "
                f"are, slightly. {error}"
            )
            return None
        known = self.text_encoder.model.config.vocab_size
        if len(pieces.continues) > known:
            raise UserError(
                f"The tokeniser of {self.text_source} has {len(pieces.continues)} tokens and the BERT in "
                f"{self.checkpoint} {known}: they do not belong together. Give --model.text_encoder the tokeniser that "
                f"CARZero was trained with, {_TOKENISER}."
            )
        return pieces


class _Named(nn.Module):
    """A network behind the name `model`, as in the authors' file."""

    model: Any

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class _ImageEncoder(_Named):
    def forward(self, images: Tensor) -> Tensor:
        """Return the normed tokens (B, 1 + N, 768) of images, the class token first."""
        return self.model.forward_features(images)  # type: ignore[no-any-return]


class _TextEncoder(_Named):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the states (C, L, 768) of tokens (C, L), summed over the last four layers, which count alike."""
        seen = self.model(input_ids, attention_mask, output_hidden_states=True)
        return torch.stack(seen.hidden_states[-4:]).sum(dim=0)


class _Fusion(nn.Module):
    """The decoder and the head that both directions share, with the names of the authors' file."""

    def __init__(self, linear_head: bool) -> None:
        super().__init__()
        self.decoder = QueryDecoder(_WIDTH, _HEADS, self_attention=False, layers=_LAYERS, feedforward=1024)
        widths = [_WIDTH] if linear_head else [_WIDTH, 1024, 512, 256]
        hidden = [(nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.1)) for before, after in pairwise(widths)]
        self.mlp_head = nn.Sequential(*chain.from_iterable(hidden), nn.Linear(widths[-1], 1))

    def keys_values(self, memory: Tensor) -> list[KeysValues]:
        """Norm and project the memory (batch, N, D)."""
        return self.decoder.keys_values(self.decoder.norm(memory))

    def forward(
        self, queries: Tensor, memory: list[KeysValues], attention_of: Collection[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Return numbers (batch, Q) float32 for queries (Q, D), and the attention weights that `QueryDecoder` gives."""
        decoded, attention = self.decoder(self.decoder.norm(queries)[None], memory, attention_of)
        # Under autocast the head would round scores to 16 bits, too few to rank them.
        with torch.autocast(decoded.device.type, enabled=False):
            scores = self.mlp_head(decoded.to(self.mlp_head[0].weight.dtype))
        return scores.squeeze(-1).float(), attention


def clean(prompt: str) -> str:
    """Return a prompt's sentences of at least two words, in lower case, ASCII, without punctuation.

    >>> clean("There is Pleural Effusion."), clean("Edema"), clean("There is a 2.5 cm nodule")
    ('there is pleural effusion', '', 'there is a 5 cm nodule')
    """
    sentences = (re.findall(r"\w+", piece.lower()) for piece in re.split(r"[0-9]+\.|\.", prompt))
    words = (word for sentence in sentences if len(sentence) > 1 for word in sentence)
    return " ".join(filter(None, (word.encode("ascii", "ignore").decode() for word in words)))


@dataclass(frozen=True)
class WordPieces:
    """What grouping needs to know of a BERT vocabulary: the id of `[SEP]`, and (V,) bool which ids continue a word."""

    continues: Tensor
    separator: int

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> WordPieces:
        """Read the vocabulary of a BERT, ids by token."""
        continues = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
        continues[[number for token, number in vocabulary.items() if token.startswith("##")]] = True
        return cls(continues, vocabulary["[SEP]"])

    def check(self, input_ids: Tensor) -> None:
        """Raise a UserError if prompts (C, L) have no `[SEP]`, or are too long."""
        if bool(input_ids[:, TOKENS:].any()):
            raise UserError(f"CARZero reads {TOKENS} tokens, and these prompts have {input_ids.shape[1]}.")
        without = ~(input_ids == self.separator).any(dim=1)
        if without.any():
            raise UserError(
                f"The token ids of class {int(without.int().argmax())} lack [SEP] (id {self.separator}), with which a "
                "prompt ends."
            )


def aggregate(states: Tensor, input_ids: Tensor, pieces: WordPieces) -> Tensor:
    """Turn the states of word pieces into a sentence vector and a table of words.

    A word is the sum of its pieces; `[CLS]` and the first `[SEP]` count as words, what follows does not count. Other
    rows are zero, and the sentence vector is the mean over all rows. States (C, L, D) of ids (C, L) become
    (C, 1 + TOKENS, D): the sentence vector, then the words.
    """
    is_separator = input_ids == pieces.separator
    counts = is_separator.cumsum(dim=1) - is_separator.long() == 0
    opens = ~pieces.continues.to(input_ids.device)[input_ids]
    opens[:, 0] = True
    word = opens.cumsum(dim=1) - 1
    # (C, L, TOKENS): a product with it adds up in one order on every device, which scatter_add does not.
    belongs = (word[..., None] == torch.arange(TOKENS, device=word.device)) & counts[..., None]
    words = belongs.transpose(1, 2).to(states.dtype) @ states
    return torch.cat([words.mean(dim=1, keepdim=True), words], dim=1)


class _ResizeByArea(PillowResize):
    """Resize the longer side by area averaging, with the authors' rounding of the other one."""

    def __init__(self, size: int) -> None:
        super().__init__(size, "longest", "area")  # type: ignore[arg-type]

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        height, width = self._target(img.shape)
        return np.asarray(cv2.resize(img, (width, height), interpolation=cv2.INTER_AREA), np.uint8)

    def _target(self, shape: Sequence[int]) -> tuple[int, int]:
        longer = max(shape[:2])
        factor = self.size / longer
        # The script multiplies by the rounded factor, so that the second side of some squares loses a pixel too.
        height, width = (max(int(side * factor), 1) for side in shape[:2])
        return (self.size, width) if shape[0] == longer else (height, self.size)


def preprocessing(image_size: int) -> Preprocessing:
    """Return the authors' preprocessing: fitted on a black square canvas, of which the border is cropped away."""
    canvas = image_size + 2 * round(image_size * 16 / 224)
    geometry = [_ResizeByArea(canvas), A.PadIfNeeded(canvas, canvas), CentreCrop(image_size)]
    return Preprocessing(geometry, mean=(0.4978,) * 3, std=(0.2449,) * 3)


_SOURCE = (
    "It is CARZero_best_model.ckpt, linked from the README of github.com/laihaoran/CARZero; no licence is stated for "
    "the weights."
)

_UNUSED = (
    "text_encoder.model.pooler.*",
    "text_encoder.model.embeddings.position_ids",
    "fusion_module.logit_scale",
    "fusion_module.decoder.layers.*.self_attn.*",
    "fusion_module.decoder.layers.*.norm1.*",
)
