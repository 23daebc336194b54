"""Test whether scores depend on the region; a number is the mean of its column over pairs. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.findings.conditions import CONTROL, FILLS, HIDE, KEEP, LEAST, NO_IMAGE
from xbench.scoring.numbers import Numbers, by_digest, macro_mean, youden
from xbench.scoring.rows import Rows

FOLDS = 5  # folds of patients; the threshold of each fold comes from the others
ANY = "any"  # replaces a fill for numbers that do not depend on one
OF_FILL = {
    "scored": ("drop", "control_drop", "use"),
    "decided": ("flip_rate", "control_flip_rate", "premium"),
    "pointed": ("map_moves",),
}
OF_ANY = {
    "kept": ("sufficiency",),
    "blank": ("no_image_yes",),
    "swapped_same": ("swap_same_agreement",),
    "swapped_opposite": ("swap_opposite_change",),
}
"""Numbers with and without a fill, by the name of their number of pairs."""

LACKING = ("without_control", "saturated", "without_decision")  # numbers of pairs that lack some values of a fill
CONDITIONS = (*(f"{kind}{fill}" for fill in FILLS for kind in (HIDE, CONTROL)), KEEP, NO_IMAGE)
"""Conditions used for numbers."""

_ANSWERS = "The model answers: it decides, and gives no score whose drop could be measured."
_NO_SCORES = "The model gives no score, so nothing drops and nothing is decided."


@dataclass(frozen=True)
class Intervened:
    """P pairs of image and query with interventions, in the order of the run's rows."""

    rows: Rows  # of the unchanged images
    row: NDArray[np.int64]  # index of each pair in `rows` (P,)
    decision: NDArray[np.float64]  # whether the model detects the finding in the unchanged image (P,); NaN if undecided
    overlap: NDArray[np.float64]  # share of the map's maxima in the region (P,); NaN without a map or box
    # By fill or `ANY`, by name of the number, a value per pair (P,) or NaN.
    columns: Mapping[str, Mapping[str, NDArray[np.float64]]]
    # By fill, by the names of `LACKING`, which pairs (P,) lack a place for the control, have a probability of exactly 0
    # or 1, or lack a decision.
    lacking: Mapping[str, Mapping[str, NDArray[np.bool_]]]
    reason: str | None  # sentence on why there are no scores; None if there are

    @property
    def finding(self) -> NDArray[np.int64]:
        """Index of each pair's finding (P,)."""
        return self.rows.finding[self.row]

    @property
    def patients(self) -> list[str]:
        """Patient of each pair by name, or the image if the patient is unknown (P)."""
        names = self.rows.patient
        return [names[image] for image in self.rows.image[self.row].tolist()]


def intervened(rows: Rows, changed: Mapping[str, Rows]) -> Intervened | None:
    """Compare the rows of a run with those of the same pairs under interventions; None if no condition hides pixels.

    `rows` are of the unchanged images, with all findings and labels, `changed` by condition. They are matched by image
    and query; ValueError if `rows` lacks a pair.
    """
    known = {key: place for place, key in enumerate(keys_of(rows) if any(map(changed.get, CONDITIONS)) else ())}
    places = {name: _places(known, changed[name]) for name in CONDITIONS if len(changed.get(name, ()))}
    row: NDArray[np.int64] = np.unique(np.concatenate([np.empty(0, np.int64), *places.values()]))
    row = row[rows.finding[row] >= 0]
    if not len(row):
        return None
    answers = bool((rows["answer_status"] != "").any())
    of_logits, asked = bool((~np.isnan(rows["logit"])).any()), bool(rows["asked"].any())

    def scores(of: Rows) -> NDArray[np.float64]:
        return _answered(of, asked) if answers else _scores(of, of_logits)

    def under(name: str, values: NDArray[np.float64] | float) -> NDArray[np.float64]:
        spread: NDArray[np.float64] = np.full(len(rows), np.nan)
        spread[places[name]] = values
        return spread[row]

    def decided(values: NDArray[np.float64], limit: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(np.isnan(values) | np.isnan(limit), np.nan, values >= limit)

    score = scores(rows)
    limits = np.full(len(rows), 0.5) if answers else thresholds(rows, score)
    units = np.full(len(rows.findings), np.nan) if answers else _deviations(rows, score)
    decisions, nothing = decided(score, limits), np.full(len(row), np.nan)
    decision, score, limit, unit = decisions[row], score[row], limits[row], units[rows.finding[row]]
    overlap = rows["pointing_hit"][row]
    after = dict.fromkeys(CONDITIONS, nothing) | {name: under(name, scores(changed[name])) for name in places}
    columns: dict[str, dict[str, NDArray[np.float64]]] = {}
    lacking: dict[str, dict[str, NDArray[np.bool_]]] = {}
    for fill in FILLS:
        if (hide := f"{HIDE}{fill}") not in places:
            continue
        control, hit = f"{CONTROL}{fill}", under(hide, changed[hide]["pointing_hit"])
        there = ~np.isnan(under(hide, 0) + (under(control, 0) if control in places else nothing))
        both = np.stack([after[hide], after[control]])
        drops, flips = _in_units(score, both, unit), np.abs(decision - decided(both, limit))
        for values in (drops, flips):
            # Both numbers and their difference are over the same pairs.
            values[:, np.isnan(values).any(axis=0)] = np.nan
        columns[fill] = {
            **{"drop": drops[0], "control_drop": drops[1], "use": drops[0] - drops[1]},
            **{"flip_rate": flips[0], "control_flip_rate": flips[1], "premium": flips[0] - flips[1]},
            "map_moves": np.where((overlap >= 0.5) & ~np.isnan(hit), hit < 0.5, np.nan),
        }
        saturated = there & np.isinf([score, *both]).any(axis=0)
        lacking[fill] = dict(zip(LACKING, (~there, saturated, there & np.isnan(flips[0])), strict=True))
    columns[ANY] = {
        "sufficiency": np.where(decision == 1, decided(after[KEEP], limit), np.nan),
        "no_image_yes": decided(after[NO_IMAGE], limit),
        "swap_same_agreement": 1 - np.abs(decision - _swapped(rows, row, decisions, 1)),
        "swap_opposite_change": np.abs(decision - _swapped(rows, row, decisions, 0)),
    }
    reason = _ANSWERS if answers else _NO_SCORES if np.isnan(score).all() else None
    return Intervened(rows, row, decision, overlap, columns, lacking, reason)


def intervention_numbers(pairs: Intervened) -> Numbers:
    """Return the numbers of a run under interventions, by finding and as means over findings; None below `LEAST` pairs.

    `all_pairs` is the headline; `correct_only` is over pairs whose finding the model detects in the unchanged image.
    `sign_over_fills` is whether the mean `use` is positive, negative or 0 with every fill, if there are several.
    """
    found: Numbers = {"pairs": len(pairs.row), "reason": pairs.reason}
    for name, kept in {"all_pairs": np.ones(len(pairs.row), np.bool_), "correct_only": pairs.decision == 1}.items():
        found[name] = {fill: _of_pairs(pairs, fill, kept) for fill in pairs.columns}
    uses = [numbers["macro"].get("use") for numbers in found["all_pairs"].values()]
    signs = [np.sign(use) for use in uses if use is not None]
    return found | {"sign_over_fills": len({*signs}) == 1 if len(signs) > 1 else None}


def _of_pairs(pairs: Intervened, fill: str, kept: NDArray[np.bool_]) -> Numbers:
    per_class: dict[str, Numbers] = {}
    groups = OF_ANY if fill == ANY else OF_FILL
    for place, finding in enumerate(pairs.rows.findings):
        own = kept & (pairs.finding == place)
        numbers: Numbers = {"pairs": int(own.sum())}
        numbers |= {name: int((own & which).sum()) for name, which in pairs.lacking.get(fill, {}).items()}
        for count, names in groups.items():
            for name in names:
                values = pairs.columns[fill][name][own]
                values = values[~np.isnan(values)]
                numbers[count] = len(values)
                numbers[name] = fsum(values.tolist()) / len(values) if len(values) >= LEAST else None
        per_class[finding] = numbers
    every = [name for names in groups.values() for name in names]
    macro = {name: macro_mean(numbers[name] for numbers in per_class.values()) for name in every}
    return {"per_class": per_class, "macro": macro}


def keys_of(rows: Rows) -> list[tuple[str, str]]:
    """Return image and query of each row (R)."""
    pairs = zip(rows.image.tolist(), rows.query.tolist(), strict=True)
    return [(rows.image_ids[image], rows.queries[query]) for image, query in pairs]


def _places(known: Mapping[tuple[str, str], int], changed: Rows) -> NDArray[np.int64]:
    keys = keys_of(changed)
    for image, query in (key for key in keys if key not in known):
        raise ValueError(f"{query!r:.60} on {image!r:.200} has a row under a condition, but none for the original")
    return np.array([known[key] for key in keys], np.int64)


def _scores(rows: Rows, of_logits: bool) -> NDArray[np.float64]:
    """Return logits (R,), or the logits of probabilities, infinite for exactly 0 and 1; NaN without a score."""
    if of_logits:
        return rows["logit"]
    ends = {0.0: -math.inf, 1.0: math.inf}
    # Python's logarithm, because the last bit of numpy's depends on the processor.
    return np.array([ends[p] if p in ends else math.log(p) - math.log1p(-p) for p in rows["probability"].tolist()])


def _answered(rows: Rows, asked: bool) -> NDArray[np.float64]:
    """Return the decisions of answers (R,): yes or no if `asked`, else whether they show a place; NaN if unreadable."""
    if asked:
        return np.where(np.isnan(rows["probability"]), np.nan, rows["probability"] >= 0.5)
    shown = np.nan_to_num(rows["boxes"]) + np.nan_to_num(rows["points"]) > 0
    return np.where(shown | np.isin(rows["answer_status"], ("answered", "abstained")), shown, np.nan)


def _deviations(rows: Rows, score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by finding the population standard deviation of its finite scores over all images, labeled or not (C,)."""
    found = np.full(len(rows.findings), np.nan)
    for place in range(len(rows.findings)):
        if values := score[(rows.finding == place) & np.isfinite(score)].tolist():
            # The mean of equal scores may differ by rounding.
            mean = fsum(values) / len(values) if min(values) < max(values) else values[0]
            found[place] = math.sqrt(fsum((value - mean) ** 2 for value in values) / len(values))
    return found


def _in_units(score: NDArray[np.float64], after: NDArray[np.float64], unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return drops in units (P,); NaN for infinite scores. Equal scores have drop 0, even in a unit of 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        drop = np.where((score == after) & (unit == 0), score - after, (score - after) / unit)
    return np.where(np.isfinite(drop), drop, np.nan)


def thresholds(rows: Rows, score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the score from which a finding counts as detected, for each row (R,); NaN if undefined.

    It is the middle of `youden` on the finding's labeled rows in the other four fifths of patients, dealt by SHA-256
    digests of their names.
    """
    names, patient = np.unique(rows.patient, return_inverse=True)
    fold = (by_digest(names.tolist()) % FOLDS)[patient][rows.image]
    known, found = (rows["label"] >= 0) & ~np.isnan(score), np.full(len(rows), np.nan)
    for place in range(len(rows.findings)):
        own = rows.finding == place
        for part in range(FOLDS):
            others = own & known & (fold != part)
            if best := youden(rows["label"][others], score[others]):
                low, middle, high = best[0], best[0] / 2 + best[1] / 2, best[1]
                # There is no middle between adjacent floats, or between infinity and a number.
                found[own & (fold == part)] = middle if low < middle else high
    return found


def _swapped(rows: Rows, row: NDArray[np.int64], decisions: NDArray[np.float64], label: int) -> NDArray[np.float64]:
    """Return the decision on the next image, by digest, of another patient with this label (P,), or NaN."""
    rank, names, found = by_digest(rows.image_ids), rows.patient, np.full(len(row), np.nan)
    for place in range(len(rows.findings)):
        own = rows.of_finding & (rows.finding == place)
        pool = np.flatnonzero(own & (rows["label"] == label))
        pool = pool[np.argsort(rank[rows.image[pool]])]
        for pair in np.flatnonzero(own[row]).tolist():
            image = rows.image[row[pair]]
            start = np.searchsorted(rank[rows.image[pool]], rank[image])
            turned: Any = (pool[(start + step) % len(pool)] for step in range(len(pool)))
            other = next((one for one in turned if names[rows.image[one]] != names[image]), None)
            found[pair] = np.nan if other is None else decisions[other]
    return found
