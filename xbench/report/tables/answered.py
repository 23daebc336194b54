"""The tables of models that answer: what their boxes score, what could not be read, and answers to look at."""

from __future__ import annotations

from collections.abc import Iterator

from xbench.report.schema import Analysis, DatasetAnalysis, RunAnalysis, in_order
from xbench.report.tables.table import MISSING, Cell, Column, Row, Table, decimal, percentage, row, table_of
from xbench.runs.answers import AnswerRow, excerpt
from xbench.runs.results import Answers

_BOXES = {
    "box_iou": Column("IoU", "Of the boxes"),
    "acc_30": Column("> 0.3", "IoU above"),
    "acc_50": Column("> 0.5", "IoU above"),
    "acc_75": Column("> 0.75", "IoU above"),
    "centre_hit": Column("Centre inside", "Of the boxes"),
    "recall_50": Column("Recall", "Lesions found at 0.5"),
    "precision_50": Column("Precision", "Lesions found at 0.5"),
    "best_iou": Column("IoU of the best pair", "Flattering"),
    "false_alarm": Column("False alarms", "Without the finding"),
}
_RATES = {
    "answered": Column("Answered", "Share of answers"),
    "abstained": Column("Abstained", "Share of answers"),
    "unparsable": Column("Unparsable", "Share of answers"),
    "truncated": Column("Truncated", "Share of answers"),
    "reordered": Column("Reordered", "What was done to numbers"),
    "clipped": Column("Cut off", "What was done to numbers"),
    "dropped": Column("Dropped", "What was done to numbers"),
    "duplicates": Column("Repeated", "What was done to numbers"),
    "suspect_frame": Column("Suspect", "What was done to numbers"),
}
_SENSITIVITY = {
    "answered_only": "answered only (flattering)",
    "truncated_as_misses": "truncated as misses",
    "unparsable_as_useless": "unparsable useless",
    "unparsable_as_perfect": "unparsable perfect",
}
_EXAMPLES = 12


def answer_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield the tables of the models that answer; of none, if all have maps."""
    found = [(analysis.heading(dataset), entry, said) for dataset in analysis.datasets for entry, said in _of(dataset)]
    if not found:
        return
    yield table_of(
        "answers_boxes",
        "What their boxes score",
        "Means over findings, in per cent, without a grid: IoU of all answered with all annotated boxes of a pair; "
        "share of pairs above a threshold; answered boxes whose centre lies in an annotated one; lesions matched one "
        "to one. No box is a miss. The IoU of the best pair is what papers call IoU where several boxes are given. "
        "False alarms: share of images without the finding that get a box, if it was asked for there.",
        ["Dataset", "Model"],
        _BOXES.values(),
        [
            *(row(where, entry.run.label, *(said.macro[name] for name in _BOXES)) for where, entry, said in found),
            *(
                row(analysis.heading(dataset), one.title, *map(one.boxes.get, _BOXES), kind=one.kind)
                for dataset in analysis.datasets
                for one in dataset.references
                if one.boxes
            ),
        ],
        [
            f"{entry.run.label}: {said.outlined} of {said.overall['pairs']:.0f} pairs are annotated by outlines or "
            "masks; their boxes are those around them."
            for _, entry, said in found
            if said.outlined
        ],
    )
    yield table_of(
        "answers_rates",
        "What could be read",
        "Over all scored pairs, in per cent. Abstained: says that there is nothing, or declines. Unparsable: neither "
        "box nor such a word. Truncated: its end is missing; complete boxes are kept. Suspect: the numbers look like "
        "another frame than the declared one, by which they were read all the same. Tokens: of queries and answers.",
        ["Dataset", "Model", "Family", "Frame"],
        ["Answers", Column("Boxes", "Per answer"), *_RATES.values(), "Tokens sent", "Tokens received"],
        [
            row(
                *(where, entry.run.label, said.family, said.frame),
                *(int(said.overall["pairs"] or 0), decimal(said.overall["boxes"], 2)),
                *(said.overall[name] for name in _RATES),
                *((None, None) if said.tokens is None else (said.tokens.sent, said.tokens.received)),
            )
            for where, entry, said in found
        ],
        [f"{entry.run.label}: {said.repeats.in_words()}" for _, entry, said in found if said.repeats],
    )
    yield table_of(
        "answers_sensitivity",
        "What answers without a box do to the numbers",
        "Means over findings, in per cent: the headline, in which whatever has no box is a miss, and what it would be "
        "otherwise. Models are compared by the headline alone.",
        ["Dataset", "Model", "Counted"],
        ["Answers", "Pointing game", "Dice", "IoU", "IoU of the boxes", "IoU > 0.5"],
        [one for where, entry, said in found for one in _sensitivity(where, entry, said)],
    )
    recognised = [_recognised(where, entry, said) for where, entry, said in found if said.recognition]
    yield table_of(
        "answers_recognition",
        "How they were asked whether it is there",
        "A reply that says neither counts as the worst in recognition. Decisions only: nothing but yes and no, so that "
        "the ROC curve has one step, and F1 and accuracy say it all. Mass: median share of probability that yes and "
        "no have at the first token.",
        ["Dataset", "Model", "By", "Kind"],
        ["Asked", "Unreadable", "Bounded", "Mass", Column("AUROC", "Readable only"), Column("F1", "Readable only")],
        recognised,
    )
    yield table_of(
        "answers_examples",
        "Answers without a box, or not as declared",
        f"Up to {_EXAMPLES} of each model, of each status in turn; of long ones the end.",
        ["Dataset", "Model", "Image", "Finding", "Status", "Answer"],
        [],
        [
            row(where, entry.run.label, one.image_id, one.finding, _status(one), excerpt(one.raw, 240) or "(empty)")
            for where, entry, _ in found
            for one in _examples(entry)
        ],
    )


def _of(dataset: DatasetAnalysis) -> Iterator[tuple[RunAnalysis, Answers]]:
    for entry in in_order(dataset.runs).values():
        if entry.run.results.answers is not None:
            yield entry, entry.run.results.answers


def _sensitivity(where: str, entry: RunAnalysis, said: Answers) -> Iterator[Row]:
    grounding = entry.run.results.grounding.macro
    headline = {"pairs": said.overall["pairs"], **grounding, **said.macro}
    names = ("pointing_game", "dice_fixed", "iou_fixed", "box_iou", "acc_50")
    variants = {"headline": headline} | {text: said.sensitivity[name] for name, text in _SENSITIVITY.items()}
    for text, numbers in variants.items():
        values = (numbers.get(name) for name in names)
        yield row(where, entry.run.label, text, int(numbers["pairs"] or 0), *values)


def _recognised(where: str, entry: RunAnalysis, said: Answers) -> Row:
    found = said.recognition
    assert found is not None
    ways = ", ".join(f"{way} ({count:,})" for way, count in found.ways.items()) or MISSING
    kind = "decisions only" if found.decisions_only else "probabilities"
    counts = (found.asked, found.unreadable, found.bounded)
    numbers = (found.readable_only.get("auroc"), found.readable_only.get("f1"))
    mass = MISSING if found.median_mass is None else percentage(found.median_mass)
    return row(where, entry.run.label, ways, kind, *counts, Cell(mass, found.median_mass), *numbers)


def _examples(entry: RunAnalysis) -> list[AnswerRow]:
    rows = [row for rows in (entry.run.stored.answers or {}).values() for row in rows if row.query == "locate"]
    # Those in which something is wrong come before those that say there is nothing.
    groups = [
        [one for one in rows if one.status == status and not one.boxes]
        for status in ("unparsable", "truncated", "abstained")
    ]
    groups.insert(2, [one for one in rows if one.suspect_frame])
    chosen: list[AnswerRow] = []
    for place in range(_EXAMPLES):
        chosen += [group[place] for group in groups if place < len(group) and group[place] not in chosen]
    return chosen[:_EXAMPLES]


def _status(one: AnswerRow) -> str:
    return f"{one.status}, suspect frame" if one.suspect_frame else str(one.status)
