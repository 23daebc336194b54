from __future__ import annotations

import json
import re
from itertools import product

import numpy as np
import pyarrow.parquet as pq
import pytest

from xbench.data.datasets.phantom import PhantomCXR
from xbench.findings.names import TABLE
from xbench.geometry.location import ZONE_SETS
from xbench.geometry.shapes import Shape
from xbench.models.baselines import Words, sentence
from xbench.predictions.asking import Question
from xbench.predictions.words import Stated, Vocabulary
from xbench.types import Batch

VOCABULARY, NONE = Vocabulary.of(), frozenset()
ONES = ["mention_precision", "mention_recall", "mention_f1", "side_joint", "zone_joint", "place_joint"]
SIDES = [NONE, *map(frozenset, (["left"], ["right"], ["left", "right"]))]


@pytest.mark.parametrize("finding", [one.name for one in TABLE])
def test_every_sentence_is_read_back_if_its_finding_is_read(finding):
    read = {finding} & (VOCABULARY.findings | VOCABULARY.accepts.keys())
    for asserted, place, asked in product((True, False), [*product(SIDES, ZONE_SETS), (NONE, NONE)], (None, finding)):
        stated = VOCABULARY.stated(VOCABULARY.read(sentence(finding, asserted, *place), asked), finding)
        places = place if read and asserted and finding not in VOCABULARY.unsided else (NONE, NONE)
        assert stated == Stated(("asserted" if asserted else "negated") if read else "", *places)


def test_a_mirrored_film_turns_right_into_left():
    model, data = Words("oracle"), PhantomCXR(images=12)
    data.setup("test")
    batch = Batch.collate([*map(data.samples(model.preprocessing).__getitem__, range(12))])
    questions = [Question("report", row, -1, "") for row in range(12)]
    texts = [reply.text for reply in model.ask(batch, questions)]
    batch.truth.shapes = [tuple(Shape.from_mask(one.draw()[:, ::-1]) for one in of) for of in batch.truth.shapes]
    mirrored, exchanged = [reply.text for reply in model.ask(batch, questions)], {"left": "right", "right": "left"}
    assert [re.sub("left|right", lambda side: exchanged[side[0]], text) for text in texts] == mirrored != texts


def scored(command, says, *options, data="phantom"):
    words = ("--data.limit", "64", "--data.num_workers", "0", "--trainer.logger", "false", *options)
    run = command("test", "--config", f"words_{says}_{data}", *words, status=0)
    pairs = pq.read_table(run.folder / "protocols/words.parquet").to_pydict()
    return run.folder, *numbers(run.folder), {name: np.array(column) for name, column in pairs.items()}


def numbers(folder):
    content = json.loads((folder / "protocols/words.json").read_text())["numbers"].items()
    return tuple({name: number[key] for name, number in content} for key in ("value", "per_finding"))


def by_chance(each, pairs, kind):  # within three standard errors
    counts = np.bincount(pairs["column"], pairs[kind] != "", 8)
    accuracy, chance = (np.array([*each[f"{kind}_{name}"].values()], float) for name in ("accuracy", "chance"))
    return np.nansum(counts * (accuracy - chance)) ** 2 <= 9 * np.nansum(counts * chance * (1 - chance))


@pytest.mark.parametrize("ask", [["--model.ask", "report"], ["--model.ask", "where"]])
def test_ceiling_and_floors(command, ask):
    _, values, each, pairs = scored(command, "oracle", *ask)
    assert {values[name] for name in ONES} == {1} and values["false_mention"] == 0
    assert not by_chance(each, pairs, "side") and not by_chance(each, pairs, "zone")
    _, values, _, pairs = scored(command, "swapped", *ask)
    outcomes = {("left", "opposite"), ("right", "opposite"), ("left right", "correct"), ("", "")}
    assert {*zip(pairs["true_sides"], pairs["side"], strict=True)} == outcomes and values["zone_joint"] == 1
    _, _, each, pairs = scored(command, "shuffled", *ask)
    assert by_chance(each, pairs, "side") and by_chance(each, pairs, "zone")
    _, values, _, pairs = scored(command, "all", *ask)
    assert [values[name] for name in ("mention_recall", "false_mention", "side_opposite")] == [1, 1, 0]
    assert np.array_equal(pairs["side"] == "correct", pairs["true_sides"] == "left right")
    _, values, *_ = scored(command, "silent", *ask)
    for kind in ("side", "zone"):
        assert [values[f"{kind}_{name}"] for name in ("coverage", "accuracy", "joint")] == [0, None, 0]


def test_the_prior_states_what_the_protocol_learns(command):
    (elsewhere, *_), (oracle, *_) = scored(command, "oracle", "--data.seed", "7"), scored(command, "oracle")
    _, values, each, _ = scored(command, "prior", "--model.elsewhere", elsewhere)
    few = scored(command, "silent", "--data.seed", "7", "--data.images", "2")[0]
    lacking = command("test", "--config", "words_prior_phantom", "--model.elsewhere", few)
    assert lacking.status == 2 and "has no region of" in lacking.errors
    assert command("rescore", oracle, "--protocol", "words", "--tune", elsewhere).status == 0
    for kind in ("side", "zone"):
        assert values[f"{kind}_coverage"] == 1 > values[f"{kind}_accuracy"]
        assert each[f"{kind}_accuracy"] == numbers(oracle)[1][f"{kind}_prior"]


def test_the_oracle_on_findings_that_answer_for_others_and_on_phrases(command, downloads):
    _, values, *_ = scored(command, "oracle", "--data.root", downloads("chexdet").root, data="chexdet")
    assert {values[name] for name in ONES} == {1} and values["false_mention"] == 0
    assert command("test", "--config", "words_oracle_mscxr", "--data.root", downloads("mscxr").root).status == 0
