"""The tables of models that answer: what their boxes score, what could not be read, and answers to look at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest

from xbench.report.schema import Analysis, RunAnalysis
from xbench.report.tables.table import MISSING, Cell, Column, Row, Table, decimal, percentage, row, table_of
from xbench.runs.answers import AnswerRow, excerpt
from xbench.runs.results import Answers, Recognized
from xbench.scoring.numbers import STATUSES

_BOXES = {
    "box_iou": Column("IoU", "Of the boxes"),
    "acc_30": Column("> 0.3", "IoU above"),
    "acc_50": Column("> 0.5", "IoU above"),
    "acc_75": Column("> 0.75", "IoU above"),
    "centre_hit": Column("Center inside", "Of the boxes"),
    "recall_50": Column("Recall", "Boxes matched at 0.5"),
    "precision_50": Column("Precision", "Boxes matched at 0.5"),
    "best_iou": Column("IoU of the best pair", "Flattering"),
    "false_alarm": Column("False alarms", "Without the finding"),
}
_RATES = {
    **{status: Column(status.capitalize(), "Share of answers") for status in STATUSES},
    "reordered": Column("Reordered", "With boxes that were"),
    "clipped": Column("Cut off", "With boxes that were"),
    "dropped": Column("Dropped", "With boxes that were"),
    "duplicates": Column("Repeated", "With boxes that were"),
    "suspect_frame": Column("Suspect", "With boxes that were"),
}
_SENSITIVITY = {
    "answered_only": "answered only (flattering)",
    "truncated_as_misses": "truncated as misses",
    "unparsable_as_perfect": "unparsable as perfect",
}
_WITHOUT_BOX = ("unparsable", "truncated", "abstained")
_EXAMPLES = 12
_FILE = "file of boxes"


def answer_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield the tables of the models that answer; of none, if all have maps."""
    runs = [
        (analysis.heading(dataset), entry, entry.run.results.answers)
        for dataset in analysis.datasets
        for entry in dataset.by_label.values()
        if entry.run.results.answers
    ]
    if not runs:
        return
    yield table_of(
        "answers_boxes",
        "Scores of the boxes",
        "Means over findings, in percent, computed without a grid. IoU: all answered against all annotated boxes of a "
        "pair. IoU above: percentage of pairs. Center inside: answered boxes whose center lies in an annotated box. "
        "Boxes matched at 0.5: answered and annotated boxes matched one to one at an IoU of 0.5, pooled over the "
        "images with the finding. An answer without a box is a miss. IoU of the best pair: some papers report it as "
        "IoU if there are several boxes. False alarms: percentage of the images without the finding that get a box, "
        "if the model was asked about them.",
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
            f"{entry.run.label}: {answers.outlined} of {answers.overall['pairs']:.0f} pairs are annotated with "
            "outlines or masks; the boxes around these are used."
            for _, entry, answers in runs
            if answers.outlined
        ],
    )
    yield table_of(
        "answers_rates",
        "How the answers were read",
        "Over all scored pairs, in percent. Abstained: the answer says that there is nothing, or declines. Unparsable: "
        "neither a box nor such a word. Truncated: the end of the answer is missing; complete boxes are kept. Suspect: "
        "the numbers look like another frame than the declared one; they were read in the declared frame anyway. "
        "Tokens: of queries and answers.",
        ["Dataset", "Model", "Family", "Frame"],
        ["Answers", Column("Boxes", "Per answer"), *_RATES.values(), "Tokens sent", "Tokens received"],
        [
            row(
                *(where, entry.run.label, _FILE if entry.run.results.box_file else answers.family, answers.frame),
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
        "Effect of answers without a box",
        "Means over findings, in percent. Headline: an answer without a box is a miss. Below: the same numbers under "
        "other rules. Compare models by the headline only.",
        ["Dataset", "Model", "Counted"],
        ["Answers", "Pointing game", "Dice", "IoU", "Box IoU", "IoU > 0.5"],
        [one for where, entry, answers in runs for one in _sensitivity(where, entry, answers)],
    )
    yield table_of(
        "answers_recognition",
        "Questions about the presence of findings",
        "A reply that is neither yes nor no counts as the worst answer in recognition. Decisions only: replies have no "
        "probability, so the ROC curve has one step; use F1 and accuracy. Mass: median joint probability of yes and no "
        "as the first token.",
        ["Dataset", "Model", "By", "Kind"],
        ["Asked", "Unreadable", "Bounded", "Mass", Column("AUROC", "Readable only"), Column("F1", "Readable only")],
        [_recognized(where, entry, answers.recognition) for where, entry, answers in runs if answers.recognition],
    )
    yield table_of(
        "answers_examples",
        "Examples of answers without a box or in a suspect frame",
        f"Up to {_EXAMPLES} answers per model, alternating between statuses; long answers show only their end.",
        ["Dataset", "Model", "Image", "Finding", "Status", "Answer"],
        [],
        [
            row(
                *(where, entry.run.label, one.image_id, one.finding),
                f"{one.status}{', suspect frame' if one.suspect_frame else ''}",
                excerpt(one.raw, 240) or "(empty)",
            )
            for where, entry, _ in runs
            for one in ([] if entry.run.results.box_file else _examples(entry))
        ],
    )


def _sensitivity(where: str, entry: RunAnalysis, answers: Answers) -> Iterator[Row]:
    headline = {"pairs": answers.overall["pairs"], **entry.run.results.grounding.macro, **answers.macro}
    names = ("pointing_game", "dice_fixed", "iou_fixed", "box_iou", "acc_50")
    variants = {"headline": headline} | {text: answers.sensitivity[name] for name, text in _SENSITIVITY.items()}
    for text, numbers in variants.items():
        yield row(where, entry.run.label, text, int(numbers["pairs"] or 0), *map(numbers.get, names))


def _recognized(where: str, entry: RunAnalysis, asked: Recognized) -> Row:
    ways = ", ".join(f"{way} ({count:,})" for way, count in asked.ways.items()) or MISSING
    kind = "decisions only" if asked.decisions_only else "probabilities"
    mass = MISSING if asked.median_mass is None else percentage(asked.median_mass)
    readable = (asked.readable_only.get("auroc"), asked.readable_only.get("f1"))
    counts = (asked.asked, asked.unreadable, asked.bounded)
    return row(where, entry.run.label, ways, kind, *counts, Cell(mass, asked.median_mass), *readable)


def _examples(entry: RunAnalysis) -> list[AnswerRow]:
    rows = [row for rows in entry.run.stored.answers.values() for row in rows if row.query == "locate"]
    rows.sort(key=lambda row: row.annotated is None)  # images with the finding first
    # Those in which something is wrong come before those that say there is nothing.
    statuses = [[row for row in rows if row.status == status and not row.boxes] for status in _WITHOUT_BOX]
    groups = [*statuses[:2], [row for row in rows if row.suspect_frame], statuses[2]]
    chosen: list[AnswerRow] = []
    for turn in islice(zip_longest(*groups), _EXAMPLES):
        chosen += [row for row in turn if row is not None and row not in chosen]
    return chosen[:_EXAMPLES]
