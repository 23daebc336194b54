"""Runs of every kind for one report: maps, boxes, probabilities, and models behind a server, on two datasets.

On PhantomCXR: `demo` at two sizes, `atlas` (maps and probabilities that are the same for every image), the served
models `truth` and `truth-large`, the table of probabilities `table`, and the reference `centre`. On
my_hospital: `demo` with its own settings, the boxes of `detector`, and `table`.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import own
import pyarrow.parquet as pq
from chat_server import serving

from xbench.cli import main

HOSPITAL = "my_hospital"


def write_runs(root: Path, images: int = 32) -> Path:
    runs = root / "runs"
    folder = own.write_images(own.make(root / "images"))
    own.write_coco(folder)
    mine = root / "mine.yaml"
    data = {"root": str(folder), "findings": own.LABELS, "name": HOSPITAL, "num_workers": 0}
    mine.write_text(json.dumps({"data": data}))
    places = ["accelerator=cpu", "logger=false", "enable_progress_bar=false", "enable_model_summary=false"]
    quiet = [f"--trainer.{option}" for option in (*places, f"default_root_dir={runs}")]
    phantoms = [f"--data.{option}" for option in (f"images={images}", "size=64", "num_workers=0", "cache=false")]

    def run(command: str, *words: object) -> Path:
        before = {*runs.glob("*/*/results.json")}
        assert main([command, *map(str, words), *quiet]) == 0
        (path,) = {*runs.glob("*/*/results.json")} - before
        return path.parent

    demo = run("test", "--config", "demo_phantom", *phantoms)
    run("test", "--config", "demo_phantom", "--model.image_size=320", *phantoms)
    run("test", "--config", "centre_phantom", *phantoms)
    at_home = run("test", "--config", "demo_coco", "--config", mine)
    with serving() as address:
        key = os.environ.pop("OPENAI_API_KEY", None)
        for name, steps in {"truth": "ok", "truth-large": "length,ok," * images + "ok"}.items():
            server = {"base_url": f"{address}/{name}:{steps}/v1", "model": name, "cache": root / "cache"}
            run(
                *("test", "--config", "endpoint_phantom"),
                *(f"--model.{option}={value}" for option, value in server.items()),
                *phantoms,
            )
        if key is not None:
            os.environ["OPENAI_API_KEY"] = key
    for done, where in ((demo, ["phantom", *phantoms]), (at_home, ["coco", "--config", mine])):
        table = _probabilities(root / f"{done.parent.name}.csv", done, lambda p: 0.3 + 0.4 * p)
        run("score", "--config", where[0], "--name", "table", "--predictions", table, *where[1:])
    for row in pq.read_table(demo / "pairs.parquet").to_pylist():
        place = root / "maps" / row["image_id"]
        place.mkdir(parents=True, exist_ok=True)
        far = np.hypot(*np.mgrid[-1:1:14j, -1:1:14j] - len(row["finding"]) / 40)  # type: ignore[misc]
        np.save(place / f"{row['finding'].replace(' ', '_')}.npy", np.exp(-far).astype(np.float32))
    alike = ("--scores", _probabilities(root / "alike.csv", demo, lambda _: 0.5), "--frame", "whole")
    run("score", "--config", "phantom", "--name", "atlas", "--predictions", root / "maps", *alike, *phantoms)
    boxes = [["image", "finding", "x0", "y0", "x1", "y1"], *_boxes()]
    detector = ("--predictions", own.write_table(root / "boxes.csv", boxes), "--frame", "pixels_sent")
    run("score", "--config", "coco", "--config", mine, "--name", "detector", *detector)
    return runs


def _probabilities(path: Path, run: Path, change: Callable[[float], float]) -> Path:
    rows = pq.read_table(run / "pairs.parquet").to_pylist()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "finding", "probability"])
        table.writerows([row["image_id"], row["finding"], change(row["probability"])] for row in rows)
    return path


def _boxes() -> Iterable[Sequence[object]]:
    for place, (image, regions) in enumerate(own.truth().items()):
        for finding, mask in regions.items():
            x, y, width, height = own.box_of(mask)
            x, y = (x, y) if place % 3 else (own.WIDTH - width - x, own.HEIGHT - height - y)
            yield image, finding, x, y, x + width, y + height
