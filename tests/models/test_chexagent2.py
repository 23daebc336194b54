from __future__ import annotations

from itertools import pairwise

import pytest
import regex
import tiny_chexagent2
import torch
from hypothesis import given
from hypothesis import strategies as st
from local_models import check_refusal, radiographs, spoil, spoil_weights
from small_networks import attached
from torchvision.transforms import v2
from transformers.convert_slow_tokenizer import bytes_to_unicode

from xbench.models import CheXagent2
from xbench.predictions.asking import Question

SIZES = [(80, 64), (70, 120), (37, 200)]
QUESTIONS = ["Where?", "Where in this chest X-ray is the nodule?", "Yes the box"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_chexagent2.build(tmp_path_factory.mktemp("chexagent2") / "model")


def loaded(folder, **options):
    model = CheXagent2(str(folder), **({"max_tokens": 8, "dtype": "float32"} | options))
    model.findings = ["Nodule"]
    return model


def queries(kind="locate", rows=(0, 1, 2)):
    return [Question(kind, row, 0, "Nodule", text, "You are.") for row in rows for text in QUESTIONS]


def test_the_network_is_its_parts(folder):
    """Greedily, token by token and without a cache; images stretched as torchvision does; one query at a time."""
    model, batch = loaded(folder), radiographs(SIZES)
    words, added = tiny_chexagent2.vocabulary()
    normalized = v2.Compose(
        [
            v2.Resize((64, 64), v2.InterpolationMode.BICUBIC),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    lengths = set()
    for query, reply in zip(queries(), model.ask(batch, queries()), strict=True):
        image = model._picture(batch.radiographs[query.row].numpy())
        pixels = normalized(image)[None]
        prompt = (
            "<|system|>\nYou are.<|endoftext|>\n<|user|>\nPicture 1:<|img|>" + "<|imgpad|>" * 16 + "<|/img|>\n"
            f"{query.text}<|endoftext|>\n<|assistant|>\n"
        )
        tokens = encoded(prompt, words | added)
        begin, end = len(tokens), words["<|endoftext|>"]
        while len(tokens) < begin + 8 and tokens[begin:][-1:] != [end]:
            logits = tiny_chexagent2.read_words(torch.tensor(tokens), pixels, added["<|imgpad|>"])
            tokens.append(int(logits[-1].argmax()))
        assert reply.tokens_in == begin
        assert reply.text == model.processor.tokenizer.decode(tokens[begin:])
        assert reply.finish == ("stop" if tokens[-1] == end else "length")
        lengths.add(reply.text)
    assert len(lengths) > 4  # it looks at image and question


def test_yes_and_no_at_the_first_position(folder):
    model, batch = loaded(folder, recognise=True), radiographs(SIZES)
    attached(model, "Nodule")
    words, added = tiny_chexagent2.vocabulary()
    assert model._yes_no == (
        sorted({words["Yes"], words["ĠYes"], words["Y"], words["y"]}),
        sorted({words["No"], words["ĠNo"], words["N"], words["n"]}),
    )
    for reply in model.ask(batch, queries("recognise")):
        assert len(reply.yes_no[0]) == len(model._yes_no[0]) and 0 < reply.mass < 1
    (reply,) = model.ask(batch, queries("recognise", [1])[:1])
    inputs = model._inputs(model._picture(batch.radiographs[1].numpy()), queries("recognise", [1])[:1])[1]
    logits = tiny_chexagent2.read_words(inputs["input_ids"][0], inputs["pixel_values"], added["<|imgpad|>"])[-1]
    assert reply.yes_no[0] == pytest.approx(logits[model._yes_no[0]].tolist(), abs=1e-4)
    assert reply.yes_no[1] == pytest.approx(logits[model._yes_no[1]].tolist(), abs=1e-4)


PATTERN = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def encoded(text, ids):
    """Byte-pair encoding as GPT-2's paper has it: of all pairs the earliest merge, until there is none."""
    special = sorted((word for word in ids if word[:2] == "<|" or not word.strip()), key=len, reverse=True)
    letters, ranks = bytes_to_unicode(), {tuple(merge.split()): at for at, merge in enumerate(tiny_chexagent2.MERGES)}
    found = []
    for piece in regex.split("(" + "|".join(map(regex.escape, special)) + ")", text):
        if piece in special:
            found.append(ids[piece])
            continue
        for word in PATTERN.findall(piece):
            parts = [letters[byte] for byte in word.encode()]
            while pairs := [pair for pair in pairwise(parts) if pair in ranks]:
                best, merged, at = min(pairs, key=ranks.__getitem__), [], 0
                while at < len(parts):
                    both = tuple(parts[at : at + 2]) == best
                    merged.append("".join(best) if both else parts[at])
                    at += 1 + both
                parts = merged
            found += [ids[part] for part in parts]
    return found


@given(
    st.lists(st.sampled_from([*"Yes No the\t\n(),12é", "  ", "<|box|>", "<|img|>", "<|endoftext|>", "in"])).map("".join)
)
def test_the_tokeniser(text):
    words, added = tiny_chexagent2.vocabulary()
    tokens = TOKENIZER(text)["input_ids"]
    assert tokens == encoded(text, words | added)
    assert TOKENIZER.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text


@pytest.fixture(scope="module", autouse=True)
def _tokenizer(folder):
    global TOKENIZER
    TOKENIZER = loaded(folder).processor.tokenizer


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: spoil(m, "config.json", partial_rotary_factor=None), "lacks partial_rotary_factor"),
        (lambda m: (m / "config.json").unlink(), "no config.json"),
        (lambda m: spoil(m, "config.json", vocab_size=384), "mismatched"),
        (lambda m: spoil_weights(m, lambda t: t.pop("model.visual.pos_embed", None)), "1 missing"),
        (lambda m: spoil_weights(m, lambda t: t.pop("model.visual.model.head.probe", None)), "1 missing"),
        (lambda m: spoil_weights(m, lambda t: t.update(odd=torch.zeros(2))), "1 unexpected"),
        (lambda m: [path.unlink() for path in m.glob("*.safetensors")], "model.visual.model.embeddings"),
        (lambda m: (m / "model-00001-of-00002.safetensors").write_bytes(b"x" * 40), "cannot be read"),
        (lambda m: (m / "added_tokens.json").unlink(), "vocab.json, merges.txt and added_tokens.json"),
        (lambda m: spoil(m, "added_tokens.json", **{"<|imgpad|>": None}), "lacks <|imgpad|>"),
        (lambda m: spoil(m, "added_tokens.json", **{"<|extra_0|>": 7}), "ids unlike"),
        (lambda m: (m / "merges.txt").write_text("broken"), "tokenizer"),
    ],
)
def test_a_checkpoint_that_cannot_be_used(change, said, folder, tmp_path):
    check_refusal(loaded, folder, change, said, tmp_path)
