from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from chat_server import log
from processes import start, until
from run_files import disagreements

from xbench.cli import main
from xbench.predictions.asking import Reply

CONCURRENCY = 3
pytestmark = pytest.mark.filterwarnings("ignore:.*are retried")


def words(folder: Path, url: str, *options: str) -> list[str]:
    model = {"base_url": url, "model": "truth", "recognise": "true", "cache": folder / "cache", "back_off": 0.01}
    data = {"images": 10, "size": 64, "batch_size": 3, "num_workers": 0, "cache": "false"}
    given = [f"--model.{name}={value}" for name, value in (model | {"concurrency": CONCURRENCY}).items()]
    given += [f"--data.{name}={value}" for name, value in data.items()]
    given += [f"--trainer.default_root_dir={folder / 'runs'}", "--trainer.logger=false", "--trainer.accelerator=cpu"]
    return ["test", "--config", "endpoint_phantom", *given, *options]


def finished(folder: Path) -> tuple[Path, dict, list[dict]]:
    (results,) = folder.glob("runs/*/*/results.json")
    rows = pq.read_table(results.parent / "predictions.parquet").drop_columns("from_cache").to_pylist()
    content = json.loads(results.read_text())
    return results.parent, {name: content[name] for name in ("classification", "grounding", "answers", "counts")}, rows


@pytest.fixture(scope="module")
def whole(address, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        assert main(words(folder, f"{address}/whole:ok/v1")) == 0
    return finished(folder)


def test_a_killed_run_goes_on_and_asks_nothing_twice(address, whole, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    broken = tmp_path / "broken"
    broken.mkdir()
    folder, scores, rows = whole
    assert disagreements(folder) == []
    assert {row["status"] for row in rows} == {"answered", None} and scores["answers"]["overall"]["acc_75"] > 0.9

    # The first 40 requests are answered at once, three batches or so; those after never, until the run is killed.
    script = f"broken:{'ok,' * 40}{'slow=60,' * CONCURRENCY}ok"
    process = start(words(broken, f"{address}/{script}/v1"), broken)
    until(lambda: len(log(address, script)) == 40 + CONCURRENCY)
    process.kill(signal.SIGKILL)
    assert process.wait() == -9
    kept = {path: path.stat().st_mtime_ns for path in (broken / "cache").rglob("*.json")}
    assert len(kept) == 40 and not [*broken.glob("runs/*/*/results.json")]

    assert main(words(broken, f"{address}/{script}/v1", "--resume", "true")) == 0
    assert finished(broken)[1:] == (scores, rows)
    requests = [(*parts(request), request["body"].get("logprobs")) for request in log(address, script)]
    assert len({*requests[:40], *requests[43:]}) == len(requests) - CONCURRENCY == len(rows)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    from_cache = pq.read_table(finished(broken)[0] / "predictions.parquet")["from_cache"].to_pylist()
    assert 0 < sum(from_cache) < 40  # of the batch that was cut; those before are in the journal


def test_what_is_asked_again_is_kept_and_compared_and_not_scored(address, whole, tmp_path, capsys):
    """Refusals among the repeats of the first batch: else all is as in a run that asks once."""
    first = [row for row in whole[2] if row["index"] < 4]
    asked = sum(row["asked"] == "locate" and row["index"] < 3 for row in first)
    script = f"again:{'ok,' * asked}{'refusal,' * 2}ok"
    command = words(tmp_path, f"{address}/{script}/v1", "--model.repeats=3", "--model.concurrency=1", "--data.images=4")
    assert main(command) == 0
    assert "Asked again" in capsys.readouterr().out
    folder, repeated, rows = finished(tmp_path)
    assert [row for row in rows if row["asked"] != "again"] == first and disagreements(folder) == []
    counted = repeated["answers"]["repeats"]
    located = sum(row["asked"] == "locate" for row in rows)
    assert counted == {"asked": 2 * located, "same_status": 2 * located - 2, "same_boxes": 2 * located - 2}
    assert main(["rescore", str(folder), "--out", str(tmp_path / "read"), "--workers", "0"]) == 0
    assert json.loads((tmp_path / "read" / "results.json").read_text())["answers"] == repeated["answers"]
    before = len(log(address, script))
    shutil.rmtree(folder.parent)
    assert main(command) == 0 and len(log(address, script)) == before and finished(tmp_path)[2] == rows


def test_a_model_that_is_sure_finishes(address, whole, tmp_path):
    """Its two log-probabilities, 0.0 and -18.5, are those of float32 and add up to more than 1."""
    assert main(words(tmp_path, f"{address}/sure:ok/v1")) == 0
    folder, scores, rows = finished(tmp_path)
    asked = [row for row in rows if row["asked"] == "recognise"]
    assert {row["mass"] for row in asked} == {1.0} and {round(abs(row["logit"]), 6) for row in asked} == {18.5}
    assert scores["classification"]["macro"]["auroc"] == whole[1]["classification"]["macro"]["auroc"]
    assert disagreements(folder) == []


def test_a_row_that_no_file_takes_stops_the_run_at_its_image(address, tmp_path, capsys, monkeypatch):
    """What came before is kept: the same command goes on, and asks nothing twice."""
    read, seen = Reply.recognition, []

    def once(reply):
        seen.append(reply)
        return replace(read(reply), mass=1.5 if len(seen) > 40 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(Reply, "recognition", once)
        assert main(words(tmp_path, f"{address}/bad:ok/v1")) == 1
    said, before = capsys.readouterr().err.splitlines()[-1], len(log(address, "bad:ok"))
    assert said.startswith("error: ") and "phantom" in said and "mass" in said and "--resume true" in said
    assert main(words(tmp_path, f"{address}/bad:ok/v1", "--resume", "true")) == 0
    asked = log(address, "bad:ok")
    assert len({parts(request) for request in asked}) == len(asked) > before
    assert disagreements(finished(tmp_path)[0]) == []


def test_a_key_that_the_server_echoes_is_in_no_file(address, tmp_path, capsys, monkeypatch):
    key = "sk-very-secret"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert main(words(tmp_path, f"{address}/echo:echo/v1", "--data.images=2")) == 0
    folder, _, rows = finished(tmp_path)
    assert {(row["raw"], row["reasoning"]) for row in rows} == {("None. Bearer ***", "Bearer ***, hm")}
    assert main(["report", str(folder), "--out", str(tmp_path / "report")]) == 0
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    texts = [repr(rows), *capsys.readouterr()]
    assert len(written) > 10 and not any(key.encode() in content for content in [*written, *map(str.encode, texts)])


def parts(request: dict) -> tuple[str, str]:
    image, text = request["body"]["messages"][-1]["content"]
    return image["image_url"]["url"], text["text"]
