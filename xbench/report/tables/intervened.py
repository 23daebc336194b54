"""Tables of what models depend on: regions hidden, overlap by dependence, and other changes of images and words."""

from __future__ import annotations

from xbench.findings.conditions import LEAST
from xbench.findings.names import MACRO
from xbench.report.schema import DatasetAnalysis, Estimate
from xbench.report.tables.table import INTERVALS, Cell, Column, Table, decimal, number, p_value, row, table_of

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
    "follows": "rank correlation of the maps before and after the region is hidden",
    "control_follows": "rank correlation of the maps before and after the control is hidden",
    "sufficiency": "still recognized with everything but the region hidden",
    "no_image_yes": "recognized with the whole image hidden",
    "swap_same_agreement": "same decision on another patient's image with the finding",
    "swap_opposite_change": "other decision on another patient's image without it",
    "specificity": "rank correlation of the maps with the original and with other words",
    "advantage": "rank accuracy with the original words, minus that with other words",
}


def _cell(name: str, value: Estimate | None) -> Cell:
    return decimal(value, 2) if name in _IN_UNITS else number(value, signed=name == "premium")


def hidden(dataset: DatasetAnalysis) -> Table:
    """Return the table of hidden regions."""
    tested, counted, rows = ("use", "premium"), ("scored", "decided", "without_control"), []
    stored = {entry.run.label: entry.run.results.interventions for entry in dataset.runs}
    for one in dataset.interventions:
        results = stored[one.label]
        for fill in one.fills:
            pairs = {MACRO: fill.counts} | (results.all_pairs[fill.fill].per_class if results else {})
            for finding, numbers in fill.numbers.items():
                cells = [_cell(name, numbers.get(name)) for name in _OF_FILLS]
                counts = [pairs[finding][name] for name in counted]
                more: list[Cell | None] = [None] * 5
                if finding == MACRO:
                    more = [*(p_value(fill.p_adjusted.get(name)) for name in tested), p_value(fill.p_exact)]
                    more += [_cell(name, fill.recognized.get(name)) for name in tested]
                if finding == MACRO or any(counts):
                    name = "all" if finding == MACRO else finding
                    rows.append(row(one.label, fill.fill, name, *cells, *counts, *more))
    return table_of(
        "interventions",
        "Regions hidden on",
        "All regions of the finding are hidden together; for comparison, an equal patch elsewhere (the control). Drop: "
        "how far the score falls, in standard deviations of the score over all images. Use: drop minus control drop, "
        "pair by pair. Changed: percentage of decisions that change. Premium: changed minus changed for the control, "
        f"in points. All: mean over the findings with {LEAST} pairs or more; others have no numbers. Scored, Decided: "
        "pairs with a drop or a decision; for all, of the findings in the mean. No control: pairs with no place for a "
        "control; for all, of any finding. Adjusted p: region and control exchanged by patient (by image where "
        "patients are unknown), corrected over models and fills. McNemar: exact test on the pairs whose decision "
        "changes for only one of the two. Among recognized: only images that the model recognizes unchanged. "
        f"{INTERVALS}",
        ["Model", "Fill", "Finding"],
        [
            *_OF_FILLS.values(),
            *(Column(title, "Pairs") for title in ("Scored", "Decided", "No control")),
            *(Column(_OF_FILLS[name], "Adjusted p") for name in tested),
            Column("Changed", "McNemar p"),
            *(Column(_OF_FILLS[name], "Among recognized") for name in tested),
        ],
        rows,
    )


def overlap(dataset: DatasetAnalysis) -> Table:
    """Return the table of pairs by pointing game and dependence."""
    words = {"use": "the score falls more than for the control", "flip_rate": "the decision changes"}
    return table_of(
        "interventions_overlap",
        "Pointing and use together on",
        "Pairs with a control, by whether the map's peak or at least half of the box area lies in the region, and by "
        "whether the pair depends on the region: number of pairs and percentage.",
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


def others(dataset: DatasetAnalysis) -> Table:
    """Return the table of all other changes of images and words."""
    rows = []
    for one in dataset.interventions:
        named = {f"{fill.fill} {name}": value for fill in one.fills for name, value in fill.mean.items()}
        for key, value in (*named.items(), *one.numbers.items()):
            where, _, name = key.rpartition(" ")
            if name in _OTHERS and value.value is not None:
                rows.append(row(one.label, _OTHERS[name], where, _cell(name, value)))
    return table_of(
        "interventions_more",
        "Other changes of images and words on",
        "Means over findings: percentages of pairs, and correlations and differences from -1 to 1. Rank accuracy: "
        "share of a region's n pixels that are among the map's n highest. A model that uses a marker beside a finding "
        f"also decides the same on another patient's image with the finding, so that row proves nothing. {INTERVALS}",
        ["Model", "What", "Fill or words"],
        ["Value"],
        rows,
    )
