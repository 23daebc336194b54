"""The reference tables of the docs are those that the code gives."""

from __future__ import annotations

import sys
from importlib import import_module

from places import ROOT

sys.path.append(str(ROOT / "scripts"))
tables = import_module("reference_tables")


def test_the_tables_of_the_docs_are_those_of_the_code(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().err


def test_a_table_that_went_stale_is_named(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/protocols.md").read_text()
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    path = tmp_path / "docs/protocols.md"
    path.parent.mkdir()
    path.write_text(page.replace("**Flaw.** ", "**Flaw.** No ", 1))
    assert tables.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert all(word in said for word in ("docs/protocols.md", "`protocols`", "`make tables`"))
    assert tables.main([]) == 0 and path.read_text() == page


def test_every_table_stands_on_a_page():
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert sorted(name for name, *_ in tables.MARKED.findall(text)) == sorted(tables.TABLES)
