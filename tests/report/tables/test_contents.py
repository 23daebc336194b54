from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from run_files import change
from synthetic import write_run

from xbench.findings.published import paper
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables, best_and_worst
from xbench.report.tables.latex import to_latex
from xbench.report.tables.table import MISSING, to_csv, to_markdown

TITLES = {"clip": "CLIP", "kad": "KAD", "carzero": "CARZero"}
GROUNDING = {"pointing_game": "Pointing game", "dice_best": "Dice, best", "iou_best": "IoU, best"}
RECOGNITION = {"auroc": "AUROC", "average_precision": "Average precision", "f1": "F1", "accuracy": "Accuracy"}


@pytest.fixture(scope="module")
def stored(three_runs):
    results = [json.loads(path.read_text()) for path in three_runs.rglob("results.json")]
    return {TITLES[result["model"]]: result for result in results}


@pytest.fixture(scope="module")
def tables(three_analyzed):
    made = {table.name: table for table in all_tables(three_analyzed)}
    assert len(made) == len(all_tables(three_analyzed))
    return made


def expected(name, result):
    grounding, recognition = result["grounding"], result["classification"]
    if name in ("grounding", "classification"):
        titles, of = (GROUNDING, grounding) if name == "grounding" else (RECOGNITION, recognition)
        return {f"ChestX-ray14: {title}": of["macro"][key] for key, title in titles.items()}
    if name == "grounding_honest":
        best, fixed = grounding["macro"]["dice_best"], grounding["macro"]["dice_fixed"]
        return {"Dice: Best": best, "Dice: At 0.5": fixed}
    if name == "calibration_gap_chestxray14":
        return {of: scores["dice_best"] - scores["dice_fixed"] for of, scores in grounding["per_class"].items()}
    findings = {finding: scores["pointing_game"] for finding, scores in grounding["per_class"].items()}
    return {"Mean": grounding["macro"]["pointing_game"], **findings}


def read(table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table))))


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        *((name, 1) for name in ("grounding", "classification")),
        ("grounding_honest", 2),
        *((f"{name}_chestxray14", 1) for name in ("pointing_game", "calibration_gap")),
    ],
)
def test_numbers_are_those_of_results_json(name, labels, tables, stored):
    table = tables[name]
    rows = {row["Model"]: row for row in read(table) if row["kind"] == "model"}
    assert list(rows) == ["CARZero", "KAD", "CLIP"]
    headings = [f"{column.group}: {column.title}" if column.group else column.title for column in table.columns]
    for model, result in stored.items():
        (markdown,) = (line for line in to_markdown(table).splitlines() if f"| {model} |" in line)
        shown = re.sub(r"<br><sub>.*?</sub>|</?u>|\*\*|\u2020", "", markdown).strip("| ").split(" | ")
        latex = next(line for line in to_latex(table).splitlines() if f"{model} & " in line)
        printed = re.findall(r"\d+\.\d\d", latex)
        for heading, value in expected(name, result).items():
            place = headings.index(heading)
            assert float(rows[model][heading]) == value
            assert float(rows[model][f"{heading}, low"]) <= float(rows[model][f"{heading}, high"])
            assert shown[place] == f"{100 * value:.2f}" == printed[place - labels]
    for row in rows.values() if name == "grounding_honest" else ():
        best, fitted, fixed = (float(row[f"Dice: {how}"]) for how in ("Best", "Cross-fitted", "At 0.5"))
        found = [float(row[f"Dice: {name}"]) for name in ("Optimism", "Calibration gap")]
        assert found == pytest.approx([best - fitted, best - fixed], abs=1e-12)


def test_published_numbers_stand_beside_ours(tables, stored):
    for model, title in TITLES.items():
        published = paper()["grounding"]["chestxray14"][model]
        theirs = {f"ChestX-ray14: {heading}": published[key] for key, heading in GROUNDING.items()}
        findings = paper()["pointing_game"]["chestxray14"][model]
        for name, numbers in (("grounding", theirs), ("pointing_game_chestxray14", findings)):
            rows = {row["Model"]: row for row in read(tables[f"published_{name}"])}
            assert list(rows)[:3] == ["CARZero", "CARZero, published", "CARZero, difference"]
            ours = expected(name, stored[title])
            for column in ours.keys() & numbers.keys():
                assert float(rows[title][column]) == ours[column]
                assert float(rows[f"{title}, published"][column]) == numbers[column]
                assert float(rows[f"{title}, difference"][column]) == ours[column] - numbers[column]
    for finding, scores in stored["KAD"]["grounding"]["per_class"].items():
        assert int(rows["Images scored, ours"][finding]) == scores["count"]
    assert rows["Positive images, paper"]["Nodule"] == "79"
    gap = next(row for row in read(tables["published_dice_gap"]) if row["Model"] == "CLIP")
    macro = stored["CLIP"]["grounding"]["macro"]
    assert float(gap["Ours"]) == pytest.approx(macro["dice_best"] - macro["dice_fixed"], abs=1e-12)
    assert float(gap["Published"]) == 0.021
    assert tables["published_correlation"].rows[0].cells[3].text == "0.92"


def test_what_the_paper_lacks_is_there_and_rows_fit_columns(tables, three_analyzed, stored):
    per_dataset = {f"{name}_chestxray14" for name in ("auroc", "comparisons", "quadrants", "by_area", "by_position")}
    assert {"best_and_worst_findings", "correlations"} | per_dataset <= set(tables)
    for table in tables.values():
        assert table.rows and table.title and table.caption
        for row in table.rows:
            assert len(row.cells) == len(table.columns)
            for cell in row.cells:
                assert "nan" not in cell.text.lower().split()
                assert (cell.text == MISSING) <= (cell.value is None)
    for entry in three_analyzed.datasets[0].runs:
        scores = stored[entry.run.label]["grounding"]["per_class"]
        ranked = sorted(scores, key=lambda finding: scores[finding]["pointing_game"])
        assert best_and_worst(entry) == [("best 1", ranked[-1]), ("worst 1", ranked[0])]
        assert not best_and_worst(replace(entry, findings=dict.fromkeys(scores, entry.findings[ranked[0]])))


def test_odd_names_are_escaped_splits_told_apart_and_studies_have_a_column_per_wording(tmp_path):
    """Two splits of a dataset that the paper lacks, prompts that vary, a baseline, and a name full of signs."""
    for split in ("test", "val"):
        for number, source in enumerate((None, "name", "report")):
            settings = {"stamp": f"2026-01-0{number + 1}_00-00-00"} | ({"prompt_source": source} if source else {})
            change(write_run(tmp_path / split, "my_model & co <b>", "a&b_c", images=30, **settings), split=split)
        change(write_run(tmp_path / split, "centre", "a&b_c", skill=0, recognition=0, images=30), split=split)
    odd = {table.name: table for table in all_tables(analyze(collect([tmp_path])))}
    assert {"pointing_game_a_b_c_test", "pointing_game_a_b_c_val"} <= set(odd)
    assert all(re.fullmatch(r"\w+", name) and not name.startswith("published") for name in odd)
    grounding = odd["grounding"]
    assert [column.group for column in grounding.columns[1::3]] == ["a&b_c (test)", "a&b_c (val)"]
    markdown, latex = to_markdown(grounding), to_latex(grounding)
    assert r"my\_model &amp; co &lt;b&gt; (name prompts)" in markdown
    assert r"my\_model \& co \textless{}b\textgreater{} (name" in latex
    assert r"\multicolumn{3}{c}{a\&b\_c (test)}" in latex
    names = [row["Model"] for row in read(grounding)]
    assert "my_model & co <b>" in names and names[-3:] == ["Whole image", "Random", "Center prior"]
    table = odd["studies_prompts"]
    assert [column.title for column in table.columns[4:7]] == ["name", "official", "report"]
    for row in table.rows:
        values = [cell.value for cell in row.cells[4:7]]
        assert row.cells[7].value == pytest.approx(max(values) - min(values))
