"""A whole report in two files: `report.md`, as GitHub shows it, and `analysis.json`, for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from xbench.report.facts import facts_of
from xbench.report.names import count_of
from xbench.report.notes import warnings
from xbench.report.runs import Run
from xbench.report.schema import Analysis, Drawn
from xbench.report.sentences import answer, in_short, on_dataset
from xbench.report.tables.methods import methods
from xbench.report.tables.table import Table, each_note_once, escaped, to_markdown
from xbench.runtime.files import write_whole

_SECTIONS = (
    ("Grounding", ("grounding",), ("intervals_pointing_game",)),
    ("Cases side by side", (), ("overlays",)),
    ("Honest thresholds", ("grounding_honest", "calibration_gap"), ("dice_gap", "dice_curve", "intervals_dice")),
    ("Recognition", ("classification", "auroc", "protocols_calibration"), ("intervals_auroc",)),
    ("Recognition and grounding", ("correlations", "quadrants"), ("auroc_pointing_game", "quadrants")),
    ("Findings", ("pointing_game", "best_and_worst"), ()),
    ("Size and position of lesions", ("by_area", "by_position"), ("area", "positions")),
    ("Interventions", ("interventions",), ()),
    ("Curves and randomization of maps", ("perturbations",), ()),
    ("Words", ("words",), ("intervals_side",)),
    ("Phrases", ("phrases", "rewordings"), ()),
    ("Sex, age and projection", ("subgroups",), ()),
    ("Other papers' scoring rules", ("protocols",), ()),
    ("Answers", ("answers",), ()),
    ("Models compared", ("comparisons",), ()),
    ("Studies", ("studies",), ()),
    ("Beside the paper", ("published",), ()),
    ("Methods", ("checklist",), ()),
)
"""Headings, each with how the names of its tables and of its figures begin."""
_MORE = "More"


def document(analysis: Analysis, tables: Sequence[Table], figures: Sequence[Drawn]) -> str:
    """Return the text of `report.md`."""
    facts = facts_of(analysis)
    reply = answer(facts)
    parts = ["# Report", f"{escaped(reply.question)} **{escaped(reply.answer)}**", *map(escaped, reply.more)]
    parts += _compared(analysis)
    if short := (*warnings(analysis.runs), *in_short(facts)):
        parts += ["## In short", _points(short)]
    parts += map(escaped, analysis.notes)
    of_datasets = [(analysis.heading(dataset), on_dataset(analysis, dataset)) for dataset in analysis.datasets]
    said = [part for title, texts in of_datasets if texts for part in (f"### {escaped(title)}", _points(texts))]
    parts += ["## Dataset by dataset", *said] if said else []
    shown: dict[str, list[str]] = {title: [] for title in (*(section for section, _, _ in _SECTIONS), _MORE)}
    for table in each_note_once(tables, (*analysis.notes, *analysis.notes_of())):
        text = f"{to_markdown(table)}\n[CSV](tables/{table.name}.csv), [LaTeX](tables/{table.name}.tex)"
        # Long tables are folded up.
        if (count := len(table.rows)) >= 30:
            text = f"<details>\n<summary>{escaped(table.title)}: {count} rows</summary>\n\n{text}\n\n</details>"
        shown[_section(table.name, 1)].append(text)
    for figure in figures:
        path, title = f"figures/{figure.name}", escaped(figure.title)
        about = f"**{title}.** {escaped(figure.caption)} [PDF]({path}.pdf), [SVG]({path}.svg)"
        shown[_section(figure.name, 2)].append(f"![{title}]({path}.png)\n\n{about}")
    shown["Methods"].insert(0, escaped(methods(analysis)))
    for section, texts in shown.items():
        parts += [f"## {section}", *texts] if any(texts) else []
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _section(name: str, names: Literal[1, 2]) -> str:
    fitting = [(len(begin), section[0]) for section in _SECTIONS for begin in section[names] if name.startswith(begin)]
    return max(fitting)[1] if fitting else _MORE


def _compared(analysis: Analysis) -> Iterator[str]:
    yield (
        f"{count_of(len(analysis.by_label), 'model or setting', 'models or settings')} on "
        f"{count_of(len(analysis.datasets), 'dataset')}. The page "
        "[index.html](index.html) shows the same results with interactive curves and cases, "
        "[analysis.json](analysis.json) has every number."
    )
    lines = ["| Dataset | Split | Images | Independent units | Runs |", "| :--- | :--- | ---: | :--- | :--- |"]
    for dataset in analysis.datasets:
        images = " or ".join(f"{n:,}" for n in sorted({entry.run.results.counts.images for entry in dataset.runs}))
        clusters = " or ".join(sorted({entry.evidence for entry in dataset.runs}))
        runs = ", ".join(dataset.by_label) or "references only"
        cells = [analysis.heading(dataset), dataset.split, images, clusters, runs]
        lines.append(f"| {' | '.join(map(escaped, cells))} |")
    yield "\n".join(lines)
    if analysis.set_aside:
        yield "Left out:"
        yield _points([f"{entry.folder}: {entry.reason}" for entry in analysis.set_aside])


def _points(texts: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(text)}" for text in texts)


def write_analysis(path: Path, analysis: Analysis) -> None:
    """Write an analysis as JSON, with runs reduced to their settings; raise ValueError for NaN or infinity."""
    content = {"schema": 1, **vars(analysis)}
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False, default=_plain)
    write_whole(path, f"{text}\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Run):
        return {
            "label": value.label,
            "model": value.model,
            "folder": str(value.folder),
            "images": value.results.counts.images,
            "settings": dict(value.settings),
            "thresholds": list(value.results.grounding.thresholds),
        }
    if isinstance(value, frozenset):
        return sorted(value)
    return str(value) if isinstance(value, Path) else vars(value)
