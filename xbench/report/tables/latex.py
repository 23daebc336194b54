"""Tables as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from xbench.report.tables.table import MISSING, TIED, Cell, Row, Table

_PANEL = 9
"""Columns of numbers side by side; a wider table continues below, as the paper's Table 2 does."""
_PANEL_OF_INTERVALS = 6
_BESIDE = 4
"""Up to so many columns have their intervals beside the values."""
_PAGE = 38
"""Rows on a page; a longer table goes on in another float."""

_Intervals = Literal["beside", "only", "none"]


def to_latex(table: Table) -> str:
    """Write a table as LaTeX that needs the packages booktabs and graphicx.

    Best bold, second underlined. Intervals stand beside the values of a table with few columns, else in panels of their
    own below. What does not fit on a page continues in further floats under the same number.
    """
    floats: list[list[str]] = [[]]
    room = _PAGE
    for panel, rows in _blocks(table):
        if len(rows) > room and floats[-1]:
            floats.append([])
            room = _PAGE
        floats[-1].append(panel)
        room -= len(rows)
    title = _latex(table.title)
    caption = " ".join([f"\\textbf{{{title}.}}", *map(_latex, (table.caption, *table.notes))])
    parts = ["% \\usepackage{booktabs,graphicx}"]
    for place, panels in enumerate(floats):
        head = f"\\caption{{{caption}}}\n\\label{{tab:{table.name}}}"
        if place:
            head = f"\\addtocounter{{table}}{{-1}}\n\\caption{{\\textbf{{{title}}}, continued.}}"
        body = "\n\n\\medskip\n".join(panels)
        parts.append(f"\\begin{{table*}}[tbp]\n\\centering\\small\n{head}\n{body}\n\\end{{table*}}")
    return "\n".join(parts) + "\n"


def _blocks(table: Table) -> Iterator[tuple[str, Sequence[Row]]]:
    """Parts of a table that stay together, each with its rows."""
    labels = [position for position, column in enumerate(table.columns) if not column.numeric]
    numbers = [position for position, column in enumerate(table.columns) if column.numeric]
    timed = [position for position in numbers if any(row.cells[position].interval for row in table.rows)]
    beside = len(timed) <= _BESIDE
    for panel in _panels(table, numbers, _PANEL):
        for rows in _chunks(table.rows):
            yield _tabular(table, rows, [*labels, *panel], "beside" if beside else "none"), rows
    if beside:
        return
    for panel in _panels(table, timed, _PANEL_OF_INTERVALS):
        for rows in _chunks(table.rows):
            yield f"95\\,\\% intervals\n\n{_tabular(table, rows, [*labels, *panel], 'only')}", rows


def _panels(table: Table, positions: Sequence[int], width: int) -> Iterator[list[int]]:
    """Columns in panels of at most `width`; a group stays together unless it is wider than that."""
    panel: list[int] = []
    for group, members in groupby(positions, key=lambda position: table.columns[position].group):
        part = list(members)
        if group and panel and len(panel) + len(part) > width:
            yield panel
            panel = []
        for position in part:
            if len(panel) == width:
                yield panel
                panel = []
            panel.append(position)
    if panel or not positions:
        yield panel


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[start : start + _PAGE] for start in range(0, len(rows), _PAGE))


def _tabular(table: Table, rows: Sequence[Row], positions: Sequence[int], intervals: _Intervals) -> str:
    body = "\n".join(_latex_rows(rows, positions, intervals))
    alignment = "".join("r" if table.columns[position].numeric else "l" for position in positions)
    # Only what is wider than the text is made smaller.
    return (
        "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%\n"
        f"\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{_latex_head(table, positions)}\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}}}"
    )


def _latex_head(table: Table, positions: Sequence[int]) -> str:
    columns = [table.columns[position] for position in positions]
    lines = [" & ".join(_latex(column.title) for column in columns) + r" \\"]
    if any(column.group for column in columns):
        above, rules, place = [], [], 1
        for group, members in groupby(columns, key=lambda column: column.group):
            width = len(list(members))
            above.append(f"\\multicolumn{{{width}}}{{c}}{{{_latex(group)}}}")
            if group:
                rules.append(f"\\cmidrule(lr){{{place}-{place + width - 1}}}")
            place += width
        lines = [" & ".join(above) + r" \\", " ".join(rules), *lines]
    return "\n".join(lines)


def _latex_rows(rows: Sequence[Row], positions: Sequence[int], intervals: _Intervals) -> Iterator[str]:
    previous = None
    # Rows of a model with what was published of it belong together.
    together = {"published": "model", "difference": "model"}
    for row in rows:
        kind = together.get(row.kind, row.kind)
        if previous not in (None, kind):
            yield r"\midrule"
        previous = kind
        yield " & ".join(_latex_cell(row.cells[position], intervals) for position in positions) + r" \\"


def _latex_cell(cell: Cell, intervals: _Intervals) -> str:
    interval = cell.interval.replace("-", "$-$")
    if intervals == "only" and cell.value is not None:
        return interval or "--"
    text = _latex(cell.text)
    text = {"best": f"\\textbf{{{text}}}", "second": f"\\underline{{{text}}}", None: text}[cell.mark]
    small = f" {{\\scriptsize {interval}}}" if interval and intervals == "beside" else ""
    return f"{text}{_LATEX[TIED] if cell.tied else ''}{small}"


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    MISSING: "--",
    TIED: r"\textsuperscript{\textdagger}",
    "\u00b2": r"\textsuperscript{2}",
    "\u2265": r"$\geq$",
}


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
    # A number and its unit stay on a line.
    escaped = re.sub(r"(?<=\d) (?=\\%)", "~", escaped)
    # A sign, not a hyphen; a bracket at the start would be read as an argument of the line break before it.
    escaped = re.sub(r"^([-+])(?=\d)", r"$\1$", escaped)
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped[:1] in ("[", "*") else escaped
