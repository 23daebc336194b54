"""The commands that run a model over a dataset, built on LightningCLI."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback, instantiate_class
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

from xbench.callbacks.progress_bar import RunProgressBar
from xbench.commands.check import check
from xbench.commands.configs import defaults
from xbench.commands.parsers import NamedConfig, Parser, configs_first, refuse_change, user_error_behind
from xbench.commands.prepare import prepare
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.workers.sampler import deal
from xbench.errors import UserError
from xbench.models.base import SaliencyModel
from xbench.runtime.processes import usable_cores

__all__ = ["Resolved", "Resolver", "run"]


def run(command: str, options: Sequence[str]) -> None:
    """Run `test`, `predict`, `prepare` or `check`.

    Args:
        command: Name of the trainer's method.
        options: The words after the command.

    Raises:
        UserError: Something that the user can mend.
        SystemExit: After --help.
    """
    _quieten()
    try:
        _RunCLI(**_settings(_RunCLI), args=[command, *configs_first(options)])
    except MisconfigurationException as error:
        raise UserError(f"The trainer's options do not go together: {error}", exit_status=2) from error
    except ModuleNotFoundError as error:
        raise UserError(f"{error}: install the package that the chosen options need.", exit_status=2) from error
    except SIGTERMException as error:
        raise UserError(
            "The run was ended by SIGTERM, either from outside or because another process of the run failed (its "
            "message stands above). What it has finished is kept: the same command with --resume true goes on."
        ) from error
    except Exception as error:
        cause = user_error_behind(error)
        if cause is None and _lost_a_process(error):
            cause = UserError("This process stops because another one of the run failed; that one's message says why.")
        if cause is None or cause is error:
            raise
        raise cause from error


@dataclass(frozen=True)
class Resolved:
    """What a `test` command would run.

    Attributes:
        config: What its `config.yaml` would hold.
    """

    config: dict[str, Any]

    def build(self, part: Literal["model", "data"]) -> Any:
        """Build the model or the data module, or return the `UserError` that says why it cannot be built."""
        chosen = self.config[part]
        return _build(Namespace(class_path=chosen["class_path"], init_args=Namespace(chosen.get("init_args") or {})))


class Resolver:
    """Reads the options of `test` as the command does, any number of times, and runs nothing."""

    def __init__(self) -> None:
        _quieten()
        self._parser: Any = _ReadOnlyCLI(**_settings(_ReadOnlyCLI), args=[])._parser("test")

    def resolve(self, options: Sequence[str]) -> Resolved:
        """Return what `test` with these options would run.

        Raises:
            UserError: The options are wrong.
        """
        self._parser.chosen.clear()
        try:
            config = self._parser.parse_args(configs_first(options))
        except Exception as error:
            cause = user_error_behind(error)
            if cause is None or cause is error:
                raise
            raise cause from error
        _refuse_wrong_choices(config, self._parser.chosen)
        return Resolved(yaml.safe_load(self._parser.dump(config, skip_none=False)))


def _settings(cli: type[_RunCLI]) -> dict[str, Any]:
    """Arguments of our LightningCLI."""
    return {
        "model_class": SaliencyModel,
        "datamodule_class": ChestXrayDataModule,
        "subclass_mode_model": True,
        "subclass_mode_data": True,
        "trainer_class": _Trainer,
        "save_config_callback": _ResolvedConfig,
        "seed_everything_default": 0,
        # The data module deals the batches; Lightning's sampler would count some images twice.
        "trainer_defaults": {"use_distributed_sampler": False},
        "auto_configure_optimizers": False,
        "load_from_checkpoint_support": False,
        "parser_kwargs": {
            name: {
                "default_config_files": [str(path) for path in defaults(name)],
                "usage": f"python -m xbench.cli {name} --config NAME_OR_PATH [--model.X ...] [--data.X ...] "
                "[--trainer.X ...]",
            }
            for name in cli.subcommands()
        },
    }


class _ResolvedConfig(SaveConfigCallback):
    """Carries the resolved configuration to whatever writes it down; writes nothing itself."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the file to the writers of run folders."""


class _Trainer(Trainer):
    """Trainer with the commands that are none of Lightning's, for LightningCLI runs methods of its trainer.

    Attributes:
        resume: Whether a test goes on with an unfinished run.
    """

    resume: bool = False

    def prepare(self, model: SaliencyModel, datamodule: ChestXrayDataModule) -> None:
        """Decode and resize a dataset once, into a cache that test and predict read."""
        prepare(datamodule, model.preprocessing, progress=self.progress_bar_callback is not None)

    def check(self, model: SaliencyModel | UserError, datamodule: ChestXrayDataModule | UserError) -> None:
        """Validate files, annotations, checkpoint and versions without running the model."""
        folder = Path(self.default_root_dir) / "check"
        name = "" if isinstance(datamodule, UserError) else datamodule.name
        check(datamodule, model, folder / name, progress=self.progress_bar_callback is not None)


class _RunCLI(LightningCLI):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(parser_class=Parser, **kwargs)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        # ckpt_path restores Lightning checkpoints, not the models' weights: offering it would mislead.
        hidden = {"model", "dataloaders", "datamodule", "ckpt_path", "weights_only", "verbose", "return_predictions"}
        return {
            "test": hidden - {"return_predictions"},
            "predict": hidden - {"verbose"},
            "prepare": hidden,
            "check": hidden,
        }

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        parser = self.parser_class(**kwargs)
        parser.add_argument(
            "-c",
            "--config",
            action=NamedConfig,
            metavar="NAME_OR_PATH",
            help="A configuration file, or the name of a shipped one, such as demo or clip_siim; may be repeated.",
        )
        return parser

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        parser.add_argument(
            "--threads",
            type=PositiveInt,
            default=1,
            help="CPU threads that each process computes with. Results depend on it in their last bits, so it is the "
            "same whatever the number of processes; on a CPU, --trainer.devices N makes N processes work.",
        )
        parser.add_argument(
            "--oversubscribe",
            type=bool,
            default=False,
            help="On a CPU, let --trainer.devices start more processes than there are cores for this one to use, which "
            "is refused otherwise: each loads the model, and together they are slower.",
        )
        parser.add_argument(
            "--resume",
            type=bool,
            default=False,
            help="test: go on with the newest unfinished run of this model and dataset under "
            "--trainer.default_root_dir, if there is one; its finished images are not done again, and the results are "
            "those of an unbroken run.",
        )
        parser.set_defaults({f"trainer.{name}": value for name, value in self.trainer_defaults.items()})
        # Parts are built in this order: a wrong data folder is found before weights are loaded.
        parser.add_lightning_class_args(ChestXrayDataModule, "data", subclass_mode=True)
        parser.add_lightning_class_args(SaliencyModel, "model", subclass_mode=True)

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        _refuse_wrong_choices(config, self._parser(self.subcommand).chosen)  # type: ignore[attr-defined]
        # In the environment as well, for Lightning would divide the cores among the processes.
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
        torch.set_num_threads(config.threads)
        _send_loggers_home(config.trainer)
        _keep_slurm_out(Path(config.trainer.default_root_dir))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        options = self.config_init[self.subcommand].trainer
        callbacks = options.callbacks if isinstance(options.callbacks, list) else [options.callbacks]
        callbacks = [callback for callback in callbacks if callback is not None]
        wanted = options.enable_progress_bar is not False and not options.barebones
        if wanted and not any(isinstance(callback, ProgressBar) for callback in callbacks):
            callbacks.append(RunProgressBar())
        try:
            return super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except ValueError as error:
            raise UserError(f"The trainer's options do not go together: {error}", exit_status=2) from error

    def instantiate_classes(self) -> None:
        if self.subcommand != "check":
            super().instantiate_classes()
            if self.subcommand != "prepare":
                _refuse_too_many_processes(
                    self.trainer, self.datamodule, str(self.subcommand), self.config[self.subcommand].oversubscribe
                )
            self.trainer.resume = self.config[self.subcommand].resume  # type: ignore[attr-defined]
            for logger in self.trainer.loggers:
                # W&B takes a run's group only when the run begins, and Lightning begins it before any callback's turn.
                if hasattr(logger, "describe"):
                    logger.describe(self.model, self.datamodule, str(self.trainer.precision))
            return
        # One by one, so that what is wrong with one does not hide what is wrong with the other.
        config = self.config["check"]
        self.datamodule, self.model = (_build(config[part]) for part in ("data", "model"))
        options = {name: config.trainer[name] for name in ("default_root_dir", "enable_progress_bar")}
        self.trainer = _Trainer(accelerator="cpu", devices=1, logger=False, enable_model_summary=False, **options)
        self.config_init = self.config

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        # Lightning turns the one into the other, without a word.
        except (KeyboardInterrupt, SystemExit) as error:
            if isinstance(error, SystemExit) and not isinstance(error.__context__, KeyboardInterrupt):
                raise
            if not self.trainer.is_global_zero:
                sys.exit(130)
            raise UserError(_how_to_go_on(subcommand, self.trainer), exit_status=130) from None

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        # Neither printed twice nor piled up in memory: callbacks take care of results and predictions.
        return kwargs | {"test": {"verbose": False}, "predict": {"return_predictions": False}}.get(subcommand, {})


class _ReadOnlyCLI(_RunCLI):
    """The parser of `test` and nothing else."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {"test": _RunCLI.subcommands()["test"]}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = Namespace(subcommand=None)

    def _set_seed(self) -> None:
        """Leave the random numbers as they are."""

    def before_instantiate_classes(self) -> None:
        """Leave the process as it is."""

    def instantiate_classes(self) -> None:
        """Build nothing."""


def _refuse_wrong_choices(config: Namespace, chosen: Mapping[str, str]) -> None:
    """Refuse options without a model or a dataset, or another one than the configuration chose."""
    for part in ("model", "data"):
        changed = config.get(f"{part}.class_path")
        if changed is None:
            raise UserError(
                f"No {part} was chosen: give --config with a shipped name or a file, such as --config demo.",
                exit_status=2,
            )
        refuse_change(part, chosen.get(part, changed), changed)
    if config.trainer.use_distributed_sampler:
        raise UserError(
            "--trainer.use_distributed_sampler true would score some images twice: leave it out, the data module "
            "deals the images to the processes.",
            exit_status=2,
        )


def _refuse_too_many_processes(trainer: Trainer, data: ChestXrayDataModule, stage: str, oversubscribe: bool) -> None:
    """Refuse more processes than there are cores or batches for, before Lightning starts any.

    Under SLURM and torchrun they run already, each bound to cores of its own.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if environment is None or environment.creates_processes_externally:
        return
    cores = usable_cores()
    if trainer.strategy.root_device.type == "cpu" and trainer.num_devices > cores and not oversubscribe:
        raise UserError(
            f"--trainer.devices {trainer.num_devices} would start {trainer.num_devices} processes on "
            f"{'one core' if cores == 1 else f'{cores} cores'}, each with a model of its own, which could freeze the "
            f"machine: give --trainer.devices {cores} or fewer, or add --oversubscribe true if this is meant.",
            exit_status=2,
        )
    data.setup(stage)
    deal(len(data.records), data.batch_size, trainer.world_size)


def _how_to_go_on(subcommand: str, trainer: Trainer) -> str:
    """Return what to say after Ctrl-C."""
    folders = (getattr(callback, "folder", None) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    folder = next((folder for folder in folders if folder is not None), None)
    if subcommand != "test" or folder is None:
        return "Stopped by Ctrl-C."
    if (folder / "results.json").is_file():
        return f"Stopped by Ctrl-C, after the results were written to {folder}."
    return (
        f"Stopped by Ctrl-C. What is finished is kept in {folder}: the same command with --resume true goes on from "
        "there."
    )


def _build(part: Namespace) -> Any:
    """Build a model or a data module, or return why it cannot be built."""
    arguments = part.get("init_args") or Namespace()
    try:
        return instantiate_class((), {"class_path": part.class_path, "init_args": arguments.as_dict()})
    except UserError as error:
        return error


def _send_loggers_home(trainer: Namespace) -> None:
    """Let loggers that name no folder write where the run does."""
    loggers = trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]
    for logger in loggers:
        if isinstance(logger, Namespace) and "save_dir" in logger.init_args and logger.init_args.save_dir is None:
            logger.init_args.save_dir = trainer.default_root_dir


def _keep_slurm_out(folder: Path) -> None:
    """Keep Lightning from saving and restoring weights on its own account, as it does for training under SLURM.

    Raises:
        UserError: There are weights that it would load in place of the model's.
    """
    # Without a handler of ours it would set one that saves the weights and requeues the job.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    saved = sorted(folder.expanduser().glob("hpc_ckpt_*.ckpt")) if "SLURM_NTASKS" in os.environ else []
    if saved:
        raise UserError(
            f"{saved[0]} was saved by Lightning when SLURM signalled a job, and would be loaded in place of the "
            "model's weights: delete it, or give another --trainer.default_root_dir.",
            exit_status=2,
        )


def _lost_a_process(error: Exception) -> bool:
    """Tell whether a collective broke off because a process at its other end is gone."""
    gloo = isinstance(error, RuntimeError) and re.search(r"Connection (closed|reset) by peer", str(error)) is not None
    return gloo or isinstance(error, torch.distributed.DistError)


def _quieten() -> None:
    """Silence what Lightning says about every run and what does not concern evaluation."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    # A download that fails is reported in one paragraph, not once per retry.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    # A library whose log file meets a full disk would print a traceback for every line that it cannot write.
    logging.raiseExceptions = False
    for message in (
        ".*does not have many workers.*",
        ".*LightningCLI's args parameter is intended to run from within Python.*",
        ".*You are using a custom batch sampler.*for prediction.*",
        # A process whose every image failed has nothing to add, which is no mistake.
        ".*was called before the ``update`` method.*",
        ".*LeafSpec.*is deprecated.*",
        ".*Using `DistributedSampler` with the dataloaders.*",
    ):
        warnings.filterwarnings("ignore", message=message)
