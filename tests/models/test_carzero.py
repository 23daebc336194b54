"""CARZero's text, its files and its canvas; its numbers are held to those of its authors in `test_golden.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from deterministic import images_of, weight
from deterministic_checkpoints import BERT, VOCABULARY, write_checkpoint
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from xbench.findings.names import FINDINGS
from xbench.findings.prompts import prompts_in_style
from xbench.models.maps import carzero
from xbench.models.maps.carzero import CARZero
from xbench.models.networks import report_text
from xbench.models.networks.report_text import TOKENS, WordPieces, aggregate, clean
from xbench.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("small")
# The vocabulary is that of `deterministic_checkpoints`: the longest word that it has, then letters.
PROMPTS = ["There is Pleural Effusion", "There is a Lung Nodule.", "1. There is no mass"]
READ = ["there is pleural effusion", "there is a lung nodule", "there is no mass"]


def pieces_of(prompt: str) -> list[str]:
    pieces = ["[CLS]"]
    for word in prompt.split():
        first = next(word[:length] for length in range(len(word), 0, -1) if word[:length] in VOCABULARY)
        pieces += [first, *(f"##{letter}" for letter in word.removeprefix(first))]
    return [*pieces, "[SEP]"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_checkpoint("carzero", tmp_path_factory.mktemp("carzero"))


@pytest.fixture(scope="module")
def weights(files: dict[str, str]) -> dict[str, Tensor]:
    tensors = torch.load(files["checkpoint"])["state_dict"]
    return {name.removeprefix("CARZero."): tensor for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def model(small: None, files: dict[str, str]) -> CARZero:
    return CARZero(**files)


def built(weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, **options: Any) -> CARZero:
    monkeypatch.setattr(carzero, "locate", lambda checkpoint, *_: Path(checkpoint))
    monkeypatch.setattr(carzero, "read_tensors", lambda path: weights)
    model = CARZero("memory.ckpt", **options)
    model.text_encoder.word_pieces = WordPieces.of({token: number for number, token in enumerate(VOCABULARY)})
    return model


def token_ids(pieces: list[str]) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(len(pieces), TOKENS, dtype=torch.int64)
    for row, prompt in zip(ids, pieces, strict=True):
        tokens = pieces_of(prompt)
        row[: len(tokens)] = torch.tensor([VOCABULARY.index(token) for token in tokens])
    return ids, (ids != 0).long()


def test_prompts_become_tokens(model: CARZero) -> None:
    by_prompts, by_tokens = model.encode_prompts([[p] for p in PROMPTS]), model.encode_tokens(*token_ids(READ))
    torch.testing.assert_close(by_prompts, by_tokens, rtol=0, atol=0)


@pytest.mark.parametrize("form", ["no mask", "one prompt per class", "short rows", "long rows", "int32"])
def test_forms_of_token_ids(model: CARZero, form: str) -> None:
    ids, mask = token_ids(READ)
    expected = model.encode_text(ids, mask)
    given: tuple[Tensor, ...] = {
        "no mask": (ids,),
        "one prompt per class": (ids[:, None], mask[:, None]),
        "short rows": (ids[:, :40], mask[:, :40]),
        "long rows": (torch.cat([ids, 0 * ids], dim=1), torch.cat([mask, 0 * mask], dim=1)),
        "int32": (ids.int(), mask.to(torch.int8)),
    }[form]
    torch.testing.assert_close(model.encode_text(*given), expected, rtol=0, atol=0)


def test_linear_head(weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: tensor for name, tensor in weights.items() if ".mlp_head." not in name}
    kept["fusion_module.mlp_head.0.weight"] = weight("linear.weight", (1, 768))
    kept["fusion_module.mlp_head.0.bias"] = weight("linear.bias", (1,))
    model = built(kept, monkeypatch)
    images, queries = images_of("linear", 1), model.encode_tokens(*token_ids(READ[:1]))
    tokens, fusion = model.img_encoder(images), model.fusion_module
    decoded = [
        fusion.decoder(fusion.decoder.norm(query)[None], memory)[0]
        for query, memory in ((queries[0], fusion.keys_values(tokens)), (tokens[:, 0], queries[1]))
    ]
    expected = sum(decoded) @ kept["fusion_module.mlp_head.0.weight"].T / 2 + kept["fusion_module.mlp_head.0.bias"]
    torch.testing.assert_close(model(images, queries).logits, expected[0], rtol=0, atol=5e-6)


def test_what_has_no_influence(model: CARZero, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that only the authors' loader asks for may be NaN, and of two names for the norm the later one counts."""
    unused = (".self_attn.", ".norm1.", ".pooler.", ".logit_scale", ".decoder_norm.")
    spoilt = {
        name: torch.full_like(tensor, torch.nan)
        if any(word in name for word in unused) and not name.startswith("img_encoder.")
        else tensor
        for name, tensor in weights.items()
    }
    assert sum(bool(tensor.isnan().any()) for tensor in spoilt.values()) == 27 + 2
    spoilt["text_encoder.model.embeddings.position_ids"] = torch.arange(TOKENS)[None]
    images = images_of("unused", 1)
    ids = token_ids(READ)
    expected = model(images, model.encode_tokens(*ids))
    other = built({f"CARZero.{name}": tensor for name, tensor in spoilt.items()}, monkeypatch)
    output = other(images, other.encode_tokens(*ids))
    torch.testing.assert_close(output.logits, expected.logits, rtol=0, atol=0)
    torch.testing.assert_close(output.saliency, expected.saliency, rtol=0, atol=0)


def test_no_two_findings_of_a_dataset_are_read_alike(model: CARZero) -> None:
    for findings in FINDINGS.values():
        read = [clean(*model.default_prompts(finding)) for finding in findings]
        assert len({*read}) == len(findings)
        assert all(text.startswith("there is ") for text in read)


def test_names_and_phrases_stand_in_its_sentence(weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    for style, prompt in {"name": "There is ILD", "phrase": "There is interstitial lung disease"}.items():
        assert built(weights, monkeypatch, prompts=style).prompts_of("ILD") == [prompt]
    assert built(weights, monkeypatch, prompts="description").prompts_of("ILD") == prompts_in_style(
        "description", "ILD"
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 9), min_size=0, max_size=TOKENS - 2), min_size=1, max_size=3),
    continuing=st.sets(st.integers(0, 9)),
)
@example(rows=[[3] * (TOKENS - 2)], continuing=set())
def test_words_of_pieces(rows: list[list[int]], continuing: set[int]) -> None:
    """Ids 0 to 9 are word pieces, 10 is [CLS], 11 [SEP], 12 padding."""
    pieces = WordPieces(torch.tensor([number in continuing for number in range(13)]), separator=11)
    ids = torch.full((len(rows), TOKENS), 12)
    for row, of_row in zip(ids, rows, strict=True):
        row[: len(of_row) + 2] = torch.tensor([10, *of_row, 11])
    states = torch.randint(-8, 9, (*ids.shape, 2)).float()
    found = aggregate(states, ids, pieces)
    for row, of_row, of_ids in zip(found, states.tolist(), ids.tolist(), strict=True):
        words: list[list[float]] = []
        for state, number in zip(of_row, of_ids, strict=True):
            if number in continuing:
                words[-1] = [a + b for a, b in zip(words[-1], state, strict=True)]
            else:
                words.append(state)
            if number == 11:
                break
        words += [[0.0, 0.0]] * (TOKENS - len(words))
        assert row[1:].tolist() == words
        torch.testing.assert_close(row[0], torch.tensor(words).mean(dim=0))


def test_text_that_cannot_be_encoded(model: CARZero) -> None:
    ids, _ = token_ids(READ)
    for prompts, message in (
        ([["There is a mass"], ["Edema"]], "leaves nothing of the prompt 'Edema'"),
        ([["There is a mass", "No mass is seen"]], "exactly one prompt per finding"),
        ([["There is a mass"], ["a lung " * 20]], "'a lung .* longer than the 97 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            model.encode_prompts(prompts)
    model.encode_prompts([["a lung " * 19]])
    for given_ids, message in (
        (torch.stack([ids, ids], dim=1), r"\(C, 1, L\), not \(3, 2, 97\)"),
        (torch.where(ids == 3, 4, ids), r"class 0 lack the final \[SEP\]"),
        (torch.cat([ids, ids], dim=1), "reads 97 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            model.encode_tokens(given_ids)
    with pytest.raises(UserError, match=r"attention mask of shape .* not \(3, 1, 97\) and \(3, 97\)"):
        model.encode_tokens(ids[:, None], (ids != 0).long())


def test_tokenisers_that_do_not_fit(files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CARZero(files["checkpoint"], text_encoder=str(tmp_path / "absent"))
    # Token ids from elsewhere are encoded all the same, every token as a word: that concerns the words alone.
    with pytest.warns(UserWarning, match="absent does not exist"):
        guessed = model.encode_text(*token_ids(READ))
    with monkeypatch.context() as patch:
        # Trying a hub that is out of reach again would take a minute for each of its files.
        patch.setattr(report_text, "vocabulary", None)
        assert torch.equal(model.encode_text(*token_ids(READ)), guessed)
    ids, mask = token_ids(READ)
    model.encode_text(torch.where(ids == 3, 4, ids), mask)
    with pytest.raises(UserError, match="absent"):
        model.encode_prompts([["There is a mass"]])
    model.text_encoder.word_pieces = WordPieces.of({token: number for number, token in enumerate(VOCABULARY)})
    known = model.encode_text(*token_ids(READ))
    torch.testing.assert_close(guessed[:, 0], known[:, 0])
    assert not torch.allclose(guessed[:, 1:], known[:, 1:])
    del model.text_encoder.word_pieces
    words = BERT["vocab_size"] + 1
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, *map(str, range(len(VOCABULARY), words))]))
    model.text_encoder.source = str(tmp_path)
    with pytest.raises(UserError, match=rf"has {words} tokens, but the BERT of CARZero {words - 1}"):
        model.encode_tokens(*token_ids(READ))


def plain_canvas(image: np.ndarray, size: int) -> np.ndarray:
    height, width = image.shape
    if height >= width:
        resized = cv2.resize(image, (int(width * (size / height)), size), interpolation=cv2.INTER_AREA)
    else:
        resized = cv2.resize(image, (size, int(height * (size / width))), interpolation=cv2.INTER_AREA)
    down, across = size - resized.shape[0], size - resized.shape[1]
    return np.pad(resized, ((down // 2, -(-down // 2)), (across // 2, -(-across // 2))))


@settings(max_examples=80, deadline=None)
@given(
    height=st.integers(20, 600),
    width=st.integers(20, 600),
    seed=st.integers(0, 9),
    # The canvas grows with the input.
    sizes=st.sampled_from([(224, 256), (448, 512), (384, 438), (112, 128)]),
)
@example(height=49, width=49, seed=0, sizes=(224, 256))
def test_input_and_view(height: int, width: int, seed: int, sizes: tuple[int, int]) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    size, side = sizes
    pixels, view = carzero.preprocessing(size).pixels(image)
    border = (side - size) // 2
    assert np.array_equal(pixels, plain_canvas(image, side)[border : side - border, border : side - border])
    rows, columns = (np.flatnonzero(plain_canvas(np.full_like(image, 255), side).any(axis=axis)) for axis in (1, 0))
    for (low, high), edge in ((view[::2], columns), (view[1::2], rows)):
        covered = edge[-1] + 1 - edge[0]
        assert low == pytest.approx((border - edge[0]) / covered, abs=1e-5)
        assert high == pytest.approx((side - border - edge[0]) / covered, abs=1e-5)
