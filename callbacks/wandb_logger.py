"""Weights & Biases without surprises: never a prompt, never a hang, no network needed."""

from __future__ import annotations

import netrc
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import lightning.pytorch.loggers as loggers
import wandb
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities.rank_zero import rank_zero_only, rank_zero_warn

from xbench.errors import UserError


class WandbLogger(loggers.WandbLogger):
    """Lightning's `WandbLogger`, offline unless the user is logged in or asks otherwise.

    Offline runs lie in `<save_dir>/wandb/offline-run-*` and go online with `wandb sync`.

    Args:
        project: W&B project.
        save_dir: Folder for run files, artifacts' bytes included; from the command line None means that of the run,
            `--trainer.default_root_dir`.
        offline: True or False decide; None (the default) goes online if WANDB_MODE does not say otherwise, a key is
            at hand (WANDB_API_KEY or `wandb login`), and the server answers.
        entity: W&B user or team; None for the account's default.
        name: Name of the run; None for `<model>_<dataset>`.
        group: W&B group.
        tags: W&B tags.
    """

    def __init__(
        self,
        project: str = "xbench",
        save_dir: str | None = None,
        offline: bool | None = None,
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        self._may_fall_back = offline is None
        super().__init__(
            project=project,
            save_dir=save_dir or ".",
            offline=not _server_answers() if offline is None else offline,
            entity=entity,
            name=name,
            group=group,
            tags=list(tags),
        )
        self._wandb_init.pop("anonymous", None)  # wandb has dropped it and would warn

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run, begun at first use.

        Raises:
            UserError: `offline` is False, and the run cannot begin.
        """
        if self._experiment is None:
            self._begin()
        return self._experiment

    def _begin(self) -> None:
        # wandb's service process resolves relative paths in the folder that it was once started in.
        folder = Path(self._wandb_init["dir"]).expanduser().absolute()
        self._wandb_init["dir"] = str(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"Weights & Biases cannot write to {folder}: {error.strerror}. Give a folder that you may write to "
                "with --trainer.default_root_dir, or do without with --trainer.logger false."
            ) from error
        # By default wandb stages the bytes of artifacts in the home folder, and a sync from elsewhere would lose them.
        os.environ.setdefault("WANDB_DATA_DIR", str(folder))
        # The console's progress bars are no use on a dashboard; a server that is slow must not hold up the run.
        settings = wandb.Settings(console="off", init_timeout=30, silent=self._offline)
        try:
            self._init(settings, offline=self._offline)
        except wandb.errors.Error as error:
            if not self._may_fall_back:
                raise UserError(
                    f"Weights & Biases could not begin a run online: {' '.join(str(error).split())}. Check the network "
                    "and `wandb login`, or leave out --trainer.logger.offline false to log offline."
                ) from error
            rank_zero_warn(f"Weights & Biases could not begin a run online ({error}); logging offline.")
            self._offline = True
            self._init(settings, offline=True)

    def _init(self, settings: wandb.Settings, offline: bool) -> None:
        # Lightning's logger sets WANDB_MODE=dryrun for the whole process and would keep later runs offline.
        mode = "offline" if offline else "online"
        if os.environ.get("WANDB_MODE") == "disabled":
            mode = "disabled"
        self._experiment = wandb.init(**{**self._wandb_init, "mode": mode, "settings": settings})

    @property
    def offline_run(self) -> Path | None:
        """Folder of an offline run that `wandb sync` takes, None for one that is online, disabled or not begun."""
        run = self._experiment
        if run is None or not run.offline or run.disabled:
            return None
        return Path(run.dir).parent

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, so that its files are complete before the process ends."""
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
            self._experiment = None


def _server_answers() -> bool:
    """Tell whether W&B may be, and can be, reached with the credentials at hand."""
    own_server = os.environ.get("WANDB_BASE_URL")
    server = urlsplit(own_server or str(wandb.Settings().base_url))
    # The hosted service has changed its address, and keys are still filed under the old one.
    hosts = [server.netloc] if own_server else [server.netloc, "api.wandb.ai"]
    if os.environ.get("WANDB_MODE", "online") not in ("online", "run") or not _has_key(hosts):
        return False
    try:
        with socket.create_connection((server.hostname or "", server.port or 443), timeout=3):
            return True
    except OSError:
        return False


def _has_key(hosts: Sequence[str]) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    # `wandb login` keeps the key where curl would look for it.
    try:
        entries = netrc.netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser())
    except (OSError, netrc.NetrcParseError):
        return False
    return any(entries.authenticators(host) for host in hosts)
