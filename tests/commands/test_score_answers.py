from __future__ import annotations

import csv
import json
import re

import pytest

from xbench.predictions.asking import Reply
from xbench.predictions.tables import read_answered
from xbench.runs.finished import FinishedRun

DATA = ("--data.images", "6", "--data.num_workers", "0")
QUIET = (*DATA, "--trainer.accelerator", "cpu", "--trainer.logger", "false", "--trainer.enable_progress_bar", "false")
SCORE = ("score", "--config", "phantom", "--name", "boxes", *QUIET)


@pytest.fixture(scope="module")
def truth():
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
    raw = ("--family", "medgemma", "--frame", "thousand_whole_yx")
    return raw if kind == "answers.jsonl" else ("--frame", "fraction_whole")


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl", "answers.jsonl"])
def test_true_boxes_score_what_boxes_can(command, truth, tmp_path, kind):
    path = tmp_path / f"mine.{kind}"
    run = command(*SCORE, "--predictions", path, *write(kind, path, *truth), status=0)
    answers = run.results["answers"]
    assert answers["kind"] == "boxes" and answers["macro"]["box_iou"] == pytest.approx(1, abs=1e-9)
    assert set(run.results["classification"]["macro"].values()) == {None}
    assert command("verify", run.folder).status == 0
    rows = [row for rows in FinishedRun.open(run.folder).answers.values() for row in rows]
    assert len(rows) == len(truth[0]) and all(row.status == "answered" for row in rows)
    assert len(run.results["provenance"]["model"]["predictions_sha256"]) == 64
    refused = command(*SCORE, "--predictions", run.folder)
    assert refused.status == 2 and "xbench rescore" in refused.errors
    again = command("rescore", run.folder, "--protocol", "radfact", "--frame", "thousand_whole", "--workers", "0")
    assert "Mean over" in again.output and "findings" in again.output
    assert again.status == 0 and again.folder != run.folder and (again.folder / "protocols").is_dir(), again.errors
    assert not (run.folder / "protocols").exists()


def test_no_box_is_a_miss_and_a_box_on_a_negative_an_alarm(command, truth, tmp_path):
    boxes = dict(truth[0])
    (image, finding), lost = boxes.popitem()
    absent = next(one for one in truth[1] if (one, finding) not in truth[0])
    path = tmp_path / "mine.csv"
    options = write("csv", path, boxes | {(absent, finding): lost}, truth[1])
    run = command(*SCORE, "--predictions", path, *options, status=0)
    rows = {(row.image_id, row.finding): row for rows in FinishedRun.open(run.folder).answers.values() for row in rows}
    assert rows[image, finding].status == "abstained" and rows[absent, finding].status == "answered"
    assert run.results["answers"]["per_class"][finding]["false_alarm"] > 0


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("image,finding,x0,y0,x1,y1\na,Nodule,0,0,1,1\n", ["--frame", "fraction_whole"], "--extra ignore"),
        ("image,finding,x0,y0,x1,y1\n", ["--frame", "fraction_whole"], "no pair of image"),
        ("image,finding,x0,y0,x1\na,b,1,2,3\n", ["--frame", "fraction_whole"], "cannot be read"),
        ("image,finding,x1,y1,x2,y2\n", [], "has the columns x1, y1, x2, y2. Boxes need x0, y0, x1 and y1"),
        ("image,finding,xmin,ymin,w,h\n", [], "has the columns xmin, ymin, w, h. Boxes need x0"),
        ("image,finding,x0,y0,x1,y1\na,b,1,2,3,4\n", [], "give --frame"),
        ("image,finding,x0,y0,x1,y1\na,b,1,2,3,4\n", ["--frame", "whole"], "whole"),
        ("image,finding,x0,y0,x1,y1\n", ["--scores", "none"], "--scores does not apply to boxes"),
        ("image,text\n", ["--family", "report", "--missing", "flat"], "--missing flat does not apply to reports"),
        ("image,text\nphantom-0-000000.png,\nphantom-0-000000,\n", ["--family", "report"], "two entries, phantom-0"),
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


def test_corners_in_the_place_of_sizes_are_reported(command, truth, tmp_path):
    boxes, sizes = truth
    results = []
    for (image, finding), drawn in boxes.items():
        height, width = sizes[image]
        corners = [[box[0] * width, box[1] * height, box[2] * width, box[3] * height] for box in drawn]
        results += [{"image_id": image, "category_id": finding, "bbox": box} for box in corners]
    (tmp_path / "mine.json").write_text(json.dumps(results))
    run = command(*SCORE, "--predictions", "mine.json", "--frame", "pixels_sent")
    said = re.sub(r"\s+", " ", run.output)
    assert run.status == 0 and "% of the answers have boxes beyond the edge of the image" in said, run.output


@pytest.mark.usefixtures("unsaved_figures")
def test_a_file_that_is_cut_off_is_said(command, truth, tmp_path):
    boxes, sizes = truth
    path = tmp_path / "mine.csv"
    options = write("csv", path, dict([*boxes.items()][: len(boxes) // 2]), sizes)
    run = command(*SCORE, "--predictions", path, *options, status=0)
    unnamed = [*boxes][len(boxes) // 2 :]
    silent = {image for image, _ in unnamed} - {image for image, _ in [*boxes][: len(boxes) // 2]}
    notes = run.results["counts"]["notes"]
    (note,) = (one for one in notes if f"no box for {len(unnamed)} of {len(boxes)} positive pairs" in one["note"])
    assert note["count"] == len({image for image, _ in unnamed})
    (incomplete,) = (one for one in notes if "no row for the image" in one["note"])
    assert silent and incomplete["count"] == len(silent) and incomplete["first"] == sorted(silent)[:10]
    assert note["note"].split()[0] in run.output
    assert command("report", run.folder, "--out", "said").status == 0
    page = (tmp_path / "said/index.html").read_text()
    assert re.search(rf"(?s)<h3>Notes</h3>\s*<ul>.*<li>{re.escape(note['note'])} \({note['count']} images\)", page)


def test_a_row_without_corners_is_said_to_be_none(command, truth, tmp_path):
    boxes, sizes = truth
    path = tmp_path / "mine.csv"
    options = write("csv", path, boxes, sizes)
    lines = path.read_text().splitlines()
    image, finding, *_ = lines[-1].split(",")
    path.write_text("\n".join([*(line for line in lines if not line.startswith(f"{image},{finding},")), ""]))
    with path.open("a") as file:
        file.write(f"{image},{finding},,,,,\n")
    run = command(*SCORE, "--predictions", path, *options)
    (note,) = run.results["counts"]["notes"]
    assert "no false alarms are counted" in note["note"]
    found, positives = len(boxes) - 1, len(boxes)
    assert f"{positives} pairs with the finding and a region: boxes for {found}, none for 1." in run.output
    assert "images with the finding only" in " ".join(run.output.split())


def test_boxes_of_a_table_rank_by_their_score(command, tmp_path):
    path = tmp_path / "mine.jsonl"
    boxes, scores = [[0, 0, 0.1, 0.1], [0, 0, 0.2, 0.2], [0, 0, 0.3, 0.3], [0, 0, 0.4, 0.4]], [0.2, 0.9, 0.2, None]
    path.write_text(json.dumps({"image": "a", "finding": "Nodule", "boxes": boxes, "scores": scores}))
    kind, found = read_answered(path)
    answer = json.loads(found["a", "Nodule"].text)["boxes"]
    assert kind == "boxes" and [box["box"] for box in answer] == [boxes[place] for place in (1, 0, 2, 3)]
    # Answers in text keep their order, and `finish` marks one that was cut off.
    text = json.dumps([{"bbox_2d": box} for box in boxes])
    path.write_text(json.dumps({"image": "a", "finding": "Nodule", "answer": text, "finish": "length"}))
    assert read_answered(path)[1] == {("a", "Nodule"): Reply(text, "length")}


@pytest.mark.parametrize("share", ["few", "half"])
def test_what_is_ignored_is_counted(command, truth, tmp_path, share):
    boxes, sizes = truth
    lost = [*boxes][: len(boxes) // 2 + 1 if share == "half" else 1]
    renamed = {
        (f"x-{image}" if (image, finding) in lost else image, finding): b for (image, finding), b in boxes.items()
    }
    path = tmp_path / "mine.csv"
    options = write("csv", path, renamed, sizes)
    with pytest.warns(UserWarning, match=rf"{len(lost)} of {len(boxes)} .*x-{lost[0][0]}") as caught:
        run = command(*SCORE, "--predictions", path, "--extra", "ignore", *options)
    assert run.status == 0, run.errors
    assert any("half" in str(one.message) for one in caught) == (share == "half")
    (note,) = (one for one in run.results["counts"]["notes"] if "--extra ignore" in one["note"])
    assert ("half" in note["note"]) == (share == "half")
    assert note["note"].startswith(f"{len(lost)} of {len(boxes)} ") and note["first"][0].startswith("x-")
