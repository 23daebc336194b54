"""Where a run puts its files."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.cli import SaveConfigCallback

from xbench.errors import UserError
from xbench.results import atomic_writer


def open_run_folder(trainer: Trainer, model: str, dataset: str) -> Path:
    """Create `<default_root_dir>/<model>_<dataset>/<timestamp>/` once for all processes.

    Every process must call it. The configuration goes in at once as `config.yaml`, so that even a run that fails later
    can be repeated.

    Raises:
        UserError: The folder cannot be created.
    """
    folder: Path | str = ""
    if trainer.is_global_zero:
        try:
            folder = _create(Path(trainer.default_root_dir).expanduser() / f"{model}_{dataset}")
            _write_config(trainer, folder / "config.yaml")
        except OSError as error:
            folder = (
                f"The run cannot write its results: {error.strerror} ({error.filename}). Give a folder that you may "
                "write to with --trainer.default_root_dir."
            )
    # All processes learn of a failure together; if only the first one stopped, the others would wait for it.
    folder = trainer.strategy.broadcast(folder)
    if isinstance(folder, str):
        raise UserError(folder)
    return folder


def _create(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for suffix in ("", *(f"-{count}" for count in range(2, 1000))):
        try:
            (parent / (stamp + suffix)).mkdir()
        except FileExistsError:
            continue
        return (parent / (stamp + suffix)).absolute()
    raise FileExistsError(17, "a thousand runs started in the same second", str(parent / stamp))


def _write_config(trainer: Trainer, path: Path) -> None:
    saved = next((callback for callback in trainer.callbacks if isinstance(callback, SaveConfigCallback)), None)  # type: ignore[attr-defined]
    if saved is None:
        text = (
            "# This run was started from Python and not from the command line, which alone knows the configuration.\n"
        )
    else:
        text = saved.parser.dump(saved.config, skip_none=False)
    with atomic_writer(path) as file:
        file.write(text.encode())
