from __future__ import annotations

import json
from dataclasses import replace

from synthetic import FINDINGS, write_run

from xbench.report.runs import collect
from xbench.report.schema import Correlation, Estimate
from xbench.report.sentences import dataset_in_words, headlines
from xbench.report.statistics.analyse import analyse
from xbench.report.tables.table import Column, rows_of_models, scores_of


def said(analysis, *words):
    found = [text for text in headlines(analysis) if all(word in text for word in words)]
    assert len(found) == 1, (words, headlines(analysis))
    return found[0].replace("\u00a0", " ")


def with_dataset(analysis, **changes):
    """The analysis of its first dataset alone, with changes."""
    return replace(analysis, datasets=(replace(analysis.datasets[0], **changes),))


def test_the_best_model_is_named_with_its_score_and_ties(three_analysed):
    runs = three_analysed.datasets[0].runs
    best, second = (run.run.label for run in runs[:2])
    results = json.loads((runs[0].run.folder / "results.json").read_text())
    for tied, words in (
        ({best, second}, f"Not significantly different (paired test): {second}."),
        ({best}, "Every other model is significantly different"),
    ):
        changed = with_dataset(three_analysed, tied_with_best={"pointing_game": frozenset(tied)})
        text = said(changed, f"On ChestX-ray14, {best} has the highest pointing game")
        assert words in text and f"{100 * results['grounding']['macro']['pointing_game']:.1f}%" in text


def test_a_run_that_was_never_tested_is_not_called_worse(three_analysed):
    dataset = three_analysed.datasets[0]
    best, second, third = (run.run.label for run in dataset.runs)
    alone = {"pointing_game": frozenset({best})}
    left = tuple(entry for entry in dataset.comparisons if {entry.first, entry.second} != {best, third})
    text = said(with_dataset(three_analysed, tied_with_best=alone, comparisons=left), "highest pointing game")
    assert "Every other model that could be tested is significantly different" in text
    assert f"No test was possible against {third}, so this is no ranking" in text
    none = replace(dataset, tied_with_best=alone, comparisons=())
    text = said(replace(three_analysed, datasets=(none,)), "highest pointing game")
    assert "paired test" not in text
    assert f"No test was possible against {' and '.join(sorted((second, third)))}, so" in text
    assert not any("significantly" in text for text in dataset_in_words(none))
    assert dataset.ranked("dice_best") and dataset.ranked("f1")
    assert not none.ranked("dice_best") and not none.ranked("f1")
    for ranked, of in ((True, dataset), (False, none)):
        scores = scores_of(of, "dice_best", Column("Dice"))
        cells = [cell for row in rows_of_models([best, second, third], [scores]) for cell in row.cells]
        assert any(cell.mark for cell in cells) == ranked, "what was scored on other ground is not ranked"


def test_lesions_recognised_without_looking(three_analysed):
    text = said(three_analysed, "still points more than")
    runs = three_analysed.datasets[0].runs
    for run in (runs[0], runs[-1]):
        counts = {
            key: sum(getattr(part, key) * part.count for part in run.quadrants.values())
            for key in ("elsewhere", "near_miss", "both")
        }
        assert f"{100 * counts['elsewhere'] / sum(counts.values()):.1f}% ({run.run.label})" in text


def test_means_over_runs(three_analysed):
    runs = three_analysed.datasets[0].runs
    gap = sum(run.macro["dice_gap"].value for run in runs) / len(runs)
    optimism = sum(run.macro["dice_optimism"].value for run in runs) / len(runs)
    text = said(three_analysed, "Threshold 0.5 costs")
    assert f"{100 * gap:.1f} percentage points" in text and f"overstates Dice by {100 * optimism:.1f}" in text
    small = sum(run.areas[0].scores["pointing_game"].value for run in runs) / len(runs)
    assert f"{100 * small:.1f}% on the smallest" in said(three_analysed, "smallest lesions")


def test_correlations(three_analysed):
    line = Correlation("models", None, (("A", 0.5, 0.5),) * 7, 1.0, 0.0, 0.62, 0.0004, 7)
    falling = Correlation("findings", None, (("A", 0.5, 0.5),) * 90, -1.0, 0.0, 0.11, None, 7, False)
    text = said(replace(three_analysed, correlations=(line, falling)), "AUROC")
    assert "62.0% of the variation in pointing game (7 models" in text and "p < 0.001" in text
    assert "11.0% (90 pairs of model and finding, of 7 models, not independent, falling as AUROC rises)" in text
    few = replace(falling, models=2)
    assert "pairs" not in said(replace(three_analysed, correlations=(line, few)), "AUROC")
    assert not [text for text in headlines(replace(three_analysed, correlations=())) if "AUROC" in text]


def test_floors_are_named(tmp_path):
    write_run(tmp_path, "clip", skill=0.0, images=40)
    write_run(tmp_path, "centre", skill=1.0, images=40)
    analysis = analyse(collect([tmp_path]))
    text = said(analysis, "ignores the image")
    run = analysis.datasets[0].runs[0]
    floors = [reference for reference in analysis.datasets[0].references if reference.kind == "floor"]
    assert len(floors) > 1
    for finding in FINDINGS:
        highest = max(floor.findings[finding]["pointing_game"].value for floor in floors)
        assert (finding in text) == (run.findings[finding]["pointing_game"].value <= highest)
    assert "CLIP on ChestX-ray14 for" in text
    whole = next(floor for floor in floors if floor.title == "Whole image")
    same = replace(run, macro={**run.macro, "dice_best": Estimate(whole.macro["dice_best"].value)})
    assert "CLIP on ChestX-ray14" in said(with_dataset(analysis, runs=(same,)), "marking the whole image")


def test_many_datasets_are_counted(three_analysed):
    many = replace(three_analysed, datasets=three_analysed.datasets * 5)
    assert "CARZero on 5 of 5 datasets" in said(many, "Highest pointing game")
    assert headlines(replace(three_analysed, datasets=(), correlations=())) == ()


def test_the_words_are_the_numbers(three_analysed):
    (dataset,) = three_analysed.datasets
    said = dataset_in_words(dataset)
    macro = {entry.run.label: {key: e.value for key, e in entry.macro.items()} for entry in dataset.runs}
    said = [text.replace("\u00a0", " ") for text in said]
    for sentence, key in zip(said[:3], ("pointing_game", "dice_cross_fitted", "auroc"), strict=True):
        best = max(macro, key=lambda label: macro[label][key])
        assert f": {best} with {100 * macro[best][key]:.2f}%" in sentence
        tied = dataset.tied_with_best[key] - {best}
        assert ("Not significantly" in sentence) == bool(tied)
        assert all(label in sentence for label in tied)
    worst = max(macro, key=lambda label: macro[label]["dice_gap"])
    assert f"costs {worst} {100 * macro[worst]['dice_gap']:.2f} points" in said[3]
    flattered = max(macro, key=lambda label: macro[label]["dice_optimism"])
    mean = sum(numbers["dice_optimism"] for numbers in macro.values()) / 3
    assert f"by {100 * mean:.2f} points" in said[4]
    assert f"{flattered} ({100 * macro[flattered]['dice_optimism']:.2f})" in said[4]
    shares = [
        (shares.elsewhere, finding, entry.run.label)
        for entry in dataset.runs
        for finding, shares in entry.quadrants.items()
        if shares.count >= 10
    ]
    share, finding, label = max(shares)
    assert f"elsewhere: {finding} by {label} ({100 * share:.2f}%" in said[5]
