"""Synthetic runs with every file that a real one leaves, of drawn scores and maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from xbench.findings.published import paper
from xbench.geometry.grid import FULL_VIEW
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape
from xbench.runs.files import IMAGES, PAIRS, PICTURES, PREDICTIONS, TRUTH
from xbench.runs.images import SavedImage, jpeg, predictions_table, table_of, truth_table
from xbench.runs.results import write_results
from xbench.runs.summary import numbers_of, summarize
from xbench.runs.tables import write_tables
from xbench.scoring.measure import measure
from xbench.scoring.rows import Rows
from xbench.types import Maps, Prediction, Query, Rules, Truth

GRID, CELLS, THRESHOLDS = 56, 14, 101
FINDINGS = ("Cardiomegaly", "Nodule", "Pneumothorax")


def write_run(
    root: Path,
    model: str,
    dataset: str = "chestxray14",
    skill: float = 0.8,
    recognition: float = 1.5,
    images: int = 60,
    seed: int = 0,
    stamp: str = "2026-01-01_00-00-00",
    findings: tuple[str, ...] = FINDINGS,
    patients: bool = True,
    with_cases: bool = True,
    **model_settings: object,
) -> Path:
    """Write `<root>/<model>_<dataset>/<stamp>/` and return it.

    Images, labels and regions depend on `seed` and `dataset` alone, so that models are comparable; scores depend on
    the model besides. `skill` is the chance that a map points at the region; `recognition` shifts logits of positives.
    """
    truth = np.random.default_rng([seed, *dataset.encode()])
    draw = np.random.default_rng([seed, *dataset.encode(), *model.encode(), *str(model_settings).encode()])
    shape = (images, len(findings))
    labels = (truth.random(shape) < 0.4).astype(np.int8)
    labels[:2] = [[1], [0]]
    labels[truth.random(shape) < 0.03] = -1
    has_region = (labels == 1) & (truth.random(shape) < 0.9)
    corners = {}
    for image, column in np.argwhere(has_region):
        height, width = np.maximum(2, (truth.random(2) * (30, 6, 12)[column % 3]).astype(int) + 2)
        top, left = (truth.random(2) * (GRID - height, GRID - width)).astype(int)
        corners[int(image), int(column)] = (top, left, top + height, left + width)
    ids = [f"image-{image:04d}" for image in range(images)]
    patient_ids = [f"patient-{image // 2:03d}" if patients else None for image in range(images)]
    logits = draw.normal(size=shape) + recognition * (labels == 1)
    maps = np.zeros((images, len(findings), CELLS, CELLS), np.float32)
    regions: dict[int, dict[int, Coverage]] = {image: {} for image in range(images)}
    for (image, column), (top, left, bottom, right) in sorted(corners.items()):
        region = np.zeros((GRID, GRID), bool)
        region[top:bottom, left:right] = True
        regions[image][column] = Coverage.of(region, (GRID, GRID))
        y, x = (top + bottom) / 2, (left + right) / 2
        if draw.random() >= skill:
            y, x = draw.random(2) * GRID
        centers = (np.arange(CELLS) + 0.5) * GRID / CELLS - 0.5
        width = 0.35 * np.sqrt((bottom - top) * (right - left)) + 3
        raw = np.exp(-((centers[:, None] - y) ** 2 + (centers - x) ** 2) / (2 * width**2))
        maps[image, column] = raw + 0.05 * draw.random((CELLS, CELLS))
    boxes = {
        pair: (Shape("box", (GRID, GRID), np.array([left, top, right, bottom], np.float64)),)
        for pair, (top, left, bottom, right) in corners.items()
    }
    queries = [Query(finding, finding) for finding in findings]
    truths = [
        Truth.of_image(
            *(image, ids[image], patient_ids[image], FULL_VIEW, None, queries, labels[image]),
            coverage=[mine.get(column) for column in range(len(findings))],
            gamma=0.5,
        )
        for image, mine in regions.items()
    ]
    scores = {"logit": logits.ravel(), "probability": 1 / (1 + np.exp(-logits.ravel()))}
    output = Prediction(*map(torch.from_numpy, scores.values()), Maps(torch.from_numpy(maps).flatten(0, 1)))
    scale = model_settings.get("map_scale", "cosine")
    rules = Rules((GRID, GRID), "nearest", thresholds=THRESHOLDS, scale=scale)
    tables = {PAIRS: measure(output, Truth.concatenate(truths), rules)}
    folder = root / f"{model}_{dataset}" / stamp
    folder.mkdir(parents=True)
    if with_cases:
        film = (40 + 120 * np.hypot(*np.mgrid[-1 : 1 : GRID * 1j, -1 : 1 : GRID * 1j])).astype(np.uint8)
        kept = [
            SavedImage(
                *(image, ids[image], patient_ids[image], f"{image:064x}", FULL_VIEW, queries, maps[image], mine),
                scored=tuple(mine),
                picture=jpeg(film) if mine else None,
                image_size=(GRID, GRID),
                instances={column: boxes[image, column] for column in mine},
            )
            for image, mine in regions.items()
        ]
        tables |= saved_tables(kept, scores)
    digests = write_tables(folder, [tables], [*tables], {TRUTH: {"gamma": 0.5}})
    provenance = {
        "versions": {"xbench": "0"},
        "command": ["python", "-m", "xbench.cli", "test", "--config", f"{model}_{dataset}"],
        "precision": "32-true",
        "checkpoint_sha256": None,
        "preprocessing": {},
        "prompts": {finding: [f"There is {finding.lower()}."] for finding in findings},
        "model": {
            **{"class": f"xbench.models.{model}", "map_scale": "cosine", "saliency_upsample": "bilinear"},
            **{"image_size": 224, **model_settings},
        },
        "data": {"class": "x", "batch_size": 8, "limit": None, "grid": [GRID, GRID], "gamma": 0.5},
        "evaluation": {"thresholds": THRESHOLDS, "ties": "share"},
        "seconds": {"forward": 1.0},
    }
    names = (model, dataset, paper()["splits"].get(dataset, "test"))
    rows = Rows.of(tables[PAIRS], findings)
    results = replace(summarize(names, rows, numbers_of(rows), THRESHOLDS, provenance=provenance), tables=digests)
    (folder / "config.yaml").write_text("# synthetic\n")
    write_results(folder / "results.json", results)
    return folder


def saved_tables(images: Sequence[SavedImage], scores: Mapping[str, NDArray[np.float64]]) -> dict[str, pa.Table]:
    about = [
        (one.index, one.image_id, one.patient_id, one.view, *(one.image_size or (None, None)), one.image_sha256)
        for one in images
    ]
    truths = [
        Truth.of_image(
            *(one.index, one.image_id, one.patient_id, one.view, one.image_size, one.queries),
            *([0] * len(one.queries), [None] * len(one.queries), 0.5),
        )
        for one in images
    ]
    maps = [one.saliency for one in images]
    regions = [
        (one.index, one.image_id, one.queries[place], place in one.scored, cut, one.instances.get(place, ()))
        for one in images
        for place, cut in one.regions.items()
    ]
    return {
        IMAGES: table_of(IMAGES, [(*facts, (), None) for facts in about]),
        PICTURES: table_of(PICTURES, [(one.image_id, one.picture) for one in images if one.picture is not None]),
        TRUTH: truth_table(regions),
        PREDICTIONS: predictions_table(Truth.concatenate(truths), np.concatenate(maps), scores, ""),
    }
