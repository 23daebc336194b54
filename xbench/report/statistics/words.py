"""What texts say, and where maps and boxes lie by the same rule: intervals by patient, and paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf, nan
from typing import Any

import numpy as np

from xbench.findings.names import MACRO
from xbench.report.runs import Run
from xbench.report.schema import WORDS, Comparison, Estimate, WordsAnalysis
from xbench.report.statistics import intervals
from xbench.report.statistics.intervals import Spread
from xbench.report.statistics.measures import estimate
from xbench.report.statistics.paired import exchange_tests, weighed
from xbench.report.statistics.protocols import on_common, patients_of
from xbench.runs.protocols import read_protocol, read_protocol_pairs, stored_protocols
from xbench.scoring.numbers import holm
from xbench.scoring.protocols.base import Group, groups_of
from xbench.scoring.protocols.words import Words, parts


def _speakers(run: Run) -> Iterator[tuple[str, Any, str, list[Group]]]:
    """Yield label, kind, prefix of columns, and pairs: of what a run says, then of its maps or boxes beside that."""
    if Words.name in stored_protocols(run.folder):
        groups = groups_of(read_protocol_pairs(run.folder, Words.name), run.results.findings)
        kinds = max((source for group in groups for source in group["source"].tolist()), key=len).split()
        for prefix, kind in zip(("", "map_"), kinds, strict=False):
            yield run.label + f", {kind}" * bool(prefix), kind, prefix, groups


def words_of(run: Run) -> tuple[WordsAnalysis, ...]:
    """Return what a run says, then where its own maps or boxes lie if they stand beside that; nothing if not scored."""
    found, patients = [], patients_of([run])
    names = sorted({*patients.values()})
    for label, kind, prefix, groups in _speakers(run):
        stored = read_protocol(run.folder, Words.name)["numbers"]
        of = {group.finding: parts(group, prefix) for group in groups}
        clusters = {
            group.finding: np.searchsorted(names, [patients[one] for one in group["image_id"]]) for group in groups
        }
        numbers: dict[str, dict[str, Estimate]] = {name: {} for name in (MACRO, *of)}
        for name in (name for name in of[groups[0].finding] if f"{prefix}{name}" in stored):
            values = stored[f"{prefix}{name}"]["per_finding"]
            spreads = {
                finding: [_spread(name, *of[finding][name], clusters[finding], len(names))]
                for finding, value in values.items()
                if value is not None and not name.endswith("chance")
            }
            spreads[MACRO] = [spread for (spread,) in spreads.values()]
            combine = intervals.combined_unbounded if name.endswith(("excess", "gain")) else intervals.combined
            for finding, value in {MACRO: stored[f"{prefix}{name}"]["value"], **values}.items():
                limits = combine(spreads[finding]) if spreads.get(finding) else None
                numbers[finding][name] = estimate(nan if value is None else value, limits)
        numbers[MACRO]["mention_f1_strict"] = Estimate(None if prefix else stored["mention_f1"]["strict"])
        found.append(WordsAnalysis(label, kind, numbers, {name: int(of[name]["side_joint"][1].sum()) for name in of}))
    return tuple(found)


def _spread(name: str, above: Any, below: Any, clusters: Any, count: int) -> Spread:
    """Return the spread of a number of a finding, from what each pair adds above and below the line."""
    if not name.endswith(("excess", "gain")):
        kept = below > 0
        if "f1" in name:
            return intervals.f1(kept, above > 0, clusters, count)
        return intervals.share(above[kept].astype(np.float64), clusters[kept], count)
    # Pairs enter excess twice: its derivative with respect to how often a patient counts has a factor of 2.
    value, factor = float(above.sum() / below.sum()), 1 + name.endswith("excess")
    influence = np.bincount(clusters, factor * (above - value * below) / below.sum(), minlength=count)
    units = len(np.unique(clusters[(above != 0) | (below > 0)])) * bool(influence.any())
    return Spread(value, influence.astype(np.float64), units, units - 1, lambda _: (-inf, inf))


def word_tests(runs: Sequence[Run], seed: int, ground: str) -> list[Comparison]:
    """Compare every two of what runs say and of where their maps and boxes lie, corrected for all these tests.

    The pairs are those that both are scored on, with the same sides; for `side_opposite` those where both state one.
    """
    hits: dict[str, dict[str, dict[tuple[str, ...], float]]] = {name: {} for name in WORDS}
    for name, (label, _, prefix, groups) in ((name, one) for run in runs for one in _speakers(run) for name in WORDS):
        hits[name][label] = {
            (image_id, group.finding, sides): hit
            for group in groups
            for image_id, sides, hit, kept in zip(
                group["image_id"], group["true_sides"], *parts(group, prefix)[name], strict=True
            )
            if kept
        }
    patients, found, tests = patients_of(runs), list[Comparison](), dict[int, Any]()
    for name, of in hits.items():
        for first, second in combinations(of, 2):
            if common := on_common(of[first], of[second], "findings", patients):
                part, values, column, cluster = common
                own = [column == place for place in range(column.max() + 1)]
                spreads = [[intervals.share(one[rows], cluster[rows], len(part)) for rows in own] for one in values]
                difference = estimate(float(part.sum()), intervals.difference(*spreads))
                images = len({image_id for image_id, *_ in of[first].keys() & of[second].keys()})
                untested = "" if len(part) > 1 else "they share a single patient or image, and a test needs two"
                tests |= {} if untested else {len(found): weighed(part)}
                found.append(Comparison(name, first, second, images, difference, None, None, untested))
    p_values = exchange_tests([*tests.values()], len(tests), seed, f"{ground} words")
    for place, p, adjusted in zip(tests, p_values, holm(p_values), strict=True):
        found[place] = replace(found[place], p=p, p_adjusted=adjusted)
    return found
