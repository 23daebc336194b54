"""The pointing game and its rule for tied maxima: how often the hottest point of a map lies in the annotated region."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from xbench.types import TieRule


def pointing_game(tied: Tensor, inside: Tensor, first_inside: Tensor, ties: TieRule) -> Tensor:
    """Return the pointing game of maps of so many tied maxima, in the region so many, by a rule (N,) float64."""
    if ties == "share":
        return inside.to(torch.float64) / tied
    return (inside > 0 if ties == "any" else first_inside).to(torch.float64)


def pointing_hits(maps: Tensor, regions: Tensor, ties: TieRule = "share") -> Tensor:
    """Score the pointing game of each pair: does the maximum of the raw map lie in the region?

    Several pixels often share the maximum (saliency from attention or ReLU saturates), and then `ties` decides:
    `"share"` gives the share of the tied pixels that lie in the region, `"any"` 1 if at least one does (the scripts of
    MedKLIP), `"first"` looks at the first of them in row-major order alone (CheXlocalize). After Zhang et al.,
    "Top-down Neural Attention by Excitation Backprop", IJCV 2018.

    Maps (N, H, W) float32 on the evaluation grid, not normalised, and regions (N, H, W) bool give (N,) float64 in
    [0, 1]. A ValueError if `ties` is no rule, the shapes differ, or a map's maximum is not finite.

    Examples:
        >>> maps = torch.tensor([[[9.0, 1.0], [9.0, 0.0]]])
        >>> regions = torch.tensor([[[False, False], [True, True]]])
        >>> [pointing_hits(maps, regions, ties).item() for ties in ("share", "any", "first")]
        [0.5, 1.0, 0.0]
    """
    check_ties(ties)
    if maps.ndim != 3 or maps.shape != regions.shape:
        raise ValueError(f"maps and regions must both be (N, H, W), not {tuple(maps.shape)} and {tuple(regions.shape)}")
    peak = maps.amax((1, 2), keepdim=True)
    if not peak.isfinite().all():
        raise ValueError(f"the maximum of map {(~peak.isfinite()).nonzero()[0, 0]} is not finite")
    tied, inside = (maps == peak).flatten(1), regions.flatten(1)
    first_inside = inside.gather(1, tied.byte().argmax(1, keepdim=True))[:, 0]
    return pointing_game(tied.sum(1), (tied & inside).sum(1), first_inside, ties)


def check_ties(ties: TieRule) -> None:
    """Check that `ties` is one of the three rules."""
    if ties not in get_args(TieRule):
        raise ValueError(f"ties must be one of {', '.join(map(repr, get_args(TieRule)))}, not {ties!r}")
