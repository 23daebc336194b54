from __future__ import annotations

import shutil

import numpy as np
import pytest
import tiny_maira2
import torch
from local_models import check_refusal, radiographs, spoil, spoil_weights
from PIL import Image

from xbench.models import Maira2
from xbench.predictions.asking import Question

SIZES = [(80, 64), (70, 120), (37, 200)]
QUESTIONS = ["Look <image> where?", "At<image> Where in this chest X-ray is the nodule?", "Find it."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_maira2.build(tmp_path_factory.mktemp("maira2") / "model")


def loaded(folder, **options):
    model = Maira2(str(folder), **({"max_tokens": 8} | options))
    model.findings = ["Nodule"]
    return model


def queries(rows=(0, 1, 2)):
    return [Question("locate", row, 0, "Nodule", text) for row in rows for text in QUESTIONS]


def seen(radiograph):
    gray = radiograph.numpy().astype(np.float64)
    gray = np.trunc((gray - gray.min()) / (gray.max() - gray.min()) * 255 + 1e-4).astype(np.uint8)
    side, (height, width) = tiny_maira2.SIDE, gray.shape
    shorter = min(height, width)
    size = (side * width // shorter, side * height // shorter)
    picture = np.array(Image.fromarray(np.stack([gray] * 3, 2)).resize(size, Image.Resampling.BICUBIC)) / 255
    top, left = ((have - side) // 2 for have in picture.shape[:2])
    square = picture[top : top + side, left : left + side]
    return torch.from_numpy((square - tiny_maira2.MEAN) / tiny_maira2.STD).float().permute(2, 0, 1)[None]


def test_the_network_is_its_parts(folder):
    """Greedily, token by token and without a cache; one query at a time."""
    model, batch = loaded(folder), radiographs(SIZES, 10, 200)
    core, answers = tiny_maira2.tokenizer(), set()
    for query, reply in zip(queries(), model.ask(batch, queries()), strict=True):
        before, found, after = query.text.partition("<image>")
        shown = f"{before}<image>{after}" if found else f"<image>{query.text}"
        prompt = f"You look at films. USER: {shown} ASSISTANT:"
        tokens = core.encode(prompt.replace("<image>", "<image>" * 9)).ids
        assert tokens.count(1) == 1 and tokens[0] == 1 and tokens.count(tiny_maira2.IMAGE) == 9
        begin = len(tokens)
        while len(tokens) < begin + 8 and tokens[begin:][-1:] != [2]:
            logits = tiny_maira2.read_words(torch.tensor(tokens), seen(batch.radiographs[query.row]))
            tokens.append(int(logits[-1].argmax()))
        assert reply.tokens_in == begin
        assert reply.text == model.processor.tokenizer.decode(tokens[begin:], clean_up_tokenization_spaces=False)
        assert reply.finish == ("stop" if tokens[-1] == 2 else "length")
        answers.add(reply.text)
    assert len(answers) > 4  # it looks at image and question


@pytest.mark.parametrize("begins", ["", "<s>", "<s> "])
def test_a_text_begins_once(folder, tmp_path, begins):
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "chat_template.json").unlink()
    (tmp_path / "m" / "chat_template.jinja").write_text(begins + tiny_maira2.TEMPLATE)
    model = loaded(tmp_path / "m")
    inputs = model._inputs(model._picture(radiographs(SIZES, 10, 200).radiographs[0].numpy()), queries([0]))[1]
    for tokens, mask in zip(inputs["input_ids"].tolist(), inputs["attention_mask"].tolist(), strict=True):
        real = tokens[mask.index(1) :]
        assert real[0] == 1 and real.count(1) == 1


def test_the_question_is_that_of_the_authors(folder):
    model = Maira2(str(folder))
    words = model.words("Pleural Effusion")["locate"]
    (text,) = model._prompts([model._turns(Question("locate", 0, 0, "Pleural Effusion", words), None)])
    assert text == (
        "You look at films. USER: Given the current frontal image<image> Repeat the following finding as a grounded "
        "phrase with bounding boxes indicating all locations where it can be seen in the given chest X-ray image. "
        "Finding: Pleural effusion ASSISTANT:"
    )


@pytest.mark.parametrize("size", [(37, 200), (600, 90), (51, 42)])
def test_the_square_in_the_middle_is_shown(folder, size):
    draw = np.random.default_rng(1)
    radiograph = torch.from_numpy(draw.integers(10, 200, size, dtype=np.uint8))
    model = loaded(folder)
    assert torch.allclose(model.processor.pixels(model._picture(radiograph.numpy())), seen(radiograph), atol=1e-6)
    constant = model.processor.pixels(Image.fromarray(np.full(size, 77, np.uint8)))
    assert torch.allclose(constant, torch.full_like(constant, -tiny_maira2.MEAN / tiny_maira2.STD))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: (m / "config.json").unlink(), "no config.json of MAIRA-2"),
        (lambda m: spoil(m, "config.json", model_type="llava"), "'model_type': 'llava'"),
        (lambda m: spoil(m, "config.json", projector_n_layers=None), "projector_n_layers"),
        (lambda m: spoil(m, "config.json", projector_hidden_act="relu"), "relu"),
        (lambda m: spoil(m, "config.json", image_token_index=9999), "no token 9999"),
        (
            lambda m: spoil(
                m, "config.json", vision_config=tiny_maira2.tower_config(out_features=["stage1"], out_indices=[1])
            ),
            "stage1",
        ),
        (lambda m: spoil(m, "config.json", projector_n_layers=3), "unexpected"),
        (lambda m: spoil_weights(m, lambda t: t.pop("vision_tower.layernorm.weight")), "1 missing"),
        (lambda m: (m / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda m: (m / "preprocessor_config.json").unlink(), "preprocessor_config.json"),
        (lambda m: spoil(m, "preprocessor_config.json", size={"shortest_edge": 50}), "another image size"),
        (lambda m: (m / "chat_template.json").unlink(), "no chat template"),
    ],
)
def test_a_checkpoint_that_cannot_be_used(change, said, folder, tmp_path):
    check_refusal(loaded, folder, change, said, tmp_path)
