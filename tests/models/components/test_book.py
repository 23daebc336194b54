from __future__ import annotations

import json
from pathlib import Path

import pytest
from book_files import write_book

from xbench.findings.names import TABLE
from xbench.findings.prompts import wordings
from xbench.models.maps.medklip import OFFICIAL_ENTRIES, entry_of, own_entries, own_texts, read_entries, with_findings
from xbench.runtime.errors import UserError

OFFICIAL = {name: [name] for name in OFFICIAL_ENTRIES}


def test_official_entries() -> None:
    assert len(OFFICIAL_ENTRIES) == len({*OFFICIAL_ENTRIES}) == 75
    numbered = {0: "normal", 1: "clear", 20: "pneumonia", 43: "thicken", 56: "infiltrate", 65: "lesion"}
    numbered[74] = "excluded_obs"
    assert all(OFFICIAL_ENTRIES[number] == name for number, name in numbered.items())


def test_two_findings_never_share_an_entry() -> None:
    found = [entry for finding in TABLE if (entry := entry_of(finding.name, OFFICIAL | {"covid19": [""]}))]
    assert len(found) == len({*found}) == 21


def test_own_book_has_every_finding_under_its_name() -> None:
    entries = own_entries(9)
    assert [entry_of(finding.name, entries) for finding in TABLE] == [finding.name for finding in TABLE]
    assert {len(texts) for texts in entries.values()} == {9}
    assert {len(texts) for texts in own_entries(1).values()} == {1}


def test_book_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "book.yaml").write_text("Pleural effusion: white at the base\nnodule: a spot\nOther: else\n")
    entries = read_entries(str(tmp_path / "book.yaml"), None, 1)
    book = with_findings(entries, ["Nodule", "Edema", "Pleural Effusion"], [["a dot"], ["wet"], ["white at the base"]])
    expected = {"Pleural effusion": ["white at the base"], "nodule": ["a dot"], "Other": ["else"], "Edema": ["wet"]}
    assert book.entries == expected and list(book.entries) == list(expected)
    assert book.columns == ("nodule", "Edema", "Pleural effusion")
    assert book.added == ("Edema",)


def test_a_finding_without_wording_needs_all_its_texts() -> None:
    book = with_findings(own_entries(9), ["Bulla"], [[str(number) for number in range(9)]])
    assert book.added == ("Bulla",) and book.columns == ("Bulla",)
    with pytest.raises(UserError, match="no wording for the finding 'Bulla'"):
        with_findings(own_entries(9), ["Bulla"], [["a bubble"]])


@pytest.mark.parametrize("count", [1, 8, 9])
def test_prompts_replace_what_they_stand_for(count: int) -> None:
    prompts = [f"prompt {number}" for number in range(count)]
    usual = own_texts("Nodule", 9)
    book = with_findings(own_entries(9), ["Nodule"], [prompts])
    expected = {1: [*prompts, *usual[1:]], 8: [usual[0], *prompts], 9: prompts}[count]
    assert book.entries["Nodule"] == expected
    assert list(book.entries) == [*wordings("normal"), *wordings("findings")]
    assert own_entries(9)["Nodule"] == usual


def test_other_numbers_of_prompts_are_errors() -> None:
    with pytest.raises(UserError, match=r"Nodule has 2 prompts.* takes 9 .* the 8 aspects"):
        with_findings(own_entries(9), ["Nodule"], [["a", "b"]])
    with pytest.raises(UserError, match=r"Nodule has 8 prompts, but the model takes 1 per finding\.$"):
        with_findings(own_entries(1), ["Nodule"], [["a"] * 8])


def test_entries_that_no_dataset_asks_for_stay_out(tmp_path: Path) -> None:
    entries = read_entries(write_book(tmp_path / "book.json", "covid19", "bulla"), None, 1)
    assert list(entries) == [*OFFICIAL_ENTRIES, "covid19", "bulla"]
    assert list(with_findings(entries, ["Edema"], [["e"]]).entries) == list(OFFICIAL_ENTRIES)
    assert list(with_findings(entries, ["COVID-19"], [["c"]]).entries) == [*OFFICIAL_ENTRIES, "covid19"]
    # One that is not the authors' is asked as it is.
    entries = read_entries(write_book(tmp_path / "book.json", "bulla", without="shift"), None, 1)
    assert len(with_findings(entries, ["Edema"], [["e"]]).entries) == 75


def test_order_of_the_official_entries_does_not_depend_on_the_file(tmp_path: Path) -> None:
    (tmp_path / "book.json").write_text(json.dumps({name: name for name in reversed(OFFICIAL_ENTRIES)}))
    assert list(read_entries(str(tmp_path / "book.json"), None, 1)) == list(OFFICIAL_ENTRIES)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "book.json").write_text(json.dumps({"edema": ["wet", "more"]}))
    with pytest.raises(UserError, match="gives edema 2 texts"):
        read_entries(str(tmp_path / "book.json"), None, 1)
    (tmp_path / "book.json").write_text(json.dumps({"edema": "wet", "mass": "big"}))
    (tmp_path / "concepts.json").write_text(json.dumps({"edema": ["a"] * 8}))
    with pytest.raises(UserError, match=r"0 texts on mass.*need 8"):
        read_entries(str(tmp_path / "book.json"), str(tmp_path / "concepts.json"), 9)
