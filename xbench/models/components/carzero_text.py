"""CARZero's way with text: how a prompt is cleaned, what BERT makes of it, and how word pieces become words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import BertModel

from xbench.errors import UserError

__all__ = ["OFFICIAL_NAMES", "TOKENS", "TextEncoder", "WordPieces", "aggregate", "clean"]

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
"""What the authors call a finding in their prompts for ChestX-ray14, CheXpert and ChestX-Det10, where not by its name.

(Their prompts for Open-I, which is not scored here, say "Lung Infiltration" and "Pulmonary Fibrosis" instead.)
"""

_SENTENCE_END = re.compile(r"[0-9]+\.|\.")
_WORD = re.compile(r"\w+")


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


class TextEncoder(nn.Module):
    """BERT, of which the last four layers count alike, behind the name `model` as in the authors' file.

    Args:
        bert: The BERT.
    """

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
        """Read a vocabulary: ids by token.

        Raises:
            UserError: It has no `[SEP]`, so it is not a BERT vocabulary.
        """
        if "[SEP]" not in vocabulary:
            raise UserError(
                f"A vocabulary of {len(vocabulary)} tokens without [SEP] is not that of a BERT: give "
                "--model.text_encoder the tokeniser that belongs to the checkpoint."
            )
        continues = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
        continues[[number for token, number in vocabulary.items() if token.startswith("##")]] = True
        return cls(continues, vocabulary["[SEP]"])

    def check(self, input_ids: Tensor) -> None:
        """Check that prompts (C, L) are tokenised as this vocabulary would.

        Raises:
            UserError: They have ids beyond it or no `[SEP]`, or are too long.
        """
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
