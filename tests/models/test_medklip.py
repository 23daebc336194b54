"""The book and the files of MedKLIP and MAVL; their numbers are held to those of their authors in `test_golden.py`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from book_files import official_weights, write_book, write_concepts, write_official, write_small_bert
from deterministic import images_of, quick_weight
from small_networks import attached, largest, score
from torch import Tensor

from xbench.data.records import Record
from xbench.findings.names import FINDINGS
from xbench.findings.prompts import prompts_in_style, wording, wordings
from xbench.geometry.transforms import HistogramEqualisation
from xbench.models import MAVL, MedKLIP
from xbench.models.maps.medklip import OFFICIAL_ENTRIES
from xbench.runtime.errors import UserError
from xbench.types import Query

ENTRIES = [*wordings("normal"), *wordings("findings")]


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return official_weights("mavl", quick_weight)


@pytest.fixture(scope="module")
def medklip(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("medklip")
    checkpoint = write_official(official_weights("medklip", quick_weight), folder)
    return {"checkpoint": checkpoint, "text_encoder": write_small_bert(folder)}


@pytest.fixture(scope="module")
def mavl(weights: dict[str, Tensor], medklip: dict[str, str], tmp_path_factory: Any) -> dict[str, str]:
    return medklip | {"checkpoint": write_official(weights, tmp_path_factory.mktemp("mavl"))}


def queries_of(count: int) -> Tensor:
    return torch.randn(count, 9, 256, generator=torch.Generator().manual_seed(count))


def texts_of(finding: str) -> list[str]:
    return [wording(finding).description, *prompts_in_style("aspects", finding)]


def test_prompts_become_tokens(medklip: dict[str, str]) -> None:
    model = MedKLIP(**medklip)
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
    with pytest.raises(UserError, match=r"\(C, 1, L\), not \(2, 2, 32\)"):
        model.encode_tokens(ids.reshape(2, 2, 32))
    with pytest.raises(UserError, match=r"\(C, 1, L\), not \(2, 64\) and \(2, 32\)"):
        model.encode_tokens(ids, torch.ones(2, 32))


@pytest.mark.parametrize("name", ["medklip", "mavl"])
def test_own_book(request: pytest.FixtureRequest, name: str) -> None:
    files = request.getfixturevalue(name)
    texts = (lambda finding: texts_of(finding)[:1]) if name == "medklip" else texts_of
    model = attached(MedKLIP(**files) if name == "medklip" else MAVL(**files, mode="text"), "Nodule", "COVID-19")
    assert ENTRIES[:2] == ["Normal", "Clear Lungs"]
    assert model.book.entries == {entry: texts(entry) for entry in ENTRIES} and list(model.book.entries) == ENTRIES
    assert model.prompts == [texts("Nodule"), texts("COVID-19")]
    model.on_test_start()
    images = images_of("own", 2, 224 if name == "mavl" else 64)
    every, output = model(images, model.encode_prompts([texts(entry) for entry in ENTRIES])), score(model, images)
    columns = [ENTRIES.index("Nodule"), ENTRIES.index("COVID-19")]
    for part in ("logits", "probabilities", "saliency"):
        assert torch.equal(getattr(output, part), getattr(every, part)[:, columns])
    equalised = type(model)(**files, equalise=True)
    assert any(isinstance(step, HistogramEqualisation) for step in equalised.preprocessing.geometry)
    provenance = model.provenance()
    expected = {"files": {}, "official": False, "entries": ENTRIES, "added": []}
    assert provenance["book"] == expected | {"columns": {"Nodule": "Nodule", "COVID-19": "COVID-19"}}
    assert name == "medklip" or provenance["mode"] == "text"


def test_official_book_of_medklip(medklip: dict[str, str], tmp_path: Path) -> None:
    # The file as it is, with its misspelt name.
    book = write_book(tmp_path / "observation explanation.json", renamed={"pneumonia": "eumonia"})
    model = attached(MedKLIP(**medklip, book=book), *FINDINGS["vindr"], "Pneumonia")
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
    provenance = model.provenance()["book"]
    assert provenance["official"] and provenance["added"] == list(model.book.added)
    assert provenance["files"] == {book: hashlib.sha256(Path(book).read_bytes()).hexdigest()}


def test_official_book_of_mavl(mavl: dict[str, str], tmp_path: Path) -> None:
    book = write_book(tmp_path / "book.json", "covid19", "bulla")
    concepts = write_concepts(tmp_path / "concepts.json", book)
    model = attached(MAVL(**mavl, book=book, concepts=concepts, mode="text"), *FINDINGS["chexlocalize"])
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
    assert model.default_prompts("Pneumonia")[1:] == [f"{aspect}: pneumonia" for aspect in wording("Nodule").aspects]
    attached(model, "ILD", "Nodule")
    assert list(model.book.entries) == [*OFFICIAL_ENTRIES, "ILD"]
    assert model.book.added == ("ILD",) and model.prompts[0] == texts_of("ILD")


def test_texts_of_mavl_and_their_maps(weights: dict[str, Tensor], mavl: dict[str, str], tmp_path: Path) -> None:
    """The number of texts comes from the weights; a map is the mean over those that are chosen."""
    images, queries = images_of("aspects", 1, 64), queries_of(2)
    alone = [MAVL(**mavl, aspects=(aspect,))(images, queries).saliency for aspect in (2, 4)]
    chosen = MAVL(**mavl, aspects=(4, 2))(images, queries).saliency
    torch.testing.assert_close(chosen, sum(alone) / 2, rtol=0, atol=1e-7)
    fewer = weights | {"classifier.weight": torch.zeros(2, 8 * 256), "location_emb.weight": torch.zeros(768, 256, 8)}
    book = write_book(tmp_path / "book.json")
    concepts = write_concepts(tmp_path / "concepts.json", book, aspects=7)
    model = MAVL(write_official(fewer, tmp_path), book=book, concepts=concepts, aspects=(0, 7))
    assert model.texts == 8
    assert model(images, queries[:, :8]).saliency.shape == (1, 2, 4, 4)
    with pytest.raises(UserError, match="from 0 to 7"):
        MAVL(str(tmp_path / "checkpoint_final.pth"), book=book, concepts=concepts)


def test_text_mode_at_another_size(mavl: dict[str, str]) -> None:
    output = MAVL(**mavl, mode="text", image_size=320)(images_of("large", 1, 320), queries_of(3))
    assert output.saliency.shape == (1, 3, 20, 20) and torch.isfinite(output.logits).all()


def test_a_phrase_stands_for_all_texts_of_mavl(mavl: dict[str, str]) -> None:
    records = [Record("a", {}), Record("b", {}, queries=(Query("1", "Nodule", "small nodule"),))]
    data = SimpleNamespace(findings=("Nodule",), records=records)
    for mode in ("feature", "text"):
        model = MAVL(**mavl, mode=mode)
        model.trainer = SimpleNamespace(datamodule=data)  # type: ignore[assignment]
        if mode == "text":
            with pytest.raises(UserError, match=r"mode text .* phrases"):
                model.setup("test")
            continue
        model.setup("test")
        images = images_of("phrases", 1, 64)
        found = model(images, model._encode([tuple(model.phrase_prompts("small nodule"))]))
        expected = model(images, model.encode_prompts([["small nodule"] * model.texts]))
        assert torch.equal(found.logits, expected.logits) and torch.equal(found.saliency, expected.saliency)


def test_wrong_options_of_mavl(mavl: dict[str, str], tmp_path: Path) -> None:
    book = write_book(tmp_path / "book.json")
    with pytest.raises(UserError, match="is two files"):
        MAVL(**mavl, book=book)
    concepts = write_concepts(tmp_path / "concepts.json", book)
    elsewhere = write_book(tmp_path / "other.json", without="normal")
    with pytest.raises(UserError, match="first two entries"):
        MAVL(**mavl, book=elsewhere, concepts=concepts, mode="text")
    with pytest.raises(UserError, match=r"aspects \(9,\).*from 0 to 8"):
        MAVL(**mavl, aspects=(9,))
    with pytest.raises(UserError, match="two normal entries"):
        MAVL(**mavl, mode="text")(images_of("few", 1), queries_of(1))


def test_names_with_module_in_the_middle(weights: dict[str, Tensor], tmp_path: Path) -> None:
    without = {name: tensor for name, tensor in weights.items() if name != "temp"}
    nested = {name.replace("res_l2.", "res_l2.module."): tensor for name, tensor in without.items()}
    path = tmp_path / "plain.pth"
    torch.save(nested, path)
    assert torch.equal(MAVL(str(path)).model.res_l2.bias, weights["res_l2.bias"])
