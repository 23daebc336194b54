"""A methods paragraph to paste into a paper, and a filled checklist, from what was run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xbench.findings.conditions import FILLS, LEAST
from xbench.report.names import count_of, listed, model_title, training_of
from xbench.report.schema import Analysis, DatasetAnalysis, RunAnalysis
from xbench.report.tables.table import Table, row, table_of
from xbench.runs.results import Results
from xbench.runtime.strict import load_yaml

_ITEMS = load_yaml(Path(__file__).with_name("checklist.yaml"))
_PARTS = (
    *("models", "datasets", "units", "measures", "thresholds", "references", "interventions"),
    *("uncertainty", "missing", "software"),
)
"""Facts of the paragraph, in its order."""


def methods(analysis: Analysis) -> str:
    """Return a methods paragraph of the report's runs; empty without a model."""
    facts = _facts(analysis) if analysis.runs else {}
    return " ".join(f"{facts[part]}." for part in _PARTS if facts.get(part))


def checklist(analysis: Analysis) -> Table:
    """Return the items of CLAIM 2024 and TRIPOD+AI that the report's runs answer, filled in."""
    facts = _facts(analysis) if analysis.runs else {}
    rows = [
        row(item.get("claim", ""), item.get("tripod", ""), item["topic"], item["answer"].format_map(facts))
        for item in _ITEMS
        if facts and all(facts.get(name, item) for name in facts if f"{{{name}}}" in item["answer"])
    ]
    caption = (
        "Items of CLAIM 2024 (Tejani et al., Radiology: Artificial Intelligence 6, e240300) and of TRIPOD+AI (Collins "
        "et al., BMJ 385, e078378) that the runs answer. You must answer the rest yourself."
    )
    return table_of("checklist", "Checklist", caption, ["CLAIM", "TRIPOD+AI", "Topic", "Answer"], [], rows)


def _facts(analysis: Analysis) -> dict[str, str]:
    """Return sentences without their period, by name; empty if unknown or not applicable."""
    runs = analysis.runs
    of_runs = [(analysis.heading(dataset), entry) for dataset in analysis.datasets for entry in dataset.runs]
    data = {entry.run.label: entry.run.results.provenance.get("data") or {} for entry in runs}
    limits = [(label, f"The first {of['limit']} images") for label, of in data.items() if of.get("limit")]
    counts = [(entry.run.label, len(entry.run.results.counts.skipped)) for entry in runs]
    skipped = [(label, str(count)) for label, count in counts if count]
    missing = f"Images that could not be read were left out: {_each(skipped)}"
    shown = [entry for entry in runs if not entry.run.results.in_words]
    recognized = any(entry.macro["auroc"].value is not None for entry in shown)
    grounded = [entry for entry in shown if entry.macro["pointing_game"].value is not None]
    answers = [entry.run.results.answers for entry in grounded if entry.run.results.answers]
    maps, boxes = len(grounded) > len(answers), any(of.kind == "boxes" for of in answers)
    by = listed(_distinct(entry.clustered_by for entry in runs))
    interventions = _interventions(analysis, [*data.values()])
    thresholds = recognized * ["F1 and accuracy were computed at a probability threshold of 0.5"] + maps * [
        "Dice and IoU of maps were computed at 0.5 after min-max normalization, and at the threshold that is best on "
        f"the other folds ({analysis.folds} folds of {by})"
    ]
    thresholds += boxes * ["Dice and IoU of answers were computed from the boxes as given"]
    measured = ["recognition by AUROC, average precision, F1 and accuracy"] * recognized
    measured += [f"grounding by the pointing game{', Dice and IoU' * (maps or boxes)}"] * bool(grounded)
    measures = [f"We measured {', and '.join(measured)}; means are over findings"] * bool(measured)
    measures += _of_answers([entry.run.results for entry in grounded])
    measures += ["We compared stated sides and zones with those of the regions"] * any(of.words for of in runs)
    compared = f". Models were compared by randomly swapping outputs within {by}; p-values were Holm-corrected"
    checked = "were checked by overlap with annotated regions, against floors that ignore the image"
    checked += ", and by hiding regions" * bool(interventions)
    explained = listed(["saliency maps"] * maps + _distinct(of.kind for of in answers) or [""])
    units = [(of, f"the {entry.clustered_by.removesuffix('s')} ({entry.evidence})") for of, entry in of_runs]
    known = [one for dataset in analysis.datasets for one in dataset.references]
    titles = {kind: _distinct(one.title for one in known if one.kind == kind) for kind in ("floor", "ceiling")}
    beside = " and ".join(f"{kind}s ({listed(of)})" for kind, of in titles.items() if of)
    return {
        "models": _models(runs),
        "datasets": "The data were "
        + listed([f"{analysis.heading(dataset)} ({_counts(dataset)})" for dataset in analysis.datasets]),
        "units": f"The unit of analysis for intervals and tests was {_each(units)}",
        "subsets": _each(limits),
        "measures": ". ".join(measures),
        "tables": "Tables grounding and classification of this report" if shown else "Table words of this report",
        "failures": "Tables quadrants, by_area and by_position of this report, and its cases" * bool(shown),
        "thresholds": ". ".join(thresholds) * bool(shown),
        "references": f"We also scored {beside}" * bool(beside),
        "uncertainty": "Intervals are 95% confidence intervals"
        + compared * any(dataset.comparisons for dataset in analysis.datasets),
        "interventions": interventions,
        "explanations": f"{explained.capitalize()} {checked}" if explained else "",
        "missing": missing if skipped else "No images were excluded",
        "readers": _readers(analysis),
        "attributes": _attributes(analysis),
        "software": "We used " + listed(_distinct(map(_software, runs))),
    }


def _of_answers(results: Sequence[Results]) -> list[str]:
    boxes = "Boxes were also scored without a grid, by IoU, IoU above 0.5, and precision and recall at an IoU of 0.5"
    read = []
    for of in (one.answers for one in results if one.answers and not one.box_file):
        lost = 100 * ((of.overall["unparsable"] or 0.0) + (of.overall["truncated"] or 0.0))
        format_ = "xbench's own format" if of.family == "endpoint" else f"the format of {of.family}"
        read.append(f"in {format_} ({lost:.1f}% could not be read completely)")
    said = [boxes] * any(one.answered == "boxes" for one in results)
    said += [f"Answers were read {listed(_distinct(read))}"] if read else []
    answered = any(one.answers for one in results)
    return said + ["A present finding without a box or point counts as a miss"] * answered


def _models(runs: Sequence[RunAnalysis]) -> str:
    weights: dict[str, list[str]] = {}
    for entry in runs:
        digest = entry.run.results.provenance.get("checkpoint_sha256")
        weights.setdefault(model_title(entry.run.model), []).append(f"SHA-256 {digest:.12}..." if digest else "")
    named = [f"{model} ({listed(known)})" if (known := _distinct(of)) else model for model, of in weights.items()]
    trained = {model_title(entry.run.model): entry.run.trained_on for entry in runs if entry.run.trained_on}
    supervised = [f"; {model} is supervised and was {training_of(labels)}" for model, labels in trained.items()]
    return f"We evaluated {listed(named)}{''.join(supervised)}. No model was trained or tuned during the evaluation"


def _counts(dataset: DatasetAnalysis) -> str:
    if not dataset.runs:
        return "references only"
    run = _most_images(dataset).run
    whole, unknown = run.results.counts, int((run.rows["label"] == -1).sum())
    positives = sum(of.positives for of in whole.per_finding.values())
    scored = sum(of.with_region for of in whole.per_finding.values())
    images = {*run.rows.image[run.rows["scored"]].tolist()}
    patients = {run.rows.patient_ids[image] for image in images} - {None}
    of_all = {*run.rows.patient_ids} - {None}
    return (
        f"split {dataset.split}: {count_of(whole.images, 'image')}"
        + f" of {count_of(len(of_all), 'patient')}" * bool(of_all)
        + f", {count_of(len(dataset.findings), 'finding')}, {count_of(positives, 'positive')}, {scored:,} with a region"
        + f" in {count_of(len(images), 'image')}" * bool(scored)
        + f" of {count_of(len(patients), 'patient')}" * bool(patients)
        + f", {count_of(unknown, 'unknown label')}" * bool(unknown)
    )


def _most_images(dataset: DatasetAnalysis) -> RunAnalysis:
    return max(dataset.runs, key=lambda entry: entry.run.results.counts.images)


def _readers(analysis: Analysis) -> str:
    of_datasets = [(of, of.runs[0].run.rows["reader_dice"]) for of in analysis.datasets if of.runs]
    found = [
        (analysis.heading(dataset), f"{known.mean():.2f} over {count_of(len(known), 'pair')}")
        for dataset, agreement in of_datasets
        if len(known := agreement[~np.isnan(agreement)])
    ]
    return f"Mean Dice between two readers: {_each(found)}" if found else ""


def _attributes(analysis: Analysis) -> str:
    found = [
        (analysis.heading(dataset), f"{one.attribute} {one.name}: {one.images:,}")
        for dataset in analysis.datasets
        for one in dataset.subgroups
        if one.images is not None and one.label == _most_images(dataset).run.label
    ]
    return f"Images by group: {'; '.join(f'{of}: {text}' for of, text in found)}" if found else ""


def _interventions(analysis: Analysis, data: Sequence[Mapping[str, Any]]) -> str:
    fills = [name for name in FILLS if any(name in (of.get("interventions") or ()) for of in data)]
    subset = _distinct(count_of(pairs, "pair") for of in data if (pairs := of.get("pairs")))
    chosen = f"up to {listed(subset)} of image and finding, equally many per finding," if subset else "each pair"
    tested = [one for dataset in analysis.datasets for one in dataset.interventions]
    few = bool(tested) and all(one.dependence == "too few" for one in tested)
    text = (
        f"To test whether scores depend on the lesion, we hid the annotated region of {chosen} in the original pixels "
        "of the radiograph, dilated by 2% of the shorter side, and compared the drop of the score with that for a "
        f"patch of the same shape without annotations (fills: {listed(fills or [''])})"
    )
    end = f". No finding had the {LEAST} pairs that a result needs" * few
    return f"{text}{end}" if fills else ""


def _software(entry: RunAnalysis) -> str:
    versions, source = (entry.run.results.provenance.get(name) for name in ("versions", "source_sha256"))
    known = versions or {}
    about = f"xbench {known.get('xbench', 'unknown')}" + (f" (source SHA-256 {source:.12}...)" if source else "")
    return f"{about} with PyTorch {known.get('torch', 'of an unknown version')}"


def _distinct(texts: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(text for text in texts if text)]


def _each(facts: Sequence[tuple[str, str]]) -> str:
    """Return facts with their subjects, or once if all are equal."""
    texts = _distinct(text for _, text in facts)
    return texts[0] if len(texts) == 1 else "; ".join(_distinct(f"{about}: {text}" for about, text in facts))
