"""Model cards: what a report found of each model, as hubs of models read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from xbench.report.names import model_title
from xbench.report.schema import NUMBERS, Analysis, Estimate, RunAnalysis
from xbench.report.statistics.correlation import own_settings
from xbench.report.tables.table import escaped
from xbench.runtime.files import write_whole

# What the hub calls tasks and metrics.
_TASKS = {
    "grounding": ("image-segmentation", "Grounding of findings on chest radiographs"),
    "classification": ("zero-shot-image-classification", "Recognition of findings on chest radiographs"),
}
_METRICS = {
    "pointing_game": "pointing_game",
    "dice_cross_fitted": "dice",
    "dice_fixed": "dice",
    "auroc": "roc_auc",
    "average_precision": "average_precision",
}


def write_cards(analysis: Analysis, folder: Path) -> list[Path]:
    """Write a card `MODEL.md` for each model of a report into a folder, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    models = dict.fromkeys(run.run.model for run in analysis.runs)
    paths = {model: folder / (re.sub(r"[^\w.-]+", "_", model) + ".md") for model in models}
    for model, path in paths.items():
        write_whole(path, card(analysis, model))
    return [*paths.values()]


def card(analysis: Analysis, model: str) -> str:
    """Return the card of a model: numbers of its own settings as YAML, then those of all its runs as Markdown."""
    title = model_title(model)
    results: list[EvalResult] = []
    for dataset in analysis.datasets:
        for run in own_settings(dataset.runs):
            if run.run.model == model:
                of_dataset = analysis.heading(dataset), dataset.dataset, dataset.split
                results += (_result(run, key, *of_dataset) for key in _METRICS if run.number(key).value is not None)
    # The hub takes a model without results for a mistake.
    data = ModelCardData(model_name=title, eval_results=results) if results else ModelCardData()
    head = data.to_yaml(line_break="\n").strip()
    return f"---\n{head}\n---\n\n" + "\n".join(_section(analysis, model, title)) + "\n"


def _result(run: RunAnalysis, key: str, heading: str, dataset: str, split: str) -> EvalResult:
    estimate, results, (task, task_name) = run.number(key), run.run.results, _TASKS[NUMBERS[key].group]
    settings = {name: value for name, value in run.run.settings.items() if not name.startswith("scored_")}
    interval = {"interval_95": _ends(estimate)} if _ends(estimate) else {}
    return EvalResult(
        task_type=task,
        task_name=task_name,
        dataset_type=dataset,
        dataset_name=heading,
        dataset_split=split,
        dataset_args={
            "images": results.counts.images,
            "findings": list(results.findings),
            "labels_digest": run.run.settings["scored_labels"],
            "regions_digest": run.run.settings["scored_regions"],
            "xbench": str((results.provenance.get("versions") or {}).get("xbench", "unknown")),
            "settings": settings,
        },
        metric_type=_METRICS[key],
        metric_name=f"{NUMBERS[key].title}, mean over findings",
        metric_value=round(estimate.value or 0.0, 4),
        metric_args={**interval, "clusters": f"{run.clusters} {run.clustered_by}"},
    )


def _ends(estimate: Estimate) -> list[float]:
    return [round(end, 4) for end in (estimate.low, estimate.high) if end is not None]


def _section(analysis: Analysis, model: str, title: str) -> Iterator[str]:
    shown = [key for key in _METRICS if any(run.number(key).value is not None for run in analysis.runs)]
    yield "## Evaluation\n"
    yield (
        f"Does {escaped(title)} look at the lesion? Means over findings in percent, with 95% intervals in brackets. "
        "The floor is the best score of any rule that ignores the image.\n"
    )
    yield f"| Dataset | Run | Images | {' | '.join(NUMBERS[key].title for key in shown)} |"
    yield f"| :--- | :--- | ---: |{' ---: |' * len(shown)}"
    for dataset in analysis.datasets:
        where = f"{escaped(analysis.heading(dataset))}, {escaped(dataset.split)}"
        runs = [run for run in dataset.runs if run.run.model == model]
        for run in runs:
            cells = " | ".join(_percent(run.number(key)) for key in shown)
            yield f"| {where} | {escaped(run.run.label)} | {run.run.results.counts.images} | {cells} |"
        if runs:
            cells = " | ".join(_percent(Estimate(dataset.floor(key).value)) for key in shown)
            yield f"| {where} | *floor* | \u2013 | {cells} |"
    yield ""
    yield from (f"- {NUMBERS[key].title}: {NUMBERS[key].meaning}" for key in shown)


def _percent(estimate: Estimate) -> str:
    if estimate.value is None:
        return "\u2013"
    between = f" [{', '.join(f'{100 * end:.1f}' for end in _ends(estimate))}]" if _ends(estimate) else ""
    return f"{100 * estimate.value:.1f}{between}"
