"""Made maps and regions with the values that the official scorers give them; no patient's data.

`tests/metrics/reference` has the maps, drawn from seeds, and under `sources` of the JSON file who scored them at which
commit. What ends in `_ours` comes from brute force, because no official scorer runs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from places import ROOT

FOLDER = ROOT / "tests" / "metrics" / "reference"


@cache
def reference() -> dict[str, Any]:
    return json.loads(gzip.decompress((FOLDER / "protocols.json.gz").read_bytes()))


@cache
def arrays() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "protocols.npz") as file:
        return {name: file[name] for name in file}


@cache
def case(name: str) -> SimpleNamespace:
    """A case: what the JSON file says of it, its `raw` map, its `region`, and the `map` on the grid."""
    about = reference()["cases"][name]
    size = about["grid"]
    bits = np.unpackbits(arrays()[f"region_{name}"], count=size[0] * size[1])
    raw = arrays()[f"raw_{name}"]
    if (raw == raw.flat[0]).all():
        on_grid = np.full(size, raw.flat[0])
    else:
        tensor = F.interpolate(torch.from_numpy(raw)[None, None], size, mode="bilinear", align_corners=False)
        on_grid = np.ascontiguousarray(tensor[0, 0].numpy())
    same = hashlib.sha256(on_grid.tobytes()).hexdigest() == about["grid_map_sha256_float32"]
    return SimpleNamespace(
        **{"name": name} | about, raw=raw, region=bits.astype(bool).reshape(size), map=on_grid, same=same
    )


def cases() -> list[SimpleNamespace]:
    return [case(name) for name in reference()["cases"]]


def undefined(expected: Any) -> bool:
    """Whether the official scorer has no value: none, or it stops."""
    return expected is None or (isinstance(expected, str) and expected.startswith("raises"))
