from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from deterministic import gray, images_of
from deterministic_checkpoints import FIXED, MODELS, write_checkpoint
from places import ROOT
from torch import Tensor

from xbench import models
from xbench.findings.names import FINDINGS
from xbench.findings.prompts import phrase, prompts_in_style
from xbench.models import VLM
from xbench.models.maps import biovil, carzero, cxrclip, devide, gloria, hf_dual, kad, mavl, medklip, radzero
from xbench.models.maps import clip as open_clip
from xbench.models.maps.kad import class_name
from xbench.models.redrawing import layers_of, redrawn
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.notes import CUT_OFF_NOTE
from xbench.types import ModelOutput, Query

# The class, the module that reads its checkpoint, a tensor that no file may lack, and how a misfit calls the model.
HOMES: dict[str, tuple[Callable[..., VLM], Any, str, str]] = {
    "clip": (models.CLIP, open_clip, "visual.ln_post.bias", "local-dir:"),
    "biomedclip": (models.BiomedCLIP, open_clip, "visual.trunk.norm.bias", "hf-hub:microsoft/BiomedCLIP"),
    "carzero": (models.CARZero, carzero, "img_encoder.model.norm.weight", "CARZero"),
    "medklip": (models.MedKLIP, medklip, "classifier.bias", "MedKLIP"),
    "kad": (models.KAD, kad, "model.mlp_head.0.bias", "KAD"),
    "mavl": (models.MAVL, mavl, "location_emb.bias", "MAVL"),
    "devide": (models.DeViDe, devide, "model.mlp_head.0.bias", "DeViDe"),
    "radzero": (models.RadZero, radzero, "vision_model.layernorm.bias", "RadZero"),
    "hf": (models.HFDual, hf_dual, "vision_model.post_layernorm.bias", "the siglip model of config.json"),
    "gloria": (models.GLoRIA, gloria, "img_encoder.global_embedder.bias", "GLoRIA"),
    "afloc": (models.AFLoc, gloria, "img_encoder.global_embedder.bias", "AFLoc"),
    "chexzero": (models.CheXzero, open_clip, "visual.ln_post.bias", "ViT-B-32-quickgelu"),
    "biovil": (models.BioViL, biovil, "projector.model.3.bias", "BioViL"),
    "biovilt": (models.BioViLT, biovil, "projector.model.3.bias", "BioViL-T"),
    "cxrclip": (models.CXRCLIP, cxrclip, "image_projection.projection.bias", "CXR-CLIP"),
}
SIZE = 448
# Indirect: with a `model` beside the fixture's, `build` and `network` would not notice that the model changes.
SIZED = pytest.mark.parametrize("model", [name for name in MODELS if name not in FIXED], indirect=True)
# Sides of the squares that their cells stand for.
STRIDES = dict.fromkeys(MODELS, 16) | {"radzero": 14}
STRIDES |= dict.fromkeys(("clip", "kad", "chexzero", "biovil", "biovilt", "cxrclip"), 32)
DECODERS = ("carzero", "medklip", "kad", "mavl", "devide")
# How CARZero's scripts call findings, where they do not use the name of the dataset.
OF_CARZERO = {
    "Calcification": "Tissue Calcification",
    "Consolidation": "Pulmonary Consolidation",
    "Edema": "Pulmonary Edema",
    "Emphysema": "Pulmonary Emphysema",
    "Fracture": "Bone Fracture",
    "Infiltration": "Pulmonary Infiltration",
    "Mass": "Pulmonary Mass",
    "Nodule": "Lung Nodule",
    "Pulmonary Fibrosis": "Fibrosis",
}
BIOVIL = [f"Findings {words} {{0}}" for words in ("consistent with", "suggesting")]
BIOVIL += ["Findings are most compatible with {0}", "This opacity can represent {0}"]
BIOVIL += [f"{no} {{0}}" for no in ("There is no", "No evidence of", "No evidence of acute", "No signs of")]
# The official prompts; for the books of MedKLIP and MAVL, which are not free, what the package puts in place.
OFFICIAL: dict[str, Callable[[str], list[str]]] = {
    "carzero": lambda finding: [f"There is {OF_CARZERO.get(finding, finding)}"],
    "clip": lambda finding: [f"a chest x-ray {word} {phrase(finding)}" for word in ("showing", "without")],
    "biomedclip": lambda finding: [f"this is a photo of {text}" for text in OFFICIAL["clip"](finding)],
    "medklip": lambda finding: prompts_in_style("description", finding),
    "mavl": lambda finding: prompts_in_style("description", finding) + prompts_in_style("aspects", finding),
    "kad": lambda finding: [class_name(finding)],
    "devide": lambda finding: [class_name(finding)],
    "radzero": lambda finding: OFFICIAL["carzero"](finding),
    "hf": lambda finding: OFFICIAL["clip"](finding)[:1],
    "gloria": lambda finding: [f"There is {finding}"],
    "afloc": lambda finding: [f"Findings suggesting {finding}"],
    "chexzero": lambda finding: [finding, f"no {finding}"],
    "biovil": lambda finding: [template.format(phrase(finding)) for template in BIOVIL],
    "biovilt": lambda finding: OFFICIAL["biovil"](finding),
    "cxrclip": lambda finding: [finding, f"No {finding}"],
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def build(small: None, model: str) -> Iterator[Callable[..., Any]]:
    with TemporaryDirectory() as folder:
        yield partial(HOMES[model][0], **write_checkpoint(model, Path(folder)))


@pytest.fixture(scope="module")
def network(build: Callable[..., Any]) -> Any:
    return build()


@torch.inference_mode()
def scores(network: VLM, images: Tensor) -> ModelOutput:
    return network(images, network.encode_prompts([network.default_prompts(name) for name in ("Nodule", "Edema")]))


def test_it_is_frozen(network: VLM) -> None:
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_the_page_of_the_models_names_the_scale_of_the_maps(model: str, network: VLM) -> None:
    page = (ROOT / "docs/models.md").read_text().partition("| name | input | map |")[2]
    (row,) = re.findall(rf"^\|[^|]*`{model}`.*$", page.partition("\n\n")[0], re.M)
    assert network.map_scale in row.split(" | ")[3]


def test_the_official_prompts_of_every_finding(model: str, network: VLM) -> None:
    for finding in {*chain.from_iterable(FINDINGS.values())}:
        assert [*network.prompts_of(finding)] == OFFICIAL[model](finding)


@SIZED
def test_a_larger_input_has_finer_cells_that_lie_where_the_pixels_are(model: str, build: Callable[..., VLM]) -> None:
    options = {"sigma": 0.0} if model.startswith("biovil") else {}
    network, side = build(image_size=SIZE, **options), SIZE // STRIDES[model]
    assert network.preprocessing(gray("sizes", 300, 417))[0].shape == (3, SIZE, SIZE)
    images = images_of("sizes", 1, SIZE).repeat(2, 1, 1, 1)
    images[1, :, 64:128, 320:384] += 3.0
    output = scores(network, images)
    assert output.logits.shape == output.probabilities.shape == (2, 2)
    assert output.saliency.shape == (2, 2, side, side)
    assert torch.isfinite(output.logits).all() and torch.isfinite(output.saliency).all()
    change = (output.saliency[1] - output.saliency[0]).abs().mean(dim=0)
    row, column = (STRIDES[model] * (place + 0.5) for place in divmod(int(change.argmax()), side))
    # Around what changed, a cell sees it too.
    around = STRIDES[model]
    assert 64 - around < row < 128 + around and 320 - around < column < 384 + around


@SIZED
@pytest.mark.parametrize("size", [232, 0])
def test_cells_must_tile_the_input(model: str, build: Callable[..., VLM], size: int) -> None:
    with pytest.raises(UsageError, match=rf"image_size.* multiple of .*{STRIDES[model]}"):
        build(image_size=size)


def test_half_precision_keeps_float32_scores(network: VLM) -> None:
    images = images_of("precision", 2)
    exact = scores(network, images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = scores(network, images)
    for name in ("logits", "probabilities", "saliency"):
        assert getattr(rough, name).dtype == torch.float32
    torch.testing.assert_close(rough.probabilities, exact.probabilities, rtol=0, atol=0.03)
    spread = float(exact.saliency.abs().max())
    torch.testing.assert_close(rough.saliency, exact.saliency, rtol=0, atol=0.15 * spread)
    # Were the last product rounded to bfloat16, every score would survive a cast.
    assert not torch.equal(rough.logits.bfloat16().float(), rough.logits)


@torch.inference_mode()
def test_maps_depend_on_weights_that_are_drawn_anew_and_come_back(network: VLM) -> None:
    """As in a run, where inference mode is on; maps are the same to the bit once the weights are back."""
    network.trainer = SimpleNamespace(datamodule=SimpleNamespace(findings=("Nodule", "Edema"), classes=()))
    network.setup("test")
    network.on_test_start()
    images, layers = images_of("drawn", 1, getattr(network, "image_size", 224)), layers_of(network)
    before, moved = network(images, network.queries).saliency, 0
    with redrawn(network, layers[::4]) as drawn:
        for _ in drawn:
            moved += not torch.equal(network(images, network.queries).saliency, before)
    assert moved > len(layers[::4]) / 2 and len({layer.name for layer in layers}) == len(layers)
    assert torch.equal(network(images, network.queries).saliency, before)


def test_a_phrase_that_is_too_long_is_cut_off_and_noted(model: str, network: Any) -> None:
    """Before a run it is an error; sentences of a dataset must not end a run in its middle."""
    network.findings, network.queries = (), None
    phrases = ["edema of the left lung", "small " * 900, "small " * 901, "small " * 900]
    queries = [Query(str(number), None, phrase) for number, phrase in enumerate(phrases)]
    truth = SimpleNamespace(queries=queries, image=np.array([0, 1, 1, 2]), image_ids=["a", "b", "c"])
    images = images_of("cut off", 3, getattr(network, "image_size", 224))
    batch = SimpleNamespace(images=images, truth=truth, notes=[])
    logits = network.predict(batch).logits
    assert torch.isfinite(logits).all()
    assert [note.image_id for note in batch.notes] == ["b", "c"]
    assert all(note.text.startswith(CUT_OFF_NOTE) for note in batch.notes)
    # Encoded texts are kept, and with them what is known of them.
    again = SimpleNamespace(images=images, truth=truth, notes=[])
    network.predict(again)
    assert again.notes == batch.notes
    if model not in ("medklip", "mavl"):
        with pytest.raises(UserError, match="is longer than the"):
            network.encode_prompts([network.word_prompts("small " * 900, ["small " * 900])])


def test_a_misfit_names_the_tensors(model: str, build: Callable[..., VLM], monkeypatch: pytest.MonkeyPatch) -> None:
    _, home, needed, title = HOMES[model]
    read = home.read_tensors

    def changed(*arguments: Any) -> dict[str, Tensor]:
        tensors = {re.sub("^(CARZero|gloria|afloc)[.]", "", name): tensor for name, tensor in read(*arguments).items()}
        del tensors[needed]
        return {**tensors, "surplus.weight": torch.zeros(1)}

    monkeypatch.setattr(home, "read_tensors", changed)
    with pytest.raises(UserError, match=rf"do not fit {title}.*1 missing \({needed}\); 1 unexpected \(surplus\.weight"):
        build()


def test_the_file_of_another_model_is_recognized(model: str, build: Callable[..., VLM], tmp_path: Path) -> None:
    other = "mavl" if model == "medklip" else "medklip"
    if model == "hf":
        write_checkpoint(model, tmp_path)  # what belongs beside its weights
    file = write_checkpoint(other, tmp_path)["checkpoint"]
    with pytest.raises(UserError, match=rf"do not fit .* They look like those of {HOMES[other][3]}\."):
        build(checkpoint=file)


@pytest.mark.parametrize("model", DECODERS, indirect=True)
class TestDecoders:
    def test_no_checkpoint(self, model: str) -> None:
        with pytest.raises(UsageError, match=r"give --model\.checkpoint FILE") as caught:
            HOMES[model][0]()
        assert "github.com/" in str(caught.value) or "neither code nor weights" in str(caught.value)

    @pytest.mark.parametrize("options", [{"layers": [4]}, {"layers": []}, {"heads": [1, 1]}])
    def test_layers_and_heads_that_there_are_not(self, build: Callable[..., VLM], options: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match=rf"there are 4 {next(iter(options))}; .* from 0 to 3"):
            build(**options)

    def test_the_map_is_the_mean_over_layers_and_heads(self, network: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
        def map_of(layers: list[int], heads: list[int]) -> Tensor:
            monkeypatch.setattr(network, "layers", layers)
            monkeypatch.setattr(network, "heads", heads)
            return scores(network, images).saliency

        images = images_of("heads", 1)
        alone = [map_of([layer], [head]) for layer in (1, 3) for head in (0, 2)]
        assert torch.allclose(map_of([1, 3], [0, 2]), sum(alone) / 4, rtol=0, atol=1e-7)
        assert all(float((one - alone[0]).abs().max()) > 1e-5 for one in alone[1:])

    def test_maps_are_attention(self, model: str, network: VLM) -> None:
        saliency = scores(network, images_of("attention", 1)).saliency
        sums = saliency.sum(dim=(2, 3))
        assert saliency.min() >= 0
        # CARZero's class token takes its share.
        assert (sums < 1).all() if model == "carzero" else torch.allclose(sums, torch.ones_like(sums))
