"""Made maps and regions with the values that the official scorers give them; no patient's data.

`tests/scoring/reference` has the maps, drawn from seeds, and under `sources` of the JSON file who scored them at which
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
from places import ROOT

FOLDER = ROOT / "tests" / "scoring" / "reference"


@cache
def reference() -> dict[str, Any]:
    return json.loads(gzip.decompress((FOLDER / "protocols.json.gz").read_bytes()))


@cache
def arrays() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "protocols.npz") as file:
        return {name: file[name] for name in file}


def as_pytorch_2_14(cells: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Enlarge cells bit for bit as `F.interpolate` of PyTorch 2.14 with fused multiply-adds, as the scorers' maps."""
    if (cells == cells.flat[0]).all():
        return np.full(size, cells.flat[0])

    def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return (a.astype(np.float64) * b + c).astype(np.float32)

    def places(pixels: int, number: int) -> tuple[np.ndarray, ...]:
        scale = np.float64(np.float32(number) / np.float32(pixels))
        place = np.maximum((scale * (np.arange(pixels) + 0.5) - 0.5).astype(np.float32), 0)
        cell = np.minimum(place.astype(int), number - 1)
        share = place - cell.astype(np.float32)
        return cell, np.minimum(cell + 1, number - 1), 1 - share, share

    (y0, y1, up, down), (x0, x1, left, right) = (places(*axis) for axis in zip(size, cells.shape, strict=True))
    up, down = up[:, None], down[:, None]
    if sum(size) > 128:
        wide = fused(cells[:, x0], left, cells[:, x1] * right)
        return fused(wide[y0], up, wide[y1] * down)
    # Small images take another way there: four products.
    found = cells[y0][:, x1] * (up * right)
    for rows, columns, weights in ((y0, x0, up * left), (y1, x0, down * left), (y1, x1, down * right)):
        found = fused(cells[rows][:, columns], weights, found)
    return found


@cache
def case(name: str) -> SimpleNamespace:
    """A case: what the JSON file says of it, its `raw` map, its `region`, and the `map` on the grid."""
    about = reference()["cases"][name]
    size = about["grid"]
    bits = np.unpackbits(arrays()[f"region_{name}"], count=size[0] * size[1])
    raw = arrays()[f"raw_{name}"]
    on_grid = as_pytorch_2_14(raw, tuple(size))
    same = hashlib.sha256(on_grid.tobytes()).hexdigest() == about["grid_map_sha256_float32"]
    return SimpleNamespace(
        **{"name": name} | about, raw=raw, region=bits.astype(bool).reshape(size), map=on_grid, same=same
    )


def cases() -> list[SimpleNamespace]:
    return [case(name) for name in reference()["cases"]]


def undefined(expected: Any) -> bool:
    """Whether the official scorer has no value: none, or it stops."""
    return expected is None or (isinstance(expected, str) and expected.startswith("raises"))
