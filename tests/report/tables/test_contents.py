"""What stands in the tables of a report from three synthetic runs, against their results.json read plainly."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from run_files import change
from synthetic import write_run

from xbench.findings.published import paper
from xbench.report.runs import collect
from xbench.report.statistics.analyse import analyse
from xbench.report.tables.contents import all_tables, best_and_worst
from xbench.report.tables.latex import to_latex
from xbench.report.tables.table import MISSING, to_csv, to_markdown

TITLES = {"clip": "CLIP", "kad": "KAD", "carzero": "CARZero"}


@pytest.fixture(scope="module")
def stored(three_runs: Path) -> dict[str, dict]:
    results = [json.loads(path.read_text()) for path in three_runs.rglob("results.json")]
    return {TITLES[result["model"]]: result for result in results}


@pytest.fixture(scope="module")
def tables(three_analysed):
    made = {table.name: table for table in all_tables(three_analysed)}
    assert len(made) == len(all_tables(three_analysed))
    return made


GROUNDING = {"pointing_game": "Pointing game", "dice_best": "Dice, best", "iou_best": "IoU, best"}
RECOGNITION = {"auroc": "AUROC", "average_precision": "Average precision", "f1": "F1", "accuracy": "Accuracy"}
EXPECTED = {
    "grounding": lambda grounding, _: {
        f"ChestX-ray14: {title}": grounding["macro"][key] for key, title in GROUNDING.items()
    },
    "classification": lambda _, recognition: {
        f"ChestX-ray14: {title}": recognition["macro"][key] for key, title in RECOGNITION.items()
    },
    "pointing_game_chestxray14": lambda grounding, _: {
        "Mean": grounding["macro"]["pointing_game"],
        **{finding: scores["pointing_game"] for finding, scores in grounding["per_class"].items()},
    },
    "calibration_gap_chestxray14": lambda grounding, _: {
        finding: scores["dice_best"] - scores["dice_fixed"] for finding, scores in grounding["per_class"].items()
    },
}
"""By table and column the numbers of a model, from the two halves of its results."""


def read(table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table))))


def markdown_rows(text: str) -> dict[str, list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip(): row[1:] for row in cells[2:]}


def bare(cell: str) -> str:
    return re.sub(r"<br><sub>.*?</sub>|</?u>|\*\*|\u2020", "", cell)


@pytest.mark.parametrize("name", EXPECTED)
def test_numbers_are_those_of_results_json(name, tables, stored):
    table = tables[name]
    rows = {row["Model"]: row for row in read(table) if row["kind"] == "model"}
    assert list(rows) == ["CARZero", "KAD", "CLIP"]
    headings = [f"{column.group}: {column.title}" if column.group else column.title for column in table.columns]
    shown = markdown_rows(to_markdown(table))
    latex = to_latex(table)
    for model, result in stored.items():
        line = next(line for line in latex.splitlines() if line.startswith(f"{model} & "))
        printed = re.findall(r"\d+\.\d\d", re.sub(r"\[.*?\]", "", line))
        for heading, value in EXPECTED[name](result["grounding"], result["classification"]).items():
            assert float(rows[model][heading]) == pytest.approx(value, abs=1e-12)
            assert float(rows[model][f"{heading}, low"]) <= float(rows[model][f"{heading}, high"])
            place = headings.index(heading) - 1
            assert bare(shown[model][place]) == f"{100 * value:.2f}" == printed[place]


def test_honest_thresholds_stand_beside_the_best(tables, stored):
    for row in (row for row in read(tables["grounding_honest"]) if row["kind"] == "model"):
        macro = stored[row["Model"]]["grounding"]["macro"]
        best, fixed = float(row["Dice: Best"]), float(row["Dice: At 0.5"])
        assert (best, fixed) == pytest.approx((macro["dice_best"], macro["dice_fixed"]), abs=1e-12)
        assert float(row["Dice: Optimism"]) == pytest.approx(best - float(row["Dice: Cross-fitted"]), abs=1e-12)
        assert float(row["Dice: Calibration gap"]) == pytest.approx(best - fixed, abs=1e-12)


def test_published_numbers_stand_beside_ours(tables, stored):
    beside = {"grounding": {}, "pointing_game_chestxray14": {}}
    for model, title in TITLES.items():
        grounding, published = stored[title]["grounding"], paper()["grounding"]["chestxray14"][model]
        beside["grounding"][title] = {
            f"ChestX-ray14: {heading}": (grounding["macro"][key], published[key]) for key, heading in GROUNDING.items()
        }
        beside["pointing_game_chestxray14"][title] = {
            finding: (of["pointing_game"], paper()["pointing_game"]["chestxray14"][model][finding])
            for finding, of in grounding["per_class"].items()
        }
    for name, models in beside.items():
        rows = {row["Model"]: row for row in read(tables[f"published_{name}"])}
        assert list(rows)[:3] == ["CARZero", "CARZero, published", "CARZero, difference"]
        for title, numbers in models.items():
            for column, (ours, theirs) in numbers.items():
                assert float(rows[title][column]) == ours
                assert float(rows[f"{title}, published"][column]) == theirs
                assert float(rows[f"{title}, difference"][column]) == ours - theirs
    for finding, scores in stored["KAD"]["grounding"]["per_class"].items():
        assert int(rows["Images scored, ours"][finding]) == scores["count"]
    assert rows["Positive images, paper"]["Nodule"] == "79"
    gap = next(row for row in read(tables["published_dice_gap"]) if row["Model"] == "CLIP")
    macro = stored["CLIP"]["grounding"]["macro"]
    assert float(gap["Ours"]) == pytest.approx(macro["dice_best"] - macro["dice_fixed"], abs=1e-12)
    assert float(gap["Published"]) == 0.021
    assert tables["published_correlation"].rows[0].cells[3].text == "0.92"


def test_what_the_paper_lacks_is_there_and_rows_fit_columns(tables):
    per_dataset = {f"{name}_chestxray14" for name in ("comparisons", "quadrants", "by_area", "by_position")}
    assert {"best_and_worst_findings", "correlations"} | per_dataset <= set(tables)
    for table in tables.values():
        assert table.rows and table.title and table.caption
        for row in table.rows:
            assert len(row.cells) == len(table.columns)
            for cell in row.cells:
                assert "nan" not in cell.text.lower().split()
                assert (cell.text == MISSING) <= (cell.value is None)


def test_best_and_worst_findings(three_analysed, stored):
    for entry in three_analysed.datasets[0].runs:
        scores = stored[entry.run.label]["grounding"]["per_class"]
        ranked = sorted(scores, key=lambda finding: scores[finding]["pointing_game"])
        assert best_and_worst(entry) == [("best 1", ranked[-1]), ("worst 1", ranked[0])]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Two splits of a dataset that the paper lacks, prompts that vary, an instrument, and a name full of signs."""
    root = tmp_path_factory.mktemp("odd")
    for split in ("test", "val"):
        for number, source in enumerate((None, "name", "report")):
            settings = {"stamp": f"2026-01-0{number + 1}_00-00-00"} | ({"prompt_source": source} if source else {})
            change(write_run(root / split, "my_model & co <b>", "a&b_c", images=30, **settings), split=split)
        change(write_run(root / split, "centre", "a&b_c", skill=0, recognition=0, images=30), split=split)
    return {table.name: table for table in all_tables(analyse(collect([root])))}


def test_odd_names_are_escaped_and_splits_told_apart(odd):
    assert {"pointing_game_a_b_c_test", "pointing_game_a_b_c_val"} <= set(odd)
    assert not [name for name in odd if name.startswith("published")]
    assert all(re.fullmatch(r"\w+", name) for name in odd)
    grounding = odd["grounding"]
    assert [column.group for column in grounding.columns[1::3]] == ["a&b_c (test)", "a&b_c (val)"]
    markdown, latex = to_markdown(grounding), to_latex(grounding)
    assert r"my\_model &amp; co &lt;b&gt; (name prompts)" in markdown
    assert r"my\_model \& co \textless{}b\textgreater{} (name" in latex
    assert r"\multicolumn{3}{c}{a\&b\_c (test)}" in latex
    names = [row["Model"] for row in read(grounding)]
    assert names[-3:] == ["Whole image", "Random", "Centre prior"]
    assert "my_model & co <b>" in names


def test_studies_have_a_column_per_wording(odd):
    table = odd["studies_prompts"]
    assert [column.title for column in table.columns[4:7]] == ["name", "official", "report"]
    for row in table.rows:
        values = [cell.value for cell in row.cells[4:7]]
        assert row.cells[7].value == pytest.approx(max(values) - min(values))
