"""Tables as LaTeX: in letters of one size, as wide as a column or a page, with only as many columns as fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import NamedTuple

from xbench.report.tables.table import MISSING, TIED, Cell, Column, Row, Table, percentage

_COLUMN, _PAGE = 245.0, 345.0
"""Widths in points of a column of a journal and of the page of a narrow one, as LaTeX's own article."""
_LINES = 42
"""Lines of a float; a longer table goes on in another."""
_HEAD = 5
"""Lines that headings and rules take."""
_GAP = 3.0
"""Points on either side of a column."""
_LABEL = (26, 18, 14, 11, 9)
"""Letters of a line of a label, the fewer the more labels there are; longer ones are broken."""
_HEADING = 13
"""Letters of a line of a heading."""


class _Part(NamedTuple):
    """Columns and rows of a table that stay together: their text, how many lines it has, and how wide it is."""

    text: str
    lines: int
    width: float


def to_latex(table: Table) -> str:
    """Write a table as LaTeX that needs the packages booktabs and array.

    Best bold, second underlined. Intervals stand beside the values if there is room for all columns, else below them.
    More columns than fit side by side continue below, and what does not fit on a page in further floats under the same
    number.
    """
    labels, said = _labels(table)
    title = _latex(table.title)
    caption = " ".join([f"\\textbf{{{title}.}}", *map(_latex, (table.caption, *said, *table.notes))])
    # A caption's lines are longer, and its letters larger.
    room = max(_LINES // 3, _LINES - len(caption) // 60)
    floats: list[list[_Part]] = [[]]
    for part in _parts(table, labels, room):
        if floats[-1] and sum(one.lines + 1 for one in floats[-1]) + part.lines > room:
            floats.append([])
        floats[-1].append(part)
    # A table that is no wider than a column stands in one.
    kind = "table" if all(part.width <= _COLUMN for parts in floats for part in parts) else "table*"
    text = ["% \\usepackage{booktabs,array}"]
    for place, parts in enumerate(floats):
        head = f"\\caption{{{caption}}}\n\\label{{tab:{table.name}}}"
        if place:
            head = f"\\addtocounter{{table}}{{-1}}\n\\caption{{\\textbf{{{title}}}, continued.}}"
        look = f"\\par\\smallskip\\centering\\footnotesize\\setlength{{\\tabcolsep}}{{{_GAP:g}pt}}"
        body = "\n\n\\medskip\n".join(part.text for part in parts)
        text.append(f"\\begin{{{kind}}}[tbp]\n{head}\n{look}\n{body}\n\\end{{{kind}}}")
    return "\n".join(text) + "\n"


def _labels(table: Table) -> tuple[list[int], list[str]]:
    """Return the columns of labels that tell rows apart, and for the caption what the others say."""
    labels = [position for position, column in enumerate(table.columns) if not column.numeric]
    alike = [position for position in labels[:-1] if len({row.cells[position].text for row in table.rows}) == 1]
    said = [f"{table.columns[position].title}: {table.rows[0].cells[position].text}." for position in alike]
    return [position for position in labels if position not in alike], said


def _parts(table: Table, labels: Sequence[int], room: int) -> Iterator[_Part]:
    numbers = [position for position, column in enumerate(table.columns) if column.numeric]
    texts = [[row.cells[position].text for position in labels] for row in table.rows]
    for letters in _LABEL:
        heads = [_broken(table.columns[position].title, min(letters, _HEADING)) for position in labels]
        words = [[_broken(text, letters) for text in row] for row in texts]
        widths = [
            max(_width(line) for lines in (head, *(row[place] for row in words)) for line in lines) + 2 * _GAP
            for place, head in enumerate(heads)
        ]
        if sum(widths) <= 0.45 * _PAGE:
            break
    left = _PAGE - sum(widths)

    def width(position: int, beside: bool) -> float:
        heading = max(map(_width, _broken(table.columns[position].title)))
        cells = [row.cells[position] for row in table.rows]
        shown = [(_width(cell.text + TIED * cell.tied), 0.9 * _width(_interval(cell))) for cell in cells]
        return max([heading, *(value + between + 3 if beside else max(value, between) for value, between in shown)])

    beside = sum(width(position, True) + 2 * _GAP for position in numbers) <= left
    of_column = {position: width(position, beside) + 2 * _GAP for position in numbers}
    for panel in _panels(table.columns, of_column, left):
        wide = sum(widths) + sum(of_column[position] for position in panel)
        rows: list[tuple[Row, list[list[str]]]] = []
        lines = _HEAD
        for place, row in enumerate(table.rows):
            below = not beside and any(_interval(row.cells[position]) for position in panel)
            same = bool(rows) and row.kind == table.rows[place - 1].kind
            shown = _not_said(words[place], texts[place], texts[place - 1]) if same else words[place]
            high = max(1 + below, *map(len, shown))
            if rows and lines + high > room:
                yield _Part(_tabular(table.columns, [*labels, *panel], len(labels), rows, beside), lines, wide)
                rows, lines, shown = [], _HEAD, words[place]
            rows.append((row, shown))
            lines += high
        yield _Part(_tabular(table.columns, [*labels, *panel], len(labels), rows, beside), lines, wide)


def _not_said(words: list[list[str]], texts: Sequence[str], above: Sequence[str]) -> list[list[str]]:
    """Return the labels of a row without those at its beginning that the row above has as well."""
    known = next((place for place, text in enumerate(texts) if text != above[place]), len(texts))
    return [[""]] * known + words[known:]


def _panels(columns: Sequence[Column], widths: dict[int, float], room: float) -> list[list[int]]:
    """Put columns into panels as wide as there is room, about equally many into each."""
    panels = _filled(columns, widths, room)
    for narrower in range(int(room), 0, -5):
        if len(found := _filled(columns, widths, narrower)) > len(panels):
            break
        panels = found
    return panels


def _filled(columns: Sequence[Column], widths: dict[int, float], room: float) -> list[list[int]]:
    """Fill panels one after the other; a group stays together unless it is wider than a panel."""
    panels: list[list[int]] = [[]]
    for group, members in groupby(widths, key=lambda position: columns[position].group):
        part = list(members)
        if group and panels[-1] and sum(widths[one] for one in [*panels[-1], *part]) > room:
            panels.append([])
        for position in part:
            if panels[-1] and sum(widths[one] for one in [*panels[-1], position]) > room:
                panels.append([])
            panels[-1].append(position)
    return panels


def _tabular(
    all_columns: Sequence[Column],
    positions: Sequence[int],
    labels: int,
    rows: Sequence[tuple[Row, list[list[str]]]],
    beside: bool,
) -> str:
    columns = [all_columns[position] for position in positions]
    head = []
    if any(column.group for column in columns):
        above, rules, place = [], [], 1
        for group, members in groupby(columns, key=lambda column: column.group):
            width = len(list(members))
            above.append(f"\\multicolumn{{{width}}}{{c}}{{{_latex(group)}}}")
            if group:
                rules.append(f"\\cmidrule(lr){{{place}-{place + width - 1}}}")
            place += width
        head = [_row(above), " ".join(rules)]
    titles = [_broken(column.title) for column in columns]
    head += _lines([[""] * (max(map(len, titles)) - len(title)) + title for title in titles])
    body: list[str] = []
    # Rows of a model with what was published of it belong together.
    together = {"published": "model", "difference": "model"}
    for _, alike in groupby(rows, key=lambda entry: together.get(entry[0].kind, entry[0].kind)):
        body.append(r"\midrule")
        for row, words in alike:
            cells: list[list[str]] = [[_latex(line) for line in lines] for lines in words]
            for position in positions[labels:]:
                cells.append(_latex_cell(row.cells[position], beside))
            body += _lines(cells, escaped=True)
            if max(map(len, cells)) > 1:
                body.append(r"\addlinespace[2pt]")
    alignment = "".join("r" if column.numeric else "l" for column in columns)
    return "\n".join(
        [f"\\begin{{tabular}}{{{alignment}}}", r"\toprule", *head, *body, r"\bottomrule", r"\end{tabular}"]
    )


def _lines(cells: Sequence[Sequence[str]], escaped: bool = False) -> list[str]:
    """Write cells of several lines each as rows of a table."""
    high = max(map(len, cells))
    lines = [[lines[line] if line < len(lines) else "" for lines in cells] for line in range(high)]
    return [_row(line if escaped else map(_latex, line)) for line in lines]


def _row(cells: Sequence[str] | Iterator[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell, beside: bool) -> list[str]:
    interval = _interval(cell).replace("-", "$-$")
    text = _latex(cell.text)
    text = {"best": f"\\textbf{{{text}}}", "second": f"\\underline{{{text}}}", None: text}[cell.mark]
    text += _LATEX[TIED] if cell.tied else ""
    if not interval:
        return [text]
    # A bracket at the start would be read as an argument of the line break before it.
    return [f"{text} {interval}"] if beside else [text, f"{{{interval}}}"]


def _interval(cell: Cell) -> str:
    """Return an interval with one decimal, which is all that its own accuracy is worth."""
    if cell.low is None or cell.high is None:
        return ""
    ends = (percentage(end, digits=1) for end in (cell.low, cell.high))
    return f"[{', '.join(ends)}]"


def _broken(text: str, letters: int = _HEADING) -> list[str]:
    """Break a text into lines, within words only where they are too long for any line."""
    return wrap(text, letters, break_long_words=any(len(word) > _LABEL[0] for word in text.split())) or [""]


def _width(text: str) -> float:
    """Return about how many points wide a text is in bold Computer Modern of 8 points, rather too many than too few."""
    return 4.9 * sum(_WIDTHS.get(letter, 1.45 if letter.isupper() else 1.0) for letter in text)


_WIDTHS = {**dict.fromkeys("ijlft.,;:()[]'|!- ", 0.62), **dict.fromkeys("mwMW%", 1.65), TIED: 0.7}

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
