"""The reference tables of the docs are those that the code gives."""

from __future__ import annotations

import inspect
import re
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


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of a table of docs/models.md, by the names in the first one."""
    (body,) = re.findall(
        rf"^{re.escape(heading)}.*\n\|---.*\n((?:\|.*\n)+)", (ROOT / "docs/models.md").read_text(), re.M
    )
    cells = [line.strip("| ").split(" | ") for line in body.splitlines()]
    return {name: row for row in cells for name in re.findall(r"`(\w+)`", row[0])}


def test_tables_written_by_hand_name_every_model():
    models = [*rows("| name | checkpoint |")]
    assert sorted(rows("| name | input | map |")) == sorted(models) and {*rows("| model | cell |")} <= {*models}


def test_the_text_encoders_are_the_defaults():
    said = rows("| model | `--model.text_encoder` by default |")
    for name, _, cls in tables.registered("models", "models"):
        options = [inspect.signature(part).parameters.get("text_encoder") for part in cls.__mro__[:-1]]
        option = next(filter(None, options), None)
        assert (name.strip("`") in said) is (option is not None), name
        if option is not None and (default := option.default or getattr(cls, "release", None)):
            assert default in said[name.strip("`")][1], name


def test_a_cell_that_the_code_lacks_stays_and_a_new_one_is_asked_for(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/multimodal.md").read_text()
    assert tables.filled(tables.multimodal(), page).count("| CC BY-NC |") == 2
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    path = tmp_path / "docs/multimodal.md"
    path.parent.mkdir()
    path.write_text(re.sub(r"^\| `radvlm` .*\n", "", page, flags=re.M))
    assert tables.main([]) == 1 and "`multimodal`" in capsys.readouterr().err
    assert "| `radvlm` | `KrauthammerLab/RadVLM` | ? |" in path.read_text()
