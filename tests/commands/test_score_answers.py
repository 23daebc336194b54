"""Runs of boxes and answers that were made elsewhere."""

from __future__ import annotations

import csv
import json

import pytest

from xbench.runs.finished import FinishedRun

DATA = ("--data.images", "6", "--data.num_workers", "0")
QUIET = (*DATA, "--trainer.accelerator", "cpu", "--trainer.logger", "false", "--trainer.enable_progress_bar", "false")
SCORE = ("score", "--config", "phantom", "--name", "boxes", *QUIET)


@pytest.fixture(scope="module")
def truth():
    """The annotated boxes of phantoms by image and finding, in fractions, and the size of each image."""
    from xbench.data import PhantomCXR

    data = PhantomCXR(images=6, num_workers=0)
    data.setup("test")
    boxes, sizes = {}, {}
    for record in data.records:
        radiograph = data.load(record)
        sizes[record.image_id] = radiograph.image.shape
        for finding, items in radiograph.instances.items():
            boxes[record.image_id, finding] = [[float(corner) for corner in item.box()] for item in items]
    return boxes, sizes


def write(kind, path, boxes, sizes):
    if kind == "csv":
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["image", "finding", "x0", "y0", "x1", "y1", "score"])
            for (image, finding), drawn in boxes.items():
                for box in drawn:
                    table.writerow([image, finding.lower().replace(" ", "_"), *map(repr, box), 0.5])
        return ("--frame", "fraction_whole")
    if kind == "json":
        results = []
        for (image, finding), drawn in boxes.items():
            height, width = sizes[image]
            for x0, y0, x1, y1 in drawn:
                bbox = [x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height]
                results.append({"image_id": image, "category_id": finding, "bbox": bbox, "score": 0.5})
        path.write_text(json.dumps(results))
        return ("--frame", "pixels_sent")
    with path.open("w") as file:
        for (image, finding), drawn in boxes.items():
            entry = {"image": image, "finding": finding, "boxes": drawn, "scores": [0.5] * len(drawn)}
            if kind == "answers.jsonl":
                turned = [[1000 * box[place] for place in (1, 0, 3, 2)] for box in drawn]
                said = json.dumps([{"box_2d": box, "label": finding} for box in turned])
                entry = {"image": image, "finding": finding, "answer": f"Final Answer: {said}"}
            file.write(f"{json.dumps(entry)}\n")
    return (
        ("--family", "medgemma", "--frame", "thousand_whole_yx")
        if kind == "answers.jsonl"
        else (
            "--frame",
            "fraction_whole",
        )
    )


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl", "answers.jsonl"])
def test_true_boxes_score_what_boxes_can(command, truth, tmp_path, kind):
    path = tmp_path / f"mine.{kind}"
    run = command(*SCORE, "--predictions", path, *write(kind, path, *truth))
    assert run.status == 0, run.errors
    answers = run.results["answers"]
    assert answers["kind"] == "boxes" and answers["macro"]["box_iou"] == pytest.approx(1, abs=1e-9)
    assert set(run.results["classification"]["macro"].values()) == {None}
    assert command("verify", run.folder).status == 0
    rows = [row for rows in FinishedRun.open(run.folder).answers.values() for row in rows]
    assert len(rows) == len(truth[0]) and all(row.status == "answered" for row in rows)
    assert len(run.results["provenance"]["model"]["predictions_sha256"]) == 64


def test_no_box_is_a_miss_and_a_box_on_a_negative_an_alarm(command, truth, tmp_path):
    boxes = dict(truth[0])
    (image, finding), lost = boxes.popitem()
    absent = next(one for one in truth[1] if (one, finding) not in truth[0])
    path = tmp_path / "mine.csv"
    options = write("csv", path, boxes | {(absent, finding): lost}, truth[1])
    run = command(*SCORE, "--predictions", path, *options)
    assert run.status == 0, run.errors
    rows = {(row.image_id, row.finding): row for rows in FinishedRun.open(run.folder).answers.values() for row in rows}
    assert rows[image, finding].status == "abstained" and rows[absent, finding].status == "answered"
    assert run.results["answers"]["per_class"][finding]["false_alarm"] > 0


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("image,finding,x0,y0,x1,y1\na,Nodule,0,0,1,1\n", ["--frame", "fraction_whole"], "--extra ignore"),
        ("image,finding,x0,y0,x1\n", ["--frame", "fraction_whole"], "speaks of nothing"),
        ("image,finding,x0,y0,x1\na,b,1,2,3\n", ["--frame", "fraction_whole"], "cannot be read"),
        ("image,finding,x0,y0,x1,y1\na,b,1,2,3,nan\n", ["--frame", "fraction_whole"], "no box of four numbers"),
        ("image,finding,x0,y0,x1,y1,score\na,b,1,2,3,4,7\n", ["--frame", "fraction_whole"], "not from 0 to 1"),
        ("image,finding,x0,y0,x1,y1\na,b,1,2,3,4\n", [], "--frame says what their numbers mean"),
        ("image,finding,x0,y0,x1,y1\na,b,1,2,3,4\n", ["--frame", "whole"], "whole"),
        ("image,finding,x0,y0,x1,y1\n", ["--scores", "none"], "--scores says nothing about boxes"),
    ],
)
def test_what_does_not_fit_is_refused(command, tmp_path, text, options, said):
    (tmp_path / "mine.csv").write_text(text)
    run = command(*SCORE, "--predictions", tmp_path / "mine.csv", *options)
    assert run.status == 2 and said in run.errors
    assert run.errors.count("\n") == 1


@pytest.mark.parametrize("content", ['{"a": 1}', "[1]", '[{"image_id": 1}]', "[" * 100_000, "\x00"])
def test_damaged_files_are_named(command, tmp_path, content):
    (tmp_path / "mine.json").write_text(content)
    run = command(*SCORE, "--predictions", tmp_path / "mine.json", "--frame", "pixels_sent")
    assert run.status == 2 and "mine.json" in run.errors and run.errors.count("\n") == 1
