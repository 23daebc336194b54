from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys

import own
import pytest
import torch
import yaml
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from toys import Brightness

import xbench.runtime.processes
from xbench.cli import main
from xbench.commands.bench.config import plan, read_bench
from xbench.commands.configs import read_config, shipped, summary
from xbench.commands.options import run_parser


def assert_one_paragraph(run, status: int, *fragments: str) -> None:
    assert run.status == status
    paragraph = run.errors.strip().splitlines()[-1]
    assert paragraph.startswith("error: ")
    assert "Traceback" not in run.errors
    for fragment in fragments:
        assert fragment in paragraph


@pytest.mark.parametrize(
    ("options", "status", "fragments"),
    [
        pytest.param(["--data.unreadable", "[3]"], 1, ["square-003", "broken", "--data.on_error skip"], id="image"),
        pytest.param(
            ["--data.images", "2", "--data.unreadable", "[0, 1]", "--data.on_error", "skip"],
            1,
            ["none of the 2 images", "square-000"],
            id="all images unreadable",
        ),
        pytest.param(["--model.fault", "nan"], 1, ["NaN", "saliency", "square-003", "Square"], id="nan"),
        pytest.param(["--model.fault", "large"], 1, ["beyond float32", "saliency", "square-001", "Ghost"], id="large"),
        pytest.param(["--model.fault", "wide"], 1, ["beyond float32", "saliency", "square-001", "Ghost"], id="wide"),
        pytest.param(["--model.fault", "shape"], 1, ["logits (4, 1)", "(4, 3)"], id="shape"),
        pytest.param(["--data.images", "0"], 1, ["no image"], id="zero images"),
        pytest.param(["--data.limit", "0"], 2, ["--data.limit 0"], id="limit 0"),
        pytest.param(["--data.split", "val"], 2, ["--data.split val", "test"], id="split"),
        pytest.param(["--data.gamma", "1.5"], 2, ["--data.gamma 1.5"], id="gamma"),
        pytest.param(["--data.batch_size", "0"], 2, ["--data.batch_size 0"], id="batch size"),
        pytest.param(["--trainer.limit_test_batches", "1"], 2, ["--data.limit"], id="limit_test_batches 1"),
        pytest.param(["--trainer.fast_dev_run", "true"], 2, ["--data.limit"], id="fast_dev_run"),
        pytest.param(["--trainer.use_distributed_sampler", "true"], 2, ["twice"], id="distributed sampler"),
        pytest.param(["--trainer.default_root_dir", "/proc/nope"], 1, ["/proc/nope"], id="unwritable folder"),
        pytest.param(["--trainer.devices", "0"], 2, ["options"], id="devices"),
        pytest.param(["--data", "xbench.data.PhantomCXR"], 2, ["toys.Squares"], id="other dataset"),
        pytest.param(["--config", "oracle_phantom"], 2, ["toys.Brightness"], id="second pair"),
    ],
)
def test_bad_input(command, toy_config, options, status, fragments):
    assert_one_paragraph(command("test", "--config", toy_config, *options), status, *fragments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--trainer.devices", "99"), ("99 processes", "2 cores", "--trainer.devices 2 ", "--oversubscribe true")),
        (("--trainer.devices", "3"), ("3 processes", "2 cores")),
        (("--trainer.devices", "3", "--trainer.strategy", "ddp_spawn"), ("3 processes", "2 cores")),
        (("--trainer.devices", "99", "--oversubscribe", "true"), ("5 batches", "99 processes")),
        (("--trainer.devices", "2", "--data.images", "3"), ("1 batch, too few", "2 processes")),
        (("--trainer.devices", "5", "--oversubscribe", "true"), ()),
        (("--trainer.devices", "2"), ()),
    ],
)
@pytest.mark.parametrize("word", ["test", "predict"])
def test_too_many_processes_are_refused_before_any_starts(command, toy_config, monkeypatch, word, options, said):
    class Started(Exception):
        pass

    def launch(*_, **__):
        raise Started

    for launcher in (_SubprocessScriptLauncher, _MultiProcessingLauncher):
        monkeypatch.setattr(launcher, "launch", launch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    if not said:
        with pytest.raises(Started):
            command(word, "--config", toy_config, *options)
        return
    run = command(word, "--config", toy_config, *options)
    assert_one_paragraph(run, 1 if "batch" in said[0] else 2, *said)


@pytest.mark.parametrize(
    ("quota", "cores"), [(None, 3), ("max 100000", 3), ("150000 100000", 2), ("50000 100000", 1), ("9900000 100000", 3)]
)
def test_cores_that_may_be_used(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 4})
    monkeypatch.setattr(xbench.runtime.processes, "_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert xbench.runtime.processes.usable_cores() == cores


def test_constant_maps_fail_the_run_but_keep_its_results(command, toy_config):
    run = command("test", "--config", toy_config, "--model.fault", "constant")
    assert_one_paragraph(run, 1, "17", "constant")
    assert run.results["counts"]["constant_maps"]["count"] == 17
    assert run.results["counts"]["constant_maps"]["first"][0] == {"image_id": "square-000", "finding": "Hole"}
    # By the definitions: all zeros when normalized, and every pixel tied for the maximum.
    scores = run.results["grounding"]["per_class"]["Square"]
    areas = [row["region_area"] for row in run.rows if row["finding"] == "Square" and row["has_region"]]
    assert scores["pointing_game"] == pytest.approx(sum(areas) / len(areas), abs=1e-12)
    assert scores["dice_curve"][1:] == [0.0] * 100
    assert run.results["classification"]["per_class"]["Square"]["auroc"] == 1


def test_options_win_wherever_they_stand(command, toy_config):
    run = command("test", "--data.limit", "5", "--config", toy_config)
    assert run.results["counts"]["images"] == 5


def test_a_second_configuration_of_the_same_class_edits_the_first(command, toy_config, tmp_path):
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("data: {init_args: {limit: 6}}\nmodel: {class_path: toys.Brightness}\n")
    run = command("test", "--config", toy_config, "--config", overlay, status=0)
    assert run.results["counts"]["images"] == 6


def test_every_pair_resolves_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classes = {
        kind: {name: yaml.safe_load(path.read_text())["class_path"] for name, path in shipped(kind).items()}
        for kind in ("models", "data")
    }
    equalised = set()
    for model, data in itertools.product(classes["models"], classes["data"]):
        for name in (f"{model}_{data}", f"{model}_{data}.yaml"):
            found = read_config(name)
            equalised |= {name} if found["model"].get("init_args", {}).get("equalise") else set()
            assert found["model"]["class_path"] == classes["models"][model]
            assert found["data"]["class_path"] == classes["data"][data]
    assert equalised == {f"{model}_rsna{ending}" for model in ("medklip", "mavl") for ending in ("", ".yaml")}
    assert read_config("demo") == read_config("demo.yaml")


def test_every_shipped_configuration_says_what_it_is():
    for kind in ("models", "data", "runs", "bench"):
        for path in shipped(kind).values():
            assert len(summary(path)) > 20, path


def test_list(command):
    listed = command("list").output
    for word in ("oracle", "phantom", "siim", "Pneumothorax", "demo", "MODEL_DATASET"):
        assert word in listed
    assert "oracle" not in command("list", "datasets").output
    assert_one_paragraph(command("list", "modells"), 2, "models")
    counted = " ".join(command("list", "findings").output.split())
    assert "The 7 datasets of the paper have 55 classes under 36 different spellings" in counted
    assert "31 are distinct" in counted


def test_weights_that_slurm_had_saved_are_not_taken_for_the_models(command, toy_config, tmp_path, monkeypatch):
    """Lightning would load them in place of the model's, without a word."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "hpc_ckpt_1.ckpt").write_bytes(b"weights of some training")
    assert command("test", "--config", toy_config, "--data.limit", "2").status == 0
    monkeypatch.setenv("SLURM_NTASKS", "1")
    run = command("test", "--config", toy_config, "--data.limit", "2")
    assert run.status == 2 and run.folder is None
    assert "hpc_ckpt_1.ckpt, which Lightning saved" in run.errors


def test_a_compiled_model_is_evaluated(command, monkeypatch):
    # Compiling takes long; what is told from a compiled model is that its first layer cannot be looked at.
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    options = ("--data.limit", "2", "--model.compile", "true", "--trainer.logger", "false")
    command("test", "--config", "demo", *options, status=0)


@pytest.mark.parametrize("words", [("bench", "--out", "caf\udce9"), ("caf\udce9",)])
def test_bytes_that_are_no_text_are_refused_before_anything_is_done(command, toy_config, tmp_path, words):
    (tmp_path / "caf\udce9").mkdir()
    assert_one_paragraph(command(*words), 2, "caf\\xe9", "UTF-8", "rename")
    assert not [*tmp_path.glob("*/*")]


def written_to(kind: str):
    if kind == "a full disk":
        return open("/dev/full", "w")
    if kind == "a closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
        return os.fdopen(writer, "w")
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii")


@pytest.mark.parametrize("kind", ["a full disk", "a closed pipe", "a terminal of ASCII"])
def test_a_run_does_not_fail_over_what_it_prints(toy_config, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", written_to(kind))
        assert main(["test", "--config", str(toy_config), "--trainer.enable_progress_bar", "true"]) == 0
        (results,) = tmp_path.glob("runs/*/*/results.json")
        assert main(["verify", str(results.parent)]) == 0
        assert main(["list"]) == (1 if kind == "a full disk" else 0)
        if kind == "a terminal of ASCII":
            sys.stdout.buffer.seek(0)
            printed = sys.stdout.buffer.read().decode("ascii")
            assert "Results: " in printed and "\\u2022" in printed
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert ("standard output cannot be written (No space left on device)" in errors) == (kind == "a full disk")


@pytest.mark.parametrize(("shell", "status"), [("list > /dev/full", 1), ("list | head -1", 0), ("list >&-", 0)])
def test_printing_that_fails_leaves_no_traceback(tmp_path, shell, status):
    script = f"set -o pipefail; {sys.executable} -m xbench.cli {shell}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == status
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.fixture
def parts(tmp_path, monkeypatch):
    own.write_coco(own.write_images(tmp_path / "mine"))
    (tmp_path / "my.py").write_text(
        "from xbench.models import CenterPrior\n\n\nclass MyVLM(CenterPrior):\n"
        "    def __init__(self, scale: float = 1.0) -> None:\n        super().__init__()\n        self.scale = scale\n"
    )
    model = "model: {class_path: my.MyVLM, init_args: {scale: 20.0}}\n"
    (tmp_path / "mymodel.yaml").write_text(model)
    data = {"root": "mine", "annotations": "mine/annotations.json", "findings": own.LABELS, "name": "mine"}
    (tmp_path / "my_coco.yaml").write_text(json.dumps({"data": data}))
    (tmp_path / "with_class.yaml").write_text(json.dumps({"data": {"class_path": "xbench.data.CocoDataset", **data}}))
    (tmp_path / "beside.yaml").write_text(model + "data: data/phantom.yaml\n")
    (tmp_path / "named.yaml").write_text("model: models/centre.yaml\ndata: my_coco.yaml\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my", None)


_MINE, _COCO = ("--config", "mymodel.yaml"), ("--config", "my_coco.yaml")


@pytest.mark.parametrize(
    ("words", "model", "data"),
    [
        ((*_MINE, *_COCO), "MyVLM", "CocoDataset"),
        ((*_COCO, *_MINE), "MyVLM", "CocoDataset"),
        ((*_MINE, "--config", "coco", *_COCO), "MyVLM", "CocoDataset"),
        ((*_MINE, *_COCO, "--config", "coco"), "MyVLM", "CocoDataset"),
        ((*_MINE, "--config", "with_class.yaml"), "MyVLM", "CocoDataset"),
        ((*_MINE, *_COCO, "--data", "xbench.data.CocoDataset"), "MyVLM", "CocoDataset"),
        (("--config", "clip", *_COCO), "CLIP", "CocoDataset"),
        (("--config", "clip_coco", *_COCO), "CLIP", "CocoDataset"),
        (("--config", "named.yaml"), "CenterPrior", "CocoDataset"),
        ((*_MINE, "--config", "siim", "--data.root", "mine"), "MyVLM", "SIIMPneumothorax"),
        (("--config", "siim", "--config=centre", "--data.root", "mine"), "CenterPrior", "SIIMPneumothorax"),
        (("--config", "beside.yaml", "--data.limit", "3"), "MyVLM", "PhantomCXR"),
    ],
)
def test_parts_are_put_together(parts, words, model, data):
    options = run_parser("test").read(words)
    assert options.model.class_path.endswith(f".{model}") and options.data.class_path.endswith(f".{data}")
    assert model != "MyVLM" or options.model.init_args.scale == 20
    assert data != "CocoDataset" or options.data.init_args.findings == own.LABELS


@pytest.mark.parametrize("word", ["test", "predict", "check", "prepare"])
def test_a_model_of_ones_own_on_data_of_ones_own(parts, command, word, monkeypatch):
    monkeypatch.setenv("XBENCH_CACHE", str(parts / "cache"))
    command(word, *_MINE, *_COCO, "--trainer.logger=false", status=0)
    if word == "test":
        (results,) = parts.glob("runs/*/*/results.json")
        assert json.loads(results.read_text())["findings"] == [*own.LABELS.values()]
        assert json.loads(results.read_text())["dataset"] == "mine"


def test_parts_make_a_benchmark(parts):
    jobs = plan(read_bench(["mymodel.yaml", "siim", "my_coco.yaml", "centre"]), parts)
    assert [job.name for job in jobs] == ["myvlm_siim", "centre_siim", "myvlm_mine", "centre_mine"]
    config = run_parser("test").resolve(jobs[2].options)
    assert config["model"]["class_path"] == "my.MyVLM" and config["model"]["init_args"]["scale"] == 20


class Heavy(Brightness):
    def __init__(self) -> None:
        raise AssertionError("the model was built before the data were looked at")


@pytest.mark.parametrize("word", ["test", "predict", "prepare"])
def test_data_are_looked_at_before_weights_are_loaded(command, tmp_path, word):
    (tmp_path / "films").mkdir()
    # It is there, so the first look, which imports no class, has nothing to say.
    (tmp_path / "films" / "stage_2_train_labels.csv").write_text("patientId,Target\n")
    config = json.dumps({"model": {"class_path": f"{__name__}.Heavy"}})
    run = command(word, "--config", config, "--config", "rsna", "--data.root", tmp_path / "films", status=1)
    assert ("no image" if word == "predict" else "stage_2_train_labels.csv") in run.errors
