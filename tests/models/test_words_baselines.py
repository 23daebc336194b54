"""Baselines of words: what they write is read back, and they score what arithmetic says."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.findings.names import TABLE
from xbench.geometry.location import ZONE_SETS
from xbench.models.baselines import sentence
from xbench.predictions.words import Stated, Vocabulary

VOCABULARY = Vocabulary.of()
SIDES = [frozenset(sides) for sides in ((), ("left",), ("right",), ("left", "right"))]
PLACES = [*product(SIDES, ZONE_SETS), (SIDES[0], frozenset())]
READ = sorted(VOCABULARY.findings)
CASES = st.tuples(st.booleans(), st.sampled_from(PLACES))


def said(finding, asserted, sides, zones) -> Stated:
    placed = asserted and finding not in VOCABULARY.unsided
    return Stated("asserted" if asserted else "negated", *((sides, zones) if placed else (frozenset(), frozenset())))


@pytest.mark.parametrize("finding", [*READ, *(VOCABULARY.accepts.keys() - VOCABULARY.findings)])
def test_every_sentence_is_read_back(finding):
    for asserted, (sides, zones), asked in product((True, False), PLACES, (None, finding)):
        text = sentence(finding, asserted, sides, zones)
        stated = VOCABULARY.stated(VOCABULARY.read(text, asked), finding)
        assert stated == said(finding, asserted, sides, zones), text


@given(st.permutations(READ), st.lists(CASES, min_size=len(READ), max_size=len(READ)))
def test_every_report_is_read_back(findings, cases):
    claims = [(finding, asserted, *place) for finding, (asserted, place) in zip(findings, cases, strict=True)]
    reading = VOCABULARY.read(" ".join(sentence(*claim) for claim in claims))
    for claim in claims:
        assert VOCABULARY.stated(reading, claim[0], strict=True) == said(*claim)


def test_what_the_vocabulary_lacks_is_worded_all_the_same():
    lacking = [one.name for one in TABLE if not {one.name} & (VOCABULARY.findings | VOCABULARY.accepts.keys())]
    assert "COVID-19" in lacking and len(lacking) == 4
    for finding in lacking:
        text = sentence(finding, True, SIDES[1], ZONE_SETS[0])
        assert (
            text.endswith(" in the left upper zone.") and not VOCABULARY.stated(VOCABULARY.read(text), finding).status
        )
