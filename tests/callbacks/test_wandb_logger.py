from __future__ import annotations

import re
import socket
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import wandb
from processes import start
from run_files import files_of
from toys import Brightness, Squares
from wandb_offline import shut_out

from xbench.callbacks import experiment_logging
from xbench.callbacks.experiment_logging import ExperimentLogging
from xbench.callbacks.wandb_logger import WandbLogger
from xbench.data.datasets.phantom import PhantomCXR
from xbench.report.wandb import log_run, session
from xbench.runtime.errors import UserError

LOGGER = ("--trainer.logger", "xbench.callbacks.wandb_logger.WandbLogger")


def test_wandb_and_its_failures_never_touch_the_files_of_a_run(command, toy_config, monkeypatch):
    plain = command("test", "--config", toy_config, "--trainer.logger", "false")
    monkeypatch.setattr(log_run, "log_run", Mock(side_effect=ConnectionResetError("Connection lost")))
    monkeypatch.setattr(experiment_logging, "_EVERY", 0)
    monkeypatch.setattr(ExperimentLogging, "_log_progress", Mock(side_effect=[None, BrokenPipeError("gone"), None]))
    with pytest.warns(UserWarning) as warned:
        failing = command("test", "--config", toy_config, *LOGGER)
    said = [str(warning.message) for warning in warned if "Weights & Biases" in str(warning.message)]
    assert len(said) == 2 and "gone" in said[0] and "the run continues" in said[0]
    assert re.search(r"Connection lost.*own files are complete: .*brightness_squares", said[1])
    assert failing.status == 0, failing.errors
    assert "Macro" in failing.output
    assert files_of(failing.folder) == files_of(plain.folder)


def test_a_service_that_is_killed_in_the_middle_costs_no_result(command, toy_config, tmp_path):
    config = tmp_path / "kills.yaml"
    config.write_text("trainer: {callbacks+: [{class_path: mortal.KillsWandb}]}\n")
    words = ("test", "--config", toy_config, "--trainer.default_root_dir")
    assert command(*words, tmp_path / "plain", "--trainer.logger", "false").status == 0
    killed = start([*words, tmp_path / "killed", "--config", config, *LOGGER], tmp_path, WANDB_MODE="offline")
    assert killed.wait() == 0 and "1 services of W&B killed" in killed.said, killed.said
    assert "Traceback" not in killed.said and "own files are complete" in " ".join(killed.said.split())
    first, second = (files_of(path.parent) for path in tmp_path.glob("*/*/*/results.json"))
    assert first == second


def test_name_group_and_tags_of_the_user_are_kept(monkeypatch):
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
    # A run from Python has begun before it is described.
    logger = WandbLogger(offline=True)
    logger._experiment = SimpleNamespace(name="jolly-sun-1", tags=())
    logger.describe(Brightness(), Squares(num_workers=0, limit=3), "32-true")
    assert logger._experiment.name == "brightness_squares" and "limit 3" in logger._experiment.tags


def test_pictures_are_those_asked_for_and_of_phantoms_alone_without_asking():
    class Films(PhantomCXR):
        """Might read films of patients."""

    found = {data: WandbLogger(offline=True).pictures(data(num_workers=0)) for data in (PhantomCXR, Films, Squares)}
    assert found == {PhantomCXR: 24, Films: 0, Squares: 0}
    assert WandbLogger(offline=True, pictures=3).pictures(Squares(num_workers=0)) == 3
    assert WandbLogger(offline=True, pictures=0).pictures(PhantomCXR(num_workers=0)) == 0
    with pytest.raises(UserError, match=r"trainer\.logger\.pictures -1"):
        WandbLogger(pictures=-1)


@pytest.mark.parametrize(
    ("variables", "reachable", "online"),
    [
        ({"WANDB_API_KEY": "k" * 40}, True, True),
        ({"NETRC": "{}/netrc"}, True, True),
        ({"NETRC": "{}/netrc", "WANDB_BASE_URL": "https://wandb.elsewhere.org"}, True, False),
        ({"WANDB_API_KEY": "k" * 40}, False, False),
        ({}, True, False),
        ({"WANDB_MODE": "offline", "WANDB_API_KEY": "k" * 40}, True, False),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "k" * 40}, True, False),
    ],
)
def test_online_only_with_a_key_and_a_server_that_answers(variables, reachable, online, tmp_path, monkeypatch):
    shut_out(monkeypatch, tmp_path)
    if reachable:
        monkeypatch.setattr(socket, "create_connection", lambda *args, **kwargs: nullcontext())
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai\n  login user\n  password {'k' * 40}\n")
    (tmp_path / "netrc").chmod(0o600)
    assert session.server_answers() is online


def test_a_server_that_refuses_leaves_an_offline_run(command, toy_config, tmp_path, monkeypatch):
    begin = wandb.init

    def refuse_online(**options):
        if options["mode"] == "online":
            raise wandb.errors.CommError("the key is not valid")
        return begin(**options)

    monkeypatch.setattr(wandb, "init", refuse_online)
    monkeypatch.setattr(session, "server_answers", lambda: True)
    with pytest.warns(UserWarning, match="logging offline"):
        run = command("test", "--config", toy_config, *LOGGER)
    assert run.status == 0, run.errors
    assert len(list(tmp_path.glob("runs/wandb/offline-run-*/*.wandb"))) == 1
    monkeypatch.setenv("WANDB_MODE", "disabled")
    disabled = command("test", "--config", toy_config, *LOGGER)
    assert disabled.status == 0 and "wandb sync" not in disabled.output, disabled.errors
    assert len(list(tmp_path.glob("runs/wandb/*run-*"))) == 1
    monkeypatch.delenv("WANDB_MODE")
    insisting = command("test", "--config", toy_config, *LOGGER, "--trainer.logger.offline", "false")
    assert insisting.status == 1 and "the key is not valid" in insisting.errors
