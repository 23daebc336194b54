from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import transformers
from deterministic import gray, images_of
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from small_networks import attached

from xbench.models.maps import biomedclip
from xbench.models.maps import clip as _open_clip
from xbench.models.maps.biomedclip import BiomedCLIP
from xbench.models.maps.clip import CLIP
from xbench.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("no_network")
HUB = "hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"
BERT = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"
PAIRS = [["chest showing edema", "chest without edema"], ["showing a chest x-ray", "without a chest x-ray"]]
IDS = torch.tensor([[2, 6, 10, 12, 3, 0, 0], [2, 6, 11, 12, 3, 0, 0]])


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def stop(self: Any, architecture: str, *_: Any, **options: Any) -> None:
        config = json.loads(Path(architecture.removeprefix("local-dir:"), "open_clip_config.json").read_text())
        bert = Path(config["model_cfg"]["text_cfg"]["hf_model_name"], "config.json")
        seen.update(config, bert=json.loads(bert.read_text()))
        raise InterruptedError

    monkeypatch.setattr(biomedclip.CLIP, "__init__", stop)
    return seen


def check_bert_base(config: dict[str, Any]) -> None:
    expected = transformers.BertConfig(vocab_size=30522).to_dict()
    keys = ("hidden_size", "num_hidden_layers", "vocab_size", "pad_token_id", "hidden_act", "layer_norm_eps")
    assert all(config[key] == expected[key] for key in keys)


def test_configuration_of_the_authors(configured: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        BiomedCLIP(checkpoint=str(tmp_path / "weights.bin"))
    check_bert_base(configured["bert"])
    assert configured["preprocess_cfg"] == {}
    assert configured["model_cfg"]["text_cfg"]["context_length"] == 256


def copy_of(folder: Path, to: Path, *names: str, **text_cfg: str) -> Path:
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"] |= text_cfg
    to.mkdir(exist_ok=True)
    (to / "open_clip_config.json").write_text(json.dumps(config))
    for name in ("open_clip_pytorch_model.bin", *names):
        (to / name).symlink_to(folder / name)
    return to


@pytest.fixture(scope="module")
def tiny(bert_folder: Path) -> BiomedCLIP:
    return BiomedCLIP(checkpoint=str(bert_folder), image_size=64)


def same(model: BiomedCLIP, other: BiomedCLIP | CLIP) -> None:
    for name, tensor in other.model.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], tensor)


def test_is_the_clip_of_its_folder(tiny: BiomedCLIP, bert_folder: Path) -> None:
    clip = CLIP(f"local-dir:{bert_folder}", image_size=64)
    same(tiny, clip)
    same(BiomedCLIP(checkpoint=f"local-dir:{bert_folder}", image_size=64), clip)
    with torch.no_grad():
        queries = tiny.encode_prompts(PAIRS)
        assert torch.equal(queries, clip.encode_prompts(PAIRS))
        images = images_of("folder", 2, 64)
        assert torch.equal(tiny(images, queries).logits, clip(images, queries).logits)
    image = gray("folder", 90, 130)
    config = PreprocessCfg(64, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), resize_mode="squash")
    pixels = image_transform_v2(config, is_train=False)(Image.fromarray(image))
    assert torch.equal(tiny.preprocessing(image)[0], pixels)
    assert torch.equal(clip.preprocessing(image)[0], pixels)


def test_text_encoder_beside_a_folder(bert_folder: Path, tiny: BiomedCLIP, tmp_path: Path) -> None:
    """The hub's own layout: the configuration names a repository that is out of reach."""
    names = {"hf_model_name": "org/bert", "hf_tokenizer_name": "org/bert"}
    place = copy_of(bert_folder, tmp_path / "hub", **names)
    with pytest.raises(UserError, match="cannot build"):
        BiomedCLIP(checkpoint=str(place))
    with pytest.raises(UserError, match=r"--model\.text_encoder org/bert: its config\.json cannot be loaded"):
        BiomedCLIP(checkpoint=str(place), text_encoder="org/bert")
    model = BiomedCLIP(checkpoint=str(place), text_encoder=str(bert_folder), image_size=64)
    assert torch.equal(model.encode_prompts(PAIRS), tiny.encode_prompts(PAIRS))
    model = BiomedCLIP(checkpoint=str(copy_of(bert_folder, tmp_path / "bert", "config.json", **names)))
    with pytest.raises(UserError, match=r"tokenizer of org/bert cannot be loaded.*--model\.text_encoder a folder"):
        model.encode_prompts(PAIRS)
    with_words = copy_of(bert_folder, tmp_path / "words", "config.json", "vocab.txt", "tokenizer_config.json")
    assert BiomedCLIP(checkpoint=str(with_words)).text_source == str(with_words)


@pytest.mark.parametrize("name", [BERT, "microsoft/BiomedNLP-PubMedBERT-base-uncased-abstract"])
def test_folder_as_fetched_needs_no_network(
    bert_folder: Path, configured: dict[str, Any], tmp_path: Path, name: str
) -> None:
    """The text encoder's configuration is known, whichever of its two names the folder gives it."""
    with pytest.raises(InterruptedError):
        BiomedCLIP(checkpoint=str(copy_of(bert_folder, tmp_path, hf_model_name=name, hf_tokenizer_name=name)))
    check_bert_base(configured["bert"])
    assert configured["model_cfg"]["embed_dim"] == 16


def test_tokeniser_of_another_model(bert_folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(bert_folder / name)
    (tmp_path / "vocab.txt").write_text(f"{(bert_folder / 'vocab.txt').read_text()}\ncardiomegaly")
    model = BiomedCLIP(checkpoint=str(bert_folder), text_encoder=str(tmp_path))
    with pytest.raises(UserError, match=r"has 14 tokens, but BiomedCLIP was trained with 13"):
        model.encode_prompts(PAIRS)


@pytest.fixture
def small(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((bert_folder / "open_clip_config.json").read_text())
    monkeypatch.setattr(biomedclip, "_MODEL", config["model_cfg"])


def test_without_a_checkpoint(
    bert_folder: Path, tiny: BiomedCLIP, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"could not be downloaded.*--model\.checkpoint FILE"):
        BiomedCLIP()
    asked = []

    def fetch(repository: str, filename: None) -> str:
        asked.append(repository)
        return str(bert_folder / "open_clip_pytorch_model.bin")

    monkeypatch.setattr(_open_clip, "download_pretrained_from_hf", fetch)
    model = BiomedCLIP(image_size=64)
    same(model, tiny)
    assert asked == ["microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"]
    assert model.preprocessing(np.zeros((5, 5), np.uint8))[0][:, 0, 0].tolist() == pytest.approx(
        [-mean / std for mean, std in zip(open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD, strict=True)]
    )


def test_file_and_text_encoder(bert_folder: Path, tiny: BiomedCLIP, small: None) -> None:
    options = {"text_encoder": str(bert_folder), "image_size": 64}
    model = attached(BiomedCLIP(str(bert_folder / "open_clip_pytorch_model.bin"), **options), "Edema")
    same(model, tiny)
    provenance = model.provenance()
    assert (provenance["architecture"], provenance["text_encoder"]) == (HUB, str(bert_folder))
    assert torch.equal(model.encode_prompts(PAIRS), tiny.encode_prompts(PAIRS))
