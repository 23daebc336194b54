"""What reaches Weights & Biases, read back from an offline run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import wandb
from toys import Brightness, Squares

import xbench.callbacks.wandb_logger
from xbench.callbacks import experiment_logging
from xbench.callbacks.wandb_logger import WandbLogger
from xbench.types import Batch


@pytest.fixture
def records(command, toy_config, tmp_path, monkeypatch):
    """Records of an offline run, and the run itself, made without any network."""

    def refuse(*args, **kwargs):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    run = command("test", "--config", toy_config, "--trainer.logger", "xbench.callbacks.wandb_logger.WandbLogger")
    assert run.status == 0, run.errors
    (folder,) = (tmp_path / "runs" / "wandb").glob("offline-run-*")
    inspect = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    return run, folder, [json.loads(line) for line in inspect.stdout.splitlines() if line.strip()]


def find(value, key):
    """All values under a key, or in key/value pairs of that key, anywhere in nested records."""
    if isinstance(value, dict):
        pair = value.get("key") == key or value.get("nestedKey") == [key] or value.get("nested_key") == [key]
        if pair and ("valueJson" in value or "value_json" in value):
            yield json.loads(value.get("valueJson", value.get("value_json")))
        for name, child in value.items():
            if name == key:
                yield child
            yield from find(child, key)
    elif isinstance(value, list):
        for child in value:
            yield from find(child, key)


def test_offline_run_holds_scalars_tables_curves_overlays_and_provenance(records):
    run, folder, lines = records
    results = run.results
    for part in ("grounding", "classification"):
        for name, value in results[part]["macro"].items():
            logged = [entry for entry in find(lines, f"{part}/{name}") if entry is not None]
            assert logged, f"{part}/{name}"
            assert float(logged[-1]) == pytest.approx(value, abs=1e-12)

    (table,) = folder.glob("files/media/table/findings_*.table.json")
    table = json.loads(table.read_text())
    rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["data"]}
    assert set(rows) == {"Square", "Hole", "Ghost"}
    assert rows["Hole"]["dice_best"] == results["grounding"]["per_class"]["Hole"]["dice_best"]
    assert rows["Hole"]["auroc"] == results["classification"]["per_class"]["Hole"]["auroc"]
    assert rows["Ghost"]["pointing_game"] is None

    (curve,) = folder.glob("files/media/table/dice_curve_table_*.table.json")
    points = [row for row in json.loads(curve.read_text())["data"] if "Hole" in row]
    assert len(points) == 101
    numbers = {round(value, 9) for row in points for value in row if isinstance(value, float)}
    assert {round(v, 9) for v in results["grounding"]["per_class"]["Hole"]["dice_curve"]} <= numbers

    assert len(list(folder.glob("files/media/images/overlays_*.png"))) == 17
    assert len(list(folder.glob("files/media/images/mask/*.png"))) == 17
    assert len(list(folder.glob("files/media/metadata/boxes2D/*.json"))) == 17

    text = json.dumps(lines)
    for word in ("provenance", "annotation_sha256", "class_path", "brightness_squares", "model_name"):
        assert word in text


def test_overlays_show_each_image_on_its_grid_but_never_larger_than_a_screen(monkeypatch):
    """The picture, the map and the region stay on top of each other, whatever the grid."""
    data = Squares(num_workers=0, widths=[64, 30], grid="native")
    data.setup("test")
    model = Brightness()
    queries = model.encode_prompts([list(model.default_prompts(finding)) for finding in data.findings])
    samples = data.samples(model.preprocessing)
    batch = Batch.collate([samples[index] for index in (1, 2, 3, 6)])
    trainer = SimpleNamespace(datamodule=data)
    monkeypatch.setattr(experiment_logging, "_wandb_loggers", lambda trainer: [None])
    for longest in (1024, 40):
        monkeypatch.setattr(experiment_logging, "_LONGEST_SIDE", longest)
        logging = experiment_logging.ExperimentLogging(overlays=3)
        logging._pictures = []
        logging.on_test_batch_end(trainer, model, model(batch.images, queries), batch, 0)
        pictures = logging._pictures
        assert [(picture.index, picture.finding) for picture in pictures] == [(1, "Square"), (3, "Square"), (3, "Hole")]
        assert {picture.display.shape for picture in pictures} == ({(80, 30)} if longest == 1024 else {(40, 15)})
        for picture in pictures:
            shape = picture.display.shape
            assert picture.picture().shape == (*shape, 3)
            assert picture.saliency.shape == picture.region.shape == shape
            inside = picture.display[picture.region].mean()
            assert inside > 200 if picture.finding == "Square" else inside < 50
            assert picture.saliency[picture.region].mean() > picture.saliency[~picture.region].mean() + 0.3


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
    from xbench.callbacks.wandb_logger import _has_key

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
    monkeypatch.setattr(xbench.callbacks.wandb_logger, "_server_answers", lambda: True)
    options = ("--config", toy_config, "--trainer.logger", "xbench.callbacks.wandb_logger.WandbLogger")
    run = command("test", *options)
    assert run.status == 0, run.errors
    assert modes == ["online", "offline"]
    assert len(list(tmp_path.glob("runs/wandb/offline-run-*/*.wandb"))) == 1

    insisting = command("test", *options, "--trainer.logger.offline", "false")
    assert insisting.status == 1
    assert "the key is not valid" in insisting.errors
