"""The three films of the light box: a map on the lesion, a right label with the peak outside, and both wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.report.answer import whole
from xbench.report.cases import CaseMap, ChosenCase, read_maps, typical_cases
from xbench.report.page.pictures import encoded, outline_of
from xbench.report.schema import RunAnalysis
from xbench.runs.maps import shrunk

_RAMP = np.array([(0x73, 0x1A, 0x05), (0xDB, 0x52, 0x08), (0xFA, 0x9E, 0x1A), (0xFF, 0xE0, 0x73)], np.float64)
_CLEAR = 0.18
"""Below this the map is clear, so that the film can be seen."""


@dataclass(frozen=True)
class Film:
    """A film with the map of one run: JPEG and PNG in base64, the outline as an SVG path in a square of 100.

    `peak` is where the map is highest, in per cent of width and height; `finding`, `called` and `said` are the caption.
    """

    finding: str
    called: str
    said: str
    film: str
    map: str
    outline: str
    peak: tuple[float, float]


def films_of(entries: Sequence[tuple[str, RunAnalysis]]) -> dict[str, Film]:
    """Return a typical film of each outcome, `hit`, `elsewhere` and `missed`, of a series' runs by dataset's heading.

    Only outcomes with a film; runs that kept no maps give none.
    """
    found: dict[str, Film] = {}
    chosen = typical_cases([entry for _, entry in entries])
    for outcome, (place, case) in chosen.items():
        title, entry = entries[place]
        for _, (shown,) in read_maps([entry], [case]):
            found[outcome] = _film(shown, case, title if len(entries) > 1 else "")
    return found


def _film(shown: CaseMap, case: ChosenCase, dataset: str) -> Film:
    scores, (height, width) = shown.scores, shown.pair.region.shape
    called = {True: "recognised", False: "not recognised", None: "no threshold"}[scores.recognised]
    where = "inside the outline"
    if not scores.grounded:
        share = whole(scores.peak_distance)
        where = f"{share}% of the film\u2019s width away" if share != "0" else "just beside the outline"
    on = f" in {dataset}" if dataset else ""
    probability = "< 0.001" if scores.probability < 0.001 else f"{scores.probability:.3f}"
    said = f" (probability {probability}). The peak is {where}."
    radiograph = shrunk(shown.pair.display, 448)
    return Film(
        case.finding,
        f"{on}, {called}",
        said,
        encoded(".jpg", radiograph, (cv2.IMWRITE_JPEG_QUALITY, 80)),
        encoded(".png", coloured(shrunk(shown.saliency, 160)), (cv2.IMWRITE_PNG_COMPRESSION, 9)),
        outline_of(shown.pair.region, (100 / width, 100 / height)),
        (100 * shown.peak[0], 100 * shown.peak[1]),
    )


def coloured(saliency: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a map (H, W) in [0, 1] as blue, green, red and opacity (H, W, 4); what is low is clear."""
    steps = np.round(saliency.astype(np.float64) * 40) / 40
    place = steps * (len(_RAMP) - 1)
    first = np.clip(place.astype(np.int64), 0, len(_RAMP) - 2)
    share = (place - first)[..., None]
    colour = _RAMP[first] * (1 - share) + _RAMP[first + 1] * share
    opacity = 200 * np.clip((steps - _CLEAR) / (1 - _CLEAR), 0, 1) ** 0.8
    return np.concatenate([colour[..., ::-1], opacity[..., None]], axis=-1).round().astype(np.uint8)
