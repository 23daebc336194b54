"""Log a finished run to Weights & Biases: numbers and a table per finding, charts, overlays, its files as an artifact.

Keys are the same in every run, so that W&B overlays the panels of several runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import wandb

from xbench.report.cases import CaseMap, ChosenCase, choose_cases, read_maps
from xbench.report.colors import tinted
from xbench.report.runs import Run
from xbench.report.schema import Estimate, Reference, RunAnalysis
from xbench.report.statistics.analyze import FOLDS, analyze_run
from xbench.report.statistics.measures import measure
from xbench.report.statistics.references import references
from xbench.report.statistics.sample import Sample
from xbench.runs.answers import excerpt
from xbench.runs.files import PAIRS, PREDICTIONS
from xbench.runs.results import Results
from xbench.scoring.numbers import macro_mean

# Classes of masks and boxes, after those of the findings; one byte in a mask.
_FIXED, _BEST, _POINTED = 253, 254, 255
_LONGEST = 1000
"""Rows of a table of pairs or answers."""


def log_run(target: Any, run: Run, pictures: int) -> None:
    """Log a finished run to the W&B run `target`, with up to `pictures` overlays."""
    results, measures = run.results, measure(Sample.of(run), FOLDS)
    entry, floors = analyze_run(run, measures), references(run, measures.sample, (), FOLDS)
    target.config.update({"settings": dict(run.settings), "provenance": results.provenance}, allow_val_change=True)
    # The summary feeds tables of runs; as panels they would be too many.
    target.summary.update({name: value for name, value in _summary(entry, floors) if value is not None})
    for step, rows in (("threshold", _curves(results)), ("area_decile", _areas(entry))):
        # Line plots, which W&B overlays and averages by group.
        target.define_metric(step, hidden=True, summary="none")
        for part in dict.fromkeys(name.split("/")[0] for row in rows for name in row if name != step):
            target.define_metric(f"{part}/*", step_metric=step, summary="none")
        for row in rows:
            target.log(row)
    panels = {"findings": _findings_table(results), "per_image": _pairs_table(run), **_charts(results)}
    if results.answered:
        panels["answers"] = _answers_table(run)
    if chosen := read_chosen_maps(entry, pictures):
        images = [_overlay(case, shown, results) for case, shown in chosen]
        panels |= {"overlays": images, "cases": _cases_table(chosen, images)}
    target.log(panels)
    _log_files(target, run)


def _summary(entry: RunAnalysis, others: Sequence[Reference]) -> Iterator[tuple[str, float | None]]:
    results = entry.run.results
    for part, scores in (("grounding", results.grounding), ("classification", results.classification)):
        for name, mean in scores.macro.items():
            for finding, numbers in scores.per_class.items():
                yield f"{name}/{finding}", getattr(numbers, name)
            if mean is not None and name in entry.macro:
                yield f"{part}/{name}_low", entry.macro[name].low
                yield f"{part}/{name}_high", entry.macro[name].high
                for other in others:
                    title = other.title.lower().replace(" ", "_")
                    yield f"{part}/{name}_{title}", other.macro.get(name, Estimate(None)).value
    for finding in results.findings:
        for name, value in results.box_numbers.get(finding, {}).items():
            yield f"answers/{name}/{finding}", value


def _curves(results: Results) -> list[dict[str, float | None]]:
    scored = [scores for scores in results.grounding.per_class.values() if scores.count and results.masks > 1]
    curves = {f"curves/{kind}": [getattr(one, f"{kind}_curve") for one in scored] for kind in ("dice", "iou")}
    return [
        {"threshold": threshold, **{name: macro_mean(one[place] for one in of) for name, of in curves.items()}}
        for place, threshold in enumerate(results.grounding.thresholds if scored else ())
    ]


def _areas(entry: RunAnalysis) -> list[dict[str, float | None]]:
    area = entry.run.rows["region_area"][entry.run.rows.counts.row]
    return [
        {
            "area_decile": 10 * place / len(entry.areas),
            "by_area/dice_fixed": part.scores["dice_fixed"].value,
            "by_area/pointing_game": part.scores["pointing_game"].value,
            "by_area/region_area": float(area[(part.low <= area) & (area <= part.high)].mean()),
        }
        for place, part in enumerate(entry.areas, start=1)
    ]


def _findings_table(results: Results) -> wandb.Table:
    numbers = (*results.grounding.macro, "dice_best_threshold", *results.classification.macro)
    rows = []
    for finding in results.findings:
        counts = results.counts.per_finding[finding]
        scores = {**vars(results.grounding.per_class[finding]), **vars(results.classification.per_class[finding])}
        rows.append([finding, counts.positives, counts.with_region, *(scores[name] for name in numbers)])
    return wandb.Table(["finding", "positives", "with_region", *numbers], rows)


def _pairs_table(run: Run) -> wandb.Table:
    """Return the scored pairs from the worst Dice to the best; of very many the two ends."""
    of, scored = run.rows, run.rows.counts.row
    order = scored[np.argsort(of["dice"][scored], kind="stable")]
    if len(order) > _LONGEST:
        order = np.concatenate([order[: _LONGEST // 2], order[-_LONGEST // 2 :]])
    numbers = ("probability", "pointing_hit", "dice", "iou", "region_area")
    rows, texts = [], dict(enumerate(of.texts))
    for row in order.tolist():
        known = [None if np.isnan(value) else value for value in (float(of[name][row]) for name in numbers)]
        names = of.image_ids[of.image[row]], of.patient_ids[of.image[row]], of.queries[of.query[row]]
        rows.append([*names, texts.get(int(of.text[row])), *known])
    return wandb.Table(["image_id", "patient_id", "finding", "text", *numbers], rows)


def _answers_table(run: Run) -> wandb.Table:
    columns = ("image_id", "finding", "query", "status", "boxes", "suspect_frame", "probability", "raw")
    answers = [answer for of_image in run.stored.answers.values() for answer in of_image][:_LONGEST]
    counts = [None if one.boxes is None else len(one.boxes) for one in answers]
    shown = [vars(one) | {"boxes": n, "raw": excerpt(one.raw)} for one, n in zip(answers, counts, strict=True)]
    return wandb.Table([*columns], [[values[name] for name in columns] for values in shown])


def _charts(results: Results) -> dict[str, Any]:
    grounded = {finding: scores for finding, scores in results.grounding.per_class.items() if scores.count}
    charts: dict[str, Any] = {}
    for kind, title in (("dice", "Dice"), ("iou", "IoU")) if grounded and results.masks > 1 else ():
        name, x = f"{kind}_curve", results.grounding.thresholds
        ys, title = [getattr(scores, name) for scores in grounded.values()], f"Mean {title} by threshold"
        charts[name] = wandb.plot.line_series(x, ys, [*grounded], title, "threshold", split_table=True)
    auroc = {finding: results.classification.per_class[finding].auroc for finding in grounded}
    points = [[name, auroc[name], one.pointing_game] for name, one in grounded.items() if auroc[name] is not None]
    if points:
        charts["auroc_pointing_game"] = scatter(["finding"], points, "Pointing game by AUROC, a point per finding")
    return charts


def scatter(names: Sequence[str], points: Sequence[Sequence[Any]], title: str) -> Any:
    """Return a chart of points, each with its names, AUROC and pointing game."""
    table = wandb.Table(columns=[*names, "auroc", "pointing_game"], data=[[*point] for point in points])
    return wandb.plot.scatter(table, x="auroc", y="pointing_game", title=title, split_table=True)


def _cases_table(chosen: Sequence[tuple[ChosenCase, CaseMap]], images: Sequence[wandb.Image]) -> wandb.Table:
    numbers = ("probability", "recognized", "pointing_hit", "dice")
    rows = []
    for (case, shown), image in zip(chosen, images, strict=True):
        scores = [None if (value := getattr(shown.scores, name)) != value else value for name in numbers]
        names = ", ".join(case.reasons), case.image_id, case.finding
        rows.append([*names, *scores, image, wandb.Image(shown.pair.display)])
    return wandb.Table(["example_of", "image_id", "finding", *numbers, "overlay", "radiograph"], rows)


def _log_files(target: Any, run: Run) -> None:
    results = run.results
    # W&B takes no other characters.
    name = re.sub(r"[^\w.-]", "_", f"{results.model}_{results.dataset}", flags=re.ASCII)[:128]
    about = f"{results.model} on {results.dataset} ({results.split}), {results.counts.images} images"
    metadata = {"settings": dict(run.settings), "macro": results.macro}
    artifact = wandb.Artifact(name, type="results", description=about, metadata=metadata)
    # No maps or pictures, because readers of the numbers may not be allowed to see patients' images.
    answers = [PREDICTIONS] if results.answered else []
    for name in ("results.json", PAIRS, "config.yaml", *answers):
        artifact.add_file(str(run.folder / name), name)
    commit = results.provenance.get("git_commit")
    short = [re.sub(r"^([0-9a-f]{12})[0-9a-f]*", r"\1", commit)] if commit else []
    target.log_artifact(artifact, aliases=["latest", *short])


def read_chosen_maps(entry: RunAnalysis, count: int) -> list[tuple[ChosenCase, CaseMap]]:
    """Return up to `count` pairs of a run (see `choose_cases`) with their maps."""
    return [(case, shown) for case, (shown,) in read_maps([entry], choose_cases([entry], count))]


def _overlay(case: ChosenCase, shown: CaseMap, results: Results) -> wandb.Image:
    """Return the radiograph tinted by the map, with its masks and boxes.

    A finding's class is its index in the results, so that all pictures share names and colors.
    """
    labels, own = dict(enumerate(results.findings, start=1)), 1 + results.findings.index(case.finding)
    region, scores, answer = shown.pair.region, shown.scores, shown.answer
    height, width = region.shape
    best = results.grounding.per_class[case.finding].dice_best_threshold
    best = 0.5 if best is None else best
    masks = {"region": {"mask_data": region.astype(np.uint8) * np.uint8(own), "class_labels": labels}}
    layers = [("map_fixed", _FIXED, 0.5, "map >= 0.5"), ("map_best", _BEST, best, "map >= best threshold")]
    for name, kind, threshold, label in layers if answer is None else layers[:1]:
        # float32, as the thresholds of the sweep.
        mask = (shown.saliency >= np.float32(threshold)).astype(np.uint8) * np.uint8(kind)
        masks[name] = {"mask_data": mask, "class_labels": {kind: label}}
    pointed = []
    if answer is not None:
        corners = np.reshape(answer.boxes or (), (-1, 4)) * (width, height, width, height)
        pointed = corners.round().astype(int).tolist()
    elif shown.peak is not None:
        reach = max(1, round(0.015 * max(height, width)))
        x, y = int(shown.peak[0] * width), int(shown.peak[1] * height)
        pointed = [[max(0, x - reach), max(0, y - reach), min(width, x + reach + 1), min(height, y + reach + 1)]]
    # Boxes of the twenty largest parts of the region: left, top, right, bottom in pixels, half-open.
    _, _, parts, _ = cv2.connectedComponentsWithStats(region.astype(np.uint8), connectivity=8)
    largest = sorted(parts[1:].tolist(), key=lambda part: -part[cv2.CC_STAT_AREA])[:20]
    around = [[left, top, left + wide, top + high] for left, top, wide, high, _ in largest]
    numbers = {"probability": scores.probability, "dice": scores.dice, "pointing_hit": scores.pointing_hit}
    numbers = {name: value for name, value in numbers.items() if not np.isnan(value)}
    name, label = ("peak", "maximum of the map") if answer is None else ("answer", "answered box")
    boxes = {
        "region": _boxes(around, own, case.finding, numbers, labels),
        name: _boxes(pointed, _POINTED, label, numbers, {_POINTED: label}),
    }
    caption = f"{', '.join(case.reasons)} | {case.image_id} | {case.finding} | p {scores.probability:.2f} | "
    caption += f"Dice {scores.dice:.2f} | {scores.look} | "
    caption += f"best threshold {best:.2f}" if answer is None else str(answer.status)
    return wandb.Image(tinted(shown.pair.display, shown.saliency), caption=caption, masks=masks, boxes=boxes)


def _boxes(
    corners: Sequence[Sequence[int]], kind: int, caption: str, scores: dict[str, float], labels: dict[int, str]
) -> dict[str, Any]:
    sides = ("minX", "minY", "maxX", "maxY")
    about = {"domain": "pixel", "class_id": kind, "box_caption": caption, "scores": scores}
    found = [{"position": dict(zip(sides, place, strict=True)), **about} for place in corners]
    return {"box_data": found, "class_labels": labels}
