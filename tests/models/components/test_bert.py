from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from book_files import VOCABULARY, write_small_bert
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel

from xbench.models.networks import bert as module
from xbench.models.networks.bert import (
    bert_like,
    encode_in_chunks,
    load_bert,
    load_tokeniser,
    tokenise,
    tokenise_without_separator,
    weights_file,
)
from xbench.models.networks.checkpoint import fill
from xbench.runtime.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_small_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 12, 1, 7, 7, 2, 9, 12])
    mask = (torch.arange(12) < lengths[:, None]).long()
    return torch.randint(5, len(VOCABULARY), mask.shape, generator=generator) * mask, mask


def plain(folder: str, tokens: tuple[Tensor, Tensor]) -> Tensor:
    bert = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return bert(*tokens).last_hidden_state


def test_load(folder: str, tokens: tuple[Tensor, Tensor]) -> None:
    bert = load_bert(folder)
    assert bert.pooler is None
    ours, theirs = bert(*tokens).last_hidden_state, plain(folder, tokens)
    real = tokens[1].bool()
    torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=1e-5)


def test_load_a_file_of_pretraining(folder: str, tokens: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    """As Bio_ClinicalBERT lies on the hub: pickled, with the heads of its training and names of older versions."""
    old = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(weights_file(folder)).items()
    }
    old |= {"cls.predictions.bias": torch.zeros(3), "bert.embeddings.position_ids": torch.arange(512)[None]}
    torch.save(old, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_bytes((Path(folder) / "config.json").read_bytes())
    assert torch.equal(
        load_bert(str(tmp_path))(*tokens).last_hidden_state, load_bert(folder)(*tokens).last_hidden_state
    )


@pytest.mark.parametrize("pooler", [True, False])
def test_bert_like(tokens: tuple[Tensor, Tensor], pooler: bool) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 72, "max_position_embeddings": 40, "type_vocab_size": 3}
    torch.manual_seed(1)
    theirs = BertModel(BertConfig(**sizes), add_pooling_layer=pooler).eval()
    tensors = {f"text.bert.{name}": tensor for name, tensor in theirs.state_dict().items()}
    ours = bert_like(tensors | {"other": torch.zeros(1)}, "text.bert.")
    fill(ours, theirs.state_dict(), Path("x"), "x")
    assert torch.equal(ours(*tokens).last_hidden_state, theirs(*tokens).last_hidden_state)
    assert (ours.pooler is not None) == pooler
    assert not any(parameter.requires_grad for parameter in ours.parameters())


@pytest.mark.parametrize("size", [1, 3, 64])
def test_chunks(folder: str, tokens: tuple[Tensor, Tensor], size: int) -> None:
    bert = load_bert(folder)
    seen: list[tuple[int, ...]] = []

    def encode(ids: Tensor, mask: Tensor) -> Tensor:
        seen.append(tuple(ids.shape))
        return bert(ids, mask).last_hidden_state[:, 0]

    encoded = encode_in_chunks(encode, *tokens, size)
    torch.testing.assert_close(encoded, plain(folder, tokens)[:, 0], rtol=0, atol=1e-5)
    if size == 3:
        assert seen == [(3, 3), (3, 9), (2, 12)]


def test_files_of_an_encoder_that_are_no_good(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"absent does not exist.*--model\.text_encoder"):
        load_bert(str(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"No config\.json found in .*give --model\.text_encoder FOLDER"):
        load_bert(str(tmp_path))
    (tmp_path / "config.json").write_text("nonsense")
    with pytest.raises(UserError, match=r"config\.json is not a BERT"):
        load_bert(str(tmp_path))
    (tmp_path / "config.json").write_bytes((Path(folder) / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"No model\.safetensors or pytorch_model\.bin"):
        load_bert(str(tmp_path))
    weights = load_file(weights_file(folder))
    del weights["encoder.layer.0.output.dense.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"1 missing \(encoder\.layer\.0\.output\.dense\.bias\).*--model\.text_encoder"):
        load_bert(str(tmp_path))

    def refuse(*arguments: str, **options: bool) -> str:
        raise OSError("no network in tests")

    monkeypatch.setattr(module, "hf_hub_download", refuse)
    with pytest.raises(UserError, match=r"found in some/bert \(no network in tests\)"):
        load_bert("some/bert")
    with pytest.raises(UserError, match=r"vocab\.txt or tokenizer\.json found in other/bert"):
        tokenise_without_separator("other/bert", ["a"])


def test_hub(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is out of reach is tried once: the next file can come from what was downloaded before alone."""
    asked = []

    def fetch(repository: str, name: str, revision: str, local_files_only: bool) -> str:
        asked.append((repository, revision, local_files_only))
        if name == "model.safetensors":
            raise OSError("404") if repository == "some/bert" else LocalEntryNotFoundError("no connection")
        return str(Path(folder, name))

    monkeypatch.setattr(module, "hf_hub_download", fetch)
    for source in ("some/bert", "other/bert@v1.1"):
        assert weights_file(source) == Path(folder, "pytorch_model.bin")
    assert asked[1:] == [("some/bert", "main", False), ("other/bert", "v1.1", False), ("other/bert", "v1.1", True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a larger heart, white: lung", [5, 9, 10, 6, 11, 8, 13, 7]),
        ("", []),
        # Punctuation stands alone, accents go, and of a word that is not known nothing is kept.
        ("Large_heart. LÁRGE\nlarges", [9, 1, 6, 12, 9, 1]),
        ("a " * 70, [5] * 63),
    ],
)
def test_medklips_tokens(folder: str, text: str, expected: list[int]) -> None:
    ids, mask = tokenise_without_separator(folder, [text])
    assert ids.dtype == mask.dtype == torch.int64
    padding = [0] * (63 - len(expected))
    assert ids.tolist() == [[2, *expected, *padding]]
    assert mask.tolist() == [[1, *(1 for _ in expected), *padding]]


def test_vocabularies_of_other_folders(folder: str, tmp_path: Path) -> None:
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": vocabulary}}))
    newer, older = (tokenise_without_separator(place, ["A larger heart"], 5) for place in (str(tmp_path), folder))
    assert torch.equal(newer[0], older[0]) and torch.equal(newer[1], older[1])
    for name, content in (("tokenizer.json", "{}"), ("vocab.txt", "a\nb")):
        module.vocabulary.cache_clear()
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=f"{name} is not a BERT"):
            tokenise_without_separator(str(tmp_path), ["a"])


def test_plain_tokens(folder: str, tmp_path: Path) -> None:
    ids, mask = tokenise(load_tokeniser(folder), ["a larger heart", "lung " * 6], 8, "KAD")
    assert ids.tolist() == [[2, 5, 9, 10, 6, 3, 0, 0], [2, 7, 7, 7, 7, 7, 7, 3]]
    assert mask.tolist() == [[1, 1, 1, 1, 1, 1, 0, 0], [1] * 8]
    with pytest.raises(UserError, match=r"'lung lung .* longer than the 8 tokens that KAD reads"):
        tokenise(load_tokeniser(folder), ["a larger heart", "lung " * 7], 8, "KAD")
    with pytest.raises(UserError, match="tokenizer of"):
        tokenise(load_tokeniser(str(tmp_path)), ["a"], 8, "KAD")
