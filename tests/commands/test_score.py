from __future__ import annotations

import csv
import json
import pickle
import shutil
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import own
import pyarrow
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from official.chexlocalize import write_chexlocalize
from places import ROOT
from pycocotools import mask as coco
from slow_protocols import scaled

from xbench.cli import main
from xbench.data.datasets.phantom import PhantomCXR
from xbench.data.phantom import FINDINGS
from xbench.geometry.grid import upsample
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.runs.files import IMAGES, PAIRS, PICTURES, TRUTH
from xbench.runs.protocols import read_protocol, read_protocol_pairs
from xbench.scoring.protocols.chexlocalize import otsu_mask

DATA = ("--data.images", "5", "--data.num_workers", "0")
QUIET = (*DATA, "--trainer.accelerator", "cpu", "--trainer.logger", "false", "--trainer.enable_progress_bar", "false")
SCORE = ("score", "--config", "phantom", "--name", "mine", *QUIET)


def same_run(one, other):
    for name in (PAIRS, TRUTH, PICTURES):
        assert pq.read_table(one.folder / name).equals(pq.read_table(other.folder / name)), name
    results = [{**run.results, "provenance": None, "tables": None} for run in (one, other)]
    assert json.dumps(results[0]) == json.dumps(results[1])


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A test and a prediction of one model, and its maps and scores as somebody else would save them."""
    folder = tmp_path_factory.mktemp("made")
    place = ("--trainer.default_root_dir", str(folder / "runs"))
    assert main(["test", "--config", "demo", *QUIET, *place]) == 0
    assert main(["predict", "--config", "demo", "--overlays", "false", *DATA, *QUIET[4:6], *place]) == 0
    (path,) = folder.glob("runs/*/*/results.json")
    rows = pq.read_table(path.parent / "predictions.parquet").to_pylist()
    with (folder / "scores.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "finding", "probability", "logit"])
        for row in rows:
            table.writerow([row["image_id"], row["finding"], repr(row["probability"]), repr(row["logit"])])
            saliency = np.array(row["map"], np.float32).reshape(row["map_shape"])
            place = folder / "maps" / row["image_id"] / f"{row['finding'].replace(' ', '_')}.npy"
            place.parent.mkdir(parents=True, exist_ok=True)
            np.save(place, saliency)
    return folder


@pytest.fixture
def made(once, tmp_path):
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.glob("runs/*/*/results.json")
    (predicted,) = (folder for folder in path.parents[1].iterdir() if folder != path.parent)
    rows = pq.read_table(path.parent / PAIRS).to_pylist()
    tested = SimpleNamespace(folder=path.parent, results=json.loads(path.read_text()), rows=rows)
    return tested, SimpleNamespace(folder=predicted)


def test_any_way_to_the_same_run(command, made, tmp_path):
    tested, predicted = made
    start = (*SCORE, "--name", "demo")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    shutil.copy(predicted.folder / "images.parquet", elsewhere)
    shutil.copy(predicted.folder / "predictions.parquet", renamed := elsewhere / "mine.parquet")
    for stored in (predicted.folder, renamed, tested.folder):
        own = command(*start, "--predictions", stored, status=0)
        same_run(tested, own)
        assert own.results["provenance"]["model"]["map_scale"] == tested.results["provenance"]["model"]["map_scale"]
    with zipfile.ZipFile(tmp_path / "maps.zip", "w") as archive:
        for path in (tmp_path / "maps").rglob("*.npy"):
            archive.write(path, path.relative_to(tmp_path / "maps"))
    with tarfile.open(tmp_path / "maps.tar", "w") as archive:
        archive.add(tmp_path / "maps", ".")
    for place in ("maps", "maps.zip", "maps.tar"):
        run = command(*start, "--predictions", place, "--scores", "scores.csv", "--frame", "whole", status=0)
        same_run(tested, run)
        assert len(run.results["provenance"]["model"]["predictions_sha256"]) == 64
    assert command("verify", run.folder).status == 0


def test_what_does_not_fit_is_named_and_refused_unless_asked(command, made, tmp_path):
    start = (*SCORE, "--predictions", "maps", "--scores", "scores.csv")
    whole = (*start, "--frame", "whole")
    first = sorted((tmp_path / "maps").iterdir())[0]

    def refused(*words, said):
        run = command(*words)
        assert run.status == 2, run.output + run.errors
        assert said in run.errors and len(run.errors.splitlines()) == 1, run.errors

    refused(*start, said="--frame whole, or the preprocessing")
    refused(*start, "--frame", "crop:480", said="--frame crop:480")
    refused(*start, "--frame", "shortest:224,crop:256", said="must end in one square")
    shutil.copy(first / "Nodule.npy", first / "Something.npy")
    refused(*whole, said=f"1 ({first.name}/Something.npy)")
    with pytest.warns(UserWarning, match=rf"^1 of 81 predictions \(1\.2%\) .*{first.name}/Something\.npy"):
        assert command(*whole, "--extra", "ignore").status == 0
    (first / "Something.npy").rename(first / "NODULE.npy")
    refused(*whole, said="Nodule.npy, which are the same image and finding")
    (first / "NODULE.npy").unlink()

    np.save(first / "Nodule.npy", np.ones((9, 9), np.float32))
    refused(*whole, said=f"the map of image {first.name}")
    np.save(first / "Nodule.npy", np.full((28, 28), np.nan))
    refused(*whole, said=f"Nodule.npy (image {first.name}, finding Nodule) cannot be read: it holds NaN")
    (first / "Nodule.npy").unlink()
    refused(*whole, said=f"no map for 1 ({first.name}, Nodule)")
    skipped = command(*whole, "--missing", "skip", status=0)
    assert [one["image_id"] for one in skipped.results["counts"]["skipped"]] == [first.name]
    assert skipped.results["counts"]["images"] == 4
    assert command("verify", skipped.folder).status == 0
    flat = command(*whole, "--missing", "flat", status=0)
    assert any("map of Nodule is missing" in str(note) for note in flat.results["counts"]["notes"])
    assert flat.results["counts"]["images"] == 5
    assert len(FINDINGS) == len(flat.results["findings"])

    # A finding with scores and not one map leaves no image whole: said before a run begins, with its name.
    for image in (tmp_path / "maps").iterdir():
        (image / "Nodule.npy").unlink(missing_ok=True)
    before = sorted((tmp_path / "runs").rglob("*"))
    refused(*whole, "--missing", "skip", said="no image is left: Nodule has no map.")
    assert not [path for path in {*(tmp_path / "runs").rglob("*")} - {*before} if path.name == "results.json"]


@pytest.mark.parametrize("names", ["x", "[]", '{"a": 1}', '{"a": "Nodule", "a": "Mass"}', '{"a":' * 100_000])
def test_names_that_are_no_words_of_findings_are_refused(command, names):
    run = command(*SCORE, "--predictions", "s.csv", "--names", names)
    assert run.status == 2 and "--names" in run.errors and len(run.errors) < 300, run.errors
    assert "Pleural Effusion" in run.errors


def test_a_map_that_nobody_drew_is_a_miss_by_every_rule(command, made, tmp_path):
    """In a run, scored again by each rule of ties, by all protocols and in `verify`."""
    tested, _ = made
    scored = [row for row in tested.rows if row["pointing_hit"] is not None]
    gone, flat = (
        {(row["image_id"], row["finding"]) for row in scored[::2]},
        (scored[1]["image_id"], scored[1]["finding"]),
    )
    for image, finding in gone:
        (tmp_path / "maps" / image / f"{finding.replace(' ', '_')}.npy").unlink()
    # The model's own map that is the same everywhere stays what it is.
    np.save(tmp_path / "maps" / flat[0] / f"{flat[1].replace(' ', '_')}.npy", np.ones((28, 28)))
    words = ("--scores", "scores.csv", "--frame", "whole", "--map-scale", "probability", "--missing", "flat")
    run = command(*SCORE, "--predictions", "maps", *words, status=0)
    assert run.results["counts"]["constant_maps"]["count"] == 1
    notes = [note["count"] for note in run.results["counts"]["notes"] if "counts as a miss" in note["note"]]
    assert sum(notes) == len(gone)
    expected = {"share": lambda area: area, "any": lambda area: 1.0, "first": lambda area: 0.0}
    again = [command("rescore", run.folder, "--ties", ties, "--workers", "0") for ties in expected]
    for ties, one in zip(expected, again, strict=True):
        assert one.status == 0 and command("verify", one.folder, "--deep").status == 0, one.errors
        hits = {}
        for row, as_tested in zip(one.rows, tested.rows, strict=True):
            pair = row["image_id"], row["finding"]
            if pair in gone:
                assert [row[name] for name in ("pointing_hit", "dice", "iou", "minimum_hit")] == [0, 0, 0, 0]
                assert [row[name] for name in ("peak_x", "peak_y", "peak_distance")] == [None] * 3
            elif pair == flat:
                assert row["pointing_hit"] == expected[ties](row["region_area"])
            else:
                # The demo's own maps are cosines, which have no threshold.
                own = dict.fromkeys(("own_mask_pixels", "own_overlap_pixels"))
                assert row | own == as_tested
            hits.setdefault(row["finding"], []).append(row["pointing_hit"])
        means = [np.mean(kept) for of in hits.values() if (kept := [hit for hit in of if hit is not None])]
        assert one.results["grounding"]["macro"]["pointing_game"] == pytest.approx(np.mean(means), abs=1e-12)
    same_run(run, again[0])
    for row in pq.read_table(run.folder / PAIRS).to_pylist():
        if (row["image_id"], row["finding"]) in gone:
            pixels = (f"{own}{name}_pixels" for own in ("", "own_") for name in ("mask", "overlap"))
            assert {count for name in pixels for count in row[name]} == {0}

    protocols = command("rescore", run.folder, "--protocol", "all", "--workers", "0")
    assert protocols.status == 0 and command("verify", run.folder).status == 0, protocols.errors
    of_truth = "index image_id column label probability chance pixels region images lesions iou_pairs outside clear"
    compared = 0
    for name in (path.stem for path in (run.folder / "protocols").glob("*.parquet") if path.stem != "calibration"):
        pairs = read_protocol_pairs(run.folder, name)
        for row, pair in enumerate(zip(pairs["image_id"], pairs["column"], strict=True)):
            if (pair[0], run.results["findings"][pair[1]]) in gone:
                values = [pairs[key][row] for key in pairs if not key.startswith((*of_truth.split(),))]
                assert not any(np.nan_to_num(np.asarray(value, float)).any() for value in values), (name, pair)
                assert name not in ("xbench", "aep", "chexlocalize", "radzero", "g2g") or 0 in values
                compared += 1
    assert compared > 6 * len(gone)


def test_without_scores_nothing_is_said_of_recognition(command, made, tmp_path):
    tested, _ = made
    run = command(*SCORE, "--predictions", "maps", "--frame", "whole", "--scores", "none", status=0)
    assert {*run.results["classification"]["macro"].values()} == {None}
    for scores in run.results["classification"]["per_class"].values():
        assert (scores["auroc"], scores["average_precision"], scores["f1"], scores["accuracy"]) == (None,) * 4
    assert run.results["grounding"]["macro"] == tested.results["grounding"]["macro"]
    (shown,) = analyze(collect([run.folder])).datasets[0].runs
    assert shown.macro["auroc"].value is None and shown.macro["f1"].value is None and not shown.quadrants
    assert command("verify", run.folder).status == 0
    protocols = command("rescore", run.folder, "--protocol", "chexlocalize", "--workers", "0")
    assert protocols.status == 0 and command("verify", run.folder).status == 0, protocols.errors


TASKS = (
    *("Airspace Opacity", "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum"),
    *("Lung Lesion", "Pleural Effusion", "Pneumothorax", "Support Devices"),
)
"""Of CheXlocalize's heat maps, as the authors call them."""


def test_heat_maps_of_chexlocalize_score_as_its_authors_score_them(command, tmp_path):
    """Two frontal films in the layout of the authors' sample: hits, Otsu's and tuned masks, pair by pair."""
    official, maps = write_chexlocalize(tmp_path / "data"), tmp_path / "gradcam_maps_val"
    maps.mkdir()
    draw, values = np.random.default_rng(0), {}
    for film in ("patient64541_study1_view1_frontal", "patient64542_study1_view1_frontal"):
        for task in TASKS:
            values[film, task] = map_, probability = draw.random((1, 1, 9, 7), np.float32), float(draw.random())
            content = {"map": torch.from_numpy(map_), "prob": probability, "task": task, "gt": 1, "cxr_dims": (7, 9)}
            (maps / f"{film}_{task}_map.pkl").write_bytes(pickle.dumps(content))
    words = ("--pattern", "{image}_{finding}_map", "--frame", "whole", "--scores", "pickled")
    own = ("--data.root", official.root, "--data.split", "val", "--data.grid", "native", "--data.cache", "false")
    asked = ("score", "--config", "chexlocalize", "--name", "gradcam", *own, "--predictions", maps, *words, *QUIET[2:])
    refused = command(*asked)
    assert refused.status == 2 and "findings without any prediction" in refused.errors
    with pytest.warns(UserWarning, match="has nothing about Fracture, Pleural Other, Pneumonia: the run omits"):
        run = command(*asked, "--missing", "skip")
    assert run.status == 0, run.errors
    assert run.results["findings"] == ["Lung Opacity", *TASKS[1:]]
    assert run.results["provenance"]["model"]["findings_left_out"] == "Fracture, Pleural Other, Pneumonia"
    assert run.results["counts"]["images"] == 2  # the lateral film has no heat map
    tuning, cutoffs = tmp_path / "tuning_results.csv", tmp_path / "probability_tuning_results.csv"
    tuning.write_text("threshold,task\n" + "".join(f"0.{2 + at % 7},{task}\n" for at, task in enumerate(TASKS)))
    cutoffs.write_text("prob_threshold,mIoU,task\n" + "".join(f"0.5,0.3,{task}\n" for task in TASKS))
    done = command("rescore", run.folder, "--protocol", "chexlocalize", "--tune", tuning, cutoffs, "--workers", "0")
    assert done.status == 0 and command("verify", run.folder).status == 0, done.errors
    assert read_protocol(run.folder, "chexlocalize")["title"] == "chexlocalize"
    pairs = read_protocol_pairs(run.folder, "chexlocalize")
    compared = 0
    for row, (film, column) in enumerate(zip(pairs["image_id"], pairs["column"], strict=True)):
        task = TASKS[column]
        map_, probability = values[film, task]
        assert pairs["probability"][row] == probability
        true = official.masks.get(film, {}).get(run.results["findings"][column])
        if true is None:
            continue
        size = true.shape
        shown = upsample(torch.from_numpy(map_)[0], size)[0].numpy()
        assert pairs["hit"][row] == true[np.unravel_index(shown.argmax(), size)]
        otsu, above = (
            otsu_mask((255 * scaled(shown)).astype(np.uint8)),
            scaled(shown) > np.float32(f"0.{2 + TASKS.index(task) % 7}"),
        )
        for key, mask in (("iou", otsu), ("iou_tuned", above)):
            assert pairs[key][row] == pytest.approx((mask & true).sum() / (mask | true).sum(), abs=1e-12)
        emptied = 0.0 if probability < 0.5 else pairs["iou"][row]
        assert pairs["iou_cutoff_full"][row] == pytest.approx(emptied, abs=1e-12)
        compared += 1
    assert compared >= 2


@pytest.mark.usefixtures("unsaved_figures")
def test_a_table_of_probabilities_is_scored_for_recognition_alone(command, made, tmp_path):
    tested, _ = made
    table = tmp_path / "scores.csv"
    run = command(*SCORE, "--predictions", table, status=0)
    assert run.results["classification"] == tested.results["classification"]
    counts = [finding["count"] for finding in run.results["grounding"]["per_class"].values()]
    macro = [*run.results["grounding"]["macro"].values()]
    assert {*counts} == {0} and {*macro} == {None} and run.results["counts"]["images"] == 5
    assert command("verify", run.folder).status == 0
    command("rescore", run.folder, "--out", tmp_path / "again", "--workers", "0", status=0)
    assert (tmp_path / "again" / PAIRS).read_bytes() == (run.folder / PAIRS).read_bytes()
    command("rescore", run.folder, "--protocol", "all", "--workers", "0", status=0)
    assert read_protocol(run.folder, "calibration")["numbers"]["brier"]["value"] > 0
    # An empty mask is not a specific one.
    assert [path.stem for path in (run.folder / "protocols").glob("*.json")] == ["calibration"]
    asked_for_maps = command("rescore", run.folder, "--protocol", "chexlocalize", "--workers", "0")
    assert asked_for_maps.status == 2 and "has probabilities" in asked_for_maps.errors
    assert command("verify", run.folder).status == 0
    pq.write_table(pyarrow.csv.read_csv(table), tmp_path / "scores.parquet")
    other = command(*SCORE, "--predictions", tmp_path / "scores.parquet")
    assert other.results["classification"] == run.results["classification"]
    reported = command("report", tmp_path / "runs", "--out", tmp_path / "report")
    assert reported.status == 0 and "regions differ" not in reported.output, reported.output + reported.errors
    (analysis,) = analyze(collect([tmp_path / "runs"])).datasets
    assert len(analysis.runs) == 3 and not analysis.notes


def test_a_table_of_probabilities_needs_no_pixel(command, tmp_path):
    root = own.write_images(tmp_path / "own")
    own.write_csv(root)
    lost, *others = sorted(root.rglob("*.png"))
    lost.unlink()
    for path in others:
        path.write_bytes(b"damaged")
    pairs = {(image, finding): finding in of for image, of in own.truth().items() for finding in own.LABELS.values()}
    table = ["image,finding,probability", *(f"{image},{finding},{len(image) / 16}" for image, finding in pairs)]
    (tmp_path / "scores.csv").write_text("\n".join(table))
    (tmp_path / "own.yaml").write_text(json.dumps({"data": {"root": str(root), "findings": own.LABELS}}))
    words = ("score", "--config", "csv", "--config", "own.yaml", "--name", "mine", *QUIET[2:])
    run = command(*words, "--data.on_error", "skip", "--predictions", "scores.csv", status=0)
    (skipped,) = run.results["counts"]["skipped"]
    assert skipped["image_id"] == "p0/view0" and skipped["reason"].startswith("The image p0/view0 has no file")
    found = {(row["image_id"], row["query"]): row["label"] for row in run.rows}
    assert found == {pair: int(there) for pair, there in pairs.items() if pair[0] != "p0/view0"}
    assert {row["has_region"] for row in run.rows} == {False}
    images = [row for row in pq.read_table(run.folder / IMAGES).to_pylist() if row["failure"] is None]
    assert {(row["sha256"], row["height"], *row["crop"]) for row in images} == {(None, None, 0, 0, 1, 1)}
    assert len(images) == len(others) == run.results["counts"]["images"]
    assert not len(pq.read_table(run.folder / TRUTH)) and not len(pq.read_table(run.folder / PICTURES))
    assert command("verify", run.folder, "--deep").status == 0


def test_probabilities_come_in_batches_of_many_images(command, tmp_path, monkeypatch):
    monkeypatch.setattr(PhantomCXR, "load", None)
    scores = [f"phantom-0-{number:06d},{number / 200}" for number in range(130)]
    (tmp_path / "scores.csv").write_text("\n".join(["image,Nodule", *scores]))
    few = ("--missing", "skip", "--data.images", "130", "--data.size", "32", "--data.batch_size", "1")
    with pytest.warns(UserWarning, match="omits these findings"):
        run = command(*SCORE, *few, "--predictions", "scores.csv")
    assert run.status == 0, run.errors
    assert run.results["counts"]["images"] == 130 and run.results["provenance"]["data"]["batch_size"] == 8
    assert command("rescore", run.folder, "--out", "again").status == command("verify", run.folder).status == 0


def test_a_table_of_probabilities_that_does_not_fit_is_refused(command, made, tmp_path):
    rows = (tmp_path / "scores.csv").read_text().splitlines()
    asked = (*SCORE, "--predictions")
    (some := tmp_path / "some.csv").write_text("\n".join([*rows[:-3], "elsewhere.png,Nodule,0.5,0.1"]) + "\n")
    refused = command(*asked, some)
    assert refused.status == 2 and "no score for 3" in refused.errors and "elsewhere.png" in refused.errors
    with pytest.warns(UserWarning, match=r"^1 of 38 predictions .*elsewhere\.png, Nodule"):
        taken = command(*asked, some, "--missing", "skip", "--extra", "ignore")
    assert taken.status == 0 and len(taken.results["counts"]["skipped"]) == 1, taken.errors
    (one := tmp_path / "one.csv").write_text("\n".join(row for row in rows if FINDINGS[0] in row or row == rows[0]))
    with pytest.warns(UserWarning, match="the run omits these findings"):
        taken = command(*asked, one, "--missing", "skip")
    assert taken.results["findings"] == [FINDINGS[0]]
    assert "--frame does not apply to probabilities" in command(*asked, one, "--frame", "whole").errors
    assert "no such file" in command(*asked, tmp_path / "none.csv").errors


def human(official, folder):
    masks, points, draw = {}, {}, np.random.default_rng(0)
    for film, of in official.masks.items():
        for finding, region in of.items():
            # Where nobody drew anything there is no entry, or an empty mask.
            drawn = not masks or draw.random() >= 0.3
            if not drawn and draw.random() < 0.5:
                continue
            moved = np.roll(region, (7, -5), (0, 1)) & drawn
            encoded = coco.encode(np.asfortranarray(moved.astype(np.uint8)))
            written = "Airspace Opacity" if finding == "Lung Opacity" else finding
            masks.setdefault(film, {})[written] = {"size": [*region.shape], "counts": encoded["counts"].decode()}
            if not drawn:
                continue
            y, x = np.argwhere(region)[draw.integers(region.sum())]
            inside, outside = [float(x) + 0.9, float(y) + 0.3], [1.7, 2.2]
            points.setdefault(film, {})[written] = [[outside], [outside, inside], [inside]][draw.integers(3)]
    (folder / "hb_segmentations.json").write_text(json.dumps(masks))
    (folder / "hb_salient_pts.json").write_text(json.dumps(points))
    return masks, points


def test_the_human_benchmark_of_chexlocalize_is_a_ceiling(command, tmp_path):
    official = write_chexlocalize(tmp_path / "data")
    masks, points = human(official, tmp_path)
    own = ("--data.root", official.root, "--data.grid", "native", "--data.cache", "false", *QUIET[2:])
    asked = ("score", "--config", "chexlocalize", "--name", "human", *own, "--extra", "ignore", "--predictions")
    words = ("--frame", "whole", "--scores", "none", "--missing", "flat", "--sizes", "any", "--upsampling", "nearest")
    run = command(*asked, tmp_path / "hb_segmentations.json", *words)
    assert run.status == 0 and command("verify", run.folder).status == 0, run.errors
    pointed = command(*asked, tmp_path / "hb_salient_pts.json", "--frame", "pixels_sent")
    assert pointed.status == 0 and command("verify", pointed.folder).status == 0, pointed.errors
    again = command("rescore", pointed.folder, "--ties", "any", "--out", tmp_path / "any", "--workers", "0")
    assert again.status == 0 and command("verify", tmp_path / "any").status == 0, again.errors
    any_mask = command("rescore", run.folder, "--ties", "any", "--out", tmp_path / "any-mask", "--workers", "0")
    assert any_mask.status == 0 and command("verify", tmp_path / "any-mask").status == 0, any_mask.errors
    folders = (run.folder, tmp_path / "any", tmp_path / "any-mask")
    rows = {path: pq.read_table(path / PAIRS).to_pylist() for path in folders}
    compared = empty = 0
    for drawn, hit, hit_mask in zip(*rows.values(), strict=True):
        film, finding = drawn["image_id"], drawn["finding"]
        true = official.masks.get(film, {}).get(finding)
        if film not in official.splits["test"] or true is None:
            continue
        written = "Airspace Opacity" if finding == "Lung Opacity" else finding
        mask = masks.get(film, {}).get(written)
        iou = 0.0
        if mask is not None:
            moved = coco.decode({"size": mask["size"], "counts": mask["counts"].encode()}).astype(bool)
            iou = (moved & true).sum() / (moved | true).sum()
            empty += not moved.any()
        assert drawn["iou"] == pytest.approx(iou, abs=1e-12)
        if mask is None or not moved.any():
            assert (drawn["pointing_hit"], hit_mask["pointing_hit"], drawn["peak_x"]) == (0, 0, None)
        # As the authors count: any point whose truncated pixel is inside; none is a miss.
        assert hit["pointing_hit"] == any(true[int(y), int(x)] for x, y in points.get(film, {}).get(written, []))
        compared += 1
    assert compared > 8 and empty
    (dataset,) = analyze(collect([tmp_path / "runs"])).datasets
    ceilings = [one.title for one in dataset.references if one.kind == "ceiling" and "Human benchmark" in one.title]
    assert len(ceilings) == 2, dataset.references


@pytest.mark.parametrize(("kind", "ending"), [("csv", ".png"), ("coco", ""), ("masks", ".png")])
def test_the_recipe_of_the_page_runs_on_own_data(command, tmp_path, monkeypatch, kind, ending):
    """The lines of docs/score.md as they stand, images with and without an ending, findings by the file's words."""
    root = own.write_images(tmp_path / "own")
    write = {"csv": own.write_csv, "coco": own.write_coco, "masks": own.write_masks}
    write[kind](root)
    (tmp_path / "own.yaml").write_text(json.dumps({"data": {"root": str(root), "findings": own.LABELS, "name": "x"}}))
    drawn = {(image, finding): own.phantoms()[image].masks.get(finding)
             for image in own.phantoms() for finding in own.LABELS.values()}  # fmt: skip
    word = {finding: word for word, finding in own.LABELS.items()} if ending else {}

    def my_model_on_my_images():
        for (image, finding), mask in drawn.items():
            saliency = np.zeros((own.HEIGHT, own.WIDTH)) if mask is None else mask.astype(float)
            yield f"{image}{ending}", word.get(finding, finding), saliency, float(mask is not None)

    page = (ROOT / "docs" / "score.md").read_text()
    recipe = next(block for block in page.split("```")[1::2] if "my_model_on_my_images" in block)
    monkeypatch.chdir(tmp_path)
    names = {"my_model_on_my_images": my_model_on_my_images}
    exec(recipe, names)
    del names["rows"]  # which closes the table
    scores = Path("scores.csv").read_text().splitlines()
    assert len(scores) == 1 + len(drawn)
    where = ("--config", kind, "--config", "own.yaml", "--data.batch_size", "4", *QUIET[2:])
    words = ("--predictions", "maps", "--scores", "scores.csv", "--name", "mine", "--frame", "whole")
    run = command("score", *where, *words, status=0)
    macro = run.results["grounding"]["macro"] | run.results["classification"]["macro"]
    assert macro["auroc"] == 1 and macro["pointing_game"] == 1 and macro["dice_best"] > 0.5
    alone = command("score", *where, "--predictions", "scores.csv", "--name", "table")
    assert alone.status == 0 and alone.results["classification"] == run.results["classification"], alone.errors


@pytest.mark.usefixtures("unsaved_figures")
@pytest.mark.parametrize(
    ("shape", "frame", "said"),
    [((own.WIDTH, own.HEIGHT), "whole", "rows and columns exchanged"), ((own.HEIGHT, own.WIDTH), "whole", "")],
)
def test_what_looks_wrong_is_said_on_the_console_and_in_a_report(command, tmp_path, recwarn, shape, frame, said):
    root = own.write_csv(own.write_images(tmp_path / "own"))
    (tmp_path / "own.yaml").write_text(json.dumps({"data": {"root": str(root), "findings": own.LABELS, "name": "x"}}))
    draw = np.random.default_rng(0)
    with (tmp_path / "scores.csv").open("w") as table:
        table.write("image,finding,probability,logit\n")
        for image in own.phantoms():
            for finding in own.LABELS.values():
                (place := tmp_path / "maps" / image).mkdir(parents=True, exist_ok=True)
                np.save(place / f"{finding}.npy", draw.random(shape))
                score = draw.random()
                table.write(f"{image},{finding},{score},{-score if said and finding == 'Nodule' else score}\n")
    where = ("--config", "csv", "--config", "own.yaml", "--data.batch_size", "4", *QUIET[2:], "--name", "mine")
    words = ("--predictions", "maps", "--scores", "scores.csv", "--frame", frame)
    run = command("score", *where, *words, status=0)
    alone = command("score", *where, "--predictions", "scores.csv")
    assert alone.status == 0 and command("verify", run.folder).status == 0, alone.errors
    expected = ["logits of Nodule order 100% of the pairs of images differently from its probabilities"] if said else []
    notes = [note["note"] for note in alone.results["counts"]["notes"] if "look wrong" in note["note"]]
    assert [note.partition(": ")[2] for note in notes] == expected
    notes = [note["note"] for note in run.results["counts"]["notes"] if "look wrong" in note["note"]]
    assert len(notes) == 2 * len(expected) and any(said in note for note in notes) == bool(said)
    warned = {str(one.message) for one in recwarn}
    assert {f"mine: {note}." for note in notes} <= warned and bool(notes) == any("look wrong" in one for one in warned)
    if "exchanged" in said:
        command("report", tmp_path / "runs", "--out", tmp_path / "page", status=0)
        text = json.loads((tmp_path / "page" / "analysis.json").read_text())
        assert all(note in json.dumps(text) for note in notes)


@pytest.mark.parametrize("logger", ["xbench.callbacks.wandb_logger.WandbLogger", "CSVLogger"])
def test_a_refused_command_leaves_no_folder(command, tmp_path, logger):
    np.save(tmp_path / "nobody.npy", np.zeros((4, 4)))
    given = ("--data.num_workers", "0", *QUIET[4:6], *QUIET[8:])
    given = (*given, "--trainer.logger", logger, "--trainer.logger.save_dir", "runs")
    scored = ("score", "--config", "phantom", "--name", "mine", "--frame", "whole", "--scores", "none")
    aspects = ("--model.prompts", "aspects")  # which the demo model does not take
    for problem, *words in (
        ("no map for", *scored, "--predictions", tmp_path),
        ("nowhere", "test", "--config", "demo_folder", "--data.root", tmp_path / "nowhere"),
        ("limit", "test", "--config", "demo", "--trainer.limit_test_batches", "1"),
        ("Gout", "predict", "--config", "demo", "--overlays", "Gout"),
        ("aspects", "test", "--config", "demo", *aspects),
        ("aspects", "predict", "--config", "demo", *aspects),
    ):
        refused = command(*words, *given)
        assert refused.status == 2 and problem in refused.errors, words
        assert not [*tmp_path.glob("runs/*_phantom")], words
        # Prompts are refused last, when Lightning has begun other loggers than ours.
        assert problem == "aspects" or not [*tmp_path.glob("runs/*")], words
    # Loggers begin once the run is accepted.
    assert command("test", "--config", "demo", *given, "--data.images", "2").status == 0
    assert [*tmp_path.glob("runs/wandb/*run-*" if "wandb" in logger else "runs/**/metrics.csv")]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("map", value) for value in ([np.nan] * 784, [0.0], None)),
        *(("map_shape", value) for value in ([10**9, 10**9], [-28, -28], [28], None)),
        *((name, value) for name in ("image_id", "query") for value in ("other", None)),
    ],
)
def test_strangers_predictions(command, made, column, value):
    path = made[1].folder / "predictions.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0][column] = value
    pq.write_table(pyarrow.Table.from_pylist(rows, table.schema), path)
    run = command(*SCORE, "--predictions", path.parent)
    assert run.status in (1, 2) and len(run.errors.splitlines()) == 1, run.errors
