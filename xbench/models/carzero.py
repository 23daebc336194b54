"""CARZero: one cross-attention decoder lets sentence and image look at each other, in both directions.

H. Lai, Q. Yao, Z. Jiang, R. Wang, Z. He, X. Tao and S. K. Zhou, "CARZero: Cross-Attention Alignment for Radiology
Zero-Shot Classification", CVPR 2024. In direction A the sentence vector of a class is the query and the 197 image
tokens are the memory; in direction B the class token of the image is the query, and the sentence vector and 97 word
vectors of a class are the memory. One head turns every decoded query into a number, and the score is the mean of the
two. The map is the cross-attention of direction A.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import cv2
import numpy as np
import torch
from albumentations import DualTransform
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BertModel

from xbench.errors import UserError
from xbench.geometry.grid import Upsampling
from xbench.geometry.preprocessing import CentreCrop, Preprocessing
from xbench.models.base import VLM, check_image_size
from xbench.models.components.bert import bert_like, encode_in_chunks, tokenise, vocabulary
from xbench.models.components.checkpoint import fill, locate, read_tensors
from xbench.models.components.query_decoder import KeysValues, Layers, QueryDecoder, choose
from xbench.models.components.vit import ViTB16
from xbench.runtime.digests import file_sha256
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

_SENTENCE_END = re.compile(r"[0-9]+\.|\.")
_WORD = re.compile(r"\w+")

TextQueries = tuple[Tensor, list[KeysValues]]
"""What `CARZero.forward` needs of C classes: the sentence vectors (C, 768), queries of direction A, and for each layer
keys and values (C, heads, 98, 768 / heads) of the text, the memory of direction B."""


class CARZero(VLM):
    """CARZero with its vision transformer (ViT-B/16), its BERT and its fusion decoder, all from one checkpoint.

    The official score is an unbounded number whose zero means nothing; only its rank within a class does. Probabilities
    are its sigmoid, which keeps the ranks, so that AUROC and average precision are those of the official score.

    Args:
        checkpoint: The authors' `CARZero_best_model.ckpt`, or its tensors in a .safetensors file.
        text_encoder: Hugging Face id or local folder of the tokeniser. The weights come from the checkpoint.
        image_size: Side of the model input in pixels, a multiple of 16. For any but 224 the position embeddings are
            interpolated, and the canvas that the input is cropped from grows in proportion.
        layers: Decoder layers, numbered from 0 to 3, whose attention the map is the mean of; officially `all`.
        heads: Their heads, from 0 to 3; officially all, which is the default.
        saliency_upsample: How maps are enlarged to the evaluation grid. The authors repeat each value 16 x 16
            (`nearest`).
        **options: Those of every vision-language model, see `xbench.models.VLM`. With the styles `name` and `phrase`
            prompts are still sentences, and `aspects` are too many texts.

    Attributes:
        word_pieces: Which tokens make a word, by the vocabulary. It is read from the tokeniser when it is first
            needed; assign one to encode tokens without a tokeniser.

    Raises:
        UserError: No checkpoint, one that does not fit, or an option out of range.
    """

    def __init__(
        self,
        checkpoint: str | None = None,
        text_encoder: str = _TOKENISER,
        image_size: int = 224,
        layers: Layers = "all",
        heads: list[int] | None = None,
        saliency_upsample: Upsampling = "bilinear",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.checkpoint = locate(checkpoint, "CARZero", _SOURCE)
        self.tokenizer_source = text_encoder
        self.layers = sorted(choose("layers", layers, _LAYERS))
        self.heads = sorted(choose("heads", heads, _HEADS))
        self.saliency_upsample = saliency_upsample
        self.image_size = image_size
        self.preprocessing = _preprocessing(image_size)

        # Official names have the module `CARZero` of the training script in front.
        found = read_tensors(self.checkpoint)
        tensors = {name.rpartition("CARZero.")[2]: tensor for name, tensor in found.items()}
        first = tensors.get("fusion_module.mlp_head.0.weight")
        # Drawing random weights would take a second, only to be replaced.
        with torch.device("meta"):
            self.img_encoder = _ImageEncoder()
            self.fusion_module = _Fusion(linear_head=first is not None and len(first) == 1)
        self.to_empty(device="cpu")
        self.text_encoder = _TextEncoder(bert_like(tensors, "text_encoder.model."))
        fill(self, tensors, self.checkpoint, "CARZero", ignored=_UNUSED, aliases=_ALIASES)
        self.requires_grad_(False).eval()

    def default_prompts(self, finding: str) -> list[str]:
        """Return the official prompt, "There is" and what the authors call the finding; else its name."""
        return [f"There is {OFFICIAL_NAMES.get(finding, finding)}"]

    def word_prompts(self, finding: str, texts: Sequence[str]) -> Sequence[str]:
        """Return the texts, names and phrases in the official sentence: alone, a single word would be dropped."""
        return [f"There is {text}" for text in texts] if self.prompt_source in ("name", "phrase") else texts

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> TextQueries:
        """Clean and tokenise one prompt per class and encode it as `encode_tokens` does.

        Raises:
            UserError: Not one prompt per class, one too long or of which cleaning leaves nothing, or no tokeniser.
        """
        if any(len(of_class) != 1 for of_class in prompts):
            raise UserError(_ONE_PROMPT)
        raw = [prompt for (prompt,) in prompts]
        cleaned = [clean(prompt) for prompt in raw]
        if "" in cleaned:
            raise UserError(
                f"CARZero drops sentences of a single word, and of the prompt {raw[cleaned.index('')]!r} nothing is "
                'left. Write a sentence, such as "There is Edema".'
            )
        # One more than the model reads shows which prompts the tokeniser would cut off.
        input_ids, attention_mask = tokenise(self.tokenizer_source, cleaned, TOKENS + 1)
        if attention_mask[:, -1].any():
            raise UserError(
                f"The prompt {raw[int(attention_mask[:, -1].argmax())]!r} has more than the {TOKENS} tokens that "
                "CARZero reads: shorten it."
            )
        return self.encode_tokens(input_ids[:, :-1], attention_mask[:, :-1])

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> TextQueries:
        """Encode tokenised prompts, and project what direction B attends to once for all images.

        Without the tokeniser's files each token counts as a word, with a warning.

        Args:
            input_ids: (C, L) or (C, 1, L) int64, each row from [CLS] to [SEP] and then padded; L at most 97.
            attention_mask: Same shape, 1 for tokens and 0 for padding; by default 0 where the id is.

        Raises:
            UserError: Not such token ids.
        """
        text = self.encode_text(input_ids, attention_mask)
        return text[:, 0], self.fusion_module.keys_values(text)

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the text vectors (C, 98, 768) of tokenised prompts: sentence, words, and zeros where there are fewer.

        Arguments and errors as of `encode_tokens`.
        """
        if attention_mask is None:
            attention_mask = input_ids != 0
        if attention_mask.shape != input_ids.shape:
            raise UserError(
                f"CARZero takes token ids and attention mask of one shape, got {tuple(input_ids.shape)} and "
                f"{tuple(attention_mask.shape)}."
            )
        input_ids, attention_mask = input_ids.long(), attention_mask.long()
        if input_ids.ndim == 3 and input_ids.shape[1] == 1:
            input_ids, attention_mask = input_ids[:, 0], attention_mask[:, 0]
        if input_ids.ndim != 2:
            raise UserError(f"{_ONE_PROMPT} These token ids have the shape {tuple(input_ids.shape)}.")
        pieces = self._pieces(input_ids, attention_mask)
        pieces.check(input_ids)

        def encode(ids: Tensor, mask: Tensor) -> Tensor:
            return aggregate(self.text_encoder(ids, mask), ids, pieces)

        return encode_in_chunks(encode, input_ids.to(self.device), attention_mask.to(self.device))

    def forward(self, images: Tensor, queries: TextQueries) -> ModelOutput:
        """Score images against the text of C classes.

        Args:
            images: (B, 3, image_size, image_size) float, normalised.
            queries: From `encode_tokens`.

        Returns:
            Logits, the official score, and probabilities (B, C); saliency (B, C, image_size / 16, image_size / 16),
            attention weights that are positive and sum to less than 1: the share of the class token is left out and
            the rest not scaled up. All float32.
        """
        sentences, text_memory = queries
        fusion = self.fusion_module
        tokens = self.img_encoder(images)
        by_sentence, attention = fusion(sentences, fusion.keys_values(tokens), attention_of=self.layers)
        # Queries do not see each other, so all images can ask one class at once: here the classes are the batch.
        by_image, _ = fusion(tokens[:, 0], text_memory)
        logits = (by_sentence + by_image.T) / 2
        chosen = [attention[layer][:, self.heads].float() for layer in self.layers]
        saliency = torch.stack(chosen).mean(dim=(0, 2))[..., 1:]
        rows = images.shape[-2] // _PATCH
        return ModelOutput(logits, torch.sigmoid(logits), saliency.unflatten(-1, (rows, -1)))

    def queries_depend_on(self) -> Mapping[str, Any]:
        """Return the digests of the weights and of the vocabulary's word pieces, and the token ids."""
        words = hashlib.sha256(self.word_pieces.continues.numpy().tobytes()).hexdigest()
        tokens = tokenise(self.tokenizer_source, [clean(text) for texts in self.prompts for text in texts], TOKENS)[0]
        return {"checkpoint_sha256": file_sha256(self.checkpoint), "words": words, "tokens": tokens.tolist()}

    def provenance(self) -> dict[str, Any]:
        """Return weights, tokeniser, input size, what the map is made of, and the prompts."""
        return {
            "checkpoint": str(self.checkpoint),
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "text_encoder": self.tokenizer_source,
            "image_size": self.image_size,
            "saliency": {"kind": "cross-attention", "layers": list(self.layers), "heads": list(self.heads)},
            **super().provenance(),
        }

    def _pieces(self, input_ids: Tensor, attention_mask: Tensor) -> WordPieces:
        """Return the vocabulary's word pieces; without a vocabulary, every token is a word and the last one `[SEP]`."""
        if "word_pieces" not in vars(self) and (lack := _lack_of_vocabulary(self.tokenizer_source)):
            # Only reached with token ids from elsewhere: to make them from prompts takes the same files.
            rank_zero_warn(
                f"CARZero cannot tell which tokens make a word, and takes each for one. Maps are not concerned, scores "
                f"are, slightly. {lack}"
            )
            known = self.text_encoder.model.config.vocab_size
            separator = int(input_ids[0, int(attention_mask[0].sum()) - 1])
            return WordPieces(torch.zeros(known, dtype=torch.bool), separator)
        return self.word_pieces

    @cached_property
    def word_pieces(self) -> WordPieces:
        """Return the vocabulary's word pieces."""
        pieces = WordPieces.of(vocabulary(self.tokenizer_source))
        known = self.text_encoder.model.config.vocab_size
        if len(pieces.continues) > known:
            raise UserError(
                f"The tokeniser of {self.tokenizer_source} has {len(pieces.continues)} tokens and the BERT in "
                f"{self.checkpoint} {known}: they do not belong together. Give --model.text_encoder the tokeniser that "
                f"CARZero was trained with, {_TOKENISER}."
            )
        return pieces


@cache
def _lack_of_vocabulary(source: str) -> str:
    """Return why there is no vocabulary, or nothing. Tried once: with a hub out of reach this takes a minute."""
    try:
        vocabulary(source)
    except UserError as error:
        return str(error)
    return ""


class _ImageEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = ViTB16(224)

    def forward(self, images: Tensor) -> Tensor:
        """Return the normed tokens (B, 1 + N, 768) of images, the class token first."""
        return self.model.forward_features(images)


class _Fusion(nn.Module):
    """The decoder and the head that both directions share, with the names of the authors' file."""

    def __init__(self, *, linear_head: bool) -> None:
        super().__init__()
        self.decoder = QueryDecoder(_WIDTH, _HEADS, self_attention=False, layers=_LAYERS, feedforward=1024)
        if linear_head:
            self.mlp_head = nn.Sequential(nn.Linear(_WIDTH, 1))
        else:
            hidden = [
                module
                for before, after in ((_WIDTH, 1024), (1024, 512), (512, 256))
                for module in (nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.1))
            ]
            self.mlp_head = nn.Sequential(*hidden, nn.Linear(256, 1))

    def keys_values(self, memory: Tensor) -> list[KeysValues]:
        """Norm and project the memory (batch, N, D)."""
        return self.decoder.keys_values(self.decoder.norm(memory))

    def forward(
        self, queries: Tensor, memory: list[KeysValues], attention_of: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return numbers (batch, Q) float32 for queries (Q, D), and the attention weights that `QueryDecoder` gives."""
        decoded, attention = self.decoder(self.decoder.norm(queries)[None], memory, attention_of)
        # Under autocast the head would round scores to 16 bits, too few to rank them.
        with torch.autocast(decoded.device.type, enabled=False):
            scores = self.mlp_head(decoded.to(self.mlp_head[0].weight.dtype))
        return scores.squeeze(-1).float(), attention


def clean(prompt: str) -> str:
    """Return what CARZero reads of a prompt: its sentences of at least two words, in lower case, without punctuation.

    Enumerations such as "2." end a sentence. Letters outside ASCII are dropped.

    >>> clean("There is Pleural Effusion."), clean("Edema"), clean("There is a 2.5 cm nodule")
    ('there is pleural effusion', '', 'there is a 5 cm nodule')
    """
    sentences = [_WORD.findall(piece.lower()) for piece in _SENTENCE_END.split(prompt)]
    words = [
        word.encode("ascii", "ignore").decode() for sentence in sentences if len(sentence) > 1 for word in sentence
    ]
    return " ".join(word for word in words if word)


class _TextEncoder(nn.Module):
    """BERT, of which the last four layers count alike, behind the name `model` as in the authors' file."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.model = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the states (C, L, 768) of tokens (C, L), summed over the last four layers."""
        seen = self.model(input_ids, attention_mask, output_hidden_states=True)
        return torch.stack(seen.hidden_states[-4:]).sum(dim=0)


@dataclass(frozen=True)
class WordPieces:
    """What grouping needs to know of a BERT vocabulary.

    Attributes:
        continues: (V,) bool: whether the token of that id continues the word before it, being written with `##`.
        separator: The id of `[SEP]`.
    """

    continues: Tensor
    separator: int

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> WordPieces:
        """Read the vocabulary of a BERT, ids by token."""
        continues = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
        continues[[number for token, number in vocabulary.items() if token.startswith("##")]] = True
        return cls(continues, vocabulary["[SEP]"])

    def check(self, input_ids: Tensor) -> None:
        """Raise a UserError if prompts (C, L) have ids beyond the vocabulary or no `[SEP]`, or are too long."""
        if input_ids.shape[1] > TOKENS and bool(input_ids[:, TOKENS:].any()):
            raise UserError(
                f"CARZero reads {TOKENS} tokens, and these prompts have {input_ids.shape[1]}: shorten them."
            )
        if int(input_ids.max()) >= len(self.continues):
            raise UserError(
                f"The token id {int(input_ids.max())} is beyond the vocabulary of {len(self.continues)} tokens: these "
                "prompts were tokenised with another one. Give --model.text_encoder that which belongs to them."
            )
        without = ~(input_ids == self.separator).any(dim=1)
        if without.any():
            raise UserError(
                f"The token ids of class {int(without.int().argmax())} lack [SEP] (id {self.separator}), with which a "
                "prompt ends: tokenise it with special tokens, as encode_prompts does."
            )


def aggregate(states: Tensor, input_ids: Tensor, pieces: WordPieces) -> Tensor:
    """Turn the states of word pieces into a sentence vector and a table of words.

    A word is the sum of its pieces; `[CLS]` and the first `[SEP]` count as words, what follows does not count. Rows
    that no word needs are zero, and the sentence vector is the mean over all rows, those included.

    Args:
        states: (C, L, D) float, summed over BERT's layers.
        input_ids: (C, L) int64, each row with a `[SEP]`; L at most `TOKENS`.
        pieces: From the vocabulary that the ids belong to.

    Returns:
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


class _FitCanvas(DualTransform):
    """Resize the longer side to that of a square canvas and pad the shorter one with black, as the authors do."""

    def __init__(self, size: int) -> None:
        super().__init__(p=1.0)
        self.size = size

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        height, width, top, left = self._place(img.shape)
        canvas = np.zeros((self.size, self.size), np.uint8)
        canvas[top : top + height, left : left + width] = cv2.resize(img, (width, height), interpolation=cv2.INTER_AREA)
        return canvas

    def apply_to_keypoints(self, keypoints: NDArray[np.float32], **params: Any) -> NDArray[np.float32]:
        shape = params["shape"]
        height, width, top, left = self._place(shape)
        moved = keypoints.copy()
        moved[:, 0] = moved[:, 0] * (width / shape[1]) + left
        moved[:, 1] = moved[:, 1] * (height / shape[0]) + top
        return moved

    def _place(self, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """Return height, width, top and left of the radiograph on the canvas."""
        longer = max(shape[:2])
        factor = self.size / longer
        # The script multiplies by the rounded factor, so that the second side of some squares loses a pixel too.
        height, width = (max(int(side * factor), 1) for side in shape[:2])
        if shape[0] == longer:
            height = self.size
        else:
            width = self.size
        return height, width, (self.size - height) // 2, (self.size - width) // 2


def _preprocessing(image_size: int) -> Preprocessing:
    check_image_size(image_size, _PATCH)
    border = round(image_size * 16 / 224)
    geometry = [_FitCanvas(image_size + 2 * border), CentreCrop(image_size)]
    return Preprocessing(geometry, mean=(0.4978,) * 3, std=(0.2449,) * 3)


_SOURCE = (
    "It is CARZero_best_model.ckpt, linked from the README of github.com/laihaoran/CARZero; no licence is stated for "
    "the weights."
)

_ONE_PROMPT = (
    "CARZero takes exactly one prompt per class: give --model.prompts a style other than aspects, or a file with one "
    "text for each finding."
)

_UNUSED = (
    "text_encoder.model.pooler.*",
    "text_encoder.model.embeddings.position_ids",
    "fusion_module.logit_scale",
    "fusion_module.decoder.layers.*.self_attn.*",
    "fusion_module.decoder.layers.*.norm1.*",
)
_ALIASES = {"fusion_module.decoder_norm.": "fusion_module.decoder.norm."}
