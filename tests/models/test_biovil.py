"""BioViL and BioViL-T beside golden vectors of their authors' code, and beside that code, `hi-ml-multimodal`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deterministic import drawn, quick_weight, radiograph
from deterministic_checkpoints import biovil_weights, write_checkpoint, write_tokeniser
from golden import case_of, facts
from health_multimodal.image import ImageInferenceEngine, ImageModel
from health_multimodal.image.data.transforms import create_chest_xray_transform_for_inference
from health_multimodal.text import CXRBertConfig, CXRBertModel, CXRBertTokenizer, TextInferenceEngine
from health_multimodal.vlp import ImageTextInferenceEngine
from numpy.typing import NDArray
from PIL import Image
from run_files import QUIET
from torch import Tensor
from torch.nn.functional import normalize

from xbench.geometry.grid import maps_on_grid
from xbench.models import BioViL, BioViLT
from xbench.models.maps import biovil
from xbench.runs.protocols import read_protocol_pairs
from xbench.runtime.errors import UsageError, UserError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "no", "edema", "signs", "of", "left", "right"]
TEXTS = ["Signs of edema.", "Left edema!?", "Right edema. Left"]


def enlarged(cells: Tensor, model: BioViL, height: int, width: int, mode: Any) -> NDArray[np.float32]:
    _, view = model.preprocessing.pixels(radiograph("enlarged", height, width))
    return maps_on_grid(cells.numpy(), view, (height, width), mode)


@pytest.mark.parity
def test_golden_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {file: biovil_weights(file, full=True) for file in ("image", "temporal", "text")}
    monkeypatch.setattr(biovil, "locate", lambda checkpoint, *_: Path(checkpoint))
    monkeypatch.setattr(biovil, "weights_file", Path)
    monkeypatch.setattr(biovil, "read_tensors", lambda path: files[str(path)])
    text_model = BioViL("image", "text")._text_model
    for name, build, file in (("bv480", BioViL, "image"), ("bv224", BioViL, "image"), ("bt448", BioViLT, "temporal")):
        case = case_of("biovil", name)
        size = case.about["images"]["size"]
        model, plain = (build(file, "text", image_size=size, sigma=sigma) for sigma in (1.5, 0))
        vars(model)["_text_model"] = text_model
        images = case.images[:, :1].expand(-1, 3, -1, -1)
        vectors = model.encode_tokens(*case.tokens)
        assert case.off("text_projected", vectors) < 2e-5
        features = model.image_model.encoder(images)
        assert case.off("img_embedding", features.mean(dim=(2, 3))) < 5e-5
        cells = model.image_model.projector.model(features)
        assert case.off("projected_patches_every4", cells[:, ::4]) < 5e-5
        assert case.off("projected_global", cells.mean(dim=(2, 3))) < 5e-5
        for network in (model, plain):
            monkeypatch.setattr(network.image_model, "forward", lambda images, cells=cells: cells)
        monkeypatch.setattr(model, "tokenise", lambda rows, case=case: [part[rows] for part in case.tokens])
        model.templates = ([], [])
        output = model(images, model.encode_prompts([[0], [1, 2], [3, 4, 5]]))
        assert case.off("score", output.logits) < 1e-5
        assert case.off("map_groups_smoothed", output.saliency) < 1e-5
        queries = normalize(vectors, dim=-1)
        assert case.off("map_smoothed", model(images, queries).saliency) < 1e-5
        assert case.off("map_plain", plain(images, queries).saliency) < 1e-5
        for key, theirs in case.arrays.items():
            if key.startswith("resized"):
                width, height = map(int, key.rpartition("_")[2].split("x"))
                ours = enlarged(output.saliency[0, 0], model, height, width, "bilinear")[::4]
                # They round the place of the map to whole pixels of the radiograph: no step to the next one is missed.
                assert np.nanmax(np.abs(ours - theirs)) < np.nanmax(np.abs(np.diff(theirs, axis=1)))


@pytest.mark.parametrize("name", facts("biovil")["preprocessing"])
def test_golden_preprocessing(name: str, files: dict[str, str]) -> None:
    about = facts("biovil")["preprocessing"][name]
    model = BioViL(**files, image_size=about["crop"], resize=about["resize"])
    image = radiograph(f"biovil/public/{name}", about["height"], about["width"])
    pixels, _ = model.preprocessing.pixels(image)
    np.testing.assert_array_equal(pixels[::6, ::6], case_of("biovil", "preprocessing").arrays[name])
    assert pixels.sum() == about["sum"]
    assert not model.preprocessing.pixels(np.full_like(image, 77))[0].any()


class Tokenizer(CXRBertTokenizer):
    """Theirs, with a method that transformers no longer has."""

    def batch_encode_plus(self, batch_text_or_text_pairs: list[str], **options: Any) -> Any:
        return self(batch_text_or_text_pairs, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_checkpoint("biovil", tmp_path_factory.mktemp("biovil"))


def fill(network: torch.nn.Module, seed: str) -> dict[str, Tensor]:
    network.load_state_dict(drawn(network, f"{seed}.", quick_weight))
    return network.state_dict()


@pytest.mark.parity
@pytest.mark.parametrize("seed", ["first", "second"])
@pytest.mark.parametrize("build", [BioViL, BioViLT])
def test_the_authors_own_engine(build: type[BioViL], seed: str, tmp_path: Path) -> None:
    """Files, texts and a radiograph of any shape go through their engine and through ours."""
    kind = "resnet50_multi_image" if build is BioViLT else "resnet50"
    image_model = ImageModel(img_encoder_type=kind, joint_feature_size=128).eval()
    torch.save(fill(image_model, seed), tmp_path / build.file)
    small = {"num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": len(WORDS), "hidden_dropout_prob": 0.25}
    config = CXRBertConfig(**small)
    text_model = CXRBertModel(config).eval()
    torch.save(fill(text_model, seed), tmp_path / "pytorch_model.bin")
    write_tokeniser(tmp_path, WORDS, config)
    # The repository on the hub has code of its own, which must not run.
    evil = {"tokenizer_class": "CXRBertTokenizer", "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**evil, "do_lower_case": True}))

    height, width = (700, 611) if seed == "first" else (533, 900)
    film, path = radiograph(seed, height, width), tmp_path / "film.png"
    Image.fromarray(film).save(path)
    transform = create_chest_xray_transform_for_inference(512, 448 if build is BioViLT else 480)
    theirs = ImageTextInferenceEngine(
        ImageInferenceEngine(image_model, transform),
        TextInferenceEngine(Tokenizer.from_pretrained(str(tmp_path)), text_model),
    )
    of_images, of_texts = theirs.image_inference_engine, theirs.text_inference_engine

    ours = build(text_encoder=str(tmp_path), templates=(["{finding}"], []))
    images = ours.preprocessing(film)[0][None]
    assert torch.equal(images, of_images.load_and_transform_input_image(path, transform)[0])
    vectors = ours.encode_tokens(*ours.tokenise(TEXTS))
    expected = of_texts.get_embeddings_from_prompt(TEXTS, normalize=False, verbose=False)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=2e-5)
    cells = ours.image_model(images)
    expected = image_model(images).projected_patch_embeddings
    torch.testing.assert_close(cells, expected, rtol=0, atol=5e-5)
    queries = ours.encode_prompts([*([text] for text in TEXTS), TEXTS])
    output = ours(images, queries)
    for text, score in zip([TEXTS[0], TEXTS], output.logits[0, [0, -1]].tolist(), strict=True):
        assert theirs.get_similarity_score_from_raw_data(path, text) == pytest.approx(score, abs=1e-5)
    patches, (width, height) = of_images.get_projected_patch_embeddings(path)
    assert film.shape == (height, width)
    other = build(text_encoder=str(tmp_path), sigma=0.7)(images, queries).saliency
    for column, text in enumerate(TEXTS):
        embedded = of_texts.get_embeddings_from_prompt(text, verbose=False)
        for sigma, found in ((1.5, output.saliency), (0.7, other)):
            expected = theirs._get_similarity_map_from_embeddings(patches, embedded, sigma)
            torch.testing.assert_close(found[0, column], expected, rtol=0, atol=1e-5)
    for mode in ("nearest", "bilinear"):
        # They round the place of the map to whole pixels of the radiograph, which moves an edge by one at most.
        whole = theirs.convert_similarity_to_image_size(expected, width, height, 512, ours.image_size, None, mode)
        difference = np.abs(enlarged(expected, ours, height, width, mode) - whole)
        assert np.nanmean(difference > 2e-3) < (0.05 if mode == "nearest" else 1e-9)
        assert np.isfinite(whole).sum() == pytest.approx((ours.image_size / 512 * min(film.shape)) ** 2, rel=0.01)


def test_prompts_and_temperature(files: dict[str, str]) -> None:
    model, images = BioViL(**files, temperature=0.5), torch.rand(1, 3, 224, 224)
    present, absent = ("A {finding}", "Any {finding}"), ("No {finding}",)
    model.templates = ([*present], [*absent])
    assert model.default_prompts("Edema") == ["A edema", "Any edema", "No edema"]
    assert model.word_prompts("Edema", ["Wet lungs"]) == ["Wet lungs", "No edema"]
    model.prompt_source = "phrase"
    assert model.word_prompts("Edema", ["edema"]) == ["A edema", "Any edema", "No edema"]
    both = model(images, model.encode_prompts([["wet lungs", "edema", "No edema"]]))
    model.templates = ([*present], [])
    alone = [model(images, model.encode_prompts([texts])) for texts in (["wet lungs", "edema"], ["No edema"])]
    assert model.default_prompts("Edema") == ["A edema", "Any edema"]
    torch.testing.assert_close(both.logits, alone[0].logits - alone[1].logits)
    torch.testing.assert_close(both.probabilities, torch.sigmoid(both.logits / 0.5))
    torch.testing.assert_close(both.saliency, alone[0].saliency)


def test_what_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    for options in ({"resize": 479}, {"sigma": -1.0}, {"temperature": 0.0}):
        with pytest.raises(UsageError, match=r"resize must be at least image_size \(480\)"):
            BioViL(**files, **options)
    model = BioViL(**files)
    for prompts, message in (
        ([["edema", *["no edema"] * 4], ["edema"]], "takes 4 absent prompts"),
        ([["[SEP] edema", *["no edema"] * 4]], r"'\[SEP\] edema' contains one of"),
        ([["a lung " * 300, *["no edema"] * 4]], "longer than the 512 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            model.encode_prompts(prompts)
    other = write_checkpoint("biovilt", tmp_path)["checkpoint"]
    with pytest.raises(UserError, match=r"do not fit BioViL: .* look like those of BioViL-T\."):
        BioViL(other, files["text_encoder"])
    with pytest.raises(UserError, match=r"do not fit BioViL-T: .* look like those of BioViL\."):
        BioViLT(**files)
    with pytest.raises(UserError, match=r"look like those of the text model of BioViL\."):
        BioViL(str(Path(files["text_encoder"], "pytorch_model.bin")), files["text_encoder"])
    with pytest.raises(UserError, match=rf"No {BioViL.file} found in .* download {BioViL.file}, config.json, "):
        BioViL(text_encoder=files["text_encoder"])


def test_the_protocol_of_its_authors(command: Any, files: dict[str, str]) -> None:
    """Their smoothing is applied once, by the model or by the protocol, and `score` knows of it too."""
    given = [word for name, value in files.items() for word in (f"--model.{name}", value)]
    given += ["--config", "biovil_phantom", "--model.image_size", "224"]
    data = ("--data.images", "6", "--data.num_workers", "0", *QUIET)
    smooth, plain = (command("test", *given, *data, "--model.sigma", sigma) for sigma in ("1.5", "0"))
    assert smooth.status == plain.status == 0, smooth.errors
    again = command("score", "--config", "phantom", *data, "--predictions", smooth.folder, "--name", "again", status=0)
    tables = []
    for run in (smooth, plain, again):
        command("rescore", run.folder, "--protocol", "biovil", "--workers", 0, status=0)
        tables.append(read_protocol_pairs(run.folder, "biovil"))
    assert len(tables[0]["cnr"]) > 5 and np.nanmax(tables[0]["cnr"]) > 0
    for table in tables[1:]:
        np.testing.assert_allclose(table["cnr"], tables[0]["cnr"], rtol=0, atol=1e-4)
