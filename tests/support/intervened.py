"""Synthetic runs with regions hidden: rows and maps under conditions, added to the files of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from xbench.findings.conditions import PROMPTS
from xbench.runs.files import PAIRS, PREDICTIONS
from xbench.runs.finished import FinishedRun
from xbench.runs.results import write_results
from xbench.runs.summary import numbers_of, summarize
from xbench.runtime.digests import file_sha256

Effect = Callable[[dict, str, np.random.Generator], float | None]
"""Gives the logit of a row under a condition, or None for no row."""


def falls(by: float, elsewhere: float = 0.0, noise: float = 0.1) -> Effect:
    """A score that falls so far when the region is hidden, and so far when an equal patch elsewhere is."""

    def effect(row: dict, condition: str, random: np.random.Generator) -> float:
        drop = by if condition.startswith("hide") or condition == "no image" else elsewhere
        return row["logit"] - drop - noise * random.normal()

    return effect


def intervene(folder: Path, effect: Effect, fills: tuple[str, ...] = ("mean", "blur"), words: bool = True) -> Path:
    """Add scores under interventions to a run's files. Changed maps are flipped."""
    random = np.random.default_rng(len(fills))
    conditions = [f"{kind}: {fill}" for fill in fills for kind in ("hide", "control")] + ["keep", "no image"]
    conditions += PROMPTS if words else ()
    pairs = pq.read_table(folder / PAIRS)
    drawn = pq.read_table(folder / PREDICTIONS)
    maps = {(row["image_id"], row["query"]): row for row in drawn.to_pylist()}
    rows, predictions = [], []
    for row in (row for row in pairs.to_pylist() if row["scored"]):
        own = maps[row["image_id"], row["query"]]
        cells = np.array(own["map"]).reshape(own["map_shape"])
        for condition in conditions:
            if (logit := effect(row, condition, random)) is None:
                continue
            scores = {"condition": condition, "logit": logit, "probability": 1 / (1 + np.exp(-logit))}
            there = row["region_x"] if condition.startswith("hide") else 1 - row["region_x"]
            facts = {"changed_digest": "0123456789abcdef", "changed_area": 0.1, "changed_seen": 1.0}
            facts |= {"changed_x": there, "changed_y": row["region_y"]}
            rows.append(row | scores | (facts if condition not in PROMPTS else {}))
            turned = cells[::-1] if condition.startswith("hide") else cells
            turned = cells[:, ::-1] if condition in PROMPTS else turned
            predictions.append(own | scores | {"map": turned.ravel().tolist()})
    for name, table, more in ((PAIRS, pairs, rows), (PREDICTIONS, drawn, predictions)):
        whole = pa.concat_tables([table, pa.Table.from_pylist(more, table.schema)])
        whole = whole.take(np.argsort(whole["index"].to_numpy(), kind="stable"))
        pq.write_table(whole.cast(table.schema), folder / name)
    run = FinishedRun.open(folder)
    names, provenance = (run.results.model, run.results.dataset, run.results.split), run.results.provenance
    about = summarize(names, run.rows, numbers_of(run.rows), 101, provenance=provenance, changed=run.changed)
    digests = {name: file_sha256(folder / name) for name in (PAIRS, PREDICTIONS)}
    write_results(folder / "results.json", replace(about, tables=run.results.tables | digests))
    return folder
