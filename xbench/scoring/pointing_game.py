"""The pointing game: how often the hottest point of the saliency map lies in the annotated region."""

from __future__ import annotations

from typing import get_args

from torch import Tensor

from xbench.scoring.measures import places_of, pointing_game, tally
from xbench.types import TieRule


def pointing_hits(maps: Tensor, regions: Tensor, ties: TieRule = "share") -> Tensor:
    """Score the pointing game of each pair: does the maximum of the raw map lie in the region?

    Several pixels often share the maximum (saliency from attention or ReLU saturates), and then `ties` decides:
    `"share"` gives the share of the tied pixels that lie in the region, `"any"` 1 if at least one does (the scripts of
    MedKLIP), `"first"` looks at the first of them in row-major order alone (CheXlocalize). After Zhang et al.,
    "Top-down Neural Attention by Excitation Backprop", IJCV 2018.

    Args:
        maps: (N, H, W) float32 maps on the evaluation grid, not normalised.
        regions: (N, H, W) bool.
        ties: The rule for tied maxima.

    Returns:
        (N,) float64 in [0, 1].

    Raises:
        ValueError: `ties` is no rule, the shapes differ, or a map's maximum is not finite.

    Examples:
        >>> import torch
        >>> maps = torch.tensor([[[9.0, 1.0], [9.0, 0.0]]])
        >>> regions = torch.tensor([[[False, False], [True, True]]])
        >>> [pointing_hits(maps, regions, ties).item() for ties in ("share", "any", "first")]
        [0.5, 1.0, 0.0]
    """
    check_ties(ties)
    if maps.ndim != 3 or maps.shape != regions.shape:
        raise ValueError(f"maps and regions must both be (N, H, W), not {tuple(maps.shape)} and {tuple(regions.shape)}")
    row_peak = maps.amax(2)
    peak = row_peak.amax(1, keepdim=True)
    if not peak.isfinite().all():
        raise ValueError(f"the maximum of map {(~peak.isfinite()).nonzero()[0, 0]} is not finite")
    return pointing_game(*tally(places_of(maps, row_peak, peak), regions), ties)


def check_ties(ties: TieRule) -> None:
    """Check that `ties` is one of the three rules."""
    if ties not in get_args(TieRule):
        raise ValueError(f"ties must be one of {', '.join(map(repr, get_args(TieRule)))}, not {ties!r}")
