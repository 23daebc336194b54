"""Images changed in the order of a map's values, and the similarity of two maps (docs/interventions.md).

Images are model inputs, normalized (C, H, W); maps lie on the same pixels (H, W).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.floating[Any]]

STEPS: Final = {"deletion": (*range(101),), "insertion": (*range(101),), "road": (1, 5, 10, 20, 50)}
"""Percentages of changed pixels, by intervention."""

_NOISE = 0.01
_NEIGHBOURS = {(y, x): 1 / 12 if y and x else 1 / 6 for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x}
_SIDE = 7  # window of the structural similarity, in pixels


def random_of(*names: str) -> np.random.Generator:
    """Return a random generator seeded by names, the same in every process."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256("\n".join(names).encode()).digest()))


def ranking(values: NDArray[Any], image_id: str) -> NDArray[np.int64]:
    """Return a map's pixels (H, W) from the highest down (H * W,); ties are shuffled, not to favor the upper left."""
    ties = random_of("ties", image_id).permutation(values.size)
    return np.lexsort((ties, -values.ravel().astype(np.float64)))


def changed(kind: str, image: Pixels, order: NDArray[np.int64], image_id: str) -> Iterator[tuple[int, Pixels]]:
    """Yield versions of an image (C, H, W) with the percentage of changed pixels, taken from the start of `order`.

    `deletion` replaces pixels by the mean of each channel, `insertion` reveals them on the blurred image (Petsiuk et
    al., BMVC 2018), and `road` imputes them from their neighbors (Rong et al., ICML 2022) with noise that the image's
    name seeds. `order` (H * W,) are row-major positions of pixels.

    Examples:
        >>> versions = changed("deletion", np.array([[[1.0, 3.0]]]), np.array([1, 0]), "an image")
        >>> [(percent, version.tolist()) for percent, version in versions if percent % 50 == 0]
        [(0, [[[1.0, 3.0]]]), (50, [[[1.0, 2.0]]]), (100, [[[2.0, 2.0]]])]
    """
    from scipy.ndimage import gaussian_filter1d

    start, fill = image, np.broadcast_to(image.mean((1, 2), keepdims=True), image.shape)
    if kind == "insertion":
        sigma = min(image.shape[1:]) / 20
        start, fill = gaussian_filter1d(gaussian_filter1d(image, sigma, axis=1), sigma, axis=2), image
    noise = _NOISE * random_of("noise", image_id).standard_normal((len(image), order.size))
    for percent in STEPS[kind]:
        version, pixels = start.reshape(len(image), -1).copy(), order[: order.size * percent // 100]
        if kind == "road":
            version[:, pixels] = imputed(image, pixels) + noise[:, pixels]
        else:
            version[:, pixels] = fill.reshape(len(image), -1)[:, pixels]
        yield percent, version.reshape(image.shape)


def imputed(image: Pixels, pixels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return imputed values (C, P) of P pixels of an image (C, H, W), weighted means of their eight neighbors.

    Direct neighbors weigh 1/6 and diagonal ones 1/12. One linear system gives all pixels (Rong et al., ICML 2022).
    """
    from scipy.sparse import coo_matrix, identity
    from scipy.sparse.linalg import splu

    channels, height, width = image.shape
    if len(pixels) in (0, height * width):
        return np.repeat(image.mean((1, 2), dtype=np.float64)[:, None], len(pixels), axis=1)
    values = image.reshape(channels, -1).astype(np.float64)
    place = np.full(height * width, -1)
    place[pixels] = np.arange(len(pixels))
    known, total = np.zeros((channels, len(pixels))), np.zeros(len(pixels))
    entries: list[tuple[NDArray[Any], ...]] = []
    for (down, right), weight in _NEIGHBOURS.items():
        y, x = pixels // width + down, pixels % width + right
        row = np.flatnonzero((y >= 0) & (y < height) & (x >= 0) & (x < width))
        beside = y[row] * width + x[row]
        missing = place[beside] >= 0
        total[row] += weight
        known[:, row[~missing]] += weight * values[:, beside[~missing]]
        entries.append((row[missing], place[beside[missing]], np.full(np.count_nonzero(missing), weight)))
    row, column, weights = (np.concatenate(part) for part in zip(*entries, strict=True))
    system = identity(len(pixels)) - coo_matrix((weights / total[row], (row, column)), shape=(len(pixels),) * 2)
    return np.asarray(splu(system.tocsc()).solve((known / total).T).T)


def region_in_view(region: NDArray[np.bool_], view: Sequence[float], size: Sequence[int]) -> NDArray[np.bool_]:
    """Return which pixels of a model input of this size, which shows `view`, have their center in a region (H, W)."""
    places = []
    for low, high, pixels, cells in zip(view[1::-1], view[:1:-1], size, region.shape, strict=True):
        place = np.floor((low + (high - low) * (np.arange(pixels) + 0.5) / pixels) * cells)
        places.append(np.clip(place + 1, 0, cells + 1).astype(np.int64))
    return np.asarray(np.pad(region, 1)[np.ix_(*places)])


def area(values: Sequence[float]) -> float:
    """Return the area under values at equal steps from 0 to 1, by trapezoids.

    Examples:
        >>> area([1.0, 0.5, 0.0])
        0.5
    """
    return (math.fsum(values) - (values[0] + values[-1]) / 2) / (len(values) - 1)


def similarities(first: Pixels, second: Pixels) -> dict[str, float]:
    """Return the rank correlation (Spearman), that of magnitudes, and the structural similarity of two maps.

    SSIM follows Wang et al., IEEE TIP 2004, on maps in [0, 1]. NaN if a map is constant or not finite.
    """
    first, second = (one.astype(np.float64) for one in (first, second))
    return {
        "spearman": spearman(first, second),
        "magnitude": spearman(np.abs(first), np.abs(second)),
        "structure": _structure(first, second),
    }


def spearman(first: Pixels, second: Pixels) -> float:
    """Return Spearman's rank correlation of two maps, with mean ranks; NaN if a map is constant."""
    from scipy.stats import rankdata

    if not (_varies(first) and _varies(second)):
        return math.nan
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def _structure(first: Pixels, second: Pixels) -> float:
    from scipy.ndimage import uniform_filter

    if not (_varies(first) and _varies(second)) or min(first.shape) < _SIDE:
        return math.nan
    maps = [(one - one.min()) / np.ptp(one) for one in (first, second)]
    inner = (slice(_SIDE // 2, -(_SIDE // 2)),) * 2
    mean = [uniform_filter(one, _SIDE)[inner] for one in maps]
    sample = _SIDE**2 / (_SIDE**2 - 1)

    def covariance(i: int, j: int) -> NDArray[np.float64]:
        return np.asarray(sample * (uniform_filter(maps[i] * maps[j], _SIDE)[inner] - mean[i] * mean[j]))

    level, contrast = 0.01**2, 0.03**2
    shared = (2 * mean[0] * mean[1] + level) * (2 * covariance(0, 1) + contrast)
    every = (mean[0] ** 2 + mean[1] ** 2 + level) * (covariance(0, 0) + covariance(1, 1) + contrast)
    return float((shared / every).mean())


def _varies(values: Pixels) -> bool:
    return bool(0 < np.ptp(values) < math.inf)
