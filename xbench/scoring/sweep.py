"""Stretch maps to [0, 1], and count pixels of their masks at every threshold, exactly, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.geometry.grid import MAX_THRESHOLDS, MapScale
from xbench.scoring import numbers


@dataclass(frozen=True)
class PixelCounts:
    """Pixels of the mask M >= t (N, T), of its overlap with the region (N, T) and of the region (N,), all int64."""

    mask: Tensor
    overlap: Tensor
    region: Tensor

    def dice(self) -> Tensor:
        """Return Dice 2 |B and R| / (|B| + |R|) as (N, T) float64; NaN if both are empty."""
        return torch.from_numpy(numbers.dice(*self._arrays()))

    def iou(self) -> Tensor:
        """Return IoU |B and R| / |B or R| as (N, T) float64; NaN if both are empty."""
        return torch.from_numpy(numbers.iou(*self._arrays()))

    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        return self.mask.cpu().numpy(), self.overlap.cpu().numpy(), self.region[:, None].cpu().numpy()


def threshold_values(thresholds: int = 101, device: torch.device | str = "cpu") -> Tensor:
    """Return the thresholds t_k = k / (T - 1) as (T,) float32, each the float32 nearest to the fraction.

    `torch.linspace(0, 1, 101)` is off by an ulp at 20 of its 101 values. T is from 2 to `MAX_THRESHOLDS`.

    Examples:
        >>> threshold_values(5)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    check_thresholds(thresholds)
    return (torch.arange(thresholds, dtype=torch.float64) / (thresholds - 1)).to(device, torch.float32)


def own_thresholds(scale: MapScale, thresholds: int = 101) -> NDArray[np.float32]:
    """Return the least raw values of maps whose probabilities reach k / (T - 1), (T,); empty for other scales.

    A logit x reaches t exactly if x >= log(t / (1 - t)), rounded up here, so no sigmoid is computed.

    Examples:
        >>> own_thresholds("logit", 5).tolist()
        [-inf, -1.0986121892929077, 0.0, 1.0986123085021973, inf]
    """
    if scale == "probability":
        return threshold_values(thresholds).numpy()
    if scale != "logit":
        return np.empty(0, np.float32)
    k = np.arange(thresholds, dtype=np.float64)
    with np.errstate(divide="ignore"):
        exact = np.log(k / k[::-1])
    nearest = exact.astype(np.float32)
    return np.where(nearest < exact, np.nextafter(nearest, np.float32(np.inf)), nearest)


def normalise(maps: Tensor) -> Tensor:
    """Stretch maps to [0, 1]: (M - min) / (max - min) over the last two dimensions.

    Divides without an epsilon, so the maximum is exactly 1. Constant maps become zeros. Maps (..., H, W) of any
    floating dtype become float32. ValueError if a value is not finite, or a range is beyond float32.

    Examples:
        >>> normalise(torch.tensor([[[1.0, 2.0, 5.0]], [[7.0, 7.0, 7.0]]]))
        tensor([[[0.0000, 0.2500, 1.0000]],
        <BLANKLINE>
                [[0.0000, 0.0000, 0.0000]]])
    """
    maps = maps.to(torch.float32)
    low = maps.amin((-2, -1), keepdim=True)
    span = maps.amax((-2, -1), keepdim=True) - low
    finite = span[..., 0, 0] < torch.inf
    if not finite.all():
        position = tuple((~finite).nonzero()[0].tolist())
        raise ValueError(
            f"the saliency map at position {position} has NaN or infinite values, or a range beyond float32"
        )
    return (maps - low).div_(span.masked_fill(span == 0, 1.0))


def count_pixels(maps: Tensor, regions: Tensor, thresholds: int = 101) -> PixelCounts:
    """Count the pixels of `maps >= t` and of `(maps >= t) & regions` at every threshold, exactly.

    Maps (N, H, W) are float32 in [0, 1], regions (N, H, W) bool; T thresholds are evenly spaced. ValueError otherwise.

    Examples:
        >>> maps = torch.tensor([[[0.0, 0.5], [0.75, 1.0]]])
        >>> counts = count_pixels(maps, maps > 0.6, thresholds=3)
        >>> counts.mask, counts.overlap, counts.region
        (tensor([[4, 3, 1]]), tensor([[2, 2, 1]]), tensor([2]))
        >>> counts.dice()
        tensor([[0.6667, 0.8000, 0.6667]], dtype=torch.float64)
    """
    from xbench.scoring.host import count

    check_thresholds(thresholds)
    if maps.ndim != 3 or maps.shape != regions.shape or maps.dtype != torch.float32 or regions.dtype != torch.bool:
        raise ValueError(
            "maps must be float32 and regions bool, both (N, H, W), "
            f"not {tuple(maps.shape)} {maps.dtype} and {tuple(regions.shape)} {regions.dtype}"
        )
    if maps.numel() and not (maps.amin() >= 0 and maps.amax() <= 1):
        raise ValueError("maps must lie in [0, 1]: use normalise()")
    histograms = torch.zeros(len(maps), 2 * thresholds, dtype=torch.int64)
    arrays = (part.detach().cpu().contiguous().numpy() for part in (maps, regions, histograms))
    for given in zip(*arrays, strict=True):
        count(*given)
    return PixelCounts(*(torch.from_numpy(part.copy()).to(maps.device) for part in reached(histograms.numpy())))


def check_thresholds(thresholds: int) -> None:
    """Raise a ValueError unless the number of thresholds is an integer from 2 to `MAX_THRESHOLDS`."""
    if not isinstance(thresholds, int) or not 2 <= thresholds <= MAX_THRESHOLDS:
        raise ValueError(f"thresholds must be a whole number from 2 to {MAX_THRESHOLDS:,}, not {thresholds!r}")


def reached(histograms: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the fields of `PixelCounts` from histograms (N, 2 T) of the highest threshold that pixels reach."""
    both = histograms.reshape(len(histograms), 2, histograms.shape[1] // 2)
    outside, inside = both[..., ::-1].cumsum(axis=2)[..., ::-1].swapaxes(0, 1)
    return outside + inside, inside, inside[:, 0]
