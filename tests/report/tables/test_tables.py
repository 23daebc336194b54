from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from xbench.report.schema import Estimate
from xbench.report.tables.latex import to_latex
from xbench.report.tables.table import (
    MISSING,
    TIED,
    Cell,
    Column,
    Row,
    Table,
    cells_of,
    each_note_once,
    marks,
    number,
    p_value,
    row,
    rows_of_models,
    to_csv,
    to_markdown,
)

ODD = "my_model & co <b> | 50 % #1 {x} ~^\\ *[2]*"


def table(rows: int = 2, columns: int = 3, group: str = "RSNA & co") -> Table:
    cells = [
        [Cell(f"{k}.{c:02d}", (k + c / 100) / 100, k / 100, (k + 1) / 100, None, c == 1) for c in range(columns)]
        for k in range(rows)
    ]
    return Table(
        "made_up",
        "A title with 100 % & more",
        "A caption_with <odd> signs.",
        (Column("Model", numeric=False), *(Column(f"Number {c}", group) for c in range(columns))),
        tuple(Row((Cell(f"{ODD} {k}"), *row), "model" if k else "floor") for k, row in enumerate(cells)),
        ("A note.",),
    )


def tabulars(latex: str) -> list[tuple[str, str]]:
    found = re.findall(r"\\begin\{tabular\}\{((?:[lr]|p\{[^}]*\})+)\}(.*?)\\end\{tabular\}", latex, re.DOTALL)
    return [(re.sub(r"\{.*?\}", "", columns), body) for columns, body in found]


def test_cells():
    assert number(Estimate(0.5, 0.4, 0.6)) == Cell("50.00", 0.5, 0.4, 0.6)
    assert number(Estimate(None)) == number(None) == p_value(None) == Cell(MISSING)
    estimate = Estimate(0.5, 0.4, 0.6)
    cells = Cell("0", 0), Cell("CLIP"), Cell("25.00", 0.25), number(estimate), Cell(MISSING), Cell("x", 1)
    assert row(0, "CLIP", 0.25, estimate, None, Cell("x", 1), kind="floor") == Row(cells, "floor")
    assert (p_value(0.00009).text, p_value(0.01234).text) == ("<0.0001", "0.0123")
    assert (Cell("50.00", 0.5, 0.4, 0.6).interval, Cell("50.00", 0.5, 0.4).interval) == ("[40.00, 60.00]", "")


def test_csv_holds_full_precision_and_intervals_in_columns_of_their_own():
    value = 1 / 3
    columns = (Column("Model", numeric=False), Column("Dice", "RSNA"), Column("Images"))
    rows = (
        Row((Cell('a "b", c'), Cell("33.33", value, value / 2, value * 2), Cell("7", 7))),
        Row((Cell(ODD), Cell(MISSING), Cell(MISSING)), "floor"),
    )
    assert list(csv.reader(io.StringIO(to_csv(Table("t", "T", "", columns, rows))))) == [
        ["kind", "Model", "RSNA: Dice", "RSNA: Dice, low", "RSNA: Dice, high", "Images"],
        ["model", 'a "b", c', repr(value), repr(value / 2), repr(value * 2), "7"],
        ["floor", ODD, "", "", "", ""],
    ]


def test_markdown_and_latex_mark_and_escape():
    cells = (
        Cell(ODD),
        Cell("-1.00", -0.01, -0.02, 0.02, "best"),
        Cell("2.00", 0.02, mark="second", tied=True),
        Cell(MISSING),
    )
    columns = (Column("Model", numeric=False), Column("A", "G"), Column("B", "G"), Column("C"))
    made = Table("t_1", "T_1", "At 50 %", columns, (Row(cells), Row(cells, "floor")), ("Note <1>.",))
    line = (
        r"| my\_model &amp; co &lt;b&gt; \| 50 % #1 {x} ~^\\ \*\[2\]\* | **-1.00**<br><sub>[-2.00, 2.00]</sub> "
        rf"| <u>2.00</u>{TIED} | {MISSING} |"
    )
    assert to_markdown(made).splitlines() == [
        r"**T\_1.** At 50 %",
        "",
        "| Model | G<br>A | G<br>B | C |",
        "| :--- | ---: | ---: | ---: |",
        *(line, line, "", "- Note &lt;1&gt;."),
    ]
    latex = to_latex(made)
    assert r"\caption{\textbf{T\_1.} At 50~\% Note \textless{}1\textgreater{}.}" in latex
    assert r"\label{tab:t_1}" in latex
    assert r" & \multicolumn{2}{c}{G} & " in latex and r"\cmidrule(lr){2-3}" in latex
    name = r"my\_model \& co \textless{}b\textgreater{} \textbar{} 50~\% \#1 \{x\} \textasciitilde{}"
    name += r"\textasciicircum{}\textbackslash{} *[2]*"
    values = rf"{name} & \textbf{{$-$1.00}} & \underline{{2.00}}\textsuperscript{{\textdagger}} & -- \\"
    lines = latex.splitlines()
    # The interval is below its value and has one decimal.
    below = {lines[place + 1] for place, line in enumerate(lines) if line == values}
    assert lines.count(values) == 2 and below == {r" & [$-$2.0, 2.0] &  &  \\"}
    # A rule between models and floors.
    assert re.search(r"\n\\midrule\nmy\\_model", latex.split("bottomrule")[0].split("toprule")[1])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (14, 22), (120, 3), (47, 21)])
def test_latex_shows_every_number_and_interval_once_whatever_the_size(rows, columns):
    made = table(rows, columns, group="")
    latex = to_latex(made)
    begun, ended = re.findall(r"\\begin\{(\w+\*?)\}", latex), re.findall(r"\\end\{(\w+\*?)\}", latex)
    assert sorted(begun) == sorted(ended)
    plain = re.sub(r"\\[{}\\]", "", latex)
    assert plain.count("{") == plain.count("}")
    for specification, body in tabulars(latex):
        for line in (line for line in body.splitlines() if line.endswith(r"\\")):
            spans = [int(width) for width in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            cells = len(re.findall(r"(?<!\\)&", line)) + 1
            assert cells - len(spans) + sum(spans) == len(specification), line
        # Nothing is taller than a page, and no column without its label.
        assert body.count("\\\\\n") < 60 and specification[0] in ("l", "p")
    intervals = re.findall(r"\[(\d+)\.0, (\d+)\.0\]", latex)
    assert len(intervals) == rows * columns
    assert all(int(high) == int(low) + 1 for low, high in intervals)
    without = [re.sub(r"\[\d+\.0, \d+\.0\]", "", body) for _, body in tabulars(latex)]
    found = [cell for body in without for cell in re.findall(r"\b\d+\.\d\d\b", body)]
    assert sorted(found) == sorted(row.cells[1 + c].text for row in made.rows for c in range(columns))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not here")
def test_latex_compiles(tmp_path):
    made = [table(3, 4), table(14, 22), table(60, 3), table(2, 1, "")]
    body = "\n".join(to_latex(one) for one in made)
    head = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\n"
    (tmp_path / "all.tex").write_text(f"{head}{body}\\end{{document}}\n")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True)
    log = run.stdout.decode(errors="replace")
    assert run.returncode == 0 and "Overfull" not in log, log[-2000:]


def marked(key: str = "auroc", ranked: bool = True, tied: str = "", **values: float | None) -> list[Row]:
    """Rows of a table with one number per run; runs named in `tied` are tied with the best."""
    numbers = {label: lambda *_, v=v: Estimate(v) for label, v in values.items()}
    runs = [SimpleNamespace(run=SimpleNamespace(label=label), number=of) for label, of in numbers.items()]
    about = {"references": (), "tied_with_best": {key: frozenset(tied)}, "ranked": lambda key: ranked}
    return rows_of_models(values, [cells_of(SimpleNamespace(runs=runs, **about), key)])


def test_best_and_second_and_ties():
    found = marked(a=0.1, b=0.3, c=0.2, tied="bc")
    assert [row.cells[1].mark for row in found] == [None, "best", "second"]
    assert [row.cells[1].tied for row in found] == [False, False, True] and TIED in marks(found)
    # What is printed alike is marked alike.
    found = marked(a=0.20201, b=0.20199, c=0.1, d=0.05)
    assert [row.cells[1].mark for row in found] == ["best", "best", "second", None] and TIED not in marks(found)
    unranked = marked("dice_gap", a=0.1, b=0.2), marked(ranked=False, a=0.1, b=0.2)
    for found in (marked(a=0.0, b=0.0), marked(a=0.1), *unranked):
        assert not any(row.cells[1].mark or row.cells[1].tied for row in found) and not marks(found)


def test_a_note_stands_under_the_first_table_that_has_it():
    notes = [("A", "B"), ("B", "C"), ("C",)]
    tables = [Table(str(place), "T", "C", (), (), these) for place, these in enumerate(notes)]
    assert [made.notes for made in each_note_once(tables, ["A"])] == [("B",), ("C",), ()]
