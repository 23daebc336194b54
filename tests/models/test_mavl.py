"""MAVL against its authors' numbers, and against a second, plain implementation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from book_reference import mavl, official_weights, write_book, write_official, write_small_bert
from deterministic import images_of, quick_weight
from small_networks import attached, largest, score
from torch import Tensor

from xbench.findings.names import FINDINGS
from xbench.findings.prompts import ASPECTS, prompts_in_style, wording, wordings
from xbench.models.maps.mavl import MAVL
from xbench.models.networks.book import OFFICIAL_ENTRIES
from xbench.runtime.errors import UserError


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return official_weights("mavl", quick_weight)


@pytest.fixture(scope="module")
def checkpoint(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_official(weights, tmp_path_factory.mktemp("mavl"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_small_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def model(checkpoint: str, bert: str) -> MAVL:
    return MAVL(checkpoint, text_encoder=bert)


def queries_of(count: int) -> Tensor:
    return torch.randn(count, 9, 256, generator=torch.Generator().manual_seed(count))


# A second implementation


@pytest.mark.parametrize("size", [224, 96])
def test_against_plain_functions(weights: dict[str, Tensor], checkpoint: str, model: MAVL, size: int) -> None:
    images, queries = images_of("plain", 2, size), queries_of(3)
    logits, attention, pooled = mavl(weights, images, queries)
    output = model(images, queries)
    assert largest(output.logits, logits[..., 1] - logits[..., 0]) < 1e-5
    assert largest(output.probabilities, logits.softmax(dim=-1)[..., 1]) < 3e-6
    maps = attention.mean(dim=(1, 2))
    assert largest(output.saliency.flatten(2), maps[:, :, [0, 6, 7, 8]].mean(dim=2)) < 1e-7
    options = {"layers": [3, 1], "heads": [2], "aspects": (4, 2), "image_size": size}
    chosen = MAVL(checkpoint, **options)(images, queries)
    expected = (attention[:, 1, 2] + attention[:, 3, 2])[:, :, [2, 4]].mean(dim=2) / 2
    assert largest(chosen.saliency.flatten(2), expected) < 1e-7
    if size != 224:
        return
    text = MAVL(checkpoint, mode="text")(images, queries)
    for image in range(2):
        for disease in range(3):
            lead = []
            for aspect in range(9):
                vector, query = pooled[image].double(), queries[:, aspect].double()
                cosines = [float(vector @ row / vector.norm() / row.norm()) for row in query]
                lead += [1 / (1 + np.exp(cosines[reference] - cosines[disease])) for reference in (0, 1)]
            assert text.probabilities[image, disease].item() == pytest.approx(np.mean(lead), abs=1e-6)


def test_text_mode_at_another_size(checkpoint: str) -> None:
    model = MAVL(checkpoint, mode="text", image_size=320)
    output = model(images_of("large", 1, 320), queries_of(3))
    assert output.saliency.shape == (1, 3, 20, 20)
    assert torch.isfinite(output.logits).all()
    positions = model.model.pool.positional_embedding
    # A table that is the same everywhere stays what it is, in order: the mean's first.
    model.model.pool.positional_embedding.data = torch.cat([torch.full((1, 1024), 5.0), torch.full((196, 1024), 3.0)])
    resized = model.model.pool._positions(torch.Size((20, 20)))
    assert largest(resized, torch.cat([torch.full((1, 1024), 5.0), torch.full((400, 1024), 3.0)])) < 1e-5
    assert positions.shape == (197, 1024)


# Text


def texts_of(finding: str) -> list[str]:
    return [wording(finding).description, *prompts_in_style("aspects", finding)]


def write_concepts(path: Path, book: str, aspects: int = 8) -> str:
    # In another order than the book: entries are told by name.
    names = reversed(json.loads(Path(book).read_text()))
    path.write_text(json.dumps({name: [f"{aspect}: {name}" for aspect in ASPECTS[:aspects]] for name in names}))
    return str(path)


def test_own_book(checkpoint: str, bert: str) -> None:
    model = attached(MAVL(checkpoint, text_encoder=bert, mode="text"), "Nodule", "COVID-19")
    entries = [*wordings("normal"), *wordings("findings")]
    assert list(model.book.entries) == entries
    assert all(model.book.entries[name] == texts_of(name) for name in entries)
    assert model.prompts == [texts_of("Nodule"), texts_of("COVID-19")]
    model.on_predict_start()
    assert model.queries.shape == (34, 9, 256)
    output = score(model, images_of("own", 2))
    columns = [entries.index("Nodule"), entries.index("COVID-19")]
    assert torch.equal(output.logits, model(images_of("own", 2), model.queries).logits[:, columns])
    provenance = model.provenance()
    assert provenance["mode"] == "text"
    assert provenance["saliency"]["aspects"] == [0, 6, 7, 8] and provenance["saliency"]["merge"] == "avg"


def test_official_book(checkpoint: str, bert: str, tmp_path: Path) -> None:
    book = write_book(tmp_path / "book.json", "covid19", "bulla")
    concepts = write_concepts(tmp_path / "concepts.json", book)
    model = attached(
        MAVL(checkpoint, text_encoder=bert, book=book, concepts=concepts, mode="text"), *FINDINGS["chexlocalize"]
    )
    # What the file has for other datasets is not asked, as it would change every score.
    assert list(model.book.entries) == list(OFFICIAL_ENTRIES)
    assert model.book.added == ()
    places = {
        finding: text.rpartition(" at ")[2] for finding, (text, *_) in zip(model.findings, model.prompts, strict=True)
    }
    assert places == {
        **{"Atelectasis": "12", "Cardiomegaly": "24", "Consolidation": "14", "Edema": "11", "Fracture": "25"},
        **{"Enlarged Cardiomediastinum": "17", "Lung Lesion": "65", "Lung Opacity": "9", "Pleural Effusion": "8"},
        **{"Pleural Other": "16", "Pneumonia": "20", "Pneumothorax": "10", "Support Devices": "32"},
    }
    assert model.default_prompts("Pneumonia")[1:] == [f"{aspect}: pneumonia" for aspect in ASPECTS]
    attached(model, "COVID-19")
    assert list(model.book.entries) == [*OFFICIAL_ENTRIES, "covid19"]
    assert model.prompts[0][0] == "covid19 at 75" and model.book.added == ()
    attached(model, "ILD", "Nodule")
    assert list(model.book.entries) == [*OFFICIAL_ENTRIES, "ILD"]
    assert model.book.added == ("ILD",) and model.prompts[0] == texts_of("ILD")


def test_number_of_aspects_comes_from_the_weights(weights: dict[str, Tensor], tmp_path: Path) -> None:
    fewer = weights | {"classifier.weight": torch.zeros(2, 8 * 256), "location_emb.weight": torch.zeros(768, 256, 8)}
    book = write_book(tmp_path / "book.json")
    concepts = write_concepts(tmp_path / "concepts.json", book, aspects=7)
    model = MAVL(write_official(fewer, tmp_path), book=book, concepts=concepts, aspects=(0, 7))
    assert model.texts == 8
    assert model(images_of("fewer", 1, 64), queries_of(2)[:, :8]).saliency.shape == (1, 2, 4, 4)
    with pytest.raises(UserError, match="from 0 to 7"):
        MAVL(str(tmp_path / "checkpoint_final.pth"), book=book, concepts=concepts)


# Errors


def test_wrong_options(checkpoint: str, tmp_path: Path) -> None:
    book = write_book(tmp_path / "book.json")
    with pytest.raises(UserError, match="only one is given"):
        MAVL(checkpoint, book=book)
    short = write_concepts(tmp_path / "short.json", book, aspects=7)
    with pytest.raises(UserError, match=r"7 texts on normal.*need 8"):
        MAVL(checkpoint, book=book, concepts=short)
    concepts = write_concepts(tmp_path / "concepts.json", book)
    elsewhere = write_book(tmp_path / "other.json", without="normal")
    with pytest.raises(UserError, match="first two entries"):
        MAVL(checkpoint, book=elsewhere, concepts=concepts, mode="text")
    with pytest.raises(UserError, match=r"aspects \(9,\).*from 0 to 8"):
        MAVL(checkpoint, aspects=(9,))


def test_wrong_queries(checkpoint: str, model: MAVL) -> None:
    with pytest.raises(UserError, match=r"\(C, 9, L\), got \(4, 64\)"):
        model.encode_tokens(torch.ones(4, 64, dtype=torch.int64))
    with pytest.raises(UserError, match="takes 9 prompts per class, got 1 and 9"):
        model.encode_prompts([["a"], ["a"] * 9])
    with pytest.raises(UserError, match="two normal entries"):
        MAVL(checkpoint, mode="text")(images_of("few", 1), queries_of(1))


def test_names_with_module_in_the_middle(weights: dict[str, Tensor], tmp_path: Path) -> None:
    without = {name: tensor for name, tensor in weights.items() if name != "temp"}
    nested = {name.replace("res_l2.", "res_l2.module."): tensor for name, tensor in without.items()}
    path = tmp_path / "plain.pth"
    torch.save(nested, path)
    assert torch.equal(MAVL(str(path)).model.res_l2.bias, weights["res_l2.bias"])
