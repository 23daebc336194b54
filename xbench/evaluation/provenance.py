"""What a result depends on: versions, commit, command, seed, weights, annotations."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

import xbench
from xbench.data.datamodule import ChestXrayDataModule
from xbench.models.base import SaliencyModel
from xbench.runtime.digests import file_sha256, source_sha256

_PACKAGES = (
    "torch",
    "torchvision",
    "lightning",
    "torchmetrics",
    "open_clip_torch",
    "timm",
    "transformers",
    "albumentations",
    "opencv-python-headless",
    "pydicom",
    "pillow",
    "numpy",
)


# Parts of a configuration that move no number, and options of Lightning's trainer, which cannot say so itself.
_NEUTRAL = frozenset({"config", "oversubscribe", "resume"})
_NEUTRAL_IN_TRAINER = frozenset(
    {"default_root_dir", "devices", "enable_model_summary", "enable_progress_bar", "logger", "num_nodes"}
)


def collect_provenance(
    trainer: pl.Trainer,
    model: SaliencyModel,
    data: ChestXrayDataModule,
    seconds: dict[str, float],
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe a run.

    Args:
        trainer: The trainer of the run.
        model: Its model; `provenance()` says what is particular to it.
        data: Its data module; `annotation_files()` are hashed.
        seconds: Wall-clock time of this process by stage.
        config: The resolved configuration, as nested plain values; None for a run that was started from Python.

    Returns:
        Nested plain values, ready for JSON.
    """
    details = model.provenance()
    seed = os.environ.get("PL_GLOBAL_SEED")  # where Lightning's seed_everything leaves it
    return {
        "versions": versions(),
        "git_commit": _git_commit(),
        "source_sha256": source_sha256(type(model), type(data)),
        "command": [utf8(word) for word in sys.orig_argv],
        "seed": int(seed) if seed is not None else None,
        "precision": str(trainer.precision),
        "devices": {
            "accelerator": _accelerator(trainer),
            "processes": trainer.world_size,
            "nodes": trainer.num_nodes,
            "threads": torch.get_num_threads(),
        },
        "checkpoint_sha256": details.pop("checkpoint_sha256", None),
        "annotation_sha256": {path.name: file_sha256(path) for path in data.annotation_files()},
        "prompts": details.pop("prompts", None),
        "preprocessing": model.preprocessing.description(),
        "model": {
            "class": f"{type(model).__module__}.{type(model).__qualname__}",
            "saliency_upsample": model.saliency_upsample,
            **details,
        },
        "data": {
            **data.options(None if config is None else (config.get("data") or {}).get("init_args") or {}),
            "class": f"{type(data).__module__}.{type(data).__qualname__}",
            "batch_size": data.batch_size,
            "limit": data.limit,
            "grid": data.grid if data.grid == "native" else list(data.grid),
            "gamma": data.gamma,
        },
        "prepared": _prepared(data),
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
    }


def numbers_depend_on(
    trainer: pl.Trainer, model: SaliencyModel, data: ChestXrayDataModule, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe what an unfinished run must share with the attempt that goes on with it.

    Args:
        trainer: The trainer of the run.
        model: The model, before its `setup`.
        data: The data module, after its `setup`.
        config: The resolved configuration, as nested plain values.

    Returns:
        Nested plain values, ready for JSON: settings, and digests of annotations, of weights, and of every file that an
        option names, by itself or by its folder. What moves no number is left out, such as folders of results and
        processes that load images.
    """
    settings = options_that_count(config, type(model), type(data))
    # Their resolved values: `auto` differs between machines, and plugins replace both.
    settings["trainer"] |= {"precision": str(trainer.precision), "accelerator": _accelerator(trainer)}
    checkpoint = getattr(model, "checkpoint", None)
    ids = hashlib.sha256("\n".join(record.image_id for record in data.records).encode())
    return {
        "settings": settings,
        "files": {option: file_sha256(path) for option, path in _files(settings["model"], "model")},
        "checkpoint": file_sha256(Path(checkpoint)) if checkpoint and Path(checkpoint).is_file() else None,
        "annotations": {str(path): file_sha256(path) for path in data.annotation_files()},
        "images": {"count": len(data.records), "names": ids.hexdigest()},
        "versions": versions(),
        "source_sha256": source_sha256(type(model), type(data)),
    }


def options_that_count(
    config: Mapping[str, Any], model: type[SaliencyModel], data: type[ChestXrayDataModule]
) -> dict[str, Any]:
    """Return the options of a run that may move a number.

    The class of a model or a dataset declares which of its options move none (`neutral_options`). `bench` takes two
    runs with equal options for one, and `--resume` goes on with an unfinished run that has them.

    Args:
        config: The resolved configuration, as nested plain values.
        model: Class of the model.
        data: Class of the data module.
    """
    counted = {name: value for name, value in config.items() if name not in _NEUTRAL}
    trainer = config.get("trainer") or {}
    counted["trainer"] = {name: value for name, value in trainer.items() if name not in _NEUTRAL_IN_TRAINER}
    for part, owner in (("model", model), ("data", data)):
        counted[part] = _without(config.get(part), owner.neutral_options)
    return counted


def utf8(path: str) -> str:
    """Return a path as files of UTF-8 can name it, with an escape for a byte that is no text."""
    return path.encode("utf-8", "backslashreplace").decode()


def versions() -> dict[str, str]:
    """Return the versions of xbench, of Python and of the packages that numbers depend on."""
    own = {"xbench": xbench.__version__, "python": platform.python_version()}
    return own | {package: importlib.metadata.version(package) for package in _PACKAGES}


def _without(part: Any, names: Collection[str]) -> Any:
    """A chosen class with its arguments, less those of the given names."""
    if not isinstance(part, Mapping):
        return part
    arguments = {name: value for name, value in (part.get("init_args") or {}).items() if name not in names}
    return {"class": part.get("class_path"), **arguments}


def _accelerator(trainer: pl.Trainer) -> str:
    return trainer.accelerator.__class__.__name__.removesuffix("Accelerator").lower()


def _files(value: Any, option: str) -> Iterator[tuple[str, Path]]:
    """The files that options name, or that lie in folders that they name, each with its option."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _files(inner, f"{option}.{name}")
    elif isinstance(value, str) and value and len(value) < 4096:
        path = Path(os.path.expanduser(value))
        if os.path.isfile(path):
            yield option, path
        elif os.path.isdir(path):
            for inside in sorted(path.rglob("*")):
                if inside.is_file():
                    yield f"{option}/{inside.relative_to(path)}", inside


def _prepared(data: ChestXrayDataModule) -> dict[str, Any] | None:
    """Return which store of prepared images the run could read, and how many of its images are in it."""
    store = data.prepared
    return None if store is None else {"store": store.folder.name, "images": sum(map(store.holds, data.records))}


def _git_commit() -> str | None:
    """Return the commit of the checkout that xbench runs from, with `-dirty` if it was changed; None elsewhere."""
    root = Path(xbench.__file__).resolve().parents[1]
    top = _git(root, "rev-parse", "--show-toplevel")
    # An installed package may well lie inside somebody else's repository.
    if top is None or Path(top).resolve() != root:
        return None
    return _git(root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
