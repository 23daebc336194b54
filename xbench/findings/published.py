"""Numbers published in the XBench paper, for comparison. Models and datasets are named as in results.json."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from xbench.findings.names import FINDINGS
from xbench.runtime.strict import load_yaml


@cache
def paper() -> dict[str, Any]:
    """Return the contents of `published.yaml`, with findings by name and percentages as fractions.

    Parts are `positives`: by dataset a list of `by` (source of the images) and `counts` by finding, None if ambiguous;
    `splits`, `remarks`: by dataset, the images of the numbers; `grounding` (Table 1): by dataset and model, means over
    findings; `pointing_game` (Tables 2 to 5): by dataset, model and finding, and for None the printed mean, which may
    differ; `dice_gap`: by model; `r_squared`; `protocol`: the paper's scoring; and `inconsistencies`.
    """
    content: dict[str, Any] = load_yaml(Path(__file__).with_name("published.yaml"))
    for dataset, entries in content["positives"].items():
        for entry in entries:
            entry["counts"] = dict(zip(FINDINGS[dataset], entry["counts"], strict=True))
    numbers = ("pointing_game", "dice_best", "iou_best")
    content["grounding"] = {
        dataset: {
            model: dict(zip(numbers, map(_fraction, scores[dataset]), strict=True))
            for model, scores in content["grounding"].items()
        }
        for dataset in content["splits"]
    }
    for dataset, rows in content["pointing_game"].items():
        for model, row in rows.items():
            printed = map(_fraction, (row["mean"], *row["findings"]))
            rows[model] = dict(zip((None, *FINDINGS[dataset]), printed, strict=True))
    content["dice_gap"] = {model: _fraction(gap) for model, gap in content["dice_gap"].items()}
    return content


def inconsistencies(dataset: str, table: str) -> tuple[str, ...]:
    """Return inconsistencies and likely misreadings in a dataset's part of `grounding` or `pointing_game`."""
    return tuple(
        entry["text"]
        for entry in paper()["inconsistencies"]
        if table in entry["tables"] and dataset in entry.get("datasets", paper()["splits"])
    )


def _fraction(percentage: float) -> float:
    # Remove rounding errors, such as 15.62 / 100 = 0.15620000000000001.
    return round(percentage / 100, 6)
