from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import wandb
from PIL import Image
from wandb_offline import OfflineRun, shut_out

from xbench.cli import main
from xbench.report.facts import facts_of
from xbench.report.sentences import answer, in_short
from xbench.report.tables.contents import all_tables
from xbench.report.wandb import log_report as log_report_module
from xbench.report.wandb.log_report import log_report
from xbench.runtime.errors import UserError


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The folder of a report, in which other things lie as well; and no network."""
    shut_out(monkeypatch, tmp_path)
    out = tmp_path / "report"
    for name in ("figures/dice_curve.pdf", "tables/grounding.csv", "predictions.parquet"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"%PDF")
    for name in ("dice_curve", "overlays_chestxray14"):
        Image.new("RGB", (4, 3)).save(out / "figures" / f"{name}.png")
    for name in ("index.html", "report.md", "analysis.json"):
        (out / name).write_text(f"<p>{name}</p>")
    return out


def test_a_report_is_one_run_with_tables_charts_figures_page_and_files(three_analyzed, written):
    analysis, tables = three_analyzed, all_tables(three_analyzed)
    offline = log_report(analysis, tables, written, pictures=True)
    assert offline.parent == written / "wandb"
    logged = OfflineRun.read(offline)
    (run,) = logged.of("run")
    assert (run["display_name"], run["run_group"], run["job_type"]) == ("report", "report", "report")
    assert set(run["tags"]) == {"report", "chestxray14", "carzero", "kad", "clip"}
    assert run["notes"].split("\n\n") == [*answer(facts_of(analysis)).texts, *in_short(facts_of(analysis))]
    assert {entry["label"] for entry in run["config"]["update"]["runs"]} == {"CARZero", "KAD", "CLIP"}
    names = ["report", "figures/dice_curve", *(f"tables/{table.name}" for table in tables)]
    assert {f"{name}._type" for name in names} <= {*logged.history}
    rows = {row["Model"]: row for row in logged.table("tables/grounding")}
    points = {row["model"]: row for row in logged.table("Custom Chart Tables/auroc_pointing_game_table")}
    for entry in analysis.datasets[0].runs:
        row, macro = rows[entry.run.label], entry.macro
        assert row["ChestX-ray14: Pointing game"] == macro["pointing_game"].value
        assert row["ChestX-ray14: Pointing game, low"] == macro["pointing_game"].low
        expected = {key: macro[key].value for key in ("auroc", "pointing_game")}
        assert points[entry.run.label] == {"dataset": "chestxray14", "model": entry.run.label, **expected}
    assert len(logged.table("Custom Chart Tables/auroc_pointing_game_findings_table")) == 9
    (page,) = offline.glob("files/media/html/report_*.html")
    assert page.read_text() == "<p>index.html</p>"
    assert {entry["path"] for entry in logged.artifact("report")["manifest"]["contents"]} == {
        *("index.html", "report.md", "analysis.json", "tables/grounding.csv"),
        *("figures/dice_curve.png", "figures/dice_curve.pdf", "figures/overlays_chestxray14.png"),
    }


def test_pictures_of_patients_are_logged_only_if_asked_for(three_analyzed, written):
    offline = log_report(three_analyzed, (), written)
    logged = OfflineRun.read(offline)
    assert "figures/dice_curve._type" in logged.history
    for shown in (json.dumps(logged.records), *(str(path) for path in offline.rglob("*"))):
        assert "overlays" not in shown and "index.html" not in shown and "report_" not in shown


def test_a_failure_names_the_finished_report(three_analyzed, written, monkeypatch):
    monkeypatch.setattr(wandb.Run, "log", Mock(side_effect=ConnectionResetError("Connection lost")))
    with pytest.raises(UserError, match=rf"report is complete in {written}.*Connection lost"):
        log_report(three_analyzed, (), written)
    wandb.finish()


def test_the_command_logs_only_when_asked(tmp_path, monkeypatch):
    log = Mock(return_value=Path("offline-run"))
    monkeypatch.setattr("xbench.commands.report.write_report", lambda *arguments: ("analysis", "tables"))
    monkeypatch.setattr(log_report_module, "log_report", log)
    main(["report", str(tmp_path), "--out", str(tmp_path)])
    assert not log.called
    for words, pictures in ((["--wandb", "true"], False), (["--wandb", "--wandb-pictures"], True)):
        main(["report", str(tmp_path), "--out", str(tmp_path), *words])
        log.assert_called_with("analysis", "tables", tmp_path, pictures)
