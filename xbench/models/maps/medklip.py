"""MedKLIP: a decoder asks the patches of a radiograph about explanations of findings, all entries of a book together.

C. Wu, X. Zhang, Y. Zhang, Y. Wang, W. Xie, "MedKLIP: Medical Knowledge Enhanced Language-Image Pre-Training for X-ray
Diagnosis", ICCV 2023. The score is that of a linear layer on the decoded query; the map is the attention of the query
to the patches, mean over the decoder's four layers and four heads.

Queries attend to one another, so the score of a finding depends on the rest of the book. As the authors do, all entries
are decoded and the columns of the dataset picked. MAVL reads its book, with more texts an entry, by the same code.
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
    "checkpoints/README.md of github.com/MediaBrain-SJTU/MedKLIP links the folder that holds checkpoint_final.pth; no "
    "licence is given."
)

# Widths of queries and image tokens, and of the third stage of a ResNet-50.
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
"""Names of the entries of the authors' book, in class order."""

# Entries of findings that are not called the same, from the authors' scripts: ChestX-ray14 (both models), RSNA, SIIM,
# CheXpert and COVID-rural (MAVL). `calcification` is the one entry that no script of theirs asks about. Aortic
# Enlargement, Clavicle Fracture, Diffuse Nodule, Enlarged PA, ILD, Lung Cavity, Lung Cyst, Mediastinal Shift,
# Nodule/Mass, Other Lesion, Rib Fracture and Tuberculosis have none.
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
"""Texts by name of the entry, in class order: the explanation, and for MAVL one text on each aspect after it."""


@dataclass(frozen=True)
class Book:
    """The entries of a run, the entry of each finding (`columns`), and which findings were appended."""

    entries: Entries
    columns: tuple[str, ...]
    added: tuple[str, ...]


def own_texts(finding: str, texts: int) -> list[str]:
    """Return the package's texts on a finding: its description, then its aspects if an entry has several texts."""
    return [*prompts_in_style("description", finding), *(prompts_in_style("aspects", finding) if texts > 1 else ())]


def own_entries(texts: int) -> Entries:
    """Return the book in the words of the package: a normal radiograph, clear lungs, then every finding."""
    return {name: own_texts(name, texts) for name in (*wordings("normal"), *wordings("findings"))}


def read_entries(book: str, concepts: str | None, texts: int) -> Entries:
    """Read the authors' book: by entry an explanation and, from `concepts`, the other texts; or raise a UserError."""
    explanations = {}
    for name, value in read_prompts(book).items():
        if len(value) != 1:
            raise UserError(f"--model.book {book} gives {name} {len(value)} texts: an entry has one explanation.")
        # MedKLIP's file has lost a letter, which does no harm where entries are told by their position.
        explanations["pneumonia" if name == "eumonia" else name] = value
    # Files for some datasets append entries, on which scores would depend; the authors ask them there alone.
    if {*OFFICIAL_ENTRIES} <= {*explanations}:
        explanations = {name: explanations[name] for name in (*OFFICIAL_ENTRIES, *explanations)}
    if concepts is None:
        return explanations
    aspects = read_prompts(concepts)
    for name in explanations:
        if len(aspects.get(name, ())) != texts - 1:
            raise UserError(
                f"--model.concepts {concepts} has {len(aspects.get(name, ()))} texts on {name} of the book {book}: the "
                f"weights need {texts - 1} for every entry. Give the two files that belong together."
            )
    return {name: [*explanation, *aspects[name]] for name, explanation in explanations.items()}


def entry_of(finding: str, entries: Entries) -> str | None:
    """Return the name of a finding's entry in a book: that of the authors' scripts, or one of the same name."""
    official = _ENTRY_OF.get(finding, finding.lower())
    if official in entries:
        return official
    return next((name for name in entries if finding in (name, canonical(name))), None)


def with_findings(entries: Entries, findings: Sequence[str], prompts: Sequence[Sequence[str]]) -> Book:
    """Make the book of a run from entries and the prompts of each finding of the dataset.

    A finding's prompts replace its entry, or are appended if the book has none, as the authors of MAVL do. They are all
    texts that an entry has, or the explanation alone, or the aspects alone: the others stay as they are. Of a book with
    the 75 official entries, others stay out unless they belong to a finding.
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
                f"{finding} has {len(given)} prompts; the model takes {texts} of each finding"
                + (f", or the explanation alone, or the {texts - 1} aspects alone." if texts > 1 else ".")
            )
    added = tuple(finding for finding in findings if entry[finding] is None)
    return Book(asked, tuple(entry[finding] or finding for finding in findings), added)


def trunk() -> nn.Sequential:
    """Return a ResNet-50 up to its third stage: images (B, 3, H, W) to (B, 1024, H / 16, W / 16)."""
    return nn.Sequential(*list(torchvision.models.resnet50().children())[:7])


def preprocessing(image_size: int, equalise: bool) -> Preprocessing:
    """Return the preprocessing of both models: equalise if wanted, then stretch to a square."""
    geometry = [*([HistogramEqualisation()] if equalise else []), PillowResize(image_size, "both", "bilinear")]
    return Preprocessing(geometry, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class BookNetwork(nn.Module):
    """The parts that both networks share, under the names of the authors' files."""

    def __init__(self, head_inputs: int) -> None:
        super().__init__()
        self.disease_embedding_layer = nn.Linear(768, WIDTH)
        self.decoder = QueryDecoder(WIDTH, heads=4)
        self.classifier = nn.Linear(head_inputs, 2)


class BookModel(DecoderModel):
    """A model that reads every image with a book; `texts` is the number of texts of an entry.

    Args:
        text_encoder: Bio_ClinicalBERT: its name on the Hugging Face hub, or a folder with config.json, vocab.txt (or
            tokenizer.json) and model.safetensors (or pytorch_model.bin).
        book: File with an explanation of every entry, as JSON or YAML.
        equalise: Equalise the histogram before resizing, as the authors of MedKLIP do for RSNA alone.
        **options: Those of `xbench.models.networks.query_decoder.DecoderModel` and of every vision-language model.
            Training was at an `image_size` of 224. The authors of MedKLIP enlarge maps by repeating every cell
            (`saliency_upsample` of `nearest`), those of MAVL bilinearly between corners (`corners`).
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
        """Return the texts of the finding's entry in the book, or those of the package if it has none."""
        name = entry_of(finding, self._entries)
        return own_texts(finding, self.texts) if name is None else list(self._entries[name])

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.book = with_findings(self._entries, self.findings, self.prompts)
        self.prompts = [list(self.book.entries[column]) for column in self.book.columns]
        self.columns = [list(self.book.entries).index(column) for column in self.book.columns]

    def phrase_prompts(self, text: str) -> list[str]:
        """Return the phrase in the place of each text of an entry."""
        return [text] * self.texts

    def asked(self) -> Sequence[Sequence[str]]:
        return list(self.book.entries.values())

    def tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask (C, K, 64) of the texts of C classes, cut off as the authors do."""
        counts = {len(of_class) for of_class in prompts}
        if counts != {self.texts}:
            raise UserError(
                f"{self.name} takes {self.texts} prompts per class, got {' and '.join(map(str, sorted(counts)))}."
            )
        flat = [text for of_class in prompts for text in of_class]
        input_ids, attention_mask = tokenise_without_separator(self.text_source, flat)
        return input_ids.unflatten(0, (-1, self.texts)), attention_mask.unflatten(0, (-1, self.texts))

    @torch.no_grad()
    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode the K tokenised texts of each class, [CLS] first, as queries (C, K, 256) float32."""
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
        # Not a submodule: its weights are not the checkpoint's.
        return load_bert(self.text_source)


class MedKLIP(BookModel):
    """MedKLIP with the weights of its authors.

    Every image is asked about all entries of a book together, on which the scores depend. The authors' book is the file
    `observation explanation.json` of their repository, which has no licence and so is not included: give its path as
    `book`. Findings are then scored by the entries of the authors' scripts, those of CheXpert by MAVL's. A finding
    without an entry is appended, in the words of the package. Without `book` everything is in the words of the package:
    a normal radiograph, clear lungs, and all its findings.

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
