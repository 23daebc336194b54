"""The files of a finished run, as tests compare them, and by which rules it is evaluated."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from xbench.cli import main
from xbench.commands.verify import Compared, verified
from xbench.runs.files import PAIRS, SCHEMAS
from xbench.runs.finished import FinishedRun
from xbench.scoring.rows import SCHEMA, Rows

QUIET = ("--trainer.logger", "false", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false")


def run_in(root: Path) -> Path:
    (results,) = root.rglob("results.json")
    return results.parent


def callbacks(path: Path, *more: str) -> Path:
    """Write a configuration of the usual callbacks, and of `more` before the last of them."""
    usual = [f"xbench.callbacks.{name}" for name in ("evaluation.Evaluation", "case_keeper.CaseKeeper")]
    names = (*usual, *more, "xbench.callbacks.results_writer.ResultsWriter")
    path.write_text(json.dumps({"trainer": {"callbacks": [{"class_path": name} for name in names]}}))
    return path


def check_gone_on(run: Callable[..., Path], whole: Path, folder: Path, *options: str) -> None:
    """A run that `oracles.tire` or `phrases.Tires` ends in the middle goes on to the files of `whole`, by groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xbench.callbacks.evaluation._ONE_BY_ONE", 0)
        patch.setenv("ORACLE_TIRES", "1")
        run(folder, *options, status=1)
        patch.delenv("ORACLE_TIRES")
        assert files_of(run(folder, *options, "--resume", "true")) == files_of(whole)


def check_rescored(whole: Path, out: Path) -> None:
    assert main(["rescore", str(whole), "--out", str(out), "--workers", "0"]) == 0
    assert files_of(out) == files_of(whole)
    assert disagreements(whole, deep=True) == []


def rules(path: Path, thresholds: int, ties: str = "share") -> Path:
    evaluation = {"thresholds": thresholds, "ties": ties}
    callbacks = {"evaluation.Evaluation": evaluation, "case_keeper.CaseKeeper": {}, "results_writer.ResultsWriter": {}}
    parts = [{"class_path": f"xbench.callbacks.{name}", "init_args": of} for name, of in callbacks.items()]
    path.write_text(json.dumps({"trainer": {"callbacks": parts}}))
    return path


def read(folder: Path) -> dict[str, bytes | str]:
    run = run_in(folder / "runs")
    assert not (run / "journal").exists()
    return files_of(run)


def files_of(run: Path) -> dict[str, bytes | str]:
    results = json.loads((run / "results.json").read_text())
    del results["provenance"]
    return {"results.json": json.dumps(results)} | {
        name: (run / name).read_bytes() for name in SCHEMAS if (run / name).exists()
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


def rows_of(labels: np.ndarray, findings: Sequence[str] = ("Square", "Disc"), **columns: object) -> Rows:
    """Rows of images with `labels` (N, C), drawn where present; columns (N, C) that are not given have no value."""
    images, classes = labels.shape
    ids, patients = columns.pop("image_ids", None), columns.pop("patient_ids", [None] * images)
    image = np.repeat(np.arange(images), classes)
    drawn = np.asarray(columns.pop("has_region", labels == 1)).ravel()
    digests = np.asarray(columns.pop("region_digest", np.where(drawn, "0123456789abcdef", "")))
    scored = drawn & (labels.ravel() == 1)
    values: dict[str, object] = {
        "index": image,
        "image_id": [str((ids or [f"image {row}" for row in range(images)])[row]) for row in image],
        "patient_id": [patients[row] for row in image],
        "query": [*findings] * images,
        "finding": [*findings] * images,
        "condition": [""] * len(image),
        "label": labels.ravel(),
        "has_region": drawn,
        "scored": scored,
        "asked": np.ones(len(image), np.bool_),
        "logit": np.zeros(len(image)),
        "probability": np.full(len(image), 0.5),
        "region_digest": [text or None for text in digests.astype("U16").ravel().tolist()],
        "pointing_hit": np.where(scored, 0.0, np.nan),
        **{name: [1 if one else None for one in scored] for name in ("grid_pixels", "region_pixels")},
        **{name: [[0, 0, 0] if one else None for one in scored] for name in ("mask_pixels", "overlap_pixels")},
    }
    values |= {name: np.asarray(value).ravel() for name, value in columns.items()}
    arrays = [
        pa.array(values[field.name], field.type, from_pandas=True)
        if field.name in values
        else pa.nulls(len(image), field.type)
        for field in SCHEMA
    ]
    return Rows.of(pa.table(arrays, SCHEMA), findings)


def disagreements(run: Path, deep: bool = False) -> list[Compared]:
    return [number for number in verified(FinishedRun.open(run, PAIRS), deep) if number.differs]
