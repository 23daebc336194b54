"""Text processing of GLoRIA, CARZero and AFLoc: cleaning, and joining word pieces to words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from xbench.models.networks.bert import bert_like, encode_in_chunks, load_tokeniser, tokenise, vocabulary
from xbench.runtime.errors import UserError

TOKENS = 97
"""Length to which prompts are padded, and number of rows of a table of words."""


class ReportText(nn.Module):
    """A BERT, named `model` as in the authors' files, that returns sentence and word vectors.

    Args:
        tensors: Tensors of the checkpoint; those with the prefix `text_encoder.model.` determine the BERT's sizes.
        source: Hugging Face id or local folder of the tokenizer.
        title: The model's name in messages.
        official: The tokenizer of the training.
    """

    def __init__(self, tensors: Mapping[str, Tensor], source: str, title: str, official: str) -> None:
        super().__init__()
        self.model = bert_like(tensors, "text_encoder.model.")
        self.source, self._title, self._official = source, title, official

    def tokenise(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask (C, 97) of cleaned prompts."""
        cleaned = [*map(clean, prompts)]
        if "" in cleaned:
            raise UserError(
                f"{self._title} drops sentences of a single word, which leaves nothing of the prompt "
                f"{prompts[cleaned.index('')]!r}. "
                'Write a sentence, such as "There is Edema".'
            )
        return tokenise(load_tokeniser(self.source), cleaned, TOKENS, self._title)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return vectors (C, 98, D) of tokens (C, L): the sentence, the words from [CLS] to [SEP], then zeros."""
        if (pieces := self.word_pieces) is None:  # each token is a word, and the last one `[SEP]`
            continues = torch.zeros(self.model.config.vocab_size, dtype=torch.bool)
            pieces = WordPieces(continues, int(input_ids[0, int(attention_mask[0].sum()) - 1]))
        if bool(input_ids[:, TOKENS:].any()):
            raise UserError(f"The model reads {TOKENS} tokens, but these prompts have {input_ids.shape[1]}.")
        if lacking := [row for row, ids in enumerate(input_ids.tolist()) if pieces.separator not in ids]:
            raise UserError(f"The token ids of class {lacking[0]} lack the final [SEP] (id {pieces.separator}).")

        def encode(ids: Tensor, mask: Tensor) -> Tensor:
            seen = self.model(ids, mask, output_hidden_states=True)
            return aggregate(torch.stack(seen.hidden_states[-4:]).sum(dim=0), ids, pieces)

        return encode_in_chunks(encode, input_ids, attention_mask)

    @cached_property
    def word_pieces(self) -> WordPieces | None:
        """The vocabulary's word pieces, read on first use; None, with a warning, without a vocabulary."""
        try:
            pieces = WordPieces.of(vocabulary(self.source))
        except UserError as error:
            # Happens only with given token ids, because prompts need the same files for tokenization.
            rank_zero_warn(f"{self._title} does not know which tokens form a word, and takes each for one. {error}")
            return None
        known = self.model.config.vocab_size
        if len(pieces.continues) > known:
            raise UserError(
                f"The tokenizer of {self.source} has {len(pieces.continues)} tokens, but the BERT of {self._title} "
                f"{known}. Give --model.text_encoder the tokenizer of the training, {self._official}."
            )
        return pieces


def clean(prompt: str) -> str:
    """Return a prompt's sentences of at least two words, in lower-case ASCII without punctuation.

    >>> clean("There is Pleural Effusion."), clean("Edema"), clean("There is a 2.5 cm nodule")
    ('there is pleural effusion', '', 'there is a 5 cm nodule')
    """
    sentences = (re.findall(r"\w+", piece.lower()) for piece in re.split(r"[0-9]+\.|\.", prompt))
    words = (word for sentence in sentences if len(sentence) > 1 for word in sentence)
    return " ".join(filter(None, (word.encode("ascii", "ignore").decode() for word in words)))


@dataclass(frozen=True)
class WordPieces:
    """The id of `[SEP]` in a BERT vocabulary, and which ids continue a word, (V,) bool."""

    continues: Tensor
    separator: int

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> WordPieces:
        continues = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
        continues[[number for token, number in vocabulary.items() if token.startswith("##")]] = True
        return cls(continues, vocabulary["[SEP]"])


def aggregate(states: Tensor, input_ids: Tensor, pieces: WordPieces) -> Tensor:
    """Return the sentence vector and table of words (C, 1 + TOKENS, D) of states (C, L, D) of word pieces.

    A word is the sum of its pieces. `[CLS]` and the first `[SEP]` count as words; the rows after them are zero. The
    sentence vector is the mean over all rows.
    """
    is_separator = input_ids == pieces.separator
    counts = is_separator.cumsum(dim=1) - is_separator.long() == 0
    opens = ~pieces.continues.to(input_ids.device)[input_ids]
    opens[:, 0] = True
    word = opens.cumsum(dim=1) - 1
    # A product with (C, L, TOKENS) sums in the same order on every device, unlike scatter_add.
    belongs = (word[..., None] == torch.arange(TOKENS, device=word.device)) & counts[..., None]
    words = belongs.transpose(1, 2).to(states.dtype) @ states
    return torch.cat([words.mean(dim=1, keepdim=True), words], dim=1)
