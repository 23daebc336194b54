from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from wandb_offline import OfflineRun, shut_out

from xbench.callbacks import experiment_logging
from xbench.cli import main
from xbench.report.colors import tinted
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.wandb.log_run import read_chosen_maps

LOGGER = ("--trainer.logger", "xbench.callbacks.wandb_logger.WandbLogger")


@dataclass(frozen=True)
class Logged(OfflineRun):
    finished: Path
    results: dict[str, Any]
    rows: dict[tuple[str, str], dict[str, Any]]


def log(root: Path, *words: str) -> Logged:
    quiet = ("--data.num_workers", "0", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment_logging, "_EVERY", 0)
        patch.chdir(root)
        shut_out(patch, root)
        usual = ("--data", "toys.Squares", *quiet, *LOGGER, "--trainer.logger.pictures", "24")
        assert main(["test", *usual, *words]) == 0
    (folder,) = (path.parent for path in root.glob("runs/*/*/results.json"))
    (offline,) = (root / "runs" / "wandb").glob("offline-run-*")
    rows = pq.read_table(folder / "pairs.parquet").to_pylist()
    scored = {(row["image_id"], row["finding"]): row for row in rows if row["dice"] is not None}
    return Logged(**vars(OfflineRun.read(offline)), finished=folder, results=read(folder / "results.json"), rows=scored)


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    size = ("--data.batch_size", "4", "--data.limit", "18")
    tags = ("--trainer.logger.tags", '["mine"]')
    return log(tmp_path_factory.mktemp("logged"), "--model", "toys.Brightness", *tags, *size)


def test_runs_are_grouped_tagged_and_followed(logged):
    (run,) = logged.of("run")
    assert (run["display_name"], run["run_group"], run["job_type"]) == ("brightness_squares", "squares", "brightness")
    assert set(run["tags"]) == {"mine", "brightness", "squares", "test", "32-true", "official prompts", "limit 18"}
    text = json.dumps(logged.of("config"))
    for word in ("provenance", "annotation_sha256", "class_path", "model_name", '"prompts": "official"', "settings"):
        assert word in text
    # The last once more at the end.
    assert logged.history["progress/images"] == [4, 8, 12, 16, 18, 18]
    assert logged.history["progress/share"] == pytest.approx([4 / 18, 8 / 18, 12 / 18, 16 / 18, 1, 1])
    assert min(logged.history["progress/images_per_second"]) > 0


def test_numbers_intervals_and_floors_have_the_same_names_in_every_run(logged):
    history, summary = logged.history, logged.summary
    findings = {row["finding"]: row for row in logged.table("findings")}
    (dataset,) = analyze(collect([logged.finished])).datasets
    floors = {f"_{floor.title.lower().replace(' ', '_')}": floor.macro for floor in dataset.references}
    assert [*floors] == ["_whole_image", "_random"]
    for part, count in (("grounding", 5), ("classification", 4)):
        results = logged.results[part]
        assert len(results["macro"]) == count and [*findings] == [*results["per_class"]] == ["Square", "Hole", "Ghost"]
        for name, value in results["macro"].items():
            key, expected = f"{part}/{name}", dataset.runs[0].macro[name]
            assert history[key] == [value] and summary[key] == value
            assert (summary[f"{key}_low"], summary[f"{key}_high"]) == (expected.low, expected.high)
            for floor, numbers in floors.items():
                assert summary.get(f"{key}{floor}") == (numbers[name].value if name in numbers else None)
            for finding, scores in results["per_class"].items():
                assert findings[finding][name] == scores[name] == summary.get(f"{name}/{finding}")
    assert "pointing_game/Square" in summary and "pointing_game/Ghost" not in summary
    # A panel for every one of them would bury the others.
    ends = ("_low", "_high", *floors)
    assert not [name for name in history if name.startswith(("pointing_game/", "auroc/")) or name.endswith(ends)]


def test_line_plots_run_over_thresholds_and_areas_not_over_steps(logged):
    history = logged.history
    curves = [scores["dice_curve"] for scores in logged.results["grounding"]["per_class"].values() if scores["count"]]
    assert history["threshold"] == pytest.approx([k / 100 for k in range(101)])
    assert history["curves/dice"] == pytest.approx(np.mean(curves, axis=0).tolist(), abs=1e-12)
    assert len(history["curves/iou"]) == 101
    assert history["area_decile"] == [10.0], "too few pairs for deciles are one group"
    for name in ("dice", "pointing_hit", "region_area"):
        key = {"dice": "dice_fixed", "pointing_hit": "pointing_game"}.get(name, name)
        assert history[f"by_area/{key}"] == [pytest.approx(np.mean([row[name] for row in logged.rows.values()]))]
    steps = {metric["glob_name"]: metric["step_metric"] for metric in logged.of("metric") if "glob_name" in metric}
    assert steps == {"curves/*": "threshold", "by_area/*": "area_decile"}
    assert not {"threshold", "curves/dice", "area_decile"} & {*logged.summary}


def test_pairs_and_charts(logged):
    grounding, recognition = (logged.results[part]["per_class"] for part in ("grounding", "classification"))
    shown = logged.table("per_image")
    assert [row["dice"] for row in shown] == sorted(row["dice"] for row in logged.rows.values())
    for row in shown:
        assert row == {name: logged.rows[row["image_id"], row["finding"]][name] for name in row}
    curve = [row for row in logged.table("Custom Chart Tables/dice_curve_table") if row["lineKey"] == "Hole"]
    assert [row["lineVal"] for row in curve] == grounding["Hole"]["dice_curve"]
    points = {row.pop("finding"): row for row in logged.table("Custom Chart Tables/auroc_pointing_game_table")}
    assert points == {
        name: {"auroc": recognition[name]["auroc"], "pointing_game": grounding[name]["pointing_game"]}
        for name in ("Square", "Hole")
    }
    text = json.dumps(logged.of("config"))
    assert all(f"_wandb.visualize.{chart}" in text for chart in ("dice_curve", "iou_curve", "auroc_pointing_game"))


def test_masks_of_overlays_give_the_very_scores_of_the_pair(logged):
    """Dice from the pixels of the masks is the stored one, so what W&B shows is what was scored."""
    rows, files, history = logged.rows, logged.folder / "files", logged.history
    grounding, cases = logged.results["grounding"]["per_class"], logged.table("cases")
    parts = ("all_masks", "all_boxes", "captions", "filenames")
    masks, boxes, captions, names = (history[f"overlays.{name}"][0] for name in parts)
    assert len(cases) >= 5 and len({(case["image_id"], case["finding"]) for case in cases}) == len(cases)
    assert (cases[0]["image_id"], cases[0]["finding"]) == max(rows, key=lambda pair: rows[pair]["dice"])
    assert "Best Dice" in cases[0]["example_of"]

    def pixels(path):
        return cv2.imread(str(files / path), cv2.IMREAD_UNCHANGED)

    (entry,) = analyze(collect([logged.finished])).runs
    shown = [shown for _, shown in read_chosen_maps(entry, 24)]
    for case, layers, drawn, caption, name, own in zip(cases, masks, boxes, captions, names, shown, strict=True):
        assert (pixels(name)[..., ::-1] == tinted(own.pair.display, own.saliency)).all()
        pair = case["image_id"], case["finding"]
        assert all(name in caption for name in pair)
        assert case["dice"] == rows[pair]["dice"]
        region, fixed, chosen = (pixels(layers[name]["path"]) for name in ("region", "map_fixed", "map_best"))
        assert {*np.unique(region)} == {0, 1 + ["Square", "Hole", "Ghost"].index(case["finding"])}
        region, fixed, chosen = region > 0, fixed > 0, chosen > 0
        assert 2 * (region & fixed).sum() / (region.sum() + fixed.sum()) == case["dice"]
        place = round(100 * grounding[case["finding"]]["dice_best_threshold"])
        assert chosen.sum() == rows[pair]["mask_pixels"][place]
        assert (chosen & region).sum() == rows[pair]["overlap_pixels"][place]

        content = {name: read(files / entry["path"])["box_data"] for name, entry in drawn.items()}
        (box,) = (box["position"] for box in content["region"])
        rows_of_region, columns_of_region = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
        assert (box["minY"], box["maxY"]) == (rows_of_region[0], rows_of_region[-1] + 1)
        assert (box["minX"], box["maxX"]) == (columns_of_region[0], columns_of_region[-1] + 1)
        (peak,) = (box["position"] for box in content["peak"])
        x, y = (peak["minX"] + peak["maxX"]) // 2, (peak["minY"] + peak["maxY"]) // 2
        assert region[y, x] == (case["pointing_hit"] == 1)
        assert content["peak"][0]["scores"]["dice"] == case["dice"]


def test_results_are_an_artifact_without_patients_images(logged):
    artifact = logged.artifact("results")
    assert artifact["name"] == "brightness_squares"
    commit = logged.results["provenance"]["git_commit"]
    assert set(artifact["aliases"]) == {"latest"} | ({commit[:12] + commit[40:]} if commit else set())
    files = {entry["path"]: Path(entry["local_path"]) for entry in artifact["manifest"]["contents"]}
    assert set(files) == {"results.json", "pairs.parquet", "config.yaml"}
    for name, staged in files.items():
        assert staged.is_relative_to(logged.folder.parent), "a sync from elsewhere would lose it"
        digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (staged, logged.finished / name)}
        assert len(digests) == 1


@pytest.mark.parametrize(("data", "drawn"), [("toys.Squares", False), ("xbench.data.PhantomCXR", True)])
def test_pictures_of_patients_are_logged_only_if_asked_for(data, drawn, command, tmp_path, monkeypatch):
    """Phantoms are drawn; a run of 30 seconds has one entry of progress."""
    shut_out(monkeypatch, tmp_path)
    words = ("--model", "toys.Brightness", "--data", data, "--data.num_workers", "0", "--data.limit", "9")
    run = command("test", *words, "--trainer.accelerator", "cpu", *LOGGER)
    assert run.status == 0, run.errors
    (offline,) = tmp_path.glob("runs/wandb/offline-run-*")
    logged = OfflineRun.read(offline)
    assert logged.history["progress/images"] == [9]
    text = json.dumps(logged.records)
    assert "findings" in text and "pairs.parquet" in text
    assert ("overlays._type" in text) == ("cases.table.json" in text) == drawn
    assert any(path.suffix in (".png", ".jpg") for path in offline.rglob("*")) == drawn


@pytest.mark.parametrize("longest", [1024, 40])
def test_overlays_show_each_image_on_its_grid_but_never_larger_than_a_screen(longest, command, toy_config, monkeypatch):
    """Picture, map and region stay on top of each other, whatever the grid; skipped images shift nothing."""
    monkeypatch.setattr("xbench.data.samples._LONGEST_SIDE", longest)
    options = ("--data.grid", "native", "--data.widths", "[64, 30]", "--data.on_error", "skip", "--data.unreadable")
    finished = command("test", "--config", toy_config, *options, "[0, 5]")
    assert finished.status == 0, finished.errors
    (entry,) = analyze(collect([finished.folder])).runs
    chosen = read_chosen_maps(entry, 100)
    assert len(chosen) >= 4
    dice = {(row["image_id"], row["finding"]): row["dice"] for row in finished.rows}
    for case, shown in chosen:
        pair, (height, width) = shown.pair, shown.saliency.shape
        assert (height, width) == pair.region.shape == pair.display.shape
        if longest == 1024:
            assert (height, width) == (80, (64, 30)[int(case.image_id[-3:]) % 2])
        assert max(height, width) <= longest
        assert shown.scores.dice == dice[case.image_id, case.finding]
        inside = pair.display[pair.region].mean()
        assert inside > 190 if case.finding == "Square" else inside < 60
        assert shown.saliency[pair.region].mean() > shown.saliency[~pair.region].mean() + 0.3


def test_a_model_that_answers(tmp_path):
    logged = log(tmp_path, "--model", "talkers.Talker", "--model.recognise", "true")
    answers = logged.results["answers"]
    assert logged.summary["answers/unparsable"] == pytest.approx(answers["macro"]["unparsable"])
    assert logged.summary["answers/box_iou/Square"] == pytest.approx(answers["per_class"]["Square"]["box_iou"])
    kept = pq.read_table(logged.finished / "predictions.parquet").to_pylist()
    assert [row["status"] for row in logged.table("answers")] == [row["status"] for row in kept]
    assert not any(name.startswith("curves/") for name in logged.history)
    assert any("answered box" in path.read_text() for path in logged.folder.rglob("*.json"))
