from __future__ import annotations

import csv
import io
import shutil
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from intervened import falls, intervene
from run_files import rows_of
from scipy.stats import binomtest, spearmanr
from scipy.stats import t as student
from synthetic import FINDINGS, write_run

from xbench.findings.names import MACRO
from xbench.geometry.grid import maps_on_grid
from xbench.report.runs import collect
from xbench.report.schema import Estimate
from xbench.report.statistics import intervals
from xbench.report.statistics.analyze import analyze
from xbench.report.statistics.interventions import (
    SMALL,
    UNSTABLE,
    _estimates,
    contributions,
    dependence,
    mcnemar,
    overlap,
)
from xbench.report.statistics.paired import exchange_tests, weighed
from xbench.report.tables.contents import all_tables
from xbench.report.tables.table import to_csv
from xbench.scoring.interventions import Intervened
from xbench.scoring.interventions import intervened as intervened_pairs
from xbench.scoring.maps import rank_accuracy


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("intervened")
    intervene(write_run(root, "kad", images=200, skill=0.6), falls(1.5, noise=0.6))
    intervene(write_run(root, "clip", images=200), falls(0, noise=0), ("mean", "black"), words=False)
    write_run(root, "carzero", images=200)
    return root


@pytest.fixture(scope="module")
def analysis(runs):
    return analyze(collect([runs]))


@pytest.fixture(scope="module")
def found(analysis):
    (dataset,) = analysis.datasets
    return {one.label: one for one in dataset.interventions}


def intervened(values, patients, findings=None):
    """Pairs of one image each, with these values of `use`, of patients, and of one or more findings."""
    names = ("Square", "Disc")[: 1 if findings is None else 2]
    labels = np.ones((len(values), len(names)), np.int8)
    rows = rows_of(labels, names, patient_ids=[f"p{patient}" for patient in patients])
    place = np.zeros(len(values), int) if findings is None else np.asarray(findings)
    row = np.arange(len(values)) * len(names) + place
    nothing = np.full(len(values), np.nan)
    return Intervened(rows, row, nothing, nothing, {"mean": {"use": np.asarray(values, float)}}, {}, None)


def test_the_runs_with_hidden_regions_have_the_numbers_of_the_run(analysis, found):
    assert [*found] == [run.run.label for run in analysis.runs if run.run.label != "CARZero"]
    for run in analysis.runs:
        if run.run.label in found:
            one = found[run.run.label]
            results = run.run.results.interventions
            for fill in one.fills:
                expected = results.all_pairs[fill.fill]
                for finding, numbers in {**expected.per_class, MACRO: expected.macro}.items():
                    for name in ("drop", "control_drop", "use", "flip_rate", "premium", "map_moves"):
                        value = fill.numbers[finding][name]
                        assert value.value == numbers[name] and value.low <= numbers[name] <= value.high
                of_seen = results.correct_only[fill.fill].macro
                assert {name: value.value for name, value in fill.recognized.items()} == of_seen
            for name, value in results.all_pairs["any"].macro.items():
                assert one.numbers[name].value == value
    assert found["KAD"].dependence == "depends" and found["CLIP"].dependence == "unchanged"
    assert all(p == 1 for fill in found["CLIP"].fills for p in fill.p_adjusted.values())
    assert [fill.p_exact for fill in found["CLIP"].fills] == [None] * len(found["CLIP"].fills)


def test_the_interval_of_use_is_students_over_patients():
    """One finding: the variance of the patients' parts. Two: parts of a patient are added up before."""
    random = np.random.default_rng(0)
    values, patients, k = random.normal(0.3, 2, 64), np.arange(64) % 20, 20
    spread = intervals.unbounded(values, patients, k)
    sums = np.array([(values - values.mean())[patients == one].sum() for one in range(k)]) / 64
    error = np.sqrt(k / (k - 1) * (sums**2).sum())
    reach = student.ppf(0.975, k - 1) * error
    assert intervals.combined_unbounded([spread]) == pytest.approx((values.mean() - reach, values.mean() + reach))
    assert intervals.combined_unbounded([spread, spread]) == pytest.approx(
        (values.mean() - reach, values.mean() + reach)
    )
    other = intervals.unbounded(-values, patients, k)
    assert intervals.combined_unbounded([spread, other]) == pytest.approx((0, 0), abs=1e-12)
    assert intervals.combined_unbounded([intervals.unbounded(values, np.zeros(64, int), k)]) is None


def test_exchanging_region_and_patch_patient_by_patient_is_the_sign_flip_of_plain_loops():
    random = np.random.default_rng(1)
    findings = np.arange(72) % 9 < 4  # 32 and 40 pairs
    values, patients = random.normal(0.4, 1, 72), random.integers(0, 9, 72)
    part = contributions(intervened(values, patients, findings.astype(int)), "mean", "use")

    def mean(signs):
        turned = values * np.array(signs)[patients]
        return (turned[findings].mean() + turned[~findings].mean()) / 2

    own, others = mean([1] * 9), [mean(signs) for signs in product((1, -1), repeat=9)]
    assert part.sum() == pytest.approx(own)
    expected = np.mean([abs(other) >= abs(own) - 1e-12 for other in others])
    assert exchange_tests([weighed(part)], 1, 0, "toy") == [expected] and 0 < expected < 1


@pytest.mark.parametrize(("pairs", "patients", "tested"), [(30, 2, True), (29, 2, False), (30, 1, False)])
def test_a_test_needs_thirty_pairs_and_two_patients(pairs, patients, tested):
    assert len(contributions(intervened(np.ones(pairs), np.arange(pairs) % patients), "mean", "use")) == 2 * tested


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_exact(first, second):
    expected = pytest.approx(binomtest(first, first + second).pvalue, rel=1e-9) if first + second else None
    assert mcnemar(first, second) == expected


@given(st.lists(st.tuples(*[st.sampled_from([0, 0.49, 0.5, 1, -1, np.nan])] * 2), max_size=20))
def test_overlap_by_dependence_is_counted(pairs):
    known = [(hit >= 0.5, depends > 0) for hit, depends in pairs if hit == hit and depends == depends]
    counts = overlap(*np.array(pairs, float).reshape(-1, 2).T)
    assert counts == tuple(known.count(kind) for kind in product((True, False), repeat=2))


S, U = SMALL["use"], UNSTABLE["use"][1]


@pytest.mark.parametrize(
    ("kind", "fills", "equal"),
    [
        ("depends", [(0.5, 0.9, 0.05, 0), (0.1, 0.3, 0.01, 0)], False),
        ("fill", [(0.5, 0.9, 0.05, 0), (0.1, 0.3, 0.051, 0)], False),
        ("fill", [(0.5, 0.9, 0.01, 0), (-0.5, -0.1, 0.01, 0)], False),
        ("any hole", [(0.0, 0.9, 1, U + 1e-9)], False),
        ("too few", [(0.0, 0.9, 1, U + 1e-9, U)], False),
        ("no sign", [(-0.5, -0.1, 0.01, U + 0.5, U)], False),
        ("too few", [(0.0, S + 1e-9, 1, U)], False),
        ("no sign", [(0.0, S, 1, U)], False),
        ("no sign", [(-0.5, -0.1, 0.001, 0), (0.0, S, 1, 0)], False),
        ("unchanged", [(0.0, 0.0, 1, 0)], True),
        ("too few", [(0.0, 0.1, 1, 0), (0.0, S + 1e-9, 1, 0)], False),
        ("too few", [(0.0, None, 1, 0)], True),
        ("too few", [], True),
    ],
)
def test_the_judgement_rests_on_all_fills(found, kind, fills, equal):
    """Each of the fills has value, upper end and p of `use`, and the lower end of the control drop, and of the drop."""
    made = tuple(
        SimpleNamespace(
            fill="mean",
            p_adjusted={"use": p},
            mean={
                "use": Estimate(value, None, high),
                "control_drop": Estimate(0.5, low, 1),
                "drop": Estimate(0.5, *(own or [low]), 1),
            },
        )
        for value, high, p, low, *own in fills
    )
    black = SimpleNamespace(fill="black", p_adjusted={"use": 1.0}, mean={"use": Estimate(0.0, 0.0, 9.0)})
    for more in ((), (black,)) if fills else ((),):
        assert dependence(replace(found["KAD"], fills=made + more), equal) == kind


def test_what_follows_from_maps_is_computed_from_the_stored_ones(runs, found):
    (folder,) = runs.glob("kad*/*")
    maps = {}
    for row in pq.read_table(folder / "predictions.parquet").to_pylist():
        if row["map"] is not None:
            cells = np.array(row["map"], np.float32).reshape(row["map_shape"])
            maps.setdefault((row["image_id"], row["query"]), {})[row["condition"]] = cells
    run = next(run for run in collect([runs]).runs if run.label == "KAD")
    regions = {(image, query): region for image, query, region in run.stored.regions()}
    pairs = {key: of for key, of in maps.items() if len(of) > 1}
    correlations, advantages = {}, {}
    for (image, finding), of in pairs.items():
        own, other = of[""], of["prompt: absent"]
        accuracy = [
            rank_accuracy(maps_on_grid(one, (0, 0, 1, 1), (56, 56)), regions[image, finding]) for one in (own, other)
        ]
        advantages.setdefault(finding, []).append(accuracy[0] - accuracy[1])
        for name, condition in (("follows", "hide: blur"), ("specificity", "prompt: absent")):
            value = spearmanr(own.ravel(), of[condition].ravel()).statistic
            correlations.setdefault(name, {}).setdefault(finding, []).append(value)
    one, blur = found["KAD"], found["KAD"].fills[1].numbers

    def mean(of_findings):
        return np.mean([np.mean(of_findings[finding]) for finding in FINDINGS])

    assert blur[MACRO]["follows"].value == pytest.approx(mean(correlations["follows"]), abs=1e-12)
    assert blur["Nodule"]["follows"].value == pytest.approx(np.mean(correlations["follows"]["Nodule"]), abs=1e-12)
    assert blur[MACRO]["control_follows"].value == pytest.approx(1, abs=1e-12)
    assert one.numbers["prompt: absent specificity"].value == pytest.approx(
        mean(correlations["specificity"]), abs=1e-12
    )
    assert one.numbers["prompt: absent advantage"].value == pytest.approx(mean(advantages), abs=1e-12)
    assert not {name for name in found["CLIP"].numbers if name.startswith("prompt")}


def test_intervals_of_correlations_end_at_one_and_those_of_drops_do_not():
    # All but one are 1, so that the mean lies nearer to 1 than the interval reaches.
    values = (np.arange(40) > 0).astype(float)
    pairs = intervened(values, [f"p{number}" for number in range(40)])
    points = {"per_class": {"Square": {}}, "macro": {}}
    of = _estimates(pairs, {"follows": values, "use": values}, points)[MACRO]
    assert of["follows"].high == 1 < of["use"].high


@pytest.mark.parametrize("name", ["predictions.parquet", "images.parquet"])
def test_without_maps_there_is_all_else(runs, found, tmp_path, name):
    folder = shutil.copytree(next(runs.glob("kad*")), tmp_path / "kad") / "2026-01-01_00-00-00"
    for change in (lambda: (folder / name).write_bytes((folder / name).read_bytes()[:-99]), (folder / name).unlink):
        change()
        ((one,),) = (dataset.interventions for dataset in analyze(collect([tmp_path])).datasets)
        for fill, whole in zip(one.fills, found["KAD"].fills, strict=True):
            assert fill.mean == {key: value for key, value in whole.mean.items() if "follows" not in key}
        assert {*one.numbers} == {key for key in found["KAD"].numbers if "prompt" not in key}


def test_counts_and_mcnemar_are_of_the_findings_that_the_means_rest_on(tmp_path):
    intervene(write_run(tmp_path, "kad", images=80, skill=0.6), falls(1.5, noise=0.9), ("mean",))
    analysis = analyze(collect([tmp_path]))
    ((one,),) = (dataset.interventions for dataset in analysis.datasets)
    (fill,), pairs = one.fills, intervened_pairs(analysis.runs[0].run.rows, analysis.runs[0].run.stored.changed)
    own = {name: np.array(pairs.finding) == place for place, name in enumerate(pairs.rows.findings)}
    enough = [of for of in own.values() if of.sum() >= 30]
    assert 0 < len(enough) < len(own)
    assert fill.counts["scored"] == fill.counts["decided"] == np.sum(enough) < len(pairs.row)
    premium = pairs.columns["mean"]["premium"][np.any(enough, axis=0)]
    assert fill.p_exact == mcnemar((premium == 1).sum(), (premium == -1).sum())
    assert fill.p_exact != mcnemar(*((pairs.columns["mean"]["premium"] == sign).sum() for sign in (1, -1)))


def test_tables_have_every_number(analysis, found):
    tables = {table.name: table for table in all_tables(analysis) if table.name.startswith("interventions")}
    assert len(tables) == 3
    rows = [*csv.DictReader(io.StringIO(to_csv(tables["interventions_chestxray14"])))]
    assert len(rows) == 4 * (1 + len(FINDINGS))
    row = next(row for row in rows if (row["Model"], row["Fill"], row["Finding"]) == ("KAD", "blur", "all"))
    blur = found["KAD"].fills[1]
    parts = [one for one in rows if (one["Model"], one["Fill"]) == ("KAD", "blur") and one["Finding"] != "all"]
    assert sum(int(one["Pairs: Scored"]) for one in parts) == int(row["Pairs: Scored"]) == blur.counts["scored"]
    assert float(row["Use"]) == blur.mean["use"].value and float(row["Use, low"]) == blur.mean["use"].low
    assert float(row["Adjusted p: Use"]) == blur.p_adjusted["use"] and float(row["McNemar p: Changed"]) == blur.p_exact
    shown = next(row for row in tables["interventions_chestxray14"].rows if row.cells[0].text == "KAD")
    use = found["KAD"].fills[0].mean["use"]
    assert (shown.cells[5].text, shown.cells[5].interval) == (f"{use.value:.2f}", f"[{use.low:.2f}, {use.high:.2f}]")
    for row in csv.DictReader(io.StringIO(to_csv(tables["interventions_overlap_chestxray14"]))):
        counts = [int(value) for key, value in row.items() if key.endswith(("epends", "oes not"))]
        assert sum(counts) == found[row["Model"]].fills[0].counts["scored"] == 223
