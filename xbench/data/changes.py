"""Changed versions of a radiograph: hide the region of a finding, an equal patch elsewhere, or all but the region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from xbench.data.records import PreparedImage, Radiograph, Record
from xbench.findings.conditions import CONTROL, HIDE, KEEP, NO_IMAGE, Intervention
from xbench.geometry.hiding import Fill, Hiding, control_of, dilated, image_digest
from xbench.geometry.preprocessing import Preprocessing
from xbench.geometry.regions import Coverage, area_and_centre
from xbench.runtime.errors import UserError
from xbench.scoring.rows import CHANGED
from xbench.types import Change


def changes_of(
    record: Record,
    radiograph: Radiograph,
    prepared: PreparedImage,
    pairs: Mapping[int, str],
    interventions: Sequence[Intervention],
    preprocessing: Preprocessing,
) -> list[Change]:
    """Return changed versions of a radiograph for `pairs`, query names by position; UserError if the view changes."""
    changes = []
    for condition, places, hidden, changed in _changed(record, radiograph, pairs, interventions):
        pixels, view = preprocessing.pixels(changed)
        if view != prepared.view or pixels.shape != prepared.pixels.shape:
            raise UserError(
                f"The model's preprocessing crops {record.image_id} differently once pixels are hidden, so scores "
                "cannot be compared: leave out --data.interventions."
            )
        differs = pixels != prepared.pixels
        rows, columns = (np.flatnonzero(differs.any(axis)) for axis in (1, 0))
        top, bottom = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        left, right = (int(columns[0]), int(columns[-1]) + 1) if len(rows) else (0, 0)
        facts = image_digest(changed), *area_and_centre(hidden), _share_in_view(hidden, view)
        patch = pixels[top:bottom, left:right].copy()
        changes.append(Change(condition, places, (top, left), patch, dict(zip(CHANGED, facts, strict=True))))
    return changes


def _changed(
    record: Record, radiograph: Radiograph, pairs: Mapping[int, str], interventions: Sequence[Intervention]
) -> Iterator[tuple[str, tuple[int, ...], NDArray[np.bool_], NDArray[np.uint8]]]:
    if not pairs:
        return
    size = (radiograph.image.shape[0], radiograph.image.shape[1])
    regions = {name: Coverage.of(region, size).at(0.5) for name, region in radiograph.regions.items() if region.any()}
    annotated = np.logical_or.reduce([*regions.values()])
    hiding = Hiding(radiograph.image, record.image_id)
    fills = [fill for fill in get_args(Fill) if fill in interventions]
    for place, name in pairs.items():
        hidden = dilated(regions[name])
        control = control_of(hidden, annotated, record.image_id) if fills else None
        for fill in fills:
            yield f"{HIDE}{fill}", (place,), hidden, hiding.fill(hidden, hidden, fill)
            if control is not None:
                yield f"{CONTROL}{fill}", (place,), control, hiding.fill(control, hidden, fill)
        if "keep" in interventions and not hidden.all():
            yield KEEP, (place,), ~hidden, hiding.keep(hidden)
    if "no_image" in interventions:
        yield NO_IMAGE, tuple(pairs), np.ones(size, np.bool_), hiding.no_image()


def _share_in_view(hidden: NDArray[np.bool_], view: tuple[float, float, float, float]) -> float:
    y, x = ((np.arange(side) + 0.5) / side for side in hidden.shape)
    left, top, right, bottom = view
    return float(hidden[np.ix_((top <= y) & (y <= bottom), (left <= x) & (x <= right))].sum() / hidden.sum())
