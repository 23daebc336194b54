"""MedKLIP: a decoder queries the patches of a radiograph with explanations of findings, the entries of a book.

C. Wu, X. Zhang, Y. Zhang, Y. Wang, W. Xie, "MedKLIP: Medical Knowledge Enhanced Language-Image Pre-Training for X-ray
Diagnosis", ICCV 2023. The score comes from a linear layer on the decoded query; the map is the query's mean attention
to the patches over the decoder's four layers and four heads. MAVL shares this code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn

from xbench.findings.names import canonical
from xbench.findings.prompts import prompts_in_style, read_prompts, wordings
from xbench.geometry.transforms import HistogramEqualisation, PillowResize, Preprocessing
from xbench.models.networks.bert import encode_in_chunks, load_bert, tokenise_without_separator, weights_file
from xbench.models.networks.checkpoint import fill, locate, read_tensors, undrawn
from xbench.models.networks.query_decoder import DecoderModel, QueryDecoder, absent_or_present, classify
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UsageError, UserError
from xbench.types import ModelOutput

_SOURCE = (
    "checkpoints/README.md of github.com/MediaBrain-SJTU/MedKLIP links the folder with checkpoint_final.pth; no "
    "license is stated."
)

# Width of queries and image tokens, and of the third stage of a ResNet-50.
WIDTH, TRUNK_WIDTH = 256, 1024

_NAMES = """
normal clear sharp sharply unremarkable intact stable free effusion opacity pneumothorax edema atelectasis tube
consolidation process abnormality enlarge tip low pneumonia line congestion catheter cardiomegaly fracture air
tortuous lead disease calcification prominence device engorgement picc clip elevation expand nodule wire fluid
degenerative pacemaker thicken marking scar hyperinflate blunt loss widen collapse density emphysema aerate mass
crowd infiltrate obscure deformity hernia drainage distention shift stent pressure lesion finding borderline
hardware dilation chf redistribution aspiration tail_abnorm_obs excluded_obs
"""
OFFICIAL_ENTRIES = tuple(_NAMES.split())
"""Entries of the authors' book, in class order."""

# Entries with other names than the finding, from the authors' scripts: ChestX-ray14 (both models), RSNA, SIIM,
# CheXpert and COVID-rural (MAVL). None of the scripts asks about `calcification`. Aortic Enlargement, Clavicle
# Fracture, Diffuse Nodule, Enlarged PA, ILD, Lung Cavity, Lung Cyst, Mediastinal Shift, Nodule/Mass, Other Lesion,
# Rib Fracture and Tuberculosis have no entry.
_ENTRY_OF = {
    "COVID-19": "covid19",
    "Enlarged Cardiomediastinum": "enlarge",
    "Infiltration": "infiltrate",
    "Lung Lesion": "lesion",
    "Lung Opacity": "opacity",
    "Pleural Effusion": "effusion",
    "Pleural Other": "abnormality",
    "Pleural Thickening": "thicken",
    "Pulmonary Fibrosis": "tail_abnorm_obs",
    "Support Devices": "device",
}

Entries = Mapping[str, Sequence[str]]
"""Texts by entry, in class order: the explanation, and for MAVL one text on each aspect after it."""


@dataclass(frozen=True)
class Book:
    """The entries of a run, the entry of each finding (`columns`), and which findings were appended."""

    entries: Entries
    columns: tuple[str, ...]
    added: tuple[str, ...]


def own_texts(finding: str, texts: int) -> list[str]:
    """Return the package's texts on a finding: its description, and its aspects if an entry has several texts."""
    return [*prompts_in_style("description", finding), *(prompts_in_style("aspects", finding) if texts > 1 else ())]


def own_entries(texts: int) -> Entries:
    """Return the package's book: a normal radiograph, clear lungs, then all findings."""
    return {name: own_texts(name, texts) for name in (*wordings("normal"), *wordings("findings"))}


def read_entries(book: str, concepts: str | None, texts: int) -> Entries:
    """Read the authors' book of explanations and, from `concepts`, other texts; raise a UserError if it is invalid."""
    explanations = {}
    for name, value in read_prompts(book).items():
        if len(value) != 1:
            raise UserError(f"--model.book {book} gives {name} {len(value)} texts, but an entry has one explanation.")
            # MedKLIP's file lacks a letter, which is harmless in the authors' code, where only the position counts.
        explanations["pneumonia" if name == "eumonia" else name] = value
    # Entries that files add for some datasets come last; the authors ask them only there.
    if {*OFFICIAL_ENTRIES} <= {*explanations}:
        explanations = {name: explanations[name] for name in (*OFFICIAL_ENTRIES, *explanations)}
    if concepts is None:
        return explanations
    aspects = read_prompts(concepts)
    for name in explanations:
        if len(aspects.get(name, ())) != texts - 1:
            raise UserError(
                f"--model.concepts {concepts} has {len(aspects.get(name, ()))} texts on {name} of the book {book}, but "
                f"the weights need {texts - 1} for each entry. Give two files that belong together."
            )
    return {name: [*explanation, *aspects[name]] for name, explanation in explanations.items()}


def entry_of(finding: str, entries: Entries) -> str | None:
    """Return the entry of a finding in a book: that of the authors' scripts, or one with its name."""
    official = _ENTRY_OF.get(finding, finding.lower())
    if official in entries:
        return official
    return next((name for name in entries if finding in (name, canonical(name))), None)


def with_findings(entries: Entries, findings: Sequence[str], prompts: Sequence[Sequence[str]]) -> Book:
    """Make the book of a run from entries and the prompts of each finding of the dataset.

    A finding's prompts replace the texts of its entry: all, only the explanation, or only the aspects. Without an entry
    they are appended, as the authors of MAVL do. A book with the 75 official entries keeps others only for findings.
    """
    entry = {finding: entry_of(finding, entries) for finding in findings}
    official = {*OFFICIAL_ENTRIES} <= {*entries}
    texts = len(next(iter(entries.values())))
    kept = {*OFFICIAL_ENTRIES, *entry.values()} if official else {*entries}
    asked = {name: list(value) for name, value in entries.items() if name in kept}
    for finding, given in zip(findings, prompts, strict=True):
        name = entry[finding] or finding
        if len(given) == texts:
            asked[name] = list(given)
        elif len(given) in (1, texts - 1):
            usual = asked[name] if name in asked else own_texts(finding, texts)
            asked[name] = [*given, *usual[1:]] if len(given) == 1 else [usual[0], *given]
        else:
            raise UsageError(
                f"{finding} has {len(given)} prompts, but the model takes {texts} per finding"
                + (f", only the explanation, or only the {texts - 1} aspects." if texts > 1 else ".")
            )
    added = tuple(finding for finding in findings if entry[finding] is None)
    return Book(asked, tuple(entry[finding] or finding for finding in findings), added)


def trunk() -> nn.Sequential:
    """Return a ResNet-50 up to its third stage: images (B, 3, H, W) to (B, 1024, H / 16, W / 16)."""
    return nn.Sequential(*list(torchvision.models.resnet50().children())[:7])


def preprocessing(image_size: int, equalise: bool) -> Preprocessing:
    """Return the preprocessing of both models: equalize if requested, then stretch to a square."""
    geometry = [*([HistogramEqualisation()] if equalise else []), PillowResize(image_size, "both", "bilinear")]
    return Preprocessing(geometry, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class BookNetwork(nn.Module):
    """The common parts of both networks, with the authors' names."""

    def __init__(self, head_inputs: int) -> None:
        super().__init__()
        self.disease_embedding_layer = nn.Linear(768, WIDTH)
        self.decoder = QueryDecoder(WIDTH, heads=4)
        self.classifier = nn.Linear(head_inputs, 2)


class BookModel(DecoderModel):
    """A model that queries each image with a book of `texts` texts per entry.

    Args:
        text_encoder: Bio_ClinicalBERT: its name on the Hugging Face hub, or a folder with config.json, vocab.txt (or
            tokenizer.json) and model.safetensors (or pytorch_model.bin).
        book: File with an explanation of each entry, as JSON or YAML.
        equalise: Equalize the histogram before resizing, as the authors of MedKLIP do only for RSNA.
        **options: Those of `xbench.models.networks.query_decoder.DecoderModel`. Training used an `image_size` of 224.
            The authors of MedKLIP enlarge maps by repeating cells (`nearest` as `saliency_upsample`), those of MAVL
            bilinearly between corners (`corners`).
    """

    model: Any
    book: Book
    stated, checkpoint_part = "equalise", "model"

    def __init__(
        self,
        model: BookNetwork,
        checkpoint: Path,
        texts: int,
        concepts: str | None = None,
        text_encoder: str = "emilyalsentzer/Bio_ClinicalBERT",
        book: str | None = None,
        equalise: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(checkpoint, 16, (4, 4), text_encoder=text_encoder, **options)
        self.model, self.texts, self.equalise = model, texts, equalise
        self._files = [Path(file).expanduser() for file in (book, concepts) if file is not None]
        self._entries = own_entries(texts) if book is None else read_entries(book, concepts, texts)
        self.preprocessing = preprocessing(self.image_size, equalise)

    def default_prompts(self, finding: str) -> list[str]:
        name = entry_of(finding, self._entries)
        return own_texts(finding, self.texts) if name is None else list(self._entries[name])

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.book = with_findings(self._entries, self.findings, self.prompts)
        self.prompts = [list(self.book.entries[column]) for column in self.book.columns]
        self.columns = [list(self.book.entries).index(column) for column in self.book.columns]

    def phrase_prompts(self, text: str) -> list[str]:
        return [text] * self.texts

    def asked(self) -> Sequence[Sequence[str]]:
        return list(self.book.entries.values())

    def tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask (C, K, 64) of the texts of C classes, truncated as the authors do."""
        counts = {len(of_class) for of_class in prompts}
        if counts != {self.texts}:
            given = " and ".join(map(str, sorted(counts)))
            raise UserError(f"{self.name} takes {self.texts} prompts per class, got {given}.")
        flat = [text for of_class in prompts for text in of_class]
        input_ids, attention_mask = tokenise_without_separator(self.text_source, flat)
        return input_ids.unflatten(0, (-1, self.texts)), attention_mask.unflatten(0, (-1, self.texts))

    @torch.no_grad()
    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode K tokenized texts per class, [CLS] first, as queries (C, K, 256) float32."""
        ids, mask = (part.flatten(0, 1) for part in self.by_class(input_ids, attention_mask, self.texts))
        bert = self._bert.to(self.device)
        first = encode_in_chunks(lambda *chunk: bert(*chunk).last_hidden_state[:, 0], ids, mask)
        return cast(Tensor, self.model.disease_embedding_layer(first).unflatten(0, (-1, self.texts)))

    def decode(self, tokens: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Decode queries (C, K, 256) together over image tokens (B, 256, rows, columns).

        Returns decoded queries (B, C, K, 256), and their mean attention (B, C, K, rows, columns), which sums to 1.
        """
        decoder = self.model.decoder
        memory = decoder.keys_values(tokens.flatten(2).transpose(1, 2))
        decoded, attention = decoder(queries.flatten(0, 1)[None].to(tokens.dtype), memory, self.layers)
        weights, shape = self.mean_attention(attention), queries.shape[:2]
        return decoded.unflatten(1, shape), weights.unflatten(1, shape).unflatten(-1, tokens.shape[2:])

    def provenance(self) -> dict[str, Any]:
        book = self.book
        return {
            "text_encoder_sha256": file_sha256(weights_file(self.text_source)),
            "book": {
                "files": {str(file): file_sha256(file) for file in self._files},
                "official": {*OFFICIAL_ENTRIES} <= {*book.entries},
                "entries": list(book.entries),
                "columns": dict(zip(self.findings, book.columns, strict=True)),
                "added": list(book.added),
            },
            **super().provenance(),
        }

    @cached_property
    def _bert(self) -> Any:
        # Not a submodule, because the checkpoint does not contain its weights.
        return load_bert(self.text_source)


class MedKLIP(BookModel):
    """MedKLIP with the weights of its authors.

    Each image is queried with all entries of a book together, on which the scores depend, and the dataset's columns are
    selected, as the authors do. The authors' book, `observation explanation.json` of their repository, has no license
    and so is not included: give its path as `book`. Findings then use the entries of the authors' scripts, for CheXpert
    MAVL's; those without an entry are appended in the package's words. Without `book` all is in the package's words: a
    normal radiograph, clear lungs, and its findings.

    Args:
        checkpoint: The authors' file (`checkpoint_final.pth`), or its tensors as safetensors.
        **options: Those of `xbench.models.maps.medklip.BookModel`. A finding's prompt replaces its explanation.
    """

    def __init__(self, checkpoint: str | None = None, **options: Any) -> None:
        path = locate(checkpoint, "MedKLIP", _SOURCE)
        model = undrawn(_Network)
        fill(model, read_tensors(path), path, "MedKLIP")
        super().__init__(model, path, texts=1, concepts=None, **options)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, H, W) against joint queries (C, 1, 256); each map sums to 1."""
        decoded, attention = self.decode(self.model.image_tokens(images), queries)
        return absent_or_present(classify(self.model.classifier, decoded.squeeze(2)), attention.squeeze(2))


class _Network(BookNetwork):
    def __init__(self) -> None:
        super().__init__(head_inputs=WIDTH)
        self.res_features = trunk()
        self.res_l1 = nn.Linear(TRUNK_WIDTH, TRUNK_WIDTH)
        self.res_l2 = nn.Linear(TRUNK_WIDTH, WIDTH)
        self.cl_fc = nn.Linear(WIDTH, 768)

    def image_tokens(self, images: Tensor) -> Tensor:
        tokens = self.res_features(images).permute(0, 2, 3, 1)
        return cast(Tensor, self.res_l2(self.res_l1(tokens).relu()).permute(0, 3, 1, 2))
