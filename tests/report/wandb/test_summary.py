"""A report as one Weights & Biases run, read back from an offline run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import wandb
from PIL import Image

from xbench.commands.report import report
from xbench.errors import UserError
from xbench.report.runs import collect
from xbench.report.sentences import headlines
from xbench.report.statistics.analyse import analyse
from xbench.report.tables.contents import all_tables
from xbench.report.wandb import summary as wandb_summary
from xbench.report.wandb.summary import log_report


@pytest.fixture(scope="module")
def said(three_runs):
    analysis = analyse(collect([three_runs]))
    return analysis, all_tables(analysis)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The folder of a report, in which other things lie as well; and no network."""

    def refuse(*args, **kwargs):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    out = tmp_path / "report"
    for name in ("figures/dice_curve.png", "figures/dice_curve.pdf", "tables/grounding.csv", "maps.parquet"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"%PDF")
    Image.new("RGB", (4, 3)).save(out / "figures" / "dice_curve.png")
    for name in ("index.html", "report.md", "analysis.json"):
        (out / name).write_text(f"<p>{name}</p>")
    return out


def read_back(offline: Path) -> list[dict]:
    inspect = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(offline)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in inspect.stdout.splitlines() if line.strip()]


def table_of(offline: Path, name: str) -> list[dict]:
    (path,) = offline.glob(f"files/media/table/{name}_[0-9]*.table.json")
    table = json.loads(path.read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def test_a_report_is_one_run_with_tables_charts_figures_page_and_files(said, written):
    analysis, tables = said
    offline = log_report(analysis, tables, written)
    assert offline.parent == written / "wandb"
    records = read_back(offline)
    (run,) = (record["run"] for record in records if record["type"] == "run")
    assert (run["display_name"], run["run_group"], run["job_type"]) == ("report", "report", "report")
    assert set(run["tags"]) == {"report", "chestxray14", "carzero", "kad", "clip"}
    assert run["notes"].split("\n\n") == list(headlines(analysis))
    assert {entry["label"] for entry in run["config"]["update"]["runs"]} == {"CARZero", "KAD", "CLIP"}

    logged = {name for record in records if record["type"] == "history" for name in record["history"]["item"]}
    assert {"report._type", "figures/dice_curve._type"} <= logged
    assert {f"tables/{table.name}._type" for table in tables} <= logged
    macro = {entry.run.label: entry.macro["pointing_game"] for entry in analysis.datasets[0].runs}
    rows = {row["Model"]: row for row in table_of(offline, "tables/grounding")}
    (column,) = (name for name in rows["KAD"] if name.endswith("Pointing game"))
    for label, estimate in macro.items():
        assert rows[label][column] == pytest.approx(estimate.value, abs=1e-12)
        assert rows[label][f"{column}, low"] == pytest.approx(estimate.low, abs=1e-12)

    points = {row["model"]: row for row in table_of(offline, "Custom Chart Tables/auroc_pointing_game_table")}
    for entry in analysis.datasets[0].runs:
        point = points[entry.run.label]
        assert point["dataset"] == "chestxray14"
        assert point["auroc"] == pytest.approx(entry.macro["auroc"].value)
        assert point["pointing_game"] == pytest.approx(entry.macro["pointing_game"].value)
    assert len(table_of(offline, "Custom Chart Tables/auroc_pointing_game_findings_table")) == 9

    (page,) = offline.glob("files/media/html/report_*.html")
    assert page.read_text() == "<p>index.html</p>"
    (artifact,) = (r["artifact"] for r in records if r["type"] == "artifact" and r["artifact"]["type"] == "report")
    assert {entry["path"] for entry in artifact["manifest"]["contents"]} == {
        *("index.html", "report.md", "analysis.json", "tables/grounding.csv"),
        *("figures/dice_curve.png", "figures/dice_curve.pdf"),
    }


def test_a_page_too_large_for_a_dashboard_is_in_the_artifact_alone(said, written, monkeypatch):
    analysis, _ = said
    monkeypatch.setattr(wandb_summary, "_LARGEST_PAGE", 3)
    offline = log_report(analysis, (), written)
    assert not list(offline.glob("files/media/html/*"))
    assert "index.html" in json.dumps([record for record in read_back(offline) if record["type"] == "artifact"])


def test_a_failure_names_the_finished_report(said, written, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionResetError("Connection lost")

    analysis, tables = said
    monkeypatch.setattr(wandb.Run, "log", fail)
    with pytest.raises(UserError, match=rf"report is complete in {written}.*Connection lost"):
        log_report(analysis, tables, written)
    wandb.finish()


def test_the_command_logs_only_when_asked(three_runs, tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr("xbench.commands.report.write_report", lambda *arguments: ("analysis", "tables"))
    monkeypatch.setattr(wandb_summary, "log_report", lambda *arguments: calls.append(arguments) or Path("offline-run"))
    report([str(three_runs), "--out", str(tmp_path)])
    assert not calls
    report([str(three_runs), "--out", str(tmp_path), "--wandb", "true"])
    assert calls == [("analysis", "tables", tmp_path)]
    assert "wandb sync offline-run" in capsys.readouterr().out
    with pytest.raises(UserError, match="--wandb"):
        report([str(three_runs), "--wandb", "maybe"])
