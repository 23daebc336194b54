"""Test whether a model's scores depend on the region, with intervals of the numbers under interventions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from xbench.findings.conditions import CONTROL, HIDE, LEAST, PROMPTS
from xbench.findings.names import MACRO
from xbench.geometry.grid import maps_on_grid
from xbench.report.runs import Run
from xbench.report.schema import Dependence, Estimate, FillAnalysis, InterventionAnalysis, RunAnalysis
from xbench.report.statistics import intervals
from xbench.report.statistics.intervals import Spread
from xbench.report.statistics.measures import estimate
from xbench.report.statistics.paired import SIGNIFICANT, exchange_tests, weighed
from xbench.runs.files import IMAGES, PREDICTIONS, RunFileError, Table, reading
from xbench.runs.images import crop_of, map_of
from xbench.scoring.interventions import ANY, OF_ANY, OF_FILL, Intervened, intervened, intervention_numbers, keys_of
from xbench.scoring.maps import rank_accuracy
from xbench.scoring.numbers import holm
from xbench.scoring.perturbations import spearman

SMALL: Mapping[str, float] = {"use": 0.2, "premium": 0.05}
"""Largest negligible dependence: a small effect in standard deviations (Cohen 1988, Statistical Power Analysis for the
Behavioral Sciences), and five decisions in a hundred."""
UNSTABLE: Mapping[str, tuple[str, float]] = {"use": ("control_drop", 0.2), "premium": ("control_flip_rate", 0.3)}
"""By tested number, the level above which a hidden patch or region matters: a small effect, and the share of changed
decisions above which arXiv 2606.17710 calls a model unstable."""
_SHARES = {"flip_rate", "control_flip_rate", "map_moves", *(name for names in OF_ANY.values() for name in names)}
_COMPUTED = {True: (intervals.share, intervals.combined), False: (intervals.unbounded, intervals.combined_unbounded)}
_Columns = dict[str, NDArray[np.float64]]


def interventions(runs: Sequence[RunAnalysis], seed: int, ground: str) -> tuple[InterventionAnalysis, ...]:
    """Return the analyses of the runs in which regions were hidden; `ground` names the dataset and split.

    Intervals stay valid for a subset of pairs, because within a finding every pair was equally likely to be drawn.
    """
    named = {entry.run.label: entry.run for entry in runs}
    found = {label: pairs for label, run in named.items() if (pairs := intervened(run.rows, run.stored.changed))}
    adjusted: dict[tuple[str, str, str], float] = {}
    for number in UNSTABLE:
        parts = {
            (label, fill, number): part
            for label, pairs in found.items()
            for fill in pairs.columns
            if fill != ANY and len(part := contributions(pairs, fill, number))
        }
        p = exchange_tests([*map(weighed, parts.values())], len(parts), seed, f"{ground} interventions {number}")
        adjusted |= dict(zip(parts, holm(p), strict=True))
    return tuple(_analysis(named[label], pairs, adjusted) for label, pairs in found.items())


def contributions(pairs: Intervened, fill: str, number: str) -> NDArray[np.float64]:
    """Return what each patient adds to a mean over findings (K,); empty without it or without a second patient.

    Exchanging region and patch in all pairs of a patient changes the sign of its part.
    """
    values, cluster = pairs.columns[fill][number], _clusters(pairs)
    own, part = [*_enough(pairs, values).values()], np.zeros(cluster.max() + 1)
    for rows in own:
        np.add.at(part, cluster[rows], values[rows] / (len(rows) * len(own)))
    return part if own and np.ptp(cluster[np.concatenate(own)]) else part[:0]


def _clusters(pairs: Intervened) -> NDArray[np.int64]:
    return np.unique(pairs.patients, return_inverse=True)[1].astype(np.int64)


def _enough(pairs: Intervened, values: NDArray[np.float64]) -> dict[str, NDArray[np.int64]]:
    """Return by finding the pairs with a value, for findings with at least `LEAST`."""
    known = ~np.isnan(values)
    own = {name: np.flatnonzero(known & (pairs.finding == at)) for at, name in enumerate(pairs.rows.findings)}
    return {name: rows for name, rows in own.items() if len(rows) >= LEAST}


def _estimates(pairs: Intervened, columns: _Columns, points: Mapping[str, Any]) -> dict[str, dict[str, Estimate]]:
    """Return the numbers of columns (P,) with intervals, by finding and as means; `points` have no intervals."""
    cluster, spreads = _clusters(pairs), dict[str, dict[str, Spread]]()
    found: dict[str, dict[str, Estimate]] = {name: {} for name in (MACRO, *pairs.rows.findings)}
    given = {**points["per_class"], MACRO: points["macro"]}
    for name, values in columns.items():
        compute, combine = _COMPUTED[name in _SHARES]
        own, found[MACRO][name] = _enough(pairs, values), Estimate(None)
        spreads[name] = {key: compute(values[rows], cluster[rows], cluster.max() + 1) for key, rows in own.items()}
        for place, findings in {**{finding: [finding] for finding in own}, MACRO: [*own]}.items() if own else ():
            rates = ("flip_rate", "control_flip_rate") if name == "premium" else (name,)
            of = [[spreads[rate][finding] for finding in findings] for rate in rates]
            value = given[place][name] if name in given[MACRO] else fmean(spread.value for spread in of[0])
            limits = intervals.difference(*of) if len(of) > 1 else combine(*of)
            # All but drops lie between -1 and 1.
            if limits and name not in OF_FILL["scored"]:
                limits = max(-1.0, limits[0]), min(1.0, limits[1])
            found[place][name] = estimate(value, limits)
    return found


def _analysis(run: Run, pairs: Intervened, adjusted: Mapping[tuple[str, str, str], float]) -> InterventionAnalysis:
    numbers, of_maps, fills = intervention_numbers(pairs), dict[str, _Columns](), list[FillAnalysis]()
    with suppress(RunFileError):  # missing files are fine; `verify` reports damaged ones
        of_maps = map_columns(run, pairs)
    every, seen = numbers["all_pairs"], numbers["correct_only"]
    for fill in (fill for fill in pairs.columns if fill != ANY):
        columns, counted = pairs.columns[fill], every[fill]["per_class"].values()
        decided = [columns["premium"][own] for own in _enough(pairs, columns["premium"]).values()]
        recognized = {name: np.where(pairs.decision == 1, values, np.nan) for name, values in columns.items()}
        fills.append(
            FillAnalysis(
                fill=fill,
                counts={
                    **{name: sum(one[name] for one in counted if one[name] >= LEAST) for name in OF_FILL},
                    **{name: sum(one[name] for one in counted) for name in pairs.lacking[fill]},
                },
                numbers=_estimates(pairs, {**columns, **of_maps.get(fill, {})}, every[fill]),
                recognized=_estimates(pairs, recognized, seen[fill])[MACRO],
                p_adjusted={name: adjusted[key] for name in UNSTABLE if (key := (run.label, fill, name)) in adjusted},
                p_exact=mcnemar(*(sum(int((own == sign).sum()) for own in decided) for sign in (1, -1))),
                overlap={name: overlap(pairs.overlap, columns[name]) for name in ("use", "flip_rate")},
            )
        )
    number: Literal["use", "premium"] = "use" if pairs.reason is None else "premium"
    of_no_fill = _estimates(pairs, {**pairs.columns[ANY], **of_maps.get(ANY, {})}, every[ANY])[MACRO]
    found = InterventionAnalysis(run.label, number, "too few", tuple(fills), of_no_fill)
    equal = not any(np.nan_to_num(pairs.columns[one.fill][number]).any() for one in found.main)
    return replace(found, dependence=dependence(found, equal))


def dependence(found: InterventionAnalysis, equal: bool) -> Dependence:
    """Judge by the headline number with each fill; `equal` if region and patch differ for no pair."""
    number, fills = found.number, [one for one in found.main if found.number in one.p_adjusted]
    other, most = UNSTABLE[number]
    depends = [(one.mean[number].value or 0.0) > 0 and one.p_adjusted[number] <= SIGNIFICANT for one in fills]
    if any(depends):
        return "depends" if all(depends) else "fill"
    both = other, other.removeprefix("control_")
    if fills and all((one.mean[name].low or 0.0) > most for one in fills for name in both):
        return "any hole"
    # Without an interval, nothing is shown to be small.
    if fills and all((high := one.mean[number].high) is not None and high <= SMALL[number] for one in fills):
        return "unchanged" if equal else "no sign"
    return "too few"


def mcnemar(first: int, second: int) -> float | None:
    """Return the two-sided p of McNemar's exact test (1947, Psychometrika 12, 153); None without a discordant pair."""
    return min(1.0, 2 * float(bdtr(min(first, second), first + second, 0.5))) if first + second else None


def overlap(hit: NDArray[np.float64], depends: NDArray[np.float64]) -> tuple[int, ...]:
    """Count pairs by whether they are pointed at and depend on the region, in the order of `FillAnalysis`.

    `hit` (P,) counts from one half, and `depends` (P,) above 0; pairs without one of them are left out.
    """
    known = ~np.isnan(hit) & ~np.isnan(depends)
    return tuple(np.bincount(2 * (hit[known] < 0.5) + (depends[known] <= 0), minlength=4).tolist())


def map_columns(run: Run, pairs: Intervened) -> dict[str, _Columns]:
    """Return, by fill and number, what follows from the stored maps (P,); empty for runs without maps.

    For each fill `follows` and `control_follows`: rank correlation of the map with that of the image with region or
    patch hidden. Without a fill, for each change of the words, `specificity`: rank correlation of the two maps, and
    `advantage`: how much higher the rank accuracy is with the right words. Raises RunFileError if maps or regions
    cannot be read.
    """
    folder, stored, keys = run.folder, run.stored, keys_of(pairs.rows)
    found = defaultdict[str, _Columns](lambda: defaultdict(lambda: np.full(len(pairs.row), np.nan)))
    place_of = {keys[row]: place for place, row in enumerate(pairs.row.tolist())}
    there = defaultdict[tuple[str, str], dict[str, int]](dict)
    mode = (run.results.provenance.get("model") or {}).get("saliency_upsample", "bilinear")
    with reading(folder):
        predictions = Table(folder / PREDICTIONS)
        named = predictions.read(["image_id", "query", "condition"]).to_pydict()
        for at, (image, query, condition) in enumerate(zip(*named.values(), strict=True)):
            there[image, query][condition] = at
        crops = {row["image_id"]: row for row in Table(folder / IMAGES).rows(["image_id", "crop"])}
        # Pair by pair, to bound memory.
        for image, query, region in stored.regions() if stored.draws_maps else ():
            if (place := place_of.get((image, query), -1)) < 0:
                continue
            maps = {name: np.nan_to_num(map_of(predictions.row(at))) for name, at in there[image, query].items()}
            own = maps.pop("")
            for condition, other in maps.items():
                for kind, name in {HIDE: "follows", CONTROL: "control_follows"}.items():
                    if condition.startswith(kind):
                        found[condition.removeprefix(kind)][name][place] = spearman(own, other)
                if condition in PROMPTS:
                    on_grid = (maps_on_grid(one, crop_of(crops[image]), region.shape, mode) for one in (own, other))
                    right, wrong = (rank_accuracy(one, region) for one in on_grid)
                    found[ANY][f"{condition} specificity"][place] = spearman(own, other)
                    found[ANY][f"{condition} advantage"][place] = right - wrong
    return found
