"""Texts are read as people read them: cases by hand, and properties that hold for any text."""

from __future__ import annotations

import json
from pathlib import Path

from xbench.predictions.words import Vocabulary

CASES = [json.loads(line) for line in (Path(__file__).parent / "fixtures/words.jsonl").read_text().splitlines()]
VOCABULARY = Vocabulary.of()


def listed(reading):
    return sorted((one.finding, one.status, one.sides, one.zones) for one in reading.mentions)


def test_nearly_all_cases_are_read_as_people_read_them():
    wrong = []
    for case in CASES:
        wanted = sorted(
            (one["finding"], one["status"], tuple(one["sides"]), tuple(one["zones"])) for one in case["mentions"]
        )
        reading = VOCABULARY.read(case["text"], case["asked"])
        wrong += [] if (reading.status, listed(reading)) == (case["status"], wanted) else [case["id"]]
    assert len(CASES) == 150 and len(wrong) <= 0.03 * len(CASES), wrong
