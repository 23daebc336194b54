"""Lightning's logger for Weights & Biases."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning.pytorch.loggers as loggers
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from xbench.data.datamodule import ChestXrayDataModule
from xbench.models.base import SaliencyModel
from xbench.report.wandb.session import begin_run, offline_folder
from xbench.runtime.errors import UsageError

FAILED = "Weights & Biases failed, so its page of this run is incomplete or missing"


class WandbLogger(loggers.WandbLogger):
    """Lightning's `WandbLogger`, offline unless the user is logged in or asks otherwise.

    Offline runs are in `<save_dir>/wandb/offline-run-*`; upload them with `wandb sync`.

    Args:
        project: W&B project.
        save_dir: Folder for run files and artifacts; on the command line None means `--trainer.default_root_dir`.
        offline: Whether to stay offline. None goes online if WANDB_MODE allows it, a key exists (WANDB_API_KEY or
            `wandb login`) and the server answers.
        entity: W&B user or team; None for the account's default.
        name: Name of the run; None for `<model>_<dataset>`.
        group: W&B group; None for the dataset.
        job_type: Second level of W&B's groups; None for the model.
        tags: W&B tags in addition to the run's own.
        pictures: Number of cases to upload as pictures with map and region. These are patients' images: None uploads 24
            of phantoms and none of other datasets.
    """

    def __init__(
        self,
        project: str = "xbench",
        save_dir: str | None = None,
        offline: bool | None = None,
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] = (),
        pictures: int | None = None,
    ) -> None:
        if pictures is not None and pictures < 0:
            raise UsageError(f"--trainer.logger.pictures {pictures} is negative: give 0 for no pictures.")
        self._pictures = pictures
        self._wanted_offline = offline
        super().__init__(
            project=project,
            save_dir=save_dir or ".",
            offline=bool(offline),
            entity=entity,
            name=name,
            group=group,
            job_type=job_type,
            tags=list(tags),
        )
        self._wandb_init.pop("anonymous", None)  # removed from wandb, which warns about it

    def describe(self, model: SaliencyModel, data: ChestXrayDataModule, precision: str) -> None:
        """Set name, group, job type and tags of the run, except those that the user set.

        W&B fixes group and job type when a run begins, before Lightning calls any callback. The command line calls this
        in time; a run started from Python has none by default.
        """
        for option, variable, word in (
            ("name", "WANDB_NAME", f"{model.name}_{data.name}"),
            ("group", "WANDB_RUN_GROUP", data.name),
            ("job_type", "WANDB_JOB_TYPE", model.name),
        ):
            if self._wandb_init[option] is None and not os.environ.get(variable):
                self._wandb_init[option] = word
        given = [tag.strip() for tag in os.environ.get("WANDB_TAGS", "").split(",") if tag.strip()]
        own = [model.name, data.name, data.split, precision, f"{prompt_style(model)} prompts"]
        own += ["supervised"] if model.trained_on else []
        if data.limit is not None:
            own.append(f"limit {data.limit}")
        # W&B refuses tags longer than 64 characters.
        tags = tuple(dict.fromkeys(tag[:64] for tag in (*self._wandb_init["tags"], *given, *own)))
        self._wandb_init["tags"] = list(tags)
        run: Any = self._experiment
        if run is not None and run.tags != tags:
            run.name, run.tags = self._wandb_init["name"] or run.name, tags

    def pictures(self, data: ChestXrayDataModule) -> int:
        from xbench.data.datasets.phantom import PhantomCXR

        # Subclasses may hold films of patients.
        return self._pictures if self._pictures is not None else 24 if type(data) is PhantomCXR else 0

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            # Lightning would set WANDB_MODE=dryrun for the whole process and keep later runs offline.
            self._experiment = begin_run(Path(self._wandb_init["dir"]), self._wandb_init, self._wanted_offline)
        return self._experiment

    @property
    def offline_run(self) -> Path | None:
        """Folder of an offline run for `wandb sync`; None if online, disabled or not begun."""
        return None if self._experiment is None else offline_folder(self._experiment)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, so that its files are complete; warn if W&B fails."""
        run, self._experiment = self._experiment, None
        if run is None:
            return
        try:
            run.finish(exit_code=0 if status == "success" else 1)
        # W&B raises many internal errors, which must not hide the outcome of the run.
        except Exception as error:
            warnings.warn(f"{FAILED} ({error}).", stacklevel=2)
            # Otherwise wandb tries to end the dead service again at exit, with a traceback.
            with suppress(Exception):
                import wandb

                wandb.teardown()


def prompt_style(model: SaliencyModel) -> str:
    """Return the source of a model's prompts: `official`, or the name of a style or file."""
    source = getattr(model, "prompt_source", None)
    return "official" if source is None else Path(source).stem
