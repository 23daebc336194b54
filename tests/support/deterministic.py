"""The rule by which the weights and inputs of the golden vectors were drawn: a tensor depends on its name alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn


def random_state(name: str) -> np.random.RandomState:
    return np.random.RandomState(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big"))


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    # In pieces that stay in the cache: new memory takes longer than the numbers.
    noise, state, piece = np.empty(math.prod(shape), np.float32), random_state(name), 1 << 15
    for start in range(0, noise.size, piece):
        noise[start : start + piece] = state.standard_normal(min(piece, noise.size - start))
    return scaled(name, noise.reshape(shape))


def quick_weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """A weight of the same kind, drawn several times as fast, for where no golden vector is compared."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return scaled(name, torch.randn(shape, generator=torch.Generator().manual_seed(seed)).numpy())


def scaled(name: str, noise: np.ndarray) -> Tensor:
    """Turn standard normal float32 noise, in place, into a weight as its name and shape want it."""
    shape = noise.shape
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return torch.tensor(0)
    if leaf == "running_var":
        noise = 1 + np.float32(0.1) * np.abs(noise)
    elif leaf == "running_mean":
        noise *= 0.1
    elif leaf == "logit_scale":
        noise[...] = math.log(1 / 0.07)
    elif leaf.endswith("bias"):
        noise *= 0.02
    elif len(shape) <= 1:
        noise *= 0.1
        noise += 1
    else:
        noise /= math.sqrt(math.prod(shape[1:]))
    return torch.from_numpy(np.ascontiguousarray(noise))


def drawn(
    network: nn.Module, prefix: str = "", draw: Callable[[str, tuple[int, ...]], Tensor] = weight
) -> dict[str, Tensor]:
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    return {name: draw(prefix + name, shape).reshape(shape) for name, shape in shapes.items()}


def images_of(seed: str, batch: int, size: int = 224) -> Tensor:
    return torch.from_numpy(random_state(f"image/{seed}").standard_normal((batch, 3, size, size)).astype(np.float32))


def gray(seed: str, height: int, width: int) -> np.ndarray:
    coarse = random_state("gray/" + seed).randint(0, 256, size=(-(-height // 8), -(-width // 8)))
    return coarse.astype(np.uint8).repeat(8, 0).repeat(8, 1)[:height, :width]


def radiograph(seed: str, height: int, width: int) -> np.ndarray:
    state = random_state(f"grey/{seed}")
    coarse = state.randint(20, 200, (-(-height // 16), -(-width // 16))).repeat(16, 0).repeat(16, 1)[:height, :width]
    return (coarse + state.randint(0, 31, (height, width))).astype(np.uint8)


def tokens_of(
    seed: str, rows: int, length: int = 64, vocabulary: int = 28996, start: int = 101, end: int = 102
) -> tuple[Tensor, Tensor]:
    """Ids and mask (rows, length) of texts of different lengths."""
    state = random_state(f"tokens/{seed}")
    ids, mask = np.zeros((rows, length), np.int64), np.zeros((rows, length), np.int64)
    for row in range(rows):
        words = int(state.randint(2, max(3, length - 2)))
        ids[row, : words + 2] = [start, *state.randint(1000, vocabulary, size=words), end]
        mask[row, : words + 2] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)
