"""Where a run puts its files, and which unfinished run it goes on with."""

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
from xbench.runs.journal import ABOUT, finished_batches, read_about
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.files import write_whole
from xbench.runtime.locks import Busy, try_lock

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.cli import SaveConfigCallback

_LOCK = "lock"


@dataclass(frozen=True)
class RunFolder:
    """A run's folder as every process sees it."""

    path: Path
    finished: Mapping[int, Path] = field(default_factory=dict)  # by number the batches of earlier attempts

    @property
    def journal(self) -> Path:
        """Folder of the journal, while the run is unfinished."""
        return self.path / JOURNAL


def open_run_folder(trainer: Trainer, model: str, dataset: str) -> Path:
    """Create `<default_root_dir>/<model>_<dataset>/<timestamp>/` once for all processes.

    Every process must call it. The configuration goes in at once as `config.yaml`, so that even a run that fails later
    can be repeated.
    """
    return _together(trainer, lambda: RunFolder(_create(trainer, _parent(trainer, model, dataset)))).path


def open_journaled_folder(
    trainer: Trainer,
    model: str,
    dataset: str,
    depends_on: Callable[[], Mapping[str, Any] | None],
    batches: int,
    resume: bool,
) -> RunFolder:
    """Create a run's folder with a journal, or go on with an unfinished one. Every process must call it.

    Args:
        trainer: The trainer of the run.
        model: Name of the model.
        dataset: Name of the dataset.
        depends_on: Returns the run's fingerprint; only the first process asks, for it reads whole checkpoints. None
            for a run that cannot be resumed.
        batches: How many the dataset has.
        resume: Go on with the newest unfinished run of the same model and dataset, if there is one.
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
        # A process without a batch would leave the others waiting for ever: it does a finished one again.
        kept = max(0, batches - trainer.world_size)
        for _, again in finished[kept:]:
            again.unlink()  # another answer, or another last bit on a GPU, would stand beside it
        return RunFolder(folder, dict(finished[:kept]))

    return _together(trainer, choose)


def new_folder(parent: Path) -> Path:
    """Create a folder in `parent`, which is created if need be, and name it after the time."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for suffix in ("", *(f"-{count}" for count in range(2, 1000))):
        folder = (parent / (stamp + suffix)).absolute()
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise FileExistsError(errno.EEXIST, "a thousand runs started in the same second", str(parent / stamp))


def discard_refused(folder: Path) -> None:
    """Remove the folder of a run that was refused before it had finished anything, and that of its pair if empty."""
    if {path.name for path in folder.rglob("*") if path.is_file()} <= {CONFIG, ABOUT, _LOCK}:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


def saved_config(trainer: Trainer) -> SaveConfigCallback | None:
    """Return the callback that knows the configuration of the command line; None for a run started from Python."""
    # Here, for `rescore` names folders too, and does without Lightning.
    from lightning.pytorch.cli import SaveConfigCallback

    return next((callback for callback in trainer.callbacks if isinstance(callback, SaveConfigCallback)), None)  # type: ignore[attr-defined]


def _together(trainer: Trainer, choose: Callable[[], RunFolder]) -> RunFolder:
    """Let the first process choose, and tell the others its choice, or why there is none."""
    chosen: RunFolder | UserError | None = None
    if trainer.is_global_zero:
        try:
            chosen = choose()
        except UserError as error:
            chosen = error
        except OSError as error:
            place = error.filename or trainer.default_root_dir
            chosen = UserError(
                f"The run cannot write its results: {error.strerror} ({place}). Make room there, or give another "
                "folder that you may write to with --trainer.default_root_dir."
            )
    # All processes learn of a failure together; if only the first one stopped, the others would wait for it.
    told = trainer.strategy.broadcast(chosen)
    if isinstance(told, UserError):
        raise told
    assert told is not None, "the first process chooses something"
    return told


def _unfinished(parent: Path, about: Mapping[str, Any] | None) -> Path | None:
    """Return the newest unfinished run that depends on the same things, locked; None if none is unfinished."""
    refused: list[str] = []
    for folder in sorted((path.parent for path in parent.glob(f"*/{JOURNAL}")), reverse=True):
        stored = read_about(folder / JOURNAL)
        if stored is None or (folder / RESULTS).exists():
            continue
        if differs := difference(stored, about):
            refused.append(f"{folder} was begun otherwise: {differs}.")
        elif not _lock(folder):
            refused.append(f"{folder} is still going on in another process.")
        else:
            return folder
    if refused:
        raise UsageError(
            f"--resume true: {refused[0]} An unfinished run can only go on with the same configuration, weights, data "
            "and versions: give those, or leave out --resume true to start anew, or delete that folder."
        )
    return None


def _lock(folder: Path) -> bool:
    """Mark a run as going on, for as long as this process lives; False if another process has done so."""
    try:
        try_lock(folder / JOURNAL / _LOCK, inherited=False)
    except Busy:
        return False
    return True


def _parent(trainer: Trainer, model: str, dataset: str) -> Path:
    for part, name in (("model", model), ("dataset", dataset)):
        # A path would lead out of the root.
        if not is_folder_name(name):
            raise UserError(
                f"The {part} is called {name!r:.60}, and its name becomes part of the run's folder: set `name` in its "
                "class to printable characters without slashes, and with none of . = + - @ as the first."
            )
    return Path(trainer.default_root_dir).expanduser() / f"{model}_{dataset}"


def _create(trainer: Trainer, parent: Path) -> Path:
    folder, saved = new_folder(parent), saved_config(trainer)
    text = "# This run was started from Python and not from the command line, which alone knows the configuration.\n"
    if saved is not None:
        text = saved.parser.dump(saved.config, skip_none=False)
    write_whole(folder / CONFIG, text)
    return folder
