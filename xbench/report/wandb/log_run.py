"""Log a finished run to Weights & Biases: numbers and a table per finding, charts, overlays, its files as an artifact.

Every key is the same in every run, so that the panels of several runs lie on top of each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import wandb

from xbench.report.cases import CaseMap, ChosenCase, choose_cases, read_maps
from xbench.report.overlay import tinted
from xbench.report.runs import Run
from xbench.report.schema import RunAnalysis
from xbench.report.statistics.analyse import FOLDS
from xbench.report.statistics.lesions import area_groups, quadrants
from xbench.report.statistics.measures import measure
from xbench.report.statistics.references import references
from xbench.report.statistics.sample import Sample
from xbench.runs.answers import AnswerRow, excerpt
from xbench.runs.files import ANSWERS, CURVES, PER_IMAGE
from xbench.runs.results import Results, macro_mean

# Classes of masks and boxes: behind the findings, of which a mask of bytes takes as many.
_FIXED, _BEST, _PEAK = 253, 254, 255
_ANSWER = "answered box"
_MAP_LABELS = {_FIXED: "map >= 0.5", _BEST: "map >= best threshold", _PEAK: "maximum of the map"}


def log_run(target: Any, run: Run, pictures: int) -> None:
    """Log a finished run to the W&B run `target`, with up to `pictures` overlays."""
    results = run.results
    target.config.update({"settings": dict(run.settings), "provenance": results.provenance}, allow_val_change=True)
    # In the summary, for columns of runs and parallel coordinates: they would be too many panels.
    target.summary.update(_intervals_and_floors(run))
    for part in (results.grounding, results.classification):
        for finding, scores in part.per_class.items():
            numbers = {f"{name}/{finding}": getattr(scores, name) for name in part.macro}
            target.summary.update({name: value for name, value in numbers.items() if value is not None})
    if (answers := results.answers) is None:
        _log_curves(target, results)
    else:
        for finding, numbers in answers.per_class.items():
            found = {f"answers/{name}/{finding}": value for name, value in numbers.items() if value is not None}
            target.summary.update(found)
    _log_areas(target, Sample.of(run))
    panels = {"findings": _findings_table(results), "per_image": _pairs_table(run), **_charts(results)}
    if run.stored.answers is not None:
        panels["answers"] = _answers_table([row for rows in run.stored.answers.values() for row in rows][:1000])
    if chosen := read_chosen_maps(run, pictures):
        images = [_overlay(case, shown, results) for case, shown in chosen]
        panels |= {"overlays": images, "cases": _cases_table(chosen, images)}
    target.log(panels)
    _log_files(target, run)


def _intervals_and_floors(run: Run) -> dict[str, float]:
    """Return both ends of the macro numbers' 95% intervals, and what floors and readers get on the same images."""
    sample, results = Sample.of(run), run.results
    macro = measure(sample, FOLDS).macro()
    others = references(run, sample, (), FOLDS)
    found: dict[str, float | None] = {}
    for part, values in (("grounding", results.grounding.macro), ("classification", results.classification.macro)):
        for name in (name for name, value in values.items() if value is not None and name in macro):
            found |= {f"{part}/{name}_low": macro[name].low, f"{part}/{name}_high": macro[name].high}
            for other in others:
                if (estimate := other.macro.get(name)) is not None:
                    found[f"{part}/{name}_{other.title.lower().replace(' ', '_')}"] = estimate.value
    return {key: value for key, value in found.items() if value is not None}


def _log_curves(target: Any, results: Results) -> None:
    """Log macro Dice and IoU as `curves/*` over `threshold`: line plots, which W&B overlays and averages by group."""
    target.define_metric("threshold", hidden=True, summary="none")
    target.define_metric("curves/*", step_metric="threshold", summary="none")
    scored = [scores for scores in results.grounding.per_class.values() if scores.count]
    for place, threshold in enumerate(results.grounding.thresholds if scored else ()):
        means = {
            f"curves/{kind}": macro_mean([getattr(scores, f"{kind}_curve")[place] for scores in scored])
            for kind in ("dice", "iou")
        }
        target.log({"threshold": threshold, **means})


def _log_areas(target: Any, sample: Sample) -> None:
    """Log grounding by decile of the regions' area as `by_area/*` over `area_decile`, smallest first."""
    target.define_metric("area_decile", hidden=True, summary="none")
    target.define_metric("by_area/*", step_metric="area_decile", summary="none")
    groups = area_groups(sample)
    for place, group in enumerate(groups, start=1):
        target.log(
            {
                # Fewer than 100 pairs make fewer groups, which share the ten deciles among them.
                "area_decile": 10 * place / len(groups),
                "by_area/dice_fixed": float(sample.dice[group, sample.fixed].mean()),
                "by_area/pointing_game": float(sample.hit[group].mean()),
                "by_area/region_area": float(sample.area[group].mean()),
            }
        )


def _findings_table(results: Results) -> wandb.Table:
    numbers = (*results.grounding.macro, "dice_best_threshold", *results.classification.macro)
    table = wandb.Table(columns=["finding", "positives", "with_region", *numbers])
    for finding in results.findings:
        counts = results.counts.per_finding[finding]
        scores = {**vars(results.grounding.per_class[finding]), **vars(results.classification.per_class[finding])}
        table.add_data(finding, counts.positives, counts.with_region, *[scores[name] for name in numbers])
    return table


def _pairs_table(run: Run) -> wandb.Table:
    """Return the scored pairs from the worst Dice to the best; of very many the two ends."""
    images, findings = run.images, run.results.findings
    pairs = np.argwhere(images.scored)
    order = np.argsort(images.dice[images.scored], kind="stable")
    if len(order) > 1000:
        order = np.concatenate([order[:500], order[-500:]])
    scores = {
        "probability": images.probabilities,
        **{name: getattr(images, name) for name in ("pointing_hit", "dice", "iou", "region_area")},
    }
    table = wandb.Table(columns=["image_id", "patient_id", "finding", *scores])
    for row, column in pairs[order].tolist():
        names = images.image_ids[row], images.patient_ids[row], findings[column]
        found = [float(values[row, column]) for values in scores.values()]
        table.add_data(*names, *[None if np.isnan(value) else value for value in found])
    return table


def _answers_table(rows: Sequence[AnswerRow]) -> wandb.Table:
    """Return what a model answered, of long answers the end."""
    columns: list[str | int] = [
        "image_id",
        "finding",
        "query",
        "status",
        "boxes",
        "suspect_frame",
        "probability",
        "raw",
    ]
    table = wandb.Table(columns=columns)
    for row in rows:
        boxes = None if row.boxes is None else len(row.boxes)
        told = row.image_id, row.finding, row.query, row.status, boxes, row.suspect_frame, row.probability
        table.add_data(*told, excerpt(row.raw))
    return table


def _charts(results: Results) -> dict[str, Any]:
    grounded = {finding: scores for finding, scores in results.grounding.per_class.items() if scores.count}
    if not grounded:
        return {}
    # Boxes are one mask: there is nothing to sweep.
    charts: dict[str, Any] = (
        {}
        if results.answers is not None
        else {
            f"{kind}_curve": wandb.plot.line_series(
                xs=results.grounding.thresholds,
                ys=[getattr(scores, f"{kind}_curve") for scores in grounded.values()],
                keys=list(grounded),
                title=f"Mean {title} by threshold",
                xname="threshold",
                split_table=True,
            )
            for kind, title in (("dice", "Dice"), ("iou", "IoU"))
        }
    )
    points = [
        [finding, auroc, scores.pointing_game]
        for finding, scores in grounded.items()
        if (auroc := results.classification.per_class[finding].auroc) is not None
    ]
    if points:
        charts["auroc_pointing_game"] = wandb.plot.scatter(
            wandb.Table(columns=["finding", "auroc", "pointing_game"], data=points),
            x="auroc",
            y="pointing_game",
            title="Pointing game by AUROC, a point per finding",
            split_table=True,
        )
    return charts


def _cases_table(chosen: Sequence[tuple[ChosenCase, CaseMap]], images: Sequence[wandb.Image]) -> wandb.Table:
    """Return the overlays with their scores, to be sorted, filtered and grouped, beside the bare radiograph."""
    numbers = ("probability", "recognised", "pointing_hit", "dice")
    table = wandb.Table(columns=["example_of", "image_id", "finding", *numbers, "overlay", "radiograph"])
    for (case, shown), image in zip(chosen, images, strict=True):
        scores = [None if (value := getattr(shown.scores, name)) != value else value for name in numbers]
        names = ", ".join(case.reasons), case.image_id, case.finding
        table.add_data(*names, *scores, image, wandb.Image(shown.pair.display))
    return table


def _log_files(target: Any, run: Run) -> None:
    results = run.results
    artifact = wandb.Artifact(
        # W&B takes no other characters.
        re.sub(r"[^\w.-]", "_", f"{results.model}_{results.dataset}", flags=re.ASCII)[:128],
        type="results",
        description=f"{results.model} on {results.dataset} ({results.split}), {results.counts.images} images",
        metadata={"settings": dict(run.settings), "macro": results.macro},
    )
    # Neither maps nor pictures: whoever may read the numbers need not be allowed to see the patients' images.
    answers = [ANSWERS] if results.answers is not None else []
    for name in ("results.json", "per_class.csv", PER_IMAGE, CURVES, "config.yaml", *answers):
        artifact.add_file(str(run.folder / name), name)
    aliases = ["latest"]
    if commit := results.provenance.get("git_commit"):
        aliases.append(re.sub(r"^([0-9a-f]{12})[0-9a-f]*", r"\1", commit))
    target.log_artifact(artifact, aliases=aliases)


def read_chosen_maps(run: Run, count: int) -> list[tuple[ChosenCase, CaseMap]]:
    """Return up to `count` pairs of a run that are most worth a look (see `choose_cases`), with their maps."""
    # The choice needs no more of an analysis than which pairs were recognised.
    analysis = RunAnalysis(run, "images", 0, {}, {}, (), {}, (), (), quadrants(Sample.of(run), run))
    return [(case, shown) for case, (shown,) in read_maps([analysis], choose_cases([analysis], count))]


def _overlay(case: ChosenCase, shown: CaseMap, results: Results) -> wandb.Image:
    """Return the radiograph tinted by the map, with its masks and boxes.

    A finding's place in the results gives its class, so that all pictures agree on names and colours.
    """
    labels = dict(enumerate(results.findings, start=1))
    own = 1 + results.findings.index(case.finding)
    region, scores = shown.pair.region, shown.scores
    best = results.grounding.per_class[case.finding].dice_best_threshold
    best = 0.5 if best is None else best
    masks = {"region": {"mask_data": region.astype(np.uint8) * np.uint8(own), "class_labels": labels}}
    said = shown.answer is not None
    for name, class_id, threshold in (("map_fixed", _FIXED, 0.5), ("map_best", _BEST, best))[: 1 if said else 2]:
        # float32, as the thresholds of the sweep.
        mask = (shown.saliency >= np.float32(threshold)).astype(np.uint8) * np.uint8(class_id)
        masks[name] = {"mask_data": mask, "class_labels": {class_id: _MAP_LABELS[class_id]}}
    numbers = {"probability": scores.probability, "dice": scores.dice, "pointing_hit": scores.pointing_hit}
    numbers = {name: value for name, value in numbers.items() if not np.isnan(value)}
    height, width = shown.saliency.shape
    marked = []
    if shown.answer is not None:
        answered = np.reshape(shown.answer.boxes or (), (-1, 4)) * (width, height, width, height)
        marked = [(x0, y0, x1, y1) for x0, y0, x1, y1 in answered.round().astype(int).tolist()]
    elif shown.peak is not None:
        reach = max(1, round(0.015 * max(height, width)))
        x, y = int(shown.peak[0] * width), int(shown.peak[1] * height)
        marked = [(max(0, x - reach), max(0, y - reach), min(width, x + reach + 1), min(height, y + reach + 1))]
    # Round the twenty largest separate parts of the region: left, top, right, bottom in pixels, half-open.
    _, _, parts, _ = cv2.connectedComponentsWithStats(region.astype(np.uint8), connectivity=8)
    largest = sorted(parts[1:].tolist(), key=lambda part: -part[cv2.CC_STAT_AREA])[:20]
    corners = [(left, top, left + width, top + height) for left, top, width, height, _ in largest]
    pointed = _ANSWER if said else _MAP_LABELS[_PEAK]
    kinds = {
        "region": (own, case.finding, labels, corners),
        "answer" if said else "peak": (_PEAK, pointed, {_PEAK: pointed}, marked),
    }
    boxes = {
        kind: {
            "box_data": [
                {
                    "position": dict(zip(("minX", "minY", "maxX", "maxY"), place, strict=True)),
                    "domain": "pixel",
                    "class_id": class_id,
                    "box_caption": said,
                    "scores": numbers,
                }
                for place in places
            ],
            "class_labels": class_labels,
        }
        for kind, (class_id, said, class_labels, places) in kinds.items()
    }
    caption = f"{', '.join(case.reasons)} | {case.image_id} | {case.finding} | p {scores.probability:.2f} | "
    caption += f"Dice {scores.dice:.2f} | {scores.look} | "
    caption += f"best threshold {best:.2f}" if shown.answer is None else str(shown.answer.status)
    return wandb.Image(tinted(shown.pair.display, shown.saliency), caption=caption, masks=masks, boxes=boxes)
