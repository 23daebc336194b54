"""Words of reports and answers, or the places of maps and boxes, against annotated regions. See docs/words.md.

Places are columns of text, such as "left right".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xbench.geometry.location import ZONE_SETS, ZONES, Location
from xbench.scoring.numbers import share
from xbench.scoring.protocols.base import Group, Number, PairTruth, PairView, Protocol, Table, Tuned, of_group

if TYPE_CHECKING:
    from xbench.predictions.words import Stated

# By a part of a number's name, the last that fits.
_FLAWS = {
    "": "Rules read English reports: a wording that they do not know counts as silence.",
    "hallucinated": "A finding that nobody labeled counts as absent, so few labels make true statements false.",
    "side": "A side left out on purpose counts as missed: people state one for 31% of edema, 91% of effusions.",
    "side_accuracy": "A model that names a side only where it is obvious looks good: read it with the coverage.",
    "side_opposite": "Bilateral is never opposite, and a flipped or rotated film turns right into wrong.",
    "side_partial": "Readers draw small second lesions that reports do not name, and the other way round.",
    "zone": "Zones are thirds of the lung field, and lobes span several: ignoring the image scores 0.77.",
    "place_joint": "Zones are thirds of the lung field, and a side left out on purpose counts as missed.",
    "chance": "With few pairs, shuffled texts often return to their own films, which makes chance too high.",
    "excess": "With few pairs, shuffled texts often return to their own films, which makes chance too high.",
    "agree": "A text and a box or map that agree may both be wrong.",
}


def flaw_of(name: str) -> str:
    """Return what is wrong with a number."""
    return [flaw for part, flaw in _FLAWS.items() if part in name][-1]


def _text(places: Iterable[str]) -> str:
    return " ".join(sorted(places, key=("left", "right", "midline", *ZONES).index))


# By kind of place: the columns of what is allowed and what is correct, and the candidates for the commonest.
_KINDS = {
    "side": ("true_sides", "true_sides", ("right", "left", "left right")),
    "zone": ("allowed_zones", "correct_zones", tuple(map(_text, ZONE_SETS))),
}


def region_texts(location: Location | None) -> dict[str, str]:
    """Return the columns of a region: its sides, zones and allowed zones, and every correct statement of zones."""
    sides, zones, allowed, enough = vars(location).values() if location else (frozenset(),) * 4
    correct = ", ".join(_text(of) for of in ZONE_SETS if of <= allowed and of in enough)
    texts = {"true_sides": _text(sides), "true_zones": _text(zones), "allowed_zones": _text(allowed)}
    return texts | {"correct_zones": correct}


def commonest(regions: Group | Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the `sides` that most regions have and the `zones` that are correct of most; empty without a region.

    `regions` are columns of `region_texts`. Of equals right comes before left and both, few zones before many, and
    upper before lower.
    """
    prior = {}
    for kind, (_, column, candidates) in _KINDS.items():
        counts = Counter(place for places in regions[column] for place in places.split(", ") if place)
        prior[f"{kind}s"] = max(candidates, key=counts.__getitem__) if counts else ""
    return prior


def outcome(said: str, allowed: str, correct: str) -> str:
    """Compare a statement of sides or zones with all correct ones; empty where the truth is unclear.

    `unstated`, `correct` or `partial`; of what shares nothing with what is allowed `opposite` for sides and for upper
    against lower alone, else `wrong`.
    """
    if not allowed or not said:
        return "unstated" if allowed else ""
    if {*said.split()} & {*allowed.split()}:
        return "correct" if said in correct.split(", ") else "partial"
    return "opposite" if {said, allowed} == {"upper", "lower"} or allowed in _KINDS["side"][2] else "wrong"


class Words(Protocol):
    name = "words"
    title = "Words"
    headline = "side_joint"
    heading = "Side said"
    citation = "this project"
    rule = (
        "sides and zones that mentions of a finding state against those of its region; side_joint: share of regions "
        "with a clear side that is stated, _accuracy: of those with a side stated"
    )
    flaw = "Silence earns nothing, so a report that leaves a side out on purpose is charged for it."
    setting = our_setting = "no pixels"
    in_setting = "always"
    limits = ("lateral views, phrases, and findings that the vocabulary lacks are left out",)
    takes = frozenset({"words"})
    negatives = True
    lower = frozenset({"denied", "unmentioned", "false_mention", "hallucinated_place", "side_opposite", "zone_wrong"})

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, Any] | None:
        words, place = prediction.words, prediction.place
        shown = "maps" if prediction.cells.size else "boxes"
        source = " ".join(kind for kind, of in (("words", words), (shown, place)) if of is not None)
        if truth.label < 0 or not source:
            return None
        first = place if words is None else words
        stated = {"": first, "own_": prediction.own or first, "map_": None if words is None else place}
        texts = {f"{prefix}{key}": text for prefix, of in stated.items() for key, text in _said(of).items()}
        location = truth.location if truth.label == 1 and truth.sided else None
        return {"source": source, **texts, **region_texts(location)}

    def tune(self, groups: Sequence[Group]) -> Tuned:
        return {group.finding: commonest(group) for group in groups}

    def derive(self, group: Group, tuned: Mapping[str, Any] | None) -> Table:
        derived = {}
        for kind, (allowed, correct, _) in _KINDS.items():
            statements = {prefix: group[f"{prefix}{kind}s"] for prefix in ("", "own_", "map_")}
            statements["prior_"] = np.full(len(group), str(tuned[f"{kind}s"]) if tuned else "")
            for prefix, said in statements.items():
                outcomes = [*map(outcome, said, group[allowed], group[correct])]
                derived[f"{prefix}{kind}"] = np.array(outcomes, np.str_)
        return derived

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        numbers, own, shown = (of_group(groups, partial(_numbers, prefix=prefix)) for prefix in ("", "own_", "map_"))
        del numbers["agree"]
        for name, number in numbers.items():
            number["strict"] = own[name]["value"]
        both = {source for group in groups for source in group["source"].tolist() if " " in source}
        if both:
            numbers |= {
                f"map_{name}": number for name, number in shown.items() if name.startswith(("side", "zone", "place"))
            }
            numbers[f"{min(both).replace(' ', '_')}_agree"] = shown["agree"]
        for name, number in numbers.items():
            beside = ("coverage", "prior", "chance") if name.endswith("accuracy") else ()
            number["beside"] = [name.replace("accuracy", other) for other in beside]
            number["flaw"] = flaw_of(name)
        return numbers

    def pair_values(self, group: Group) -> NDArray[np.float64]:
        return np.where(group["side"] == "", np.nan, group["side"] == "correct")


def _said(stated: Stated | None) -> dict[str, str]:
    status = stated.status if stated else ""
    sides, zones = (stated.sides, stated.zones) if stated and status in ("asserted", "uncertain") else ("", "")
    return {"status": status, "sides": _text(sides), "zones": _text(zones)}


def parts(group: Group, prefix: str = "") -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return what each pair of a finding adds above and below the line of each number, whole numbers (N,) each.

    They are of all words, of the finding's own name alone (`own_`), or of maps and boxes (`map_`). A pair enters chance
    and excess twice, as a text that goes with every truth and as a truth.
    """
    read = np.array([source.startswith("words") for source in group["source"]], np.bool_)
    status, side, zone = (group[f"{prefix}{key}"] for key in ("status", "side", "zone"))
    sides, zones = group[f"{prefix}sides"], group[f"{prefix}zones"]
    present, absent = read & (group["label"] == 1), read & (group["label"] == 0)
    asserted, either = read & (status == "asserted"), read & np.isin(status, ["asserted", "uncertain"])
    numbers = {
        "mention_precision": _of(present, asserted),
        "mention_recall": _of(asserted, present),
        "mention_f1": (2 * (asserted & present), 1 * asserted + present),
        "mention_f1_generous": (2 * (either & present), 1 * either + present),
        "denied": _of(status == "negated", present),
        "unmentioned": _of(status == "", present),
        "false_mention": _of(asserted, absent),
        "hallucinated_place": _of(asserted & ((sides != "") | (zones != "")), absent),
        "side_unclear": _of(side == "", zone != ""),
        "agree": _of(sides == group["sides"], (sides != "") & (group["sides"] != "")),
        "place_joint": _of((side == "correct") & (zone == "correct"), side != ""),
    }
    for kind, outcomes, said in (("side", side, sides), ("zone", zone, zones)):
        scored, correct, prior = outcomes != "", outcomes == "correct", group[f"prior_{kind}"]
        stated = scored & (outcomes != "unstated")
        known, true = stated & (prior != "unstated"), group[_KINDS[kind][1]]
        # Every stated text with every truth, as shuffling pairs them: how many truths fit a text, and texts a truth.
        texts, truths = Counter(said[stated].tolist()), Counter(true[scored].tolist())
        fits = Counter({text: sum(truths[of] for of in truths if text in of.split(", ")) for text in texts})
        fitted = Counter({of: sum(texts[text] for text in of.split(", ")) for of in truths})
        of_text, of_truth = (
            which * np.array([counts[one] for one in column.tolist()], np.int64)
            for which, counts, column in ((stated, fits, said), (scored, fitted, true))
        )
        matches, shuffles = of_text + of_truth, scored.sum() * stated + stated.sum() * scored
        values = {
            "coverage": _of(stated, scored),
            "accuracy": _of(correct, stated),
            "joint": _of(correct, scored),
            "joint_mentioned": _of(correct, scored & (status != "")),
            "opposite": _of(outcomes == "opposite", stated),
            "wrong": _of(np.isin(outcomes, ["opposite", "wrong"]), stated),
            "partial": _of(outcomes == "partial", stated),
            "chance": (matches, shuffles),
            "excess": (scored.sum() * correct + correct.sum() * scored - matches, shuffles - matches),
            "prior": _of(prior == "correct", known),
            "gain": (known * (1 * correct - (prior == "correct")), 1 * known),
        }
        numbers |= {f"{kind}_{name}": value for name, value in values.items()}
    del numbers["side_wrong"]
    return numbers


def _numbers(group: Group, prefix: str) -> dict[str, float | None]:
    return {name: share(int(above.sum()), int(below.sum())) for name, (above, below) in parts(group, prefix).items()}


def _of(which: NDArray[np.bool_], among: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return 1 * (which & among), 1 * among
