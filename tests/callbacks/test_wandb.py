"""What reaches Weights & Biases, read back from an offline run."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
import wandb
from processes import start
from toys import Brightness, Squares

from xbench.callbacks import case_keeper, experiment_logging, wandb_logger
from xbench.callbacks.evaluation import Evaluation
from xbench.callbacks.results_writer import ResultsWriter
from xbench.callbacks.wandb_logger import WandbLogger
from xbench.cli import main
from xbench.errors import UserError
from xbench.report.runs import collect
from xbench.report.wandb.overlays import overlays
from xbench.report.wandb.panels import log_panels
from xbench.report.wandb.session import _has_key

LOGGER = ("--trainer.logger", "xbench.callbacks.wandb_logger.WandbLogger")


@dataclass(frozen=True)
class Logged:
    """A finished run and the offline W&B run that mirrors it."""

    folder: Path
    offline: Path
    records: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record[kind] for record in self.records if record["type"] == kind]

    @property
    def results(self) -> dict[str, Any]:
        return json.loads((self.folder / "results.json").read_text())

    @property
    def history(self) -> dict[str, list[Any]]:
        values: dict[str, list[Any]] = {}
        for entry in self.of("history"):
            for name, value in entry["item"].items():
                values.setdefault(name, []).append(value)
        return values

    @property
    def summary(self) -> dict[str, Any]:
        return {name: value for entry in self.of("summary") for name, value in entry.get("update", {}).items()}

    def table(self, name: str) -> list[dict[str, Any]]:
        (path,) = self.offline.glob(f"files/media/table/{name}_[0-9]*.table.json")
        table = json.loads(path.read_text())
        return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def read_back(offline: Path) -> list[dict[str, Any]]:
    inspect = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(offline)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in inspect.stdout.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run logged offline, made without any network."""

    def refuse(*args, **kwargs):
        raise OSError("no network in this test")

    root = tmp_path_factory.mktemp("logged")
    (root / "toys.yaml").write_text(
        "model: {class_path: toys.Brightness}\n"
        "data: {class_path: toys.Squares, init_args: {num_workers: 0, batch_size: 4}}\n"
        "trainer: {accelerator: cpu, enable_progress_bar: false}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("NETRC", str(root / "none"))
        patch.setattr(socket, "create_connection", refuse)
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        tagged = ("--trainer.logger.tags", '["mine"]')
        assert main(["test", "--config", "toys.yaml", *LOGGER, *tagged, "--data.limit", "18"]) == 0
        # Left behind for the process by the first run; the next test's has a folder of its own.
        patch.setenv("WANDB_DATA_DIR", os.environ["WANDB_DATA_DIR"])
    (folder,) = (path.parent for path in root.glob("runs/*/*/results.json"))
    (offline,) = (root / "runs" / "wandb").glob("offline-run-*")
    return Logged(folder, offline, read_back(offline))


def test_runs_are_grouped_by_dataset_then_model_and_tagged(logged):
    (run,) = logged.of("run")
    assert (run["display_name"], run["run_group"], run["job_type"]) == ("brightness_squares", "squares", "brightness")
    assert set(run["tags"]) == {
        *("mine", "brightness", "squares", "test", "32-true", "official prompts", "limit 18"),
    }
    text = json.dumps(logged.of("config"))
    for word in ("provenance", "annotation_sha256", "class_path", "model_name", '"prompts": "official"', "settings"):
        assert word in text


def test_scalars_have_the_same_names_in_every_run(logged):
    results, history, summary = logged.results, logged.history, logged.summary
    for part in ("grounding", "classification"):
        for name, value in results[part]["macro"].items():
            assert history[f"{part}/{name}"] == [pytest.approx(value, abs=1e-12)]
            assert summary[f"{part}/{name}"] == pytest.approx(value, abs=1e-12)
    for finding, scores in results["grounding"]["per_class"].items():
        for name in ("pointing_game", "dice_fixed", "dice_best", "iou_fixed", "iou_best"):
            assert summary.get(f"{name}/{finding}") == pytest.approx(scores[name], abs=1e-12)
    for finding, scores in results["classification"]["per_class"].items():
        for name in ("auroc", "average_precision", "f1", "accuracy"):
            assert summary.get(f"{name}/{finding}") == pytest.approx(scores[name], abs=1e-12)
    assert "pointing_game/Square" in summary
    assert "pointing_game/Ghost" not in summary
    # A panel for every one of them would bury the others.
    assert not [name for name in history if name.startswith(("pointing_game/", "auroc/"))]


def test_line_plots_run_over_thresholds_and_areas_not_over_steps(logged):
    history = logged.history
    curves = [scores["dice_curve"] for scores in logged.results["grounding"]["per_class"].values() if scores["count"]]
    assert history["threshold"] == pytest.approx([k / 100 for k in range(101)])
    assert history["curves/dice"] == pytest.approx(np.mean(curves, axis=0).tolist(), abs=1e-12)
    assert len(history["curves/iou"]) == 101

    rows = [row for row in pq.read_table(logged.folder / "per_image.parquet").to_pylist() if row["dice"] is not None]
    assert history["area_decile"] == [10.0], "too few pairs for deciles are one group"
    assert history["by_area/dice_fixed"] == [pytest.approx(np.mean([row["dice"] for row in rows]))]
    assert history["by_area/pointing_game"] == [pytest.approx(np.mean([row["pointing_hit"] for row in rows]))]

    steps = {metric["glob_name"]: metric["step_metric"] for metric in logged.of("metric") if "glob_name" in metric}
    assert steps == {"curves/*": "threshold", "by_area/*": "area_decile"}
    assert not {"threshold", "curves/dice", "area_decile"} & {*logged.summary}


def test_tables_and_charts(logged):
    results = logged.results
    findings = {row["finding"]: row for row in logged.table("findings")}
    assert set(findings) == {"Square", "Hole", "Ghost"}
    assert findings["Hole"]["dice_best"] == results["grounding"]["per_class"]["Hole"]["dice_best"]
    assert findings["Hole"]["auroc"] == results["classification"]["per_class"]["Hole"]["auroc"]
    assert findings["Ghost"]["pointing_game"] is None

    stored = pq.read_table(logged.folder / "per_image.parquet").to_pylist()
    scored = {(row["image_id"], row["finding"]): row for row in stored if row["dice"] is not None}
    shown = logged.table("per_image")
    assert [row["dice"] for row in shown] == sorted(row["dice"] for row in scored.values())
    for row in shown:
        assert row == {name: scored[row["image_id"], row["finding"]][name] for name in row}

    curve = [row for row in logged.table("Custom Chart Tables/dice_curve_table") if row["lineKey"] == "Hole"]
    assert [row["lineVal"] for row in curve] == results["grounding"]["per_class"]["Hole"]["dice_curve"]
    points = {row["finding"]: row for row in logged.table("Custom Chart Tables/auroc_pointing_game_table")}
    assert set(points) == {"Square", "Hole"}
    for finding, point in points.items():
        assert point["auroc"] == results["classification"]["per_class"][finding]["auroc"]
        assert point["pointing_game"] == results["grounding"]["per_class"][finding]["pointing_game"]
    text = json.dumps(logged.of("config"))
    for chart in ("dice_curve", "iou_curve", "auroc_pointing_game"):
        assert f"_wandb.visualize.{chart}" in text


def test_masks_of_overlays_give_the_very_scores_of_the_pair(logged):
    """Dice from the pixels of the masks is the stored one, so what W&B shows is what was scored."""
    rows = pq.read_table(logged.folder / "per_image.parquet").to_pylist()
    dice = {(row["image_id"], row["finding"]): row["dice"] for row in rows}
    counts = {(r["image_id"], r["finding"]): r for r in pq.read_table(logged.folder / "curves.parquet").to_pylist()}
    grounding = logged.results["grounding"]["per_class"]
    cases = logged.table("cases")
    history = logged.history
    masks, boxes, captions = (history[f"overlays.{name}"][0] for name in ("all_masks", "all_boxes", "captions"))
    assert len(cases) == len(masks) == len(boxes) == len(captions) >= 5
    assert len({(case["image_id"], case["finding"]) for case in cases}) == len(cases)
    best = max(dice, key=lambda pair: dice[pair] or 0)
    assert (cases[0]["image_id"], cases[0]["finding"]) == best
    assert "Best Dice" in cases[0]["example_of"]

    def read(mask: dict[str, Any]) -> np.ndarray:
        return cv2.imread(str(logged.offline / "files" / mask["path"]), cv2.IMREAD_UNCHANGED)

    (run,) = collect([logged.folder]).runs
    for file, overlay in zip(history["overlays.filenames"][0], overlays(run, 24), strict=True):
        assert (cv2.imread(str(logged.offline / "files" / file))[..., ::-1] == overlay.picture()).all()

    for case, layers, drawn, caption in zip(cases, masks, boxes, captions, strict=True):
        pair = case["image_id"], case["finding"]
        assert case["image_id"] in caption
        assert case["finding"] in caption
        assert case["dice"] == dice[pair]
        region, fixed, chosen = (read(layers[name]) for name in ("region", "map_fixed", "map_best"))
        assert {*np.unique(region)} == {0, 1 + ["Square", "Hole", "Ghost"].index(case["finding"])}
        region, fixed, chosen = region > 0, fixed > 0, chosen > 0
        assert 2 * (region & fixed).sum() / (region.sum() + fixed.sum()) == case["dice"]
        place = round(100 * grounding[case["finding"]]["dice_best_threshold"])
        assert chosen.sum() == counts[pair]["mask_pixels"][place]
        assert (chosen & region).sum() == counts[pair]["overlap_pixels"][place]

        content = {
            name: json.loads((logged.offline / "files" / entry["path"]).read_text())["box_data"]
            for name, entry in drawn.items()
        }
        (box,) = (box["position"] for box in content["region"])
        rows_of_region, columns_of_region = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
        assert (box["minY"], box["maxY"]) == (rows_of_region[0], rows_of_region[-1] + 1)
        assert (box["minX"], box["maxX"]) == (columns_of_region[0], columns_of_region[-1] + 1)
        (peak,) = (box["position"] for box in content["peak"])
        x, y = (peak["minX"] + peak["maxX"]) // 2, (peak["minY"] + peak["maxY"]) // 2
        assert region[y, x] == (case["pointing_hit"] == 1)
        assert content["peak"][0]["scores"]["dice"] == case["dice"]


def test_results_are_an_artifact_without_patients_images(logged):
    (artifact,) = (artifact for artifact in logged.of("artifact") if artifact["type"] == "results")
    assert artifact["name"] == "brightness_squares"
    commit = logged.results["provenance"]["git_commit"]
    assert set(artifact["aliases"]) == {"latest"} | ({commit[:12] + commit[40:]} if commit else set())
    files = {entry["path"]: Path(entry["local_path"]) for entry in artifact["manifest"]["contents"]}
    assert set(files) == {"results.json", "per_class.csv", "per_image.parquet", "curves.parquet", "config.yaml"}
    for name, staged in files.items():
        assert staged.is_relative_to(logged.offline.parent), "a sync from elsewhere would lose it"
        assert _digest(staged) == _digest(logged.folder / name)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_without_overlays_no_picture_is_logged(logged, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    (run,) = collect([logged.folder]).runs
    with wandb.init(mode="offline", dir=tmp_path, settings=wandb.Settings(console="off", silent=True)) as target:
        log_panels(target, run, 0)
    text = json.dumps(read_back(next(tmp_path.glob("wandb/offline-run-*"))))
    assert "findings" in text
    assert "per_image.parquet" in text
    assert "overlays._type" not in text
    assert "cases.table.json" not in text
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".png", ".jpg")]


def test_overlays_show_each_image_on_its_grid_but_never_larger_than_a_screen(command, toy_config, monkeypatch):
    """Picture, map and region stay on top of each other, whatever the grid; skipped images shift nothing."""
    options = ("--data.grid", "native", "--data.widths", "[64, 30]", "--data.on_error", "skip", "--data.unreadable")
    for longest in (1024, 40):
        monkeypatch.setattr(case_keeper, "_LONGEST_SIDE", longest)
        finished = command("test", "--config", toy_config, *options, "[0, 5]")
        assert finished.status == 0, finished.errors
        (run,) = collect([finished.folder]).runs
        shown = list(overlays(run, 100))
        assert len(shown) >= 4
        dice = {(row["image_id"], row["finding"]): row["dice"] for row in finished.rows}
        for overlay in shown:
            case, (height, width) = overlay.case, overlay.saliency.shape
            assert (height, width) == case.region.shape == case.display.shape
            if longest == 1024:
                assert (height, width) == (80, (64, 30)[int(case.image_id[-3:]) % 2])
            assert max(height, width) <= longest
            assert overlay.picture().shape == (height, width, 3)
            assert overlay.scores.dice == dice[case.image_id, case.finding]
            inside = case.display[case.region].mean()
            assert inside > 190 if case.finding == "Square" else inside < 60
            assert overlay.saliency[case.region].mean() > overlay.saliency[~case.region].mean() + 0.3
        untouched = shown[0].saliency == 0
        grey = shown[0].picture()[untouched]
        assert (grey == shown[0].case.display[untouched][:, None]).all()


def test_what_wandb_does_and_how_it_fails_never_touches_the_files_of_a_run(command, toy_config, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionResetError("Connection lost")

    plain = command("test", "--config", toy_config, "--trainer.logger", "false")
    monkeypatch.setattr(experiment_logging, "log_panels", fail)
    with pytest.warns(UserWarning, match=r"Connection lost.*own files are complete: .*brightness_squares"):
        failing = command("test", "--config", toy_config, *LOGGER)
    assert failing.status == 0, failing.errors
    assert "Macro" in failing.output
    for path in plain.folder.iterdir():
        if path.name == "results.json":
            first, second = (dict(run.results) for run in (plain, failing))
            first.pop("provenance"), second.pop("provenance")
            assert first == second
        elif path.name != "config.yaml":
            assert path.read_bytes() == (failing.folder / path.name).read_bytes(), path.name


def test_a_service_that_is_killed_in_the_middle_costs_no_result(command, toy_config, tmp_path):
    config = tmp_path / "kills.yaml"
    config.write_text("trainer: {callbacks+: [{class_path: mortal.KillsWandb}]}\n")
    words = ("test", "--config", toy_config, "--config", config, "--trainer.default_root_dir")
    plain = command(*words, tmp_path / "plain", "--trainer.logger", "false")
    assert plain.status == 0 and "0 services of W&B killed" in plain.output, plain.errors
    killed = start([*words, tmp_path / "killed", *LOGGER], tmp_path, WANDB_MODE="offline")
    assert killed.wait() == 0 and "1 services of W&B killed" in killed.said, killed.said
    assert "Traceback" not in killed.said and "own files are complete" in " ".join(killed.said.split())
    folders = [path.parent for root in ("plain", "killed") for path in (tmp_path / root).glob("*/*/results.json")]
    assert len(folders) == 2
    for name in ("per_image.parquet", "curves.parquet", "maps.parquet", "per_class.csv"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_a_service_that_fails_at_the_very_end_is_only_said(tmp_path):
    class Broken:
        def finish(self, exit_code):
            raise RuntimeError("the service is gone")

    logger = WandbLogger(save_dir=str(tmp_path), offline=True)
    logger._experiment = Broken()
    with pytest.warns(UserWarning, match="the service is gone"):
        logger.finalize("success")


def test_what_the_user_says_of_a_run_is_kept(monkeypatch):
    monkeypatch.setenv("WANDB_RUN_GROUP", "theirs")
    monkeypatch.setenv("WANDB_TAGS", "one, two")
    model, data = Brightness(), Squares(num_workers=0)
    model.prompt_source = f"/prompts/{'x' * 80}.json"
    logger = WandbLogger(offline=True, name="mine", tags=["first"])
    for _ in range(2):
        logger.describe(model, data, "bf16-mixed")
        options = logger._wandb_init
        assert (options["name"], options["group"], options["job_type"]) == ("mine", None, "brightness")
        assert options["tags"] == ["first", "one", "two", "brightness", "squares", "test", "bf16-mixed", "x" * 64]


def test_disabled_means_disabled(command, toy_config, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run = command("test", "--config", toy_config, *LOGGER)
    assert run.status == 0, run.errors
    assert "wandb sync" not in run.output
    assert not list(tmp_path.glob("runs/wandb/*run*"))


def test_a_run_from_python_is_described_once_it_has_begun():
    logger = WandbLogger(offline=True)
    logger._experiment = SimpleNamespace(name="jolly-sun-1", tags=())
    logger.describe(Brightness(), Squares(num_workers=0, limit=3), "32-true")
    assert logger._experiment.name == "brightness_squares"
    assert "limit 3" in logger._experiment.tags


def test_logging_comes_after_the_files_it_logs():
    logging = experiment_logging.ExperimentLogging()

    trainer = SimpleNamespace(loggers=[WandbLogger(offline=True)], callbacks=[Evaluation(), logging, ResultsWriter()])
    with pytest.raises(UserError, match="ResultsWriter must stand before"):
        logging.setup(trainer, None, "test")
    trainer.callbacks = [Evaluation(), ResultsWriter(), logging]
    logging.setup(trainer, None, "test")
    with pytest.raises(UserError, match="overlays=-1"):
        experiment_logging.ExperimentLogging(overlays=-1)


@pytest.mark.parametrize(
    ("mode", "key", "reachable", "offline"),
    [
        ("online", "k" * 40, True, False),
        ("online", "k" * 40, False, True),
        ("online", None, True, True),
        ("offline", "k" * 40, True, True),
        ("disabled", "k" * 40, True, True),
    ],
)
def test_online_only_with_a_key_and_a_server_that_answers(mode, key, reachable, offline, tmp_path, monkeypatch):
    class Connection:
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return None

    def connect(*args, **kwargs):
        if not reachable:
            raise OSError
        return Connection()

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    assert WandbLogger()._offline is offline
    assert WandbLogger(offline=not offline)._offline is not offline


def test_a_key_in_netrc_counts_as_logged_in(tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {'k' * 40}\n")
    netrc.chmod(0o600)

    def refuse(*args, **kwargs):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(netrc))
    assert _has_key(["wandb.elsewhere.org", "api.wandb.ai"])
    assert not _has_key(["wandb.elsewhere.org"])
    assert WandbLogger()._offline, "the server is not to be reached from a test"


def test_csv_logger_and_none(command, toy_config, tmp_path):
    logger = "lightning.pytorch.loggers.CSVLogger"
    run = command("test", "--config", toy_config, "--trainer.logger", logger, "--trainer.logger.save_dir", "runs")
    assert run.status == 0, run.errors
    (metrics,) = tmp_path.glob("runs/lightning_logs/*/metrics.csv")
    header, values = metrics.read_text().splitlines()[:2]
    logged = dict(zip(header.split(","), values.split(","), strict=True))
    assert float(logged["grounding/dice_best"]) == pytest.approx(run.results["grounding"]["macro"]["dice_best"])
    assert command("test", "--config", toy_config, "--trainer.logger", "false").status == 0


def test_a_server_that_refuses_leaves_an_offline_run(command, toy_config, tmp_path, monkeypatch):
    begin, modes = wandb.init, []

    def refuse_online(**options):
        modes.append(options["mode"])
        if options["mode"] == "online":
            raise wandb.errors.CommError("the key is not valid")
        return begin(**options)

    monkeypatch.setattr(wandb, "init", refuse_online)
    monkeypatch.setattr(wandb_logger, "server_answers", lambda: True)
    options = ("--config", toy_config, *LOGGER)
    with pytest.warns(UserWarning, match="logging offline"):
        run = command("test", *options)
    assert run.status == 0, run.errors
    assert modes == ["online", "offline"]
    assert len(list(tmp_path.glob("runs/wandb/offline-run-*/*.wandb"))) == 1

    insisting = command("test", *options, "--trainer.logger.offline", "false")
    assert insisting.status == 1
    assert "the key is not valid" in insisting.errors
