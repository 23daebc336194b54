"""The report as one HTML page that needs no server and no network."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import cv2
import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs

from xbench.report.cases import COLOURS, CaseMap, choose_cases, read_maps
from xbench.report.names import model_order
from xbench.report.schema import NEAR, NUMBERS, Analysis, Estimate, RunAnalysis, in_order
from xbench.report.sentences import headlines
from xbench.report.statistics.analyse import Progress
from xbench.report.tables.table import MISSING, TIED, Table, each_note_once
from xbench.runs.maps import shrunk
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
        charts=_json(_chart_data(analysis)),
        cases=_json(_case_data(analysis, cases, progress)),
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


def _chart_data(analysis: Analysis) -> dict[str, Any]:
    """Return everything that the charts show; what does not exist is None, never NaN."""
    models = {label: run.run.model for label, run in in_order(analysis.runs).items()}
    # Each of the paper's seven models has a colour of its own in the style sheet; three are left for others.
    others = [model for model in dict.fromkeys(models.values()) if model_order(model) >= 7]
    places = {model: 7 + number % 3 for number, model in enumerate(others)}
    return {
        "models": list(models),
        "colours": [places.get(model, model_order(model)) for model in models.values()],
        "numbers": {key: {"title": number.title, "meaning": number.meaning} for key, number in NUMBERS.items()},
        "datasets": [
            {
                "title": analysis.heading(dataset),
                "findings": dataset.findings,
                "runs": [_run(run) for run in dataset.runs],
                "references": [
                    {"title": floor.title, "kind": floor.kind, "macro": _plain(floor.macro)}
                    for floor in dataset.references
                ],
            }
            for dataset in analysis.datasets
        ],
        "correlations": [
            # The page has words of its own for all datasets together.
            {**_plain(line), "dataset": None if line.dataset is None else title}
            for line, title in (*analysis.lines("models"), *analysis.lines("findings"))
            if line.points
        ],
    }


def _run(run: RunAnalysis) -> dict[str, Any]:
    return {
        "label": run.run.label,
        "macro": _plain(run.macro),
        "thresholds": [round(value, 4) for value in run.run.results.grounding.thresholds],
        "curve": _plain(run.dice_curve),
        "areas": _plain(run.areas),
        "positions": _plain(run.positions),
        "quadrants": _plain({finding: shares for finding, shares in run.quadrants.items() if shares.count}),
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: estimates as [value, low, high], other parts of an analysis by field."""
    if isinstance(value, Estimate):
        return [_plain(number) for number in (value.value, value.low, value.high)]
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _case_data(analysis: Analysis, count: int, progress: Progress | None = None) -> dict[str, Any]:
    """Return up to `count` chosen cases of every dataset, and their radiographs, each once.

    Radiographs are JPEG (10 to 40 kB each), maps grey PNG (about 6 kB a model), regions SVG paths. `progress` is called
    for every case and after the last.
    """
    chosen = [(dataset, choose_cases(dataset.runs, count)) for dataset in analysis.datasets]
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
                pictures[picture] = _base64(".jpg", radiograph, (cv2.IMWRITE_JPEG_QUALITY, 78))
            region = maps[0].pair.region
            shown.append(
                {
                    "image": case.image_id,
                    "finding": case.finding,
                    "reasons": case.reasons,
                    "region": _outline(region),
                    "size": [*reversed(region.shape)],
                    "panels": [_panel(one) for one in maps],
                    "dataset": title,
                    "picture": picture,
                }
            )
    if progress is not None:
        progress(total, total, "done")
    return {"pictures": pictures, "cases": shown}


def _panel(shown: CaseMap) -> dict[str, Any]:
    scores = shown.scores
    # Models draw on 32 x 32 cells or fewer, and 85 steps of grey compress to two thirds and look the same.
    grey = (np.round(shrunk(shown.saliency, 112) * 85) * 3).astype(np.uint8)
    return {
        "model": shown.run.run.label,
        "hit": round(scores.pointing_hit, 4),
        "look": scores.look,
        "dice": round(scores.dice, 4),
        "probability": float(f"{scores.probability:.4g}"),
        "recognised": scores.recognised,
        "peak": [round(share, 4) for share in shown.peak],
        "map": _base64(".png", grey, (cv2.IMWRITE_PNG_COMPRESSION, 9)),
    }


def _outline(region: NDArray[np.bool_]) -> str:
    """Draw the border of a region (H, W) along the edges of its pixels, as a path in pixels of the grid."""
    # OpenCV draws through the centres of pixels. At twice the size, with a border, halving leads to the nearest edge.
    twice = np.pad(region.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1), 1)
    contours, _ = cv2.findContours(twice, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    # Half a pixel is less than a screen shows, and most of what a ragged outline weighs.
    tolerance = max(1.0, max(region.shape) / 224) / 2
    smooth = [cv2.approxPolyDP(contour // 2, tolerance, True)[:, 0] for contour in contours]
    return "".join("M" + "L".join(f"{x} {y}" for x, y in points) + "Z" for points in smooth)


def _base64(ending: str, image: NDArray[np.uint8], options: tuple[int, int]) -> str:
    done, encoded = cv2.imencode(ending, image, options)
    if not done:
        raise ValueError(f"a picture of {image.shape} {image.dtype} cannot be encoded as {ending}")
    return base64.b64encode(encoded.tobytes()).decode("ascii")
