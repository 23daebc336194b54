"""Tables of what maps owe to the model: deletion and insertion, ROAD, and weights drawn anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from xbench.report.schema import DatasetAnalysis
from xbench.report.tables.table import INTERVALS, Column, Table, decimal, row, table_of
from xbench.scoring.perturbations import STEPS

_CURVES = (
    "Area under the probability of the finding while pixels are replaced by the image mean (deletion) or revealed on "
    "the blurred image (insertion), 1% at a time: in the order of the map, at random, or annotated region first. Such "
    "images are unlike any radiograph, and areas depend on how saturated probabilities are: compare the orders of one "
    "model, not models. No verdict."
)
_ROAD = (
    "The first pixels in the same orders are interpolated from their neighbors. Recognized: percentage of the images "
    "recognized unchanged that the model still recognizes; probability: mean. With many pixels, ROAD measures what is "
    "left in the smoothed image, not the map. No verdict."
)
_LAYERS = (
    "Similarity, from -1 to 1, of a map to the unchanged model's map after the weights of one layer (independent) or "
    "of that layer and all above it (cascading) are drawn at random. Other images: similarity of maps of the finding "
    "on different images, for comparison. The level depends on the task, on smoothing, and on how weights are drawn "
    "(Yona and Greenfeld 2021, Binder et al. 2023); a map that changes can still be wrong. No verdict."
)
_AREAS = {"deletion": "Deletion", "insertion": "Insertion", "difference": "Insertion minus deletion"}
_IMPUTED = {
    f"{name} {percent}": Column(name.capitalize(), f"{percent}% of the pixels")
    for percent in STEPS["road"]
    for name in ("recognized", "probability")
}
_LIKENESS = {"spearman": "Rank", "magnitude": "Rank of magnitudes", "structure": "Structure"}


def _table(
    name: str, title: str, caption: str, of: Sequence[str], numbers: Mapping[str, Any], dataset: DatasetAnalysis
) -> Table:
    rows = []
    for one in dataset.perturbations:
        if numbers.keys() & one.numbers.keys():
            cells = (decimal(one.numbers.get(key), 2) for key in numbers)
            rows.append(row(one.label, *(one.part, one.layer)[: len(of)], one.pairs, *cells))
    columns = ["Pairs", *numbers.values()]
    return table_of(f"perturbations_{name}", title, f"{caption} {INTERVALS}", ["Model", *of], columns, rows)


PERTURBATIONS = (
    partial(_table, "curves", "Pixels deleted and inserted in the order of maps on", _CURVES, ["Order"], _AREAS),
    partial(_table, "road", "Pixels imputed in the order of maps (ROAD) on", _ROAD, ["Order"], _IMPUTED),
    partial(_table, "layers", "Maps with random weights on", _LAYERS, ["Drawn", "Layer"], _LIKENESS),
)
"""Tables of a dataset: curves, ROAD, and weights drawn anew."""
