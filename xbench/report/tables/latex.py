"""Tables as LaTeX: wide ones in panels, long ones in several floats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from xbench.report.tables.table import MISSING, TIED, Cell, Column, Row, Table, spans

_COLUMNS, _ROWS = 8, 24
"""Columns of numbers side by side, and rows in a float; the others follow in further floats."""
_LONG = 40
"""Letters of a label from which on its column breaks lines."""
_FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"
_TOGETHER = {"published": "model", "difference": "model"}
"""Rows of a model and of what was published about it stand in one group."""
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


def to_latex(table: Table) -> str:
    """Write a table as LaTeX for the packages booktabs and graphicx; those wider than the text are shrunk."""
    title, text = _latex(table.title), _latex(" ".join((table.caption, *table.notes)))
    head = f"\\caption{{\\textbf{{{title}.}} {text}}}\n\\label{{tab:{table.name}}}"
    lines = ["% \\usepackage{booktabs,graphicx}"]
    long = (any(len(row.cells[place].text) > _LONG for row in table.rows) for place in range(len(table.columns)))
    of_words = (r"p{0.3\linewidth}" if wide else "l" for wide in long)
    kinds = ["r" if column.numeric else kind for column, kind in zip(table.columns, of_words, strict=True)]
    for start in range(0, len(table.rows), _ROWS):
        for panel in _panels(table.columns):
            body = _tabular(table, panel, table.rows[start : start + _ROWS], kinds)
            lines += [r"\begin{table*}[tbp]", r"\centering\footnotesize", head, f"\n{_FITTED}{{%", f"{body}}}"]
            lines += [r"\end{table*}"]
            head = f"\\addtocounter{{table}}{{-1}}\n\\caption{{\\textbf{{{title}}}, continued.}}"
    return "\n".join(lines) + "\n"


def _panels(columns: Sequence[Column]) -> list[list[int]]:
    """Return the places of the columns of each panel; a group stays together unless it is wider than a panel."""
    labels = [place for place, column in enumerate(columns) if not column.numeric]
    panels: list[list[int]] = [[]]
    numbers = [place for place, column in enumerate(columns) if column.numeric]
    for group, members in groupby(numbers, key=lambda place: columns[place].group):
        part = list(members)
        if group and panels[-1] and len(panels[-1]) + len(part) > _COLUMNS:
            panels.append([])
        for place in part:
            if len(panels[-1]) == _COLUMNS:
                panels.append([])
            panels[-1].append(place)
    return [[*labels, *panel] for panel in panels]


def _tabular(table: Table, places: Sequence[int], rows: Sequence[Row], kinds: Sequence[str]) -> str:
    columns = [table.columns[place] for place in places]
    lines = [f"\\begin{{tabular}}{{{''.join(kinds[place] for place in places)}}}", r"\toprule"]
    if any(column.group for column in columns):
        lines += _groups(columns)
    lines.append(_line(_latex(column.title) for column in columns))
    for _, alike in groupby(rows, key=lambda row: _TOGETHER.get(row.kind, row.kind)):
        lines.append(r"\midrule")
        for row in alike:
            cells = [row.cells[place] for place in places]
            lines.append(_line(map(_value, cells)))
            if any(map(_interval, cells)):
                lines += [_line(map(_interval, cells)), r"\addlinespace[2pt]"]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _groups(columns: Sequence[Column]) -> list[str]:
    cells, rules, place = [], [], 1
    for group, width in spans(columns):
        cells.append(f"\\multicolumn{{{width}}}{{c}}{{{_latex(group)}}}")
        rules += [f"\\cmidrule(lr){{{place}-{place + width - 1}}}"] if group else []
        place += width
    return [_line(cells), " ".join(rules)]


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _value(cell: Cell) -> str:
    text = _latex(cell.text)
    text = {"best": f"\\textbf{{{text}}}", "second": f"\\underline{{{text}}}", None: text}[cell.mark]
    return text + _LATEX[TIED] * cell.tied


def _interval(cell: Cell) -> str:
    """Return an interval with one decimal; more would exceed its accuracy."""
    return cell.limits(1).replace("-", "$-$")


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
    # A number and its unit stay on a line.
    escaped = re.sub(r"(?<=\d) (?=\\%)", "~", escaped)
    # A sign, not a hyphen; a bracket at the start would be read as an argument of the line break before it.
    escaped = re.sub(r"^([-+])(?=\d)", r"$\1$", escaped)
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped[:1] in ("[", "*") else escaped
