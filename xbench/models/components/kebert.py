"""What KAD and DeViDe share: Med-KEBERT turns texts into queries, a decoder asks image tokens about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.errors import UserError
from xbench.geometry.preprocessing import PillowResize, Preprocessing
from xbench.models.base import VLM, check_image_size
from xbench.models.components.bert import bert_base, encode_in_chunks, tokenise
from xbench.models.components.checkpoint import fill
from xbench.models.components.query_decoder import Layers, QueryDecoder, choose
from xbench.protocol.findings import canonical
from xbench.runtime.digests import file_sha256
from xbench.types import ModelOutput

WIDTH = 768
"""Width of BERT, of the queries and of the image tokens."""

SECTIONS = ("image_encoder", "text_encoder", "model")
"""The networks in a checkpoint, one state dict each."""

_UNUSED = ("text_encoder.logit_scale", "text_encoder.bert_model.embeddings.position_ids", "model.logit_scale")

_TOKENS = 256

Ask = Literal["official", "dataset"] | list[str]
"""What is asked together with the dataset's findings."""


def class_name(finding: str) -> str:
    """Return the query that the authors of KAD ask a finding by: a bare name in lower case.

    >>> class_name("Mass"), class_name("Lung Opacity")
    ('lung mass', 'lung opacity')
    """
    return _CLASS_NAMES.get(finding, finding.lower())


# Where the class names of KAD's scripts differ from ours.
_CLASS_NAMES = {
    "Mass": "lung mass",
    "Nodule": "lung nodule",
    "Pleural Thickening": "pleural thicken",
    "Pulmonary Fibrosis": "fibrosis",
}


class TextEncoder(nn.Module):
    """Med-KEBERT, a BERT-base, with the projection that comes after its pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.bert_model = bert_base()
        self.mlp_embed = projection()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode texts, ids and mask (N, L), as vectors (N, 768), which are not normalised."""
        seen = self.bert_model(input_ids=input_ids, attention_mask=attention_mask)
        result: Tensor = self.mlp_embed(seen.pooler_output)
        return result


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
        norm = self.decoder.norm
        memory = self.decoder.keys_values(norm(tokens))
        decoded, attention = self.decoder(norm(queries)[None], memory, attention_of)
        # Half precision has too few digits to rank scores by.
        weight, bias = self.mlp_head.parameters()
        with torch.autocast(decoded.device.type, enabled=False):
            return F.linear(decoded.float(), weight.float(), bias.float()), attention


def projection() -> nn.Sequential:
    """Return the two linear layers with a GELU between them that follow BERT's pooler."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


class KEBERTModel(VLM):
    """A model that asks image tokens about texts that Med-KEBERT encodes.

    Queries attend to one another, so a score depends on what is asked with it: `encode_tokens` takes all that is asked,
    in any order, and `score` returns the dataset's findings.

    Args:
        image_encoder: Turns images (B, 3, H, W) into tokens (B, rows, columns, 768). Like `model`, it is on the device
            `meta` and gets its weights from `load`.
        model: Decoder and head.
        stride: Side in pixels of the square that a token stands for.

    The other arguments are those of `xbench.models.KAD` and `xbench.models.DeViDe`.

    Attributes:
        official_lists: What the authors' scripts ask together, a list for each set of classes.
        ask: What the option `ask` means in a run, known from `setup` on.
        together: What is asked together, in this order, with the prompts of each; known from `setup` on.
    """

    official_lists: ClassVar[tuple[tuple[str, ...], ...]] = ()
    ask: Ask
    together: dict[str, list[str]]

    def __init__(
        self,
        image_encoder: nn.Module,
        model: QueryModel,
        *,
        text_encoder: str,
        image_size: int,
        stride: int,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        layers: Layers,
        heads: list[int] | None,
        ask: Ask,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._asks = ask
        self.image_encoder = image_encoder.to_empty(device="cpu")
        # Not every file has the counters of batch normalisation, which nothing depends on.
        for name, buffer in image_encoder.named_buffers():
            if name.endswith("num_batches_tracked"):
                buffer.zero_()
        self.text_encoder = TextEncoder()
        self.model = model.to_empty(device="cpu")
        self.tokenizer_source = text_encoder
        self.image_size = image_size
        check_image_size(image_size, stride)
        # Stretched to a square with Pillow's bicubic filter, as the official scripts do.
        self.preprocessing = Preprocessing([PillowResize(image_size, "both", "bicubic")], mean, std)
        self.layers = choose("layers", layers, len(model.decoder.layers))
        self.heads = choose("heads", heads, model.heads)

    def load(
        self,
        tensors: Mapping[str, Tensor],
        path: Path,
        model: str,
        *,
        unused: Sequence[str] = (),
        aliases: Mapping[str, str] | None = None,
        advice: str = "",
    ) -> None:
        """Load the weights strictly, with the arguments and errors of `fill`, and get ready for inference."""
        fill(
            self,
            tensors,
            path,
            model,
            ignored=(*_UNUSED, *unused),
            aliases={"model.decoder_norm.": "model.decoder.norm.", **(aliases or {})},
            advice=advice,
        )
        self.checkpoint = path
        self.eval().requires_grad_(False)

    def setup(self, stage: str) -> None:
        """Decide what is asked together, and word it.

        Raises:
            UserError: `ask` names a finding twice, or lacks one of the dataset's.
        """
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
        """Return the bare name of the finding, which is all that KAD is asked."""
        return [class_name(finding)]

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode the texts of C classes, any number for each, as `encode_tokens` does.

        Raises:
            UserError: A text is too long for the model, or there is no tokeniser.
        """
        most = max(len(texts) for texts in prompts)
        ids, mask = self._tokenise(prompts)
        given = torch.tensor([[k < len(texts) for k in range(most)] for texts in prompts])
        input_ids = ids.new_zeros(len(prompts), most, ids.shape[1])
        attention_mask = torch.zeros_like(input_ids)
        input_ids[given], attention_mask[given] = ids, mask
        return self.encode_tokens(input_ids, attention_mask)

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode tokenised texts.

        Args:
            input_ids: (C, L) for one text per class, or (C, K, L) for up to K; int64.
            attention_mask: Same shape. Where a class has fewer than K texts, the rest is masked throughout. Without it,
                all tokens count but the padding, which has id 0.

        Returns:
            Queries (C, 768), each the mean over the texts of its class.

        Raises:
            UserError: Other shapes, or a class without a text.
        """
        if attention_mask is None:
            attention_mask = (input_ids != 0).long()
        if input_ids.ndim not in (2, 3) or input_ids.shape != attention_mask.shape:
            raise UserError(
                f"{self.name} takes token ids and attention mask (C, L) or (C, K, L) of one shape, got "
                f"{tuple(input_ids.shape)} and {tuple(attention_mask.shape)}."
            )
        if input_ids.ndim == 2:
            input_ids, attention_mask = input_ids[:, None], attention_mask[:, None]
        given = attention_mask.any(dim=-1)
        counts = given.sum(dim=1).tolist()
        if 0 in counts:
            raise UserError(f"Class {counts.index(0)} has no text for {self.name}: its attention mask is empty.")
        ids, mask = input_ids[given].to(self.device), attention_mask[given].to(self.device)
        vectors = encode_in_chunks(self.encode_text, ids, mask)
        return torch.stack([of_class.mean(dim=0) for of_class in vectors.split(counts)])

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode texts, ids and mask (N, L), as vectors (N, 768)."""
        result: Tensor = self.text_encoder(input_ids, attention_mask)
        return result

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score images against queries.

        Args:
            images: (B, 3, H, W) float, normalised.
            queries: (C, 768), from `encode_tokens`.

        Returns:
            Logits (B, C), present minus absent, and the probabilities of present; saliency (B, C, rows, columns), the
            attention of each query to the image tokens, mean over `layers` and `heads`. Each map sums to 1.
        """
        tokens = self.image_encoder(images)
        queries = queries.to(self.model.decoder.norm.weight.dtype)
        logits, attention = self.model(tokens.flatten(1, 2), queries, self.layers)
        chosen = torch.stack([attention[layer][:, self.heads] for layer in self.layers])
        if logits.shape[-1] == 1:
            logits = logits[..., 0]
            probabilities = logits.sigmoid()
        else:
            probabilities = logits.softmax(dim=-1)[..., 1]
            logits = logits[..., 1] - logits[..., 0]
        return ModelOutput(
            logits=logits,
            probabilities=probabilities,
            saliency=chosen.float().mean(dim=(0, 2)).unflatten(-1, tokens.shape[1:3]),
        )

    def queries_depend_on(self) -> Mapping[str, Any]:
        """Return the checkpoint and the token ids of the prompts."""
        ids, _ = self._tokenise(self.asked())
        return {"checkpoint_sha256": file_sha256(self.checkpoint), "token_ids": ids.tolist()}

    def provenance(self) -> dict[str, Any]:
        """Return weights, tokeniser, layers and heads of the map, and prompts."""
        return {
            "checkpoint": str(self.checkpoint),
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "text_encoder": self.tokenizer_source,
            "image_size": self.image_size,
            "saliency": {"kind": "cross-attention", "layers": self.layers, "heads": self.heads},
            "ask": self.ask,
            "asked": self.together,
            **super().provenance(),
        }

    def _prompts_of_other(self, name: str) -> list[str]:
        """Return the prompts of what is no finding of the dataset, or its bare name if nobody worded it."""
        with suppress(UserError):
            return list(self.prompts_of(name))
        return self.default_prompts(name)

    def _tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Tokenise all texts of all classes, one after the other."""
        texts = [text for of_class in prompts for text in of_class]
        # One more than the model reads shows which texts the tokeniser would cut off.
        ids, mask = tokenise(self.tokenizer_source, texts, _TOKENS + 1)
        if (longer := mask[:, _TOKENS].nonzero()).numel():
            raise UserError(
                f"The prompt {texts[int(longer[0])]!r} is longer than the {_TOKENS} tokens that {self.name} reads. "
                "Shorten it, or split it in two in the file of --model.prompts."
            )
        return ids[:, :_TOKENS], mask[:, :_TOKENS]
