from __future__ import annotations

import json
import os
from fractions import Fraction
from itertools import combinations, permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.geometry.location import ZONE_SETS, ZONES, Location, locate
from xbench.geometry.shapes import Shape
from xbench.predictions.words import Stated
from xbench.runs.protocols import _different, _tables, read_protocol_pairs, write_protocol
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import PairTruth, PairView, groups_of

WORDS = PROTOCOLS["words"]
CHEXDET = os.environ.get("XBENCH_CHEXDET")


def said(text="", status="asserted"):
    names = {*text.split()}
    return Stated(status, frozenset(names - {*ZONES}), frozenset(names & {*ZONES}))


def region(text):
    zones = said(text).zones
    return Location(
        said(text).sides, zones, zones, frozenset(of for of in ZONE_SETS if 2 * len(of & zones) >= len(zones))
    )


def table(*pairs, findings=1):
    rows = []
    for place, (shown, true) in enumerate(pairs):
        view = shown if isinstance(shown, PairView) else PairView(words=shown)
        truth = PairTruth(true) if isinstance(true, int) else PairTruth(1, location=true)
        truth = true if isinstance(true, PairTruth) else truth
        about = {"index": place, "image_id": f"{place}", "column": place % findings, "label": truth.label}
        rows.append((about | {"probability": np.nan, "chance": 0.0}, view, truth))
    return _tables(["words"], rows)["words"]


def numbers(*pairs, tuned=None):
    content = WORDS.results(table(*pairs), ["Effusion"], True, tuned and {"Effusion": tuned})
    return {name: number["value"] for name, number in content["numbers"].items()}


def values(text):
    words = text.split()
    return {name: None if of == "-" else float(Fraction(of)) for name, of in zip(words[::2], words[1::2], strict=True)}


def test_the_example_by_hand():
    right, both = region("right lower"), region("left right lower")
    texts = [said("right lower"), said("left"), said(), said("left right"), said("left")]
    pairs = zip(texts, [right, right, right, both, 0], strict=True)
    assert numbers(*pairs, tuned={"sides": "right", "zones": "lower"}) == values("""
        mention_precision 4/5 mention_recall 1 mention_f1 8/9 mention_f1_generous 8/9 denied 0 unmentioned 0
        false_mention 1 hallucinated_place 1 side_unclear 0 place_joint 1/4
        side_coverage 3/4 side_accuracy 2/3 side_joint 1/2 side_joint_mentioned 1/2 side_opposite 1/3 side_partial 0
        side_chance 1/3 side_excess 1/2 side_prior 2/3 side_gain 0
        zone_coverage 1/4 zone_accuracy 1 zone_joint 1/4 zone_joint_mentioned 1/4 zone_opposite 0 zone_wrong 0
        zone_partial 0 zone_chance 1 zone_excess - zone_prior 1 zone_gain 0
    """)


def test_statuses_decide_mentions():
    right, nowhere = region("right lower"), locate([])
    texts = [said("right", "uncertain"), said("right", "negated"), *[said(status="")] * 2, said()]
    texts += [said("left", "uncertain"), said(status="negated"), said(), said("right")]
    found = numbers(*zip(texts, [right] * 4 + [nowhere, 0, 0, 0, -1], strict=True))
    # Of a region without area nothing but its presence is known; what is denied is mentioned, and unstated.
    expected = values("""
        mention_precision 1/2 mention_recall 1/5 mention_f1 2/7 mention_f1_generous 4/9 denied 1/5 unmentioned 2/5
        false_mention 1/3 hallucinated_place 0 side_coverage 1/4 side_joint 1/4 side_joint_mentioned 1/2
        zone_joint 0 zone_accuracy - zone_chance - zone_excess - zone_gain - side_prior - side_gain -
    """)
    assert expected.items() <= found.items()


def test_what_has_no_clear_side_no_side_at_all_or_no_words():
    found = numbers((said("right lower"), region("lower")), (said("left lower"), region("left lower")))
    assert (found["side_unclear"], found["side_joint"], found["zone_joint"], found["place_joint"]) == (0.5, 1, 1, 1)
    unsided = numbers((said("left"), PairTruth(1, location=region("left lower"), sided=False)), (said(), 0))
    assert unsided["mention_recall"] == unsided["false_mention"] == 1
    assert {value for name, value in unsided.items() if name.startswith(("side", "zone", "place"))} == {None}
    pairs = [(said("left"), region("left lower")), (None, region("right lower"))]
    lacking = WORDS.results(table(*pairs, findings=2), ["Effusion", "Edema"], True, None)["numbers"]["side_joint"]
    assert lacking["value"] == 1 and lacking["per_finding"] == {"Effusion": 1, "Edema": None}


SAID = [said(" ".join(of)) for count in range(3) for of in combinations(("left", "right", *ZONES), count)]
SAID += [said("midline"), said("left right upper middle lower"), said("right", "negated")]
TRUE = [region(f"{sides} {' '.join(zones)}") for sides in ("", "left", "right", "left right") for zones in ZONE_SETS]


def slow(stated, true):
    sides, zones = (stated.sides, stated.zones) if stated.status == "asserted" else (set(), set())
    side = "correct" if sides == true.sides else "partial" if sides & true.sides else "opposite"
    far = [*zones, *true.zones_allowed] in (["upper", "lower"], ["lower", "upper"])
    zone = "partial" if zones & true.zones_allowed else "opposite" if far else "wrong"
    zone = "correct" if zones <= true.zones_allowed and zones in true.enough else zone
    return "" if not true.sides else side if sides else "unstated", zone if zones else "unstated"


def test_outcomes_are_those_of_sets_and_texts_survive_the_file(tmp_path):
    pairs = [*product(SAID, TRUE)]
    kept = table(*pairs, (said("left"), 0))
    content = WORDS.results(kept, ["Effusion"], True, {"Effusion": {"sides": "left", "zones": "upper middle"}})
    assert [*zip(kept["side"], kept["zone"], strict=True)] == [*(slow(*pair) for pair in pairs), ("", "")]
    for place, kind in enumerate(("side", "zone")):
        stated = [of for of in (slow(*pair)[place] for pair in pairs) if of not in ("", "unstated")]
        for name, counted in {"partial": ["partial"], "opposite": ["opposite"], "wrong": ["opposite", "wrong"]}.items():
            share = sum(of in counted for of in stated) / len(stated)
            assert content["numbers"].get(f"{kind}_{name}", {"value": share})["value"] == share
    write_protocol(tmp_path, "words", content, kept)
    again = read_protocol_pairs(tmp_path, "words")
    assert {key: _different(again[key], kept[key]) for key in kept} == dict.fromkeys(kept, 0)
    assert WORDS.results(again, ["Effusion"], True, content["tuned"]) == json.loads(json.dumps(content))
    expected = [np.nan if not side else float(side == "correct") for side in kept["side"]]
    np.testing.assert_equal(WORDS.pair_values(groups_of(again, ["Effusion"])[0]), expected)


@given(st.lists(st.tuples(st.sampled_from(SAID), st.sampled_from(TRUE)), min_size=1, max_size=5))
def test_chance_is_the_mean_over_all_permutations(pairs):
    found = numbers(*pairs)
    for place, kind in enumerate(("side", "zone")):
        scored = [pair for pair in pairs if slow(*pair)[place]]
        texts, truths = [text for text, _ in scored], [true for _, true in scored]
        stated = [text for text in texts if slow(text, TRUE[-1])[place] != "unstated"]
        loop = [slow(text, true)[place] == "correct" for text in stated for true in truths]
        assert found[f"{kind}_chance"] == (np.mean(loop) if loop else None)
        orders = permutations(truths)
        shuffled = [sum(slow(*pair)[place] == "correct" for pair in zip(texts, of, strict=True)) for of in orders]
        if stated:
            assert found[f"{kind}_accuracy"] == shuffled[0] / len(stated)
            assert found[f"{kind}_chance"] == pytest.approx(np.mean(shuffled) / len(stated))


def test_the_prior_is_the_commonest_place_of_another_run():
    elsewhere = ["left upper", "right upper", "left right upper middle", "right middle lower", "left lower"]
    pairs = [*((said(status=""), region(of)) for of in elsewhere), (said(), 0)]
    tuned = WORDS.tune(groups_of(table(*pairs), ["Effusion"]))
    # Right and left are equally common, and so are the upper zone and others.
    assert tuned == {"Effusion": {"sides": "right", "zones": "upper"}}
    pairs = [(said("left upper"), region("right upper")), (said("left"), region("left right lower")), (said(), 0)]
    found = numbers(*pairs, tuned=tuned["Effusion"])
    assert (found["side_prior"], found["side_gain"], found["zone_prior"]) == (0.5, -0.5, 1)
    assert WORDS.tune(groups_of(table((said(), 0)), ["Effusion"])) == {"Effusion": {"sides": "", "zones": ""}}


def test_maps_boxes_and_the_own_name_stand_beside_the_words():
    left, maps = region("left lower"), np.ones((1, 1), np.float32)
    views = [PairView(words=said("left"), own=said(status=""), place=said("left upper"), cells=maps)]
    views += [PairView(words=said("left"), place=said("right lower"), cells=maps)]
    found = WORDS.results(table(*((view, left) for view in views)), ["Effusion"], True, None)["numbers"]
    assert (found["side_joint"]["value"], found["side_joint"]["strict"], found["mention_f1"]["strict"]) == (
        1,
        0.5,
        2 / 3,
    )
    assert {found[name]["value"] for name in ("map_side_joint", "map_zone_joint", "words_maps_agree")} == {0.5}
    assert all(number["flaw"].endswith(".") and {*number["beside"]} <= {*found} for number in found.values())
    assert found["map_zone_accuracy"]["beside"] == ["map_zone_coverage", "map_zone_prior", "map_zone_chance"]
    assert "coverage" in found["map_side_accuracy"]["flaw"] and "shuffled" in found["zone_excess"]["flaw"]
    assert numbers((PairView(words=said("left"), place=said("left")), left))["words_boxes_agree"] == 1
    # Without texts, places take the place of words, and of mentions nothing is known.
    alone = numbers((PairView(place=said("left lower"), cells=maps), left), (PairView(place=said("left")), 0))
    assert alone["side_joint"] == alone["place_joint"] == 1 and alone["mention_f1"] is alone["false_mention"] is None


def chexdet(split, finding):
    images = json.loads((Path(CHEXDET) / f"ChestX_Det_{split}.json").read_text(encoding="utf-8"))
    drawn = [[box for box, of in zip(it["boxes"], it["syms"], strict=True) if of == finding] for it in images]
    return [locate([Shape("box", (1024, 1024), np.array(box, float)) for box in boxes]) for boxes in drawn if boxes]


@pytest.mark.skipif(not CHEXDET, reason="XBENCH_CHEXDET names no folder with both annotation files of ChestX-Det")
@pytest.mark.parametrize(
    ("finding", "pairs", "expected"),
    [
        ("Atelectasis", 48, "0.38 0.56 0.77 0.38"),
        ("Calcification", 38, "0.50 0.34 0.76 0.39"),
        ("Consolidation", 293, "0.49 0.00 0.77 0.45"),
        ("Diffuse Nodule", 36, "0.75 0.00 0.89 0.75"),
        ("Effusion", 256, "0.46 0.00 0.89 0.42"),
        ("Emphysema", 39, "0.69 0.00 0.90 0.67"),
        ("Fibrosis", 82, "0.41 0.00 0.66 0.28"),
        ("Fracture", 76, "0.51 0.29 0.78 0.36"),
        ("Mass", 33, "0.58 0.39 0.67 0.36"),
        ("Nodule", 79, "0.28 0.45 0.71 0.21"),
        ("Pleural Thickening", 87, "0.55 0.33 0.67 0.34"),
        ("Pneumothorax", 35, "0.69 0.29 0.77 0.54"),
    ],
)
def test_the_prior_of_chexdet(finding, pairs, expected):
    prior = WORDS.tune(groups_of(table(*((said(), of) for of in chexdet("train", finding))), [finding]))[finding]
    truths = chexdet("test", finding)
    found = numbers(*((said(" ".join(prior.values())), of) for of in truths))
    names = ("side_accuracy", "side_opposite", "zone_accuracy", "place_joint")
    assert (len(truths), " ".join(f"{found[name]:.2f}" for name in names)) == (pairs, expected), prior
