from __future__ import annotations

import json
import shutil
import signal
from contextlib import nullcontext
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tiny_maira2
from chat_server import log
from PIL import Image
from processes import run_ranks, start, until
from run_files import disagreements, run_in

from xbench.cli import main
from xbench.models import Maira2
from xbench.predictions.asking import Reply
from xbench.runs.files import OF_WORDS, SCHEMAS
from xbench.runs.finished import FinishedRun
from xbench.runs.protocols import read_protocol_pairs, score_without_maps
from xbench.runs.words import Words
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UserError


def phantoms(folder: Path, *given: str) -> list[str]:
    data = ["--data.images=10", "--data.size=64", "--data.batch_size=3", "--data.num_workers=0", "--data.cache=false"]
    return [*data, f"--trainer.default_root_dir={folder / 'runs'}", "--trainer.logger=false", *given]


def scored(folder: Path, rows: list[dict[str, Any]], family: str, *given: str) -> int:
    (folder / "said.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["--predictions", str(folder / "said.jsonl"), "--name", "said", "--family", family, *given]
    return main(["score", "--config", "phantom", *words, *phantoms(folder)])


def served(folder: Path, url: str, ask: str, *given: str) -> list[str]:
    model = {"base_url": url, "model": "truth", "ask": ask, "ask_negatives": "true", "cache": folder / "cache"}
    options = [f"--model.{name}={value}" for name, value in (model | {"concurrency": 1}).items()]
    return ["test", "--config", "endpoint_phantom", *phantoms(folder, *options), "--trainer.accelerator=cpu", *given]


def pairs_of(run: Path, label: int) -> list[tuple[str, str]]:
    scores, findings = FinishedRun.open(run).image_scores, FinishedRun.open(run).results.findings
    return [(scores.image_ids[row], findings[at]) for row, at in np.argwhere(scores.labels == label).tolist()]


def words_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "protocols" / "words.json").read_text())


def rescored(run: Path, *options: str) -> dict[str, Any]:
    assert main(["rescore", str(run), "--protocol", "words", "--workers", "0", *options]) == 0
    assert disagreements(run) == []
    return words_of(run)


def texts_of(run: Path) -> list[tuple[str, str, str]]:
    return [(row.image_id, row.finding, row.raw) for row in FinishedRun.open(run).texts]


@pytest.fixture(scope="module")
def reported(address, tmp_path_factory) -> Path:
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
    assert words_of(run)["texts"]["count"] == len(texts) and words_of(run)["numbers"]["side_joint"]["value"] > 0.5
    if ask == "report":
        assert texts == texts_of(reported) and [*{name for _, name, _ in texts}] == [""] and len(texts) == 10
    else:
        assert len(texts) == int((scores.labels >= 0).sum()) and any("zone" in text for _, _, text in texts)


def test_a_file_of_reports_is_the_run_that_wrote_it(reported, tmp_path):
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
        assert words_of(run_in(tmp_path / path.stem))["numbers"] == words_of(reported)["numbers"]


@pytest.mark.parametrize(("missing", "status", "says"), [("stop", 2, "no text for 1"), ("skip", 0, "is missing")])
def test_a_missing_report(reported, missing, status, says, tmp_path, capsys):
    rows = [{"image": image, "text": text} for image, _, text in texts_of(reported)[1:]]
    assert scored(tmp_path, rows, "report", "--missing", missing) == status
    assert says in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize("missing", ["stop", "skip"])
def test_answers_in_words(reported, missing, tmp_path, capsys):
    """Findings in capitals; a present pair without an answer is refused or not scored, an absent one was not asked."""
    asked = [*pairs_of(reported, 1)[missing == "skip" :], *pairs_of(reported, 0)[:2]]
    rows = [{"image": image, "finding": name.upper(), "answer": "On the left."} for image, name in asked]
    assert scored(tmp_path, rows, "words", "--missing", missing) == 0
    run = run_in(tmp_path)
    assert sorted(texts_of(run)) == sorted((*pair, "On the left.") for pair in asked) and disagreements(run) == []
    if missing == "stop":
        assert scored(tmp_path, rows[1:], "words") == 2
        assert f"no answer about image {asked[0][0]}" in " ".join("".join(capsys.readouterr()).split())


WRONG = [[], {"image": "a"}, {"text": "a"}, {"image": "a", "text": 3}, {"image": "a", "text": "", "finish": "long"}]


@pytest.mark.parametrize("entry", WRONG)
def test_a_file_of_something_else_is_refused(entry, tmp_path, capsys):
    assert scored(tmp_path, [entry], "report") == 2 and "cannot be read: line 1" in capsys.readouterr().err


def test_maira2_writes_a_report(tmp_path_factory, tmp_path, monkeypatch, capsys):
    """Its words are read without tags, and its boxes are of what their phrases mention."""
    folder = tmp_path_factory.getbasetemp() / "tiny-maira2"
    if not folder.is_dir():
        tiny_maira2.build(folder)
    given = [f"--model.checkpoint={folder}", "--model.max_tokens=6", "--trainer.accelerator=cpu"]
    words = ["test", "--config", "maira2_phantom", *phantoms(tmp_path, *given), "--data.images=4"]
    assert main([*words, "--model.ask=report"]) == 0
    assert len(texts_of(run_in(tmp_path))) == 4 and disagreements(run_in(tmp_path)) == []
    assert main([*words, "--model.ask=where"]) == 2 and "no question under where" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "runs")
    effusion = "<obj>Left effusion and left nodule. <box><x10><y70><x20><y80></box></obj>"
    text = f"{effusion}<obj>Right upper mass. <box><x10><y10><x20><y20></box></obj><obj>No pneumothorax.</obj>"
    monkeypatch.setattr(Maira2, "ask", lambda model, batch, queries: [Reply(text, "stop")] * len(queries))
    assert main([*words, "--model.ask=report"]) == 0
    run = run_in(tmp_path)
    (row, *_), table = pq.read_table(run / "texts.parquet").to_pylist(), read_protocol_pairs(run, "words")
    assert "<" not in row["text"] and row["asked"] is None and disagreements(run) == []
    names = np.array(FinishedRun.open(run).results.findings)[table["column"]]
    places = {name: (table["sides"][at], table["map_sides"][at]) for at, name in enumerate(names)}
    assert places["Pleural Effusion"] == places["Nodule"] == ("left", "right") and places["Mass"] == ("right", "right")
    assert places["Pneumothorax"] == ("", "") and 0 < words_of(run)["numbers"]["words_boxes_agree"]["value"] < 1


def change(folder: Path, file: str, column: str, numbers: Path) -> None:
    table = pq.read_table(folder / file)
    cells = table[column].to_pylist()
    filled = next(row for row, cell in enumerate(cells) if cell is not None)
    cells[filled] = {"mentions.parquet": ["midline"]}.get(file, 0.4) if column in ("sides", "midline") else "correct"
    field = table.schema.field(column)
    place, old = table.schema.get_field_index(column), file_sha256(folder / file)
    pq.write_table(table.set_column(place, field, pa.array(cells, field.type)), folder / file)
    numbers.write_text(numbers.read_text().replace(old, file_sha256(folder / file)))


CHANGES = [("texts", "text"), ("texts", "status"), ("mentions", "sides"), ("mentions", "finding")]
CHANGES += [("protocols/words", name) for name in ("status", "true_sides", "side", "zones", "midline")]


@pytest.mark.parametrize(("file", "column"), [*CHANGES, ("predictions", "raw")])
def test_a_changed_text_mention_or_outcome_is_found(reported, file, column, tmp_path):
    run = shutil.copytree(reported, tmp_path / "run")
    numbers = run / ("results.json" if file == "predictions" else "protocols/words.json")
    change(run, f"{file}.parquet", column, numbers)
    assert any(not one.place.endswith("SHA-256") for one in disagreements(run))
    numbers.write_text(numbers.read_text().replace('"tuned": null', '"tuned": {"Mass": {}}'))
    with pytest.raises(UserError) if numbers.name == "words.json" else nullcontext():
        assert disagreements(run)


def test_lungs_vocabulary_and_own_names_are_kept_in_the_run(reported, tmp_path, capsys):
    run, images = shutil.copytree(reported, tmp_path / "run"), FinishedRun.open(reported).rows.image_ids
    usual, lungs = words_of(run), tmp_path / "lungs"
    lungs.mkdir()
    mask = np.zeros((100, 100), np.uint8)
    mask[20:80, 10:50], mask[20:80, 70:90] = 255, 255
    for image in images:
        Image.fromarray(mask).save(lungs / f"{image}.png")
    moved = rescored(run, "--lungs", str(lungs), "--strict")
    assert moved["settings"] == usual["settings"] | {"lungs": "given", "strict": True}
    table = read_protocol_pairs(run, "words")
    assert {*zip(*(table[name] for name in ("midline", "top", "bottom")), strict=True)} == {(0.6, 0.2, 0.8)}
    lines = ["image,midline,top,bottom", *(f"{image},0.6,0.2,0.8" for image in images)]
    (tmp_path / "lungs.csv").write_text("\n".join(lines))
    assert rescored(run, "--lungs", str(tmp_path / "lungs.csv"), "--strict") == moved
    (tmp_path / "lungs.csv").write_text("\n".join(lines[:-1]))
    assert main(["rescore", str(run), "--protocol", "words", "--lungs", str(tmp_path / "lungs.csv")]) == 2
    assert f"lacks 1 images (first: {images[-1]})" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "lungs.csv").write_text("\n".join([*lines, "other,0.5,0.1,high"]))
    Image.fromarray(mask[:, :50]).save(lungs / f"{images[0]}.png")
    wrong = [["--lungs", str(lungs)], ["--lungs", str(tmp_path / "lungs.csv")], ["--words-of-maps"]]
    says = [f"{images[0]}.png cannot be read", f"lungs.csv (row {len(lines) + 1}) cannot", "and centers of boxes, and"]
    for options, problem in zip(wrong, says, strict=True):
        assert main(["rescore", str(run), "--protocol", "words", *options]) == 2
        assert problem in " ".join(capsys.readouterr().err.split())
    own = tmp_path / "own.yaml"
    own.write_text(resources.files("xbench.predictions").joinpath("words.yaml").read_text() + "\n# Ours.\n")
    changed = rescored(run, "--words", str(own))
    assert changed["settings"]["vocabulary"] == file_sha256(own) == file_sha256(run / "protocols" / "words.yaml")
    assert changed["numbers"] == usual["numbers"] and rescored(run) == usual
    assert not (run / "protocols" / "words.yaml").exists()


def test_words_around_boxes_and_places_of_boxes_alone(reported, tmp_path):
    answer = "In the left lung at [0.1, 0.1, 0.3, 0.3]."
    rows = [{"image": image, "finding": name, "answer": answer} for image, name in pairs_of(reported, 1)]
    rows[0]["answer"] = "It cannot be seen."
    assert scored(tmp_path, rows, "radvlm") == 0
    run = run_in(tmp_path)
    assert main(["rescore", str(run), "--protocol", "all"]) == 0 and not (run / "protocols" / "words.json").exists()
    both = {name: number["value"] for name, number in rescored(run)["numbers"].items()}
    assert (both["words_boxes_agree"], both["denied"] > 0) == (0, True) and (run / "texts.parquet").exists()
    alone = rescored(run, "--words-of-maps")
    for name in ("side_joint", "side_coverage"):
        assert 0 < alone["numbers"][name]["value"] == both[f"map_{name}"] < 1
    assert alone["texts"]["count"] == 0 and not (run / "texts.parquet").exists()


def test_texts_are_counted_by_what_became_of_them(reported, tmp_path):
    said = ["On the left side of the image there is an effusion.", "Left effusion. No effusion.", "Pneumothor", " "]
    images = [image for image, _, _ in texts_of(reported)]
    rows = [{"image": image, "text": text} for image, text in zip(images, [*said, *["Normal chest."] * 6], strict=True)]
    rows[2] |= {"finish": "length"}
    assert scored(tmp_path, rows, "report") == 0
    shares = {
        "viewer_frame": 0.1,
        "contradicts_itself": 0.1,
        "truncated": 0.1,
        "empty": 0.1,
        "normal": 0.6,
        "read": 0.2,
    }
    assert words_of(run_in(tmp_path))["texts"] == {"count": 10, "declined": 0, "unreadable": 0} | shares


def test_the_prior_is_learned_on_another_run(address, reported, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    run = shutil.copytree(reported, tmp_path / "run")
    assert main(served(tmp_path, f"{address}/other:ok/v1", "report", "--data.seed=1")) == 0
    assert main(["rescore", str(run), "--protocol", "words", "--tune", str(reported)]) == 2
    capsys.readouterr()
    learned = rescored(run, "--tune", str(run_in(tmp_path / "runs")))
    assert {*learned["tuned"]["Nodule"]} == {"sides", "zones"} and learned["numbers"]["side_prior"]["value"] > 0
    assert "Texts: 10, 80.0% read, 20.0% normal." in " ".join(capsys.readouterr().out.split())
    assert main(["rescore", str(run), "--strict"]) == 2 and "need --protocol words" in capsys.readouterr().err


def test_two_processes_write_the_same(address, reported, tmp_path):
    two = served(tmp_path, f"{address}/two:ok/v1", "report", "--trainer.devices=2", "--oversubscribe=true")
    statuses, said = run_ranks(2, two, tmp_path, OPENAI_API_KEY="")
    assert statuses == [0, 0], said
    for name in (*SCHEMAS, *OF_WORDS, "protocols/words.json", "protocols/words.parquet"):
        if name != "predictions.parquet" and (reported / name).exists():
            assert (run_in(tmp_path) / name).read_bytes() == (reported / name).read_bytes(), name


def test_lateral_views_are_not_scored(reported):
    run = FinishedRun.open(reported)
    every = score_without_maps(run, ["words"], Words(run))["words"]["image_id"]
    run.attributes = {every[0]: {"projection": "lateral"}}
    assert {*score_without_maps(run, ["words"], Words(run))["words"]["image_id"]} == {*every} - {every[0]}


@pytest.mark.parametrize("option", ["--model.recognise=true", "--model.repeats=2", "--data.interventions=[mean]"])
def test_options_of_boxes_are_refused(address, option, tmp_path, capsys):
    assert main(served(tmp_path, f"{address}/refused:ok/v1", "where", option)) == 2
    assert "need --model.ask boxes" in capsys.readouterr().err
