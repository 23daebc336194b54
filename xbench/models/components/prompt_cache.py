"""Encoded prompts on disk: a text encoder of a hundred million weights need not say the same thing in every run."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils._pytree import tree_map_only

import xbench
from xbench.runtime.files import atomic_writer
from xbench.runtime.paths import cache_folder

__all__ = ["keep_queries"]


def keep_queries(
    encode: Callable[[], Any],
    prompts: Sequence[Sequence[str]],
    depends_on: Mapping[str, Any],
    device: torch.device,
) -> Any:
    """Return what `encode` returned when it was last called for the same prompts under the same circumstances.

    Bit for bit the same: half an hour of another machine is no reason for another number.

    Args:
        encode: Makes tensors, alone or in tuples, lists and dictionaries.
        prompts: What it encodes.
        depends_on: What else its result depends on, in plain values.
        device: Where the tensors are wanted.
    """
    threads = torch.get_num_threads()
    versions = [xbench.__version__, torch.__version__, transformers.__version__, _source(), threads]
    text = json.dumps([prompts, depends_on, versions], sort_keys=True, default=list)
    path = cache_folder() / "queries" / f"{hashlib.sha256(text.encode()).hexdigest()}.pt"
    try:
        return torch.load(path, map_location=device, weights_only=True)
    # Absent, or damaged in any of the many ways in which the reader complains: then it is made again.
    except Exception:
        queries = encode()
    stored = io.BytesIO()
    torch.save(tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu().clone(), queries), stored)
    # A full or read-only disk costs time, not results.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path, shared=True) as file:
            file.write(stored.getbuffer())
    return queries


def _source() -> str:
    """Digest of the code of the models, whose changes change what they say."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
