"""Synthetic runs with every file that a real one leaves, made without the harness: plain loops over drawn maps."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
from plain import auroc, average_precision

from xbench.geometry.coverage import Coverage, region_digest
from xbench.protocol.published import published_split
from xbench.runs.files import CURVES, PER_IMAGE
from xbench.runs.maps import SavedImage, jpeg, write_saved_images
from xbench.runs.results import (
    Classification,
    ConstantMaps,
    Counts,
    FindingClassification,
    FindingCounts,
    FindingGrounding,
    Grounding,
    Results,
    SignTest,
    macro_mean,
    write_per_class,
    write_results,
)
from xbench.runs.scores import (
    ImageScores,
    PairCounts,
    pair_counts_writer,
    scored_on,
    write_per_image,
)

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
    # Every array of floats but the first two, which are given below.
    floats = [field.name for field in fields(ImageScores) if "float64" in str(field.type)][2:]
    nan = {name: np.full(shape, np.nan) for name in floats}
    maps = np.zeros((images, len(findings), CELLS, CELLS), np.float32)
    counts = []
    digests = np.zeros(shape, "S16")
    regions: dict[int, dict[int, Coverage]] = {image: {} for image in range(images)}
    for (image, column), (top, left, bottom, right) in sorted(corners.items()):
        region = np.zeros((GRID, GRID), bool)
        region[top:bottom, left:right] = True
        y, x = (top + bottom) / 2, (left + right) / 2
        if draw.random() >= skill:
            y, x = draw.random(2) * GRID
        centres = (np.arange(CELLS) + 0.5) * GRID / CELLS - 0.5
        width = 0.35 * np.sqrt((bottom - top) * (right - left)) + 3
        raw = np.exp(-((centres[:, None] - y) ** 2 + (centres - x) ** 2) / (2 * width**2))
        raw += 0.05 * draw.random((CELLS, CELLS))
        on_grid = np.kron(raw, np.ones((GRID // CELLS,) * 2))
        normal = (on_grid - on_grid.min()) / (on_grid.max() - on_grid.min())
        masks = [normal >= k / (THRESHOLDS - 1) for k in range(THRESHOLDS)]
        sizes = [int(mask.sum()) for mask in masks]
        overlaps = [int((mask & region).sum()) for mask in masks]
        counts.append((image, column, int(region.sum()), sizes, overlaps))
        place = (image, column)
        tied = on_grid == on_grid.max()
        nan["pointing_hit"][place] = (tied & region).sum() / tied.sum()
        nan["dice"][place] = 2 * overlaps[50] / (sizes[50] + region.sum())
        nan["iou"][place] = overlaps[50] / (sizes[50] + region.sum() - overlaps[50])
        nan["region_area"][place] = region.mean()
        digests[place] = region_digest(region)
        for what, mask in (("region", region), ("peak", tied)):
            ys, xs = mask.nonzero()
            nan[f"{what}_y"][place], nan[f"{what}_x"][place] = (ys.mean() + 0.5) / GRID, (xs.mean() + 0.5) / GRID
        low = on_grid == on_grid.min()
        nan["minimum_hit"][place] = (low & region).sum() / low.sum()
        peaks, pixels = (np.argwhere(mask) for mask in (tied, region))
        nan["peak_distance"][place] = np.sqrt(((peaks[:, None] - pixels) ** 2).sum(2).min()) / GRID
        maps[place] = raw
        regions[image][column] = Coverage.of(region, (GRID, GRID))
    probabilities = 1 / (1 + np.exp(-logits))
    table = ImageScores(
        np.arange(images), ids, patient_ids, labels, has_region, logits, probabilities, **nan, region_digests=digests
    )
    index, column, region_pixels, mask, overlap = (np.array(values) for values in zip(*counts, strict=True))
    pair_ids, grid_pixels = [ids[image] for image in index], np.full(len(index), GRID * GRID)
    mask, overlap = mask.astype(np.int32), overlap.astype(np.int32)
    pair_counts = PairCounts(index, column, pair_ids, grid_pixels, region_pixels, mask, overlap)
    folder = root / f"{model}_{dataset}" / stamp
    folder.mkdir(parents=True)
    write_per_image(folder / PER_IMAGE, table, findings)
    with pair_counts_writer(folder / CURVES, findings, mask.shape[1]) as add:
        add(pair_counts)
    if with_cases:
        film = (40 + 120 * np.hypot(*np.mgrid[-1 : 1 : GRID * 1j, -1 : 1 : GRID * 1j])).astype(np.uint8)
        kept = [
            SavedImage(
                *(image, ids[image], f"{image:064x}", (0.0, 0.0, 1.0, 1.0), maps[image], mine, tuple(mine)),
                picture=jpeg(film) if mine else None,
            )
            for image, mine in regions.items()
        ]
        write_saved_images(folder, findings, 0.5, {}, kept)
    results = results_of(model, dataset, findings, table, pair_counts, model_settings)
    write_per_class(folder / "per_class.csv", results)
    (folder / "config.yaml").write_text("# synthetic\n")
    write_results(folder / "results.json", results)
    return folder


def results_of(model, dataset, findings, table, counts, settings) -> Results:
    """Derive results from the tables in the plainest way."""
    grounding, classification = {}, {}
    present, absent = table.labels == 1, table.labels == 0
    for column, finding in enumerate(findings):
        mine = counts.column == column
        dice, iou = counts.dice()[mine].mean(0), counts.iou()[mine].mean(0)
        hits = table.pointing_hit[table.scored[:, column], column]
        grounding[finding] = FindingGrounding(
            count=int(mine.sum()),
            pointing_game=float(hits.mean()),
            pointing_game_of_minimum=float(table.minimum_hit[table.scored[:, column], column].mean()),
            sign_p=1.0,
            dice_fixed=float(dice[50]),
            iou_fixed=float(iou[50]),
            dice_best=float(dice.max()),
            iou_best=float(iou.max()),
            dice_best_threshold=int(dice.argmax()) / 100,
            iou_best_threshold=int(iou.argmax()) / 100,
            dice_curve=dice.tolist(),
            iou_curve=iou.tolist(),
        )
        label, score = table.labels[:, column], table.probabilities[:, column]
        classification[finding] = recognised(label[label >= 0] == 1, score[label >= 0])
    numbers = {
        "grounding": ("pointing_game", "dice_fixed", "iou_fixed", "dice_best", "iou_best"),
        "classification": ("auroc", "average_precision", "f1", "accuracy"),
    }
    return Results(
        model=model,
        dataset=dataset,
        split=published_split(dataset) or "test",
        findings=tuple(findings),
        counts=Counts(
            images=len(table.image_ids),
            skipped=[],
            constant_maps=ConstantMaps(0, []),
            notes=[],
            per_finding={
                finding: FindingCounts(*(int(which[:, c].sum()) for which in (present, absent, table.scored)))
                for c, finding in enumerate(findings)
            },
        ),
        scored_on=scored_on(table, findings),
        grounding=Grounding(
            thresholds=[k / (THRESHOLDS - 1) for k in range(THRESHOLDS)],
            per_class=grounding,
            macro={n: macro_mean([getattr(s, n) for s in grounding.values()]) for n in numbers["grounding"]},
            sign_test=SignTest(macro_mean([one.pointing_game_of_minimum for one in grounding.values()]), 1.0, []),
        ),
        classification=Classification(
            per_class=classification,
            macro={n: macro_mean([getattr(s, n) for s in classification.values()]) for n in numbers["classification"]},
        ),
        provenance={
            "versions": {"xbench": "0"},
            "command": ["python", "-m", "xbench.cli", "test", "--config", f"{model}_{dataset}"],
            "precision": "32-true",
            "prompts": {finding: [f"There is {finding.lower()}."] for finding in findings},
            "model": {"class": f"xbench.models.{model}", "image_size": 224, **settings},
            "data": {"class": "x", "batch_size": 8, "limit": None, "grid": [GRID, GRID], "gamma": 0.5},
            "evaluation": {"thresholds": THRESHOLDS, "ties": "share"},
            "seconds": {"forward": 1.0},
        },
    )


def recognised(present, score) -> FindingClassification:
    """Recognition by definition."""
    labels = present.astype(int).tolist()
    said = score >= 0.5
    hit = (said & present).sum()
    return FindingClassification(
        auroc=auroc(labels, score.tolist()),
        average_precision=average_precision(labels, score.tolist()),
        f1=float(2 * hit / (said.sum() + present.sum())),
        accuracy=float((said == present).mean()),
        positives=int(present.sum()),
        negatives=int((~present).sum()),
    )
