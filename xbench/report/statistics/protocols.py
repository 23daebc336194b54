"""Compare runs by the protocols of others, and words by the protocol on words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf, nan
from typing import Any

import numpy as np

from xbench.findings.names import MACRO
from xbench.report.runs import Run
from xbench.report.schema import WORDS, Comparison, Estimate, ProtocolScores, WordsAnalysis
from xbench.report.statistics import intervals
from xbench.report.statistics.intervals import Spread
from xbench.report.statistics.measures import estimate
from xbench.report.statistics.paired import PairedTest, exchange_tests, weighed
from xbench.runs.protocols import read_protocol, read_protocol_pairs, stored_protocols
from xbench.scoring.numbers import holm
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import Group, Protocol, groups_of
from xbench.scoring.protocols.words import Words, parts

_Values = dict[tuple[str, str], float]
"""By image and finding."""
_STUDENTS = ("chance", "excess", "gain")
"""Endings of numbers that are not shares."""


def protocol_scores(runs: Sequence[Run], others: Sequence[Run], seed: int, ground: str) -> tuple[ProtocolScores, ...]:
    """Compare models' runs by each protocol that scored one, in the order of `PROTOCOLS`; `others` are references."""
    patients, found = patients_of(runs), []
    for name, protocol in PROTOCOLS.items():
        if not protocol.takes & {"map", "boxes"}:
            continue
        # By title, because in another frame it is another number.
        headlines: defaultdict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        for run in (*runs, *others):
            content = read_protocol(run.folder, name) if name in stored_protocols(run.folder) else {"numbers": {}}
            headline = content["numbers"].get(protocol.headline, {})
            if headline.get("value") is not None:
                headlines[content["title"]][run.label] = headline
        for title, of_runs in headlines.items():
            pairs = {run.label: _values(run, protocol) for run in runs if run.label in of_runs}
            p: defaultdict[str, dict[str, float | None]] = defaultdict(dict)
            for first, second in combinations(sorted(pairs), 2):
                average = of_runs[second]["average"]
                p[first][second] = _p(pairs[first], pairs[second], average, patients, seed, f"{ground}/{name}")
            values = {label: of_runs[label]["value"] for label in pairs}
            references = {run.label: of_runs[run.label]["value"] for run in others if run.label in of_runs}
            if values:
                found.append(ProtocolScores(name, title == protocol.name, values, references, dict(p)))
    return tuple(found)


def patients_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return the patient of each image, or the image itself if its patient is unknown."""
    return {
        image_id: image_id if patient is None else patient
        for run in runs
        for image_id, patient in zip(run.images.image_ids, run.images.patient_ids, strict=True)
    }


def _values(run: Run, protocol: Protocol) -> _Values:
    """Return what each pair adds to the headline; of pooled numbers, what it alone would have."""
    return {
        (str(image_id), group.finding): float(value)
        for group in groups_of(read_protocol_pairs(run.folder, protocol.name), run.results.findings)
        for image_id, value in zip(group["image_id"], protocol.pair_values(group), strict=True)
        if not np.isnan(value)
    }


def _p(first: _Values, second: _Values, mean: str, patients: Mapping[str, str], seed: int, ground: str) -> float | None:
    """Exchange two runs patient by patient; the difference is that of means, averaged as the protocol does."""
    common = sorted(first.keys() & second.keys())
    if not common:
        return None
    column = np.unique([finding for _, finding in common], return_inverse=True)[1]
    counts = np.bincount(column).astype(np.float64)
    power = {"findings": -1, "sums": -1, "squares": 1}.get(mean, 0)
    weights = counts[column] ** power
    differences = np.array([first[pair] - second[pair] for pair in common]) * weights / weights.sum()
    cluster = np.unique([patients[image_id] for image_id, _ in common], return_inverse=True)[1]
    return exchange_tests([weighed(np.bincount(cluster, differences).astype(np.float64))], 1, seed, ground)[0]


def _speakers(run: Run) -> Iterator[tuple[str, Any, str, list[Group]]]:
    """Yield label, kind, prefix of columns, and pairs: of what a run says, then of its maps or boxes beside that."""
    if Words.name in stored_protocols(run.folder):
        groups = groups_of(read_protocol_pairs(run.folder, Words.name), run.results.findings)
        kinds = max((source for group in groups for source in group["source"].tolist()), key=len).split()
        for prefix, kind in zip(("", "map_"), kinds, strict=False):
            yield run.label + f", {kind}" * bool(prefix), kind, prefix, groups


def words_of(run: Run) -> tuple[WordsAnalysis, ...]:
    """Return a run's words, then where its maps or boxes lie if they stand beside them; empty if not scored."""
    found, patients = [], patients_of([run])
    names = sorted({*patients.values()})
    for label, kind, prefix, groups in _speakers(run):
        stored = read_protocol(run.folder, Words.name)["numbers"]
        clusters = {of.finding: np.searchsorted(names, [patients[one] for one in of["image_id"]]) for of in groups}
        of = {group.finding: parts(group, prefix) for group in groups}
        numbers: dict[str, dict[str, Estimate]] = {name: {} for name in (MACRO, *of)}
        for name in (name for name in of[groups[0].finding] if f"{prefix}{name}" in stored):
            values = stored[f"{prefix}{name}"]["per_finding"]
            known = {finding: of[finding][name] for finding, value in values.items() if value is not None}
            spreads = {key: [_spread(name, *known[key], clusters[key], len(names))] for key in known}
            spreads[MACRO] = [spread for (spread,) in spreads.values()]
            combine = intervals.combined_unbounded if name.endswith(_STUDENTS) else intervals.combined
            for finding, value in {MACRO: stored[f"{prefix}{name}"]["value"], **values}.items():
                limits = combine(spreads[finding]) if spreads.get(finding) else None
                numbers[finding][name] = estimate(nan if value is None else value, limits)
        numbers[MACRO]["mention_f1_strict"] = Estimate(None if prefix else stored["mention_f1"]["strict"])
        found.append(WordsAnalysis(label, kind, numbers, {name: int(of[name]["side_joint"][1].sum()) for name in of}))
    return tuple(found)


def _spread(name: str, above: Any, below: Any, clusters: Any, count: int) -> Spread:
    """Return the spread of a number of a finding, from each pair's numerator and denominator."""
    if not name.endswith(_STUDENTS):
        kept = below > 0
        if "f1" in name:
            return intervals.f1(kept, above > 0, clusters, count)
        return intervals.share(above[kept].astype(np.float64), clusters[kept], count)
    # Pairs enter chance twice, so its derivative with respect to a patient's weight has a factor of 2.
    value, factor = float(above.sum() / below.sum()), 2 - name.endswith("gain")
    influence = np.bincount(clusters, factor * (above - value * below) / below.sum(), minlength=count)
    units = len(np.unique(clusters[(above != 0) | (below > 0)])) * bool(influence.any())
    return Spread(value, influence.astype(np.float64), units, units - 1, lambda _: (-inf, inf))


def word_tests(runs: Sequence[Run], seed: int, ground: str) -> list[Comparison]:
    """Compare every two of what runs say and of where their maps and boxes lie, corrected for all these tests.

    Only pairs that both are scored on, with the same sides; for `side_opposite` those where both state one.
    """
    hits: dict[str, dict[str, dict[tuple[str, str, str], float]]] = {name: {} for name in WORDS}
    for name, (label, _, prefix, groups) in ((name, one) for run in runs for one in _speakers(run) for name in WORDS):
        for group in groups:
            places = zip(group["image_id"], [group.finding] * len(group), group["true_sides"], strict=True)
            of_pairs = zip(places, *parts(group, prefix)[name], strict=True)
            hits[name].setdefault(label, {}).update({place: hit for place, hit, kept in of_pairs if kept})
    patients, found, tests = patients_of(runs), list[Comparison](), list[PairedTest]()
    for name, of in hits.items():
        for first, second in combinations(of, 2):
            if common := sorted(of[first].keys() & of[second].keys()):
                values = np.array([[of[label][pair] for pair in common] for label in (first, second)], np.float64)
                column = np.unique([finding for _, finding, _ in common], return_inverse=True)[1]
                cluster = np.unique([patients[image_id] for image_id, *_ in common], return_inverse=True)[1]
                own = [column == place for place in range(column.max() + 1)]
                count = int(cluster.max()) + 1
                spreads = [[intervals.share(one[rows], cluster[rows], count) for rows in own] for one in values]
                part = np.bincount(cluster, (values[0] - values[1]) / np.bincount(column)[column] / len(own))
                difference = estimate(float(part.sum()), intervals.difference(*spreads))
                images = len({image_id for image_id, *_ in common})
                tests.append(weighed(part.astype(np.float64)))
                found.append(Comparison(name, first, second, images, difference, None, None))
    p = exchange_tests(tests, len(tests), seed, f"{ground} words")
    return [replace(one, p=p, p_adjusted=adjusted) for one, p, adjusted in zip(found, p, holm(p), strict=True)]
