"""Summarize curves, and maps under weights drawn again, as means over pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from xbench.report.runs import Run
from xbench.report.schema import Estimate, Perturbed, RunAnalysis
from xbench.report.statistics import intervals
from xbench.report.statistics.measures import estimate
from xbench.report.statistics.protocols import patients_of
from xbench.runs.files import PERTURBATIONS, Table, reading
from xbench.scoring.interventions import keys_of, thresholds
from xbench.scoring.perturbations import STEPS, area

_SHARES = ("deletion", "insertion", "probability", "recognized")
_Values = dict[tuple[str, str], float]


def perturbations(runs: Sequence[RunAnalysis]) -> tuple[Perturbed, ...]:
    """Return the curves of each run by the order of their pixels, and its maps by the layer drawn last."""
    return tuple(part for entry in runs if PERTURBATIONS in entry.run.results.tables for part in _parts(entry.run))


def _parts(run: Run) -> Iterator[Perturbed]:
    with reading(run.folder):
        table = [*Table(run.folder / PERTURBATIONS).rows()]
    rows, limits = run.rows, thresholds(run.rows, run.rows["probability"])
    decided = dict(zip(keys_of(rows), zip(rows["probability"].tolist(), limits.tolist(), strict=True), strict=True))
    curves: dict[tuple[str, str, tuple[str, str]], list[float]] = {}
    parts: dict[tuple[str, str], dict[str, _Values]] = {}
    for row in table:
        pair, value = (row["image_id"], row["query"]), math.nan if row["value"] is None else row["value"]
        if row["kind"] in STEPS:
            curves.setdefault((row["of"], row["kind"], pair), []).append(value)
        else:
            parts.setdefault((row["kind"], row["layer"] or ""), {}).setdefault(row["of"], {})[pair] = value
    for (of, kind, pair), values in curves.items():
        part = parts.setdefault((of, ""), {})
        if len(values) != len(STEPS[kind]) or math.isnan(sum(values)):
            continue
        if kind != "road":
            part.setdefault(kind, {})[pair] = area(values)
            continue
        probability, limit = decided.get(pair, (math.nan, math.nan))
        for percent, value in zip(STEPS[kind], values, strict=True):
            part.setdefault(f"probability {percent}", {})[pair] = value
            if probability >= limit:
                part.setdefault(f"recognized {percent}", {})[pair] = float(value >= limit)
    for (name, layer), part in parts.items():
        deletion, insertion = (part.get(kind, {}) for kind in ("deletion", "insertion"))
        if both := deletion.keys() & insertion.keys():
            part["difference"] = {pair: insertion[pair] - deletion[pair] for pair in sorted(both)}
        pairs = len({pair for values in part.values() for pair in values})
        yield Perturbed(run.label, name, layer, pairs, {key: _mean(run, key, part[key]) for key in part})


def _mean(run: Run, name: str, values: _Values) -> Estimate:
    patients = patients_of([run])
    known = {pair: value for pair, value in values.items() if not math.isnan(value)}
    if not known:
        return Estimate(None)
    names, cluster = np.unique([patients[image] for image, _ in known], return_inverse=True)
    # From -1..1 to 0..1 for the interval.
    low, wide = (0, 1) if name.startswith(_SHARES) else (-1, 2)
    compute = intervals.share if name.startswith("recognized") else intervals.mean
    spread = compute((np.array([*known.values()]) - low) / wide, cluster.astype(np.int64), len(names))
    limits = spread.interval()
    return estimate(low + wide * spread.value, limits and (low + wide * limits[0], low + wide * limits[1]))
