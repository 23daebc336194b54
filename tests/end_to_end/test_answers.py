from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from processes import run_ranks
from run_files import disagreements, run_in
from talkers import LAME

from xbench.cli import main
from xbench.metrics import LesionDetections
from xbench.report.charts import curves
from xbench.report.facts import facts_of
from xbench.report.notes import warnings
from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.sentences import in_a_line
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables
from xbench.runs.answers import read_answers
from xbench.runs.finished import FinishedRun
from xbench.runs.protocols import read_protocol, read_protocol_pairs, stored_protocols
from xbench.runs.summary import numbers_of, summarize
from xbench.scoring.boxes import pairwise_iou, score_boxes, score_on_grid
from xbench.scoring.protocols import medground, radfact, radvlm

FILES = ("pairs.parquet", "images.parquet", "predictions.parquet", "truth.parquet")

SQUARES = "toys.Squares, init_args: {images: 40, widths: [64, 200], num_workers: 0}"
POINTS = ("--model.what", "points")
PHANTOMS = "xbench.data.PhantomCXR, init_args: {images: 30, size: 128, num_workers: 0}"


def words(folder: Path, *options: str, model: str = "talkers.Talker", data: str = SQUARES) -> list[str]:
    folder.mkdir(exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(f"model: {{class_path: {model}}}\ndata: {{class_path: {data}}}\n")
    places = ("--trainer.default_root_dir", str(folder / "runs"), "--trainer.logger", "false")
    return ["test", "--config", str(config), *places, *options]


@pytest.fixture(scope="module")
def talked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("talked")
    options = ("--model.recognise", "true", "--model.ask_negatives", "true", "--model.log", str(folder / "log"))
    assert main(words(folder, *options)) == 0
    return folder


def test_all_that_was_said_is_kept_and_scored(talked):
    run = FinishedRun.open(run_in(talked))
    answers, scores = run.results.answers, run.image_scores
    rows = [row for rows in run.answers.values() for row in rows]
    asked = [line.split() for line in (talked / "log").read_text().splitlines()]
    assert sorted((row.image_id, row.finding, row.query) for row in rows) == sorted(map(tuple, asked))
    assert {row.status for row in rows} == {"answered", "abstained", "unparsable", "truncated", None}
    assert any(row.raw == LAME for row in rows)
    regions = {(image.image_id, c): of for image in run.saved_images() for c, of in image.regions.items()}
    ious = []
    assert np.isnan(run.rows["minimum_hit"]).all()
    for row in rows:
        place = run.row_of[row.image_id], run.results.findings.index(row.finding)
        if row.annotated is None:
            continue
        region = regions[row.image_id, place[1]].at(0.5)
        expected = score_on_grid(row.boxes, region)
        found = scores.pointing_hit[place], scores.dice[place], scores.iou[place]
        assert found == pytest.approx(tuple(expected), abs=1e-12)
        assert np.isnan(scores.peak_x[place]) == (not row.boxes)
        ious.append(score_boxes(row.boxes, row.annotated).box_iou)
    assert answers.overall["box_iou"] == pytest.approx(np.mean(ious), abs=1e-9)
    rates = [answers.overall[status] for status in ("answered", "abstained", "unparsable", "truncated")]
    assert sum(rates) == pytest.approx(1, abs=1e-12) and min(rates) > 0
    assert answers.overall["negatives"] == sum(row.query == "locate" and row.annotated is None for row in rows) > 0
    assert any("could not be read completely" in text for text in answers.warnings())


def test_what_means_nothing_is_null(talked):
    results = json.loads((run_in(talked) / "results.json").read_text())
    grounding = results["grounding"]
    lacking = ("dice_best", "iou_best", "dice_best_threshold", "iou_best_threshold", "dice_curve", "sign_p")
    for scores in grounding["per_class"].values():
        assert not any(scores[name] for name in lacking)
    assert grounding["sign_test"] is None and grounding["macro"]["dice_best"] is None
    assert 0 < grounding["macro"]["dice_fixed"] < 1 and results["counts"]["constant_maps"]["count"] == 0
    assert grounding["per_class"]["Ghost"]["dice_fixed"] is None


def test_tokens_are_summed_over_all_that_was_asked(talked):
    said = FinishedRun.open(run_in(talked)).results.answers
    table = pq.read_table(run_in(talked) / "predictions.parquet").to_pylist()
    counts = [(row["tokens_in"], row["tokens_out"]) for row in table]
    known = [pair for pair in counts if pair != (None, None)]
    sent, received = (sum(filter(None, side)) for side in zip(*known, strict=True))
    assert (said.tokens.counted, said.tokens.sent, said.tokens.received) == (len(known), sent, received)
    assert sent > 100 and received > 100


def test_recognition_counts_what_cannot_be_read_as_the_worst(talked):
    run = FinishedRun.open(run_in(talked))
    found, scores = run.results.answers.recognition, run.image_scores
    unread = np.isnan(scores.probabilities) & (scores.labels >= 0)
    assert found.unreadable == unread.sum() > 0 and found.asked == (scores.labels >= 0).sum()
    assert {*found.ways} == {"decision", "stated confidence"} and not found.decisions_only
    column = run.results.findings.index("Square")
    present = scores.labels[:, column] == 1
    right = (scores.probabilities[:, column] >= 0.5) == present
    right[unread[:, column]] = False
    assert run.results.classification.per_class["Square"].accuracy == pytest.approx(right.mean())
    assert found.readable_only["accuracy"] > run.results.classification.macro["accuracy"]


def test_sensitivity(talked):
    answers = FinishedRun.open(run_in(talked)).results.answers
    headline, of = answers.macro["box_iou"], answers.sensitivity
    assert of["truncated_as_misses"]["box_iou"] < headline == pytest.approx(of["unparsable_as_useless"]["box_iou"])
    assert of["unparsable_as_perfect"]["box_iou"] > headline < of["answered_only"]["box_iou"]
    assert of["answered_only"]["pairs"] < answers.overall["pairs"] == of["truncated_as_misses"]["pairs"]


def test_the_order_of_rows_changes_no_number(talked):
    run = FinishedRun.open(run_in(talked))
    rows = [row for rows in run.answers.values() for row in rows]
    of_run = ("a", "b", "test"), run.rows, numbers_of(run.rows), 101
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        again = summarize(*of_run, provenance=run.results.provenance, answers=rows)
        assert again.answers == run.results.answers


def test_boxes_that_are_not_in_the_words_are_found(talked, tmp_path):
    folder = run_in(talked)
    assert disagreements(folder, deep=True) == []
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in folder.iterdir():
        (changed / path.name).write_bytes(path.read_bytes())
    table = pq.read_table(folder / "predictions.parquet")
    raw = table["raw"].to_pylist()
    at = next(place for place, status in enumerate(table["status"].to_pylist()) if status == "answered")
    raw[at] = "It is at [0, 0, 10, 10]."
    pq.write_table(
        table.set_column(table.column_names.index("raw"), table.field("raw"), [raw]), changed / "predictions.parquet"
    )
    found = {one.place.partition(" / row")[0] for one in disagreements(changed, deep=True)}
    assert {"predictions.parquet / SHA-256", "predictions.parquet / boxes", "pairs.parquet / box_iou"} <= found


def test_a_run_whose_answers_are_lost_is_set_aside(talked, tmp_path, capsys):
    folder, broken = run_in(talked), tmp_path / "runs" / "talker_squares" / "broken"
    broken.mkdir(parents=True)
    for path in folder.iterdir():
        if path.name != "predictions.parquet":
            (broken / path.name).write_bytes(path.read_bytes())
    collection = collect([broken, folder])
    assert len(collection.runs) == 1 and "predictions.parquet" in collection.set_aside[0].reason
    assert main(["verify", str(broken)]) == 2
    table = pq.read_table(folder / "predictions.parquet")
    pq.write_table(table.slice(20), broken / "predictions.parquet")
    assert "one answer for each scored pair" in collect([broken, folder]).set_aside[0].reason
    capsys.readouterr()
    assert main(["verify", str(broken)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_rescore_of_some_images(talked, tmp_path):
    names = FinishedRun.open(run_in(talked)).image_scores.image_ids[3:9]
    (tmp_path / "some.txt").write_text("\n".join(names))
    some = tmp_path / "some"
    assert main(["rescore", str(run_in(talked)), "--images", str(tmp_path / "some.txt"), "--out", str(some)]) == 0
    run = FinishedRun.open(some)
    assert [*run.answers] == names and disagreements(some) == []
    assert {row.image_id for rows in run.answers.values() for row in rows} <= {*names}


def test_rescore_reads_again_without_asking(talked, tmp_path, capsys):
    folder, again = run_in(talked), tmp_path / "again"
    assert main(["rescore", str(folder), "--out", str(again), "--workers", "0"]) == 0
    for name in FILES:
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name
    one, other = (json.loads((path / "results.json").read_text()) for path in (folder, again))
    assert one["answers"] == other["answers"] and one["grounding"] == other["grounding"]
    moved = tmp_path / "moved"
    assert main(["rescore", str(folder), "--out", str(moved), "--workers", "0", "--frame", "thousand_padded"]) == 0
    results = FinishedRun.open(moved).results
    assert results.answers.frame == results.provenance["model"]["frame"] == "thousand_padded"
    assert results.answers.macro["box_iou"] < one["answers"]["macro"]["box_iou"]
    assert disagreements(moved) == []
    capsys.readouterr()
    assert main(["rescore", str(folder), "--frame", "nowhere"]) != 0
    assert "There is no frame 'nowhere'" in capsys.readouterr().err
    assert main(["rescore", str(folder), "--protocol", "aep"]) == 2
    assert "scores maps" in capsys.readouterr().err
    assert main(["rescore", str(folder), "--protocol", "detections"]) == 2
    assert "ranks boxes by confidence" in capsys.readouterr().err
    assert main(["rescore", str(folder), "--protocol", "all"]) == 0
    # Of the boxes only unions are known, which are not compared one by one.
    assert stored_protocols(folder) == ["calibration", "medground", "radfact"] and disagreements(folder) == []


@pytest.fixture(scope="module")
def ranked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranked")
    assert main(words(folder, model="talkers.Ranker", data=PHANTOMS)) == 0
    assert main(["rescore", str(run_in(folder)), "--protocol", "all"]) == 0
    assert stored_protocols(run_in(folder)) == ["detections", "medground", "radfact", "radvlm"]
    assert disagreements(run_in(folder)) == []
    return run_in(folder)


def test_boxes_are_scored_by_the_protocols_of_boxes(ranked):
    run = FinishedRun.open(ranked)
    answers = {(row.image_id, row.finding): row for rows in run.answers.values() for row in rows if row.annotated}
    for name, score in {"medground": medground.score_union, "radvlm": radvlm.score, "radfact": radfact.score}.items():
        table = read_protocol_pairs(ranked, name)
        assert len(table["label"]) == len(answers)
        for place, image_id in enumerate(table["image_id"]):
            row = answers[image_id, run.results.findings[table["column"][place]]]
            expected = score([*map(list, row.boxes)], [*map(list, row.annotated)])
            assert {key: table[key][place] for key in expected} == pytest.approx(expected, abs=1e-12)
        numbers, mean = read_protocol(ranked, name)["numbers"], {key: np.mean(table[key]) for key in expected}
        if name == "medground":
            assert {key: numbers[key]["value"] for key in mean} == pytest.approx(mean, abs=1e-12)
        if name == "radvlm":
            assert numbers["avg_iou"]["value"] == pytest.approx(mean["iou_sum"] / mean["iou_pairs"], abs=1e-12)


def test_boxes_are_ranked_by_their_confidence(ranked, tmp_path, capsys):
    folder, run = ranked, FinishedRun.open(ranked)
    content, pairs = read_protocol(folder, "detections"), read_protocol_pairs(folder, "detections")
    metric = LesionDetections(len(run.results.findings))
    for rows in run.answers.values():
        for row in rows:
            index = int(run.image_scores.index[run.row_of[row.image_id]])
            iou = pairwise_iou(row.boxes, row.annotated or ())
            metric.update(index, run.results.findings.index(row.finding), np.array(row.confidence), iou)
    for finding, expected in zip(run.results.findings, metric.compute(), strict=True):
        numbers = {number: entry["per_finding"][finding] for number, entry in content["numbers"].items()}
        assert numbers["froc"] == expected["froc"][0.3].score
        assert numbers["sensitivity"] == expected["froc"][0.3].sensitivity_at[1.0]
        assert [numbers[f"ap_{percent}"] for percent in (30, 50)] == [expected["ap"][iou] for iou in (0.3, 0.5)]
        assert numbers["map"] == expected["map"] and 0 < numbers["ap_50"] <= numbers["ap_30"] <= 1
    assert any(len(row.annotated or ()) > 1 for rows in run.answers.values() for row in rows)
    negatives = pairs["label"] == 0
    assert negatives.any() and (pairs["lesions"][negatives] == 0).all() and all(map(len, pairs["scores"]))
    # Points cannot be ranked.
    assert main(words(tmp_path / "points", *POINTS, model="oracles.Told")) == 0
    assert main(["rescore", str(run_in(tmp_path / "points")), "--protocol", "detections"]) == 2
    assert "scores maps or boxes" in capsys.readouterr().err


def test_a_run_that_stops_goes_on_and_asks_nothing_twice(talked, tmp_path, capsys):
    options = ("--model.recognise", "true", "--model.ask_negatives", "true", "--model.log", str(tmp_path / "log"))
    assert main(words(tmp_path, *options, "--model.most", "75")) == 1
    assert "The talker is tired." in capsys.readouterr().err
    before = len((tmp_path / "log").read_text().splitlines())
    assert main(words(tmp_path, *options, "--resume", "true")) == 0
    for name in FILES:
        assert (run_in(tmp_path) / name).read_bytes() == (run_in(talked) / name).read_bytes(), name
    lines = (tmp_path / "log").read_text().splitlines()
    # The batch in which it stopped is asked again.
    assert len(lines) - len({*lines}) < 75 - 8 <= before
    one, other = (json.loads((run_in(path) / "results.json").read_text()) for path in (tmp_path, talked))
    assert one["answers"] == other["answers"] and one["classification"] == other["classification"]


def test_a_report_shows_answers_beside_maps(talked, tmp_path):
    assert main(words(tmp_path, model="toys.Brightness")) == 0
    analysis = analyze(collect([talked / "runs", tmp_path / "runs"]))
    tables = {table.name: table for table in all_tables(analysis)}
    (grounding,) = (tables["grounding_honest"].rows,)
    texts = {row.cells[1].text: [cell.text for cell in row.cells] for row in grounding}
    assert texts["talker"].count("\u2013") == 6 and "\u2013" not in texts["brightness"]
    assert any("need no threshold" in note for note in tables["grounding_honest"].notes)
    (compared,) = (one for one in analysis.datasets[0].comparisons if one.number == "dice_cross_fitted")
    assert compared.p is not None
    answers = FinishedRun.open(run_in(talked)).results.answers
    (rates,) = tables["answers_rates"].rows
    assert [cell.value for cell in rates.cells[6:10]] == [
        answers.overall[name] for name in ("answered", "abstained", "unparsable", "truncated")
    ]
    kinds = {row.cells[4].text for row in tables["answers_examples"].rows}
    assert {"unparsable", "truncated", "abstained"} <= {*kinds}
    assert any("could not be read completely" in text for text in warnings(analysis.runs))
    assert {
        column.title: cell.value for column, cell in zip(tables["answers_rates"].columns, rates.cells, strict=True)
    }["Reordered"] == answers.overall["reordered"]
    page = tmp_path / "index.html"
    write_page(analysis, list(tables.values()), page, cases=4)
    text = page.read_text()
    assert "How many answers could be scored?" in text and '"boxes":[[' in text
    alone = analyze(collect([talked / "runs"]))
    # What was done to more than a few per cent of the answers is said in words.
    done, (entry,) = {"reordered": 0.21, "clipped": 0.07, "dropped": 0.33}, alone.runs
    results = replace(entry.run.results, answers=replace(answers, overall=answers.overall | done))
    said = warnings([replace(entry, run=replace(entry.run, results=results))])
    assert all(any(f"{100 * share:.1f}% of the answers" in text for text in said) for share in done.values())
    write_page(alone, list(all_tables(alone)), page, cases=1)
    line = in_a_line(facts_of(alone))
    assert "box area" in line and "map" not in line
    text = page.read_text()
    assert "boxes<span" in text and "saliency </span>map" not in text and "recognized, boxes outside" in text
    # The mask of boxes is the same at every threshold: no curve of it, nor a figure of nothing else.
    assert {bool(entry.dice_curve) for entry in analysis.runs} == {True, False}
    assert curves(analysis)
    assert not curves(alone)
    assert "threshold of the map" not in text


def test_two_processes_write_the_same(talked, tmp_path):
    asked = ("--model.recognise", "true", "--model.ask_negatives", "true", "--model.log", str(tmp_path / "log"))
    two = ("--oversubscribe", "true", "--trainer.devices", "2", "--trainer.accelerator", "cpu")
    statuses, said = run_ranks(2, words(tmp_path, *asked, *two), tmp_path)
    assert statuses == [0, 0], said
    for name in FILES:
        assert (run_in(tmp_path) / name).read_bytes() == (run_in(talked) / name).read_bytes(), name
    one, other = (json.loads((run_in(path) / "results.json").read_text()) for path in (tmp_path, talked))
    assert one | {"provenance": None} == other | {"provenance": None}


def test_nobody_asked_whether_it_is_there(tmp_path):
    assert main(words(tmp_path)) == 0
    results = FinishedRun.open(run_in(tmp_path)).results
    assert results.answers.recognition is None
    assert {*results.classification.macro.values()} == {None}
    assert results.classification.per_class["Square"].positives == 20
    assert disagreements(run_in(tmp_path)) == []
    (run,) = analyze(collect([tmp_path])).datasets[0].runs
    assert run.macro["auroc"].value is run.macro["dice_best"].value is run.macro["dice_cross_fitted"].value is None
    assert run.macro["dice_fixed"].value == pytest.approx(results.grounding.macro["dice_fixed"], abs=1e-9)
    assert run.dice_curve == () and run.quadrants == {}


def test_points_have_no_area(tmp_path):
    assert main(words(tmp_path, *POINTS, model="oracles.Told")) == 0
    folder = run_in(tmp_path)
    results = FinishedRun.open(folder).results
    assert results.answers.kind == "points" and results.grounding.macro["pointing_game"] == 1
    assert results.grounding.macro["dice_fixed"] is None and results.answers.overall["answered"] == 1
    assert results.answers.sensitivity["answered_only"]["pointing_game"] == 1
    assert disagreements(folder) == []
    pointed = [row for row in read_answers(folder / "predictions.parquet") if row.points]
    assert pointed and not any(row.boxes for row in pointed)
    (run,) = analyze(collect([tmp_path])).datasets[0].runs
    assert run.macro["pointing_game"].value == 1 and run.macro["dice_fixed"].value is None


def test_family_and_frame_are_of_answers(command):
    run = command("test", "--config", "centre_phantom", "--data.limit", "3", "--trainer.logger", "false")
    assert "answers" not in run.results
    refused = command("rescore", run.folder, "--family", "radvlm")
    assert refused.status == 2 and "shows maps" in refused.errors
