"""What stands in the tables of a report from three synthetic runs, against their results.json read plainly."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from synthetic import FINDINGS, write_run

from xbench.protocol.published import published_grounding, published_pointing_game
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


def expected(stored) -> dict[str, dict[str, dict[str, float]]]:
    """By table, model and column."""
    numbers = {"pointing_game": "Pointing game", "dice_best": "Dice, best", "iou_best": "IoU, best"}
    scores = {"auroc": "AUROC", "average_precision": "Average precision", "f1": "F1", "accuracy": "Accuracy"}

    def macro(result, section, keys):
        return {f"ChestX-ray14: {title}": result[section]["macro"][key] for key, title in keys.items()}

    return {
        "grounding": {model: macro(result, "grounding", numbers) for model, result in stored.items()},
        "classification": {model: macro(result, "classification", scores) for model, result in stored.items()},
        "pointing_game_chestxray14": {
            model: {"Mean": result["grounding"]["macro"]["pointing_game"]}
            | {finding: result["grounding"]["per_class"][finding]["pointing_game"] for finding in FINDINGS}
            for model, result in stored.items()
        },
        "calibration_gap_chestxray14": {
            model: {
                finding: scores["dice_best"] - scores["dice_fixed"]
                for finding, scores in result["grounding"]["per_class"].items()
            }
            for model, result in stored.items()
        },
    }


def markdown_rows(text: str) -> dict[str, list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip(): row[1:] for row in cells[2:]}


def bare(cell: str) -> str:
    return re.sub(r"<br><sub>.*?</sub>|</?u>|\*\*|\u2020", "", cell)


@pytest.mark.parametrize(
    "name", ["grounding", "classification", "pointing_game_chestxray14", "calibration_gap_chestxray14"]
)
def test_numbers_are_those_of_results_json(name, tables, stored):
    table, models = tables[name], expected(stored)[name]
    rows = {row["Model"]: row for row in csv.DictReader(io.StringIO(to_csv(table))) if row["kind"] == "model"}
    assert set(rows) == set(models)
    assert list(rows) == ["CLIP", "KAD", "CARZero"]
    headings = [f"{column.group}: {column.title}" if column.group else column.title for column in table.columns]
    shown = markdown_rows(to_markdown(table))
    latex = to_latex(table)
    for model, numbers in models.items():
        line = next(line for line in latex.splitlines() if line.startswith(f"{model} & "))
        printed = re.findall(r"\d+\.\d\d", re.sub(r"\[.*?\]", "", line))
        for heading, value in numbers.items():
            assert float(rows[model][heading]) == pytest.approx(value, abs=1e-12)
            assert float(rows[model][f"{heading}, low"]) <= float(rows[model][f"{heading}, high"])
            place = headings.index(heading) - 1
            assert bare(shown[model][place]) == f"{100 * value:.2f}" == printed[place]


def test_honest_thresholds_stand_beside_the_best(tables, stored):
    for row in csv.DictReader(io.StringIO(to_csv(tables["grounding_honest"]))):
        if row["kind"] != "model":
            continue
        macro = stored[row["Model"]]["grounding"]["macro"]
        best, fixed = float(row["Dice: Best"]), float(row["Dice: At 0.5"])
        assert (best, fixed) == pytest.approx((macro["dice_best"], macro["dice_fixed"]), abs=1e-12)
        assert float(row["Dice: Optimism"]) == pytest.approx(best - float(row["Dice: Cross-fitted"]), abs=1e-12)
        assert float(row["Dice: Calibration gap"]) == pytest.approx(best - fixed, abs=1e-12)


def test_published_numbers_stand_beside_ours(tables, stored):
    rows = {row["Model"]: row for row in csv.DictReader(io.StringIO(to_csv(tables["published_grounding"])))}
    assert list(rows)[:3] == ["CLIP", "CLIP, published", "CLIP, difference"]
    for model, title in TITLES.items():
        published, macro = published_grounding("chestxray14")[model], stored[title]["grounding"]["macro"]
        for key, heading in (
            ("pointing_game", "Pointing game"),
            ("dice_best", "Dice, best"),
            ("iou_best", "IoU, best"),
        ):
            column, theirs = f"ChestX-ray14: {heading}", getattr(published, key)
            assert float(rows[title][column]) == pytest.approx(macro[key], abs=1e-12)
            assert float(rows[f"{title}, published"][column]) == theirs
            assert float(rows[f"{title}, difference"][column]) == pytest.approx(macro[key] - theirs, abs=1e-12)


def test_published_findings_and_counts_stand_beside_ours(tables, stored):
    table = tables["published_pointing_game_chestxray14"]
    rows = {row["Model"]: row for row in csv.DictReader(io.StringIO(to_csv(table)))}
    published = published_pointing_game("chestxray14")["kad"]
    for finding in FINDINGS:
        ours = stored["KAD"]["grounding"]["per_class"][finding]
        assert float(rows["KAD, published"][finding]) == published.findings[finding]
        difference = ours["pointing_game"] - published.findings[finding]
        assert float(rows["KAD, difference"][finding]) == pytest.approx(difference, abs=1e-12)
        assert int(rows["Images scored, ours"][finding]) == ours["count"]
    assert rows["Positive images, paper"]["Nodule"] == "79"
    gap = next(csv.DictReader(io.StringIO(to_csv(tables["published_dice_gap"]))))
    macro = stored["CLIP"]["grounding"]["macro"]
    assert float(gap["Ours"]) == pytest.approx(macro["dice_best"] - macro["dice_fixed"], abs=1e-12)
    assert float(gap["Published"]) == 0.021
    assert tables["published_correlation"].rows[0].cells[3].text == "0.92"


def test_what_the_paper_lacks_is_there_and_rows_fit_columns(tables):
    assert {
        "best_and_worst_findings",
        "comparisons_chestxray14",
        "quadrants_chestxray14",
        "by_area_chestxray14",
        "by_position_chestxray14",
        "correlations",
    } <= set(tables)
    for table in tables.values():
        assert table.rows and table.title and table.caption
        for row in table.rows:
            assert len(row.cells) == len(table.columns)
            for cell in row.cells:
                assert "nan" not in cell.text.lower().split()
                assert (cell.text == MISSING) <= (cell.value is None)


def test_best_and_worst_findings(three_analysed, stored):
    for entry in three_analysed.datasets[0].runs:
        hits = {
            finding: scores["pointing_game"]
            for finding, scores in stored[entry.run.label]["grounding"]["per_class"].items()
        }
        assert best_and_worst(entry) == [
            ("best 1", max(hits, key=lambda finding: hits[finding])),
            ("worst 1", min(hits, key=lambda finding: hits[finding])),
        ]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Two splits of a dataset that the paper lacks, prompts that vary, an instrument, and a name full of signs."""
    root = tmp_path_factory.mktemp("odd")
    for split in ("test", "val"):
        for number, source in enumerate((None, "name", "report")):
            settings = {} if source is None else {"prompt_source": source}
            folder = write_run(
                root / split,
                "my_model & co <b>",
                "a&b_c",
                stamp=f"2026-01-0{number + 1}_00-00-00",
                images=30,
                **settings,
            )
            _move_to(folder, split)
        _move_to(write_run(root / split, "centre", "a&b_c", skill=0, recognition=0, images=30), split)
    return {table.name: table for table in all_tables(analyse(collect([root])))}


def _move_to(folder: Path, split: str) -> None:
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"split": split}))


def test_odd_names_are_escaped_and_splits_told_apart(odd):
    assert {"pointing_game_a_b_c_test", "pointing_game_a_b_c_val"} <= set(odd)
    assert not [name for name in odd if name.startswith("published")]
    assert all(re.fullmatch(r"\w+", name) for name in odd)
    grounding = odd["grounding"]
    assert [column.group for column in grounding.columns[1::3]] == ["a&b_c (test)", "a&b_c (val)"]
    markdown, latex = to_markdown(grounding), to_latex(grounding)
    assert r"my\_model &amp; co &lt;b&gt; (prompts name)" in markdown
    assert r"my\_model \& co \textless{}b\textgreater{} (prompts name) &" in latex
    assert r"\multicolumn{3}{c}{a\&b\_c (test)}" in latex
    names = [row["Model"] for row in csv.DictReader(io.StringIO(to_csv(grounding)))]
    assert names[-3:] == ["Whole image", "Random", "Centre prior"]
    assert "my_model & co <b> (prompts official)" in names


def test_studies_have_a_column_per_wording(odd):
    table = odd["studies_prompts"]
    assert [column.title for column in table.columns[4:7]] == ["name", "official", "report"]
    for row in table.rows:
        values = [cell.value for cell in row.cells[4:7]]
        assert row.cells[7].value == pytest.approx(max(values) - min(values))
