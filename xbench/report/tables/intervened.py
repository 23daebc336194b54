"""Tables of what models depend on: regions hidden, overlap by dependence, and other changes of images and words."""

from __future__ import annotations

from collections.abc import Iterator

from xbench.findings.names import MACRO
from xbench.report.schema import Analysis, DatasetAnalysis, Estimate
from xbench.report.tables.table import (
    INTERVALS,
    Cell,
    Column,
    Table,
    decimal,
    number,
    of_dataset,
    p_value,
    row,
    table_of,
)

_OF_FILLS = {
    "drop": "Drop",
    "control_drop": "Control drop",
    "use": "Use",
    "flip_rate": "Changed",
    "control_flip_rate": "Changed, control",
    "premium": "Premium",
}
_IN_UNITS = {"drop", "control_drop", "use", "follows", "control_follows", "specificity", "advantage"}
_OTHERS = {
    "map_moves": "map leaves the region when it is hidden",
    "follows": "rank correlation with the map when the region is hidden",
    "control_follows": "rank correlation with the map when the control is hidden",
    "sufficiency": "still recognized with everything but the region hidden",
    "no_image_yes": "recognized with everything hidden",
    "swap_same_agreement": "same decision on another patient's image with the finding",
    "swap_opposite_change": "other decision on another patient's image without it",
    "specificity": "rank correlation with the map in other words",
    "advantage": "rank accuracy in the right words, minus that in the others",
}


def intervention_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield the tables of interventions on each dataset."""
    for per_dataset in (_hidden, _overlap, _others):
        for dataset in analysis.datasets:
            yield of_dataset(analysis, dataset, per_dataset(dataset))


def _cell(name: str, value: Estimate | None) -> Cell:
    return decimal(value, 2) if name in _IN_UNITS else number(value, signed=name == "premium")


def _hidden(dataset: DatasetAnalysis) -> Table:
    tested, counted, rows = ("use", "premium"), ("scored", "decided", "without_control"), []
    for one in dataset.interventions:
        for fill in one.fills:
            for finding, numbers in fill.numbers.items():
                cells = [_cell(name, numbers.get(name)) for name in _OF_FILLS]
                more: list[Cell | int | None] = [None] * 8
                if finding == MACRO:
                    more = [fill.counts[name] for name in counted]
                    more += [*(p_value(fill.p_adjusted.get(name)) for name in tested), p_value(fill.p_exact)]
                    more += [_cell(name, fill.recognized.get(name)) for name in tested]
                if numbers.keys() & _OF_FILLS.keys():
                    rows.append(row(one.label, fill.fill, "all" if finding == MACRO else finding, *cells, *more))
    return table_of(
        "interventions",
        "Regions hidden on",
        "The region of the finding is hidden, all its parts together, and for comparison an equal patch elsewhere, the "
        "control. Drop: by how much the score falls, in standard deviations of the score over all images; use: drop "
        "less control drop, pair by pair. Changed: decisions that change, in percent; premium: those of the region "
        "less those of the control, in points. All: the mean over the findings with enough pairs. Pairs: of these "
        "findings, with scores and with decisions; and of all, without a place for a control. Adjusted p: region and "
        "control exchanged patient by patient, corrected over models and fills. McNemar: exact, of the decisions that "
        "change for one of the two alone, pair by pair. Recognized only: of the images that the model recognizes as "
        f"they are. {INTERVALS}",
        ["Model", "Fill", "Finding"],
        [
            *_OF_FILLS.values(),
            *(Column(title, "Pairs") for title in ("Scored", "Decided", "No control")),
            *(Column(_OF_FILLS[name], "Adjusted p") for name in tested),
            Column("Changed", "McNemar p"),
            *(Column(_OF_FILLS[name], "Recognized only") for name in tested),
        ],
        rows,
    )


def _overlap(dataset: DatasetAnalysis) -> Table:
    words = {"use": "its score falls more than for the control", "flip_rate": "its decision changes"}
    return table_of(
        "interventions_overlap",
        "Overlap by dependence on",
        "Scored pairs by whether the map's maximum lies in the region, and by whether they depend on it: number of "
        "pairs and share in percent.",
        ["Model", "Fill", "A pair depends if"],
        [
            Column(f"{title}{unit}", group)
            for group in ("Pointed at", "Not pointed at")
            for title in ("Depends", "Does not")
            for unit in ("", ", %")
        ],
        [
            row(one.label, fill.fill, words[name], *(cell for count in counts for cell in (count, count / sum(counts))))
            for one in dataset.interventions
            for fill in one.fills
            for name, counts in fill.overlap.items()
            if sum(counts)
        ],
    )


def _others(dataset: DatasetAnalysis) -> Table:
    rows = []
    for one in dataset.interventions:
        named = {f"{fill.fill} {name}": value for fill in one.fills for name, value in fill.mean.items()}
        for key, value in (*named.items(), *one.numbers.items()):
            where, _, name = key.rpartition(" ")
            if name in _OTHERS and value.value is not None:
                rows.append(row(one.label, _OTHERS[name], where, _cell(name, value)))
    return table_of(
        "interventions_more",
        "What else scores and maps depend on, on",
        "Means over findings: shares of pairs in percent, and correlations and differences from -1 to 1. A model that "
        "sees the finding and one that sees a marker beside it agree with another patient's image alike: that line "
        f"alone tells nothing. {INTERVALS}",
        ["Model", "What", "Fill or words"],
        ["Value"],
        rows,
    )
