"""The numbers of the authors' own code, for weights of the released size; see `golden` of tests/support."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import albumentations as A
import numpy as np
import open_clip
import pytest
import torch
from deterministic import drawn, gray, radiograph, tokens_of
from deterministic_checkpoints import write_hf
from golden import Case, case_of, facts, weights_of
from small_networks import largest
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers import BertConfig, BertModel

from xbench import models
from xbench.findings.names import FINDINGS
from xbench.geometry.transforms import PillowResize, Preprocessing, on_black_canvas
from xbench.models.maps import biomedclip, carzero, chexzero, cxrclip, devide, gloria, kad, mavl, medklip, radzero
from xbench.models.maps import clip as _open_clip
from xbench.models.maps.kad import class_name
from xbench.models.maps.medklip import OFFICIAL_ENTRIES, entry_of
from xbench.models.networks.report_text import TOKENS, WordPieces, clean
from xbench.types import ModelOutput

pytestmark = pytest.mark.parity
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(autouse=True)
def nothing_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what networks would begin with to NaN, so that nothing that a file should set is left; drawing takes time."""
    for name in ("kaiming_normal_", "kaiming_uniform_", "normal_", "uniform_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *_, **__: nn.init.constant_(tensor, torch.nan))


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Build a model from tensors as if a file of the authors held them; files have tests of their own."""

    def from_tensors(model: Callable[..., Any], module: Any, tensors: Mapping[str, Tensor], **options: Any) -> Any:
        monkeypatch.setattr(module, "read_tensors", lambda path, sections=(): tensors)
        for name in {"read_settings", "read_remarks"} & {*vars(module)}:
            monkeypatch.setattr(module, name, lambda path: {})
        if hasattr(module, "locate"):
            monkeypatch.setattr(module, "locate", lambda checkpoint, *_: Path(checkpoint))
        return model(checkpoint="memory.ckpt", **options)

    return from_tensors


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda part, name="forward": monkeypatch.setattr(part, name, cache(getattr(part, name)))


def lead(logits: np.ndarray) -> Tensor:
    return torch.from_numpy(logits[..., 1] - logits[..., 0])


def check_clip(case: Case, queries: Tensor, output: ModelOutput) -> None:
    assert case.off("text", queries) < 1e-6
    assert case.off("logits", output.logits) < 1e-5
    assert case.off("probabilities", output.probabilities) < 1e-6
    assert case.off("maps", output.saliency) < 1e-6


def test_clip(build: Callable[..., Any]) -> None:
    with torch.device("meta"):
        tensors = drawn(open_clip.create_model("ViT-B-32", device="meta"))
    for name, architecture in (("a", "ViT-B-32"), ("q", "ViT-B-32-quickgelu")):
        case = case_of("openclip", name)
        model = build(models.CLIP, _open_clip, dict(tensors), architecture=architecture)
        ids, _ = tokens_of(**case.about["tokens"], length=77, vocabulary=49406, start=49406, end=49407)
        queries = model.encode_tokens(ids)
        check_clip(case, queries, model(case.images, queries))
    arrays = case_of("openclip", "preprocessing").arrays
    pixels, view = model.preprocessing(gray("wide", 300, 417))
    np.testing.assert_array_equal(pixels[0, ::8, ::8], arrays["wide"])
    # 417 x 300 becomes 311 x 224, of which 44 (of 87, rounded to even) columns go on the left.
    np.testing.assert_allclose(view, [44 / 311, 0, (44 + 224) / 311, 1], rtol=0, atol=1e-6)


def test_biomedclip(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """From weights alone: nothing else is needed for token ids."""
    expected = facts("biomedclip_config")
    config = biomedclip._MODEL
    assert (config["vision_cfg"], config["embed_dim"]) == (expected["vision_cfg"], expected["embed_dim"])
    for key in ("hf_proj_type", "hf_pooler_type", "context_length"):
        assert config["text_cfg"][key] == expected["text_cfg"][key]

    built: list[Any] = []
    create = open_clip.create_model

    def creating(*arguments: Any, **options: Any) -> Any:
        built.append(create(*arguments, **options))
        return built[-1]

    monkeypatch.setattr(open_clip, "create_model", creating)
    monkeypatch.setattr(_open_clip, "read_tensors", lambda path: drawn(built[-1]))
    model = models.BiomedCLIP(checkpoint="open_clip_pytorch_model.bin")
    case = case_of("openclip", "b")
    queries = model.encode_tokens(tokens_of(**case.about["tokens"], length=256, vocabulary=30522)[0])
    with torch.no_grad():
        output, pair = model(case.images, queries), model(case.images[:1], queries[None, :2])
    check_clip(case, queries, output)
    difference = torch.from_numpy(case.arrays["logits"][:1, :1] - case.arrays["logits"][:1, 1:2])
    assert largest(pair.logits, difference) < 1e-5
    assert largest(pair.probabilities, difference.sigmoid()) < 1e-6
    assert largest(pair.saliency[0, 0], case.arrays["maps"][0, 0]) < 1e-6


def test_chexzero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = case_of("chexzero", "a")
    with torch.device("meta"):
        network = open_clip.create_model("ViT-B-32-quickgelu", device="meta")
    prefixes = {"first": "", "second": "second/"}
    monkeypatch.setattr(_open_clip, "read_tensors", lambda path: drawn(network, prefixes[path.stem]))
    for name in prefixes:
        (tmp_path / f"{name}.pt").touch()
    model = models.CheXzero(str(tmp_path), contrast=True)
    prompts = [model.default_prompts(label) for label in case.about["labels"]]
    stored = case_of("chexzero", "ids").arrays
    for column, kind in enumerate(("positive", "negative")):
        np.testing.assert_array_equal(model._tokenizer([pair[column] for pair in prompts]), stored[kind])
    queries = model.encode_prompts(prompts)
    images = case.images[:, :1].repeat(1, 3, 1, 1)
    output = model(images, queries)
    assert case.off("ensemble_probability", output.probabilities) < 1e-6
    torch.testing.assert_close(output.logits.sigmoid(), output.probabilities)
    shown = sum(case.arrays[f"{name}/map_positive"] - case.arrays[f"{name}/map_negative"] for name in prefixes) / 2
    assert largest(output.saliency, shown) < 1e-6
    model.contrast, members = False, model.members
    for place, name in enumerate(prefixes):
        model.members = members[place : place + 1]
        alone = model(images, queries[:, :, place : place + 1])
        for column, kind in enumerate(("positive", "negative")):
            assert largest(queries[:, column, place, ::8], case.arrays[f"{name}/text_{kind}"]) < 1e-6
        assert largest(alone.probabilities, case.arrays[f"{name}/probability"]) < 1e-6
        lead_of = case.arrays[f"{name}/cosine_positive"] - case.arrays[f"{name}/cosine_negative"]
        assert largest(alone.logits, lead_of) < 2e-6
        assert largest(alone.saliency, case.arrays[f"{name}/map_positive"]) < 1e-6


def test_chexzero_preprocessing() -> None:
    arrays = case_of("chexzero", "preprocess").arrays
    for about in facts("chexzero_preprocessing"):
        name, image = about["seed"], radiograph(**about)
        for antialias, kind in ((False, "plain"), (True, "antialias")):
            steps = chexzero.preprocessing(224, antialias)
            canvas = A.Compose(steps.geometry.transforms[:2])(image=image)["image"]
            np.testing.assert_array_equal(canvas[::4, ::4], arrays[f"{name}/canvas_every4"])
            assert largest(steps(image)[0][0, ::4, ::4], arrays[f"{name}/tensor_{kind}_every4"]) < 1e-4


def test_cxrclip(build: Callable[..., Any]) -> None:
    tensors = weights_of("cxrclip_r50")
    text = {name: tensor for name, tensor in tensors.items() if not name.startswith("image_")}
    swin, shown = {**text, **weights_of("cxrclip_swint")}, case_of("cxrclip", "preprocess").arrays
    for name, of_case in (("r50", tensors), ("swint", swin)):
        case = case_of("cxrclip", name)
        for saliency in ("dot", "cell"):
            model = build(models.CXRCLIP, cxrclip, of_case, saliency=saliency)
            queries = model.encode_tokens(*case.tokens)
            # The absent text comes first.
            output = model(case.images, torch.stack([queries[1::2], queries[::2]], dim=1))
            maps = case.arrays[f"map_{saliency}"][:, 1::2]
            assert largest(output.saliency, maps) < (1e-6 if saliency == "cell" else 2e-5)
        assert largest(queries[:, ::8], case.arrays["text_embeds"]) < 1e-6
        assert case.off("pair_probability", output.probabilities) < 1e-6
        assert largest(output.logits, case.arrays["cosine"][:, 1::2] - case.arrays["cosine"][:, ::2]) < 2e-6
        assert bool(model.exploratory) == (name == "swint")
        for about in facts("cxrclip_preprocessing"):
            expected = shown[f"{about['seed']}/{'huggingface' if name == 'swint' else 'imagenet'}_every4"]
            assert largest(model.preprocessing(radiograph(**about))[0][0, ::4, ::4], expected) < 1e-6


def test_carzero(build: Callable[..., Any], once: Callable[..., None]) -> None:
    tensors = {f"CARZero.{name}": tensor for name, tensor in weights_of("carzero").items()}
    model = build(models.CARZero, carzero, tensors)
    model.text_encoder.word_pieces = stub_words()
    once(model.img_encoder)
    for name in ("a", "b"):
        case = case_of("carzero", name)
        images = case.images
        given = [torch.nn.functional.pad(part, (0, TOKENS - part.shape[1])) for part in case.tokens]
        text = model.encode_text(*given)
        assert case.off("text_global", text[:, 0]) < 1e-5
        # Of values up to 13.5, the authors' own float32 is 1.3e-5 from what it would be in float64.
        assert case.off("text_local_every64", text[:, 1:, ::64].transpose(1, 2)) < 2.5e-5
        queries = model.encode_tokens(*given)
        output = model(images, queries)
        assert case.off("logits", output.logits) < 2e-6
        assert case.off("attention_maps", output.saliency) < 5e-8
        torch.testing.assert_close(output.probabilities, 1 / (1 + torch.exp(-output.logits)))
        tokens = model.img_encoder(images)
        assert case.off("image_global", tokens[:, 0]) < 1e-5
        assert case.off("image_local_every64", tokens[:, 1:, ::64].mT.unflatten(-1, (14, 14))) < 1e-5
        fusion = model.fusion_module
        by_sentence, attention = fusion(queries[0], fusion.keys_values(tokens), range(4))
        assert case.off("logits_query_text_memory_image", by_sentence) < 2e-6
        weights = torch.stack([attention[layer].mean(dim=1) for layer in range(4)], dim=1)
        assert case.off("attention_per_layer_query_text", weights) < 5e-8
        by_image, attention = fusion(tokens[:, 0], queries[1], range(4))
        assert case.off("logits_query_image_memory_text", by_image.T) < 2e-6
        weights = torch.stack([attention[layer].mean(dim=1).transpose(0, 1) for layer in range(4)], dim=1)
        assert case.off("attention_per_layer_query_image", weights) < 5e-8


def test_carzero_preprocessing() -> None:
    preprocessing = carzero.preprocessing(224)
    expected = case_of("carzero", "preprocessing").arrays
    for about in facts("carzero_preprocessing"):
        image = gray(about["seed"], about["height"], about["width"])
        np.testing.assert_array_equal(preprocessing.pixels(image)[0][::4, ::4], expected[about["seed"]])
        tensor, _ = preprocessing(image)
        for name in ("min", "max", "mean"):
            assert float(getattr(tensor, name)()) == pytest.approx(about[f"tensor_{name}"], abs=1e-6)


def test_carzero_cleaning() -> None:
    for raw, normalized in facts("carzero_cleaning").items():
        assert clean(raw) == normalized


def stub_words() -> WordPieces:
    ids = torch.arange(28996)
    return WordPieces((ids >= 1000) & (ids % 4 == 0), separator=102)


@pytest.mark.parametrize(("name", "model"), [("gloria", models.GLoRIA), ("afloc", models.AFLoc)])
def test_gloria_and_afloc_see_what_their_authors_show(name: str, model: type[models.GLoRIA | models.AFLoc]) -> None:
    preprocessing = Preprocessing(on_black_canvas(model.canvas, 224), mean=(0.5,) * 3, std=(0.5,) * 3)
    arrays = case_of(name, "preprocessing").arrays
    for seed, about in facts(name)["preprocessing"].items():
        image = radiograph(f"{name}/public/{seed}", about["height"], about["width"])
        assert int(preprocessing.pixels(image)[0].astype(int).sum()) == about["sum_of_grey"]
        np.testing.assert_allclose(preprocessing(image)[0][0, ::4, ::4], arrays[seed], rtol=0, atol=1e-6)


def test_gloria(build: Callable[..., Any], once: Callable[..., None]) -> None:
    tensors = weights_of("afloc")
    # Otherwise the softmax over the words saturates.
    tensors["img_encoder.local_embedder.weight"] *= 0.1
    model = build(models.GLoRIA, gloria, {f"gloria.{name}": tensor for name, tensor in tensors.items()})
    model.text_encoder.word_pieces = stub_words()
    once(model.img_encoder)
    case = case_of("gloria", "a")
    images, (ids, mask) = case.images[:, :1].repeat(1, 3, 1, 1), case.tokens
    whole, cells = model.img_encoder(images)
    assert case.off("image_global", whole) < 2e-5 and case.off("image_local_every64", cells[:, ::64]) < 2e-5
    text = model.text_encoder(ids, mask)
    assert case.off("text_global", text[:, 0]) < 6e-6
    assert case.off("word_vectors_every64", text[:, 1:25, ::64].mT) < 1e-4
    queries = model.encode_tokens(ids, mask)[:, None]
    for saliency, tolerance in (("attention_mean", 1e-6), ("attention_max", 1e-6), ("dot", 1e-3)):
        model.saliency = saliency
        output = model(images, queries)
        assert case.off("similarity_words", output.logits) < 2e-5
        assert case.off(f"map_{saliency}", output.saliency) < tolerance
    characters = case.arrays["cap_lens_characters"].tolist()
    by_characters = model.encode_tokens(ids, mask, characters)
    assert case.off("similarity_characters", model(images, by_characters[:, None]).logits) < 2e-5
    # The prompts of three classes: two, one and three of them.
    several = torch.full((3, 3, *by_characters.shape[1:]), torch.nan)
    several[0, :2], several[1, :1], several[2] = by_characters[:2], by_characters[2:3], by_characters[3:]
    best = model(images, several)
    assert case.off("class_similarity", best.logits) < 2e-5
    each = model(images, by_characters[:, None])
    fits = int(each.logits[0, 3:].argmax())
    torch.testing.assert_close(best.saliency[0, 2], each.saliency[0, 3 + fits])


def test_afloc(build: Callable[..., Any], once: Callable[..., None]) -> None:
    model = build(models.AFLoc, gloria, {f"afloc.{name}": tensor for name, tensor in weights_of("afloc").items()})
    model.text_encoder.word_pieces = stub_words()
    once(model.img_encoder)
    case = case_of("afloc", "a")
    images = case.images[:, :1].repeat(1, 3, 1, 1)
    queries = model.encode_tokens(*case.tokens)
    assert case.off("report_vector", queries) < 7e-6
    for name, sigma in (("map_sigma1.5", 1.5), ("map_plain", 0)):
        model.map_sigma = sigma
        output = model(images, queries)
        assert case.off("global_cosine", output.logits) < 1e-6
        assert case.off(name, output.saliency) < 1e-5 * np.ptp(case.arrays[name])
        if sigma:
            enlarged = interpolate(output.saliency, (224, 224), mode="bilinear")[0, 0]
            assert case.off("resized_224_every8", enlarged[::8, ::8]) < 1e-5 * np.ptp(case.arrays[name])


@pytest.fixture(scope="module")
def text_and_decoder() -> dict[str, Tensor]:
    return weights_of("kad", ("text_encoder.", "model."))


@pytest.mark.parametrize(
    ("manifest", "cases"),
    [("kad", ("square512", "square224")), ("kad_224", ("stride16_224",)), ("kad_vit", ("vit384",))],
)
def test_kad(
    manifest: str,
    cases: tuple[str, ...],
    text_and_decoder: dict[str, Tensor],
    build: Callable[..., Any],
    once: Callable[..., None],
) -> None:
    tensors = {**weights_of(manifest, ("image_encoder.",)), **text_and_decoder}
    model = build(models.KAD, kad, tensors)
    once(model.image_encoder)
    for name in cases:
        case = case_of("kad", name)
        images, queries = case.images, model.encode_tokens(*case.tokens)
        seen = model.image_encoder(images).flatten(1, 2)
        output = model(images, queries)
        vit = name == "vit384"
        assert case.off("text_features", queries) < 1e-5
        assert case.off("image_tokens_first8", seen[:, :8]) < (5e-5 if vit else 1e-5)
        assert case.off("image_tokens_last4", seen[:, -4:]) < (5e-5 if vit else 1e-5)
        if not vit:
            assert case.off("image_pool", seen.mean(dim=1)) < 1e-5
        assert largest(output.logits, lead(case.arrays["logits"])) < 5e-6
        assert case.off("probability", output.probabilities) < 2e-6
        assert case.off("maps", output.saliency) < 1e-7
        attention = model.model(seen, queries, range(4))[1]
        maps = torch.stack([attention[layer].mean(dim=1) for layer in range(4)])
        assert case.off("layer_maps", maps.unflatten(-1, output.saliency.shape[-2:])) < 1e-7
        overlay = case.about["overlay"]
        heat = output.saliency[overlay["image"], overlay["class"]][None, None]
        size = overlay["height"], overlay["width"]
        assert case.off("overlay_heat_float", interpolate(heat / heat.max() * 255, size, mode="bilinear")[0, 0]) < 1e-2
    if manifest == "kad_vit":
        check_devide(build(models.DeViDe, devide, tensors, image_encoder_norm=False))


def check_devide(model: models.DeViDe) -> None:
    """Where it is told to be KAD, DeViDe is KAD, but for the layers of the map."""
    case = case_of("kad", "vit384")
    output = model(case.images, model.encode_tokens(*case.tokens))
    assert largest(output.logits, lead(case.arrays["logits"])) < 5e-6
    assert case.off("probability", output.probabilities) < 2e-6
    assert case.off("mean_map", output.saliency) < 1e-7


@pytest.mark.parametrize("name", [name for name in facts("kad_preprocessing") if name != "grey_shorter_side"])
def test_kad_preprocessing(name: str) -> None:
    arrays, size = case_of("kad", "preprocessing").arrays, facts("kad_preprocessing")[name]
    pixels = arrays[f"{name}/pixels"]
    if name == "sixteen_bit":
        pixels = (pixels / pixels.max() * 255).astype(np.uint8)
    preprocessing = Preprocessing([PillowResize(size, "both", "bicubic")], *IMAGENET)
    # The harness hands over gray images; in a color image every channel goes the same way.
    channels = [pixels] * 3 if pixels.ndim == 2 else [np.ascontiguousarray(pixels[..., c]) for c in range(3)]
    ours = torch.stack([preprocessing(channel)[0][c] for c, channel in enumerate(channels)])
    assert largest(ours[:, ::4, ::4], arrays[f"{name}/tensor"]) < 1e-6


def test_kad_class_names() -> None:
    official = facts("kad_queries")
    ours = {class_name(finding) for findings in FINDINGS.values() for finding in findings}
    # Hernia is the one class of ChestX-ray14 that none of the datasets has annotated.
    assert {*official["chestxray14"]} - ours == {"hernia"}
    assert {*official["chexpert5"]} <= ours


@pytest.fixture(scope="module")
def bert() -> BertModel:
    with torch.device("meta"):
        network = BertModel(BertConfig(vocab_size=28996), add_pooling_layer=False)
    network.to_empty(device="cpu").load_state_dict(drawn(network, "text_encoder."))
    network.embeddings.position_ids.copy_(torch.arange(512)[None])
    network.embeddings.token_type_ids.zero_()
    return network.eval().requires_grad_(False)


def test_medklip(bert: BertModel, build: Callable[..., Any], once: Callable[..., None]) -> None:
    model = build(models.MedKLIP, medklip, weights_of("medklip"))
    vars(model)["_bert"] = bert
    once(model.model, "image_tokens")
    for case in (case_of("medklip", "case0"), case_of("medklip", "case1")):
        ids, mask = tokens_of(**case.about["tokens"]["disease_book"])
        rows = slice(0, len(ids), len(ids) // 5)
        queries = torch.from_numpy(case.arrays["query_embeddings"])[:, None].clone()
        encoded = model.encode_tokens(ids[rows], mask[rows])
        assert largest(encoded, queries[rows]) < 3e-5
        queries[rows] = encoded
        images = case.images
        assert case.off("image_features", model.model.image_tokens(images).flatten(2).transpose(1, 2)) < 3e-5
        model.layers = [0, 1, 2, 3]
        output = model(images, queries)
        assert largest(output.logits, lead(case.arrays["logits"])) < 1e-5
        assert case.off("probabilities", output.probabilities) < 3e-6
        assert case.off("maps", output.saliency) < 1e-7
        per_layer = []
        for layer in range(4):
            model.layers = [layer]
            per_layer.append(model(images, queries).saliency)
        assert case.off("maps_per_layer", torch.stack(per_layer, dim=1)) < 1e-7


def test_columns_of_medklip_are_those_of_the_chestxray14_script() -> None:
    arrays = case_of("medklip", "case1").arrays
    book = {name: [""] for name in OFFICIAL_ENTRIES}
    in_order = ["Atelectasis", "Cardiomegaly", "Pleural Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"]
    in_order += ["Pneumothorax", "Consolidation", "Edema", "Emphysema", "Pulmonary Fibrosis", "Pleural Thickening"]
    columns = [OFFICIAL_ENTRIES.index(str(entry_of(finding, book))) for finding in in_order]
    # The script's last is hernia, which no dataset here annotates.
    np.testing.assert_array_equal(arrays["probabilities"][:, columns], arrays["probabilities_cxr14"][:, :13])


def test_mavl(bert: BertModel, build: Callable[..., Any], once: Callable[..., None]) -> None:
    tensors = weights_of("mavl")
    options = {"feature": {}, "text": {"mode": "text", "merge": "max"}, "global": {"merge": "global"}}
    kinds = {name: build(models.MAVL, mavl, tensors, **of_model) for name, of_model in options.items()}
    model = kinds["feature"]
    network = model.model
    vars(model)["_bert"] = bert
    once(network.backbone)
    kinds["text"].model.backbone = kinds["global"].model.backbone = network.backbone
    for case in (case_of("mavl", "case0"), case_of("mavl", "case1")):
        books = (tokens_of(**case.about["tokens"][book]) for book in ("disease_book", "concept_book"))
        (explanation, mask), (aspects, aspects_mask) = books
        ids = torch.cat([explanation[:, None], aspects.unflatten(0, (-1, 8))], dim=1)
        mask = torch.cat([mask[:, None], aspects_mask.unflatten(0, (-1, 8))], dim=1)
        # Two diseases of the first case and one of the second will do: prompts do not influence each other.
        chosen = slice(1, 1 + len(case.images))
        queries = torch.from_numpy(case.arrays["query_embeddings"]).clone()
        encoded = model.encode_tokens(ids[chosen], mask[chosen])
        assert largest(encoded, queries[chosen]) < 3e-5
        queries[chosen] = encoded
        images = case.images
        features = network.backbone(images)
        tokens = network.image_tokens(features)
        assert case.off("image_features", tokens) < 3e-5
        assert case.off("global_features", network.pool(features)) < 3e-5
        assert case.off("maps_all_aspects", model.decode(tokens, queries)[1]) < 1e-7
        feature, text, explained = (kind(images, queries) for kind in kinds.values())
        assert largest(feature.logits, lead(case.arrays["logits"])) < 1e-5
        assert case.off("probabilities_feature", feature.probabilities) < 3e-6
        assert case.off("maps", feature.saliency) < 1e-7
        assert case.off("probabilities_text", text.probabilities) < 1e-6
        assert case.off("maps_max", text.saliency) < 1e-7
        assert case.off("maps_global", explained.saliency) < 1e-7


@pytest.mark.parametrize(("name", "equalise"), [("chexpert_grey", False), ("rsna_dicom", True)])
def test_preprocessing_of_medklip_and_mavl(name: str, equalise: bool) -> None:
    arrays = case_of("mavl", "preprocessing").arrays
    preprocessing = medklip.preprocessing(224, equalise)
    pixels = arrays[f"{name}/pixels"]
    np.testing.assert_array_equal(preprocessing.pixels(pixels)[0][::2, ::4], arrays[f"{name}/resized"])
    tensor, view = preprocessing(pixels)
    assert largest(tensor[:, ::8, ::8], arrays[f"{name}/tensor"]) < 1e-6
    assert view == (0, 0, 1, 1)


def test_radzero(build: Callable[..., Any], once: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"size": 518, "interpolation": "bicubic", "mean": [0.0] * 3, "std": [1.0] * 3}
    monkeypatch.setattr(radzero, "_settings", lambda *_: settings)
    model = build(models.RadZero, radzero, weights_of("radzero"))
    assert model.positions == "scale"
    once(model, "image_tokens")
    for name in ("s518", "s518old", "s224"):
        case = case_of("radzero", name)
        model.positions = case.about["positions"]
        images = case.images[:1, :1].repeat(1, 3, 1, 1)
        ids, mask = case.tokens
        queries = model.encode_tokens(ids + (1 - mask), mask)
        assert torch.equal(queries, model.encode_tokens(ids + (1 - mask)))
        assert case.off("text_mean", queries) < 2e-5
        tokens = model.image_tokens(images)
        assert case.off("encoder_tokens_every96", tokens) < 5e-5
        aligned = model.align_transformer.transformer_layers(tokens).last_hidden_state
        assert case.off("aligned_tokens_every96", aligned) < 5e-5
        output = model(images, queries)
        assert case.off("logits", output.logits) < 2e-5
        assert case.off("maps", output.saliency) < 5e-5
        assert torch.equal(output.probabilities, output.logits.sigmoid())
        if name == "s518":
            enlarged = interpolate(output.saliency[:, :1], (83, 97), mode="bilinear")[0, 0]
            assert case.off("resized", enlarged) < 5e-5
            assert divmod(int(enlarged.argmax()), 97) == (59, 96)


@pytest.mark.parametrize("name", ["siglip", "siglip_128", "clip"])
def test_hf(name: str, tmp_path: Path) -> None:
    case, kind = case_of("hf_dual", name), name.partition("_")[0]
    write_hf(tmp_path, facts("hf_dual_config")[kind], 96)
    size = case.about["images"]["size"]
    for saliency in ("patch",) if kind == "clip" else ("value", "legrad", "legrad_corrected"):
        model = models.HFDual(str(tmp_path), saliency=saliency, image_size=size)
        queries = model.encode_tokens(torch.from_numpy(case.arrays["input_ids"]).long())
        # The last text of the case plays the empty prompt.
        model.empty = queries[-1:]
        with torch.inference_mode():
            output = model(case.images, queries)
        assert largest(queries, case.arrays["text_embeds"]) < 1e-6
        assert largest(output.logits, case.arrays["logits_per_image"]) < 5e-6
        assert largest(output.probabilities, case.arrays["probabilities"]) < 1e-6
        maps = saliency if "legrad" in saliency else f"map_{saliency}"
        if maps in case.arrays:
            # A cell close to the threshold of the correction may flip.
            assert largest(output.saliency, case.arrays[maps]) < (1e-4 if saliency == "legrad_corrected" else 1e-6)
