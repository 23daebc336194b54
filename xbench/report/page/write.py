"""The report as one HTML page that needs no server and no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from xbench.report.cases import COLOURS
from xbench.report.page.data import case_data, chart_data
from xbench.report.schema import NEAR, NUMBERS, Analysis
from xbench.report.sentences import headlines
from xbench.report.statistics.analyse import Progress
from xbench.report.tables.table import MISSING, TIED, Table, each_note_once
from xbench.runtime.files import atomic_writer


def write_page(
    analysis: Analysis, tables: Sequence[Table], path: Path, cases: int = 24, progress: Progress | None = None
) -> None:
    """Write the report as one HTML file with all styles, scripts, plotly.js (about 5 MB), tables and pictures in it.

    It loads nothing from a network, and its content security policy forbids it to. The browser of cases has up to
    `cases` of each dataset. `progress` is called for every case and after the last.
    """
    environment = Environment(
        loader=PackageLoader("xbench.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html").render(
        analysis=analysis,
        models=len({run.run.model for run in analysis.runs}),
        configurations=len({run.run.label for run in analysis.runs}),
        datasets=[(analysis.heading(dataset), dataset) for dataset in analysis.datasets],
        runs=[(analysis.heading(dataset), run) for dataset in analysis.datasets for run in dataset.runs],
        headlines=headlines(analysis),
        numbers=list(NUMBERS.values()),
        tables=_Shelf(each_note_once(tables, analysis.notes)),
        spans=_spans,
        missing=MISSING,
        near=f"{100 * NEAR:g}",
        tied=TIED,
        asset=_asset,
        plotly=Markup(get_plotlyjs()),
        written=partial(json.dumps, indent=2, ensure_ascii=False),
        charts=_json(chart_data(analysis)),
        cases=_json(case_data(analysis, cases, progress)),
        # The 256 colours of maps, from the least value to the greatest.
        colours=_json(matplotlib.colormaps[COLOURS](range(256), bytes=True)[:, :3].tolist()),
    )
    with atomic_writer(path) as file:
        file.write(text.encode("utf-8"))


class _Shelf:
    """The tables that the page has not shown yet, so that each is shown once and none is forgotten."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._left = list(tables)

    def take(self, *beginnings: str) -> list[Table]:
        """Hand out the tables whose name begins so, in their order."""
        taken = [table for table in self._left if table.name.startswith(beginnings)]
        self._left = [table for table in self._left if table not in taken]
        return taken


def _spans(table: Table) -> list[dict[str, Any]]:
    """Return the headings above columns side by side, with how many each spans."""
    groups = groupby(table.columns, key=lambda column: column.group)
    return [{"group": group, "span": len(list(columns))} for group, columns in groups]


def _asset(name: str) -> Markup:
    """Return a style sheet or script of the page as it stands."""
    return Markup(files("xbench.report.page").joinpath("templates", name).read_text(encoding="utf-8"))


def _json(value: Any) -> Markup:
    """Write data for a script element: nothing in it can end that element."""
    return htmlsafe_json_dumps(value, dumps=partial(json.dumps, allow_nan=False, separators=(",", ":")))
