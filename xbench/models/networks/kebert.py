"""Med-KEBERT of KAD and DeViDe, which turns texts into queries, and the decoder that asks image tokens about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from xbench.findings.names import canonical
from xbench.geometry.preprocessing import PillowResize, Preprocessing
from xbench.models.networks.bert import bert_base, encode_in_chunks, tokenise
from xbench.models.networks.checkpoint import fill
from xbench.models.networks.query_decoder import DecoderModel, QueryDecoder, absent_or_present, classify
from xbench.runtime.errors import UserError
from xbench.types import ModelOutput

# Of BERT, of the queries and of the image tokens.
WIDTH = 768
# The networks in a checkpoint, one state dict each.
SECTIONS = ("image_encoder", "text_encoder", "model")
_UNUSED = ("text_encoder.logit_scale", "text_encoder.bert_model.embeddings.position_ids", "model.logit_scale")

Ask = Literal["official", "dataset"] | list[str]
"""What is asked together with the dataset's findings."""


def class_name(finding: str) -> str:
    """Return KAD's query for a finding: a bare name in lower case.

    >>> class_name("Mass"), class_name("Lung Opacity")
    ('lung mass', 'lung opacity')
    """
    others = {"Mass": "lung mass", "Nodule": "lung nodule"}
    others |= {"Pleural Thickening": "pleural thicken", "Pulmonary Fibrosis": "fibrosis"}
    return others.get(finding, finding.lower())


class TextEncoder(nn.Module):
    """Med-KEBERT, a BERT-base, with the projection that comes after its pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.bert_model = bert_base()
        self.mlp_embed = projection()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode texts, ids and mask (N, L), as vectors (N, 768), which are not normalised."""
        seen = self.bert_model(input_ids=input_ids, attention_mask=attention_mask)
        return cast(Tensor, self.mlp_embed(seen.pooler_output))


class QueryModel(nn.Module):
    """A decoder of queries, with a head of 2 outputs (logits of absent and present) or 1 (a logit of present)."""

    def __init__(self, outputs: int = 2, layers: int = 4, heads: int = 4, feedforward: int = 1024) -> None:
        super().__init__()
        self.heads = heads
        self.decoder = QueryDecoder(WIDTH, heads, layers=layers, feedforward=feedforward)
        self.mlp_head = nn.Sequential(nn.Linear(WIDTH, outputs))

    def forward(self, tokens: Tensor, queries: Tensor, attention_of: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Ask image tokens (B, N, 768) about queries (C, 768), which attend to one another.

        Returns:
            Logits (B, C, outputs) float32, and by layer the attention (B, heads, C, N).
        """
        memory = self.decoder.keys_values(self.decoder.norm(tokens))
        decoded, attention = self.decoder(self.decoder.norm(queries)[None], memory, attention_of)
        return classify(cast(nn.Linear, self.mlp_head[0]), decoded), attention


def projection() -> nn.Sequential:
    """Return the two linear layers with a GELU between them that follow BERT's pooler."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


class KEBERTModel(DecoderModel):
    """A model that asks image tokens about texts that Med-KEBERT encodes.

    Queries attend to one another, so a score depends on what is asked with it: `encode_tokens` takes all that is asked,
    in any order, and `score` returns the dataset's findings.

    Args:
        image_encoder: Turns images (B, 3, H, W) into tokens (B, rows, columns, 768). Like `model`, the decoder and its
            head, it is on the device `meta` and gets its weights here; `unused`, `aliases` and `advice` are for `fill`.
        ask: What is asked together with the dataset's findings, see `xbench.models.KAD`.
        mean: Of the pixels in [0, 1], per channel.
        std: Standard deviation, per channel.
        text_encoder: Hugging Face id or local folder of the tokeniser; the weights are in the checkpoint.

    Attributes:
        official_lists: What the authors' scripts ask together, a list for each set of classes.
        ask: Resolved option `ask`, and `together`, what is asked with its prompts, in order; known from `setup` on.
    """

    official_lists: ClassVar[tuple[tuple[str, ...], ...]] = ()
    ask: Ask
    together: dict[str, list[str]]

    def __init__(
        self,
        checkpoint: Path,
        tensors: Mapping[str, Tensor],
        image_encoder: nn.Module,
        model: QueryModel,
        cell: int,
        unused: Sequence[str],
        aliases: Mapping[str, str],
        advice: str,
        ask: Ask,
        mean: tuple[float, float, float] = (0.485, 0.456, 0.406),
        std: tuple[float, float, float] = (0.229, 0.224, 0.225),
        text_encoder: str = "xmcmic/Med-KEBERT",
        **options: Any,
    ) -> None:
        size = len(model.decoder.layers), model.heads
        super().__init__(checkpoint, cell, size, text_encoder=text_encoder, **options)
        self._asks = ask
        self.image_encoder = image_encoder.to_empty(device="cpu")
        self.text_encoder = TextEncoder()
        self.model = model.to_empty(device="cpu")
        aliases = {"model.decoder_norm.": "model.decoder.norm.", **aliases}
        fill(self, tensors, checkpoint, type(self).__name__, (*_UNUSED, *unused), aliases, advice)
        self.eval().requires_grad_(False)
        # Stretched to a square with Pillow's bicubic filter, as the official scripts do.
        self.preprocessing = Preprocessing([PillowResize(self.image_size, "both", "bicubic")], mean, std)

    def setup(self, stage: str) -> None:
        """Word what is asked together; a UserError if `ask` lacks a finding or names one twice."""
        super().setup(stage)
        classes = {*self.findings, *getattr(self.trainer.datamodule, "classes", ())}  # type: ignore[attr-defined]
        fitting = [names for names in self.official_lists if {*names} == classes]
        names, self.ask = self.findings, "dataset"
        if isinstance(self._asks, list):
            names = tuple(name if name in self.findings else canonical(name) or name for name in self._asks)
            self.ask = list(names)
        elif self._asks == "official" and fitting:
            names, self.ask = fitting[0], "official"
        lacking = [finding for finding in self.findings if finding not in names]
        if lacking or len({*names}) < len(names):
            raise UserError(
                f"--model.ask {self._asks} "
                + (f"lacks {', '.join(lacking)} of the dataset" if lacking else "has a name twice")
                + ". Give every finding of the dataset once, and whatever else is to be asked with them.",
                exit_status=2,
            )
        worded = dict(zip(self.findings, self.prompts, strict=True))
        self.together = {name: worded.get(name) or self._prompts_of_other(name) for name in names}
        self.columns = [names.index(finding) for finding in self.findings]

    def asked(self) -> Sequence[Sequence[str]]:
        """Return the prompts of all that is asked together."""
        return list(self.together.values())

    def default_prompts(self, finding: str) -> list[str]:
        """Return the bare name of the finding."""
        return [class_name(finding)]

    def tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask (C, K, 256) of up to K texts per class; the rest is masked throughout."""
        texts = [text for of_class in prompts for text in of_class]
        ids, mask = tokenise(self.text_source, texts, 256, self.name)
        most = max(len(of_class) for of_class in prompts)
        given = torch.tensor([[k < len(of_class) for k in range(most)] for of_class in prompts])
        input_ids = ids.new_zeros(len(prompts), most, ids.shape[1])
        attention_mask = torch.zeros_like(input_ids)
        input_ids[given], attention_mask[given] = ids, mask
        return input_ids, attention_mask

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode token ids (C, L), or (C, K, L) for up to K texts per class, as mean queries (C, 768)."""
        ids, mask = self.by_class(input_ids, attention_mask, None)
        given = mask.any(dim=-1)
        counts = given.sum(dim=1).tolist()
        if 0 in counts:
            raise UserError(f"Class {counts.index(0)} has no text for {self.name}: its attention mask is empty.")
        vectors = encode_in_chunks(self.encode_text, ids[given], mask[given])
        return torch.stack([of_class.mean(dim=0) for of_class in vectors.split(counts)])

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode texts, ids and mask (N, L), as vectors (N, 768)."""
        return cast(Tensor, self.text_encoder(input_ids, attention_mask))

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalised images (B, 3, H, W) against queries (C, 768) that are asked together.

        Returns:
            Logits (B, C), present minus absent, and the probabilities of present; saliency (B, C, rows, columns), the
            attention of each query to the image tokens, mean over `layers` and `heads`. Each map sums to 1.
        """
        tokens = self.image_encoder(images)
        queries = queries.to(self.model.decoder.norm.weight.dtype)
        logits, attention = self.model(tokens.flatten(1, 2), queries, self.layers)
        saliency = self.mean_attention(attention).unflatten(-1, tokens.shape[1:3])
        if logits.shape[-1] == 1:
            return ModelOutput(logits[..., 0], logits[..., 0].sigmoid(), saliency)
        return absent_or_present(logits, saliency)

    def provenance(self) -> dict[str, Any]:
        """Add what is asked together."""
        return {"ask": self.ask, "asked": self.together, **super().provenance()}

    def _prompts_of_other(self, name: str) -> list[str]:
        """Return the prompts of a finding that the dataset lacks, or its bare name."""
        with suppress(UserError):
            return list(self.prompts_of(name))
        return self.default_prompts(name)
