from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import write_run

from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.methods import checklist, methods


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    root = tmp_path_factory.mktemp("methods")
    write_run(root, "kad", images=30, with_cases=False)
    write_run(root, "mavl", images=30, with_cases=False)
    return analyze(collect([root]))


def changed(analysis, **of_provenance):
    dataset = analysis.datasets[0]
    first, *others = dataset.runs
    provenance = first.run.results.provenance
    data = {**(provenance.get("data") or {}), **of_provenance.pop("data", {})}
    results = replace(first.run.results, provenance={**provenance, **of_provenance, "data": data})
    runs = (replace(first, run=replace(first.run, results=results)), *others)
    return replace(analysis, datasets=(replace(dataset, runs=runs),))


def answers(analysis):
    return {cells[2].text: cells[3].text for cells in (row.cells for row in checklist(analysis).rows)}


def test_the_paragraph_names_models_data_measures_and_tests(analysis):
    text = methods(analysis)
    assert text.startswith("We evaluated MAVL and KAD. No model was trained or tuned during the evaluation.")
    assert "30 images" in text and "AUROC" in text and "pointing game" in text and "5 folds" in text
    assert "Holm-corrected" in text and "No images were excluded." in text
    # Nothing was hidden, nobody was supervised, and no sentence is empty.
    assert "hid the" not in text and "supervised" not in text and ".." not in text.replace("...", "")


def test_a_single_model_was_compared_with_none(analysis):
    alone = replace(analysis.datasets[0], runs=analysis.datasets[0].runs[:1], comparisons=())
    text = methods(replace(analysis, datasets=(alone,)))
    assert "Holm" not in text and "Intervals are 95% confidence intervals." in text
    assert methods(replace(analysis, datasets=())) == ""
    assert not checklist(replace(analysis, datasets=())).rows


def test_interventions_and_subsets_are_said_where_they_were_run(analysis):
    text = methods(changed(analysis, data={"interventions": ["mean", "blur", "prompts"], "pairs": 500}))
    assert "up to 500 pairs of image and finding, equally many per finding" in text and "(fills: mean and blur)" in text
    without = methods(changed(analysis, data={"interventions": ["prompts"]}))
    assert "hid the" not in without
    assert answers(changed(analysis, data={"limit": 12}))["Subsets of the data"] == "The first 12 images."
    assert "Subsets of the data" not in answers(analysis)


def test_a_supervised_model_says_so(analysis):
    model = analysis.datasets[0].runs[0].run.results.provenance.get("model") or {}
    text = methods(changed(analysis, model={**model, "trained_on": ["chestxray14"]}))
    assert "is supervised and was trained on the labels of ChestX-ray14" in text


def test_the_checklist_leaves_out_what_runs_do_not_answer(analysis):
    table = checklist(analysis)
    numbers = [(row.cells[0].text, row.cells[1].text) for row in table.rows]
    assert ("28", "12e") in numbers and ("22", "22") in numbers
    # No reader's agreement, no sex or age, and no intervention.
    assert not {"18", "36", "30"} & {claim for claim, _ in numbers}
    assert all(text and "{" not in text for text in answers(analysis).values())
