from __future__ import annotations

from dataclasses import astuple, replace
from itertools import combinations

import numpy as np
import pyarrow.parquet as pq
import pytest
from samples import placements, random_sample
from scipy.stats import norm
from synthetic import FINDINGS, write_run

from xbench.report.runs import collect
from xbench.report.statistics import subgroups as module
from xbench.report.statistics.analyze import analyze
from xbench.report.statistics.measures import measure
from xbench.report.statistics.subgroups import comparable, exchange_p, group_of
from xbench.report.tables.contents import all_tables
from xbench.runs.files import IMAGES, PAIRS
from xbench.runs.images import with_attributes
from xbench.scoring.numbers import holm

NUMBERS = ("auroc", "pointing_game")


class Recorder:
    def __init__(self, seed: int) -> None:
        self.random, self.drawn = np.random.default_rng(seed), []

    def permuted(self, values, axis):
        self.drawn.append(self.random.permuted(values, axis=axis))
        return self.drawn[-1]


def slow_statistic(sample, group, codes, key) -> float:
    """The largest difference over its standard error, image by image and pair by pair."""
    means, errors = {}, {}
    for code in codes:
        values, of_patients = [], []
        for column in range(len(sample.findings)):
            added = np.zeros(len(sample.clusters))
            if key == "auroc":
                mine = np.flatnonzero((group == code) & (sample.labels[:, column] >= 0))
                present = sample.labels[mine, column] == 1
                if present.all() or not present.any():
                    continue
                wins = placements(present, sample.probabilities[mine, column])
                values.append(wins.mean())
                for image, share in zip(mine[present], wins.mean(axis=1), strict=True):
                    added[sample.image_cluster[image]] += (share - wins.mean()) / present.sum()
                for image, share in zip(mine[~present], wins.mean(axis=0), strict=True):
                    added[sample.image_cluster[image]] += (share - wins.mean()) / (~present).sum()
            else:
                pairs = np.flatnonzero((group[sample.pair_image] == code) & (sample.pair_column == column))
                if not len(pairs):
                    continue
                values.append(sample.hit[pairs].mean())
                for pair in pairs:
                    added[sample.pair_cluster[pair]] += (sample.hit[pair] - values[-1]) / len(pairs)
            of_patients.append(added)
        means[code], errors[code] = np.mean(values), np.mean(of_patients, axis=0)
    return max(
        abs(means[one] - means[two]) / max(np.sqrt(((errors[one] - errors[two]) ** 2).sum()), 1e-9)
        for one, two in combinations(codes, 2)
    )


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("seed", range(4))
def test_p_is_that_of_plain_loops_over_the_same_exchanges(monkeypatch, key, seed):
    random, images = np.random.default_rng(seed), 40
    cluster = np.unique(random.integers(0, 18, images), return_inverse=True)[1]
    names = tuple(f"patient {place}" for place in range(cluster.max() + 1))
    sample = replace(random_sample(seed, images, findings=2), image_cluster=cluster, clusters=names)
    # Some images have two pairs of a finding, as phrases do.
    sample = sample.with_pairs(np.repeat(np.arange(len(sample.hit)), 1 + random.integers(0, 2, len(sample.hit))))
    # Within a patient they differ, and some are not known or left out.
    codes = [0, 1, 2] if seed % 2 else [0, 2]
    group = random.choice([-1, *codes], images)
    monkeypatch.setattr(module, "EXCHANGES", 60)
    monkeypatch.setattr(module, "_AT_A_TIME", images * 25)
    recorder = Recorder(seed)
    p = exchange_p(sample, group, np.array([0, 1]), key, recorder)

    of_patient = [[i for i in np.flatnonzero(cluster == k) if group[i] >= 0] for k in range(len(names))]
    sizes = sorted({*map(len, of_patient)} - {0})
    orders = [np.concatenate(recorder.drawn[place :: len(sizes)]) for place in range(len(sizes))]
    least, far, moves = slow_statistic(sample, group, codes, key), 0, 0
    for exchange in range(60):
        moved = group.copy()
        for size, order in zip(sizes, orders, strict=True):
            alike = [own for own in of_patient if len(own) == size]
            for own, source in zip(alike, order[exchange], strict=True):
                moved[own] = group[alike[source]]
        moves += not np.array_equal(moved, group)
        far += slow_statistic(sample, moved, codes, key) >= least * (1 - 1e-9)
    assert p == (far + 1) / 61
    assert moves > 50 and 0 < far < 60


def drawn(seed, women, skill=(1.0, 1.0), per_patient=1):
    """A sample of 400 images, the first of women, whose findings are rarer than those of men, and the sex of each."""
    random, images = np.random.default_rng(seed), 400
    group = (np.arange(images) >= women).astype(np.int64)
    labels = (random.random((images, 2)) < np.where(group == 0, 0.2, 0.5)[:, None]).astype(np.int8)
    patient = np.arange(images) // per_patient
    logits = random.normal(size=(images, 2)) + random.normal(size=images)[patient, None]
    logits += np.array(skill)[group, None] * labels
    image, column = np.nonzero(labels == 1)
    hit = (random.random(len(image)) < 0.4 * np.array(skill)[group[image]]).astype(np.float64)
    sample = random_sample(seed, images, 2, per_patient=per_patient)
    sample = replace(sample, labels=labels, probabilities=1 / (1 + np.exp(-logits)), pair_image=image)
    return replace(sample, pair_column=column, hit=hit), group


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("per_patient", [1, 2])
def test_equal_groups_differ_in_one_of_twenty_and_a_planted_gap_is_found(monkeypatch, key, per_patient):
    monkeypatch.setattr(module, "EXCHANGES", 199)

    def share(skill) -> float:
        found = []
        for seed in range(100):
            sample, group = drawn(seed, 120, skill, per_patient)
            found.append(exchange_p(sample, group, np.arange(2), key, np.random.default_rng(seed)))
        return float(np.mean(np.array(found) <= 0.05))

    assert share((1.0, 1.0)) <= 0.05 + 0.044
    assert share((2.2, 1.0)) >= 0.8


def test_exchanges_with_the_same_difference_count():
    # Of the six ways to choose two of four, two tell the hits from the misses.
    sample = replace(random_sample(0, 4, 1), image_cluster=np.arange(4), clusters=tuple("abcd"))
    sample = replace(sample, pair_image=np.arange(4), pair_column=np.zeros(4, np.int64), hit=np.array([1.0, 1, 0, 0]))
    p = exchange_p(sample, np.array([0, 0, 1, 1]), np.arange(1), "pointing_game", np.random.default_rng(0))
    assert p == pytest.approx(1 / 3, abs=0.05)


def test_nothing_is_tested_where_no_two_patients_can_be_exchanged():
    sample = replace(random_sample(0, 6), image_cluster=np.array([0, 1, 1, 2, 2, 2]), clusters=("a", "b", "c"))
    for group in ([0, 1, 0, 1, 0, 1], [0, 1, 1, 0, 0, 0]):
        assert exchange_p(sample, np.array(group), np.arange(3), "pointing_game", Recorder(0)) is None


def test_bands_of_age_and_unknown_values():
    ages = {0: 0, 39.9: 0, 40: 1, 64.9: 1, 65: 2, 120: 2}
    assert {age: group_of("age", {"age": age}) for age in ages} == ages
    assert [group_of("sex", {"sex": sex}) for sex in "FM"] == [0, 1]
    assert [group_of("projection", {"projection": name}) for name in ("PA", "AP", "lateral")] == [0, 1, 2]
    assert [group_of(name, {}) for name in module.GROUPS] == [-1, -1, -1]


@pytest.mark.parametrize("unknown", [None, 20, 30])
def test_groups_with_too_few_images_have_no_number(unknown):
    # Two groups of 20 images, with two pairs each; in each group 10 images are positive for both findings.
    labels = np.tile(np.repeat([1, 0], 10), 2)[:, None].repeat(2, axis=1).astype(np.int8)
    image, column = (np.tile(places, 2) for places in np.nonzero(labels == 1))
    sample = replace(random_sample(0, 40, 2), labels=labels, probabilities=labels / 2, pair_image=image)
    sample = replace(sample, pair_column=column, hit=np.zeros(80)).with_pairs(np.zeros(0, np.int64))
    own, group = measure(sample, 5), np.repeat([0, 1], 20)
    if unknown is not None:
        labels[unknown, 1] = -1
    codes, findings = comparable(own, group, 3, "auroc")
    assert (codes, findings.tolist()) == ([0, 1], [True, unknown is None])
    for pairs, expected in ((29, []), (30, [0, 1])):
        kept = np.concatenate([np.flatnonzero(image < 20), np.flatnonzero(image >= 20)[:pairs]])
        few = replace(
            own,
            sample=replace(sample, pair_image=image[kept], pair_column=column[kept]),
            point={"pointing_game": np.zeros(2)},
        )
        assert comparable(few, group, 3, "pointing_game")[0] == expected


def test_a_report_has_each_group_and_its_gap(tmp_path):
    folder = write_run(tmp_path, "kad", images=150)
    rows = pq.read_table(folder / PAIRS).to_pylist()
    # By patient, who has two images each; the age of some is not known.
    about = [{"sex": "FM"[image // 2 % 2], "age": (30, 40, 65)[image // 2 % 3]} for image in range(150)]
    about[:20] = [{"sex": one["sex"]} for one in about[:20]]
    tables = with_attributes({IMAGES: pq.read_table(folder / IMAGES)}, about)
    pq.write_table(tables[IMAGES], folder / IMAGES)
    analysis = analyze(collect([tmp_path]))
    groups = analysis.datasets[0].subgroups
    sex, age = ([one for one in groups if one.attribute == name] for name in ("sex", "age"))
    bands = [(one.name, one.images, one.patients) for one in age[:4]]
    assert bands == [("under 40", 42, 21), ("40 to 64", 44, 22), ("65 and over", 44, 22), ("not known", 20, 10)]
    assert {estimate.value for estimate in age[3].scores.values()} == {None}
    for place, group in enumerate(sex[:2]):
        mine = [row for row in rows if row["index"] // 2 % 2 == place]
        scored = [row for row in mine if row["scored"]]
        assert (group.name, group.images, group.patients) == ("FM"[place], 76 - 2 * place, 38 - place)
        assert group.positives == sum(row["label"] == 1 for row in mine) > group.scored == len(scored)
        hits = [np.mean([row["pointing_hit"] for row in scored if row["finding"] == name]) for name in FINDINGS]
        assert group.scores["pointing_game"].value == pytest.approx(np.mean(hits))
        areas = []
        for name in FINDINGS:
            known = [row for row in mine if row["finding"] == name and row["label"] >= 0]
            present = np.array([row["label"] == 1 for row in known])
            areas.append(placements(present, np.array([row["probability"] for row in known])).mean())
        assert group.scores["auroc"].value == pytest.approx(np.mean(areas))
    gaps = [one for one in groups if one.images is None]
    assert len(gaps) == 4 and sex[2:] == gaps[:2]
    assert gaps[0].name in [f"{one} minus {other} ({len(FINDINGS)} findings)" for one, other in ("FM", "MF")]
    # From the intervals of both (MOVER); of three bands, two can be picked in three ways.
    wider = norm.ppf(1 - 0.05 / 6) / norm.ppf(0.975)
    for compared, gap, errors in ((sex[:2], gaps[0], 1.0), (age[:3], gaps[2], wider)):
        low, *_, high = sorted((one.scores["auroc"] for one in compared), key=lambda one: one.value)
        below = errors * np.hypot(high.value - high.low, low.high - low.value)
        above = errors * np.hypot(high.high - high.value, low.value - low.low)
        difference = high.value - low.value
        assert astuple(gap.scores["auroc"]) == pytest.approx((difference, difference - below, difference + above))
    assert [one.p_adjusted for one in gaps] == holm([one.p for one in gaps])
    (table,) = (table for table in all_tables(analysis) if table.name == "subgroups_chestxray14")
    assert [row.kind for row in table.rows].count("difference") == 4
    # Without the file, nothing is known, and the report is as it was.
    (folder / IMAGES).unlink()
    assert analyze(collect([tmp_path])).datasets[0].subgroups == ()
