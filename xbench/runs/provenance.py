"""What a result depends on: versions, commit, command, seed, weights, annotations."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import xbench
from xbench.runtime.digests import file_sha256, source_sha256

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from xbench.data.datamodule import ChestXrayDataModule
    from xbench.models.base import SaliencyModel

_PACKAGES: tuple[str, ...] = ("torch", "torchvision", "lightning", "torchmetrics", "open_clip_torch", "timm")
_PACKAGES += ("transformers", "albumentations", "opencv-python-headless", "pydicom", "pillow", "numpy")
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
    """Describe a run, as nested plain values that are ready for JSON.

    `seconds` is the wall-clock time of this process by stage, `config` the resolved configuration, None for a run that
    was started from Python.
    """
    details, store = model.provenance(), data.prepared
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
        "annotation_sha256": annotation_digests(data.annotation_files()),
        "prompts": details.pop("prompts", None),
        "preprocessing": model.preprocessing.description(),
        "model": {
            "class": f"{type(model).__module__}.{type(model).__qualname__}",
            "saliency_upsample": model.saliency_upsample,
            "map_scale": model.map_scale,
            **({"exploratory": model.exploratory} if model.exploratory else {}),
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
        # Which store of prepared images the run could read, and how many of its images are in it.
        "prepared": None
        if store is None
        else {"store": store.folder.name, "images": sum(map(store.holds, data.records))},
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
    }


def numbers_depend_on(
    trainer: pl.Trainer, model: SaliencyModel, data: ChestXrayDataModule, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe what an unfinished run must share with the attempt that goes on with it.

    These are its settings, and digests of annotations, of weights, and of every file that an option names, by itself or
    by its folder, as nested plain values that are ready for JSON. What moves no number is left out, such as folders of
    results and processes that load images. `model` is asked before its `setup`, `data` after.
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
    """Return the options of a run that may move a number, of its resolved configuration as nested plain values.

    The class of a model or a dataset declares which of its options move none (`neutral_options`). `bench` takes two
    runs with equal options for one, and `--resume` goes on with an unfinished run that has them.
    """

    def without(options: Mapping[str, Any] | None, neutral: Collection[str]) -> dict[str, Any]:
        return {name: value for name, value in (options or {}).items() if name not in neutral}

    counted = without(config, _NEUTRAL) | {"trainer": without(config.get("trainer"), _NEUTRAL_IN_TRAINER)}
    # These distribute images and leave the model as it is; others, such as FSDP, can change its precision.
    if str(counted["trainer"].get("strategy")).partition("_")[0] in ("ddp", "single"):
        counted["trainer"]["strategy"] = "auto"
    for part, owner in (("model", model), ("data", data)):
        chosen = config.get(part)
        if isinstance(chosen, Mapping):
            arguments = without(chosen.get("init_args"), owner.neutral_options)
            chosen = {"class": chosen.get("class_path"), **arguments}
        counted[part] = chosen
    return counted


def annotation_digests(files: Sequence[Path]) -> dict[str, str]:
    """Return the digests of annotation files by name, or by their place below a common folder where names repeat."""
    names = [path.name for path in files]
    if len({*names}) < len({*files}):
        folder = os.path.commonpath([path.absolute().parent for path in files])
        names = [os.path.relpath(path.absolute(), folder) for path in files]
    return {name: file_sha256(path) for name, path in zip(names, files, strict=True)}


def utf8(path: str) -> str:
    """Return a path as files of UTF-8 can name it, with an escape for a byte that is no text."""
    return path.encode("utf-8", "backslashreplace").decode()


def versions() -> dict[str, str]:
    """Return the versions of xbench, of Python and of the packages that numbers depend on."""
    packages = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {"xbench": xbench.__version__, "python": platform.python_version(), **packages}


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


def _git_commit() -> str | None:
    """Return the commit of the checkout that xbench runs from, with `-dirty` if it was changed; None elsewhere."""
    root = Path(xbench.__file__).resolve().parents[1]
    git = partial(subprocess.check_output, cwd=root, stderr=subprocess.DEVNULL, text=True, timeout=10)
    with suppress(OSError, subprocess.SubprocessError):
        # An installed package may well lie inside somebody else's repository.
        if Path(git(["git", "rev-parse", "--show-toplevel"]).strip()).resolve() == root:
            return git(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]).strip()
    return None
