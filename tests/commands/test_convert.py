from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import open_clip
import pytest
import torch
import yaml
from deterministic_checkpoints import SMALL_CLIP
from kad_reference import Decoder, Text, sections, varied
from safetensors.torch import load_file, save_file
from small_networks import BLOCKS, shrink
from transformers import ViTConfig, ViTModel

from xbench.commands.arguments import command_parser
from xbench.commands.configs import shipped
from xbench.commands.options import resolve_class
from xbench.models import CLIP, DeViDe
from xbench.runtime.errors import UserError

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def tiny() -> Iterator[tuple[Path, Path]]:
    """Folders of a tiny CLIP with QuickGELU and with GELU; the first has weights, which fit both."""
    with TemporaryDirectory() as name:
        folders = Path(name, "quick"), Path(name, "plain")
        for folder, quick in zip(folders, (True, False), strict=True):
            folder.mkdir()
            config = {"model_cfg": SMALL_CLIP | {"quick_gelu": quick}, "preprocess_cfg": {}}
            (folder / "open_clip_config.json").write_text(json.dumps(config))
        torch.manual_seed(0)
        model = open_clip.create_model(f"local-dir:{folders[0]}", load_weights=False)
        save_file(model.state_dict(), folders[0] / "weights.safetensors")
        yield folders


def test_clip_of_another_architecture(tiny: tuple[Path, Path], command, tmp_path: Path) -> None:
    quick, plain = tiny
    given, clean = quick / "weights.safetensors", tmp_path / "clean" / "clip.safetensors"
    run = command("convert", "clip", given, clean, status=1)
    assert "do not fit ViT-B-16-quickgelu" in run.errors
    assert not clean.exists()
    run = command("convert", "clip", given, clean, "--model.architecture", f"local-dir:{quick}", status=0)
    assert str(clean) in run.output
    tensors, before = load_file(clean), load_file(given)
    assert tensors.keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    CLIP(f"local-dir:{quick}", checkpoint=str(clean))
    CLIP(f"local-dir:{plain}", checkpoint=str(given))
    with pytest.raises(UserError, match="trained with the activation QuickGELU"):
        CLIP(f"local-dir:{plain}", checkpoint=str(clean))
    run = command("convert", "clip", given, clean, "--model.architecture", f"local-dir:{plain}", status=0)
    CLIP(f"local-dir:{plain}", checkpoint=str(clean))
    with pytest.raises(UserError, match=r"trained with the activation GELU, .* uses QuickGELU.*quick_gelu in"):
        CLIP(f"local-dir:{quick}", checkpoint=str(clean))


def test_devide_of_somebodys_own_names(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    torch.manual_seed(3)
    content = sections(
        varied(ViTModel(ViTConfig(image_size=32, num_hidden_layers=BLOCKS))), varied(Text()), varied(Decoder())
    )
    given, clean = tmp_path / "mine.pt", tmp_path / "devide.safetensors"
    torch.save({"eyes": content["image_encoder"], "words": content["text_encoder"], "model": content["model"]}, given)
    key_map = {"eyes.": "image_encoder.", "words.": "text_encoder."}
    command(
        "convert", "devide", given, clean, "--model.key_map", json.dumps(key_map), "--model.decoder_heads=8", status=0
    )
    models = [DeViDe(str(given), key_map=key_map, decoder_heads=8), DeViDe(str(clean), decoder_heads=8)]
    # Those of timm, which the names in the converted file are, have another epsilon.
    assert [model.design["image_encoder_eps"] for model in models] == [1e-12, 1e-12]
    ids = torch.tensor([[101, 7, 8, 9, 102], [101, 11, 102, 0, 0]])
    before, after = (model(IMAGES, model.encode_tokens(ids)) for model in models)
    assert torch.equal(before.logits, after.logits)
    assert torch.equal(before.saliency, after.saliency)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "MODEL, CHECKPOINT, OUT.safetensors"),
        (["demo", "a", "b.safetensors"], "'demo'"),
        (["kad", "a"], "OUT.safetensors"),
        (["kad", "a", "b.safetensors", "c"], "c"),
        (["kad", "a", "b.pt"], "b.pt, must end in .safetensors"),
        (["devide", "a", "b.safetensors", "--model.decoder_head", "8"], "--model.decoder_heads"),
        (["kad", "a", "b.safetensors", "--model.checkpoint", "x"], "--model.checkpoint"),
        (["kad", "a", "b.safetensors", "--data.limit", "3"], "--data.limit"),
        (["medklip", "a", "b.safetensors", "--model.image_size", "big"], "--model.image_size: 'big' is not a whole"),
        (["kad", "a", "b.safetensors", "--model.image_size"], "--model.image_size needs a value"),
        (["devide", "a", "b.safetensors", "--model.key_map", "[1]"], "--model.key_map: '[1]' is not a mapping."),
        (["mavl", "a", "b.safetensors", "--model.mode", "texts"], "Did you mean text?"),
    ],
)
def test_wrong_arguments(words: list[str], named: str, command) -> None:
    run = command("convert", *words, status=2)
    assert named in run.errors
    assert run.errors.count("\n") == 1


def test_every_model_that_is_offered_takes_a_checkpoint() -> None:
    (models,) = (action for action in command_parser()[1]["convert"]._actions if action.dest == "model")
    for name in models.choices:
        path = yaml.safe_load(shipped("models")[name].read_text())["class_path"]
        assert "checkpoint" in inspect.signature(resolve_class(path)).parameters, name
