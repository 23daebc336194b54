"""The same maps as others score them: the numbers of named protocols, and paired tests under each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xbench.report.runs import Run
from xbench.report.schema import ProtocolScores
from xbench.report.statistics.paired import exchange_tests, weighed
from xbench.runs.protocols import read_protocol, read_protocol_pairs, stored_protocols
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import Protocol, groups_of

_Key = TypeVar("_Key", bound=tuple[str, ...])
_Values = dict[tuple[str, str], float]
"""By image and finding."""


def protocol_scores(
    runs: Sequence[Run], references: Sequence[Run], seed: int, ground: str
) -> tuple[ProtocolScores, ...]:
    """Compare models' runs by each protocol that at least one was scored by, in the order of `PROTOCOLS`."""
    patients, found = patients_of(runs), []
    for name, protocol in PROTOCOLS.items():
        if not protocol.takes & {"map", "boxes"}:
            continue
        # By title, for in another frame it is another number.
        headlines: defaultdict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        for run in (*runs, *references):
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
            others = {run.label: of_runs[run.label]["value"] for run in references if run.label in of_runs}
            if values:
                found.append(ProtocolScores(name, title == protocol.name, values, others, dict(p)))
    return tuple(found)


def patients_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return the patient of each image, or the image itself if its patient is unknown."""
    return {
        image_id: image_id if patient is None else patient
        for run in runs
        for image_id, patient in zip(run.images.image_ids, run.images.patient_ids, strict=True)
    }


def _values(run: Run, protocol: Protocol) -> _Values:
    """Return what each pair has of the headline. Of numbers that are pooled, what the pair alone would have."""
    return {
        (str(image_id), group.finding): float(value)
        for group in groups_of(read_protocol_pairs(run.folder, protocol.name), run.results.findings)
        for image_id, value in zip(group["image_id"], protocol.pair_values(group), strict=True)
        if not np.isnan(value)
    }


def _p(first: _Values, second: _Values, mean: str, patients: Mapping[str, str], seed: int, ground: str) -> float | None:
    """Exchange two runs patient by patient; the difference is that of means, averaged as the protocol does."""
    common = on_common(first, second, mean, patients)
    return exchange_tests([weighed(common[0])], 1, seed, ground)[0] if common else None


def on_common(
    first: Mapping[_Key, float], second: Mapping[_Key, float], mean: str, patients: Mapping[str, str]
) -> tuple[NDArray[Any], ...] | None:
    """Return what each patient adds to the difference of two runs on the P pairs of both, (K,); None without one.

    Keys are image, finding and more. With it come the values (2, P), and the finding and patient of each pair (P,).
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        return None
    column = np.unique([finding for _, finding, *_ in common], return_inverse=True)[1]
    counts = np.bincount(column).astype(np.float64)
    power = {"findings": -1, "sums": -1, "squares": 1}.get(mean, 0)
    weights = counts[column] ** power
    values = np.array([[of[pair] for pair in common] for of in (first, second)], np.float64)
    cluster = np.unique([patients[image_id] for image_id, *_ in common], return_inverse=True)[1]
    return np.bincount(cluster, (values[0] - values[1]) * weights / weights.sum()), values, column, cluster
