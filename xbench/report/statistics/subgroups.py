"""Sex, age and projection: numbers of each group of images, and tests of their differences.

The test exchanges groups between patients with equally many images, so images of a patient stay together, and a group
that differs between them, such as the projection, still does. Groups may differ in how frequent findings are, so the
statistic is the largest difference between two groups over its standard error (Chung and Romano 2013, Annals of
Statistics 41, 484).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from xbench.report.schema import Estimate, RunAnalysis, Subgroup
from xbench.report.statistics.intervals import Codes, Floats
from xbench.report.statistics.measures import Measures, estimate, measure
from xbench.report.statistics.sample import Sample
from xbench.runs.files import RunFileError
from xbench.runtime.digests import digest
from xbench.scoring.numbers import holm

AGES = (40, 65)
"""First ages of the second and third band, chosen before any result was seen."""
GROUPS: Mapping[str, Sequence[str]] = {
    "sex": ("F", "M"),
    "age": (f"under {AGES[0]}", f"{AGES[0]} to {AGES[1] - 1}", f"{AGES[1]} and over"),
    "projection": ("PA", "AP", "lateral"),
}
LEAST = {"auroc": 10, "pointing_game": 30}
"""What a group needs by key of `NUMBERS`: so many positives and negatives of each finding, or pairs."""
EXCHANGES = 999
_AT_A_TIME = 2_000_000
_ROUNDING = 1e-9
"""Smaller standard errors are rounding, as if each pair of a group is a hit."""


def subgroups(
    runs: Sequence[RunAnalysis], measures: Mapping[str, Measures], folds: int, seed: int, ground: str
) -> tuple[Subgroup, ...]:
    """Return the groups of each run, with `measures` by label; `ground` names dataset and split.

    Attributes that are unknown for every image are left out. p-values are corrected with Holm's method for the
    attributes and numbers of a run.
    """
    found: list[Subgroup] = []
    for entry in runs:
        about: Mapping[str, Mapping[str, str | float]] = {}
        with suppress(RunFileError):  # a missing file is fine; `verify` reports a damaged one
            about = entry.run.stored.attributes
        own, rows = measures[entry.run.label], list[Subgroup]()
        for attribute in GROUPS:
            group = np.array([group_of(attribute, about.get(name, {})) for name in own.sample.image_ids], np.int64)
            if (group >= 0).any():
                random = np.random.default_rng(int(digest([seed, ground, attribute, entry.run.label]), 16))
                rows += _of_attribute(entry, own, attribute, group, folds, random)
        corrected = iter(holm([row.p for row in rows if row.p is not None]))
        found += [row if row.p is None else replace(row, p_adjusted=next(corrected)) for row in rows]
    return tuple(found)


def group_of(attribute: str, about: Mapping[str, str | float]) -> int:
    """Return the index of an image's group in `GROUPS`; -1 if unknown."""
    value = about.get(attribute)
    if isinstance(value, int | float):
        return bisect_right(AGES, value)
    return GROUPS[attribute].index(value) if value in GROUPS[attribute] else -1


def _of_attribute(
    entry: RunAnalysis, own: Measures, attribute: str, group: Codes, folds: int, random: np.random.Generator
) -> list[Subgroup]:
    sample, rows, names = own.sample, entry.run.rows, GROUPS[attribute]
    place = {name: image for image, name in enumerate(sample.image_ids)}
    image = np.array([place[name] for name in rows.image_ids], np.int64)[rows.image]
    present = np.bincount(image, rows["label"] == 1, minlength=len(place))
    compared = {key: comparable(own, group, len(names), key) for key in LEAST}
    found, measured = list[Subgroup](), dict[int, Measures]()
    for code, name in [*enumerate(names), (-1, "not known")]:
        if not (mine := group == code).any():
            continue
        takes = {key: findings & (code in codes) for key, (codes, findings) in compared.items()}
        part = sample.with_pairs(mine[sample.pair_image] & takes["pointing_game"][sample.pair_column])
        labels = np.where(mine[:, None] & takes["auroc"], sample.labels, -1).astype(np.int8)
        measured[code] = measure(replace(part, labels=labels), folds)
        macro = measured[code].macro()
        patients = len(np.unique(sample.image_cluster[mine])) if sample.clustered_by == "patients" else None
        counts = int(mine.sum()), patients, int(present[mine].sum()), int(mine[sample.pair_image].sum())
        found.append(Subgroup(entry.run.label, attribute, name, {key: macro[key] for key in LEAST}, *counts))
    for key, (codes, findings) in compared.items():
        if len(codes) > 1:
            scores = {code: measured[code].macro()[key] for code in codes}
            low, *_, high = sorted(codes, key=lambda code: scores[code].value or 0.0)
            used = [sample.findings[place] for place in np.flatnonzero(findings)]
            over = f"{used[0]} only" if len(used) == 1 else f"{len(used)} findings"
            name = f"{names[high]} minus {names[low]} ({over})"
            gap = _gap(scores[high], scores[low], comb(len(codes), 2))
            p = exchange_p(sample, np.where(np.isin(group, codes), group, -1), np.flatnonzero(findings), key, random)
            found.append(Subgroup(entry.run.label, attribute, name, {key: gap}, p=p))
    return found


def comparable(own: Measures, group: Codes, groups: int, key: str) -> tuple[list[int], NDArray[np.bool_]]:
    """Return the groups to compare, two or more or none, and the findings (C,) that have the number in each of them."""
    sample, counts = own.sample, np.zeros((groups, len(own.sample.findings)), np.int64)
    if key == "auroc":
        for code, labels in ((code, sample.labels[group == code]) for code in range(groups)):
            counts[code] = np.minimum((labels == 1).sum(axis=0), (labels == 0).sum(axis=0))
        counts[counts < LEAST[key]] = 0
    else:
        known = group[sample.pair_image] >= 0
        np.add.at(counts, (group[sample.pair_image][known], sample.pair_column[known]), 1)
    counts[:, np.isnan(own.point[key])] = 0
    findings = (counts[counts.sum(axis=1) >= LEAST[key]] > 0).all(axis=0)
    codes = np.flatnonzero(counts[:, findings].sum(axis=1) >= LEAST[key]).tolist()
    return codes if len(codes) > 1 else [], findings


def _gap(high: Estimate, low: Estimate, ways: int) -> Estimate:
    """Return the difference of two groups with an interval from theirs (MOVER; see `intervals.combined`).

    It is too wide if patients have images in both. It allows for `ways` to pick the two extremes (Bonferroni).
    """
    (value, bottom, top), (less, least, most) = np.array([astuple(high), astuple(low)], np.float64)
    wider = ndtri(1 - 0.025 / ways) / ndtri(0.975)
    difference = float(value - less)
    lower = difference - wider * np.hypot(value - bottom, most - less)
    upper = difference + wider * np.hypot(top - value, less - least)
    return estimate(difference, None if np.isnan(lower + upper) else (max(-1.0, lower), min(1.0, upper)))


def exchange_p(sample: Sample, group: Codes, columns: Codes, key: str, random: np.random.Generator) -> float | None:
    """Return the p-value of the differences between groups; None if no two patients can exchange theirs.

    `group` (N,) is -1 for images to leave out; `key`, `auroc` or `pointing_game`, is a mean over the findings
    `columns`.
    """
    order = np.argsort(sample.image_cluster, kind="stable")
    starts = np.searchsorted(sample.image_cluster[order], np.arange(len(sample.clusters)))
    images = order[group[order] >= 0]
    patients = np.split(images, np.flatnonzero(np.diff(sample.image_cluster[images])) + 1)
    # Images of patients with equally many (patients, images).
    alike = [np.array([own for own in patients if len(own) == size]) for size in sorted({*map(len, patients)})]
    if all((group[places] == group[places[0]]).all() for places in alike):
        return None

    def statistic(drawn: Codes) -> Floats:
        largest, of_groups = np.zeros(len(drawn)), []
        for code in np.unique(group[images]):
            mean, influence = _mean(sample, drawn == code, columns, key)
            of_groups.append((mean, np.add.reduceat(influence[:, order], starts, axis=1)))
        for (mean, influence), (less, other) in combinations(of_groups, 2):
            error = np.sqrt(((influence - other) ** 2).sum(axis=1))
            largest = np.maximum(largest, abs(mean - less) / np.maximum(error, _ROUNDING))
        return largest

    least, far, step = statistic(group[None])[0] * (1 - _ROUNDING), 1, max(1, _AT_A_TIME // len(group))
    for start in range(0, EXCHANGES, step):
        drawn = np.tile(group, (min(step, EXCHANGES - start), 1))
        for places in alike:
            others = random.permuted(np.tile(np.arange(len(places)), (len(drawn), 1)), axis=1)
            drawn[:, places] = group[places][others]
        far += int((statistic(drawn) >= least).sum())
    return far / (EXCHANGES + 1)


def _mean(sample: Sample, mine: NDArray[np.bool_], columns: Codes, key: str) -> tuple[Floats, Floats]:
    """Return the mean over findings of a group's images (E,), and what each image adds to its error (E, N).

    `mine` (E, N) selects the images. Findings without a number after an exchange are left out. The error of AUROC is
    that of DeLong, DeLong and Clarke-Pearson (1988).
    """
    total, known, influence = np.zeros((len(mine), 1)), np.zeros((len(mine), 1)), np.zeros(mine.shape)
    for column in columns:
        pairs = np.flatnonzero(sample.pair_column == column)
        images, value = sample.pair_image[pairs], sample.hit[pairs]
        absent = images[:0]
        if key == "auroc":
            score = sample.probabilities[:, column]
            ranked = np.argsort(score, kind="stable")
            images, absent = (ranked[sample.labels[ranked, column] == kind] for kind in (1, 0))
            value = _share_below(mine[:, absent], score[absent], score[images])
        own, others = mine[:, images], mine[:, absent]
        count, of_others = (np.maximum(of.sum(axis=1, keepdims=True), 1) for of in (own, others))
        there = own.any(axis=1, keepdims=True) & (others.any(axis=1, keepdims=True) | (key != "auroc"))
        mean = there * (own * value).sum(axis=1, keepdims=True) / count
        # An image may have several phrases of a finding.
        np.add.at(influence.T, images, (there * own * (value - mean) / count).T)
        if key == "auroc":
            below = 1 - _share_below(own, score[images], score[absent])
            influence[:, absent] += there * others * (below - mean) / of_others
        total, known = total + mean, known + there
    return (total / np.maximum(known, 1))[:, 0], influence / np.maximum(known, 1)


def _share_below(mine: NDArray[np.bool_], values: Floats, of: Floats) -> Floats:
    """Return the share of a group's values (E, V), ascending, below each of others (E, O); ties count half."""
    sums = np.pad(mine.cumsum(axis=1), ((0, 0), (1, 0)))
    both = sums[:, np.searchsorted(values, of)] + sums[:, np.searchsorted(values, of, "right")]
    return np.asarray(both / 2 / np.maximum(sums[:, -1:], 1))
