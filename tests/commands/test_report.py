from __future__ import annotations

import json
import os
import re
import shutil
import signal
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import write_run

from xbench.cli import main
from xbench.report.cases import choose_cases
from xbench.report.facts import facts_of
from xbench.report.figures.details import overlays, positions
from xbench.report.figures.style import drawing, save
from xbench.report.sentences import in_short, on_dataset
from xbench.report.tables.contents import all_tables
from xbench.report.tables.latex import to_latex
from xbench.report.tables.table import escaped, to_csv, to_markdown


@pytest.fixture(scope="module")
def runs(three_runs, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    shutil.copytree(three_runs, root, dirs_exist_ok=True)
    write_run(root, "kad", skill=0.1, stamp="2025-01-01_00-00-00")
    (root / "carzero_vindr").mkdir()
    (root / "carzero_vindr" / "config.yaml").write_text("# cut short\n")
    return root


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("written")
    (out / "tables").mkdir()
    (out / "analysis.json").write_text("{}")
    (out / "tables" / "pointing_game_of_old.csv").write_text("stale")
    (out / "tables" / "mine.txt").write_text("kept")
    with redirect_stdout(StringIO()) as screen:
        assert main(["report", str(runs), "--out", str(out), "--cases", "2", "--card"]) == 0
    return out, screen.getvalue()


@pytest.mark.usefixtures("unsaved_figures")
def test_a_damaged_picture_of_one_run_does_not_stop_the_report(tmp_path, capsys):
    write_run(tmp_path, "clip", images=16)
    folder = write_run(tmp_path, "kad", images=16)
    content = bytearray((folder / "predictions.parquet").read_bytes())
    content[len(content) // 3] ^= 1
    (folder / "predictions.parquet").write_bytes(content)
    assert main(["report", str(tmp_path), "--cases", "1"]) == 0
    assert f"Skipped: {folder}: only its pictures and maps" in capsys.readouterr().out
    for file in ("report.md", "index.html"):
        text = (tmp_path / "report" / file).read_text()
        assert f"{folder}: a file of the run cannot be read: predictions.parquet: " in text.replace("\\", "")
    (dataset,) = json.loads((tmp_path / "report" / "analysis.json").read_text())["datasets"]
    assert len(dataset["runs"]) == 2
    # The other run's maps are still there to look at.
    (cases,) = re.findall(r'id="case-data">(.*?)</script>', text, re.S)
    (case,) = json.loads(cases)["cases"]
    assert [panel["model"] for panel in case["panels"]] == ["CLIP"]


def test_a_map_that_no_run_writes_is_found_where_it_is_shown(tmp_path, capsys):
    folder = write_run(tmp_path, "kad", images=16)
    path = folder / "predictions.parquet"
    table = pq.read_table(path)
    field, maps = table.schema.field("map"), table["map"].to_pylist()
    endless = pa.array([None if one is None else [float("inf")] * len(one) for one in maps], field.type)
    pq.write_table(table.set_column(table.column_names.index("map"), field, endless), path)
    assert main(["report", str(tmp_path), "--cases", "1", "--figures", "false"]) == 0
    said = capsys.readouterr().out
    assert f"Skipped: {folder}: only its pictures and maps" in said and "a map is not finite" in said
    assert not [*(tmp_path / "report" / "figures").iterdir()]
    assert "figures/" not in (tmp_path / "report" / "report.md").read_text()


def test_a_process_that_draws_figures_and_is_killed_leaves_the_page(tmp_path, capsys, monkeypatch):
    write_run(tmp_path, "kad", images=16, with_cases=False)
    monkeypatch.setattr("xbench.report.figures.write.write_figures", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert main(["report", str(tmp_path)]) == 1
    assert "the figures was killed" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "report" / "index.html").stat().st_size > 1e5


def test_everything_is_written_and_an_earlier_report_replaced(written, three_analyzed):
    out, _ = written
    expected = {
        f"{table.name}.{ending}": write(table)
        for table in all_tables(three_analyzed)
        for ending, write in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex))
    }
    assert {path.name: path.read_text() for path in (out / "tables").iterdir()} == expected | {"mine.txt": "kept"}
    stems = (
        *(f"auroc_pointing_game_{points}" for points in ("models", "findings")),
        *(f"intervals_{number}" for number in ("pointing_game", "dice_cross_fitted", "auroc")),
        *("dice_gap", "dice_curve", "area_pointing_game", "area_dice_fixed"),
        *(f"{what}_chestxray14" for what in ("overlays", "quadrants", "positions")),
    )
    names = {f"{stem}{ending}" for stem in stems for ending in (".pdf", ".svg", ".png")}
    assert {path.name for path in (out / "figures").iterdir()} == names
    assert {path.stem for path in (out / "cards").iterdir()} == {"kad", "carzero", "clip"}
    assert (out / "index.html").stat().st_size > 1e5


def test_the_screen_says_what_was_found_and_left_out(written):
    out, said = written
    for words in ("Best", "CARZero", "ChestX-ray14", "older than", "unfinished: it has no results.json"):
        assert words in said
    *_, blank, found, page = said.splitlines()
    assert page == f"Report: {out / 'index.html'}" and not blank
    assert re.fullmatch(
        r".* points? at \d+% of lesions on average over \w+ findings \([\d.]+ of \d+\); "
        r"95% interval( of \S+)? \d+% to \d+%.",
        found,
    )


def test_a_single_model_is_not_called_the_best(tmp_path, capsys):
    write_run(tmp_path, "kad", images=20, with_cases=False)
    assert main(["report", str(tmp_path), "--figures", "false"]) == 0
    header = capsys.readouterr().out.splitlines()[2]
    assert header.split() == ["Dataset", "Model", "Point.", "95%", "interval"]


def test_the_document_has_every_table_and_links_that_exist(written, three_analyzed):
    text = (written[0] / "report.md").read_text()
    for table in all_tables(three_analyzed):
        assert to_markdown(replace(table, notes=())).strip() in text
    links = re.findall(r"\]\(([\w./]+)\)", text)
    assert len(links) > 40
    assert not [link for link in links if not (written[0] / link).is_file()]
    for sentence in (*in_short(facts_of(three_analyzed)), *on_dataset(three_analyzed, three_analyzed.datasets[0])):
        assert f"- {escaped(sentence)}" in text
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections[0] == "In short"
    assert "More" not in sections
    honest = text.split("## Honest thresholds")[1].split("\n## ")[0]
    assert "tables/grounding_honest.csv" in honest and "figures/dice_gap.png" in honest
    assert text.count("<details>") == text.count("</details>")


def test_figures_are_the_same_at_every_run(written, three_analyzed, tmp_path):
    (dataset,) = three_analyzed.datasets
    with drawing():
        save(positions(dataset), tmp_path / "positions_chestxray14")
        save(overlays(dataset, choose_cases(dataset.runs, 2)), tmp_path / "overlays_chestxray14")
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (written[0] / "figures" / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("words", "status", "fragments"),
    [
        pytest.param(["{empty}/nowhere"], 2, ["nowhere", "not a folder"], id="no folder"),
        pytest.param(["{empty}"], 1, ["No finished run", "by default runs"], id="no run"),
        pytest.param(["{runs}", "--out", "{other}"], 2, ["report.md", "--out"], id="somebody's folder"),
        pytest.param(["{runs}", "--out", "/proc/nope"], 1, ["/proc/nope", "--out"], id="unwritable"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_paragraph(words, status, fragments, runs, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.md").write_text("mine")
    (tmp_path / "empty").mkdir()
    places = {"runs": runs, "empty": tmp_path / "empty", "other": tmp_path / "other"}
    assert main(["report", *(word.format(**places) for word in words)]) == status
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error
    assert all(fragment in error for fragment in fragments), error
    assert (tmp_path / "other" / "report.md").read_text() == "mine"
