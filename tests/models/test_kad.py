from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from deterministic_checkpoints import write_checkpoint, write_tokeniser
from kad_reference import IDS, MASK, DenseEncoder, sections, varied, write
from safetensors.torch import save_file
from small_networks import attached, largest, score
from torch import Tensor, nn

from xbench.data.datasets.chestxray14 import ChestXray14
from xbench.findings.prompts import prompts_in_style
from xbench.models.maps.kad import KAD, SECTIONS, class_name
from xbench.models.networks.checkpoint import without
from xbench.models.networks.vit import with_timm_names
from xbench.runtime.errors import UsageError, UserError
from xbench.types import ModelOutput

pytestmark = pytest.mark.usefixtures("small")


def flat(content: dict[str, Any]) -> dict[str, Tensor]:
    return {f"{section}.{name}": tensor.clone() for section in SECTIONS for name, tensor in content[section].items()}


IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return torch.load(write_checkpoint("kad", tmp_path_factory.mktemp("kad"))["checkpoint"])


def test_a_densenet_agrees_with_a_plain_rebuild(text: nn.Module, decoder: nn.Module, tmp_path: Path) -> None:
    """The other image encoders are held to the numbers of the authors in `test_golden.py`."""
    torch.manual_seed(2)
    image_encoder = varied(DenseEncoder())
    checkpoint = write(tmp_path, sections(image_encoder, text, decoder))
    model = KAD(checkpoint=checkpoint, image_size=64)
    tokens = image_encoder(IMAGES)
    side = int(tokens.shape[1] ** 0.5)
    logits, attention = decoder(tokens, text(IDS, MASK))

    output = model(IMAGES, model.encode_tokens(IDS, MASK))
    assert largest(output.logits, logits[..., 1] - logits[..., 0]) < 1e-5
    assert largest(output.probabilities, logits.softmax(-1)[..., 1]) < 2e-6
    maps = attention.unflatten(-1, (side, side))
    assert largest(output.saliency, maps[3].mean(dim=1)) < 1e-6
    assert attached(model, "Edema").provenance()["image_encoder"] == "DenseNet-121, stride 32"


@pytest.fixture(scope="module")
def released(small: None, content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> KAD:
    return KAD(checkpoint=write(tmp_path_factory.mktemp("released"), content))


def logits_of(model: KAD) -> Tensor:
    return model(IMAGES, model.encode_tokens(IDS, MASK)).logits


@pytest.mark.parametrize(
    "layout", ["module.", "one name of each pair", "the other names", "the last of each pair", "older transformers"]
)
def test_files_of_other_layouts_load_the_same(
    layout: str, content: dict[str, Any], released: KAD, tmp_path: Path
) -> None:
    tensors = flat(content)
    if layout == "module.":
        parts = {
            section: {f"module.{name}": tensor for name, tensor in content[section].items()} for section in SECTIONS
        }
        checkpoint = write(tmp_path, parts)
    else:
        if layout == "one name of each pair":
            tensors = without(tensors, "image_encoder.resnet.", "model.decoder_norm.")
            tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}
        elif layout == "the other names":
            tensors = without(tensors, "image_encoder.res_features.", "model.decoder.norm.")
        elif layout == "the last of each pair":
            for name in tensors:
                twice = name.startswith(("image_encoder.resnet.", "model.decoder_norm."))
                if twice and tensors[name].is_floating_point():
                    tensors[name] = torch.full_like(tensors[name], torch.nan)
        else:
            tensors["text_encoder.bert_model.embeddings.position_ids"] = torch.arange(512)[None]
        checkpoint = str(tmp_path / "kad.safetensors")
        save_file(tensors, checkpoint)
    assert torch.equal(logits_of(KAD(checkpoint=checkpoint)), logits_of(released))


def test_of_two_names_of_a_vit_the_official_one_counts() -> None:
    one, other = torch.ones(3), torch.zeros(3)
    pairs = {
        "class_token": (other, one),
        "patch_embedding.bias": (one, other),
        "transformer.blocks.3.proj.bias": (one, other),
    }
    tensors = {f"image_encoder.{name}": plain for name, (plain, _) in pairs.items()}
    tensors |= {f"image_encoder.vit.{name}": behind for name, (_, behind) in pairs.items()}
    for given in (tensors, dict(reversed(tensors.items()))):
        renamed = with_timm_names(given)
        assert {name.removeprefix("image_encoder.") for name in renamed} == {
            "cls_token",
            "patch_embed.proj.bias",
            "blocks.3.attn.proj.bias",
        }
        assert all(tensor is one for tensor in renamed.values())


def test_vision_transformers_of_other_models_are_refused(text: nn.Module, decoder: nn.Module, tmp_path: Path) -> None:
    content = sections(nn.Module(), text, decoder)
    content["image_encoder"] = {"patch_embed.proj.weight": torch.zeros(768, 3, 16, 16), "norm.weight": torch.ones(768)}
    with pytest.raises(UserError, match=r"1 unexpected \(image_encoder\.norm\.weight\)"):
        KAD(checkpoint=write(tmp_path, content))


def test_the_input_size_is_that_of_the_checkpoints_own_settings(
    content: dict[str, Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    official = write(tmp_path, {**content, "config": {"img_res": 512, "image_res": 224}})
    assert KAD(checkpoint=official).image_size == 512
    assert KAD(checkpoint=official, image_size=96).image_size == 96
    command("convert", "kad", official, tmp_path / "kad.safetensors", status=0)
    assert KAD(checkpoint=str(tmp_path / "kad.safetensors")).image_size == 512
    for config, size in (({"image_res": 384}, 384), ({"img_res": None}, 224), ("none", 224)):
        assert KAD(checkpoint=write(tmp_path, {**content, "config": config})).image_size == size


def test_padding_and_the_order_of_findings_change_nothing_but_other_findings_do(released: KAD) -> None:
    queries = released.encode_tokens(IDS, MASK)
    longer = torch.nn.functional.pad(IDS, (0, 20)), torch.nn.functional.pad(MASK, (0, 20))
    assert largest(released.encode_tokens(*longer), queries) < 1e-6
    assert torch.equal(released.encode_tokens(IDS), queries)
    output, order = released(IMAGES, queries), [2, 0, 3, 1]
    turned = released(IMAGES, queries[order])
    assert largest(turned.logits, output.logits[:, order]) < 1e-5
    assert largest(turned.saliency, output.saliency[:, order]) < 1e-6
    assert largest(released(IMAGES, queries[:2]).logits, output.logits[:, :2]) > 1e-4


# What is asked together. The strings are those of the authors' script for ChestX-ray14, in its order.
OFFICIAL = (
    *("atelectasis", "cardiomegaly", "pleural effusion", "infiltration", "lung mass", "lung nodule", "pneumonia"),
    *("pneumothorax", "consolidation", "edema", "emphysema", "fibrosis", "pleural thicken", "hernia"),
)


@pytest.fixture
def asking(content: dict[str, Any], tmp_path: Path) -> Callable[..., KAD]:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(" ".join(OFFICIAL).split())]
    write_tokeniser(tmp_path, words)
    checkpoint = write(tmp_path, content)
    return lambda **options: KAD(checkpoint, text_encoder=str(tmp_path), image_size=64, **options)


def run_on(model: KAD, findings: Sequence[str], classes: Sequence[str] = ()) -> ModelOutput:
    attached(model, *findings, classes=classes).on_test_start()
    return score(model, IMAGES)


def test_the_official_list_is_asked_and_the_datasets_findings_are_told(asking: Callable[..., KAD]) -> None:
    lists = {"official": OFFICIAL, "dataset": tuple(class_name(finding) for finding in ChestXray14.findings)}
    outputs = []
    for ask, names in lists.items():
        model = asking(ask=ask)
        output = run_on(model, ChestXray14.findings, ChestXray14.classes)
        every = model(IMAGES, model.encode_prompts([[name] for name in names]))
        columns = [names.index(class_name(finding)) for finding in ChestXray14.findings]
        assert torch.equal(output.logits, every.logits[:, columns])
        assert torch.equal(output.probabilities, every.probabilities[:, columns])
        assert torch.equal(output.saliency, every.saliency[:, columns])
        provenance = model.provenance()
        assert provenance["ask"] == ask and list(provenance["prompts"]) == list(ChestXray14.findings)
        assert tuple(texts for (texts,) in provenance["asked"].values()) == names
        outputs.append(output)
    assert largest(outputs[0].logits, outputs[1].logits) > 1e-4
    assert largest(outputs[0].saliency, outputs[1].saliency) > 4e-6


def test_where_no_script_asks_a_list_the_datasets_findings_are_asked(asking: Callable[..., KAD]) -> None:
    model = asking()
    for findings, classes in ((("Pneumonia",), ()), (ChestXray14.findings, ()), (("Edema", "Mass"), ("Hernia",))):
        run_on(model, findings, classes)
        assert (model.ask, tuple(model.together)) == ("dataset", tuple(findings))
    run_on(model, ChestXray14.findings, ChestXray14.classes)
    assert (model.ask, len(model.together)) == ("official", 14)


def test_names_of_ones_own_are_asked(asking: Callable[..., KAD]) -> None:
    model = asking(ask=["hernia", "nodule", "edema"])
    output = run_on(model, ("Edema", "Nodule"), ChestXray14.classes)
    every = model(IMAGES, model.encode_prompts([["hernia"], ["lung nodule"], ["edema"]]))
    assert torch.equal(output.logits, every.logits[:, [2, 1]])
    assert torch.equal(output.saliency, every.saliency[:, [2, 1]])
    provenance = model.provenance()
    assert provenance["ask"] == ["hernia", "Nodule", "Edema"]
    assert provenance["asked"] == {"hernia": ["hernia"], "Nodule": ["lung nodule"], "Edema": ["edema"]}
    for ask, says in ((["Edema", "Mass"], "lacks Nodule of the dataset"), (["Edema", "edema", "Nodule"], "twice")):
        with pytest.raises(UsageError, match=rf"--model\.ask .*{says}"):
            run_on(asking(ask=ask), ("Edema", "Nodule"))


def test_other_words_hold_for_all_that_is_asked_where_there_are_any(asking: Callable[..., KAD], tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps({"Edema": "wet lung", "consolidation": "dense lung"}))
    model = attached(asking(ask=["Consolidation", "Edema", "Hernia"], prompts=str(file)), "Edema")
    assert model.together == {"Consolidation": ["dense lung"], "Edema": ["wet lung"], "Hernia": ["hernia"]}
    model = attached(asking(prompts="description"), *ChestXray14.findings, classes=ChestXray14.classes)
    assert model.together["Emphysema"] == prompts_in_style("description", "Emphysema")
    assert model.together["Hernia"] == ["hernia"]


def test_prompts_become_tokens(released: KAD, tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "edema", "lung", "mass", "nod", "##ule"]
    released.text_source = write_tokeniser(tmp_path, words)
    prompts = [released.default_prompts(finding) for finding in ("Edema", "Mass", "Nodule")]
    assert prompts == [["edema"], ["lung mass"], ["lung nodule"]]
    ids = torch.tensor([[2, 5, 3, 0, 0], [2, 6, 7, 3, 0], [2, 6, 8, 9, 3]])
    assert largest(released.encode_prompts(prompts), released.encode_tokens(ids)) < 1e-6
    # A class may have several texts, and another number than its neighbor.
    ragged = released.encode_prompts([["Edema", "lung mass"], ["lung nodule"]])
    queries = released.encode_tokens(ids)
    assert largest(ragged, torch.stack([queries[:2].mean(dim=0), queries[2]])) < 1e-6
    # [CLS] and [SEP] count too.
    assert released.encode_prompts([["lung " * 254]]).shape == (1, 768)
    with pytest.raises(UserError, match="longer than the 256 tokens that kad reads"):
        released.encode_prompts([["mass"], ["edema", "lung " * 255]])
