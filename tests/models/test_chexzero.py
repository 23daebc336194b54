from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from deterministic import gray, images_of
from deterministic_checkpoints import write_checkpoint
from PIL import Image
from small_networks import attached, largest

from xbench.models import CheXzero
from xbench.models.maps import chexzero
from xbench.runtime.errors import UserError


@pytest.fixture
def folder(small: None, tmp_path: Path) -> Path:
    first = Path(write_checkpoint("chexzero", tmp_path)["checkpoint"])
    tensors = torch.load(first)
    for name in ("text_projection", "visual.proj"):
        tensors[name] = tensors[name].flip(0) + 0.1
    torch.save(tensors, tmp_path / "best_64_0.0002_original_23000_0.854.pt")
    (tmp_path / "notes.txt").touch()
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"contrast": True}, {"saliency": "gem"}, {"image_size": 96}])
def test_an_ensemble_is_the_mean_of_its_members(folder: Path, options: dict) -> None:
    files = sorted(folder.glob("*.pt"))
    model, alone = CheXzero(str(folder), **options), [CheXzero(str(file), **options) for file in files]
    assert len(model.members) == 2
    images, prompts = images_of("ensemble", 2, model.image_size), [["edema", "no edema"], ["a", "b", "no c"]]
    with torch.inference_mode():
        whole = model(images, model.encode_prompts(prompts))
        parts = [one(images, one.encode_prompts(prompts)) for one in alone]
    assert largest(parts[0].probabilities, parts[1].probabilities) > 1e-4
    mean = sum(part.probabilities for part in parts) / 2
    assert largest(whole.probabilities, mean) < 1e-6
    assert largest(whole.logits, torch.log(mean / (1 - mean))) < 1e-6
    assert largest(whole.saliency, sum(part.saliency for part in parts) / 2) < 1e-6


def test_what_a_run_and_convert_say_of_an_ensemble(folder: Path) -> None:
    model = attached(CheXzero(str(folder)), "Edema")
    assert [*model.provenance()["files_sha256"]] == sorted(file.name for file in folder.glob("*.pt"))
    with pytest.raises(UserError, match="not 2: convert each"):
        model.weights()
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"is a folder, not a file of weights.*github\.com/rajpurkarlab"):
        CheXzero(str(empty))


@pytest.mark.parametrize("shape", [(391, 280), (300, 417), (320, 320), (1021, 1021), (57, 500), (640, 643)])
def test_canvas_against_pillow(shape: tuple[int, int]) -> None:
    """The authors multiply by a rounded ratio, so that some longer sides lose a pixel too."""
    image = gray("canvas", *shape)
    ratio = 320 / max(shape)
    width, height = (int(side * ratio) for side in reversed(shape))
    expected = Image.new("L", (320, 320))
    resized = Image.fromarray(image).convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    expected.paste(resized.convert("L"), ((320 - width) // 2, (320 - height) // 2))
    normalized = (torch.from_numpy(np.asarray(expected, np.float32)) - 101.48761) / 83.43944
    sharp = torch.nn.functional.interpolate(normalized[None, None], (224, 224), mode="bicubic")
    pixels, view = chexzero.preprocessing(224, antialias=False)(image)
    assert largest(pixels[:1], sharp[0]) < 1e-5
    assert view[0] == pytest.approx(-((320 - width) // 2) / width, abs=1e-5)
    assert view[1] == pytest.approx(-((320 - height) // 2) / height, abs=1e-5)
    assert re.search("TensorResize.*224", str(chexzero.preprocessing(224, False).description()))
