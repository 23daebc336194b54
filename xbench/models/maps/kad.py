"""KAD: a decoder asks the image about all findings at once, by their bare names.

X. Zhang, C. Wu, Y. Zhang, W. Xie and Y. Wang, "Knowledge-enhanced visual-language pre-training on chest radiology
images", Nature Communications 14, 4542, 2023. The score is the softmax of absent and present; the map is the
cross-attention of the last decoder layer, averaged over its heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn
from transformers import BertConfig

from xbench.findings.names import CHESTXRAY14_CLASSES, canonical
from xbench.geometry.transforms import PillowResize, Preprocessing
from xbench.models.networks.bert import empty_bert, encode_in_chunks, load_tokeniser, tokenise
from xbench.models.networks.checkpoint import fill, locate, read_remarks, read_settings, read_tensors, renamed, without
from xbench.models.networks.query_decoder import DecoderModel, Layers, QueryDecoder, absent_or_present, classify
from xbench.models.networks.vit import ViTB16, implementation_of, side_of, with_timm_names
from xbench.runtime.errors import UsageError, UserError
from xbench.types import ModelOutput

_SOURCE = (
    "The README of github.com/xiaoman-zhang/KAD links folders with KAD_512/best_valid.pt and KAD_1024/best_valid.pt."
)

# Width of BERT, queries and image tokens.
WIDTH = 768
SECTIONS = ("image_encoder", "text_encoder", "model")
_UNUSED = ("text_encoder.logit_scale", "text_encoder.bert_model.embeddings.position_ids", "model.logit_scale")
# The authors' scripts read the first; their early settings, and those of derived models, have the second.
_SIZES = ("img_res", "image_res")

Ask = Literal["official", "dataset"] | list[str]
"""What to ask together with the dataset's findings."""


def class_name(finding: str) -> str:
    """Return KAD's query for a finding: a bare name in lower case.

    >>> class_name("Mass"), class_name("Lung Opacity")
    ('lung mass', 'lung opacity')
    """
    others = {"Mass": "lung mass", "Nodule": "lung nodule"}
    others |= {"Pleural Thickening": "pleural thicken", "Pulmonary Fibrosis": "fibrosis"}
    return others.get(finding, finding.lower())


def projection() -> nn.Sequential:
    """Return the two linear layers with a GELU that follow BERT's pooler."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


class _TextEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert_model = empty_bert(BertConfig(), pooler=True)
        self.mlp_embed = projection()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        seen = self.bert_model(input_ids=input_ids, attention_mask=attention_mask)
        return cast(Tensor, self.mlp_embed(seen.pooler_output))


class QueryModel(nn.Module):
    """A query decoder with a head of 2 outputs (logits of absent and present) or 1 (a logit of present)."""

    def __init__(self, outputs: int = 2, layers: int = 4, heads: int = 4, feedforward: int = 1024) -> None:
        super().__init__()
        self.heads = heads
        self.decoder = QueryDecoder(WIDTH, heads, layers=layers, feedforward=feedforward)
        self.mlp_head = nn.Sequential(nn.Linear(WIDTH, outputs))

    def forward(self, tokens: Tensor, queries: Tensor, attention_of: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Decode queries (C, 768) together over image tokens (B, N, 768).

        Return logits (B, C, outputs) float32, and the attention (B, heads, C, N) of each layer in `attention_of`.
        """
        memory = self.decoder.keys_values(self.decoder.norm(tokens))
        decoded, attention = self.decoder(self.decoder.norm(queries)[None], memory, attention_of)
        return classify(cast(nn.Linear, self.mlp_head[0]), decoded), attention


class KEBERTModel(DecoderModel):
    """Base class of KAD and DeViDe, which query image tokens with texts that Med-KEBERT encodes.

    Queries attend to one another, so `encode_tokens` takes all of them; `score` returns the dataset's findings.

    Args:
        image_encoder: Turns images (B, 3, H, W) into tokens (B, rows, columns, 768). Like `model`, it is on the device
            `meta` and gets its weights here.
        ask: What to ask together with the dataset's findings, see `xbench.models.KAD`.
        mean: Mean of the pixels in [0, 1], per channel.
        std: Standard deviation, per channel.
        text_encoder: Hugging Face id or local folder of the tokenizer; the weights are in the checkpoint.

    Attributes:
        official_lists: Classes that the authors' scripts ask together, one list per set of classes.
        together: All names and their prompts, in order; it and the resolved `ask` are set by `setup`.
    """

    official_lists: ClassVar[tuple[tuple[str, ...], ...]] = ()
    stated = "ask"
    ask: Ask
    together: dict[str, list[str]]

    def __init__(
        self,
        checkpoint: Path,
        tensors: Mapping[str, Tensor],
        image_encoder: nn.Module,
        model: QueryModel,
        cell: int,
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
        self.text_encoder = _TextEncoder()
        self.model = model.to_empty(device="cpu")
        tensors = renamed(tensors, {"model.decoder_norm.": "model.decoder.norm."})
        fill(self, tensors, checkpoint, type(self).__name__, _UNUSED, advice)
        # The official scripts stretch to a square with Pillow's bicubic filter.
        self.preprocessing = Preprocessing([PillowResize(self.image_size, "both", "bicubic")], mean, std)

    def setup(self, stage: str) -> None:
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
            problem = f"lacks {', '.join(lacking)} of the dataset" if lacking else "has a name twice"
            raise UsageError(
                f"--model.ask {self._asks} {problem}. Give each finding of the dataset once, and any others to ask "
                "together with them."
            )
        worded = dict(zip(self.findings, self.prompts, strict=True))
        self.together = {}
        for name in names:
            self.together[name] = worded.get(name) or self.default_prompts(name)
            if name not in worded:
                # A file of prompts may lack findings that are not in the dataset.
                with suppress(UserError):
                    self.together[name] = list(self.prompts_of(name))
        self.columns = [names.index(finding) for finding in self.findings]

    def asked(self) -> Sequence[Sequence[str]]:
        return list(self.together.values())

    def default_prompts(self, finding: str) -> list[str]:
        return [class_name(finding)]

    def tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask (C, K, 256) of up to K texts per class; missing texts are masked."""
        texts = [text for of_class in prompts for text in of_class]
        ids, mask = tokenise(load_tokeniser(self.text_source), texts, 256, self.name)
        counts = [len(of_class) for of_class in prompts]
        padded = (nn.utils.rnn.pad_sequence(part.split(counts), batch_first=True) for part in (ids, mask))
        return tuple(padded)  # type: ignore[return-value]

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        ids, mask = self.by_class(input_ids, attention_mask, None)
        given = mask.any(dim=-1)
        counts = given.sum(dim=1).tolist()
        if 0 in counts:
            raise UserError(f"Class {counts.index(0)} has no text for {self.name}: its attention mask is empty.")
        vectors = encode_in_chunks(self.encode_text, ids[given], mask[given])
        return torch.stack([of_class.mean(dim=0) for of_class in vectors.split(counts)])

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return cast(Tensor, self.text_encoder(input_ids, attention_mask))

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, H, W) against queries (C, 768) that are asked together; each map sums to 1."""
        tokens = self.image_encoder(images)
        queries = queries.to(self.model.decoder.norm.weight.dtype)
        logits, attention = self.model(tokens.flatten(1, 2), queries, self.layers)
        saliency = self.mean_attention(attention).unflatten(-1, tokens.shape[1:3])
        if logits.shape[-1] == 1:
            return ModelOutput(logits[..., 0], logits[..., 0].sigmoid(), saliency)
        return absent_or_present(logits, saliency)

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "asked": self.together}


class KAD(KEBERTModel):
    """KAD with the image encoder of its checkpoint.

    The released files have a ResNet-50 of stride 32. The authors' code also has one of stride 16 (for 224 pixels), a
    DenseNet-121 and a ViT-B/16.

    Args:
        checkpoint: File of weights, such as `best_valid.pt`. The knowledge encoder's file is not needed.
        image_size: Side of the square input in pixels; by default `img_res` of the checkpoint's settings, or 224.
        layers: Decoder layers, from 0, whose attention makes the map, or `all` or `last`, the authors' choice.
        ask: Findings to ask together, on which each score depends: `official` asks the classes of the authors' script
            for a dataset (the 14 of ChestX-ray14), or those of the dataset if there is no script; `dataset` asks the
            scored findings; a list of names must include the dataset's findings.
    """

    # In the order of the authors' script. Their lists for CheXpert and ChestX-Det10 are the datasets' classes.
    official_lists = (CHESTXRAY14_CLASSES,)

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        image_size: int | None = None,
        layers: Layers = "last",
        ask: Ask = "official",
        **options: Any,
    ) -> None:
        path = locate(checkpoint, "KAD", _SOURCE)
        settings = {**read_settings(path), **read_remarks(path)}
        size = next((str(settings[name]) for name in _SIZES if name in settings), "")
        trained_size = int(size) if size.isdecimal() and int(size) else None
        with torch.device("meta"):
            name, encoder, stride, tensors = _image_encoder(read_tensors(path, SECTIONS))
            model = QueryModel()
        options |= {"layers": layers, "image_size": (trained_size or 224) if image_size is None else image_size}
        super().__init__(path, tensors, encoder, model, stride, "", ask, **options)
        self.encoder_name, self.trained_size = name, trained_size

    def remarks(self) -> Mapping[str, str]:
        return {} if self.trained_size is None else {_SIZES[0]: str(self.trained_size)}

    def provenance(self) -> dict[str, Any]:
        return {"image_encoder": self.encoder_name, **super().provenance()}


class _Convolutional(nn.Module):
    """Token grid of a convolutional network, the official ModelRes512, ModelRes or ModelDense, with its names."""

    def __init__(self, name: str, features: nn.Module, channels: int) -> None:
        super().__init__()
        layers = nn.Linear(channels, channels), nn.Linear(channels, WIDTH)
        for part, module in zip(("features", "l1", "l2"), (features, *layers), strict=True):
            self.add_module(f"{name}_{part}", module)

    def forward(self, images: Tensor) -> Tensor:
        features, first, last = self.children()
        return cast(Tensor, last(F.relu(first(features(images).permute(0, 2, 3, 1)))))


def _image_encoder(tensors: Mapping[str, Tensor]) -> tuple[str, nn.Module, int, dict[str, Tensor]]:
    if "image_encoder.dense_l1.weight" in tensors:
        named = renamed(tensors, {"image_encoder.densenet.features.": "image_encoder.dense_features."})
        # No ReLU follows the last batch norm.
        encoder = _Convolutional("dense", torchvision.models.densenet121().features, 1024)
        return "DenseNet-121, stride 32", encoder, 32, without(named, "image_encoder.densenet.classifier.")
    implementation = implementation_of(tensors)
    # A converted file has timm's names, as the networks here do.
    if implementation in ("pytorch_pretrained_vit", "timm"):
        named = with_timm_names(tensors)
        side = side_of(named)
        # The official module never applies its final norm.
        if implementation == "pytorch_pretrained_vit":
            named = without(named, "image_encoder.norm.")
        return f"ViT-B/16 of {side} pixels", ViTB16(side, final_norm=False), 16, named
    first = tensors.get("image_encoder.res_l1.weight")
    stride = 16 if first is not None and len(first) == 1024 else 32
    # Stride 16 omits the last stage, which files still contain under its other name.
    tensors = without(tensors, "image_encoder.resnet.fc.", *(["image_encoder.resnet.layer4."] if stride == 16 else []))
    # Positions 2 and 3, ReLU and max-pooling, have no parameters.
    children = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
    first_names = {f"image_encoder.resnet.{name}.": f"image_encoder.res_features.{i}." for name, i in children.items()}
    kept, channels = (8, 2048) if stride == 32 else (7, 1024)
    features = nn.Sequential(*list(torchvision.models.resnet50().children())[:kept])
    encoder = _Convolutional("res", features, channels)
    return f"ResNet-50, stride {stride}", encoder, stride, renamed(tensors, first_names)
