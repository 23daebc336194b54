"""GLoRIA's and AFLoc's prompts and options; their numbers are held to those of their authors in `test_golden.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deterministic import images_of
from deterministic_checkpoints import write_checkpoint
from safetensors.torch import save_file
from scipy.ndimage import gaussian_filter

from xbench.models import AFLoc, GLoRIA
from xbench.models.maps.gloria import LocalGlobal
from xbench.runtime.errors import UsageError, UserError


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[..., Any]]:
    models = {"gloria": GLoRIA, "afloc": AFLoc}
    return {name: partial(models[name], **write_checkpoint(name, tmp_path_factory.mktemp(name))) for name in models}


def test_gloria_by_plain_loops(builds: dict[str, Callable[..., Any]]) -> None:
    """The formulas word by word, for prompts of other lengths than those of the golden vectors."""
    images = images_of("gloria/loops", 2)
    prompts = [["There is a mass"], ["There is no pleural effusion", "There is edema"]]
    model: GLoRIA = builds["gloria"](saliency="attention_max")
    output = model(images, model.encode_prompts(prompts))
    whole, cells = (part.double().numpy() for part in model.img_encoder(images))
    for image in range(2):
        grid = cells[image].reshape(768, -1).T
        for column, of_class in enumerate(prompts):
            scores, maps = [], []
            for prompt in of_class:
                text = model.text_encoder(*model.text_encoder.tokenise([prompt]))[0].double().numpy()
                words = text[2 : 2 + len(prompt.split())]
                shares = np.exp(grid @ words.T - (grid @ words.T).max(axis=1, keepdims=True))
                shares = np.exp(4 * shares / shares.sum(axis=1, keepdims=True))
                shares /= shares.sum(axis=0)
                seen = [(shares[:, [place]] * grid).sum(axis=0) for place in range(len(words))]
                local = 5 * max(cosine(word, one) for word, one in zip(words, seen, strict=True))
                scores.append((local + cosine(whole[image], text[0])) / 2)
                maps.append(shares.max(axis=1).reshape(19, 19))
            best = int(np.argmax(scores))
            assert float(output.logits[image, column]) == pytest.approx(scores[best], abs=1e-5)
            # A float32 softmax of products of tens.
            np.testing.assert_allclose(output.saliency[image, column], maps[best], rtol=0, atol=5e-6)


def test_a_score_that_is_not_a_number_stays_visible(builds: dict[str, Callable[..., Any]]) -> None:
    model, images = builds["gloria"](), images_of("gloria/nan", 2)
    images[1] = torch.nan
    output = model(images, model.encode_prompts([["There is a mass"], ["There is edema", "There is no edema"]]))
    assert output.logits[0].isfinite().all() and output.logits[1].isnan().all()


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_aflocs_map_is_smoothed_as_scipy_does(builds: dict[str, Callable[..., Any]]) -> None:
    images, prompts = images_of("afloc/smooth", 1), [["Findings suggesting edema"]]
    plain, smooth = (builds["afloc"](sigma=sigma) for sigma in (0, 2.5))
    given, found = (model(images, model.encode_prompts(prompts)).saliency[0, 0] for model in (plain, smooth))
    np.testing.assert_allclose(found, gaussian_filter(given.double(), 2.5), rtol=0, atol=1e-5 * float(np.ptp(given)))
    for sigma in (-1.0, 19.0, float("nan")):
        with pytest.raises(UsageError, match=r"--model\.sigma"):
            AFLoc(sigma=sigma)


@pytest.mark.parametrize(("name", "sentence"), [("gloria", "There is"), ("afloc", "Findings suggesting")])
def test_no_prompt_is_dropped_for_being_one_word(
    name: str, sentence: str, builds: dict[str, Callable[..., Any]], tmp_path: Path
) -> None:
    model: LocalGlobal = builds[name]()
    # A phrase of an image is used as it stands, if that leaves words.
    assert model.word_prompts("small effusion", ["small effusion"]) == ["small effusion"]
    assert model.word_prompts("Edema.", ["Edema."]) == [f"{sentence} Edema."]
    assert builds[name](prompts="name").prompts_of("Edema")[0].startswith(sentence)
    with pytest.raises(UserError, match=rf"{model.title} drops sentences of a single word"):
        model.encode_prompts([["Edema"]])


def test_a_converted_file_is_not_taken_for_one_of_the_other_model(
    builds: dict[str, Callable[..., Any]], tmp_path: Path
) -> None:
    """Without the names of the training script, nothing else tells them apart."""
    converted = tmp_path / "converted.safetensors"
    save_file({**builds["afloc"]().weights()}, converted, {"model": "afloc"})
    assert builds["afloc"](checkpoint=str(converted))
    with pytest.raises(UserError, match=r"converted\.safetensors was converted from a file of afloc, not of GLoRIA"):
        builds["gloria"](checkpoint=str(converted))


def test_characters_count_as_in_the_authors_code(builds: dict[str, Callable[..., Any]]) -> None:
    model: GLoRIA = builds["gloria"](count="characters")
    (encoded,) = model.encode_prompts([["There is [a] mass"]])
    assert int((~encoded[0, :, 0].isnan()).sum()) == 1 + len("There is [a] mass") - 1
    with pytest.raises(UserError, match=r"longer than the 96 characters that GLoRIA with --model\.count characters"):
        model.encode_prompts([["There is " + "a" * 88]])
    assert torch.isfinite(model(images_of("characters", 1), encoded[None]).logits).all()
