from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from deterministic import drawn, gray, images_of, weight
from golden import case_of
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file

from xbench.models.maps import clip as _open_clip
from xbench.models.maps.clip import CLIP
from xbench.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("no_network")
TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
PAIRS = [[f"a chest x-ray {word} {finding}" for word in ("showing", "without")] for finding in ("edema", "a mass", "!")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny architectures, known to open_clip from here on, with a file of weights for each."""
    folder = tmp_path_factory.mktemp("tiny")
    variants: dict[str, dict[str, Any]] = {
        "tiny-clip": TINY,
        "tiny-clip-quickgelu": TINY | {"quick_gelu": True},
        "tiny-average": TINY | {"vision_cfg": TINY["vision_cfg"] | {"pool_type": "avg"}},  # type: ignore[operator]
        "tiny-bias": TINY | {"init_logit_bias": -2.0, "nonscalar_logit_scale": True},
        "tiny-custom": TINY | {"custom_text": True},
        "tiny-resnet": TINY | {"vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16}},
        "tiny-attention": TINY | {"vision_cfg": TINY["vision_cfg"] | {"attentional_pool": True}},  # type: ignore[operator]
        "tiny-oblong": TINY | {"vision_cfg": TINY["vision_cfg"] | {"image_size": [32, 40]}},  # type: ignore[operator]
    }
    for name, config in variants.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    for name in variants:
        save_file(drawn(open_clip.create_model(name)), folder / f"{name}.safetensors")
    return folder


@pytest.fixture(scope="module")
def tiny(folder: Path) -> CLIP:
    return CLIP("tiny-clip", checkpoint=str(folder / "tiny-clip.safetensors"))


@pytest.fixture(scope="module")
def bert(bert_folder: Path) -> CLIP:
    return CLIP(f"local-dir:{bert_folder}")


def test_tokeniser(tiny: CLIP) -> None:
    prompts = ["There is Atelectasis", "There is no Atelectasis", "Edema", "a chest x-ray showing a 2.5 cm nodule"]
    ids = case_of("openclip", "tokeniser").arrays["ids"]
    padded = np.pad(ids, ((0, 0), (0, 77 - ids.shape[1])))
    expected = tiny.encode_tokens(torch.from_numpy(padded.astype(np.int64)))
    assert torch.equal(tiny.encode_prompts([[prompt] for prompt in prompts]), expected)
    ids_and_mask = torch.from_numpy(padded.astype(np.int64))[:, None], torch.from_numpy(padded != 0)[:, None]
    assert torch.equal(tiny.encode_tokens(*ids_and_mask), expected)


@pytest.mark.parametrize("architecture", ["tiny-clip", "tiny-clip-quickgelu", "tiny-bias", "tiny-custom"])
def test_scores_against_plain_loops(folder: Path, architecture: str) -> None:
    """Pairs and singles from open_clip's separate encoders, its other way to the tokens, and float64 loops."""
    model = CLIP(architecture, checkpoint=str(folder / f"{architecture}.safetensors"))
    plain = open_clip.create_model(architecture, pretrained=str(folder / f"{architecture}.safetensors")).eval()
    images = images_of("loops", 2, 32)
    ids = open_clip.get_tokenizer(architecture)([prompt for pair in PAIRS for prompt in pair])
    with torch.no_grad():
        text = plain.encode_text(ids).double().numpy()
        plain.visual.output_tokens = True
        pooled, tokens = plain.visual(images)
        projected = (tokens @ plain.visual.proj).double().numpy().reshape(2, 4, 4, 16)
    scale = math.exp(plain.logit_scale.item())
    bias = 0.0 if plain.logit_bias is None else plain.logit_bias.item()

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return sum(float(x) * float(y) for x, y in zip(a, b, strict=True)) / math.sqrt(float(a @ a) * float(b @ b))

    pairs = model(images, model.encode_prompts(PAIRS))
    singles = model(images, model.encode_tokens(ids))
    for image in range(2):
        scores = [scale * cosine(pooled[image].double().numpy(), vector) + bias for vector in text]
        for single, value in enumerate(scores):
            assert singles.logits[image, single].item() == pytest.approx(value, abs=1e-5)
            share = math.exp(value) / sum(math.exp(other) for other in scores)
            assert singles.probabilities[image, single].item() == pytest.approx(share, abs=1e-6)
        for finding in range(3):
            present, absent = scores[2 * finding], scores[2 * finding + 1]
            assert pairs.logits[image, finding].item() == pytest.approx(present - absent, abs=1e-5)
            share = math.exp(present) / (math.exp(present) + math.exp(absent))
            assert pairs.probabilities[image, finding].item() == pytest.approx(share, abs=1e-6)
            for row in range(4):
                for column in range(4):
                    expected = cosine(projected[image, row, column], text[2 * finding])
                    assert pairs.saliency[image, finding, row, column].item() == pytest.approx(expected, abs=1e-6)
    # Of three texts and of six: PyTorch may add in another order.
    torch.testing.assert_close(pairs.saliency, singles.saliency[:, ::2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("shape", [(32, 32), (45, 33), (33, 45), (97, 64), (31, 20), (200, 67), (33, 32), (64, 129)])
def test_preprocessing_is_open_clips(folder: Path, shape: tuple[int, int], resize_mode: Any) -> None:
    model = CLIP("tiny-clip", checkpoint=str(folder / "tiny-clip.safetensors"), resize_mode=resize_mode)
    image = gray("modes", *shape)
    expected = image_transform_v2(PreprocessCfg(size=32, resize_mode=resize_mode), is_train=False)
    assert torch.equal(model.preprocessing(image)[0], expected(Image.fromarray(image)))


@pytest.mark.parametrize("size", [16, 32, 56])
@pytest.mark.parametrize("kind", ["tiny-clip", "tiny-average", "bert"])
def test_image_size_is_open_clips(folder: Path, bert_folder: Path, kind: str, size: int) -> None:
    """Interpolated position embeddings, scores, maps and preprocessing, against open_clip's own way."""
    if kind == "bert":
        size *= 4
        architecture, file = f"local-dir:{bert_folder}", None
        plain = open_clip.create_model(architecture, force_image_size=size).eval()
    else:
        architecture, file = kind, str(folder / f"{kind}.safetensors")
        plain = open_clip.create_model(kind, pretrained=file, force_image_size=size).eval()
    model = CLIP(architecture, checkpoint=file, image_size=size)
    images, queries = images_of("size", 2, size), torch.nn.functional.normalize(weight("queries", (3, 16)), dim=1)
    with torch.no_grad():
        expected = plain.encode_image(images, normalize=True) @ queries.T * plain.logit_scale.exp()
        output = model(images, queries)
    torch.testing.assert_close(output.logits, expected, rtol=0, atol=1e-5)
    side = size // (16 if kind == "bert" else 8)
    assert output.saliency.shape == (2, 3, side, side)
    pixels, _ = model.preprocessing(gray("size", 90, 70))
    assert pixels.shape == (3, size, size)
    transform = image_transform_v2(PreprocessCfg(**plain.visual.preprocess_cfg), is_train=False)
    assert torch.equal(pixels, transform(Image.fromarray(gray("size", 90, 70))))
    assert model.image_size == size


def test_weights_of_another_size_are_kept(folder: Path, tmp_path: Path) -> None:
    """Fine-tuned at the size that is asked for, the position embeddings need no interpolation."""
    file, name = tmp_path / "finetuned.pt", "visual.positional_embedding"
    tuned = drawn(open_clip.create_model("tiny-clip")) | {name: weight("fine-tuned", (37, 32))}
    torch.save(tuned, file)
    assert torch.equal(CLIP("tiny-clip", checkpoint=str(file), image_size=48).model.state_dict()[name], tuned[name])
    with pytest.raises(UserError, match=rf"1 of another shape \({name}"):
        CLIP("tiny-clip", checkpoint=str(file))


@pytest.mark.parametrize("kind", ["clip", "bert"])
@pytest.mark.parametrize("surplus", [1, 300])
def test_prompt_that_is_cut_off_is_an_error(tiny: CLIP, bert: CLIP, kind: str, surplus: int) -> None:
    model, room = (tiny, 75) if kind == "clip" else (bert, 10)
    fits = " ".join(["chest"] * room)
    model.encode_prompts([[fits, "chest"]])
    with pytest.raises(UserError, match=r"chest chest .* longer than the (77|12) tokens"):
        model.encode_prompts([["chest", "x-ray"], [fits, "chest " * (room + surplus)]])


def test_of_several_prompts_the_mean_direction_is_present(tiny: CLIP) -> None:
    """And the last the absent one; classes may have different numbers of them."""
    prompts = [["edema", "fluid in the lung", "no edema"], ["a mass", "no mass"], ["a", "b", "c", "d"], ["e", "f", "g"]]
    queries = tiny.encode_prompts(prompts)
    for query, texts in zip(queries, prompts, strict=True):
        *present, absent = (tiny.encode_prompts([[text]])[0] for text in texts)
        mean = sum(present) / len(present)
        torch.testing.assert_close(query, torch.stack([mean / mean.norm(), absent]))


def test_attention_mask_must_follow_the_padding(bert: CLIP) -> None:
    ids = torch.tensor([[2, 5, 6, 3, 0, 0], [2, 12, 3, 0, 0, 0]])
    for given in (ids, ids[:, None]):
        assert torch.equal(bert.encode_tokens(given, (given != 0).long()), bert.encode_tokens(ids))
    assert torch.equal(bert.encode_tokens(ids[None], (ids != 0).long()[None])[0], bert.encode_tokens(ids))
    with pytest.raises(UserError, match="attention mask"):
        bert.encode_tokens(ids, torch.ones_like(ids))


def test_openai_weights_need_quickgelu(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "openai.pt"
    settings = {"input_resolution": 32, "context_length": 77, "vocab_size": 49408}
    halved = {name: tensor.half() for name, tensor in drawn(open_clip.create_model("tiny-clip")).items()}
    torch.save(halved | {name: torch.tensor(value) for name, value in settings.items()}, file)
    with pytest.raises(UserError, match=r"QuickGELU.*tiny-clip-quickgelu"):
        CLIP("tiny-clip", checkpoint=str(file))
    model = CLIP("tiny-clip-quickgelu", checkpoint=str(file))
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_unknown_tag_names_the_known() -> None:
    with pytest.raises(UserError, match=r"opanai.*ViT-B-32-quickgelu.*openai.*metaclip_400m.*--model\.checkpoint"):
        CLIP("ViT-B/32-quickgelu", pretrained="opanai")
    # Random weights are refused.
    with pytest.raises(UserError, match="not a tag"):
        CLIP("ViT-B-32", pretrained=None)


@pytest.mark.parametrize(
    ("architecture", "tag"), [("ViT-B-16", "openai"), ("ViT-B-16", "dfn2b"), ("ViT-L-14", "metaclip_400m")]
)
def test_quickgelu_mismatch_is_an_error(architecture: str, tag: str) -> None:
    with pytest.raises(UserError, match=rf"QuickGELU.*{architecture}-quickgelu"):
        CLIP(architecture, pretrained=tag)


@pytest.mark.parametrize(
    ("path", "architecture", "expected"),
    [
        ("ViT-B-16-openai.safetensors", "ViT-B-16", "QuickGELU"),
        ("ViT-B-16-laion2b_s34b_b88k.bin", "ViT-B-16-quickgelu", "GELU"),
        ("hub/models--laion--CLIP-ViT-B-16-laion2B-s34B-b88K/snapshots/0/weights.bin", "ViT-B-16-quickgelu", "GELU"),
        ("hub/models--timm--vit_base_patch16_clip_224.openai/snapshots/0/weights.bin", "ViT-B-16", "QuickGELU"),
        # One name, two activations: of the larger one the weights were trained without QuickGELU.
        ("laion400m_e32.pt", "ViT-B-32", "QuickGELU"),
        ("laion400m_e32.pt", "ViT-B-16-quickgelu", "GELU"),
        # These tell nothing: no tag, two that disagree, a folder further up, an architecture with one activation only.
        ("weights.bin", "ViT-B-16", None),
        ("openai/laion2b_s34b_b88k.bin", "ViT-B-16", None),
        ("openai/mine/here/weights.bin", "ViT-B-16", None),
        ("laion2b_s12b_b32k.pt", "roberta-ViT-B-32", None),
        ("openai.pt", "local-dir:folder", None),
    ],
)
def test_the_activation_that_a_name_tells(path: str, architecture: str, expected: str | None) -> None:
    assert _open_clip._named_activation(Path(path), architecture) == expected


@pytest.mark.parametrize("architecture", ["tiny-resnet", "tiny-attention"])
def test_image_tower_without_comparable_patches(folder: Path, architecture: str) -> None:
    with pytest.raises(UserError, match=f"{architecture} has no patch tokens"):
        CLIP(architecture, checkpoint=str(folder / f"{architecture}.safetensors"))


def test_tag_brings_weights_and_preprocessing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tag = {"hf_hub": "org/name/", "mean": (0.5,) * 3, "std": (0.25,) * 3, "interpolation": "bilinear"}
    tag |= {"resize_mode": "squash"}
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda *_: tag)
    with pytest.raises(UserError, match=r"org/name/ of tiny-clip could not be downloaded.*--model\.checkpoint FILE"):
        CLIP("tiny-clip", pretrained="some_tag")
    monkeypatch.setattr(open_clip, "download_pretrained", lambda _: str(folder / "tiny-clip.safetensors"))
    model = CLIP("tiny-clip", pretrained="some_tag")
    image = gray("tag", 70, 40)
    config = PreprocessCfg(32, mean=(0.5,) * 3, std=(0.25,) * 3, interpolation="bilinear", resize_mode="squash")
    expected = image_transform_v2(config, is_train=False)(Image.fromarray(image))
    assert torch.equal(model.preprocessing(image)[0], expected)
    assert model.pretrained == "some_tag"


def test_hub_model(bert_folder: Path, bert: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"org/name of hf-hub:org/name could not be downloaded.*local-dir:FOLDER"):
        CLIP("hf-hub:org/name")

    def fetch(repository: str, filename: str | None) -> str:
        assert repository == "org/name"
        return str(bert_folder / (filename or "open_clip_pytorch_model.bin"))

    monkeypatch.setattr(_open_clip, "download_pretrained_from_hf", fetch)
    model = CLIP("hf-hub:org/name")
    ids = torch.tensor([[2, 5, 6, 3, 0, 0]])
    assert torch.equal(model.encode_tokens(ids), bert.encode_tokens(ids))
    assert model.architecture == "hf-hub:org/name" and model.pretrained is None


def test_local_folder_that_is_incomplete(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no open_clip_config\.json of open_clip"):
        CLIP(f"local-dir:{tmp_path}")
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(UserError, match="lacks model_cfg"):
        CLIP(f"local-dir:{tmp_path}")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"embed_dim": 3}}))
    with pytest.raises(UserError, match="cannot build"):
        CLIP(f"local-dir:{tmp_path}")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY}))
    with pytest.raises(UserError, match="contains none"):
        CLIP(f"local-dir:{tmp_path}")
    weights = (folder / "tiny-clip.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(weights)
    assert CLIP(f"local-dir:{tmp_path}").checkpoint == tmp_path / "b.safetensors"
    (tmp_path / "a.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match=r"contains a\.safetensors, b\.safetensors"):
        CLIP(f"local-dir:{tmp_path}")
