"""BERT as text encoder, from a folder, the Hugging Face hub or a checkpoint, and its tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import LocalEntryNotFoundError
from tokenizers import BertWordPieceTokenizer
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertModel
from transformers.convert_slow_tokenizer import import_protobuf

from xbench.models.base import too_long
from xbench.models.networks.checkpoint import explained, fill, first_line, read_tensors, renamed, undrawn
from xbench.runtime.errors import UserError


def load_bert(source: str) -> BertModel:
    """Load a BERT without its pooler, frozen, from a folder or hub repository."""
    file = find_file(source, "config.json")
    with explained(f"--model.text_encoder {source}: {file} is not a BERT's configuration", "Fetch it again."):
        config = BertConfig.from_json_file(file)
    bert, path = empty_bert(config, pooler=False), weights_file(source)
    # Files converted from TensorFlow use its names for layer norms.
    tensors = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in renamed(read_tensors(path), {"bert.": ""}).items()
    }
    unused = ("cls.*", "pooler.*", "embeddings.position_ids")
    advice = "Give --model.text_encoder the matching folder or name on the Hugging Face hub."
    fill(bert, tensors, path, f"the text encoder {source}", unused, advice)
    return bert


def weights_file(source: str, option: str = "text_encoder") -> Path:
    """Return the weights in a folder or hub repository, downloaded if necessary; raise a UserError if it has none."""
    return find_file(source, "model.safetensors", "pytorch_model.bin", option=option)


def bert_like(tensors: Mapping[str, Tensor], prefix: str) -> BertModel:
    """Return an empty BERT, frozen, in the sizes of the tensors with a prefix; otherwise BERT-base, heads 64 wide."""

    def size(name: str, dimension: int, usual: int) -> int:
        tensor = tensors.get(prefix + name)
        return usual if tensor is None else tensor.shape[dimension]

    layers = {name.split(".")[2] for key in tensors if (name := key.removeprefix(prefix)).startswith("encoder.layer.")}
    width = size("embeddings.word_embeddings.weight", 1, 768)
    config = BertConfig(
        vocab_size=size("embeddings.word_embeddings.weight", 0, 30522),
        hidden_size=width,
        num_hidden_layers=len(layers) or 12,
        num_attention_heads=max(1, width // 64),
        intermediate_size=size("encoder.layer.0.intermediate.dense.weight", 0, 3072),
        max_position_embeddings=size("embeddings.position_embeddings.weight", 0, 512),
        type_vocab_size=size("embeddings.token_type_embeddings.weight", 0, 2),
    )
    return empty_bert(config, pooler=f"{prefix}pooler.dense.weight" in tensors)


@torch.no_grad()
def encode_in_chunks(
    encode: Callable[[Tensor, Tensor], Tensor], input_ids: Tensor, attention_mask: Tensor, size: int = 64
) -> Tensor:
    """Encode N prompts, ids and mask (N, L), `size` at a time and sorted by length, to one vector or matrix each."""
    positions = torch.arange(1, attention_mask.shape[1] + 1, device=attention_mask.device)
    lengths = (attention_mask * positions).amax(dim=1).clamp(min=1)
    order = lengths.argsort(stable=True)
    encoded = []
    for rows in order.split(size):
        longest = int(lengths[rows].max())
        encoded.append(encode(input_ids[rows, :longest], attention_mask[rows, :longest]))
    return torch.cat(encoded)[order.argsort()]


def tokenise(tokeniser: Any, texts: Sequence[str], length: int, model: str) -> tuple[Tensor, Tensor]:
    """Tokenize N texts to ids and mask, each (N, length) int64; `too_long` handles longer texts."""
    padding = {"padding": "max_length", "truncation": True, "return_attention_mask": True, "return_tensors": "pt"}
    # One extra token shows which texts the tokenizer truncates.
    tokens = tokeniser(list(texts), **padding, max_length=length + 1)
    if (longer := tokens["attention_mask"][:, length]).any():
        too_long(texts[int(longer.argmax())], length, model)
        # The end token must come last.
        tokens = tokeniser(list(texts), **padding, max_length=length)
    return tokens["input_ids"][:, :length], tokens["attention_mask"][:, :length]


def tokenise_without_separator(source: str, texts: Sequence[str], length: int = 64) -> tuple[Tensor, Tensor]:
    """Tokenize N texts to ids and mask (N, length) int64 as the authors of MedKLIP do.

    Their tokenizer adds no [SEP], lower-cases although the vocabulary is cased, and truncates silently.
    """
    ids = vocabulary(source)
    tokeniser = BertWordPieceTokenizer(ids, lowercase=True, strip_accents=True)
    input_ids = torch.full((len(texts), length), ids["[PAD]"])
    attention_mask = torch.zeros_like(input_ids)
    for row, text in enumerate(texts):
        pieces = [ids["[CLS]"], *tokeniser.encode(text, add_special_tokens=False).ids]
        if len(pieces) > length:
            too_long(text, length, "the model", refuse=False)
            pieces = pieces[:length]
        input_ids[row, : len(pieces)] = torch.tensor(pieces)
        attention_mask[row, : len(pieces)] = 1
    return input_ids, attention_mask


@cache
def vocabulary(source: str) -> dict[str, int]:
    """Return the ids of a tokenizer's tokens, from a folder or hub repository."""
    file = find_file(source, "vocab.txt", "tokenizer.json")
    with explained(f"{file} is not a BERT's vocabulary", "Fetch it again."):
        text = file.read_text(encoding="utf-8")
        words = text.removesuffix("\n").split("\n")
        listed = {word: number for number, word in enumerate(words)}
        ids: dict[str, int] = json.loads(text)["model"]["vocab"] if file.suffix == ".json" else listed
        if missing := {"[CLS]", "[SEP]"} - {*ids}:
            raise ValueError(f"no {' and '.join(sorted(missing))} in it")
    return ids


def empty_bert(config: BertConfig, pooler: bool) -> BertModel:
    """Return an empty BERT, frozen, for inference."""
    bert = undrawn(lambda: BertModel(config, add_pooling_layer=pooler))
    # Files of weights do not contain these two buffers.
    bert.embeddings.position_ids.copy_(torch.arange(config.max_position_embeddings)[None])
    bert.embeddings.token_type_ids.zero_()
    return bert.eval().requires_grad_(False)  # type: ignore[no-any-return]


@cache
def load_tokeniser(source: str, option: str = "text_encoder", kind: Any = AutoTokenizer) -> Any:
    """Load a tokenizer, by default of the class in its files, from a folder or hub repository that `option` names."""
    with explained(f"The tokenizer of {source} cannot be loaded", _offline(source, option)):
        place, revision = (str(folder), "main") if (folder := _folder(source, option)) else _on_hub(source)
        return kind.from_pretrained(place, revision=revision, trust_remote_code=False)


def _on_hub(source: str) -> tuple[str, str]:
    repository, _, revision = source.partition("@")
    return repository, revision or "main"


def parse_sentencepiece(path: Path, advice: str) -> Any:
    """Return the protocol buffer of a SentencePiece model, read without that library."""
    model = import_protobuf().ModelProto()
    with explained(f"The tokenizer {path} cannot be read", advice):
        try:
            model.ParseFromString(path.read_bytes())
        except Exception as error:  # including protobuf's own class
            raise ValueError(error) from error
    return model


def find_file(source: str, *names: str, option: str = "text_encoder") -> Path:
    """Return the first of several files in a folder or hub repository; raise a UserError if there is none."""
    folder, reason, unreachable = _folder(source, option), "not in the folder", False
    for name in names:
        if folder is None:
            repository, revision = _on_hub(source)
            try:
                return Path(hf_hub_download(repository, name, revision=revision, local_files_only=unreachable))
            except (OSError, ValueError, RuntimeError) as error:
                reason = first_line(error)
                # An unreachable hub takes half a minute to fail, so try it only once.
                unreachable = unreachable or isinstance(error, LocalEntryNotFoundError)
        elif (folder / name).is_file():
            return folder / name
    raise UserError(f"No {' or '.join(names)} found in {source} ({reason}). {_offline(source, option, *names)}")


def _folder(source: str, option: str) -> Path | None:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise UserError(f"The folder {source} does not exist. Check --model.{option}.")
    return None


def _offline(source: str, option: str, *names: str) -> str:
    usual = "config.json, vocab.txt or tokenizer.json, and model.safetensors or pytorch_model.bin"
    files = ", ".join([*(name for name in names if name not in usual), usual])
    return (
        f"Without a network, download {files} of {source if _folder(source, option) is None else 'the model'} from "
        f"huggingface.co on another machine, put them into one folder and give --model.{option} FOLDER."
    )
