from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.predictions.recognition import first_tokens, listed_yes_probability, read_decision, yes_probability

FIXTURES = Path(__file__).with_name("fixtures")


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", _rows("recognition"), ids=lambda row: row["raw"][:20])
def test_decisions_are_read_as_expected(row: dict[str, Any]) -> None:
    said, confidence, found = row["decision"], row["confidence"], read_decision(row["raw"])
    sure = 1.0 if confidence is None else confidence
    assert found.probability == (None if said is None else pytest.approx(sure if said else 1 - sure, abs=1e-12))
    assert found.way == ("decision" if confidence is None else "stated confidence")


@pytest.mark.parametrize("row", _rows("yes_probability"), ids=lambda row: row["case"])
def test_probabilities_of_yes(row: dict[str, Any]) -> None:
    found = listed_yes_probability(row["top"]) if "top" in row else yes_probability(row["yes"], row["no"])
    expected = row["logit"], row["probability"], row.get("mass")
    assert (found.logit, found.probability, found.mass) == tuple(pytest.approx(one, abs=1e-9) for one in expected)
    assert found.bounded == row.get("bounded", False)


@given(st.lists(st.tuples(st.sampled_from(["yes", "no", "x"]), st.floats(-30, 0)), max_size=20), st.floats(0, 40))
def test_listed_probabilities_never_exceed_one(top: list[tuple[str, float]], gap: float) -> None:
    for listed in (top, [("Yes", 0.0), ("No", -gap)]):
        found = listed_yes_probability(listed)
        assert found.mass is not None and 0 <= found.mass <= 1
        assert found.probability is None or 0 <= found.probability <= 1


def test_an_id_that_begins_a_yes_and_a_no_word_counts_for_neither() -> None:
    ids = {"Yes": [1], " Yes": [2, 9], "yes": [1], " yes": [5], "YES": [5], " YES": [5]}
    ids |= {"No": [3], " No": [4], "no": [3], " no": [5], "NO": [4], " NO": [4]}
    assert first_tokens(ids.__getitem__) == ([1, 2], [3, 4])


@given(st.text())
def test_any_text_is_read(raw: str) -> None:
    assert (found := read_decision(raw).probability) is None or 0 <= found <= 1
