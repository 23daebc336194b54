"""The files of a finished run, as tests compare them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np

from xbench.runs.scores import ImageScores

TABLES = (
    *("per_image.parquet", "curves.parquet", "maps.parquet", "regions.parquet", "instances.parquet"),
    *("pictures.parquet", "per_class.csv"),
)


def read(folder: Path) -> dict[str, bytes | str]:
    """Files of the one finished run in a working directory, as `files_of` gives them."""
    (path,) = folder.glob("runs/*/*/results.json")
    assert not (path.parent / "journal").exists()
    return files_of(path.parent)


def files_of(run: Path) -> dict[str, bytes | str]:
    """Files of a run, the provenance taken out."""
    results = json.loads((run / "results.json").read_text())
    del results["provenance"]
    return {"results.json": json.dumps(results)} | {
        name: (run / name).read_bytes() for name in TABLES if (run / name).exists()
    }


def change(folder: Path, **entries: object) -> None:
    """Change entries of a run's results.json; `__` parts the keys of a place."""
    path = folder / "results.json"
    content = json.loads(path.read_text())
    for place, value in entries.items():
        *parents, name = place.split("__")
        target = content
        for parent in parents:
            target = target[parent]
        target[name] = value
    path.write_text(json.dumps(content))


def image_scores(labels: np.ndarray, **columns: object) -> ImageScores:
    """Scores of images with `labels` (N, C), drawn where present; NaN in columns of grounding that are not given."""
    drawn = labels == 1
    known = {"index": np.arange(len(labels)), "labels": labels, "has_region": drawn}
    known |= {"image_ids": [f"image {row}" for row in range(len(labels))], "patient_ids": [None] * len(labels)}
    known |= {"logits": np.zeros(labels.shape), "probabilities": np.full(labels.shape, 0.5)}
    known["region_digests"] = np.where(drawn, b"0123456789abcdef", b"")
    nowhere = {field.name: np.full(labels.shape, np.nan) for field in fields(ImageScores)}
    return ImageScores(**nowhere | known | columns)  # type: ignore[arg-type]
