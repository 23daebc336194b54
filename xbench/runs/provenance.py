"""Provenance of a run: versions, commit, command, seed, weights, annotations."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import xbench
from xbench.runs.fingerprint import annotation_digests, own_options, plain, utf8, versions
from xbench.runs.folder import saved_config
from xbench.runtime.digests import outside, source_sha256

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from xbench.data.datamodule import ChestXrayDataModule
    from xbench.models.base import SaliencyModel


def collect_outputs(trainer: pl.Trainer, model: SaliencyModel) -> dict[str, Any]:
    """Describe the model and the preprocessing, which determine logits and maps; see `outputs_depend_on`."""
    details, saved = {**model.provenance()}, saved_config(trainer)
    if saved is not None and outside(type(model)):
        given, known = own_options(saved.config.as_dict(), type(model)), {*details, "prompts_sha256"}
        options = {name: value for name, value in given.items() if name not in known}
        details = {"checkpoint_sha256": options.pop("checkpoint_sha256", None), **details, "options": options}
    of_model: dict[str, Any] = {"saliency_upsample": model.saliency_upsample, "map_scale": model.map_scale}
    of_model |= {name: value for name in ("exploratory", "trained_on", "map_sigma") if (value := getattr(model, name))}
    outputs: dict[str, Any] = plain(
        {
            "precision": str(trainer.precision),
            "checkpoint_sha256": details.pop("checkpoint_sha256", None),
            "prompts": details.pop("prompts", None),
            "preprocessing": model.preprocessing.description(),
            "model": {"class": f"{type(model).__module__}.{type(model).__qualname__}", **of_model, **details},
        }
    )
    return outputs


def collect_provenance(
    trainer: pl.Trainer, model: SaliencyModel, data: ChestXrayDataModule, seconds: dict[str, float]
) -> dict[str, Any]:
    """Describe a run as nested plain values for JSON; `seconds` is the wall-clock time of this process by stage."""
    store, saved = data.prepared, saved_config(trainer)
    given = None if saved is None else (saved.config.as_dict().get("data") or {}).get("init_args") or {}
    seed = os.environ.get("PL_GLOBAL_SEED")  # set by Lightning's seed_everything
    return {
        "versions": versions(),
        "git_commit": _git_commit(),
        "source_sha256": source_sha256(type(model), type(data)),
        "command": [utf8(word) for word in sys.orig_argv],
        "seed": int(seed) if seed is not None else None,
        "devices": {
            "accelerator": type(trainer.accelerator).__name__.removesuffix("Accelerator").lower(),
            "processes": trainer.world_size,
            "nodes": trainer.num_nodes,
            "threads": torch.get_num_threads(),
        },
        **collect_outputs(trainer, model),
        "annotation_sha256": annotation_digests(data.annotation_files()),
        "data": {
            **data.options(given),
            "class": f"{type(data).__module__}.{type(data).__qualname__}",
            "batch_size": data.batch_size,
            "limit": data.limit,
            "grid": data.grid if data.grid == "native" else list(data.grid),
            "gamma": data.gamma,
        },
        # Prepared images that the run could read.
        "prepared": None if store is None else {"store": store.folder.name, "images": store.holding(data.records)},
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
    }


def _git_commit() -> str | None:
    """Return the commit of xbench's checkout, with `-dirty` if changed; None elsewhere."""
    root = Path(xbench.__file__).resolve().parents[1]
    git = partial(subprocess.check_output, cwd=root, stderr=subprocess.DEVNULL, text=True, timeout=10)
    with suppress(OSError, subprocess.SubprocessError):
        # An installed package may lie inside another repository.
        if Path(git(["git", "rev-parse", "--show-toplevel"]).strip()).resolve() == root:
            return git(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]).strip()
    return None
