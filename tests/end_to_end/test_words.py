"""Words from any source: served models that are killed, files of reports and of answers, and MAIRA-2's report."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tiny_maira2
from chat_server import log
from processes import start, until
from run_files import disagreements

from xbench.cli import main
from xbench.runs.finished import FinishedRun


def phantoms(folder: Path, *given: str) -> list[str]:
    data = {"images": 10, "size": 64, "batch_size": 3, "num_workers": 0, "cache": "false"}
    options = [f"--data.{name}={value}" for name, value in data.items()]
    options += [f"--trainer.default_root_dir={folder / 'runs'}", "--trainer.logger=false"]
    return [*options, *given]


def served(folder: Path, url: str, ask: str, *given: str) -> list[str]:
    model = {"base_url": url, "model": "truth", "ask": ask, "ask_negatives": "true", "cache": folder / "cache"}
    options = [f"--model.{name}={value}" for name, value in (model | {"concurrency": 1}).items()]
    return ["test", "--config", "endpoint_phantom", *phantoms(folder, *options), "--trainer.accelerator=cpu", *given]


def run_in(folder: Path) -> Path:
    (results,) = folder.glob("runs/*/*/results.json")
    return results.parent


def texts_of(run: Path) -> list[tuple[str, str, str]]:
    texts = FinishedRun.open(run).texts
    return [(row.image_id, row.finding, row.raw) for rows in texts.values() for row in rows]


@pytest.fixture(scope="module")
def reported(address, tmp_path_factory) -> Path:
    """A run of reports that nothing happened to."""
    folder = tmp_path_factory.mktemp("reported")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        assert main(served(folder, f"{address}/whole:ok/v1", "report")) == 0
    return run_in(folder)


@pytest.mark.parametrize("ask", ["report", "where"])
def test_a_killed_run_goes_on(address, reported, ask, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    script = f"{ask}:{'ok,' * 7}slow=60,ok"
    process = start(served(tmp_path, f"{address}/{script}/v1", ask), tmp_path)
    until(lambda: len(log(address, script)) == 8)
    process.kill(signal.SIGKILL)
    assert process.wait() == -9
    assert main(served(tmp_path, f"{address}/{script}/v1", ask, "--resume", "true")) == 0
    run = run_in(tmp_path)
    texts, scores = texts_of(run), FinishedRun.open(run).image_scores
    assert disagreements(run) == [] and main(["verify", "--deep", str(run)]) == 0
    assert "Dice" not in capsys.readouterr().out
    if ask == "report":
        assert texts == texts_of(reported) and [*{name for _, name, _ in texts}] == [""] and len(texts) == 10
    else:
        assert len(texts) == int((scores.labels >= 0).sum()) and any("zone" in text for _, _, text in texts)


def test_a_file_of_reports_is_the_run_that_wrote_it(reported, tmp_path):
    """As lines of JSON, CSV and parquet, with images named with their ending and without."""
    rows = [{"image": image, "text": text, "finish": "stop"} for image, _, text in texts_of(reported)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    table = pa.Table.from_pylist([{"image": f"{row['image']}.png", "findings": row["text"]} for row in rows])
    pa.csv.write_csv(table, tmp_path / "b.csv")
    pq.write_table(table.rename_columns(["image", "report"]), tmp_path / "c.parquet")
    for path in sorted(tmp_path.glob("?.*")):
        given = ["--predictions", str(path), "--name", path.stem, "--family", "report"]
        assert main(["score", "--config", "phantom", *given, *phantoms(tmp_path / path.stem)]) == 0
        assert texts_of(run_in(tmp_path / path.stem)) == texts_of(reported)
        assert disagreements(run_in(tmp_path / path.stem)) == []


@pytest.mark.parametrize(("missing", "status", "says"), [("stop", 2, "no text for 1"), ("skip", 0, "is missing")])
def test_a_missing_report(reported, missing, status, says, tmp_path, capsys):
    rows = [{"image": image, "text": text} for image, _, text in texts_of(reported)[1:]]
    (tmp_path / "some.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = ["--predictions", str(tmp_path / "some.jsonl"), "--name", "some", "--missing", missing]
    assert main(["score", "--config", "phantom", *given, "--family", "report", *phantoms(tmp_path)]) == status
    assert says in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize("missing", ["stop", "skip"])
def test_answers_in_words(reported, missing, tmp_path, capsys):
    """Findings in capitals; a present pair without an answer is refused or not scored, an absent one was not asked."""
    scores, findings = FinishedRun.open(reported).image_scores, FinishedRun.open(reported).results.findings
    present, absent = (
        [(scores.image_ids[row], findings[column]) for row, column in np.argwhere(scores.labels == label).tolist()]
        for label in (1, 0)
    )
    asked = [*present[missing == "skip" :], *absent[:2]]
    rows = [{"image": image, "finding": name.upper(), "answer": "On the left."} for image, name in asked]
    (tmp_path / "said.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = ["--predictions", str(tmp_path / "said.jsonl"), "--name", "said", "--family", "words"]
    assert main(["score", "--config", "phantom", *given, "--missing", missing, *phantoms(tmp_path)]) == 0
    run = run_in(tmp_path)
    assert sorted(texts_of(run)) == sorted((*pair, "On the left.") for pair in asked) and disagreements(run) == []
    (tmp_path / "said.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[1:]))
    if missing == "stop":
        assert main(["score", "--config", "phantom", *given, *phantoms(tmp_path / "again")]) == 2
        assert f"no answer about image {asked[0][0]}" in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"image": "phantom-0-000000"}, "line 1 lacks text"),
        ({"image": "phantom-0-000000", "text": 3}, "line 1: text must be a text"),
        ({"image": "phantom-0-000000", "text": "", "finish": "long"}, "finish stop or length"),
        ([], "line 1 lacks image"),
    ],
)
def test_a_file_of_something_else_is_refused(entry, says, tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text(f"{json.dumps(entry)}\n")
    given = ["--predictions", str(tmp_path / "bad.jsonl"), "--name", "bad", "--family", "report"]
    assert main(["score", "--config", "phantom", *given, *phantoms(tmp_path)]) == 2
    assert says in " ".join("".join(capsys.readouterr()).split())


def test_maira2_writes_a_report(tmp_path_factory, tmp_path, capsys):
    folder = tmp_path_factory.getbasetemp() / "tiny-maira2"
    if not folder.is_dir():
        tiny_maira2.build(folder)
    given = [f"--model.checkpoint={folder}", "--model.max_tokens=6", "--trainer.accelerator=cpu"]
    words = ["test", "--config", "maira2_phantom", *phantoms(tmp_path, *given), "--data.images=2"]
    assert main([*words, "--model.ask=report"]) == 0
    assert len(texts_of(run_in(tmp_path))) == 2 and disagreements(run_in(tmp_path)) == []
    assert main([*words, "--model.ask=where"]) == 2 and "no question under where" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--model.recognise=true", "--model.repeats=2", "--data.interventions=[mean]"])
def test_options_of_boxes_are_refused(address, option, tmp_path, capsys):
    assert main(served(tmp_path, f"{address}/refused:ok/v1", "where", option)) == 2
    assert "go with --model.ask boxes" in capsys.readouterr().err
