"""Write the report as one HTML page that needs no server and no network."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from numpy.typing import NDArray

from xbench.findings.conditions import LEAST
from xbench.report import charts, sentences
from xbench.report.cases import CaseMap, choose_cases, opposite_sides, read_maps, typical_cases
from xbench.report.colors import colored, outline
from xbench.report.facts import Facts, Standing, facts_of
from xbench.report.hidden import hidden_cases
from xbench.report.names import beside, in_thousandths, p_words, whole
from xbench.report.notes import warnings
from xbench.report.runs import Run
from xbench.report.schema import NEAR, NUMBERS, WORDS, Analysis, parts_of
from xbench.report.statistics.analyze import Progress
from xbench.report.tables.methods import methods
from xbench.report.tables.table import MISSING, TIED, Table, each_note_once, percentage, spans
from xbench.runs.answers import excerpt
from xbench.runs.images import shrunk
from xbench.runtime.files import write_whole

_LABEL, _TALL = 17.0, 400
"""Pixels between the names in a scatter, and its height."""


def write_page(
    analysis: Analysis, tables: Sequence[Table], path: Path, cases: int = 24, progress: Progress = lambda *_: None
) -> None:
    """Write the report as one self-contained HTML file, with up to `cases` cases of each dataset."""
    environment = Environment(
        loader=PackageLoader("xbench.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts = facts_of(analysis)
    head = facts.shown.head if facts.shown.rows else None
    case_data = _case_data(analysis, cases, progress, head.label if head else "")
    notes = [*analysis.notes, *(note for dataset in analysis.datasets for note in dataset.notes)]
    numbers = [*NUMBERS.values()] if head not in facts.words.rows else []
    numbers += WORDS.values() if facts.words.rows else ()
    left = each_note_once(tables, notes)

    def take(*beginnings: str) -> list[Table]:
        """Hand out the tables with names that begin like this, each once."""
        taken = [table for table in left if table.name.startswith(beginnings)]
        left[:] = [table for table in left if table not in taken]
        return taken

    text = environment.get_template("page.html").render(
        analysis=analysis,
        facts=facts,
        found=facts.shown,
        head=head,
        looks=facts.series,
        keys={label: f"k-{number}" for number, label in enumerate(facts.series)},
        many_models=len({entry.run.model for entry in analysis.runs}) > 1,
        several_datasets=len(analysis.datasets) > 1,
        sentences=sentences,
        charts=charts,
        films=_films(facts, head) if head else {},
        hidden=[*_hidden(facts, head)] if head and cases else [],
        opposite=[*_opposite([run.run for row in facts.words.rows for run in row.runs])] if cases else [],
        cases=case_data,
        # Red, green, blue and opacity of the 256 values of a map's gray picture.
        colors=colored(np.linspace(0, 1, 256, dtype=np.float32)[None])[0].tolist(),
        notes=notes,
        warnings=warnings(analysis.runs),
        own_words=sentences.own_in_words(analysis.runs),
        kinds={table.name.split("_")[0] for table in tables},
        take=take,
        calibration=sentences.calibration(tables),
        numbers=numbers,
        near=f"{100 * NEAR:g}",
        least=LEAST,
        missing=MISSING,
        tied=TIED,
        **{one.__name__: one for one in (outline, path_of, band_of, names_of, whole, p_words, spans, methods)},
        signed=_signed,
        labels_of=lambda panels: {line.label for panel in panels for line in panel.lines},
        asset=lambda name: Markup(files("xbench.report.page").joinpath("templates", name).read_text(encoding="utf-8")),
        # Such data cannot end its script element.
        as_data=partial(htmlsafe_json_dumps, dumps=partial(json.dumps, allow_nan=False, separators=(",", ":"))),
        written=partial(json.dumps, indent=2, ensure_ascii=False),
    )
    write_whole(path, text)


def _films(facts: Facts, head: Standing) -> dict[str, dict[str, Any]]:
    """Return a typical image of each outcome with its caption; places are in percent of width and height."""
    found: dict[str, dict[str, Any]] = {}
    for outcome, (place, case) in typical_cases(head.runs).items():
        entry, dataset = head.runs[place], facts.shown.datasets[place]
        _, (shown,) = next(read_maps([entry], [case]))
        scores, (height, width) = shown.scores, shown.pair.region.shape
        where = "inside the outline"
        if shown.peak is None:
            where = f"nowhere, for there is no {'map' if shown.answer is None else 'box'}"
        elif not scores.grounded:
            share = whole(scores.peak_distance)
            where = f"{share}% of the image\u2019s width away" if share != "0" else "just beside the outline"
        on = f" in {facts.analysis.heading(dataset)}" if len(head.runs) > 1 else ""
        # Only pairs of findings with a threshold are typical of an outcome.
        threshold = entry.quadrants[case.finding].threshold
        over = cv2.cvtColor(colored(shrunk(shown.saliency, 160)), cv2.COLOR_RGBA2BGRA).astype(np.uint8, copy=False)
        found[outcome] = {
            "finding": case.finding,
            "called": f"{on}, {'recognized' if scores.recognized else 'not recognized'}",
            "details": f" ({beside(scores.probability, threshold)}). The peak is {where}.",
            "film": encoded(".jpg", shrunk(shown.pair.display, 448), (cv2.IMWRITE_JPEG_QUALITY, 80)),
            "map": encoded(".png", over, (cv2.IMWRITE_PNG_COMPRESSION, 9)),
            "outline": outline_of(shown.pair.region, (100 / width, 100 / height)),
            "peak": None if shown.peak is None else (100 * shown.peak[0], 100 * shown.peak[1]),
            "aspect": shown.pair.aspect,
        }
    return found


def _hidden(facts: Facts, head: Standing) -> Iterator[dict[str, Any]]:
    for entry, dataset in zip(head.runs, facts.shown.datasets, strict=True):
        for one in (one for one in dataset.interventions if one.label == head.label):
            for case in hidden_cases(entry.run, one):
                films = [
                    {
                        "film": encoded(".jpg", shrunk(film, 320), (cv2.IMWRITE_JPEG_QUALITY, 78)),
                        "outline": outline_of(mask, (100 / mask.shape[1], 100 / mask.shape[0])),
                        "score": "" if probability is None else in_thousandths(probability),
                    }
                    for film, mask, probability in case.films
                ]
                on = f" in {facts.analysis.heading(dataset)}" if len(head.runs) > 1 else ""
                yield vars(case) | {"title": f"{case.finding}{on}: {case.reason}", "films": films}


def _opposite(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    for label, sides, pair, text in opposite_sides(runs, 10):
        film = encoded(".jpg", shrunk(pair.display, 320), (cv2.IMWRITE_JPEG_QUALITY, 78))
        outline = outline_of(pair.region, (100 / pair.region.shape[1], 100 / pair.region.shape[0]))
        title, about = f"{pair.finding}: {sides}", f"{label}, {pair.image_id}"
        yield {"title": title, "about": about, "text": text, "film": film, "outline": outline, "aspect": pair.aspect}


def _signed(value: float | None) -> str:
    # Small differences keep a digit.
    text = MISSING if value is None else percentage(value, signed=True, digits=1).replace("-", "\u2212")
    return "0" if text == "0.0" else text


def _case_data(analysis: Analysis, count: int, progress: Progress, head: str) -> dict[str, Any]:
    """Return up to `count` cases of every dataset, failures of the run `head` first, and each radiograph once."""
    parts = parts_of(analysis.datasets)
    chosen = [
        (dataset, choose_cases([run for run in dataset.runs if run.run.label not in parts], count, head))
        for dataset in analysis.datasets
    ]
    total = sum(len(cases) for _, cases in chosen)
    pictures: dict[str, str] = {}
    shown: list[dict[str, Any]] = []
    for dataset, cases in chosen:
        title = analysis.heading(dataset)
        for case, maps in read_maps(dataset.runs, cases):
            progress(len(shown), total, f"pictures of {title}")
            picture, region = f"{title}/{case.image_id}", maps[0].pair.region
            if picture not in pictures:
                radiograph = shrunk(maps[0].pair.display, 448)
                pictures[picture] = encoded(".jpg", radiograph, (cv2.IMWRITE_JPEG_QUALITY, 78))
            shown.append(
                {
                    "image": case.image_id,
                    "finding": case.finding,
                    "reasons": [*case.reasons],
                    "region": outline_of(region),
                    "size": [*reversed(region.shape)],
                    "aspect": maps[0].pair.aspect,
                    "panels": [_panel(one) for one in maps],
                    "dataset": title,
                    "picture": picture,
                }
            )
    progress(total, total, "done")
    present = {panel["model"] for case in shown for panel in case["panels"]}
    models = [label for label in analysis.by_label if label in present]
    return {"pictures": pictures, "cases": shown, "models": models, "opened": head if head in present else ""}


def _panel(shown: CaseMap) -> dict[str, Any]:
    scores = shown.scores
    # Models draw on 32 x 32 cells or fewer, and 85 steps of gray compress to two thirds and look the same.
    gray = (np.round(shrunk(shown.saliency, 112) * 85) * 3).astype(np.uint8)
    panel = {
        "model": shown.run.run.label,
        "hit": round(scores.pointing_hit, 4),
        "look": scores.look,
        "dice": None if np.isnan(scores.dice) else round(scores.dice, 4),
        "probability": None if np.isnan(scores.probability) else float(f"{scores.probability:.4g}"),
        "recognized": scores.recognized,
        "peak": None if shown.peak is None else [round(share, 4) for share in shown.peak],
    }
    if (answer := shown.answer) is None:
        return panel | {"map": encoded(".png", gray, (cv2.IMWRITE_PNG_COMPRESSION, 9))}
    boxes = [[round(corner, 4) for corner in box] for box in answer.boxes or ()]
    points = [[round(share, 4) for share in point] for point in answer.points or ()]
    return panel | {"boxes": boxes, "points": points, "status": answer.status, "raw": excerpt(answer.raw)}


def path_of(points: Iterable[tuple[float, float]]) -> str:
    """Draw a line through points, shares of width and height, in a square of 100, y downward."""
    text = "L".join(f"{100 * x:.2f} {100 - 100 * y:.2f}" for x, y in points)
    return f"M{text}" if text else ""


def band_of(ends: Sequence[tuple[float, float, float]]) -> str:
    """Draw the intervals along a line, each x, low and high, as a closed path."""
    return f"{path_of([*((x, high) for x, _, high in ends), *((x, low) for x, low, _ in reversed(ends))])}Z"


def names_of(scatter: charts.Scatter) -> Iterator[tuple[str, float, float, float, bool]]:
    """Place names beside points without overlap: text, x, y, lift, and whether right of the point."""
    places = charts.named_places(sorted(scatter.points, key=lambda point: point.y.value or 0.0), in_turn=True)
    heights = [_TALL * y for _, y, _ in places]
    # Keep the lowest and the highest readable.
    moved = charts.apart(heights, [_LABEL] * len(places), 4 - _LABEL / 2, _TALL - 3 + _LABEL / 2)
    for (x, y, text), height, place in zip(places, heights, moved, strict=True):
        yield text, x, y, place - height, x < 0.68


def outline_of(region: NDArray[np.bool_], scale: tuple[float, float] = (1, 1)) -> str:
    """Draw the border of a region (H, W) along the edges of its pixels, as a path in pixels times `scale`."""
    # OpenCV draws through centers of pixels; at twice the size, with a border, halving gives the nearest edge.
    twice = np.pad(region.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1), 1)
    contours, _ = cv2.findContours(twice, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    # Half a pixel is invisible, but most of the size of a ragged outline.
    tolerance = max(1.0, max(region.shape) / 224) / 2
    smooth = [cv2.approxPolyDP(contour // 2, tolerance, True)[:, 0] for contour in contours]
    corners = ("L".join(f"{x * scale[0]:.5g} {y * scale[1]:.5g}" for x, y in points) for points in smooth)
    return "".join(f"M{path}Z" for path in corners)


def encoded(ending: str, image: NDArray[np.uint8], options: tuple[int, int]) -> str:
    """Return a picture in base64, encoded by the ending of its format."""
    _, data = cv2.imencode(ending, image, options)
    return base64.b64encode(data.tobytes()).decode("ascii")
