"""The report as one HTML page that needs no server and no network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from xbench.report import charts
from xbench.report.answer import (
    answer,
    best_finding,
    differences_finding,
    failures_finding,
    head_of,
    recognition_finding,
    thresholds_finding,
    whole,
)
from xbench.report.cases import CaseMap, choose_cases, read_maps
from xbench.report.overlay import coloured
from xbench.report.page.films import films_of
from xbench.report.page.pictures import band_of, encoded, names_of, outline_of, path_of
from xbench.report.schema import NEAR, NUMBERS, Analysis, RunAnalysis, in_order, parts_of
from xbench.report.sentences import count_of, recognised_elsewhere, warnings
from xbench.report.series import Series, outline, own_in_words, series_of
from xbench.report.standings import Standing, Standings, standings
from xbench.report.statistics.analyse import Progress
from xbench.report.tables.table import MISSING, TIED, Table, each_note_once
from xbench.runs.answers import excerpt
from xbench.runs.maps import shrunk
from xbench.runtime.files import atomic_writer


def write_page(
    analysis: Analysis, tables: Sequence[Table], path: Path, cases: int = 24, progress: Progress | None = None
) -> None:
    """Write the report as one HTML file with all styles, scripts, tables, charts and pictures in it.

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
    looks, found = series_of(analysis.runs), standings(analysis)
    scored = bool(found.rows)
    found = found if scored else standings(analysis, "auroc")
    head = head_of(found) if found.rows else None
    case_data = _case_data(analysis, cases, progress, head.label if head else "")
    large, small = charts.scatters(analysis) if scored else ([], [])
    notes = [*analysis.notes, *(note for dataset in analysis.datasets for note in dataset.notes)]
    context = {
        "analysis": analysis,
        "looks": looks,
        "keys": {label: f"k-{number}" for number, label in enumerate(looks)},
        "outline": outline,
        "path_of": path_of,
        "band_of": band_of,
        "names_of": names_of,
        "whole": whole,
        "what": _what(analysis, found),
        "answer": answer(analysis),
        "found": found,
        "averaged": _averaged(found),
        "outcomes": charts.outcomes(found.datasets, head.label) if head and scored else None,
        "films": films_of(_entries(analysis, found, head)) if head and scored else {},
        "whose": f"by {head.label}" if head else "",
        "own_words": own_in_words(analysis.runs),
        "near": f"{100 * NEAR:g}",
        "warnings": warnings(analysis.runs),
        "best": best_finding(analysis) if found.rows else None,
        "matrix": charts.matrix(analysis, found) if found.rows else [],
        "large": large,
        "small": small,
        "opened": next((at for at, one in enumerate(large) if head and one.points[0].label == head.label), 0),
        "recognition": recognition_finding(analysis)[0],
        "elsewhere": list(recognised_elsewhere(analysis.runs)),
        "floor_words": found.floor.does if found.floor else "",
        "many_models": len({entry.run.model for entry in analysis.runs}) > 1,
        "several_datasets": len(analysis.datasets) > 1,
        "head": head,
        "drawn": lambda panels: {line.label for panel in panels for line in panel.lines},
        "sizes": charts.sizes(analysis) if scored else [],
        "positions": list(_positions(analysis, head, looks)) if head and scored else [],
        "failures": failures_finding(analysis) if scored else None,
        "has_cases": bool(case_data["cases"]),
        "gaps": charts.gaps(analysis) if scored else [],
        "curves": charts.curves(analysis) if scored else [],
        "thresholds": thresholds_finding(analysis) if scored else None,
        "forests": (forests := charts.forests(analysis)),
        "other_pairs": sum(
            one.number == "pointing_game" for dataset in analysis.datasets for one in dataset.comparisons
        )
        > sum(len(forest.rows) for forest in forests),
        "differences": differences_finding(analysis),
        "turned": _turned(analysis, tables),
        "calibration": (calibration := _calibration(tables)),
        "answered": _answered(analysis),
        "answers_with": _answers_with(analysis, head),
        "any_answers": any(entry.run.results.answers for entry in analysis.runs),
        "signed": _signed,
        "p_words": p_words,
        "folds": analysis.folds,
        "notes": notes,
        "runs": [(analysis.heading(dataset), run) for dataset in analysis.datasets for run in dataset.runs],
        "numbers": list(NUMBERS.values()),
        "spans": _spans,
        "missing": MISSING,
        "tied": TIED,
        "asset": _asset,
        "written": partial(json.dumps, indent=2, ensure_ascii=False),
        "cases": _json(case_data),
        # Red, green, blue and opacity of the 256 values of a map's grey picture.
        "colours": _json(coloured(np.linspace(0, 1, 256, dtype=np.float32)[None])[0].tolist()),
    }
    published = any(table.name.startswith("published") for table in tables)
    parts = {
        "answer": "Answer",
        "ranking": ("Models" if context["many_models"] else "Settings" if len(looks) > 1 else "Findings")
        * bool(found.rows),
        "recognition": "Recognition" * bool(large),
        "failures": "Failures" * bool(context["sizes"] or context["positions"]),
        "cases": "Cases" * bool(context["has_cases"]),
        "thresholds": "Thresholds" * bool(context["gaps"]),
        "differences": "Differences" * bool(context["forests"]),
        "answers": "Answers" * any(table.name.startswith("answers") for table in tables),
        "protocols": "Protocols" * any(dataset.protocols for dataset in analysis.datasets),
        "calibration": "Calibration" * bool(calibration),
        "published": "Published" * published,
        "method": "Method",
    }
    shelf = _Shelf(each_note_once(tables, notes))
    sections = [(place, name) for place, name in parts.items() if name]
    text = environment.get_template("page.html").render(context, tables=shelf, sections=sections)
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


def _what(analysis: Analysis, found: Standings) -> tuple[str, str]:
    """Return what was run, in two halves of which narrow screens show the second alone."""
    models = count_of(len({entry.run.model for entry in analysis.runs}), "model")
    labels = {row.label for row in found.rows}
    if len(analysis.datasets) != 1:
        runs = f", {count_of(len(analysis.runs), 'run')}"
        return f"{models} on ", f"{count_of(len(analysis.datasets), 'dataset')}{runs}"
    (dataset,) = analysis.datasets
    settings = f", {len(labels)} settings" if models == "1 model" and len(labels) > 1 else ""
    films = max((entry.run.results.counts.images for entry in dataset.runs), default=0)
    findings = count_of(len(dataset.findings), "finding")
    return f"{models}{settings} on ", f"{analysis.heading(dataset)}: {count_of(films, 'film')}, {findings}"


def _entries(analysis: Analysis, found: Standings, head: Standing) -> list[tuple[str, RunAnalysis]]:
    return [
        (analysis.heading(dataset), entry)
        for dataset in found.datasets
        for entry in dataset.runs
        if entry.run.label == head.label
    ]


def _averaged(found: Standings) -> str:
    if len(found.datasets) > 1:
        return f"{len(found.datasets)} datasets"
    return count_of(len(found.datasets[0].findings) if found.datasets else 0, "finding")


def _turned(analysis: Analysis, tables: Sequence[Table]) -> str:
    """Say how many pairs of models change their order from one protocol to another."""
    turned_tables = [table for table in tables if table.name.startswith("protocols_turned")]
    turned = sum(len({tuple(cell.text for cell in row.cells[:2]) for row in table.rows}) for table in turned_tables)
    if turned:
        what = "models" if len({entry.run.model for entry in analysis.runs}) > 1 else "settings"
        return f"{count_of(turned, f'pair of {what} changes', f'pairs of {what} change')} order with the protocol"
    several = any(len(scores.values) > 1 for dataset in analysis.datasets for scores in dataset.protocols)
    return "All protocols rank them alike" if several else "One model, scored by several rules"


def _calibration(tables: Sequence[Table]) -> str:
    """Name the smallest calibration error, beside what chance alone would give; empty where none was computed."""
    rows = [(table, row.cells) for table in tables if table.name.startswith("protocols_cal") for row in table.rows]
    if not rows:
        return ""
    table, (label, error, chance, *_) = min(rows, key=lambda one: one[1][1].value or 0.0)
    what = f"{'Smallest c' if len(rows) > 1 else 'C'}{table.title[1:]}".replace("alibration", "alibration error", 1)
    return f"{what}: {error.text}%, {label.text}; chance alone gives {chance.text}%"


def _answers_with(analysis: Analysis, head: Standing | None) -> str:
    """Say with what the series that is shown first answers, boxes or points; nothing of maps."""
    runs = [entry.run.results for entry in analysis.runs if head is not None and entry.run.label == head.label]
    return next((results.answers.kind for results in runs if results.answers is not None), "")


def _answered(analysis: Analysis) -> str:
    """Say of how many answers something could be scored, of the model that lost most."""
    lost = [
        (1 - (said.overall["answered"] or 0.0), entry.run.label)
        for entry in analysis.runs
        if (said := entry.run.results.answers) is not None and said.overall["pairs"]
    ]
    if not lost:
        return ""
    most, label = max(lost)
    if most == 0:
        return "Every answer has a box or a point that could be read"
    whose = f"{label}: " if len(lost) > 1 else ""
    return f"{whose}{whole(most)}% of answers are none, unreadable or broken off"


def _positions(
    analysis: Analysis, head: Standing, looks: Mapping[str, Series]
) -> Iterator[tuple[str, str | None, list[tuple[float | None, str]]]]:
    """Give the pictures of position: of every series on one dataset, of the head on several; then where maps peak."""
    several = len(analysis.datasets) > 1
    for dataset in analysis.datasets:
        by_label = {entry.run.label: entry for entry in dataset.runs if entry.positions}
        for label in [head.label] if several else [label for label in looks if label in by_label][:7]:
            if label in by_label:
                cells = [(cell.scores["pointing_game"].value, f"{cell.count:,}") for cell in by_label[label].positions]
                yield analysis.heading(dataset), None if several else label, cells
        if not several and head.label in by_label:
            own = f"its {'answers' if _answers_with(analysis, head) else 'maps'}"
            yield (
                f"Peaks of {looks[head.label].name if len(by_label) > 1 else own}, %",
                None,
                [(cell.peaks, "") for cell in by_label[head.label].positions],
            )


def _signed(value: float | None) -> str:
    if value is None:
        return MISSING
    # A difference of less than half a point is one all the same.
    text, sign = f"{100 * abs(value):.1f}", "+" if value > 0 else "\u2212"
    return "0" if text == "0.0" else f"{sign}{text}"


def p_words(p: float | None) -> str:
    """Return a p-value as the charts say it; small ones never read as zero."""
    if p is None:
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.0995 else f"p = {p:.2f}"


def _case_data(analysis: Analysis, count: int, progress: Progress | None, head: str) -> dict[str, Any]:
    """Return up to `count` chosen cases of every dataset, and their radiographs, each once.

    Radiographs are JPEG (10 to 40 kB each), maps grey PNG (about 6 kB a model), regions SVG paths. `progress` is called
    for every case and after the last. `head` is the label of the run that the answer is about.
    """
    parts = parts_of(analysis.datasets)
    whole = [(one, [run for run in one.runs if run.run.label not in parts]) for one in analysis.datasets]
    chosen = [(dataset, choose_cases(runs, count, head)) for dataset, runs in whole]
    total = sum(len(cases) for _, cases in chosen)
    pictures: dict[str, str] = {}
    shown: list[dict[str, Any]] = []
    for dataset, cases in chosen:
        title = analysis.heading(dataset)
        for case, maps in read_maps(dataset.runs, cases):
            if progress is not None:
                progress(len(shown), total, f"pictures of {title}")
            picture = f"{title}/{case.image_id}"
            if picture not in pictures:
                radiograph = shrunk(maps[0].pair.display, 448)
                pictures[picture] = encoded(".jpg", radiograph, (cv2.IMWRITE_JPEG_QUALITY, 78))
            region = maps[0].pair.region
            shown.append(
                {
                    "image": case.image_id,
                    "finding": case.finding,
                    "reasons": [*case.reasons],
                    "region": outline_of(region),
                    "size": [*reversed(region.shape)],
                    "panels": [_panel(one) for one in maps],
                    "dataset": title,
                    "picture": picture,
                }
            )
    if progress is not None:
        progress(total, total, "done")
    present = {panel["model"] for case in shown for panel in case["panels"]}
    models = [label for label in in_order(analysis.runs) if label in present]
    return {"pictures": pictures, "cases": shown, "models": models, "opened": head if head in present else ""}


def _panel(shown: CaseMap) -> dict[str, Any]:
    scores = shown.scores
    # Models draw on 32 x 32 cells or fewer, and 85 steps of grey compress to two thirds and look the same.
    grey = (np.round(shrunk(shown.saliency, 112) * 85) * 3).astype(np.uint8)
    panel = {
        "model": shown.run.run.label,
        "hit": round(scores.pointing_hit, 4),
        "look": scores.look,
        "dice": None if np.isnan(scores.dice) else round(scores.dice, 4),
        "probability": None if np.isnan(scores.probability) else float(f"{scores.probability:.4g}"),
        "recognised": scores.recognised,
        "peak": None if shown.peak is None else [round(share, 4) for share in shown.peak],
    }
    if (answer := shown.answer) is None:
        return panel | {"map": encoded(".png", grey, (cv2.IMWRITE_PNG_COMPRESSION, 9))}
    boxes = [[round(corner, 4) for corner in box] for box in answer.boxes or ()]
    points = [[round(share, 4) for share in point] for point in answer.points or ()]
    return panel | {"boxes": boxes, "points": points, "status": answer.status, "raw": excerpt(answer.raw)}
