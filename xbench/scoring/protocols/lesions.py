"""Which annotated items the parts of a map find, lesion by lesion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.protocols.base import Group, Number, PairTruth, PairView, Protocol, ratio_of_sums
from xbench.scoring.protocols.common import SIZES, components, mask_overlaps, sizes_of, stretched


class Lesions(Protocol):
    name = "lesions"
    title = "Lesions"
    headline = "lesion_recall"
    heading = "Lesion recall"
    citation = "this project"
    rule = (
        "connected parts of the stretched map at 0.5; an annotated item is found if one part covers half of it; also "
        "for items below 1% (_small), of 1 to 5% (_medium) and above 5% (_large) of the image; false_parts: parts of "
        "an image that touch no item"
    )
    flaw = "A part that covers the whole lung finds every lesion in it, so read the recall beside Dice."
    in_setting = "always"
    limits = (
        "a lesion drawn by several readers counts several times",
        "images without the finding are left out, because a stretched map always lights up",
    )

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, int] | None:
        lesions = truth.lesions()
        if not lesions:
            return None
        saliency = prediction.on_grid(truth.region.shape, prediction.upsampling)
        _, covered = mask_overlaps(components(stretched(saliency) >= np.float32(0.5)), lesions)
        found = covered.max(axis=0, initial=0) >= 0.5
        sizes = sizes_of(np.array([mask.mean() for mask in lesions]))
        counts = {"found": int(found.sum()), "lesions": len(lesions), "images": 1}
        for place, size in enumerate(SIZES):
            counts[f"found_{size}"] = int(found[sizes == place].sum())
            counts[f"lesions_{size}"] = int((sizes == place).sum())
        return counts | {"false": int((covered.max(axis=1, initial=0) == 0).sum())}

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        numbers = {"lesion_recall": ratio_of_sums(groups, "found", "lesions")}
        numbers |= {f"recall_{size}": ratio_of_sums(groups, f"found_{size}", f"lesions_{size}") for size in SIZES}
        return numbers | {"false_parts": ratio_of_sums(groups, "false", "images")}

    def pair_values(self, group: Group) -> NDArray[np.float64]:
        return np.asarray(group["found"] / group["lesions"])
