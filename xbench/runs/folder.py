"""Folders of runs, new or resumed."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xbench.findings.names import is_folder_name
from xbench.runs.files import CONFIG, JOURNAL, RESULTS
from xbench.runs.fingerprint import difference
from xbench.runs.journal import ABOUT, Place, finished_batches, read_about
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.files import write_whole
from xbench.runtime.locks import Busy, try_lock

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.cli import SaveConfigCallback

_LOCK = "lock"


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run, the same in every process."""

    path: Path
    finished: Mapping[int, Place] = field(default_factory=dict)  # by number, batches of earlier attempts
    files: int = 0  # of the journal, from earlier attempts

    @property
    def journal(self) -> Path:
        """Folder of the journal of an unfinished run."""
        return self.path / JOURNAL

    def part(self, process: int) -> Path:
        """Return the journal's file for a process, which sorts after those of earlier attempts."""
        return self.journal / f"{self.files:06d}-{process:06d}.arrow"


def open_run_folder(trainer: Trainer, model: str, dataset: str) -> Path:
    """Create `<default_root_dir>/<model>_<dataset>/<timestamp>/` with `config.yaml`; every process must call it."""
    return _together(trainer, lambda: RunFolder(_create(trainer, _parent(trainer, model, dataset)))).path


def open_journaled_folder(
    trainer: Trainer,
    model: str,
    dataset: str,
    depends_on: Callable[[], Mapping[str, Any] | None],
    batches: int,
    resume: bool,
) -> RunFolder:
    """Create a run's folder with a journal, or resume the newest unfinished one. Every process must call it.

    `depends_on` returns the fingerprint, or None if the run cannot be resumed. Only the first process calls it, because
    it reads whole checkpoints. `batches` is the number of batches of the dataset.
    """

    def choose() -> RunFolder:
        about = depends_on()
        parent = _parent(trainer, model, dataset)
        folder = _unfinished(parent, about) if resume else None
        if folder is None:
            run = RunFolder(_create(trainer, parent))
            run.journal.mkdir()
            if about is not None:
                write_whole(run.journal / ABOUT, json.dumps(about, indent=1))
            _lock(run.path)
            return run
        finished = [*finished_batches(folder / JOURNAL).items()]
        # A process without a batch would make the others wait forever, so it repeats a finished one.
        kept = max(0, batches - trainer.world_size)
        return RunFolder(folder, dict(finished[:kept]), len([*folder.glob(f"{JOURNAL}/*.arrow")]))

    return _together(trainer, choose)


def new_folder(parent: Path) -> Path:
    """Create a folder named after the time in `parent`."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for suffix in ("", *(f"-{count}" for count in range(2, 1000))):
        folder = (parent / (stamp + suffix)).absolute()
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise FileExistsError(errno.EEXIST, "a thousand runs started in the same second", str(parent / stamp))


def discard_refused(folder: Path) -> None:
    """Remove the folder of a refused run without finished batches, and its parent if empty."""
    if {path.name for path in folder.rglob("*") if path.is_file()} <= {CONFIG, ABOUT, _LOCK}:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


def saved_config(trainer: Trainer) -> SaveConfigCallback | None:
    """Return the callback with the command line's configuration; None for a run started from Python."""
    # Imported here, because `rescore` needs no Lightning.
    from lightning.pytorch.cli import SaveConfigCallback

    return next((callback for callback in trainer.callbacks if isinstance(callback, SaveConfigCallback)), None)  # type: ignore[attr-defined]


def _together(trainer: Trainer, choose: Callable[[], RunFolder]) -> RunFolder:
    """Let the first process choose, and share its choice or error with the others."""
    chosen: RunFolder | UserError | None = None
    if trainer.is_global_zero:
        try:
            chosen = choose()
        except UserError as error:
            chosen = error
        except OSError as error:
            place = error.filename or trainer.default_root_dir
            chosen = UserError(
                f"The run cannot write its results: {error.strerror} ({place}). Free disk space, or give "
                "another writable folder with --trainer.default_root_dir."
            )
    # All processes get the failure; if only the first one stopped, the others would wait for it.
    told = trainer.strategy.broadcast(chosen)
    if isinstance(told, UserError):
        raise told
    assert told is not None, "the first process chooses something"
    return told


def _unfinished(parent: Path, about: Mapping[str, Any] | None) -> Path | None:
    """Return the newest unfinished run with the same fingerprint, locked; None if there is none."""
    refused: list[str] = []
    for folder in sorted((path.parent for path in parent.glob(f"*/{JOURNAL}")), reverse=True):
        stored = read_about(folder / JOURNAL)
        if stored is None or (folder / RESULTS).exists():
            continue
        if differs := difference(stored, about):
            refused.append(f"{folder} was started with other settings: {differs}.")
        elif not _lock(folder):
            refused.append(f"{folder} is still running in another process.")
        else:
            return folder
    if refused:
        raise UsageError(
            f"--resume true: {refused[0]} Resuming needs the same configuration, weights, data and versions. Use "
            "these, omit --resume true to start a new run, or delete that folder."
        )
    return None


def _lock(folder: Path) -> bool:
    """Lock a run for the life of this process; False if another process has."""
    try:
        try_lock(folder / JOURNAL / _LOCK, inherited=False)
    except Busy:
        return False
    return True


def _parent(trainer: Trainer, model: str, dataset: str) -> Path:
    for part, name in (("model", model), ("dataset", dataset)):
        # A path would leave the root.
        if not is_folder_name(name):
            raise UserError(
                f"The name {name!r:.60} of the {part} cannot be part of a folder: set `name` in its class to "
                "printable characters without slashes, not beginning with . = + - or @."
            )
    return Path(trainer.default_root_dir).expanduser() / f"{model}_{dataset}"


def _create(trainer: Trainer, parent: Path) -> Path:
    folder, saved = new_folder(parent), saved_config(trainer)
    text = "# This run was started from Python, so its configuration is unknown.\n"
    if saved is not None:
        text = saved.parser.dump(saved.config, skip_none=False)
    write_whole(folder / CONFIG, text)
    return folder
