from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.predictions import FAMILIES
from xbench.predictions.answer import Answer, Box, Counts
from xbench.predictions.asking import Question, Reply
from xbench.predictions.conventions import Convention
from xbench.runs.answers import AnswerRow, answers_table, excerpt, read_answers
from xbench.runs.files import PREDICTIONS
from xbench.runs.tables import write_tables
from xbench.runtime.errors import UserError

FINDINGS = ("Nodule", "Mass")
# Half a surrogate pair too, which no file of UTF-8 takes.
TEXTS = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    ['{"boxes": [{"box": [1, 2, 300, 400], "confidence": 0.5}]}', "[10, 20, 30, 40]", "none", "\ud800", "\x00 no"]
)


@st.composite
def rows(draw) -> AnswerRow:
    finding = draw(st.sampled_from(FINDINGS))
    kind = draw(st.sampled_from(["locate", "recognise"]))
    first = draw(st.sampled_from([{}, {"top": [("yes", -0.5), ("x", -2.0)]}, {"yes_no": ([1.0], [0.5]), "mass": 0.25}]))
    reply = Reply(
        draw(TEXTS),
        draw(st.sampled_from(["stop", "length", None])),
        draw(st.sampled_from([None, "pixels_sent@70x90"])) if kind == "locate" else None,
        tokens_out=draw(st.none() | st.integers(0, 10)),
        confidence=draw(st.none() | st.floats(0, 1)) if kind == "locate" else None,
        reasoning=draw(st.none() | st.just("hm")),
        **(first if kind == "recognise" else {}),
    )
    family = FAMILIES["endpoint"]
    answer = reply.read(family, family.convention, (70, 90)) if kind == "locate" else None
    truth = draw(st.none() | st.just(([Box(0.0, 0.0, 0.5, 0.5)], True, False))) if kind == "locate" else None
    return AnswerRow.of(draw(st.integers(0, 9)), "image", (70, 90), Question(kind, 0, 0, finding), reply, answer, truth)


def write(path, *batches):
    write_tables(path.parent, [{PREDICTIONS: answers_table(rows)} for rows in batches], [PREDICTIONS], {})


@given(st.lists(rows(), max_size=6))
def test_rows_come_back_as_they_were(tmp_path_factory, given_rows):
    path = tmp_path_factory.mktemp("answers") / "predictions.parquet"
    write(path, given_rows[:2], given_rows[2:])
    found = list(read_answers(path))
    assert [replace(row, escaped=False) for row in found] == given_rows
    for row in found:
        if row.query == "recognise":
            assert row.reply().recognition().probability == row.probability
            continue
        reply, answer = row.read_again(FAMILIES["endpoint"], FAMILIES["endpoint"].convention)
        assert reply.frame is None and answer.raw == row.raw
        if row.frame is None:
            counts = Counts(row.clipped or 0, row.reordered or 0, row.dropped or 0, row.duplicates or 0)
            read = (row.boxes, row.points, row.confidence, row.finish, counts, bool(row.suspect_frame))
            assert answer == Answer(row.status, row.raw, *read)
        sized = row.read_again(FAMILIES["endpoint"], Convention.named("pixels_resized"))[0].frame
        assert sized == (None if row.frame is None else "pixels_resized@70x90")
        assert len(excerpt(row.raw).encode()) <= 4 * 401


@pytest.mark.parametrize("wrong", [{"mass": 1.1}, {"confidence": 2.0}, {"finish": "bored"}])
def test_what_no_file_takes_is_refused_when_it_is_made(wrong):
    given = {"text": "[1, 2, 300, 400]", "yes_no": ([1.0], [0.5])} | wrong
    kind = "locate" if "confidence" in wrong else "recognise"
    reply, family = Reply(**given), FAMILIES["endpoint"]
    answer = reply.read(family, family.convention, (70, 90)) if kind == "locate" else None
    with pytest.raises(UserError, match=rf"'Nodule'.*'image'.*{next(iter(wrong))}"):
        AnswerRow.of(0, "image", (70, 90), Question(kind, 0, 0, "Nodule"), reply, answer)


WRONG = {
    "status": "perhaps",
    "asked": "guess",
    "boxes": [[0.5, 0.5, 0.4, 0.6]],
    "points": [[0.5, 1.5]],
    "confidence": [],
    "width": 0,
    "finish": "bored",
    "annotated": [],
    "suspect_frame": None,
    "raw": None,
}


@pytest.mark.parametrize("column", WRONG)
def test_what_no_run_writes_is_refused(tmp_path, column):
    family = FAMILIES["endpoint"]
    reply = Reply('{"boxes": [{"box": [1, 2, 300, 400]}]}', "stop")
    query, answer = Question("locate", 0, 0, "Nodule"), reply.read(family, family.convention, (70, 90))
    path = tmp_path / "predictions.parquet"
    write(path, [AnswerRow.of(0, "image", (70, 90), query, reply, answer, ([Box(0.0, 0.0, 0.5, 0.5)], True, False))])
    table = pq.read_table(path)
    assert len(list(read_answers(path))) == 1
    place = table.column_names.index(column)
    changed = pa.array([WRONG[column]], table.field(column).type)
    pq.write_table(table.set_column(place, table.field(column), changed), path)
    with pytest.raises((ValueError, TypeError)):
        list(read_answers(path))
