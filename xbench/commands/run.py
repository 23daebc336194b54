"""The commands that build a model and a dataset: `test`, `intervene`, `predict`, `score`, `prepare` and `check`."""

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
from contextlib import contextmanager
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
    """Turn what Lightning and jsonargparse raise over the user's mistakes into a `UserError`."""
    try:
        yield
    except MisconfigurationException as error:
        raise UsageError(f"The trainer's options do not go together: {error}") from error
    except ModuleNotFoundError as error:
        raise UsageError(f"{error}: install the package that the chosen options need.") from error
    except SIGTERMException as error:
        raise UserError(
            "The run was ended by SIGTERM, either from outside or because another process of the run failed (its "
            "message stands above). What it has finished is kept: the same command with --resume true goes on."
        ) from error
    except Exception as error:
        cause = user_error_behind(error)
        gloo = isinstance(error, RuntimeError) and re.search(r"Connection (closed|reset) by peer", str(error))
        if cause is None and (gloo or isinstance(error, torch.distributed.DistError)):
            cause = UserError("This process stops because another one of the run failed; that one's message says why.")
        if cause is None or cause is error:
            raise
        raise cause from error


@_one_paragraph()
def run_prepare(words: Sequence[str]) -> None:
    """Decode and resize a dataset once, into a cache that test and predict read."""
    parser, config = _configure("prepare", words)
    parts = parser.instantiate_classes(_with_data(config, "prepare"))
    prepare(parts.data, parts.model.preprocessing, progress=_progress_wanted(config.trainer))


@_one_paragraph()
def run_check(words: Sequence[str]) -> None:
    """Validate files, annotations, checkpoint and versions without running the model."""
    from xbench.commands.check import check

    _, config = _configure("check", words)
    # One by one, so that what is wrong with one does not hide what is wrong with the other.
    data, model = (build(config[part].as_dict()) for part in ("data", "model"))
    name = "" if isinstance(data, UserError) else data.name
    folder = Path(config.trainer.default_root_dir or ".").expanduser() / "check" / name
    check(data, model, folder, progress=_progress_wanted(config.trainer))


def score(given: Arguments, more: Sequence[str]) -> None:
    """Score predictions as `test` scores a model, and write the results as a run; `more` are options of `test`."""
    about = {name: value for name, value in vars(given).items() if name not in ("command", "config", "name")}
    # An option that is not given stays away, so that the defaults have one home: the class.
    about = {name: value for name, value in about.items() if value is not None}
    model = {"class_path": "xbench.models.external.External", "init_args": {"label": given.name, **about}}
    words = ["--config", json.dumps({"model": model})]
    words += [word for name in given.config for word in ("--config", name)]
    if given.sizes == "any":
        words += ["--data.batch_size", "1"]
    run_test([*words, "--trainer.accelerator", "cpu", *more])


@_one_paragraph()
def _evaluate(command: Literal["test", "intervene", "predict"], words: Sequence[str]) -> None:
    # Below all other configurations.
    usual = ["--config", json.dumps({"data": {"interventions": USUAL}})] if command == "intervene" else []
    parser, config = _configure(command, [*usual, *words])
    _refuse_unknown(config.trainer)
    for logger in config.trainer.logger if isinstance(config.trainer.logger, list) else [config.trainer.logger]:
        # Loggers that name no folder write where the run does.
        if isinstance(logger, Namespace) and "save_dir" in logger.init_args and logger.init_args.save_dir is None:
            logger.init_args.save_dir = config.trainer.default_root_dir
    # Under SLURM, Lightning would set a handler that saves the weights and requeues the job, as for training.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    folder = Path(config.trainer.default_root_dir or ".").expanduser()
    saved = sorted(folder.glob("hpc_ckpt_*.ckpt")) if "SLURM_NTASKS" in os.environ else []
    if saved:
        raise UsageError(
            f"{saved[0]} was saved by Lightning when SLURM signalled a job, and would be loaded in place of the "
            "model's weights: delete it, or give another --trainer.default_root_dir."
        )
    parts = parser.instantiate_classes(_with_data(config, "predict" if command == "predict" else "test"))
    data, model = parts.data, parts.model
    if model.preprocessing.undecoded:
        # No number depends on how labels are batched, and a batch of many images takes little longer than one of few.
        data.batch_size, data.num_workers = max(data.batch_size, min(1024, len(data.records) // 16)), 0
    trainer = _build_trainer(parts.trainer, SaveConfigCallback(parser, config))
    _refuse_too_many_processes(trainer, data, config.oversubscribe)
    trainer.resume = config.resume  # type: ignore[attr-defined]
    if command == "predict":
        from xbench.callbacks.prediction_writer import PredictionWriter

        if (writer := find(trainer, PredictionWriter)) is not None:
            writer.overlays = config.overlays
    for logger in trainer.loggers:
        # W&B takes a run's group only when the run begins, and Lightning begins it before any callback's turn.
        if hasattr(logger, "describe"):
            logger.describe(model, data, str(trainer.precision))
    trainer.callbacks.insert(0, _LateLoggers(trainer.loggers))  # type: ignore[attr-defined]
    trainer.loggers = []
    with _one_end(command, trainer):
        # Callbacks take care of results and predictions: they are neither printed nor piled up in memory.
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
    """Read the options, and set what holds for the whole process: seed and threads."""
    silence_libraries()
    parser = run_parser(command)
    config = parser.read(words)
    if config.seed_everything is not False:
        seed = None if config.seed_everything is True else config.seed_everything
        config.seed_everything = seed_everything(seed, workers=True)
    # In the environment as well, for Lightning would divide the cores among the processes.
    os.environ["OMP_NUM_THREADS"] = str(config.threads)
    torch.set_num_threads(config.threads)
    return parser, config


def _with_data(config: Namespace, stage: str) -> Namespace:
    """Return the options with the dataset read: what is wrong there is found before weights, which take minutes."""
    data = build(config.data.as_dict(), stage)
    if isinstance(data, UserError):
        raise data
    data.setup = _set_up
    config = config.clone()
    config.data = data
    return config


def _set_up(stage: str) -> None:
    """Read nothing: stands in for the `setup` that Lightning calls once more."""


def _refuse_unknown(options: Namespace) -> None:
    """Name what there is, where a name is asked for that Lightning does not know."""
    # What is left out matters to training alone.
    strategies = [name for name in StrategyRegistry.available_strategies() if "unused" not in name]
    known = {"accelerator": ["gpu", *AcceleratorRegistry.available_accelerators()], "strategy": strategies}
    for option, names in known.items():
        given, names = options[option], ["auto", *names]
        if isinstance(given, str) and given not in names and "unused" not in given:
            near = did_you_mean(given, names)
            raise UsageError(f"--trainer.{option} expects one of {', '.join(names)}, not {given!r}.{near}")


def _build_trainer(options: Namespace, resolved: SaveConfigCallback) -> Trainer:
    # Carries the resolved configuration to the writers of run folders, and writes nothing itself.
    resolved.already_saved = True
    callbacks = options.callbacks if isinstance(options.callbacks, list) else [options.callbacks]
    callbacks = [callback for callback in callbacks if callback is not None]
    if _progress_wanted(options) and not any(isinstance(callback, ProgressBar) for callback in callbacks):
        callbacks.append(RunProgressBar())
    try:
        return Trainer(**{**options, "callbacks": [*callbacks, resolved]})
    except (TypeError, ValueError) as error:
        raise UsageError(f"The trainer's options do not go together: {error}") from error


def _progress_wanted(options: Namespace) -> bool:
    return options.enable_progress_bar is not False and not options.barebones


def _refuse_too_many_processes(trainer: Trainer, data: ChestXrayDataModule, oversubscribe: bool) -> None:
    """Refuse more processes than there are cores or batches for, before Lightning starts any."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    # Under SLURM and torchrun they run already, each bound to cores of its own.
    if environment is None or environment.creates_processes_externally:
        return
    cores = usable_cores()
    if trainer.strategy.root_device.type == "cpu" and trainer.num_devices > cores and not oversubscribe:
        raise UsageError(
            f"--trainer.devices {trainer.num_devices} would start {trainer.num_devices} processes on "
            f"{'one core' if cores == 1 else f'{cores} cores'}, each with a model of its own, which could freeze the "
            f"machine: give --trainer.devices {cores} or fewer, or add --oversubscribe true if this is meant."
        )
    deal(len(data.records), data.batch_size, trainer.world_size)


class _LateLoggers(Callback):
    """Gives the trainer its loggers in `setup`: before that Lightning would begin them, even if the run is refused."""

    def __init__(self, loggers: list[Logger]) -> None:
        self._loggers = loggers

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        trainer.loggers = self._loggers


@contextmanager
def _one_end(command: str, trainer: Trainer) -> Iterator[None]:
    """Remove the folder of a refused run, and say after Ctrl-C what is kept; of several processes the first does it."""
    try:
        yield
    except UserError:
        if (folder := _folder(trainer)) is not None and trainer.is_global_zero:
            discard_refused(folder)
        raise
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning turns the one into the other, without a word.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, KeyboardInterrupt):
            raise
        if not trainer.is_global_zero:
            sys.exit(130)
        text, folder = "Stopped by Ctrl-C.", _folder(trainer) if command != "predict" else None
        if folder is not None and (folder / "results.json").is_file():
            text = f"Stopped by Ctrl-C, after the results were written to {folder}."
        elif folder is not None:
            text += f" What is finished is kept in {folder}: the same command with --resume true goes on from there."
        raise UserError(text, exit_status=130) from None


def _folder(trainer: Trainer) -> Path | None:
    """Return the run's folder, once a callback has made it."""
    folders = (getattr(callback, "folder", None) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    return next((folder for folder in folders if isinstance(folder, Path)), None)


def silence_libraries() -> None:
    """Silence what Lightning says about every run and what does not concern evaluation."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # A download that fails is reported in one paragraph, not once per retry.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    # A library whose log file meets a full disk would print a traceback for every line that it cannot write.
    logging.raiseExceptions = False
    for message in (
        ".*does not have many workers.*",
        ".*You are using a custom batch sampler.*for prediction.*",
        # A process whose every image failed has nothing to add, which is no mistake.
        ".*was called before the ``update`` method.*",
        ".*LeafSpec.*is deprecated.*",
        ".*You have overridden `on_after_batch_transfer`.*",
        ".*Using `DistributedSampler` with the dataloaders.*",
    ):
        warnings.filterwarnings("ignore", message=message)
