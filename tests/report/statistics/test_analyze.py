from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from samples import random_sample
from scipy.stats import linregress
from synthetic import FINDINGS, write_run

from xbench.report.document import write_analysis
from xbench.report.runs import Collection, collect
from xbench.report.schema import NUMBERS, Estimate
from xbench.report.statistics.analyze import analyze
from xbench.report.statistics.lesions import area_bins, quadrants
from xbench.report.statistics.measures import measure
from xbench.report.statistics.sample import Sample
from xbench.report.statistics.studies import studies
from xbench.report.tables.contents import comparisons
from xbench.runs.by_finding import Images
from xbench.runs.results import ConstantMaps, NoteCount, Skipped
from xbench.runtime.notes import CUT_OFF_NOTE, INPUT_NOTE
from xbench.scoring.rows import Rows


@pytest.fixture(scope="module")
def collection(three_runs, tmp_path_factory):
    """The three models, an instrument of each kind, and two datasets of one of the models."""
    root = tmp_path_factory.mktemp("more")
    write_run(root, "centre", skill=0.1, recognition=0.0, with_cases=False)
    write_run(root, "oracle", skill=1.0, recognition=6.0, with_cases=False)
    write_run(root, "kad", dataset="vindr", patients=False, with_cases=False)
    return collect([three_runs, root])


@pytest.fixture(scope="module")
def steps():
    return []


@pytest.fixture(scope="module")
def analysis(collection, steps):
    return analyze(collection, progress=lambda *step: steps.append(step))


def run_of(analysis, label, dataset="chestxray14"):
    (found,) = [d for d in analysis.datasets if d.dataset == dataset]
    return next(run for run in found.runs if run.run.label == label)


def test_values_are_those_of_results_json(analysis):
    compared = 0
    for run in analysis.runs:
        results = run.run.results
        grounding, recognition = results.grounding.per_class, results.classification.per_class
        stored = {finding: vars(grounding[finding]) | vars(recognition[finding]) for finding in FINDINGS}
        for finding, numbers in {**stored, "macro": results.macro}.items():
            ours = run.macro if finding == "macro" else run.findings[finding]
            assert [*ours] == [*NUMBERS]
            for key in ours.keys() & numbers.keys():
                assert ours[key].value == numbers[key], (finding, key)
                compared += 1
        curve = np.mean([grounding[finding].dice_curve for finding in FINDINGS], axis=0)
        assert [estimate.value for estimate in run.dice_curve] == pytest.approx(curve, abs=1e-12)
    assert compared == 4 * 4 * 9


def test_patients_are_clusters_where_all_are_known(analysis, collection):
    assert (run_of(analysis, "KAD").clustered_by, run_of(analysis, "KAD").clusters) == ("patients", 30)
    vindr = run_of(analysis, "KAD", "vindr")
    assert (vindr.clustered_by, vindr.clusters) == ("images", 60)
    run = collection.runs[0]
    partly = SimpleNamespace(**vars(run.images) | {"patient_ids": [None, *run.images.patient_ids[1:]]})
    assert Sample.of(replace(run, images=partly)).clustered_by == "images"


def test_a_phrase_without_a_finding_is_in_no_number(collection):
    run = collection.runs[0]
    finding = run.rows.finding.copy()
    finding[run.rows.counts.row[3]] = -1
    whole, found = (Sample.of(one) for one in (run, replace(run, rows=replace(run.rows, finding=finding))))
    assert len(found.hit) == len(whole.hit) - 1 and found.pair_column.min() == 0


def written(folder, analysis):
    write_analysis(folder / "analysis.json", analysis)
    return (folder / "analysis.json").read_bytes()


def test_neither_the_order_of_rows_and_runs_nor_the_seed_moves_a_number(collection, tmp_path):
    run, other = (run for run in collection.runs if run.label in ("KAD", "CLIP") and run.dataset == "chestxray14")
    order = np.random.default_rng(0).permutation(len(run.images.image_ids))
    place = np.argsort(order)
    arrays = {name: value[order] for name, value in vars(run.images).items() if isinstance(value, np.ndarray)}
    images = SimpleNamespace(
        **arrays | {"index": np.arange(len(order))},
        image_ids=[run.images.image_ids[i] for i in order],
        patient_ids=[run.images.patient_ids[i] for i in order],
    )
    mixed = replace(run, images=images, rows=replace(run.rows, image=place[run.rows.image]))
    shuffled = Collection((other, mixed), ())
    expected = written(tmp_path, analyze(Collection((run, other), ())))
    assert written(tmp_path, analyze(shuffled)) == expected
    # But the p-values, of other exchanges.
    parts = [json.loads(part) for part in (expected, written(tmp_path, analyze(shuffled, seed=1)))]
    assert parts[0]["datasets"][0]["comparisons"] != parts[1]["datasets"][0]["comparisons"]
    for entry in (entry for part in parts for dataset in part["datasets"] for entry in dataset["comparisons"]):
        del entry["p"], entry["p_adjusted"]
    assert parts[0] == parts[1]


def test_json_holds_every_number_and_no_nan(analysis, steps, tmp_path):
    content = json.loads(written(tmp_path, analysis))
    run = content["datasets"][0]["runs"][0]
    assert run["findings"]["Nodule"]["auroc"]["low"] == run_of(analysis, "CARZero").findings["Nodule"]["auroc"].low
    assert content["datasets"][0]["tied_with_best"]["auroc"] == ["CARZero"] and content["folds"] == 5
    broken = replace(analysis, correlations=(replace(analysis.correlations[0], slope=float("nan")),))
    with pytest.raises(ValueError, match="nan"):
        written(tmp_path, broken)
    assert [(done, total) for done, total, _ in steps] == [(place, len(steps) - 1) for place in range(len(steps))]


def test_whole_image_by_plain_loops(analysis):
    dataset = analysis.datasets[0]
    whole, sample = dataset.references[0], Sample.of(dataset.runs[0].run)
    for column, finding in enumerate(FINDINGS):
        area = sample.area[sample.pair_column == column]
        values = 2 * area / (1 + area)
        found, spread = whole.findings[finding], np.std(values) / np.sqrt(len(values))
        for key in ("dice_best", "dice_cross_fitted", "dice_fixed"):
            assert found[key].value == pytest.approx(np.mean(values), abs=1e-12)
            assert 2 * spread < found[key].high - found[key].low < 6 * spread
        labels = dataset.runs[0].run.images.labels[:, column]
        assert found["average_precision"].value == pytest.approx((labels == 1).sum() / (labels >= 0).sum())
        assert found["auroc"].value == 0.5
        # Marking everything is one of the thresholds of every map.
        for other in dataset.runs:
            assert other.findings[finding]["dice_best"].value >= found["dice_best"].value - 1e-12
    assert whole.macro["dice_optimism"].value == 0


def test_reader_agreement_is_a_ceiling_for_overlap_only(collection):
    run = next(run for run in collection.runs if run.label == "KAD")
    draw = np.random.default_rng(0)
    several = run.images.scored & (draw.random(run.images.scored.shape) < 0.7)
    several[:, 0] = False
    dice = np.where(several, draw.uniform(0.5, 0.9, several.shape), np.nan)
    rows = run.rows
    columns = {**rows.columns, "reader_dice": dice.ravel(), "reader_iou": (dice / (2 - dice)).ravel()}
    changed = replace(run, rows=replace(rows, columns=columns))
    found = analyze(Collection((changed,), ())).datasets[0].references[-1]
    assert (found.title, found.kind) == ("Reader agreement", "ceiling")
    assert {*found.macro} == {f"{name}_{how}" for name in ("dice", "iou") for how in ("best", "cross_fitted", "fixed")}
    assert found.findings[FINDINGS[0]]["dice_best"].value is None
    means = [np.nanmean(dice[:, column]) for column in (1, 2)]
    assert found.findings["Nodule"]["dice_fixed"].value == pytest.approx(means[0])
    assert found.macro["dice_cross_fitted"].value == pytest.approx(np.mean(means))


def test_many_pairs_make_ten_even_bins_and_ties_stay_together():
    sample = random_sample(0, images=220)
    count = len(sample.area)

    def bins(area):
        return area_bins(measure(replace(sample, area=area), 5))

    area = np.random.default_rng(0).permutation(count) / count
    even = bins(area)
    assert len(even) == 10 and sum(part.count for part in even) == count
    assert max(part.count for part in even) - min(part.count for part in even) <= 1
    for part in even:
        mine = (area >= part.low) & (area <= part.high)
        assert part.count == mine.sum()
        assert part.scores["pointing_game"].value == pytest.approx(sample.hit[mine].mean())
        assert part.scores["dice_fixed"].value == pytest.approx(sample.dice[mine, 5].mean())
        assert part.whole_image == pytest.approx((2 * area / (1 + area))[mine].mean())
    third = (count + 2) // 3
    two = bins(np.where(np.arange(count) % 3 == 0, 0.2, 0.1))
    assert [part.count for part in two] == [count - third, third]
    # Few pairs make fewer bins, and equal ones a single one.
    assert len(area_bins(measure(random_sample(0, images=30), 5))) in range(2, 5)
    assert [part.count for part in bins(np.full(count, 0.1))] == [count]


def test_positions_are_nine_cells_row_by_row(analysis):
    run = run_of(analysis, "KAD")
    images, (x, y) = run.run.images, map(run.run.rows.matrix, ("region_x", "region_y"))
    assert [(cell.row, cell.column) for cell in run.positions] == [(r, c) for r in range(3) for c in range(3)]
    assert sum(cell.peaks for cell in run.positions) == pytest.approx(1)
    for cell in run.positions:
        hits, peaks = [], []
        for p in map(tuple, np.argwhere(images.scored)):
            if (int(y[p] * 3), int(x[p] * 3)) == (cell.row, cell.column):
                hits.append(images.pointing_hit[p])
            peaks.append((int(images.peak_y[p] * 3), int(images.peak_x[p] * 3)) == (cell.row, cell.column))
        assert cell.count == len(hits)
        assert cell.scores["pointing_game"].value == (pytest.approx(np.mean(hits)) if hits else None)
        assert cell.peaks == pytest.approx(np.mean(peaks))


def test_quadrants_by_plain_loops(analysis):
    run = run_of(analysis, "KAD")
    images = run.run.images
    for column, finding in enumerate(FINDINGS):
        label, score = images.labels[:, column], images.probabilities[:, column]
        best = max(
            sorted(score[label >= 0]),
            key=lambda t: round((score[label == 1] >= t).mean() + (score[label == 0] < t).mean(), 12),
        )
        found = run.quadrants[finding]
        assert found.threshold == best
        counts = Counter()
        for image in np.flatnonzero(images.scored[:, column]):
            grounded = images.pointing_hit[image, column] >= 0.5
            look = "hit" if grounded else "near" if images.peak_distance[image, column] <= 0.05 else "elsewhere"
            counts[bool(score[image] >= best), look] += 1
        assert found.both == counts[True, "hit"] / found.count
        assert found.near_miss == counts[True, "near"] / found.count
        assert found.elsewhere == counts[True, "elsewhere"] / found.count
        assert found.grounded_only == counts[False, "hit"] / found.count
        assert found.neither == (counts[False, "near"] + counts[False, "elsewhere"]) / found.count
    assert sum(found.near_miss for found in run.quadrants.values()) > 0
    assert sum(found.elsewhere for found in run.quadrants.values()) > 0
    sample = Sample.of(run.run)
    no_negative = replace(sample, labels=np.where(sample.labels == 0, -1, sample.labels))
    assert quadrants(no_negative, run.run) == {}


def test_correlation_is_a_line_of_least_squares(analysis):
    by = {(line.scope, line.dataset): line for line in analysis.correlations}
    line = by["models", "chestxray14"]
    assert [label for label, *_ in line.points] == ["CARZero", "CLIP", "KAD"]
    kad = run_of(analysis, "KAD").macro
    assert line.points[2][1:] == (kad["auroc"].value, kad["pointing_game"].value)
    for one in analysis.correlations:
        if one.r_squared is not None:
            fit = linregress(*zip(*(point[1:] for point in one.points), strict=True))
            assert (one.slope, one.intercept, one.r_squared) == (fit.slope, fit.intercept, fit.rvalue**2)
            assert one.p in (None, fit.pvalue)
    assert len(by["findings", "chestxray14"].points) == 9 and len(by["findings", None].points) == 12
    vindr = by["models", "vindr"]
    assert len(vindr.points) == 1 and vindr.slope is None and vindr.p is None
    # Of the three only KAD was run on both datasets.
    pooled = by["models", None]
    macros = [run_of(analysis, "KAD", name).macro for name in ("chestxray14", "vindr")]
    assert [label for label, *_ in pooled.points] == ["KAD"]
    assert pooled.points[0][1] == pytest.approx(np.mean([macro["auroc"].value for macro in macros]))
    assert any("CARZero, CLIP" in note for note in analysis.notes)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    for source, skill, day in ((None, 0.5, 1), ("name.yaml", 0.5, 2), ("long.yaml", 0.95, 3)):
        settings = {"prompt_source": source} if source else {}
        write_run(root, "kad", skill=skill, images=90, stamp=f"2026-01-0{day}_00-00-00", with_cases=False, **settings)
    write_run(root, "kad", skill=0.5, images=90, image_size=448, stamp="2026-01-04_00-00-00", with_cases=False)
    write_run(root, "clip", skill=0.5, images=90, with_cases=False)
    return analyze(collect([root]))


def test_studies_take_runs_that_differ_in_one_setting(study):
    rows = {(row.study, row.number, row.finding): row for row in study.studies}
    assert len(rows) == len(study.studies) == 2 * 2 * 4
    assert {row.model for row in study.studies} == {"KAD"}
    settings = [(run, run.run.settings) for run in study.datasets[0].runs if run.run.model == "kad"]
    runs = {(its["prompts"], its["image_size"]): run for run, its in settings}
    row = rows["prompts", "pointing_game", "macro"]
    assert [*row.values] == ["official", "long", "name"]
    for value, estimate in row.values.items():
        assert estimate == runs[value, "224"].macro["pointing_game"]
    values = [estimate.value for estimate in row.values.values()]
    assert row.spread == pytest.approx(max(values) - min(values))
    assert row.relative == pytest.approx(row.spread / values[0])
    assert [*rows["image_size", "dice_cross_fitted", "Nodule"].values] == ["224", "448"]
    estimate = rows["image_size", "dice_cross_fitted", "Nodule"].values["448"]
    assert estimate == runs["official", "448"].findings["Nodule"]["dice_cross_fitted"]
    # Same skill at another size, other draws; another skill with other prompts.
    assert row.p_adjusted < 0.05 < rows["image_size", "pointing_game", "macro"].p_adjusted
    (line,) = (line for line in study.correlations if line.scope == "models" and line.dataset)
    assert [label for label, *_ in line.points] == ["CLIP", "KAD"]
    assert line.points[1][1] == runs["official", "224"].macro["auroc"].value


def test_studies_correct_for_the_choice_of_extremes_and_for_their_rows(study, monkeypatch):
    monkeypatch.setattr("xbench.report.statistics.studies.paired_test", lambda *_: "a test")
    monkeypatch.setattr("xbench.report.statistics.studies.exchange_tests", lambda *_: [0.001, 0.3, 0.01, 0.02])
    both = SimpleNamespace(sample=SimpleNamespace(clusters="ab"))
    rows = studies(study.runs, lambda *_: (both, both), 0, "x")
    p_values = {
        study: [row.p_adjusted for row in rows if (row.study, row.number) == (study, "pointing_game")]
        for study in ("prompts", "image_size")
    }
    # Three ways to choose two of three wordings, then Holm over the mean and three findings.
    assert p_values["prompts"] == pytest.approx([0.012, 0.9, 0.09, 0.12])
    assert p_values["image_size"] == pytest.approx([0.004, 0.3, 0.03, 0.04])


def fewer(run, images):
    table = pq.read_table(run.folder / "pairs.parquet")
    rows = Rows.of(table.filter(pc.field("index") < images), run.results.findings)
    return replace(run, images=Images(rows), rows=rows)


def test_notes_say_what_makes_runs_hard_to_compare(collection):
    kad, clip = (next(run for run in collection.runs if run.label == label) for label in ("KAD", "CLIP"))
    counts = replace(
        kad.results.counts,
        skipped=[Skipped("image-9999", "The file is torn.")],
        constant_maps=ConstantMaps(2, []),
        notes=[
            NoteCount(f"{INPUT_NOTE}: it is 255 times too large", 8, ["image-0000"]),
            NoteCount(f"{CUT_OFF_NOTE}: it is too long", 3, ["image-0000"]),
            NoteCount("a box is odd", 1, ["image-0000"]),
        ],
    )
    results = replace(kad.results, counts=counts)
    odd = replace(fewer(kad, 50), results=results, settings={**kad.settings, "annotation": "abc", "limit": "50"})
    found = analyze(Collection((clip, odd), ())).datasets[0]
    notes = "\n".join(found.notes)
    for words in (
        "different images: CLIP 60, KAD 50; 50 are common to all",
        "different annotation files",
        "image-9999: The file is torn.",
        "2 constant saliency maps",
        "KAD: what goes into the network looks wrong: it is 255 times too large.",
        "KAD: a phrase was cut off: it is too long (3 images).",
        "limited to the first 50 images",
        "disagrees with the tables beside it",
    ):
        assert words in notes, notes
    assert {(one.number == "auroc", one.images) for one in found.comparisons} == {(True, 50), (False, 34)}


def test_runs_of_one_image_are_reported(collection):
    runs = [fewer(run, 1) for run in collection.runs if run.dataset == "chestxray14" and run.label in ("KAD", "CLIP")]
    found = analyze(Collection(tuple(runs), ()))
    (dataset,) = found.datasets
    assert {"pointing_game", "dice_fixed"} <= {entry.number for entry in dataset.comparisons}
    for entry in dataset.comparisons:
        assert entry.p is entry.p_adjusted is None and "one of the patients only" in entry.untested
    # Who was not tested is no tie.
    assert all(len(tied) == 1 for tied in dataset.tied_with_best.values())
    table = comparisons(dataset)
    assert any("were not tested by Pointing game: they share one of the patients only" in note for note in table.notes)


def test_a_run_without_any_region_still_has_recognition(collection, tmp_path):
    run = next(run for run in collection.runs if run.label == "KAD")
    nowhere = np.full(run.images.labels.shape, np.nan)
    nothing = {"scored": np.zeros_like(run.images.scored), "pointing_hit": nowhere}
    images = SimpleNamespace(**vars(run.images) | nothing)
    bare = replace(fewer(run, 0), images=images)
    found = analyze(Collection((bare, replace(bare, label="again")), ()))
    (dataset,), (first, _) = found.datasets, found.runs
    assert first.macro["pointing_game"] == first.macro["dice_optimism"] == Estimate(None)
    assert first.macro["auroc"].low < first.macro["auroc"].value
    assert first.areas == first.positions == ()
    assert [(comparison.number, comparison.p) for comparison in dataset.comparisons] == [("auroc", 1.0)]
    assert b"NaN" not in written(tmp_path, found)
