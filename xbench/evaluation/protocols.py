"""Maps of a stored run scored by a named protocol: a table of pairs, and the numbers that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xbench.evaluation.detections import SIZES, answered, check_answered, detection_numbers, ranked, sizes_of
from xbench.geometry.coverage import Coverage
from xbench.geometry.grid import Upsampling, View, saliency_on_grid
from xbench.geometry.shapes import Shape
from xbench.runs.finished import FinishedRun
from xbench.runs.maps import SavedImage, no_maps
from xbench.runtime.errors import UserError
from xbench.scoring.calibration import calibration_numbers
from xbench.scoring.lesions import components, mask_overlaps
from xbench.scoring.maps import map_measures, pointing_with_tolerance
from xbench.scoring.protocols import aep, chexlocalize, g2g, graded, medground
from xbench.scoring.protocols.common import Mask, first_maximum, stretched
from xbench.scoring.protocols.registry import PROTOCOLS, RATIOS, Average

Table = dict[str, NDArray[Any]]
"""Columns of pairs: `index`, `image_id`, `column` (of the finding), `label`, `probability`, `chance`, and numbers."""


@dataclass(frozen=True)
class Pair:
    """A finding on an image: its map, and what is annotated.

    Attributes:
        cells: Raw map (h, w), in the frame of the model input.
        region: (H, W) on the grid, empty where the finding is absent.
        scale: Of the map.
        view: Part of the radiograph that the map shows.
        items: Annotated one by one; none where only the region is known.
        gamma: Share of a pixel of the grid that an annotation must cover.
        present: Whether the finding is on the image.
    """

    cells: NDArray[np.float32]
    region: Mask
    scale: str
    view: View
    items: tuple[Shape, ...]
    gamma: float
    present: bool

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the grid."""
        return self.region.shape[0], self.region.shape[1]

    def on_grid(self, mode: Upsampling = "bilinear", cells: NDArray[Any] | None = None) -> NDArray[np.float32]:
        """Return the map, or other cells (h, w) in its place, on the grid with the arithmetic of a run."""
        values = torch.from_numpy(self.cells if cells is None else cells.astype(np.float32, copy=False))
        return saliency_on_grid(values[None], [self.view], self.size, mode)[0].numpy()

    def boxes(self) -> list[list[float]]:
        """Return the boxes around the annotated items, in pixels of the grid, half-open.

        Where several readers drew, or only the region is known, those around its connected parts.
        """
        height, width = self.size
        found = [box for item in self.items if (box := item.box()) is not None]
        if found and len({item.reader for item in self.items}) == 1:
            return [[x0 * width, y0 * height, x1 * width, y1 * height] for x0, y0, x1, y1 in found]
        return [[*map(float, box)] for box in medground.boxes_of_region(self.region)]

    def lesions(self) -> list[Mask]:
        """Return the annotated items on the grid, one by one."""
        return [Coverage.of(item.draw(), self.size).at(self.gamma) for item in self.items]


Scorer = Callable[[Pair, Upsampling], dict[str, Any] | None]
"""Gives the values of a pair, or None if it says nothing of it."""


def _xbench(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    saliency, region = pair.on_grid(mode), pair.region
    mask = stretched(saliency) >= np.float32(0.5)
    both, size = int(np.count_nonzero(mask & region)), int(np.count_nonzero(mask)) + int(np.count_nonzero(region))
    values = map_measures(saliency, region)
    # Below 0 there is no mass: such maps have another zero.
    values["mass_accuracy"] = values["mass_accuracy"] if pair.cells.min() >= 0 else math.nan
    pointing = pointing_with_tolerance(saliency, region, 0)
    return values | {"pointing": pointing, "dice": 2 * both / size, "iou": both / (size - both)}


def _aep(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    crop = aep.central(pair.size)
    saliency, region = pair.on_grid(cells=aep.smoothed(pair.cells))[crop], pair.region[crop]
    sharp = aep.score(aep.sharpened(saliency), region)
    return aep.score(saliency, region) | {"miou_sharpened": sharp["miou"], "cnr_sharpened": sharp["cnr"]}


def _biovil(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    return dict(aep.score_cosine(pair.on_grid(cells=aep.smoothed(pair.cells)), pair.region))


def _chexlocalize(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    return dict(chexlocalize.count(pair.on_grid(), pair.region))


def _radzero(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    raw, region = pair.on_grid(), pair.region
    saliency = _graded(raw, pair.scale)
    mask, overlap = graded.count_above(saliency, region, graded.RADZERO_THRESHOLDS)
    row, column = first_maximum(raw)
    inside = [left <= column <= right and top <= row <= bottom for left, top, right, bottom in pair.boxes()]
    return {
        "highest": float(saliency.max()),
        "mask": mask,
        "overlap": overlap,
        "region": int(region.sum()),
        "hit": float(any(inside)) if inside else math.nan,
    }


def _graded(saliency: NDArray[np.float32], scale: str) -> NDArray[np.float32]:
    return graded.sigmoid(saliency) if scale == "logit" else saliency


def _chex(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    mask, overlap = graded.count_above(stretched(pair.on_grid()), pair.region, graded.CHEX_THRESHOLDS)
    return {"mask": mask, "overlap": overlap, "region": int(pair.region.sum())}


def _with_last(boxes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return boxes whose last row and column belong to them as half-open ones."""
    return [[left, top, right + 1, bottom + 1] for left, top, right, bottom in boxes]


def _medground(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    published, true = medground.boxes_of_map(pair.on_grid()), pair.boxes()
    corrected = medground.score_union(_with_last(published), true)
    return medground.score_union(published, true) | {
        "iou_corrected": corrected["iou"],
        "f1_corrected": corrected["f1"],
    }


def _radvlm(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    return dict(medground.radvlm(_with_last(medground.boxes_of_map(pair.on_grid())), pair.boxes()))


def _radfact(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    sides = np.array([*pair.size[::-1]] * 2)
    boxes = (_with_last(medground.boxes_of_map(pair.on_grid())), pair.boxes())
    predicted, true = ([(np.array(box) / sides).tolist() for box in some] for some in boxes)
    return dict(medground.radfact(predicted, true))


def _g2g(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    cells = g2g.cells_of_mask(pair.cells, g2g.threshold(pair.cells))
    mask = np.rint(pair.on_grid(cells=cells)) > 0
    return g2g.score(mask, pair.on_grid(cells=stretched(pair.cells)), pair.region)


def _alarms(pair: Pair, mode: Upsampling) -> dict[str, Any]:
    saliency, region = _graded(pair.on_grid(mode), pair.scale), pair.region
    mask, overlap = graded.count_above(saliency, region, _alarm_thresholds(pair.scale))
    return {"pixels": region.size, "mask": mask, "overlap": overlap, "region": int(region.sum())}


def _alarm_thresholds(scale: str) -> tuple[float, ...]:
    return graded.ALARM_THRESHOLDS["cosine" if scale == "cosine" else "probability"]


def _lesions(pair: Pair, mode: Upsampling) -> dict[str, Any] | None:
    """Count which annotated items the parts of a map on the grid find; None if no item is known.

    An item is as large as what it takes of the grid.
    """
    lesions = pair.lesions()
    if not lesions:
        return None
    _, covered = mask_overlaps(components(stretched(pair.on_grid(mode)) >= np.float32(0.5)), lesions)
    found = covered.max(axis=0, initial=0) >= 0.5
    sizes = sizes_of(np.array([mask.mean() for mask in lesions]))
    counts = {"found": int(found.sum()), "lesions": len(lesions), "images": 1}
    for place, size in enumerate(SIZES):
        counts |= {f"found_{size}": int(found[sizes == place].sum()), f"lesions_{size}": int((sizes == place).sum())}
    return counts | {"false": int((covered.max(axis=1, initial=0) == 0).sum())}


def _detections(pair: Pair, mode: Upsampling) -> dict[str, Any] | None:
    """Rank the parts of a map by their highest value; None where the finding is present and no item is known."""
    lesions = pair.lesions()
    if pair.present and not lesions:
        return None
    saliency = pair.on_grid(mode)
    parts = components(stretched(saliency) >= np.float32(0.5))
    scores = np.array([saliency[part].max() for part in parts], np.float64)
    return ranked(scores, mask_overlaps(parts, lesions)[0], np.array([mask.mean() for mask in lesions]))


SCORERS: Mapping[str, Scorer] = {
    "xbench": _xbench,
    "aep": _aep,
    "biovil": _biovil,
    "chexlocalize": _chexlocalize,
    "radzero": _radzero,
    "chex": _chex,
    "radvlm": _radvlm,
    "medground": _medground,
    "g2g": _g2g,
    "radfact": _radfact,
    "alarms": _alarms,
    "lesions": _lesions,
    "detections": _detections,
}
"""Of all protocols of maps."""

TUNED = ("chexlocalize", "alarms")
"""Protocols whose thresholds can be tuned on another run."""
_SCALES = {
    "biovil": ("cosine",),
    "radzero": ("logit", "probability"),
    "alarms": ("logit", "probability", "cosine"),
    "detections": ("logit", "probability", "cosine", "attention"),
}


def check_run(name: str, scale: str, run: FinishedRun, tuned: bool) -> None:
    """Refuse a protocol that takes another scale than the maps have, or what the run did not keep."""
    if PROTOCOLS[name].of == "probabilities":
        if np.isnan(run.image_scores.probabilities).all():
            raise UserError(f"--protocol {name} is of probabilities, and {run.folder} has none.", exit_status=2)
        return
    if run.results.answers is not None:
        if name != "detections":
            raise UserError(f"--protocol {name} scores maps, and {run.results.model} answers in words.", exit_status=2)
        check_answered(run)
        return
    if run.shows_nothing:
        # Else an empty mask on an image without the finding would count as specific.
        raise UserError(f"--protocol {name} scores maps, and {run.folder} has probabilities alone.", exit_status=2)
    if name in ("lesions", "detections") and not run.saves_instances:
        raise UserError(
            f"--protocol {name} takes the annotated items one by one, which {run.folder}, of an earlier version or "
            "scored again from one, did not keep: run it again.",
            exit_status=2,
        )
    if name == "alarms" and scale == "cosine" and not tuned:
        raise UserError(
            f"--protocol {name} takes thresholds of cosines from another run: give one with --tune.", exit_status=2
        )
    if scale not in _SCALES.get(name, (scale,)):
        raise UserError(
            f"--protocol {name} compares values of {' or '.join(_SCALES[name])} maps between images, and those of this "
            f"run are {scale!r}: the same value would mean something else. Choose another protocol.",
            exit_status=2,
        )


def score_images(run: FinishedRun, names: Sequence[str], scale: str, images: Sequence[SavedImage]) -> dict[str, Table]:
    """Return the tables of pairs of some saved images by protocol; a protocol without a pair among them is missing."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    scores, rules = run.image_scores, run.rules
    for image in images:
        row = run.row_of[image.image_id]
        size, nobody = rules.grid if rules.grid != "native" else size_of(image), no_maps(image.saliency)
        for column in range(len(image.saliency)):
            present = column in image.scored
            label = int(scores.labels[row, column])
            if not present and (label < 0 or not any(PROTOCOLS[name].negatives for name in names)):
                continue
            region = image.regions[column].at(rules.gamma) if present else np.zeros(size, np.bool_)

            items = image.instances.get(column, ())
            cells = np.nan_to_num(image.saliency[column])
            pair = Pair(cells, region, scale, image.view, items, rules.gamma, label == 1)
            about = {
                "index": image.index,
                "image_id": image.image_id,
                "column": column,
                "label": label,
                "probability": float(scores.probabilities[row, column]),
                "chance": np.count_nonzero(region) / region.size,
            }
            for name in names:
                asked = present or PROTOCOLS[name].negatives
                if asked and (values := SCORERS[name](pair, rules.upsampling)) is not None:
                    rows[name].append(about | (_missed(name, values, label == 1) if nobody[column] else values))
    return {name: _table(mine) for name, mine in rows.items() if mine}


def _missed(name: str, values: Mapping[str, Any], present: bool) -> dict[str, Any]:
    """Return the values of a pair whose map nobody drew: masks are empty, and a finding that is present is missed.

    Numbers of which less is better do not exist for it.
    """
    about_truth = ("pixels", "region", "chance", "images", "lesions", "iou_pairs")
    missed = dict(values)
    for key, value in values.items():
        if not key.startswith(about_truth) and not isinstance(value, list):
            missed[key] = math.nan if key in PROTOCOLS[name].lower else 0 * (np.nan_to_num(value) if present else value)
    return missed


def tables_without_maps(run: FinishedRun, names: Sequence[str]) -> dict[str, Table]:
    """Return the tables of pairs of protocols that no map is needed for: of probabilities, and of answered boxes."""
    scores, tables = run.image_scores, {}
    for name in names:
        if PROTOCOLS[name].of == "probabilities":
            rows, columns = np.nonzero((scores.labels >= 0) & ~np.isnan(scores.probabilities))
            tables[name] = {
                "index": scores.index[rows],
                "image_id": np.array(scores.image_ids)[rows],
                "column": columns,
                "label": scores.labels[rows, columns].astype(np.int64),
                "probability": scores.probabilities[rows, columns],
                "chance": np.where(scores.scored, scores.region_area, 0)[rows, columns],
            }
        elif found := answered(run):
            tables[name] = _table(found)
    return tables


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table: Table = {}
    for key, first in rows[0].items():
        if isinstance(first, list):
            # As long as there are detections.
            table[key] = np.empty(len(rows), object)
            table[key][:] = [row[key] for row in rows]
        else:
            table[key] = np.array([row[key] for row in rows])
    return table


def size_of(image: SavedImage) -> tuple[int, int]:
    """Return the size of an image's native grid.

    Raises:
        UserError: The run does not say it.
    """
    size = image.image_size or next((region.shape for region in image.regions.values()), None)
    if size is None:
        raise UserError(
            f"{image.image_id} has no region, and the run, of an earlier version, does not say how large the image is: "
            "protocols that score images without the finding need a new run on native grids."
        )
    return int(size[0]), int(size[1])


def summarise_protocol(
    name: str, table: Table, findings: Sequence[str], grid: str, tuned: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Return the numbers of a protocol from its table of pairs; adds the columns that they are means of to the table.

    Args:
        name: Of the protocol.
        table: Of the pairs.
        findings: Of the run.
        grid: `native`, or anything else.
        tuned: By finding, what was tuned on another run: of CheXlocalize `threshold` and `cutoff`, of alarms
            `threshold`, the place of one.
    """
    protocol = PROTOCOLS[name]
    column = table["column"]
    _complete(name, table, findings, tuned)
    numbers = {}
    for number, average in protocol.numbers.items():
        if number in table:
            expected = table["label"] == 0 if number in protocol.of_negatives else table["chance"] > 0
            numbers[number] = _number(number, average, table, findings, expected)
    if name == "chex":
        numbers = _chex_numbers(table, findings)
    if name in _TOGETHER:
        numbers = _numbers_together(_TOGETHER[name], table, findings)
    numbers |= {number: _ratio(parts, table, findings) for number, parts in RATIOS.get(name, {}).items()}
    if name == "radvlm":
        pairs, total = int(table["iou_pairs"].sum()), math.fsum(table["iou_sum"].tolist())
        per_finding = {}
        for place, finding in enumerate(findings):
            mine = column == place
            number_of = int(table["iou_pairs"][mine].sum())
            per_finding[finding] = math.fsum(table["iou_sum"][mine].tolist()) / number_of if number_of else None
        numbers["avg_iou"] = _entry("pairs of boxes", total / pairs if pairs else None, per_finding, [])
    chances = [math.fsum(v.tolist()) / len(v) for v in _by_finding(table, table["chance"], findings) if len(v)]
    return {
        "schema": 1,
        "protocol": name,
        "title": protocol.title(grid),
        "citation": protocol.citation,
        "flaw": protocol.flaw,
        "rule": protocol.rule,
        "frame": protocol.frame if protocol.title(grid) == name else "the whole radiograph on the evaluation grid",
        "cannot": [*protocol.cannot],
        "headline": protocol.headline,
        "pairs": len(column),
        "chance_area": math.fsum(chances) / len(chances) if chances else None,
        "tuned": None if tuned is None else {finding: dict(values) for finding, values in tuned.items()},
        "numbers": numbers,
    }


def tune(name: str, table: Table, findings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what a protocol tunes for each finding from the table of another run; null without pairs."""
    tuned: dict[str, dict[str, Any]] = {}
    for place, finding in enumerate(findings):
        mine = {key: values[table["column"] == place] for key, values in table.items()}
        if name == "alarms":
            drawn = mine["region"] > 0
            counts = [mine[key][drawn] for key in ("mask", "overlap", "region")]
            tuned[finding] = {"threshold": graded.best_dice(*counts)[1] if drawn.any() else None}
            continue
        tuned[finding] = {
            "threshold": chexlocalize.tuned_threshold(mine),
            "cutoff": chexlocalize.tuned_cutoff(mine, finding),
        }
    return tuned


def _complete(name: str, table: Table, findings: Sequence[str], tuned: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Add the columns that follow from those of several pairs or from tuned thresholds."""
    column = table["column"]
    if name == "chexlocalize":
        table["outside"] = table["pixels"] - table["region"]
        table["clear_otsu"] = table["outside"] - table["mask_otsu"] + table["overlap_otsu"]
        table["iou"], table["iou_full"] = (chexlocalize.ious(table, "otsu", full=full) for full in (False, True))
        for key in ("iou_tuned", "iou_cutoff", "iou_tuned_cutoff") if tuned else ():
            for full in (False, True):
                table[key + "_full" * full] = np.full(len(column), np.nan)
        for place, finding in enumerate(findings) if tuned else ():
            mine = column == place
            rule, cutoff = (tuned or {})[finding]["threshold"], (tuned or {})[finding]["cutoff"]
            part = {key: values[mine] for key, values in table.items()}
            empty = None if cutoff is None else part["probability"] < cutoff
            for full in (False, True):
                end = "_full" * full
                if rule is not None:
                    table[f"iou_tuned{end}"][mine] = chexlocalize.ious(part, rule, full=full)
                if cutoff is not None:
                    table[f"iou_cutoff{end}"][mine] = chexlocalize.ious(part, "otsu", empty, full)
                if rule is not None and cutoff is not None:
                    table[f"iou_tuned_cutoff{end}"][mine] = chexlocalize.ious(part, rule, empty, full)
    if name == "alarms":
        # The middle one is 0.5 of a probability.
        middle = table["mask"].shape[1] // 2
        chosen = [middle if tuned is None else tuned[finding]["threshold"] for finding in findings]
        places = np.array([-1 if place is None else place for place in chosen])[column]
        mask, overlap = (table[key][np.arange(len(column)), places] for key in ("mask", "overlap"))
        absent, present = ((table["label"] == 0) & (places >= 0), (table["region"] > 0) & (places >= 0))
        table["false_alarm"] = np.where(absent, mask > 0, np.nan)
        table["area_lit"] = np.where(absent, mask / table["pixels"], np.nan)
        table["dice"] = np.where(present, 2 * overlap / np.maximum(mask + table["region"], 1), np.nan)
        table["hit"] = np.where(present, overlap > 0, np.nan)
    if name == "radzero":
        table["dice"], table["specificity"] = np.full((2, len(column)), np.nan)
        positive = (table["label"] == 1) & (table["region"] > 0)
        for place in range(len(findings)):
            mine = positive & (column == place)
            if not mine.any():
                continue
            mask, overlap, region = (table[key][mine] for key in ("mask", "overlap", "region"))
            _, best = graded.best_dice(mask, overlap, region)
            table["dice"][mine] = 2 * overlap[:, best] / (mask[:, best] + region)
            negative = (table["label"] == 0) & (column == place)
            limit = np.float32(graded.RADZERO_THRESHOLDS[best])
            table["specificity"][negative] = table["highest"][negative].astype(np.float32) <= limit
    if name == "chex":
        # What a report compares pair by pair; the numbers are pooled.
        union = table["mask"] + table["region"][:, None] - table["overlap"]
        table["mask_miou"] = (table["overlap"] / union).mean(1)


def _chex_numbers(table: Table, findings: Sequence[str]) -> dict[str, Any]:
    per: dict[str, dict[str, float | None]] = {"mask_miou": {}, "mask_biou": {}}
    values: dict[str, float | None] = {}
    for place, finding in enumerate([None, *findings]):
        mine = np.full(len(table["column"]), True) if finding is None else table["column"] == place - 1
        ious = graded.pooled_iou(*(table[key][mine] for key in ("mask", "overlap", "region")))
        defined = not np.isnan(ious).any()
        pair = (math.fsum(ious.tolist()) / len(ious), float(ious.max())) if defined else (None, None)
        for key, value in zip(per, pair, strict=True):
            if finding is None:
                values[key] = value
            else:
                per[key][finding] = value
    return {key: _entry("pooled pixels", values[key], per[key], []) for key in per}


_TOGETHER: Mapping[str, Callable[[Table], Mapping[str, float | None]]] = {
    "detections": detection_numbers,
    "calibration": lambda table: calibration_numbers(table["label"], table["probability"]),
}
"""Protocols whose numbers are of all images of a finding together."""


def _numbers_together(
    numbers_of: Callable[[Table], Mapping[str, float | None]], table: Table, findings: Sequence[str]
) -> dict[str, Any]:
    """Numbers of a finding's images together, and means over the findings that have them."""
    each = []
    for place in range(len(findings)):
        mine = table["column"] == place
        each.append(numbers_of({key: values[mine] for key, values in table.items()}))
    numbers = {}
    for key in each[0]:
        per_finding = {finding: one[key] for finding, one in zip(findings, each, strict=True)}
        known = [value for value in per_finding.values() if value is not None]
        value = math.fsum(known) / len(known) if known else None
        numbers[key] = _entry("images", value, per_finding, [])
    return numbers


def _ratio(parts: tuple[str, str], table: Table, findings: Sequence[str]) -> dict[str, Any]:
    """Ratio of the sums of two columns over a finding's pairs, and the mean over findings that have it."""
    above, below = ([int(part.sum()) for part in _by_finding(table, table[key], findings)] for key in parts)
    shares = [a / b if b else None for a, b in zip(above, below, strict=True)]
    known = [share for share in shares if share is not None]
    value = math.fsum(known) / len(known) if known else None
    return _entry("sums", value, dict(zip(findings, shares, strict=True)), [])


def _number(
    number: str, average: Average, table: Table, findings: Sequence[str], expected: NDArray[np.bool_]
) -> dict[str, Any]:
    """Mean of a column, of the pairs where it is defined, and with the others where it is expected as 0 (`strict`)."""
    values = table[number].astype(np.float64)
    missing = np.isnan(values) & expected
    strict = np.where(missing, 0.0, values)
    pairs = [(str(table["image_id"][row]), findings[int(table["column"][row])]) for row in np.flatnonzero(missing)[:10]]
    per_finding = dict(zip(findings, map(_mean, _by_finding(table, values, findings)), strict=True))
    entry = _entry(average, _averaged(average, table, values, findings), per_finding, pairs)
    return entry | {"undefined": int(missing.sum()), "strict": _averaged(average, table, strict, findings)}


def _entry(
    average: str, value: float | None, per_finding: Mapping[str, float | None], pairs: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    first = [{"image_id": image_id, "finding": finding} for image_id, finding in pairs]
    return {
        "value": value,
        "average": average,
        "undefined": 0,
        "first_undefined": first,
        "strict": value,
        "per_finding": dict(per_finding),
    }


def _averaged(average: Average, table: Table, values: NDArray[np.float64], findings: Sequence[str]) -> float | None:
    groups = [group[~np.isnan(group)] for group in _by_finding(table, values, findings)]
    groups = [group for group in groups if len(group)]
    if not groups:
        return None
    if average == "findings":
        return math.fsum(math.fsum(group.tolist()) / len(group) for group in groups) / len(groups)
    if average == "pairs":
        return _mean(np.concatenate(groups))
    weights = [len(group) for group in groups]
    total = math.fsum(weight * value for weight, group in zip(weights, groups, strict=True) for value in group.tolist())
    return total / sum(weight**2 for weight in weights)


def _by_finding(table: Table, values: NDArray[Any], findings: Sequence[str]) -> Iterator[NDArray[Any]]:
    return (values[table["column"] == place] for place in range(len(findings)))


def _mean(values: NDArray[np.float64]) -> float | None:
    present = values[~np.isnan(values)]
    return math.fsum(present.tolist()) / len(present) if len(present) else None
