from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toys import Squares

from xbench.findings.questions import Questions
from xbench.models import AnsweringModel, AnswerOracle
from xbench.predictions.asking import Reply
from xbench.runtime.errors import UserError
from xbench.types import Batch


class Parrot(AnsweringModel):
    replies: tuple[Reply, ...] = (Reply('{"boxes": [{"box": [100, 200, 300, 400]}]}', "stop"),)

    def ask(self, batch, queries):
        self.asked = list(queries)
        return [self.replies[place % len(self.replies)] for place in range(len(queries))]


def asked(model: AnsweringModel, images: int = 4, widths=(64, 200)):
    data = Squares(num_workers=0, images=images, widths=widths)
    data.setup("test")
    model.findings = data.findings
    model._words = {finding: model.words(finding) for finding in data.findings}
    samples = data.samples(model.preprocessing)
    batch = Batch.collate([samples[place] for place in range(images)])
    return batch, model.score(batch)


def test_radiographs_reach_it_whole_and_in_their_own_sizes():
    batch, _ = asked(Parrot("endpoint"))
    assert [tuple(one.shape) for one in batch.radiographs] == [(80, 64), (80, 200), (80, 64), (80, 200)]
    assert len(batch) == 4 and batch.truth.views == [(0, 0, 1, 1)] * 4
    assert all(one.dtype == torch.uint8 and 0 <= one.min() < one.max() <= 255 for one in batch.radiographs)
    some = batch.only([1, 2]).to("cpu")
    assert len(some) == 2 and [one.shape[1] for one in some.radiographs] == [200, 64]
    assert len(batch.only([])) == 0


# Toy image i has a square if i is odd, and a hole if 3 divides it; a ghost is never known of.
SCORED = [(0, 1), (1, 0), (3, 0), (3, 1)]
NEGATIVE = [(0, 0), (1, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize("negatives", [False, True])
@pytest.mark.parametrize("recognise", [False, True])
def test_the_pairs_that_are_asked(negatives, recognise):
    model = Parrot("endpoint", ask_negatives=negatives, recognise=recognise)
    _, output = asked(model)
    pairs = {kind: [divmod(q.pair, 3) for q in model.asked if q.kind == kind] for kind in ("locate", "recognise")}
    assert pairs["locate"] == sorted(SCORED + NEGATIVE * negatives)
    assert pairs["recognise"] == (sorted(SCORED + NEGATIVE) if recognise else [])
    assert [query for query, _ in output.shown.replies] == model.asked
    there = {divmod(pair, 3) for pair, answer in enumerate(output.shown.answers) if answer is not None}
    assert there == {*pairs["locate"]}
    assert output.shown.answers[10].boxes == ((0.1, 0.2, 0.3, 0.4),)
    assert (output.probabilities is not None) == (output.logits is not None) == recognise


def test_nothing_is_asked_of_images_without_anything_to_ask():
    model = Parrot("endpoint")
    model.ask = None
    data = Squares(num_workers=0, images=3)
    data.setup("test")
    model.findings, model._words = data.findings, {}
    output = model.score(Batch.collate([data.samples(model.preprocessing)[2]]))
    assert output.shown.answers == [None] * 3 and output.shown.replies == []


def test_recognition_from_tokens_and_from_words():
    model = Parrot("endpoint", recognise=True)
    model.replies = (Reply("", yes_no=([2.0], [0.0])), Reply("No (90 %)."), Reply("Yes"), Reply("who knows"))
    _, output = asked(model)
    flat = [q.pair for q in model.asked if q.kind == "recognise"]
    found = [output.probabilities[pair].item() for pair in flat]
    assert found[:3] == pytest.approx([1 / (1 + math.exp(-2)), 0.1, 1])
    assert math.isnan(found[3]) and output.logits[flat[0]] == 2
    assert math.isnan(output.logits[flat[2]]) and math.isnan(output.probabilities[2])


def test_a_confidence_of_the_whole_answer_and_a_frame_of_one_image():
    text = '[{"bbox_2d": [64, 0, 128, 80], "confidence": 0.5}, {"bbox_2d": [0, 0, 64, 80]}]'
    model = Parrot("qwen25vl", prompts="endpoint")
    model.replies = (Reply(text, frame="pixels_resized@128x160", confidence=0.25),)
    _, output = asked(model)
    answer = output.shown.answers[3]
    assert answer.boxes == ((0.5, 0, 1, 0.5), (0, 0, 0.5, 0.5)) and answer.confidence == (0.5, 0.25)


@pytest.mark.parametrize("family", ["maira2", "agkd", "qwen25vl", "medgemma", "radvlm"])
def test_the_oracle_of_a_family_answers_the_truth(family):
    batch, output = asked(AnswerOracle(family, recognise=True), images=6, widths=(64, 160))
    for pair in np.flatnonzero(batch.truth.scored).tolist():
        (true,), one_by_one = batch.truth.boxes(pair)
        assert not one_by_one
        reached = output.shown.answers[pair]
        if family == "maira2" and not reached.boxes:
            continue  # beside the center square
        # A step of the coarsest frame, on the radiograph's longer side; MAIRA-2 sees 80 of 160 pixels.
        (box,) = reached.boxes
        for one, other in zip(box, true, strict=True):
            assert abs(one - other) < 0.02 or (family == "maira2" and 0.24 < one < 0.76)
    known = batch.truth.labels >= 0
    assert (output.probabilities.numpy()[known] == (batch.truth.labels == 1)[known]).all()


def test_too_few_replies_are_an_error():
    model = Parrot("endpoint")
    model.ask = lambda batch, queries: [Reply("")]
    with pytest.raises(UserError, match="1 replies to 4 queries"):
        asked(model)


def test_what_cannot_be_recognised_is_not_asked():
    class Silent(Parrot):
        recognizes = False

    with pytest.raises(UserError, match="recognise"):
        Silent("endpoint", recognise=True)


def test_radvlm_is_asked_about_findings_as_it_was_trained():
    """Its training names findings as the dataset does, in lower case."""
    questions = Questions.of("radvlm")
    for finding, name in {"Pleural Effusion": "pleural effusion", "ILD": "ild", "Nodule/Mass": "nodule/mass"}.items():
        assert questions.text("locate", finding) == f"Where is the {name} located in this Chest X-ray?"
    assert (
        questions.text("recognise", "ILD")
        == "Is there interstitial lung disease in this chest X-ray? Answer yes or no."
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source: me\nlocate: Where is it?", "{finding}, {name} or {phrase}"),
        ("source: me\nlocate: Where is {finding} in {place}?", "has {place}"),
        ("source: me\nlocate: Where is {finding?", "cannot be used"),
        ("source: me\nlocate: '{finding}'\nwhere: Where is it?", "where lacks {finding}"),
        ("locate: Where is {finding}?", "needs the keys source and locate"),
        ("source: me\nlocate: 3", "must be a text"),
        ("source: me\nlocate: '{finding}'\nnames: {Nodule: [a]}", "mapping of texts"),
        ("- a", "needs the keys"),
        ("a: [", "cannot be used"),
    ],
)
def test_wrong_questions_are_refused(tmp_path, text, said):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=said.replace("{", r"\{")):
        Parrot("endpoint", prompts=str(tmp_path / "mine.yaml"))


def test_own_questions_names_and_definitions(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "source: me\nlocate: '{phrase} means {definition}'\nsystem: Be brief.\n"
        "names: {Hole: Dark spot}\ndefinitions: {Hole: black}\nrecognise: Is there {name}, a {finding}?\n"
    )
    questions = Questions.of(str(file))
    assert questions.text("recognise", "Hole") == "Is there dark spot, a Dark spot?"
    assert questions.text("recognise", "Square ABC") == "Is there square abc, a square ABC?"
    assert questions.text("locate", "Hole") == "Dark spot means black" and questions.system == "Be brief."
    with pytest.raises(UserError, match=r"mine\.yaml has no definition of Square"):
        questions.text("locate", "Square")
    assert questions.sha256 != Questions.of("endpoint").sha256
    with pytest.raises(UserError, match="neither a file nor a family"):
        Questions.of("nowhere.yaml")


def test_check_finds_what_there_are_no_words_for(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("source: me\nlocate: '{phrase}: {definition}'\ndefinitions: {Hole: black}\n")
    (problem,) = Parrot("endpoint", prompts=str(file)).problems(("Hole", "Square"))
    assert "no definition of Square" in problem and AnswerOracle().problems(("Hole",)) == []


def test_predict_is_refused(command):
    refused = command("predict", "--config", "answer_oracle_phantom", "--data.limit", "2", "--data.num_workers", "0")
    assert refused.status == 2 and "draws no maps" in refused.errors
