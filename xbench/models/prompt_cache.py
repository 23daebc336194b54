"""Encoded prompts on disk, so that a text encoder of a hundred million weights runs once and not in every run."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import transformers
from torch.utils._pytree import tree_map_only

from xbench.runtime.digests import source_sha256
from xbench.runtime.files import atomic_writer
from xbench.runtime.paths import cache_folder


def cached_queries(
    encode: Callable[[], Any],
    prompts: Sequence[Sequence[str]],
    depends_on: Mapping[str, Any],
    model: type,
    device: torch.device,
) -> Any:
    """Return what `encode` returned when it was last called for the same prompts, code, libraries and threads.

    The tensors are equal bit for bit, so a cached query moves no number.

    Args:
        encode: Makes tensors, alone or in tuples, lists and dictionaries.
        depends_on: What its result depends on beside the prompts, in plain values.
        device: Where the tensors are wanted.
    """
    code = [model.__qualname__, source_sha256(model), torch.__version__, transformers.__version__]
    text = json.dumps([prompts, depends_on, code, torch.get_num_threads()], sort_keys=True, default=list)
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
