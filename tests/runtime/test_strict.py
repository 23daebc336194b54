from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.runtime.strict import decimal, unique_keys


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30))
def test_numbers_come_back(value):
    assert decimal(f" {value} ") == float(value)


@given(st.text("0123456789+-.eE_ \u0663x", max_size=8))
def test_numbers_are_those_of_python_in_plain_spelling(text):
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if abs(value) < float("inf") and re.fullmatch(r"[ 0-9.eE+-]+", text):
        assert decimal(text) == value
    else:
        with pytest.raises(ValueError, match="not a number"):
            decimal(text)


def test_long_texts_take_no_time():
    with pytest.raises(ValueError, match="not a number"):
        decimal("1" * 10**6 + "x")


@given(st.dictionaries(st.text(max_size=3), st.integers(), min_size=1), st.data())
def test_a_key_that_is_there_twice(content, data):
    text = json.dumps({"in": content})
    assert json.loads(text, object_pairs_hook=unique_keys) == {"in": content}
    key = json.dumps(data.draw(st.sampled_from([*content])))
    with pytest.raises(ValueError, match="occurs twice"):
        json.loads(f"{text[:-2]}, {key}: 1}}}}", object_pairs_hook=unique_keys)
