"""Commands that build a model and a dataset: `test`, `intervene`, `predict`, `score`, `prepare`, `check`."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import warnings
from argparse import Namespace as Arguments
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import SIGTERMException

from xbench.callbacks.evaluation import Evaluation, find
from xbench.callbacks.progress_bar import RunProgressBar
from xbench.commands.configs import did_you_mean
from xbench.commands.options import RunParser, build, run_parser, user_error_behind
from xbench.commands.prepare import prepare
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.workers.sampler import deal
from xbench.findings.conditions import USUAL
from xbench.runs.folder import discard_refused
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.processes import usable_cores


@contextmanager
def _one_paragraph() -> Iterator[None]:
    """Turn errors of Lightning and jsonargparse about options into a `UserError`."""
    try:
        yield
    except MisconfigurationException as error:
        raise UsageError(f"The trainer's options do not fit together: {error}") from error
    except ModuleNotFoundError as error:
        raise UsageError(f"{error}: install this package for the chosen options.") from error
    except SIGTERMException as error:
        raise UserError(
            "The run was ended by SIGTERM, from outside or because another process of the run failed (see its "
            "message above). Finished batches are kept: continue with the same command and --resume true."
        ) from error
    except Exception as error:
        cause = user_error_behind(error)
        gloo = isinstance(error, RuntimeError) and re.search(r"Connection (closed|reset) by peer", str(error))
        if cause is None and (gloo or isinstance(error, torch.distributed.DistError)):
            cause = UserError("This process stops because another one of the run failed; see its message.")
        if cause is None or cause is error:
            raise
        raise cause from error


@_one_paragraph()
def run_prepare(words: Sequence[str]) -> None:
    """Decode and resize a dataset once, into a cache for `test` and `predict`."""
    parser, config = _configure("prepare", words)
    parts = parser.instantiate_classes(_with_data(config, "prepare"))
    prepare(parts.data, parts.model.preprocessing, progress=_progress_wanted(config.trainer))


@_one_paragraph()
def run_check(words: Sequence[str]) -> None:
    """Validate files, annotations, checkpoint and versions without running the model."""
    from xbench.commands.check import check

    _, config = _configure("check", words)
    # Build both, to report the errors of both.
    data, model = (build(config[part].as_dict()) for part in ("data", "model"))
    name = "" if isinstance(data, UserError) else data.name
    folder = Path(config.trainer.default_root_dir or ".").expanduser() / "check" / name
    check(data, model, folder, progress=_progress_wanted(config.trainer))


def score(given: Arguments, more: Sequence[str]) -> None:
    """Score predictions like the output of a model, and write a run; `more` are options of `test`."""
    about = {name: value for name, value in vars(given).items() if name not in ("command", "config", "name")}
    # Missing options keep the defaults of the class.
    about = {name: value for name, value in about.items() if value is not None}
    model = {"class_path": "xbench.models.external.External", "init_args": {"label": given.name, **about}}
    words = ["--config", json.dumps({"model": model})]
    words += [word for name in given.config for word in ("--config", name)]
    if given.sizes == "any":
        words += ["--data.batch_size", "1"]
    run_test([*words, "--trainer.accelerator", "cpu", *more])


@_one_paragraph()
def _evaluate(command: Literal["test", "intervene", "predict"], words: Sequence[str]) -> None:
    # Overridden by all other configurations.
    usual = ["--config", json.dumps({"data": {"interventions": USUAL}})] if command == "intervene" else []
    parser, config = _configure(command, [*usual, *words])
    _refuse_unknown(config.trainer)
    for logger in config.trainer.logger if isinstance(config.trainer.logger, list) else [config.trainer.logger]:
        # Loggers without a folder use the run's.
        if isinstance(logger, Namespace) and "save_dir" in logger.init_args and logger.init_args.save_dir is None:
            logger.init_args.save_dir = config.trainer.default_root_dir
    # Under SLURM, Lightning's handler would save the weights and requeue the job, as in training.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    folder = Path(config.trainer.default_root_dir or ".").expanduser()
    saved = sorted(folder.glob("hpc_ckpt_*.ckpt")) if "SLURM_NTASKS" in os.environ else []
    if saved:
        raise UsageError(
            f"{saved[0]}, which Lightning saved for SLURM, would replace the "
            "model's weights: delete it, or give another --trainer.default_root_dir."
        )
    parts = parser.instantiate_classes(_with_data(config, "predict" if command == "predict" else "test"))
    data, model = parts.data, parts.model
    if model.preprocessing.undecoded:
        # Batches of labels change no number, and large ones are faster.
        data.batch_size, data.num_workers = max(data.batch_size, min(1024, len(data.records) // 16)), 0
    trainer = _build_trainer(parts.trainer, SaveConfigCallback(parser, config))
    _refuse_too_many_processes(trainer, data, config.oversubscribe)
    trainer.resume = config.resume  # type: ignore[attr-defined]
    if command == "predict":
        from xbench.callbacks.prediction_writer import PredictionWriter

        if (writer := find(trainer, PredictionWriter)) is not None:
            writer.overlays = config.overlays
    for logger in trainer.loggers:
        # W&B fixes a run's group when it begins, before any callback.
        if hasattr(logger, "describe"):
            logger.describe(model, data, str(trainer.precision))
    trainer.callbacks.insert(0, _LateLoggers(trainer.loggers))  # type: ignore[attr-defined]
    trainer.loggers = []
    with _one_end(command, trainer):
        # Callbacks handle results and predictions; do not print or collect them.
        if command != "predict":
            trainer.test(model, datamodule=data, verbose=False)
            if (results := Evaluation.of(trainer).results) and results.in_words and (run := _folder(trainer)):
                from xbench.commands.rescore import add_words

                add_words(run)
        else:
            trainer.predict(model, datamodule=data, return_predictions=False)


run_test, run_predict = partial(_evaluate, "test"), partial(_evaluate, "predict")
run_intervene = partial(_evaluate, "intervene")


def _configure(
    command: Literal["test", "intervene", "predict", "prepare", "check"], words: Sequence[str]
) -> tuple[RunParser, Namespace]:
    silence_libraries()
    parser = run_parser(command)
    config = parser.read(words)
    if config.seed_everything is not False:
        seed = None if config.seed_everything is True else config.seed_everything
        config.seed_everything = seed_everything(seed, workers=True)
    # Also in the environment, because Lightning divides cores among processes.
    os.environ["OMP_NUM_THREADS"] = str(config.threads)
    torch.set_num_threads(config.threads)
    return parser, config


def _with_data(config: Namespace, stage: str) -> Namespace:
    """Return the options with the dataset set up, to find its errors before weights load for minutes."""
    data = build(config.data.as_dict(), stage)
    if isinstance(data, UserError):
        raise data
    data.setup = _set_up
    config = config.clone()
    config.data = data
    return config


def _set_up(stage: str) -> None:
    """Do nothing; replaces the `setup` that Lightning repeats."""


def _refuse_unknown(options: Namespace) -> None:
    # The others only matter for training.
    strategies = [name for name in StrategyRegistry.available_strategies() if "unused" not in name]
    known = {"accelerator": ["gpu", *AcceleratorRegistry.available_accelerators()], "strategy": strategies}
    for option, names in known.items():
        given, names = options[option], ["auto", *names]
        if isinstance(given, str) and given not in names and "unused" not in given:
            near = did_you_mean(given, names)
            raise UsageError(f"--trainer.{option} expects one of {', '.join(names)}, not {given!r}.{near}")


def _build_trainer(options: Namespace, resolved: SaveConfigCallback) -> Trainer:
    # Passes the resolved configuration to writers; writes nothing itself.
    resolved.already_saved = True
    callbacks = options.callbacks if isinstance(options.callbacks, list) else [options.callbacks]
    callbacks = [callback for callback in callbacks if callback is not None]
    if _progress_wanted(options) and not any(isinstance(callback, ProgressBar) for callback in callbacks):
        callbacks.append(RunProgressBar())
    try:
        trainer = Trainer(**{**options, "callbacks": [*callbacks, resolved]})
    except (TypeError, ValueError) as error:
        raise UsageError(f"The trainer's options do not fit together: {error}") from error
    if isinstance(trainer.profiler, PassThroughProfiler):  # type: ignore[attr-defined]
        # Lightning's generator takes time in each of the 60 hooks of a batch, even if it measures none.
        trainer.profiler.profile = nullcontext  # type: ignore[assignment,attr-defined,method-assign]
    return trainer


def _progress_wanted(options: Namespace) -> bool:
    return options.enable_progress_bar is not False and not options.barebones


def _refuse_too_many_processes(trainer: Trainer, data: ChestXrayDataModule, oversubscribe: bool) -> None:
    """Raise a UserError for more processes than cores or batches, before Lightning starts any."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    # SLURM and torchrun have started them, each bound to its own cores.
    if environment is None or environment.creates_processes_externally:
        return
    cores = usable_cores()
    if trainer.strategy.root_device.type == "cpu" and trainer.num_devices > cores and not oversubscribe:
        raise UsageError(
            f"--trainer.devices {trainer.num_devices} would start {trainer.num_devices} processes on "
            f"{'one core' if cores == 1 else f'{cores} cores'}, each with its own model, which could freeze the "
            f"machine: give --trainer.devices {cores} or fewer, or add --oversubscribe true."
        )
    deal(len(data.records), data.batch_size, trainer.world_size)


class _LateLoggers(Callback):
    """Adds the trainer's loggers in `setup`, because Lightning begins earlier ones even for refused runs."""

    def __init__(self, loggers: list[Logger]) -> None:
        self._loggers = loggers

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        trainer.loggers = self._loggers


@contextmanager
def _one_end(command: str, trainer: Trainer) -> Iterator[None]:
    """Remove the folder of a refused run, and print after Ctrl-C what is kept, in the first process."""
    try:
        yield
    except UserError:
        if (folder := _folder(trainer)) is not None and trainer.is_global_zero:
            discard_refused(folder)
        raise
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning silently converts KeyboardInterrupt to SystemExit.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, KeyboardInterrupt):
            raise
        if not trainer.is_global_zero:
            sys.exit(130)
        text, folder = "Stopped by Ctrl-C.", _folder(trainer) if command != "predict" else None
        if folder is not None and (folder / "results.json").is_file():
            text = f"Stopped by Ctrl-C after writing the results to {folder}."
        elif folder is not None:
            text += f" Finished batches are kept in {folder}: continue with the same command and --resume true."
        raise UserError(text, exit_status=130) from None


def _folder(trainer: Trainer) -> Path | None:
    folders = (getattr(callback, "folder", None) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    return next((folder for folder in folders if isinstance(folder, Path)), None)


def silence_libraries() -> None:
    """Silence messages of Lightning that do not concern evaluation."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Failed downloads are reported once, not per retry; the first use of the library sets its level by the variable.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    # With a full disk, logging would print a traceback for every line.
    logging.raiseExceptions = False
    for message in (
        ".*does not have many workers.*",
        ".*You are using a custom batch sampler.*for prediction.*",
        # Processes without readable images have nothing to add, which is fine.
        ".*was called before the ``update`` method.*",
        ".*LeafSpec.*is deprecated.*",
        ".*You have overridden `on_after_batch_transfer`.*",
        ".*Using `DistributedSampler` with the dataloaders.*",
    ):
        warnings.filterwarnings("ignore", message=message)
