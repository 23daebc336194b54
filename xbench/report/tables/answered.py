"""The tables of models that answer: what their boxes score, what could not be read, and answers to look at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest

from xbench.report.schema import Analysis, RunAnalysis, in_order
from xbench.report.tables.table import MISSING, Cell, Column, Row, Table, decimal, percentage, row, table_of
from xbench.runs.answers import AnswerRow, excerpt
from xbench.runs.results import Answers, Recognized

_BOXES = {
    "box_iou": Column("IoU", "Of the boxes"),
    "acc_30": Column("> 0.3", "IoU above"),
    "acc_50": Column("> 0.5", "IoU above"),
    "acc_75": Column("> 0.75", "IoU above"),
    "centre_hit": Column("Center inside", "Of the boxes"),
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
_WITHOUT_BOX = ("unparsable", "truncated", "abstained")
_EXAMPLES = 12


def answer_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield the tables of the models that answer; of none, if all have maps."""
    runs = [
        (analysis.heading(dataset), entry, entry.run.results.answers)
        for dataset in analysis.datasets
        for entry in in_order(dataset.runs).values()
        if entry.run.results.answers
    ]
    if not runs:
        return
    yield table_of(
        "answers_boxes",
        "What their boxes score",
        "Means over findings, in percent, without a grid: IoU of all answered with all annotated boxes of a pair; "
        "share of pairs above a threshold; answered boxes whose center lies in an annotated one; lesions matched one "
        "to one. No box is a miss. The IoU of the best pair is what papers call IoU where several boxes are given. "
        "False alarms: share of images without the finding that get a box, if it was asked for there.",
        ["Dataset", "Model"],
        _BOXES.values(),
        [
            *(row(where, entry.run.label, *map(answers.macro.get, _BOXES)) for where, entry, answers in runs),
            *(
                row(analysis.heading(dataset), reference.title, *map(reference.boxes.get, _BOXES), kind=reference.kind)
                for dataset in analysis.datasets
                for reference in dataset.references
                if reference.boxes
            ),
        ],
        [
            f"{entry.run.label}: {answers.outlined} of {answers.overall['pairs']:.0f} pairs are annotated by outlines "
            "or masks; their boxes are those around them."
            for _, entry, answers in runs
            if answers.outlined
        ],
    )
    yield table_of(
        "answers_rates",
        "What could be read",
        "Over all scored pairs, in percent. Abstained: says that there is nothing, or declines. Unparsable: neither "
        "box nor such a word. Truncated: its end is missing; complete boxes are kept. Suspect: the numbers look like "
        "another frame than the declared one, by which they were read all the same. Tokens: of queries and answers.",
        ["Dataset", "Model", "Family", "Frame"],
        ["Answers", Column("Boxes", "Per answer"), *_RATES.values(), "Tokens sent", "Tokens received"],
        [
            row(
                *(where, entry.run.label, answers.family, answers.frame),
                *(int(answers.overall["pairs"] or 0), decimal(answers.overall["boxes"], 2)),
                *map(answers.overall.get, _RATES),
                *((None, None) if answers.tokens is None else (answers.tokens.sent, answers.tokens.received)),
            )
            for where, entry, answers in runs
        ],
        [f"{entry.run.label}: {answers.repeats.in_words()}" for _, entry, answers in runs if answers.repeats],
    )
    yield table_of(
        "answers_sensitivity",
        "What answers without a box do to the numbers",
        "Means over findings, in percent: the headline, in which whatever has no box is a miss, and what it would be "
        "otherwise. Models are compared by the headline alone.",
        ["Dataset", "Model", "Counted"],
        ["Answers", "Pointing game", "Dice", "IoU", "IoU of the boxes", "IoU > 0.5"],
        [one for where, entry, answers in runs for one in _sensitivity(where, entry, answers)],
    )
    yield table_of(
        "answers_recognition",
        "How they were asked whether it is there",
        "A reply that says neither counts as the worst in recognition. Decisions only: nothing but yes and no, so that "
        "the ROC curve has one step, and F1 and accuracy say it all. Mass: median share of probability that yes and "
        "no have at the first token.",
        ["Dataset", "Model", "By", "Kind"],
        ["Asked", "Unreadable", "Bounded", "Mass", Column("AUROC", "Readable only"), Column("F1", "Readable only")],
        [_recognized(where, entry, answers.recognition) for where, entry, answers in runs if answers.recognition],
    )
    yield table_of(
        "answers_examples",
        "Answers without a box, or not as declared",
        f"Up to {_EXAMPLES} of each model, of each status in turn; of long ones the end.",
        ["Dataset", "Model", "Image", "Finding", "Status", "Answer"],
        [],
        [
            row(
                *(where, entry.run.label, one.image_id, one.finding),
                f"{one.status}{', suspect frame' if one.suspect_frame else ''}",
                excerpt(one.raw, 240) or "(empty)",
            )
            for where, entry, _ in runs
            for one in _examples(entry)
        ],
    )


def _sensitivity(where: str, entry: RunAnalysis, answers: Answers) -> Iterator[Row]:
    grounding = entry.run.results.grounding.macro
    headline = {"pairs": answers.overall["pairs"], **grounding, **answers.macro}
    names = ("pointing_game", "dice_fixed", "iou_fixed", "box_iou", "acc_50")
    variants = {"headline": headline} | {text: answers.sensitivity[name] for name, text in _SENSITIVITY.items()}
    for text, numbers in variants.items():
        values = (numbers.get(name) for name in names)
        yield row(where, entry.run.label, text, int(numbers["pairs"] or 0), *values)


def _recognized(where: str, entry: RunAnalysis, asked: Recognized) -> Row:
    ways = ", ".join(f"{way} ({count:,})" for way, count in asked.ways.items()) or MISSING
    kind = "decisions only" if asked.decisions_only else "probabilities"
    mass = MISSING if asked.median_mass is None else percentage(asked.median_mass)
    readable = (asked.readable_only.get("auroc"), asked.readable_only.get("f1"))
    counts = (asked.asked, asked.unreadable, asked.bounded)
    return row(where, entry.run.label, ways, kind, *counts, Cell(mass, asked.median_mass), *readable)


def _examples(entry: RunAnalysis) -> list[AnswerRow]:
    rows = [row for rows in entry.run.stored.answers.values() for row in rows if row.query == "locate"]
    # Those in which something is wrong come before those that say there is nothing.
    statuses = [[row for row in rows if row.status == status and not row.boxes] for status in _WITHOUT_BOX]
    groups = [*statuses[:2], [row for row in rows if row.suspect_frame], statuses[2]]
    chosen: list[AnswerRow] = []
    for turn in islice(zip_longest(*groups), _EXAMPLES):
        chosen += [row for row in turn if row is not None and row not in chosen]
    return chosen[:_EXAMPLES]
