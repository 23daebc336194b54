"""MedKLIP against its authors' numbers, and against a second, plain implementation."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from book_reference import medklip, official_weights, write_book, write_official, write_small_bert
from deterministic import images_of, quick_weight
from small_networks import attached, largest, score
from torch import Tensor

from xbench.findings.names import FINDINGS
from xbench.findings.prompts import wording, wordings
from xbench.models.maps.medklip import MedKLIP
from xbench.models.networks.book import OFFICIAL_ENTRIES
from xbench.runtime.errors import UserError


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return official_weights("medklip", quick_weight)


@pytest.fixture(scope="module")
def checkpoint(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_official(weights, tmp_path_factory.mktemp("medklip"))


@pytest.fixture(scope="module")
def small_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_small_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def model(checkpoint: str, small_bert: str) -> MedKLIP:
    return MedKLIP(checkpoint, text_encoder=small_bert)


def queries_of(count: int) -> Tensor:
    return torch.randn(count, 1, 256, generator=torch.Generator().manual_seed(count))


# A second implementation


@pytest.mark.parametrize("size", [224, 96])
def test_against_plain_functions(weights: dict[str, Tensor], checkpoint: str, model: MedKLIP, size: int) -> None:
    images, queries = images_of("plain", 2, size), queries_of(6)
    logits, attention = medklip(weights, images, queries[:, 0])
    output = model(images, queries)
    assert largest(output.logits, logits[..., 1] - logits[..., 0]) < 1e-5
    assert largest(output.probabilities, logits.softmax(dim=-1)[..., 1]) < 3e-6
    assert largest(output.saliency.flatten(2), attention.mean(dim=(1, 2))) < 1e-7
    chosen = MedKLIP(checkpoint, layers=[3, 1], heads=[2], image_size=size)
    expected = (attention[:, 1, 2] + attention[:, 3, 2]) / 2
    assert largest(chosen(images, queries).saliency.flatten(2), expected) < 1e-7


# Text


def test_prompts_become_tokens(model: MedKLIP) -> None:
    # [CLS] a large ##r heart , white: lower-cased, without [SEP].
    ids = torch.zeros(2, 64, dtype=torch.int64)
    ids[0, :7] = torch.tensor([2, 5, 9, 10, 6, 11, 8])
    ids[1, :2] = torch.tensor([2, 1])
    queries = model.encode_prompts([["A LARGER heart, white"], ["unheard"]])
    assert queries.shape == (2, 1, 256)
    assert largest(queries, model.encode_tokens(ids)) < 1e-5
    assert largest(model.encode_tokens(ids[:, None], (ids != 0).long()[:, None]), queries) < 1e-5
    with pytest.raises(UserError, match="takes 1 prompts per class, got 2"):
        model.encode_prompts([["a", "heart"]])
    with pytest.raises(UserError, match=r"\(C, 1, L\), got \(2, 2, 32\)"):
        model.encode_tokens(ids.reshape(2, 2, 32))
    with pytest.raises(UserError, match=r"\(C, 1, L\), got \(2, 64\) and \(2, 32\)"):
        model.encode_tokens(ids, torch.ones(2, 32))


def test_own_book(checkpoint: str, small_bert: str) -> None:
    model = attached(MedKLIP(checkpoint, text_encoder=small_bert), "Nodule", "Edema")
    entries = [*wordings("normal"), *wordings("findings")]
    assert entries[:2] == ["Normal", "Clear Lungs"]
    assert list(model.book.entries) == entries
    assert model.prompts == [[wording("Nodule").description], [wording("Edema").description]]
    model.on_test_start()
    images = images_of("own", 2, 64)
    every = model(images, model.encode_prompts([[wording(name).description] for name in entries]))
    output = score(model, images)
    columns = [entries.index("Nodule"), entries.index("Edema")]
    for name in ("logits", "probabilities", "saliency"):
        assert torch.equal(getattr(output, name), getattr(every, name)[:, columns])
    provenance = model.provenance()
    assert provenance["prompts"]["Edema"] == [wording("Edema").description]
    expected = {"files": {}, "official": False, "entries": entries, "added": []}
    assert provenance["book"] == expected | {"columns": {"Nodule": "Nodule", "Edema": "Edema"}}


def test_official_book(checkpoint: str, small_bert: str, tmp_path: Path) -> None:
    # The file as it is, with its misspelt name.
    book = write_book(tmp_path / "observation explanation.json", renamed={"pneumonia": "eumonia"})
    model = attached(MedKLIP(checkpoint, text_encoder=small_bert, book=book), *FINDINGS["vindr"], "Pneumonia")
    assert list(model.book.entries)[:75] == list(OFFICIAL_ENTRIES)
    added = ["Aortic Enlargement", "Clavicle Fracture", "Enlarged PA", "ILD", "Lung Cavity", "Lung Cyst"]
    added += ["Mediastinal Shift", "Nodule/Mass", "Other Lesion", "Rib Fracture"]
    assert sorted(list(model.book.entries)[75:]) == sorted(model.book.added) == added
    prompts = dict(zip(model.findings, model.prompts, strict=True))
    assert prompts["Pneumonia"] == ["eumonia at 20"]
    assert prompts["Pulmonary Fibrosis"] == ["tail_abnorm_obs at 73"]
    assert prompts["Rib Fracture"] == [wording("Rib Fracture").description]
    model.on_test_start()
    assert model.queries.shape == (85, 1, 256)
    output = score(model, images_of("official", 1, 64))
    every = model(images_of("official", 1, 64), model.queries)
    assert torch.equal(output.logits[:, -1], every.logits[:, 20])
    provenance = model.provenance()
    assert provenance["book"]["official"] and provenance["book"]["added"] == list(model.book.added)
    assert provenance["book"]["files"] == {book: hashlib.sha256(Path(book).read_bytes()).hexdigest()}
