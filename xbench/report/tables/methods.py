"""A methods paragraph to paste into a paper, and a filled checklist, from what was run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xbench.findings.conditions import FILLS
from xbench.report.names import count_of, listed, model_title, training_of
from xbench.report.schema import Analysis, DatasetAnalysis, RunAnalysis
from xbench.report.tables.table import Table, row, table_of
from xbench.runtime.yaml_files import load_yaml

_ITEMS = load_yaml(Path(__file__).with_name("checklist.yaml"))
_PARTS = (
    "models",
    "datasets",
    "units",
    "measures",
    "thresholds",
    "interventions",
    "uncertainty",
    "missing",
    "software",
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
        "et al., BMJ 385, e078378) that the runs answer. The other items are about your study."
    )
    return table_of("checklist", "Checklist", caption, ["CLAIM", "TRIPOD+AI", "Topic", "Answer"], [], rows)


def _facts(analysis: Analysis) -> dict[str, str]:
    """Return sentences without their full stop by name; what is not known, or does not apply, is empty."""
    runs = analysis.runs
    return {
        "models": _models(runs),
        "datasets": "The data were " + listed([_dataset(analysis, dataset) for dataset in analysis.datasets]),
        "units": "Intervals and tests count as independent: "
        + _each([(analysis.heading(of), entry.evidence) for of in analysis.datasets for entry in of.runs]),
        "preprocessing": "Each model's own preprocessing, which results.json states. Maps were scored on "
        + listed(_distinct(_grid(entry) for entry in runs)),
        "subsets": _each(
            [(entry.run.label, f"The first {limit} images") for entry in runs if (limit := _data(entry).get("limit"))]
        ),
        "measures": "We measured recognition by AUROC, average precision, F1 and accuracy, and grounding by the "
        "pointing game, Dice and IoU; means are over findings",
        "thresholds": _thresholds(analysis),
        "uncertainty": "Intervals are 95%" + _tests(analysis),
        "interventions": _interventions(runs),
        "explanations": _explanations(runs),
        "missing": "No image was left out"
        if not any(_skipped(entry) for entry in runs)
        else "Images that could not "
        "be read were left out: " + _each([(entry.run.label, str(_skipped(entry))) for entry in runs]),
        "readers": _readers(analysis),
        "counts": _each([(analysis.heading(of), _counts(of)) for of in analysis.datasets]),
        "attributes": "",
        "software": "We used " + listed(_distinct(_versions(entry) for entry in runs)),
    }


def _models(runs: Sequence[RunAnalysis]) -> str:
    weights: dict[str, list[str]] = {}
    for entry in runs:
        digest = entry.run.results.provenance.get("checkpoint_sha256")
        weights.setdefault(model_title(entry.run.model), []).append(f"SHA-256 {digest:.12}..." if digest else "")
    named = [f"{model} ({listed(known)})" if (known := _distinct(of)) else model for model, of in weights.items()]
    trained = {model_title(entry.run.model): entry.run.trained_on for entry in runs if entry.run.trained_on}
    supervised = [f"; {model} is supervised and was {training_of(labels)}" for model, labels in trained.items()]
    return f"We evaluated {listed(named)} without any training of our own{''.join(supervised)}"


def _thresholds(analysis: Analysis) -> str:
    said = ["F1 and accuracy are at a probability of 0.5"]
    if any(not entry.run.results.answered for entry in analysis.runs):
        by = listed(_distinct(entry.clustered_by for entry in analysis.runs))
        said.append(
            "Dice and IoU of maps are at 0.5 after min-max normalization, and at the threshold that is best on the "
            f"other folds ({analysis.folds} folds of {by})"
        )
    if any(entry.run.results.answered for entry in analysis.runs):
        said.append("Dice and IoU of answers are those of the boxes as they were given")
    return ". ".join(said)


def _tests(analysis: Analysis) -> str:
    if not any(dataset.comparisons for dataset in analysis.datasets):
        return ""
    by = listed(_distinct(entry.clustered_by for entry in analysis.runs))
    return f". Models were compared by exchanging their outputs on random {by}; p-values were corrected after Holm"


def _dataset(analysis: Analysis, dataset: DatasetAnalysis) -> str:
    images = max((entry.run.results.counts.images for entry in dataset.runs), default=0)
    of = f"split {dataset.split}: {count_of(images, 'image')}, {count_of(len(dataset.findings), 'finding')}"
    return f"{analysis.heading(dataset)} ({of})"


def _counts(dataset: DatasetAnalysis) -> str:
    whole = max(dataset.runs, key=lambda entry: entry.run.results.counts.images, default=None)
    of_findings = whole.run.results.counts.per_finding.values() if whole else ()
    positives, scored = (sum(getattr(one, name) for one in of_findings) for name in ("positives", "with_region"))
    evidence = whole.evidence if whole else "no image"
    return f"{evidence}; {count_of(positives, 'pair')} of image and present finding, {scored:,} with a region"


def _readers(analysis: Analysis) -> str:
    found = []
    for dataset in analysis.datasets:
        agreement = np.concatenate([entry.run.rows["reader_dice"] for entry in dataset.runs[:1]] or [np.zeros(0)])
        if len(known := agreement[~np.isnan(agreement)]):
            found.append((analysis.heading(dataset), f"{known.mean():.2f} over {count_of(len(known), 'pair')}"))
    return f"Mean Dice between two readers: {_each(found)}" if found else ""


def _interventions(runs: Sequence[RunAnalysis]) -> str:
    """Say how regions were hidden; nothing if no run did so."""
    names = [name for entry in runs for name in _data(entry).get("interventions") or ()]
    fills = [name for name in FILLS if name in names]
    if not fills:
        return ""
    subset = _distinct(count_of(pairs, "pair") for entry in runs if (pairs := _data(entry).get("pairs")))
    chosen = f"up to {listed(subset)} of image and finding, in equal shares of the findings," if subset else "each pair"
    return (
        f"To see whether scores depend on the lesion, we hid the annotated region of {chosen} in the radiograph's own "
        "pixels, dilated by 2% of the shorter side, and compared the drop of the score with that for a patch of the "
        f"same shape where nothing is annotated (fills: {listed(fills)})"
    )


def _explanations(runs: Sequence[RunAnalysis]) -> str:
    what = "Saliency maps" if any(not entry.run.results.answered for entry in runs) else "Boxes"
    how = "by overlap with annotated regions, against floors that ignore the image"
    return f"{what} were checked {how}{', and by hiding regions' if _interventions(runs) else ''}"


def _versions(entry: RunAnalysis) -> str:
    provenance = entry.run.results.provenance
    versions = provenance.get("versions") or {}
    source = provenance.get("source_sha256")
    about = f"xbench {versions.get('xbench', 'unknown')}" + (f" (source SHA-256 {source:.12}...)" if source else "")
    return f"{about} with PyTorch {versions.get('torch', 'of an unknown version')}"


def _grid(entry: RunAnalysis) -> str:
    data = _data(entry)
    grid, gamma = data.get("grid"), data.get("gamma")
    pixels = "the pixels of each image" if grid == "native" else f"a grid of {' x '.join(map(str, grid or ()))} pixels"
    return f"{pixels}, where a pixel belongs to a region if annotations cover at least {gamma:g} of it"


def _data(entry: RunAnalysis) -> dict[str, Any]:
    return entry.run.results.provenance.get("data") or {}


def _skipped(entry: RunAnalysis) -> int:
    return len(entry.run.results.counts.skipped)


def _distinct(texts: Any) -> list[str]:
    return [*dict.fromkeys(text for text in texts if text)]


def _each(facts: Sequence[tuple[str, str]]) -> str:
    """Return facts with what each is about; what all have in common once."""
    texts = _distinct(text for _, text in facts)
    return texts[0] if len(texts) == 1 else "; ".join(_distinct(f"{about}: {text}" for about, text in facts))
