"""Log a finished run to Weights & Biases: numbers and a table per finding, charts, overlays, its files as an artifact.

Every key is the same in every run, so that the panels of several runs lie on top of each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import wandb

from xbench.report.case_choice import ChosenCase
from xbench.report.case_pictures import CaseMap
from xbench.report.runs import Run
from xbench.report.statistics.lesions import area_groups
from xbench.report.statistics.sample import Sample
from xbench.report.wandb.overlays import overlay, read_chosen_maps
from xbench.runs.files import CURVES, PER_IMAGE
from xbench.runs.results import Results, macro_mean

_FINDINGS_COLUMNS = (
    *("finding", "positives", "with_region"),
    *("pointing_game", "dice_fixed", "dice_best", "dice_best_threshold", "iou_fixed", "iou_best"),
    *("auroc", "average_precision", "f1", "accuracy"),
)
_PAIR_COLUMNS = ("image_id", "patient_id", "finding", "probability", "pointing_hit", "dice", "iou", "region_area")
_CASE_COLUMNS = ("example_of", "image_id", "finding", "probability", "recognised", "pointing_hit", "dice")
_MOST_ROWS = 1000
# Neither maps nor pictures: whoever may read the numbers need not be allowed to see the patients' images.
_FILES = ("results.json", "per_class.csv", PER_IMAGE, CURVES, "config.yaml")


def log_run(target: Any, run: Run, pictures: int) -> None:
    """Log a finished run to the W&B run `target`, with up to `pictures` overlays."""
    results = run.results
    target.config.update({"settings": dict(run.settings), "provenance": results.provenance}, allow_val_change=True)
    target.summary.update(_per_finding(results))
    _log_curves(target, results)
    _log_areas(target, Sample.of(run))
    panels = {"findings": _findings_table(results), "per_image": _pairs_table(run), **_charts(results)}
    if chosen := read_chosen_maps(run, pictures):
        images = [overlay(case, shown, results) for case, shown in chosen]
        panels |= {"overlays": images, "cases": _cases_table(chosen, images)}
    target.log(panels)
    _log_files(target, run)


def _per_finding(results: Results) -> dict[str, float]:
    """Return numbers as `<number>/<finding>`: for columns of runs and parallel coordinates, too many for panels."""
    values = {
        f"{name}/{finding}": getattr(part.per_class[finding], name)
        for part in (results.grounding, results.classification)
        for name in part.macro
        for finding in results.findings
    }
    return {name: value for name, value in values.items() if value is not None}


def _log_curves(target: Any, results: Results) -> None:
    """Log macro Dice and IoU as `curves/*` over `threshold`: line plots, which W&B overlays and averages by group."""
    target.define_metric("threshold", hidden=True, summary="none")
    target.define_metric("curves/*", step_metric="threshold", summary="none")
    for place, threshold in enumerate(results.grounding.thresholds):
        per_class = results.grounding.per_class.values()
        means = {
            f"curves/{kind}": macro_mean(
                [curve[place] for scores in per_class if (curve := getattr(scores, f"{kind}_curve"))]
            )
            for kind in ("dice", "iou")
        }
        if None not in means.values():
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
    """Return the table per finding."""
    table = wandb.Table(columns=list(_FINDINGS_COLUMNS))
    for finding in results.findings:
        numbers = {**vars(results.grounding.per_class[finding]), **vars(results.classification.per_class[finding])}
        numbers |= {"finding": finding, "with_region": results.counts.per_finding[finding].with_region}
        table.add_data(*[numbers[column] for column in _FINDINGS_COLUMNS])
    return table


def _pairs_table(run: Run) -> wandb.Table:
    """Return the scored pairs from the worst Dice to the best; of very many the two ends."""
    images, findings = run.images, run.results.findings
    pairs = np.argwhere(images.scored)
    order = np.argsort(images.dice[images.scored], kind="stable")
    if len(order) > _MOST_ROWS:
        order = np.concatenate([order[: _MOST_ROWS // 2], order[-_MOST_ROWS // 2 :]])
    table = wandb.Table(columns=list(_PAIR_COLUMNS))
    arrays = (images.probabilities, images.pointing_hit, images.dice, images.iou, images.region_area)
    for row, column in pairs[order].tolist():
        names = images.image_ids[row], images.patient_ids[row], findings[column]
        table.add_data(*names, *[float(values[row, column]) for values in arrays])
    return table


def _charts(results: Results) -> dict[str, Any]:
    grounded = {finding: scores for finding, scores in results.grounding.per_class.items() if scores.count}
    if not grounded:
        return {}
    charts: dict[str, Any] = {}
    for kind, title in (("dice", "Dice"), ("iou", "IoU")):
        charts[f"{kind}_curve"] = wandb.plot.line_series(
            xs=results.grounding.thresholds,
            ys=[getattr(scores, f"{kind}_curve") for scores in grounded.values()],
            keys=list(grounded),
            title=f"Mean {title} by threshold",
            xname="threshold",
            split_table=True,
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
    table = wandb.Table(columns=[*_CASE_COLUMNS, "overlay", "radiograph"])
    for (case, shown), image in zip(chosen, images, strict=True):
        scores = shown.scores
        table.add_data(
            ", ".join(case.reasons),
            case.image_id,
            case.finding,
            scores.probability,
            scores.recognised,
            scores.pointing_hit,
            scores.dice,
            image,
            wandb.Image(shown.pair.display),
        )
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
    for name in _FILES:
        artifact.add_file(str(run.folder / name), name)
    aliases = ["latest"]
    if commit := results.provenance.get("git_commit"):
        aliases.append(re.sub(r"^([0-9a-f]{12})[0-9a-f]*", r"\1", commit))
    target.log_artifact(artifact, aliases=aliases)
