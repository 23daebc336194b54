"""`report.md`: a whole report as GitHub shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from xbench.report.figures.write import Drawn
from xbench.report.schema import Analysis, DatasetAnalysis
from xbench.report.sentences import count_of, dataset_in_words, headlines
from xbench.report.tables.cells import heading, labels_in_order
from xbench.report.tables.table import Table, escaped, to_markdown

__all__ = ["document"]

_LONG = 30
"""Rows from which a table is folded up."""

_SECTIONS = (
    ("Grounding", ("grounding",), ("intervals_pointing_game",)),
    ("Maps side by side", (), ("overlays",)),
    ("Honest thresholds", ("grounding_honest", "calibration_gap"), ("dice_gap", "dice_curve", "intervals_dice")),
    ("Recognition", ("classification",), ("intervals_auroc",)),
    ("Recognition and grounding", ("correlations", "quadrants"), ("auroc_pointing_game", "quadrants")),
    ("Findings", ("pointing_game", "best_and_worst"), ()),
    ("Size and position of lesions", ("by_area", "by_position"), ("area", "positions")),
    ("Models compared", ("comparisons",), ()),
    ("Studies", ("studies",), ()),
    ("Beside the paper", ("published",), ()),
)
"""Headings, each with how the names of its tables and of its figures begin."""
_MORE = "More"


def document(analysis: Analysis, tables: Sequence[Table], figures: Sequence[Drawn]) -> str:
    """Return the text, with links to the files of tables and figures beside it."""
    parts = ["# Report", *_compared(analysis)]
    if short := headlines(analysis):
        parts += ["## In short", _points(short)]
    parts += [escaped(note) for note in analysis.notes]
    said = [(heading(dataset, analysis), dataset_in_words(dataset)) for dataset in analysis.datasets]
    if any(texts for _, texts in said):
        parts.append("## Dataset by dataset")
        for title, texts in said:
            parts += [f"### {escaped(title)}", _points(texts)] if texts else []
    for title in (*(section for section, _, _ in _SECTIONS), _MORE):
        told = [_table(table) for table in tables if _section(table.name, 1) == title]
        told += [_figure(figure) for figure in figures if _section(figure.name, 2) == title]
        if told:
            parts += [f"## {title}", *told]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _section(name: str, names: Literal[1, 2]) -> str:
    """The section whose tables (1) or figures (2) are called most like this one."""
    fitting = [(len(begin), section[0]) for section in _SECTIONS for begin in section[names] if name.startswith(begin)]
    return max(fitting)[1] if fitting else _MORE


def _compared(analysis: Analysis) -> Iterator[str]:
    labels = labels_in_order(entry for dataset in analysis.datasets for entry in dataset.runs)
    yield (
        f"{count_of(len(labels), 'model or setting', 'models or settings')} on "
        f"{count_of(len(analysis.datasets), 'dataset')}; "
        f"thresholds cross-fitted in {analysis.folds} folds. The page [index.html](index.html) shows the "
        "same with curves to explore and cases to look through, [analysis.json](analysis.json) has every number."
    )
    lines = ["| Dataset | Split | Images | Clusters | Runs |", "| :--- | :--- | ---: | :--- | :--- |"]
    for dataset in analysis.datasets:
        runs = ", ".join(labels_in_order(dataset.runs)) or "instruments only"
        cells = [heading(dataset, analysis), dataset.split, _images(dataset), _clusters(dataset), runs]
        lines.append(f"| {' | '.join(map(escaped, cells))} |")
    yield "\n".join(lines)
    if analysis.set_aside:
        yield "Left out:"
        yield _points([f"{entry.folder}: {entry.reason}" for entry in analysis.set_aside])


def _images(dataset: DatasetAnalysis) -> str:
    counts = sorted({entry.run.results.counts.images for entry in dataset.runs})
    return " or ".join(f"{count:,}" for count in counts)


def _clusters(dataset: DatasetAnalysis) -> str:
    said = {f"{entry.clusters:,} {entry.clustered_by}" for entry in dataset.runs}
    return " or ".join(sorted(said))


def _table(table: Table) -> str:
    files = f"[CSV](tables/{table.name}.csv), [LaTeX](tables/{table.name}.tex)"
    text = f"{to_markdown(table)}\n{files}"
    if len(table.rows) < _LONG:
        return text
    return f"<details>\n<summary>{escaped(table.title)}: {len(table.rows)} rows</summary>\n\n{text}\n\n</details>"


def _figure(figure: Drawn) -> str:
    path = f"figures/{figure.name}"
    return (
        f"![{escaped(figure.title)}]({path}.png)\n\n**{escaped(figure.title)}.** {escaped(figure.caption)} "
        f"[PDF]({path}.pdf), [SVG]({path}.svg)"
    )


def _points(texts: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(text)}" for text in texts)
