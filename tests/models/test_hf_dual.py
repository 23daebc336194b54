from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deterministic import gray, images_of, weight
from deterministic_checkpoints import VOCABULARY, write_hf
from PIL import Image
from safetensors.torch import load_file, save_file
from small_networks import attached, largest
from torch import Tensor
from transformers import CLIPModel, SiglipModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from xbench.models.maps.hf_dual import HFDual
from xbench.runtime.errors import UserError

SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "siglip": {"text_config": SIZES | {"vocab_size": len(VOCABULARY), "projection_size": 48}},
    "clip": {
        "projection_dim": 24,
        "text_config": SIZES | {"vocab_size": 300, "eos_token_id": 299, "bos_token_id": 298, "pad_token_id": 299},
    },
}
NETWORKS = {"siglip": SiglipModel, "clip": CLIPModel}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {kind: tmp_path_factory.mktemp(kind) for kind in CONFIGS}
    for kind, folder in made.items():
        config = CONFIGS[kind] | {"model_type": kind, "vision_config": SIZES | {"image_size": 64, "patch_size": 16}}
        write_hf(folder, config, 64, lambda name, shape: weight(f"another seed/{name}", shape))
    return made


def own(folder: Path, to: Path, **files: Any) -> Path:
    for path in folder.iterdir():
        if path.stem not in files:
            (to / path.name).symlink_to(path)
    for name, content in files.items():
        (to / f"{name}.json").write_text(json.dumps(content))
    return to


def ids_of(kind: str) -> Tensor:
    length, end = (64, 1) if kind == "siglip" else (77, 299)
    ids = torch.full((4, length), end)
    for row, words in enumerate((3, 9, 1, 60)):
        ids[row, :words] = torch.randint(2, 290, (words,), generator=torch.Generator().manual_seed(row))
    return ids


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("size", [64, 96])
def test_scores_are_those_of_transformers(folders: dict[str, Path], kind: str, size: int) -> None:
    plain = NETWORKS[kind].from_pretrained(folders[kind]).eval()
    model, images, ids = HFDual(str(folders[kind]), image_size=size), images_of("scores", 2, size), ids_of(kind)
    with torch.no_grad():
        expected = plain(input_ids=ids, pixel_values=images, interpolate_pos_encoding=True).logits_per_image
    queries = model.encode_tokens(ids)
    output = model(images, queries)
    assert largest(output.logits, expected) < 5e-6
    share = expected.sigmoid() if kind == "siglip" else expected.softmax(dim=1)
    assert largest(output.probabilities, share) < 1e-6
    pairs = model(images, queries.unflatten(0, (2, 2)))
    assert largest(pairs.logits, expected[:, ::2] - expected[:, 1::2]) < 1e-5
    assert torch.equal(pairs.probabilities, pairs.logits.sigmoid())
    assert largest(pairs.saliency, output.saliency[:, ::2].detach()) < 1e-6


@pytest.mark.parametrize(("blocks", "norm"), [(2, False), (1, True), (3, False)])
def test_legrad_against_autograd_through_the_whole_head(folders: dict[str, Path], blocks: int, norm: bool) -> None:
    """The attention is formed, and one text after another goes backward through the head of transformers."""
    model = HFDual(str(folders["siglip"]), legrad_blocks=blocks, legrad_norm=norm)
    plain: Any = SiglipModel.from_pretrained(folders["siglip"]).eval()
    images, queries = images_of("legrad", 2, 64), model.encode_tokens(ids_of("siglip"))
    with torch.inference_mode():
        output = model(images, queries)
    head, expected = plain.vision_model.head, torch.zeros(2, 4, 16)
    for tokens in plain.vision_model(images, output_hidden_states=True).hidden_states[-blocks:]:
        tokens = plain.vision_model.post_layernorm(tokens) if norm else tokens
        q, k, v = (
            (states @ part.T + bias).unflatten(-1, (4, 12)).transpose(1, 2)
            for states, part, bias in zip(
                (head.probe.repeat(2, 1, 1), tokens, tokens),
                head.attention.in_proj_weight.split(48),
                head.attention.in_proj_bias.split(48),
                strict=True,
            )
        )
        attention = (q @ k.transpose(-1, -2) / 12**0.5).softmax(dim=-1)
        joined = head.attention.out_proj((attention @ v).transpose(1, 2).flatten(2))
        pooled = (joined + head.mlp(head.layernorm(joined)))[:, 0]
        if norm and blocks == 1:
            torch.testing.assert_close(pooled, head(tokens))
        for column, text in enumerate(queries):
            cosine = torch.nn.functional.cosine_similarity(pooled, text[None]).sum()
            (gradient,) = torch.autograd.grad(cosine, attention, retain_graph=True)
            expected[:, column] += gradient.clamp(min=0).mean(dim=1)[:, 0]
    assert largest(output.saliency, expected.unflatten(-1, (4, 4))) < 1e-6


def test_prompts(folders: dict[str, Path]) -> None:
    """SigLIP's tokenizer drops punctuation and pads to the full length; of several prompts the mean counts."""
    model = HFDual(str(folders["siglip"]))
    pieces = [model._tokenizer.convert_tokens_to_ids(piece) for piece in ("▁chest", "▁", *"xray", "</s>")]
    ids = torch.tensor([pieces + [1] * (64 - len(pieces))])
    assert torch.equal(model.encode_texts(["  Chest x-ray."]), model.encode_tokens(ids))
    one, two = model.encode_texts(["edema", "fluid"])
    mean = torch.nn.functional.normalize(one + two, dim=0)
    torch.testing.assert_close(model.encode_prompts([["edema", "fluid"], ["edema"]]), torch.stack([mean, one]))
    with pytest.raises(UserError, match=r"'chest chest .* longer than the 64 tokens that hf reads"):
        model.encode_texts(["chest " * 64])
    paired = attached(HFDual(str(folders["siglip"]), pairs=True, saliency="legrad_corrected", title="mine"), "Edema")
    assert paired.name == "mine"
    assert paired.prompts == [["a chest x-ray showing edema", "a chest x-ray without edema"]]
    output = paired(images_of("corrected", 1, 64), paired.encode_prompts(paired.prompts))
    assert torch.equal(paired.empty, model.encode_texts(["a photo of a"]))
    assert (float(output.saliency.amin()), float(output.saliency.amax())) == (0, 1)
    provenance = paired.provenance()
    assert (provenance["kind"], provenance["pairs"], provenance["image_size"]) == ("siglip", True, 64)


@pytest.mark.parametrize("shape", [(64, 64), (150, 97), (97, 150)])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("siglip", {"size": {"height": 64, "width": 64}, "resample": 2}),
        ("clip", {"size": {"shortest_edge": 80}, "crop_size": 64}),
        ("clip", {"size": {"height": 64, "width": 64}, "do_center_crop": False, "image_mean": [0.1, 0.2, 0.3]}),
    ],
)
def test_preprocessing_is_that_of_transformers(
    folders: dict[str, Path], tmp_path: Path, kind: str, settings: dict[str, Any], shape: tuple[int, int]
) -> None:
    model = HFDual(str(own(folders[kind], tmp_path, preprocessor_config=settings)))
    image = gray("settings", *shape)
    processor = (SiglipImageProcessorPil if kind == "siglip" else CLIPImageProcessorPil).from_dict(settings)
    expected = processor(Image.fromarray(image).convert("RGB"), return_tensors="pt")["pixel_values"][0]
    assert largest(model.preprocessing(image)[0], expected) < 1e-6


def test_resize_of_tensorflow(folders: dict[str, Path]) -> None:
    """Half-pixel centers, no smoothing, cut to 8 bits; by hand."""
    image = gray("tensorflow", 150, 97)
    rows, columns = ((np.arange(64) + 0.5) * side / 64 - 0.5 for side in image.shape)
    r, c = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (rows - r)[:, None], columns - c
    pixels = image.astype(float)
    upper, lower = (pixels[one][:, c] * (1 - right) + pixels[one][:, c + 1] * right for one in (r, r + 1))
    exact = upper * (1 - down) + lower * down
    seen = HFDual(str(folders["siglip"]), resize="tensorflow").preprocessing.pixels(image)[0]
    assert seen.dtype == np.uint8 and np.abs(seen - np.floor(exact + 1e-3)).max() <= 1
    assert (seen == np.floor(exact + 1e-3)).mean() > 0.99


def test_what_cannot_be_run(folders: dict[str, Path], tmp_path: Path) -> None:
    def problem(kind: str = "siglip", **files: Any) -> str:
        options = files.pop("options", {})
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        with pytest.raises(UserError) as caught:
            HFDual(str(own(folders[kind], folder, **files)), **options)
        return str(caught.value)

    assert "type siglip2. Give a siglip" in problem(config={"model_type": "siglip2"})
    assert "are not those of a siglip model" in problem(preprocessor_config={"resample": 9})
    assert "give a clip model patch" in problem("clip", options={"saliency": "legrad"})
    assert "Give --model.pairs true" in problem("clip", options={"pairs": False})
    with pytest.raises(UserError, match=r"--model\.checkpoint a folder"):
        HFDual()
    with pytest.raises(UserError, match=r"does not exist. Check --model\.checkpoint\."):
        HFDual(str(tmp_path / "gone"))


def test_positions_that_older_files_hold_are_ignored(folders: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(folders["clip"] / "model.safetensors")
    own(folders["clip"], tmp_path, model={})
    save_file(tensors | {"text_model.embeddings.position_ids": torch.arange(77)[None]}, tmp_path / "model.safetensors")
    model = HFDual(str(tmp_path / "model.safetensors"))
    assert torch.equal(model.encode_tokens(ids_of("clip")), HFDual(str(folders["clip"])).encode_tokens(ids_of("clip")))
    save_file(tensors | {"logit_bias": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"do not fit the clip model of config\.json: 1 unexpected \(logit_bias"):
        HFDual(str(tmp_path))
