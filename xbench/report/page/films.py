"""The three films of the light box: a map on the lesion, a right label with the peak outside, and both wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from xbench.report.cases import CaseMap, ChosenCase, read_maps, typical_cases
from xbench.report.overlay import coloured
from xbench.report.page.pictures import encoded, outline_of
from xbench.report.schema import RunAnalysis
from xbench.report.words import whole
from xbench.runs.images import shrunk


@dataclass(frozen=True)
class Film:
    """A film with the map of one run: JPEG and PNG in base64, the outline as an SVG path in a square of 100.

    `peak` is where the map is highest, in per cent of width and height; `finding`, `called`, `details` are the caption.
    """

    finding: str
    called: str
    details: str
    film: str
    map: str
    outline: str
    peak: tuple[float, float] | None


def films_of(entries: Sequence[tuple[str, RunAnalysis]]) -> dict[str, Film]:
    """Return a typical film of each outcome, `hit`, `elsewhere` and `missed`, of a series' runs by dataset's heading.

    Only outcomes with a film; runs that kept no maps give none.
    """
    found: dict[str, Film] = {}
    chosen = typical_cases([entry for _, entry in entries])
    for outcome, (place, case) in chosen.items():
        title, entry = entries[place]
        for _, (shown,) in read_maps([entry], [case]):
            found[outcome] = _film(shown, case, title if len(entries) > 1 else "", entry)
    return found


def _film(shown: CaseMap, case: ChosenCase, dataset: str, entry: RunAnalysis) -> Film:
    scores, (height, width) = shown.scores, shown.pair.region.shape
    called = {True: "recognised", False: "not recognised", None: "no threshold"}[scores.recognised]
    where = "inside the outline"
    if shown.peak is None:
        where = f"nowhere, for there is no {'map' if shown.answer is None else 'box'}"
    elif not scores.grounded:
        share = whole(scores.peak_distance)
        where = f"{share}% of the film\u2019s width away" if share != "0" else "just beside the outline"
    on = f" in {dataset}" if dataset else ""
    probability = "< 0.001" if scores.probability < 0.001 else f"{scores.probability:.3f}"
    quadrants = entry.quadrants.get(case.finding)
    least = f", threshold {quadrants.threshold:.2g}" if quadrants is not None and scores.recognised is not None else ""
    details = f" (probability {probability}{least}). The peak is {where}."
    radiograph = shrunk(shown.pair.display, 448)
    over = cv2.cvtColor(coloured(shrunk(shown.saliency, 160)), cv2.COLOR_RGBA2BGRA).astype(np.uint8, copy=False)
    return Film(
        case.finding,
        f"{on}, {called}",
        details,
        encoded(".jpg", radiograph, (cv2.IMWRITE_JPEG_QUALITY, 80)),
        encoded(".png", over, (cv2.IMWRITE_PNG_COMPRESSION, 9)),
        outline_of(shown.pair.region, (100 / width, 100 / height)),
        None if shown.peak is None else (100 * shown.peak[0], 100 * shown.peak[1]),
    )
