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
        if rows > room and floats[-1]:
            floats.append([])
            room = _PAGE
        floats[-1].append(panel)
        room -= rows
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


def _blocks(table: Table) -> Iterator[tuple[str, int]]:
    """Parts of a table that stay together, each with its number of rows."""
    labels = [position for position, column in enumerate(table.columns) if not column.numeric]
    numbers = [position for position, column in enumerate(table.columns) if column.numeric]
    timed = [position for position in numbers if any(row.cells[position].interval for row in table.rows)]
    panels: list[tuple[_Intervals, list[int]]]
    if len(timed) <= _BESIDE:
        panels = [("beside", panel) for panel in _panels(table, numbers, _PANEL)]
    else:
        panels = [("none", panel) for panel in _panels(table, numbers, _PANEL)]
        panels += [("only", panel) for panel in _panels(table, timed, _PANEL_OF_INTERVALS)]
    for intervals, panel in panels:
        for start in range(0, len(table.rows), _PAGE):
            rows = table.rows[start : start + _PAGE]
            above = "95\\,\\% intervals\n\n" if intervals == "only" else ""
            yield above + _tabular(table, rows, [*labels, *panel], intervals), len(rows)


def _panels(table: Table, positions: Sequence[int], width: int) -> list[list[int]]:
    """Columns in panels of at most `width`; a group stays together unless it is wider than that."""
    panels: list[list[int]] = [[]]
    for group, members in groupby(positions, key=lambda position: table.columns[position].group):
        part = list(members)
        if group and panels[-1] and len(panels[-1]) + len(part) > width:
            panels.append([])
        for position in part:
            if len(panels[-1]) == width:
                panels.append([])
            panels[-1].append(position)
    return panels


def _tabular(table: Table, rows: Sequence[Row], positions: Sequence[int], intervals: _Intervals) -> str:
    columns = [table.columns[position] for position in positions]
    head = [" & ".join(_latex(column.title) for column in columns) + r" \\"]
    if any(column.group for column in columns):
        above, rules, place = [], [], 1
        for group, members in groupby(columns, key=lambda column: column.group):
            width = len(list(members))
            above.append(f"\\multicolumn{{{width}}}{{c}}{{{_latex(group)}}}")
            if group:
                rules.append(f"\\cmidrule(lr){{{place}-{place + width - 1}}}")
            place += width
        head = [" & ".join(above) + r" \\", " ".join(rules), *head]
    body: list[str] = []
    # Rows of a model with what was published of it belong together.
    together = {"published": "model", "difference": "model"}
    for _, alike in groupby(rows, key=lambda row: together.get(row.kind, row.kind)):
        body.append(r"\midrule")
        for row in alike:
            cells = (_latex_cell(row.cells[position], intervals) for position in positions)
            body.append(" & ".join(cells) + r" \\")
    alignment = "".join("r" if column.numeric else "l" for column in columns)
    # Only what is wider than the text is made smaller.
    begin = "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%"
    lines = [begin, f"\\begin{{tabular}}{{{alignment}}}", r"\toprule", *head, *body, r"\bottomrule"]
    return "\n".join([*lines, "\\end{tabular}}"])


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
