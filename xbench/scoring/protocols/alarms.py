"""False positives above a threshold that is not chosen on the scored images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xbench.scoring import numbers
from xbench.scoring.protocols.base import Group, PairTruth, PairView, Protocol, RunView, Table, Tuned
from xbench.scoring.protocols.common import HUNDREDTHS, best_dice, count_above, probabilities

COSINES = tuple(k / 50 - 1 for k in range(101))
_HALF = HUNDREDTHS.index(0.5)


class FalsePositives(Protocol):
    name = "alarms"
    title = "Alarms"
    headline = "dice"
    heading = "Dice"
    citation = "this project; false_alarm is 1 less the specificity of RadZero, NeurIPS 2025"
    rule = (
        "maps on their own scale above a threshold not chosen on these images: the best one for the finding's Dice "
        "on the run of --tune, or 0.5 of a probability; false_alarm and area_lit on images without the finding, dice "
        "and hit (a pixel above it in the region) on those with it"
    )
    flaw = "One pixel above the threshold is an alarm, however far below it the rest of the map lies."
    in_setting = "always"
    limits = ("maps must be cosines, logits or probabilities, and cosines need --tune",)
    scales = frozenset({"logit", "probability", "cosine"})
    negatives = True
    means = ("false_alarm", "area_lit", "dice", "hit")
    of_negatives = lower = frozenset({"false_alarm", "area_lit"})

    def refuses(self, run: RunView, tuned: bool) -> str | None:
        if "map" in run.shows and run.scale == "cosine" and not tuned:
            return f"--protocol {self.name} takes thresholds of cosines from another run: give one with --tune."
        return super().refuses(run, tuned)

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, Any]:
        saliency = probabilities(prediction.on_grid(truth.region.shape, prediction.upsampling), prediction.scale)
        mask, overlap = count_above(saliency, truth.region, COSINES if prediction.scale == "cosine" else HUNDREDTHS)
        return {"pixels": truth.region.size, "mask": mask, "overlap": overlap, "region": int(truth.region.sum())}

    def tune(self, groups: Sequence[Group]) -> Tuned:
        tuned: dict[str, dict[str, Any]] = {}
        for group in groups:
            drawn = group["region"] > 0
            counts = [group[name][drawn] for name in ("mask", "overlap", "region")]
            tuned[group.finding] = {"threshold": best_dice(*counts)[1] if drawn.any() else None}
        return tuned

    def derive(self, group: Group, tuned: Mapping[str, Any] | None) -> Table:
        place = _HALF if tuned is None else tuned["threshold"]
        absent, present = group["label"] == 0, group["region"] > 0
        if place is None:
            absent, present, place = absent & False, present & False, _HALF
        mask, overlap = group["mask"][:, place], group["overlap"][:, place]
        return {
            "false_alarm": np.where(absent, mask > 0, np.nan),
            "area_lit": np.where(absent, mask / group["pixels"], np.nan),
            "dice": np.where(present, numbers.dice(mask, overlap, group["region"]), np.nan),
            "hit": np.where(present, overlap > 0, np.nan),
        }
