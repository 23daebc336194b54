"""MAVL against its authors' numbers, and against a second, plain implementation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from book_reference import (
    PARITY,
    largest,
    mavl,
    official_shapes,
    official_weights,
    tokens_of,
    write_book,
    write_official,
    write_small_bert,
)
from deterministic import images_of
from torch import Tensor

from xbench.errors import UserError
from xbench.models.components.book import OFFICIAL_ENTRIES
from xbench.models.mavl import MAVL
from xbench.protocol.findings import FINDINGS
from xbench.protocol.prompts import ASPECTS, prompts_in_style, wording, wordings
from xbench.types import ModelOutput

HERE = PARITY / "mavl"
needs_vectors = pytest.mark.skipif(not HERE.is_dir(), reason="needs the golden vectors beside the repository")

# From the golden vectors' first case.
LOGITS = [[-2.0946379, -1.8738362, -1.9874234, -1.8913007], [-2.110404, -1.8922218, -2.0025735, -1.908258]]
TEXT = [[0.5003607, 0.49963936, 0.50417674, 0.50326943], [0.50038373, 0.4996163, 0.5041556, 0.5031734]]
# Image 1, disease 2, row 5: the mean over four aspects, and the maximum.
MEAN_ROW = [0.00634688, 0.0050033, 0.00516349, 0.00508527, 0.00454672, 0.00450021, 0.00525369]
MEAN_ROW += [0.00483151, 0.005, 0.00536145, 0.00439953, 0.00449884, 0.00557278, 0.0044356]
MAX_ROW = [0.00638335, 0.00505646, 0.00527723, 0.00510355, 0.00458456, 0.00451848, 0.00529313]
MAX_ROW += [0.00488258, 0.00511471, 0.00540871, 0.00449523, 0.00456709, 0.00559765, 0.00457365]


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return official_weights("mavl")


@pytest.fixture(scope="module")
def checkpoint(weights: dict[str, Tensor]) -> Iterator[str]:
    with TemporaryDirectory() as folder:
        yield write_official(weights, Path(folder))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_small_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def model(checkpoint: str, bert: str) -> MAVL:
    return MAVL(checkpoint, bert)


@pytest.fixture(scope="module")
def golden_model(checkpoint: str, golden_bert: str) -> MAVL:
    return MAVL(checkpoint, golden_bert)


def golden_tokens(case: int, diseases: int) -> tuple[Tensor, Tensor]:
    explanation = tokens_of(f"mavl/public/{case}/disease", diseases)
    aspects = tokens_of(f"mavl/public/{case}/concept", 8 * diseases)
    ids, mask = (
        torch.cat([first[:, None], rest.view(diseases, 8, -1)], dim=1)
        for first, rest in zip(explanation, aspects, strict=True)
    )
    return ids, mask


def with_options(checkpoint: str, **options: Any) -> MAVL:
    return MAVL(checkpoint, **options)


def queries_of(count: int) -> Tensor:
    return torch.randn(count, 9, 256, generator=torch.Generator().manual_seed(count))


# The authors' numbers


def test_golden_numbers(checkpoint: str, golden_model: MAVL, monkeypatch: pytest.MonkeyPatch) -> None:
    # Encoding takes longer than all the rest, and has a test below that compares it with these.
    queries = (
        torch.from_numpy(np.load(HERE / "golden.npz")["case0/query_embeddings"])
        if HERE.is_dir()
        else golden_model.encode_tokens(*golden_tokens(0, 4))
    )
    images = images_of("mavl/public/0", 2)
    monkeypatch.setattr(golden_model.model.backbone, "forward", cache(golden_model.model.backbone.forward))
    output = golden_model(images, queries)
    assert largest(output.logits, LOGITS) < 1e-5
    assert largest(output.probabilities, output.logits.sigmoid()) < 1e-6
    assert largest(output.saliency[1, 2, 5], MEAN_ROW) < 1e-7

    def scored(**options: Any) -> ModelOutput:
        model = MAVL(checkpoint, **options)
        model.model.backbone = golden_model.model.backbone
        return model(images, queries)

    other = scored(mode="text", merge="max")
    assert largest(other.probabilities, TEXT) < 1e-6
    assert largest(other.logits.sigmoid(), TEXT) < 1e-6
    assert largest(other.saliency[1, 2, 5], MAX_ROW) < 1e-7
    assert torch.equal(scored(merge="global").saliency, scored(aspects=(0,)).saliency)


@needs_vectors
@pytest.mark.parametrize(("case", "images", "diseases"), [(0, 2, 4), (1, 1, 6)])
def test_golden_vectors(
    golden_model: MAVL, monkeypatch: pytest.MonkeyPatch, case: int, images: int, diseases: int
) -> None:
    golden = {
        name.removeprefix(f"case{case}/"): array
        for name, array in np.load(HERE / "golden.npz").items()
        if name.startswith(f"case{case}/")
    }
    ids, mask = golden_tokens(case, diseases)
    np.testing.assert_array_equal(ids[:, 0], golden["disease_book/input_ids"])
    np.testing.assert_array_equal(ids[:, 1:].flatten(0, 1), golden["concept_book/input_ids"])
    np.testing.assert_array_equal(mask[:, 1:].flatten(0, 1), golden["concept_book/attention_mask"])
    # Two diseases will do: prompts do not influence each other when they are encoded.
    queries = torch.from_numpy(golden["query_embeddings"]).clone()
    encoded = golden_model.encode_tokens(ids[1:3], mask[1:3])
    assert largest(encoded, queries[1:3]) < 3e-5
    queries[1:3] = encoded

    pixels = images_of(f"mavl/public/{case}", images)
    network = golden_model.model
    monkeypatch.setattr(network.backbone, "forward", cache(network.backbone.forward))
    features = network.backbone(pixels)
    tokens = network.image_tokens(features)
    assert largest(tokens, golden["image_features"]) < 3e-5
    assert largest(network.pool(features), golden["global_features"]) < 3e-5
    assert largest(golden_model.decode(tokens, queries)[1], golden["maps_all_aspects"]) < 1e-7

    def output(**options: Any) -> ModelOutput:
        usual = {option: getattr(golden_model, option) for option in options}
        vars(golden_model).update(options)
        scored = golden_model(pixels, queries)
        vars(golden_model).update(usual)
        return scored

    scored = output()
    assert largest(scored.logits, golden["logits"][..., 1] - golden["logits"][..., 0]) < 1e-5
    assert largest(scored.probabilities, golden["probabilities_feature"]) < 3e-6
    assert largest(scored.saliency, golden["maps"]) < 1e-7
    text = output(mode="text", merge="max")
    assert largest(text.probabilities, golden["probabilities_text"]) < 1e-6
    assert largest(text.saliency, golden["maps_max"]) < 1e-7
    assert largest(output(aspects=[0], merge="global").saliency, golden["maps_global"]) < 1e-7


@needs_vectors
@pytest.mark.parametrize(("case", "equalise"), [("chexpert_grey", False), ("rsna_dicom", True)])
def test_golden_preprocessing(checkpoint: str, case: str, equalise: bool) -> None:
    golden = np.load(HERE / "preprocess.npz")
    preprocessing = MAVL(checkpoint, equalise=equalise).preprocessing
    pixels = golden[f"{case}/pixels"]
    np.testing.assert_array_equal(preprocessing.pixels(pixels)[0], golden[f"{case}/resized"])
    assert largest(preprocessing(pixels)[0][:, ::8, ::8], golden[f"{case}/tensor_every_8"]) < 1e-6


@needs_vectors
def test_reference_has_the_shapes_of_the_manifest() -> None:
    listed = json.loads((HERE / "manifest.json").read_text())["parameters"]
    assert official_shapes("mavl") == {name: tuple(entry["shape"]) for name, entry in listed.items()}


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
    chosen = with_options(checkpoint, **options)(images, queries)
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


def test_batches_and_precision(model: MAVL) -> None:
    images, queries = images_of("batch", 3, 64), queries_of(3)
    together = model(images, queries)
    assert largest(model(images[1:2], queries).logits, together.logits[1:2]) < 1e-5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(images, queries)
    assert rounded.logits.dtype == rounded.saliency.dtype == torch.float32
    assert largest(rounded.probabilities, together.probabilities) < 0.01


# Text


def attached(model: MAVL, *findings: str) -> MAVL:
    model.trainer = SimpleNamespace(datamodule=SimpleNamespace(findings=findings))  # type: ignore[assignment]
    model.setup("test")
    return model


def texts_of(finding: str) -> list[str]:
    return [wording(finding).description, *prompts_in_style("aspects", finding)]


def write_concepts(path: Path, book: str, aspects: int = 8) -> str:
    # In another order than the book: entries are told by name.
    names = reversed(json.loads(Path(book).read_text()))
    path.write_text(json.dumps({name: [f"{aspect}: {name}" for aspect in ASPECTS[:aspects]] for name in names}))
    return str(path)


def test_own_book(checkpoint: str, bert: str) -> None:
    model = attached(MAVL(checkpoint, bert, mode="text"), "Nodule", "COVID-19")
    entries = [*wordings("normal"), *wordings("findings")]
    assert list(model.book.entries) == entries
    assert all(model.book.entries[name] == texts_of(name) for name in entries)
    assert model.prompts == [texts_of("Nodule"), texts_of("COVID-19")]
    model.on_predict_start()
    assert model.queries.shape == (33, 9, 256)
    output = model.score(SimpleNamespace(images=images_of("own", 2)))  # type: ignore[arg-type]
    columns = [entries.index("Nodule"), entries.index("COVID-19")]
    assert torch.equal(output.logits, model(images_of("own", 2), model.queries).logits[:, columns])
    provenance = model.provenance()
    assert provenance["mode"] == "text"
    assert provenance["saliency"]["aspects"] == [0, 6, 7, 8] and provenance["saliency"]["merge"] == "avg"
    assert provenance["prompts"]["COVID-19"] == texts_of("COVID-19")


def test_official_book(checkpoint: str, bert: str, tmp_path: Path) -> None:
    book = write_book(tmp_path / "book.json", "covid19", "bulla")
    concepts = write_concepts(tmp_path / "concepts.json", book)
    model = attached(MAVL(checkpoint, bert, book, concepts, mode="text"), *FINDINGS["chexlocalize"])
    # What the file has for other datasets is not asked, as it would change every score.
    assert list(model.book.entries) == list(OFFICIAL_ENTRIES)
    assert model.book.added == ()
    numbers = [
        entry[0].removeprefix(f"{name} at ") for entry, name in zip(model.prompts, model.book.columns, strict=True)
    ]
    assert dict(zip(model.findings, map(int, numbers), strict=True)) == {
        "Atelectasis": 12,
        "Cardiomegaly": 24,
        "Consolidation": 14,
        "Edema": 11,
        "Enlarged Cardiomediastinum": 17,
        "Fracture": 25,
        "Lung Lesion": 65,
        "Lung Opacity": 9,
        "Pleural Effusion": 8,
        "Pleural Other": 16,
        "Pneumonia": 20,
        "Pneumothorax": 10,
        "Support Devices": 32,
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
    with pytest.raises(UserError, match=r"--model\.checkpoint FILE.*HieuPhan33/MAVL.*no licence"):
        MAVL()
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
    with pytest.raises(UserError, match="two references"):
        MAVL(checkpoint, mode="text")(images_of("few", 1), queries_of(1))


def test_checkpoint(weights: dict[str, Tensor], tmp_path: Path) -> None:
    without = {name: tensor for name, tensor in weights.items() if name != "temp"}
    nested = {name.replace("res_l2.", "res_l2.module."): tensor for name, tensor in without.items()}
    path = tmp_path / "plain.pth"
    torch.save(nested, path)
    assert torch.equal(MAVL(str(path)).model.res_l2.bias, weights["res_l2.bias"])
    del nested["location_emb.bias"]
    torch.save(nested, path)
    with pytest.raises(UserError, match=r"do not fit MAVL: 1 missing \(location_emb\.bias\)"):
        MAVL(str(path))
    torch.save({name: torch.zeros(()).expand(shape) for name, shape in official_shapes("medklip").items()}, path)
    with pytest.raises(UserError, match="They look like those of MedKLIP"):
        MAVL(str(path))
