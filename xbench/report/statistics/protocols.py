"""The same maps as others score them: the numbers of named protocols, and paired tests under each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from xbench.report.runs import Run
from xbench.report.schema import ProtocolScores
from xbench.report.statistics.paired import PairedTest, exchange_tests
from xbench.runs.protocols import read_protocol, read_protocol_pairs, stored_protocols
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import Protocol, groups_of

_Values = dict[tuple[str, str], float]
"""By image and finding."""


def protocol_scores(
    runs: Sequence[Run], references: Sequence[Run], seed: int, ground: str
) -> tuple[ProtocolScores, ...]:
    """Compare models' runs by each protocol that at least one was scored by, in the order of `PROTOCOLS`."""
    stored = {run.label: {*stored_protocols(run.folder)} for run in (*runs, *references)}
    found = []
    for name, protocol in PROTOCOLS.items():
        if not protocol.takes & {"map", "boxes"}:
            continue
        # By title, for in another frame it is another number.
        numbers: dict[str, dict[str, float]] = {}
        averages: dict[str, str] = {}
        for run in (*runs, *references):
            if name in stored[run.label]:
                content = read_protocol(run.folder, name)
                entry = content["numbers"].get(protocol.headline, {})
                if entry.get("value") is not None:
                    numbers.setdefault(content["title"], {})[run.label] = entry["value"]
                    averages[content["title"]] = entry["average"]
        patients = {
            image_id: patient if patient is not None else image_id
            for run in runs
            for image_id, patient in zip(run.images.image_ids, run.images.patient_ids, strict=True)
        }
        for title, of_all in numbers.items():
            of_runs = {run.label: _values(run, protocol) for run in runs if run.label in of_all}
            if not of_runs:
                continue
            p: dict[str, dict[str, float | None]] = {}
            for first, second in combinations(sorted(of_runs), 2):
                place = f"{ground}/{name}"
                pair = of_runs[first], of_runs[second]
                p.setdefault(first, {})[second] = _p(*pair, averages[title], patients, seed, place)
            values = {label: of_all[label] for label in of_runs}
            others = {run.label: of_all[run.label] for run in references if run.label in of_all}
            found.append(ProtocolScores(name, title == protocol.name, values, others, p))
    return tuple(found)


def _values(run: Run, protocol: Protocol) -> _Values:
    """Return what each pair has of the headline. Of numbers that are pooled, what the pair alone would have."""
    return {
        (str(image_id), group.finding): float(value)
        for group in groups_of(read_protocol_pairs(run.folder, protocol.name), run.results.findings)
        for image_id, value in zip(group["image_id"], protocol.pair_values(group), strict=True)
        if not np.isnan(value)
    }


def _p(first: _Values, second: _Values, average: str, patients: dict[str, str], seed: int, ground: str) -> float | None:
    """Exchange two runs patient by patient; the difference is that of means, averaged as the protocol does."""
    common = sorted(first.keys() & second.keys())
    if not common:
        return None
    column = np.unique([finding for _, finding in common], return_inverse=True)[1]
    counts = np.bincount(column).astype(np.float64)
    power = {"findings": -1, "sums": -1, "squares": 1}.get(average, 0)
    weights = counts[column] ** power
    differences = np.array([first[pair] - second[pair] for pair in common]) * weights / weights.sum()
    cluster = np.unique([patients[image_id] for image_id, _ in common], return_inverse=True)[1]
    added = np.bincount(cluster, differences)
    test = PairedTest(added != 0, lambda signs: np.asarray(signs @ added))
    return exchange_tests([test], 1, seed, ground)[0]
