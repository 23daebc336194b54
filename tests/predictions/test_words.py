from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.cli import main
from xbench.predictions import sentences, words
from xbench.predictions.words import Stated, Vocabulary
from xbench.runtime.errors import UserError

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("words_cases", "words_dev", "words_held", "words_edges")
CASES = {name: [*map(json.loads, (FIXTURES / f"{name}.jsonl").open())] for name in NAMES}
FILE = Path(words.__file__).with_name("words.yaml")
VOCABULARY = Vocabulary.of()
PIECES = json.loads((FIXTURES / "words_pieces.json").read_text())
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


def listed(reading):
    return sorted((one.finding, one.status, one.sides, one.zones) for one in reading.mentions)


def read(text, asked=None):
    return listed(VOCABULARY.read(text, asked))


@pytest.mark.parametrize(("name", "wrong"), [*((name, 0.03) for name in NAMES[:-1]), ("words_edges", 0)])
def test_texts_are_read_as_people_read_them(name, wrong):
    strange = defaultdict(list)
    for case in CASES[name]:
        reading = VOCABULARY.read(case["text"], case["asked"], case.get("finish"))
        ours = [(one.finding, one.status, [*one.sides], [*one.zones]) for one in reading.mentions]
        theirs = [(one["finding"], one["status"], one["sides"], one["zones"]) for one in case["mentions"]]
        if reading.status != case["status"]:
            strange["text status"].append(case["id"])
        for length, field in enumerate(("findings", "statuses", "sides", "zones"), start=1):
            if sorted(one[:length] for one in ours) != sorted(one[:length] for one in theirs):
                strange[field].append(case["id"])
    together = {one for of in strange.values() for one in of}
    assert len(CASES[name]) >= 25 and len(together) <= wrong * len(CASES[name]), strange


def test_a_line_of_20000_characters_without_a_full_stop_is_read():
    line = "There is no pneumothorax and a small right effusion is seen " * 340
    assert read(line) == [("Pleural Effusion", "asserted", ("right",), ()), ("Pneumothorax", "negated", (), ())]


def test_flags_say_how_a_mention_was_read():
    reading = VOCABULARY.read(
        "Mass on the left side of the image. Opacity in the lingula, likely peripheral atelectesis."
    )
    assert [(one.sides, one.flags) for one in reading.mentions] == [
        (("right",), ("viewer_frame",)),
        (("left",), ("implied_side",)),
        (("left",), ("corrected", "implied_side", "inherited", "peripheral")),
    ]
    assert reading.mentions[0].span == (0, 4)


@given(st.integers(1, 9), st.sampled_from(["drop", "add", "change", "exchange"]), st.sampled_from("aexz"))
def test_a_word_with_one_letter_wrong_is_corrected(place, edit, letter):
    right = "emphysema"
    behind = {"drop": right[place + 1 :], "add": letter + right[place:], "change": letter + right[place + 1 :]}
    behind["exchange"] = right[place : place + 2][::-1] + right[place + 2 :]
    wrong = right[:place] + behind[edit]
    (mention,) = VOCABULARY.read(f"Right {wrong}.").mentions
    assert (mention.finding, mention.sides) == ("Emphysema", ("right",))
    assert mention.flags == (("corrected",) if wrong != right else ())


def test_other_findings_answer_for_one_unless_strict():
    reading = VOCABULARY.read("Consolidation in the right base, possible left apical opacity. No pneumonia.")
    assert VOCABULARY.stated(reading, "Lung Opacity") == Stated(
        "asserted", frozenset({"left", "right"}), frozenset({"upper", "lower"})
    )
    assert VOCABULARY.stated(reading, "Lung Opacity", strict=True) == Stated(
        "uncertain", frozenset({"left"}), frozenset({"upper"})
    )
    assert VOCABULARY.stated(reading, "Pneumonia", strict=True) == Stated("negated", frozenset(), frozenset())
    assert VOCABULARY.stated(reading, "Mass") == Stated("", frozenset(), frozenset())


@given(st.one_of(st.text(max_size=300), TEXTS), st.sampled_from([None, "Nodule", "no finding"]))
def test_any_text_is_read(text, asked):
    reading = VOCABULARY.read(text, asked)
    assert reading == VOCABULARY.read(text, asked)
    assert len({(one.finding, one.status) for one in reading.mentions}) == len(reading.mentions)
    for one in reading.mentions:
        assert 0 <= one.span[0] < one.span[1] <= len(text) and one.finding in {*VOCABULARY.findings, asked}
        assert one.sides in ((), ("left",), ("right",), ("left", "right"), ("midline",))
        assert one.finding not in VOCABULARY.unsided or not one.sides + one.zones


@given(st.sampled_from([case for of in CASES.values() for case in of]), st.sampled_from([" ", "\t", " \n", "\r\n"]))
def test_blanks_and_line_ends_change_nothing(case, blanks):
    before = VOCABULARY.read(case["text"], case["asked"])
    for text in (case["text"] + blanks, re.sub("\r?\n", " \r\n", case["text"]), re.sub("\r?\n", "\r", case["text"])):
        after = VOCABULARY.read(text, case["asked"])
        assert (after.status, listed(after)) == (before.status, listed(before))


SWAP = {"left": "right", "lll": "rll", "lul": "rul", "llz": "rlz", "luz": "ruz", "lt": "rt", "l": "r"}
SWAP |= {right: left for left, right in SWAP.items()}


@given(st.one_of(TEXTS, st.sampled_from([case["text"] for case in CASES["words_cases"]])))
def test_swapped_sides_are_read_swapped(text):
    swapped = re.sub(r"[A-Za-z]+", lambda word: SWAP.get(word[0].lower(), word[0]), text)
    stated = [one for one in VOCABULARY.read(text).mentions if "implied_side" not in one.flags]
    expected = [
        (one.finding, one.status, tuple(sorted(SWAP.get(side, side) for side in one.sides)), one.zones)
        for one in stated
    ]
    ours = [one for one in VOCABULARY.read(swapped).mentions if "implied_side" not in one.flags]
    if not re.search("RML|in place|image", text):  # which have no counterpart
        assert sorted((one.finding, one.status, one.sides, one.zones) for one in ours) == sorted(expected)


@given(st.sampled_from([case["text"] for case in CASES["words_cases"]]), st.sampled_from(sorted(VOCABULARY.findings)))
def test_one_more_denied_finding_is_one_more_mention(text, finding):
    if all(finding != one[0] for one in read(text)) and not re.match("(INDICATION|COMPARISON)", text):
        assert read(f"{text}\nNo {finding.lower()}.") == sorted([*read(text), (finding, "negated", (), ())])


def steps(text):
    """Count the lines of Python that reading a text takes."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        VOCABULARY.read(text, "Nodule")
    finally:
        sys.settrace(before)
    return count


@settings(deadline=None, max_examples=15)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join))
def test_twice_the_text_takes_twice_the_steps(piece):
    text = piece * 100
    assert steps(text * 2) <= 2.2 * steps(text) + 500


PATTERNS = [
    *sentences._REACH.values(),
    *(getattr(sentences, f"_{of}") for of in ("AHEAD", "DIRECT", "ONWARD", "DENIES")),
]


@given(st.lists(st.tuples(st.sampled_from("FSTKRL,&|:vizENMUVDXAPpqw"), st.integers(1, 500)), max_size=8))
def test_what_begins_at_each_item_looks_at_a_bounded_number(runs):
    codes = "".join(code * count for code, count in runs)
    for pattern in PATTERNS:
        for start in range(0, len(codes), 97):
            found, near = pattern.match(codes, start), pattern.match(codes[: start + 400], start)
            assert (found and found.end()) == (near and near.end())


def test_a_file_of_ones_own_takes_the_place_of_the_vocabulary(tmp_path):
    content = yaml.safe_load(FILE.read_text())
    content["findings"]["Nodule"] = ["coin lesion[s]"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    mine = Vocabulary.of(tmp_path / "mine.yaml")
    assert listed(mine.read("Coin lesions, no nodule.")) == [("Nodule", "asserted", (), ())]
    assert mine.sha256 != VOCABULARY.sha256 == Vocabulary.of(FILE).sha256


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"findings": {"Noduel": ["nodule"]}}, "'Noduel' is not a finding"),
        ({"findings": {"Nodule": "nodule"}}, "'nodule' is not a list of expressions"),
        ({"grammar": {"N negated": ["no"]}}, "its grammar lacks a section that begins with '&'"),
        ({"marks": {"heads": [False]}}, "quote yes, no and numbers"),
        ({"answers": None}, "cannot be read as a vocabulary"),
        ({"near": {"Nodule": 3}}, "cannot be read as a vocabulary"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused_in_a_paragraph(tmp_path, change, problem):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(FILE.read_text()) | change))
    with pytest.raises(UserError, match=re.escape(problem)) as error:
        Vocabulary.of(path)
    assert str(path) in str(error.value) and "words.yaml" in str(error.value) and "\n" not in str(error.value)
    for text in ("", "a: [", "- 1"):
        path.write_text(text)
        with pytest.raises(UserError, match="cannot be read as a vocabulary"):
            Vocabulary.of(path)


def test_the_command_reads_lines_and_tables(tmp_path, capsys):
    rows = [
        {"id": "a", "text": "Right effusion."},
        {"id": "b", "text": "Left.", "asked": "effusion", "finish": "length"},
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "texts.csv").write_text("image,report\na.png,No nodule.\n")
    for name in ("texts.jsonl", "texts.csv"):
        assert main(["words", str(tmp_path / name), "--out", str(tmp_path / f"{name}.out")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "texts.jsonl.out").open()]
    assert [(line["id"], line["status"], line["mentions"][0]["sides"]) for line in lines] == [
        ("a", "read", ["right"]),
        ("b", "truncated", ["left"]),
    ]
    assert json.loads((tmp_path / "texts.csv.out").read_text())["image"] == "a.png"
    assert "Texts: 2 (1 read, 1 truncated)" in capsys.readouterr().out
    (tmp_path / "texts.jsonl").write_text('{"id": 1}')
    assert main(["words", str(tmp_path / "texts.jsonl"), "--out", str(tmp_path / "out")]) == 2
    assert "line 1 has no text" in capsys.readouterr().err and not (tmp_path / "out").exists()
