"""Raw answers of each family, and what they say: written by us to show what models do to their own formats."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.florence2.processing_florence2 import Florence2PostProcessor

from xbench.predictions.answer import Answer, Counts
from xbench.predictions.conventions import Convention
from xbench.predictions.families import FAMILIES, Family, family_named, keep_strongest
from xbench.runtime.errors import UserError

FIXTURES = Path(__file__).with_name("fixtures")


def _rows(name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        if isinstance(raw := row.get("raw"), list):
            row["raw"] = "".join(part * times for part, times in raw)
    return rows


@pytest.mark.parametrize("name", FAMILIES)
def test_raw_answers_are_read_as_expected(name: str) -> None:
    wrong = {}
    for row in _rows(name):
        answer = FAMILIES[name].read(
            row["raw"], row["finish"], Convention.named(row["frame"]), tuple(row["image_size"])
        )
        boxes = row.get("boxes", [])
        same = (
            answer.status == row["status"]
            and answer.raw == row["raw"]
            and [list(box) for box in answer.boxes] == [pytest.approx(box, abs=1e-9) for box in boxes]
            and [list(one) for one in answer.points] == [pytest.approx(one, abs=1e-9) for one in row.get("points", [])]
            and list(answer.confidence) == pytest.approx(row.get("confidence", [None] * len(boxes)), abs=1e-9)
            and answer.counts == Counts(**row.get("counts", {}))
            and answer.suspect_frame == row.get("suspect_frame", False)
        )
        if not same:
            wrong[row["case"], row["raw"][:200]] = answer.status, answer.boxes[:3], answer.counts, answer.suspect_frame
    assert not wrong


# Pieces of all grammars, and what breaks them, a line each.
_PIECES = (FIXTURES / "pieces.txt").read_text(encoding="utf-8").splitlines()
_PIECES += [" ", "\n", "\0", "\ud800", "9" * 70]
_RAW = [row["raw"][:2_000] for name in FAMILIES for row in _rows(name)]
_PARTS = st.builds(lambda raw, start, length: raw[start:][:length], st.sampled_from(_RAW), *[st.integers(0, 2_000)] * 2)
_PARTS |= st.builds(str.__mul__, st.sampled_from(_PIECES), st.sampled_from([1, 2, 50])) | st.text()
_STRANGE = [Convention.named(row["frame"]) for name in FAMILIES for row in _rows(name)[-1:]]


@given(
    raw=st.lists(_PARTS, max_size=8).map("".join),
    family=st.sampled_from(list(FAMILIES.values())),
    strange=st.none() | st.sampled_from(_STRANGE),
    size=st.sampled_from([(1, 1), (512, 640), (3056, 2544), (57, 4000)]),
    finish=st.sampled_from(["stop", "length", None]),
)
@settings(max_examples=1000, deadline=None)
def test_no_text_raises_and_every_answer_keeps_its_promises(
    raw: str, family: Family, strange: Convention | None, size: tuple[int, int], finish: Any
) -> None:
    _check(family.read(raw, finish, strange or family.convention, size), raw, finish)


def _check(answer: Answer, raw: str, finish: str | None) -> None:
    assert answer.raw == raw and answer.finish == finish
    found = bool(answer.boxes or answer.points)
    assert answer.status in (("answered", "truncated") if found else ("abstained", "unparsable", "truncated"))
    assert finish != "length" or answer.status == "truncated"
    assert all(0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1 for x0, y0, x1, y1 in answer.boxes), answer
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in answer.points), answer
    assert len(set(answer.boxes)) == len(answer.boxes) == len(answer.confidence)
    assert all(stated is None or 0 <= stated <= 1 for stated in answer.confidence)


@pytest.mark.parametrize("name", ["maira2", "chexagent2", "radvlm", "internvl", "florence2", "chex", "endpoint"])
def test_reading_takes_time_linear_in_the_length(name: str) -> None:
    """Ten times the text must take nowhere near a hundred times as long, whatever is repeated."""
    family, slow = FAMILIES[name], []
    for piece in _PIECES:
        seconds = []
        for length in (3_000, 30_000):
            text = piece * (length // len(piece))
            start = time.process_time()
            family.read(text, None, family.convention, (640, 480))
            seconds.append(time.process_time() - start)
        if seconds[1] > max(40 * seconds[0], 0.5):
            slow.append((piece, seconds))
    assert not slow


def test_only_the_first_million_characters_are_read() -> None:
    answer = FAMILIES["endpoint"].read(
        " " * 1_000_000 + "[1, 2, 3, 4]", "stop", Convention.named("thousand_whole"), (9, 9)
    )
    assert (answer.status, answer.boxes) == ("unparsable", ())


@pytest.mark.parametrize(
    ("raw", "frame", "size", "words"),
    [
        (None, "thousand_whole", (9, 9), "not NoneType"),
        ("x", "thousand_whole", (0, 9), "0 x 9 pixels"),
        ("x", "pixels_resized", (10, 2001), "200 times as long"),
    ],
)
def test_what_is_no_answer_is_refused_in_a_sentence(raw: Any, frame: str, size: tuple[int, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        FAMILIES["qwen25vl"].read(raw, "stop", Convention.named(frame), size)


def test_misspelt_names_get_the_list() -> None:
    with pytest.raises(UserError, match="Did you mean maira2"):
        family_named("maria2")
    with pytest.raises(UserError, match="no frame 'thousand'"):
        Convention.named("thousand")


_LABELS = st.sampled_from([" ", "nodule", " left nodule ", "  "])


@given(
    st.lists(st.tuples(_LABELS, st.lists(st.integers(0, 999), min_size=1, max_size=10)), max_size=6),
    st.sampled_from(["", "."]),
)
def test_florence_reads_the_boxes_that_transformers_reads(runs: list[tuple[str, list[int]]], end: str) -> None:
    """Any text between location tokens ends a run of them, a blank included; what is left of a run is dropped."""
    text = "".join(label + "".join(f"<loc_{one}>" for one in run) for label, run in runs) + end
    answer = FAMILIES["florence2"].read(text, "stop", Convention.named("loc1000_whole"), (640, 480))
    official = Florence2PostProcessor({}, SimpleNamespace(all_special_tokens=[]))
    size = 10**6  # its rounding to whole pixels is exact there
    phrases = official.parse_phrase_grounding_from_text_and_spans(text, (size, size))
    corners = [box for phrase in phrases for box in phrase["bbox"]]
    ordered = [(*map(min, box[:2], box[2:]), *map(max, box[:2], box[2:])) for box in corners]
    flat = [box for box, bins in zip(ordered, corners, strict=True) if box[0] == box[2] or box[1] == box[3]]
    assert [list(box) for box in answer.boxes] == [
        pytest.approx([corner / size for corner in box]) for box in dict.fromkeys(ordered) if box not in flat
    ]
    short = [run for _, run in runs if len(run) % 4]
    broken_off = bool(runs and len(runs[-1][1]) % 4 and not end)
    zeros = sum(run[at : at + 4] == [0] * 4 for _, run in runs for at in range(0, len(run), 4))
    assert answer.counts.dropped == len(short) - broken_off + len(flat) - zeros


@pytest.mark.parametrize(
    ("text", "bins", "dropped"),
    [
        ("nodule<loc_5> <loc_100><loc_200><loc_300><loc_400>", [100, 200, 300, 400], 1),
        ("x<loc_1><loc_2> <loc_", None, 1),
        ("x<loc_1><loc_2> <loc_3>", None, 1),
        ("x<loc_1><loc_2><loc_", None, 0),
    ],
)
def test_a_blank_ends_a_run_of_locations(text: str, bins: list[int] | None, dropped: int) -> None:
    answer = FAMILIES["florence2"].read(text, None, Convention.named("loc1000_whole"), (640, 480))
    assert [list(box) for box in answer.boxes] == ([] if bins is None else [[(one + 0.5) / 1000 for one in bins]])
    assert (answer.counts.dropped, answer.status) == (dropped, "truncated" if bins is None else "answered")


@pytest.mark.parametrize("text", ["[0.1, ]", "[0.1, 0.2, ]", "It is at [0.1,]."])
def test_radvlm_lists_that_end_in_a_comma_are_prose(text: str) -> None:
    answer = FAMILIES["radvlm"].read(text, "stop", FAMILIES["radvlm"].convention, (640, 480))
    assert (answer.status, answer.counts) == ("unparsable", Counts())


def test_a_row_of_chex_with_an_empty_cell_is_dropped() -> None:
    read = FAMILIES["chex"].read
    text = '{"boxes": [[0.1,0.2,0.3,0.4,], [0.5, 0.5, 0.2, 0.2, 0.9], [, 0.2, 0.3, 0.4, 0.5]]}'
    answer = read(text, "stop", FAMILIES["chex"].convention, (640, 640))
    assert (len(answer.boxes), answer.counts.dropped) == (1, 2)
    assert (
        read('{"boxes": [[0.1,0.2,0.3,0.4,]]}', "stop", FAMILIES["chex"].convention, (640, 640)).status == "unparsable"
    )


_SIDES = st.sampled_from([0.0, 0.01, 0.1, 0.5]) | st.floats(0, 1)


@given(
    st.lists(st.tuples(st.floats(-1, 2), st.floats(-1, 2), _SIDES, _SIDES, st.sampled_from([0.1, 0.3, 0.5, 0.9]))),
    st.sampled_from([0.05, 0.25, 0.9]),
)
def test_suppression_compares_each_box_with_every_stronger_one_that_was_kept(boxes: list, overlap: float) -> None:
    corners = np.array([(x, y, x + width, y + height) for x, y, width, height, _ in boxes]).reshape(-1, 4)
    area = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    kept: list[int] = []
    for at in sorted((one for one, box in enumerate(boxes) if box[4] >= 0.3), key=lambda one: -boxes[one][4]):
        low, high = np.maximum(corners[at, :2], corners[kept, :2]), np.minimum(corners[at, 2:], corners[kept, 2:])
        shared = np.prod(np.clip(high - low, 0, None), axis=1)
        if (shared <= overlap * (area[at] + area[kept] - shared)).all():
            kept.append(at)
    assert keep_strongest(corners, [box[4] for box in boxes], overlap) == kept


def test_many_boxes_that_hardly_overlap_are_suppressed_in_seconds() -> None:
    """126 x 127 squares side by side, none of which suppresses another."""
    rows = [[round(x / 128, 4), round(y / 128, 4), 0.0077, 0.0077, 0.5] for x in range(1, 127) for y in range(1, 128)]
    start = time.process_time()
    answer = FAMILIES["chex"].read(json.dumps({"boxes": rows}), "stop", FAMILIES["chex"].convention, (640, 640))
    assert len(answer.boxes) == len(rows) and time.process_time() - start < 5
