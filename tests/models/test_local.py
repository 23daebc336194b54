from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny_chexagent2
import tiny_maira2
import tiny_multimodal
import torch
from local_models import check_refusal, radiographs, speak, spoil, spoil_weights
from small_networks import attached
from tiny_multimodal import FAMILY_OF

from xbench.models import CheXagent2, Maira2
from xbench.models.answers.local import Local
from xbench.predictions import family_named
from xbench.predictions.answer import Box, Size
from xbench.predictions.asking import Question
from xbench.predictions.conventions import Convention
from xbench.runtime.errors import UserError

SIZES = [(80, 64), (70, 120), (56, 56)]
QUESTIONS = ["Where?", "Where in this chest X-ray is the nodule?", "And the heart?"]
BUILDERS = {kind: partial(tiny_multimodal.build, kind) for kind in FAMILY_OF}
BUILDERS |= {"maira2": tiny_maira2.build, "chexagent2": tiny_chexagent2.build}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made: dict[str, Path] = {}
    root = tmp_path_factory.mktemp("multimodal")

    def of(kind: str) -> Path:
        if kind not in made:
            made[kind] = BUILDERS[kind](root / kind)
        return made[kind]

    return of


def local(kind, folder, family=None, **options):
    classes = {"maira2": Maira2, "chexagent2": partial(CheXagent2, dtype="float32")}
    make = classes.get(kind) or partial(Local, family or FAMILY_OF[kind])
    model = make(str(folder(kind)), **({"max_tokens": 10} | options))
    model.findings = ["Nodule"]
    return model


def queries(kind="locate", rows=(0, 1, 2), texts=QUESTIONS):
    return [Question(kind, row, 0, "Nodule", text) for row in rows for text in texts]


def shown(model, pixels, text):
    return model._inputs(model._picture(pixels.numpy()), queries(rows=[0], texts=[text]))


@pytest.mark.parametrize("kind", BUILDERS)
def test_answers_do_not_depend_on_what_is_asked_together(kind, folder):
    """Shorter prompts are padded on the left, which must not show: not in the words, nor in the logits."""
    together, alone = local(kind, folder), local(kind, folder, together=1)
    batch = radiographs(SIZES)
    several, single = together.ask(batch, queries()), alone.ask(batch, queries())
    assert [reply.text for reply in several] == [reply.text for reply in single]
    assert several == single
    assert together.ask(batch, queries(rows=[1])) == several[3:6]
    for reply in several:
        assert reply.finish == ("stop" if reply.text.endswith(together.processor.tokenizer.eos_token) else "length")
        assert 1 <= reply.tokens_out <= 10 and reply.tokens_in > 4
    if together.recognizes:
        together._yes_no = alone._yes_no = together._yes_no_tokens("assistant\n")
        several, single = (model.ask(batch, queries("recognise")) for model in (together, alone))
        for one, other in zip(several, single, strict=True):
            assert one.yes_no[0] == pytest.approx(other.yes_no[0], abs=1e-5)
            assert one.mass == pytest.approx(other.mass, abs=1e-6)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "gemma3", "florence2", "maira2", "chexagent2"])
def test_tokens_become_the_answer_that_they_write(kind, folder, monkeypatch):
    """The truth, generated token by token: it is read in the frame of what the processor showed."""
    model = local(kind, folder, max_tokens=200)
    batch, box = radiographs(SIZES), Box(0.25, 0.3, 0.5, 0.8)
    for row, pixels in enumerate(batch.radiographs):
        size = pixels.shape[1], pixels.shape[0]
        _, inputs = shown(model, pixels, "Where?")
        resized = model._shown(inputs)
        frame = model.convention if resized is None else Convention.named(resized)
        said = model.family.write([box], "nodule", frame, size)
        tokens = model.processor.tokenizer(said, add_special_tokens=False)["input_ids"]
        for ending, finish in (([model.processor.tokenizer.eos_token_id, 0, 0], "stop"), ([], "length")):
            speak(monkeypatch, model, [*tokens, *ending])
            (reply,) = model.ask(batch, queries(rows=[row])[:1])
            answer = reply.read(model.family, model.convention, size)
            assert (reply.finish, reply.tokens_out) == (finish, len(tokens) + (finish == "stop"))
            assert answer.status == ("answered" if finish == "stop" else "truncated")
            assert answer.boxes[0] == pytest.approx(box, abs=0.025) and not answer.suspect_frame
    if kind == "qwen2_5_vl":
        assert resized == "pixels_resized@56x56"


@pytest.mark.parametrize("size", [(90, 41), (37, 128), (600, 1024), (64, 64)])
@pytest.mark.parametrize(
    ("family", "kind", "frame"),
    [("medgemma", "gemma3", None), ("agkd", "florence2", None), ("medgemma", "gemma3", "thousand_whole_yx")],
)
def test_what_is_shown_lies_where_the_frame_says(family, kind, frame, size, folder):
    """A bright rectangle, found in the padded image and read back: within the pixels of what was shown."""
    model = local(kind, folder, family, frame=frame)
    height, width = size
    pixels = np.zeros(size, np.uint8)
    true = Box(0.25, 0.5, 0.75, 1.0)
    pixels[height // 2 :, round(width * 0.25) : round(width * 0.75)] = 255
    seen = np.asarray(model._picture(pixels))[..., 0]
    rows, columns = np.nonzero(seen.max(1) > 127)[0], np.nonzero(seen.max(0) > 127)[0]
    corners = columns[0] / seen.shape[1], rows[0] / seen.shape[0]
    corners += (columns[-1] + 1) / seen.shape[1], (rows[-1] + 1) / seen.shape[0]
    x, y = model.convention.axes(Size(width, height))
    half = 0.5 if x.bins else 0
    found = [axis.to_fraction(1000 * corner - half) for axis, corner in zip((x, y, x, y), corners, strict=True)]
    assert found == pytest.approx(true, abs=1.5 / min(size))


@pytest.mark.parametrize("kind", ["llava_onevision", "qwen3_vl"])
def test_yes_and_no_at_the_first_position(kind, folder):
    """Against the logits of one pass through the network, over the tokens that the words begin with."""
    model = local(kind, folder, recognise=True)
    attached(model, "Nodule")
    words = model.processor.tokenizer
    first = {word: words(word, add_special_tokens=False)["input_ids"][0] for word in ("Y", "y", "N", "n", " ")}
    # A tokeniser of bytes: a leading blank begins both, and so neither.
    assert model._yes_no == (sorted([first["Y"], first["y"]]), sorted([first["N"], first["n"]]))
    batch = radiographs(SIZES)
    (reply,) = model.ask(batch, queries("recognise", [1], ["Is there a nodule?"]))
    _, inputs = shown(model, batch.radiographs[1], "Is there a nodule?")
    with torch.no_grad():
        logits = model.network(**inputs).logits[0, -1].double()
    assert reply.yes_no[0] == pytest.approx(logits[model._yes_no[0]].tolist(), abs=1e-5)
    assert reply.yes_no[1] == pytest.approx(logits[model._yes_no[1]].tolist(), abs=1e-5)
    share = logits.softmax(0)[[*model._yes_no[0], *model._yes_no[1]]].sum().item()
    assert reply.mass == pytest.approx(share, abs=1e-6) and 0 < share < 1
    assert model.provenance()["yes_no_tokens"] == [*map(list, model._yes_no)]


def test_the_confidence_of_the_best_beam(folder):
    """Against the product of the probabilities of its tokens, one after the other."""
    model = local("florence2", folder, "agkd")
    # Of tokens without preference the search takes one after another; so the end does not come at once.
    model.network.lm_head.weight.data[model.processor.tokenizer.eos_token_id] -= 1
    batch = radiographs(SIZES)
    (reply,) = model.ask(batch, queries(rows=[0], texts=["<CAPTION_TO_PHRASE_GROUNDING>nodule"]))
    _, inputs = shown(model, batch.radiographs[0], "<CAPTION_TO_PHRASE_GROUNDING>nodule")
    output = model.network.generate(**inputs)
    with torch.no_grad():
        logits = model.network(**inputs, decoder_input_ids=output[:, :-1]).logits[0].double()
    steps = logits.log_softmax(1).gather(1, output[0, 1:, None])[:, 0]
    assert reply.confidence == pytest.approx(steps.mean().exp().item(), abs=1e-6)
    assert 0 < reply.confidence < 1 and reply.tokens_out == len(steps)
    answer = family_named("agkd").read("a<loc_1><loc_2><loc_30><loc_40>", "stop", model.convention, (512, 512))
    assert answer.confidence == (None,)


def test_nothing_of_the_checkpoint_moves_the_likeliest_token(folder, tmp_path):
    """Settings that sample or punish repeated tokens, as Qwen's files have them, are left out; the ends are kept."""
    shutil.copytree(folder("qwen2_5_vl"), tmp_path / "m")
    path = tmp_path / "m" / "generation_config.json"
    stored = json.loads(path.read_text())
    ends = [stored["eos_token_id"], 2]
    moved = {"do_sample": True, "temperature": 0.1, "top_k": 1, "repetition_penalty": 1.5, "eos_token_id": ends}
    path.write_text(json.dumps(stored | moved))
    other = Local("qwen25vl", str(tmp_path / "m"), max_tokens=10)
    plain = local("qwen2_5_vl", folder)
    assert other._ends == frozenset(ends) and "repetition_penalty" not in other._settings
    texts = [[reply.text for reply in model.ask(radiographs(SIZES), queries())] for model in (plain, other)]
    assert texts[0] == texts[1]


def up(tensors):
    return next(name for name in tensors if name.endswith("0.mlp.up_proj.weight") and "visual" not in name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: spoil(m, "config.json", model_type="maira2", auto_map={"AutoModel": "x.Y"}), "never run here"),
        (lambda m: spoil(m, "config.json", model_type="gemma3"), "of type 'gemma3', but qwen25vl is qwen2_5_vl"),
        (lambda m: (m / "config.json").unlink(), "no config.json"),
        (lambda m: (m / "config.json").write_text("["), "no config.json of qwen25vl"),
        (lambda m: (m / "model.safetensors").unlink(), "cannot be loaded"),
        (lambda m: (m / "model.safetensors").write_bytes(b"x" * 99), "cannot be loaded"),
        (lambda m: spoil_weights(m, lambda t: t.pop(up(t))), "1 missing"),
        (lambda m: spoil_weights(m, lambda t: t.update(odd=torch.zeros(2))), "1 unexpected (odd"),
        (lambda m: spoil_weights(m, lambda t: t.update({up(t): torch.zeros(2, 2)})), "1 mismatched"),
        (lambda m: (m / "chat_template.jinja").unlink(), "no chat template"),
        (lambda m: (m / "tokenizer.json").unlink(), "processor"),
    ],
)
def test_a_checkpoint_that_cannot_be_used(change, said, folder, tmp_path):
    check_refusal(partial(Local, "qwen25vl"), folder("qwen2_5_vl"), change, said, tmp_path)


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (Maira2, {}, "hf download microsoft/maira-2"),
        (CheXagent2, {}, "hf download StanfordAIMI/CheXagent-2-3b"),
        (Local, {"family": "maira2"}, "never run here"),
        (Local, {"family": "qwen25vl"}, "give --model.checkpoint"),
        (Local, {"family": "qwen25vl", "checkpoint": "/nowhere/at/all"}, "does not exist"),
        (Local, {"family": "qwen25vl", "checkpoint": "nobody/nothing"}, "hf download nobody/nothing"),
        (Local, {"family": "medgemma", "recognise": True}, "cannot be asked whether"),
        (Local, {"family": "qwen25vl", "together": 0}, "at least 1"),
    ],
)
def test_options_that_cannot_be_used(make, options, said):
    with pytest.raises(UserError, match=said):
        make(**options)


def test_an_image_that_the_processor_refuses_is_named(folder):
    with pytest.raises(UserError, match="image 0 of 3 x 900 pixels"):
        local("qwen2_5_vl", folder).ask(radiographs([(900, 3)]), queries(rows=[0]))
