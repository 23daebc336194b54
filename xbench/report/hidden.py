"""Cases of interventions: an image unchanged, with the lesion hidden, and with an equal patch hidden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.findings.conditions import CONTROL, HIDE
from xbench.geometry.hiding import Hiding, dilated
from xbench.report.cases import choose_in_turns
from xbench.report.runs import Run
from xbench.report.schema import InterventionAnalysis
from xbench.scoring.interventions import intervened, keys_of

CASES = 6


@dataclass(frozen=True)
class HiddenCase:
    """A pair and its images (H, W): unchanged, region hidden, control hidden; each with mask and probability."""

    image_id: str
    finding: str
    reason: str
    fill: str
    aspect: float  # width of the radiograph over its height
    films: tuple[tuple[NDArray[np.uint8], NDArray[np.bool_], float | None], ...]


def hidden_cases(run: Run, found: InterventionAnalysis) -> Iterator[HiddenCase]:
    """Yield cases of the first fill, drawn again on stored pictures; none of a run that kept no pictures."""
    kept, pairs = run.cases(), intervened(run.rows, run.stored.changed)
    if kept is None or pairs is None or not found.fills:
        return
    fill: Any = found.main[0].fill
    columns, rows = pairs.columns[fill], pairs.rows
    uses, hit = columns[found.number], np.nan_to_num(pairs.overlap) >= 0.5
    if np.isnan(uses).all():
        return
    elsewhere = columns["control_drop" if found.number == "use" else "control_flip_rate"]
    # Worth of each pair by reason; NaN for one without it.
    worths = {
        "largest use": np.where(uses > 0, uses, np.nan),
        "pointed at, use nearest to 0": np.where(hit, -np.abs(uses), np.nan),
        "lowest use": np.where(uses < 0, -uses, np.nan),
        "used but not pointed at": np.where(~hit & (uses > 0), uses, np.nan),
        "largest effect of the patch": np.where(elsewhere > 0, elsewhere, np.nan),
        "use nearest to the median": -np.abs(uses - np.nanmedian(uses)),
    }
    # NaN comes last.
    rankings = {name: np.argsort(-of, kind="stable")[: (~np.isnan(of)).sum()].tolist() for name, of in worths.items()}
    hide, control = f"{HIDE}{fill}", f"{CONTROL}{fill}"
    under = {"": rows, **run.stored.changed}
    keys = {name: keys_of(under[name]) for name in ("", hide, control)}
    chosen: dict[int, list[str]] = {}
    choose_in_turns(rankings, CASES, chosen)
    for place, (reason, *_) in chosen.items():
        image, query = key = keys[""][pairs.row[place]]
        pair, at = kept.read(image, query), {name: of.index(key) for name, of in keys.items()}
        hidden = dilated(pair.region)
        moved = _moved(hidden[:, ::-1], *(float(under[control][f"changed_{axis}"][at[control]]) for axis in "xy"))
        masks, hiding = {"": pair.region, hide: hidden, control: moved & ~hidden}, Hiding(pair.display, image)
        films = []
        for name, mask in masks.items():
            film = hiding.fill(mask, hidden, fill) if name and mask.any() else pair.display
            probability = float(under[name]["probability"][at[name]])
            films.append((film, mask, None if np.isnan(probability) else probability))
        yield HiddenCase(image, rows.findings[pairs.finding[place]], reason, fill, pair.aspect, tuple(films))


def _moved(mask: NDArray[np.bool_], x: float, y: float) -> NDArray[np.bool_]:
    """Return a mask (H, W) moved by whole pixels to a center at these shares of width and height."""
    height, width = mask.shape
    rows, columns = np.nonzero(mask)
    right, down = round(x * width - columns.mean() - 0.5), round(y * height - rows.mean() - 0.5)
    moved = cv2.warpAffine(mask.astype(np.uint8), np.array([[1.0, 0, right], [0, 1, down]]), (width, height))
    return np.asarray(moved > 0)
