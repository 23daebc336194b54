"""Tables of what maps owe to the model: deletion and insertion, ROAD, and weights drawn anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xbench.report.schema import Analysis
from xbench.report.tables.table import INTERVALS, Column, Table, decimal, of_dataset, row, table_of
from xbench.scoring.perturbations import STEPS

_CURVES = (
    "Area under the probability of the finding while pixels become the mean of the image (deletion), or while they are "
    "revealed on the blurred image (insertion), 1% at a time: in the order of the map, at random, and with the "
    "annotated region first. Such images are unlike any radiograph, and areas depend on how saturated probabilities "
    "are: compare the orders of one model, not models. No verdict."
)
_ROAD = (
    "The first pixels in such an order become what their neighbors suggest. Recognized: share of the images that the "
    "model recognizes as they are that it still recognizes; probability: mean. With many pixels it measures what the "
    "smoothed image has left, not the map. No verdict."
)
_LAYERS = (
    "How alike a map is to that of the model as it is, from -1 to 1, once a layer is drawn anew (independent) or with "
    "all above it (cascading), by tower. Other images: maps of the same finding on other images, the level to compare "
    "with. The level depends on the task, on smoothing, and on how weights are drawn (Yona and Greenfeld 2021, Binder "
    "et al. 2023); a map that changes can be wrong all the same. No verdict."
)
_AREAS = {"deletion": "Deletion", "insertion": "Insertion", "difference": "Insertion minus deletion"}
_IMPUTED = {
    f"{name} {percent}": Column(name.capitalize(), f"{percent}% of the pixels")
    for percent in STEPS["road"]
    for name in ("recognized", "probability")
}
_LIKENESS = {"spearman": "Rank", "magnitude": "Rank of magnitudes", "structure": "Structure"}
_TABLES: tuple[tuple[str, str, str, tuple[str, ...], Mapping[str, str | Column]], ...] = (
    ("curves", "Pixels deleted and inserted in the order of maps on", _CURVES, ("Order",), _AREAS),
    ("road", "Pixels imputed in the order of maps (ROAD) on", _ROAD, ("Order",), _IMPUTED),
    ("layers", "Maps under weights drawn anew on", _LAYERS, ("Drawn", "Layer"), _LIKENESS),
)


def perturbation_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield the tables of curves, of ROAD and of weights drawn anew on each dataset."""
    for name, title, caption, of, numbers in _TABLES:
        for dataset in analysis.datasets:
            shown = [one for one in dataset.perturbations if numbers.keys() & one.numbers.keys()]
            cells = [[decimal(one.numbers.get(key), 2) for key in numbers] for one in shown]
            rows = [
                row(one.label, *(one.part, one.layer)[: len(of)], one.pairs, *values)
                for one, values in zip(shown, cells, strict=True)
            ]
            columns = ["Pairs", *numbers.values()]
            table = table_of(f"perturbations_{name}", title, f"{caption} {INTERVALS}", ["Model", *of], columns, rows)
            yield of_dataset(analysis, dataset, table)
