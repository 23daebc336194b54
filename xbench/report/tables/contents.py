"""The tables of a report: those in the layout of the paper, and those that look closer at each model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations

from xbench.findings.names import MACRO
from xbench.report.names import dataset_title, listed, model_title
from xbench.report.schema import NEAR, NUMBERS, WORDS, Analysis, DatasetAnalysis, Estimate, ProtocolScores, RunAnalysis
from xbench.report.statistics.paired import TESTED
from xbench.report.statistics.phrases import SCORES
from xbench.report.statistics.subgroups import LEAST
from xbench.report.tables.answered import answer_tables
from xbench.report.tables.intervened import hidden, others, overlap
from xbench.report.tables.methods import checklist
from xbench.report.tables.perturbed import PERTURBATIONS
from xbench.report.tables.published import published_tables
from xbench.report.tables.table import (
    INTERVALS,
    Cell,
    Column,
    Table,
    cells_of,
    decimal,
    marks,
    number,
    of_datasets,
    p_value,
    row,
    rows_of_models,
    table_of,
)
from xbench.runs.protocols import read_protocol, stored_protocols
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import Protocol
from xbench.scoring.protocols.words import flaw_of

_HONEST = {
    "dice_cross_fitted": Column("Cross-fitted", "Dice"),
    "dice_fixed": Column("At 0.5", "Dice"),
    "dice_best": Column("Best", "Dice"),
    "dice_optimism": Column("Optimism", "Dice"),
    "dice_gap": Column("Calibration gap", "Dice"),
    "iou_cross_fitted": Column("Cross-fitted", "IoU"),
    "iou_fixed": Column("At 0.5", "IoU"),
    "iou_best": Column("Best", "IoU"),
}
_OWN = ("dice_fixed", "dice_best", "iou_fixed", "iou_best")
_PER_FINDING = {
    **dict.fromkeys(("pointing_game", "auroc"), "Mean over findings, then each finding, in percent."),
    "dice_gap": f"{NUMBERS['dice_gap'].meaning} In percentage points. Nothing is marked as best: a map that is useless "
    "at every threshold also has a gap of zero.",
}
_WORDS = (
    *("side_coverage", "side_accuracy", "side_joint", "side_opposite", "side_chance", "side_excess", "side_prior"),
    *("side_gain", "zone_joint", "place_joint", "mention_f1", "mention_f1_strict", "false_mention"),
    "hallucinated_place",
)
_POINTS = {"models": "model", "findings": "model and finding"}
_STUDIES = {"prompts": "Other wordings of the findings", "image_size": "Other input sizes"}


def all_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Return every table of a report with a number."""
    return tuple(table for table in _tables(analysis) if _has_numbers(table))


def _has_numbers(table: Table) -> bool:
    places = [place for place, column in enumerate(table.columns) if column.numeric]
    cells = [row.cells[place] for row in table.rows for place in places if row.kind == "model"]
    return any(cell.value is not None for cell in cells) if cells else bool(table.rows)


def _tables(analysis: Analysis) -> Iterator[Table]:
    answers = bool(analysis.runs) and all(entry.run.results.answered for entry in analysis.runs)
    # Table 1 of the paper; boxes have no best threshold.
    key, best, of = "best", ", best", "at each finding's best threshold on the scored images, as in the XBench paper"
    if answers:
        key, best, of = "fixed", "", "all boxes of an answer together, on the evaluation grid"
    yield _over_datasets(
        analysis,
        {"pointing_game": "Pointing game", f"dice_{key}": f"Dice{best}", f"iou_{key}": f"IoU{best}"},
        "grounding",
        "Grounding",
        "Means over findings, in percent. The pointing game of a model with boxes or points is the share of their "
        f"area, or of the points, in the region. Dice and IoU: {of}. Below the models: floors, which a useful model "
        "must exceed, and ceilings. Whole image: everything is marked; its pointing game is that of a uniformly random "
        "point. Random: maps of random noise.",
    )
    if not answers:
        yield _grounding_honest(analysis)
    yield _own_scale(analysis)
    yield _over_datasets(
        analysis,
        {"auroc": "AUROC", "average_precision": "Average precision", "f1": "F1", "accuracy": "Accuracy"},
        "classification",
        "Recognition",
        "Means over the findings with positive and negative images, in percent; F1 and accuracy at a probability "
        "threshold of 0.5. Whole image: a rule that finds everything in every image.",
    )
    for key in _PER_FINDING:
        yield from of_datasets(analysis, partial(_per_finding, key))
    yield from answer_tables(analysis)
    yield _best_and_worst_findings(analysis)
    for per_dataset in (
        _words,
        _protocols,
        _protocol_numbers,
        _turned,
        _calibration,
        comparisons,
        _quadrants,
        _by_area,
        _by_position,
        _phrases,
        _rewordings,
        _subgroups,
        hidden,
        overlap,
        others,
        *PERTURBATIONS,
    ):
        yield from of_datasets(analysis, per_dataset)
    yield _correlations(analysis)
    yield from _studies(analysis)
    yield from published_tables(analysis)
    yield checklist(analysis)


def _over_datasets(analysis: Analysis, numbers: dict[str, str], name: str, title: str, caption: str) -> Table:
    places = [(dataset, key) for dataset in analysis.datasets for key in numbers]
    columns = [Column(numbers[key], analysis.heading(dataset)) for dataset, key in places]
    # Boxes have one IoU, which is compared as the cross-fitted one.
    tests = {key: "iou_cross_fitted" if key == "iou_fixed" else key for key in numbers}
    cells = [cells_of(dataset, key, tested=tests[key]) for dataset, key in places]
    references = [reference for dataset in analysis.datasets for reference in dataset.references]
    rows = rows_of_models(analysis.by_label, cells, references)
    tested = [title for key, title in numbers.items() if tests[key] in TESTED]
    explained = f"{caption}{marks(rows, f'{listed(tested)} is' if len(tested) < len(numbers) else '')} {INTERVALS}"
    return table_of(name, title, explained, ["Model"], columns, rows, analysis.notes_of())


def _per_finding(key: str, dataset: DatasetAnalysis) -> Table:
    # As the paper's Tables 2 to 5.
    title, caption = NUMBERS[key].title, _PER_FINDING[key]
    several = len(dataset.findings) > 1
    # With one finding the mean is the finding.
    findings = (None, *dataset.findings) if several else (None,)
    columns = [finding or ("Mean" if several else dataset.findings[0]) for finding in findings]
    cells = [cells_of(dataset, key, finding) for finding in findings]
    labels = [label for label in dataset.by_label if any(of[label].value is not None for of in cells)]
    shown = labels and (several or key == "dice_gap")
    rows = rows_of_models(labels, cells, dataset.references) if shown else []
    marked = marks(rows, "Mean is" if several else "")
    name, explained = title.lower().replace(" ", "_"), f"{caption}{marked} {INTERVALS}"
    return table_of(name, f"{title} per finding on", explained, ["Model"], columns, rows)


def _words(dataset: DatasetAnalysis) -> Table:
    models = {one.label: one.numbers[MACRO] for entry in dataset.by_label.values() for one in entry.words}
    found = models | {one.title: one.macro for one in dataset.references}
    signed = ("gain", "excess")
    cells = [{label: number(of.get(name), name.endswith(signed)) for label, of in found.items()} for name in _WORDS]
    columns = [_column(name) for name in _WORDS]
    flaws: dict[str, list[str]] = {}
    for name in _WORDS:
        flaws.setdefault(flaw_of(name), []).append(name.replace("_", " "))
    caption = (
        "Means over findings, in percent, for words, and for peaks of maps and boxes by the same rule. Coverage: "
        "lesions whose side is stated. Accuracy, Opposite: stated sides that are correct, or opposite. Joint: lesions "
        "whose side is stated and correct. Chance: accuracy of the texts of other images. Prior: accuracy of the most "
        "common side in another run. Excess: accuracy beyond chance, relative to the largest possible. Gain: accuracy "
        "minus prior. "
        f"{INTERVALS}"
    )
    notes = [f"{', '.join(names).capitalize()}: {flaw}" for flaw, names in flaws.items()]
    rows = rows_of_models(models, cells, dataset.references)
    return table_of("words", "What words say on", caption, ["Model"], columns, rows, notes)


def _column(name: str) -> Column:
    group, _, title = name.replace("_", " ").capitalize().partition(" ")
    if group in ("False", "Hallucinated"):
        return Column(f"{group} {title}")
    return Column("F1, strict" if title == "f1 strict" else title.capitalize(), group)


def _protocols(dataset: DatasetAnalysis) -> Table:
    columns = [Column(PROTOCOLS[scores.name].heading, _title(scores)) for scores in dataset.protocols]
    cells = [_with_ranks(scores) for scores in dataset.protocols]
    rows = rows_of_models(_labels_of_protocols(dataset), cells, dataset.references)
    caption = (
        "Each protocol's headline number in percent, with the rank among several models; do not compare numbers of "
        "different columns. *: not in the authors' image frame, so not comparable with published numbers; the notes "
        "name both frames. Floors and ceilings: those that were scored by the protocol."
    )
    notes = [_rule_and_flaw(PROTOCOLS[one.name], one.in_frame) for one in dataset.protocols]
    return table_of("protocols", "Other papers' scoring rules on", caption, ["Model"], columns, rows, notes)


def _protocol_numbers(dataset: DatasetAnalysis) -> Table:
    rows = []
    for name in dict.fromkeys(scores.name for scores in dataset.protocols):
        for label, entry in dataset.by_label.items():
            scored = any(scores.name == name and label in scores.values for scores in dataset.protocols)
            numbers = read_protocol(entry.run.folder, name)["numbers"] if scored else {}
            values = ((key, number["value"]) for key, number in numbers.items() if number["value"] is not None)
            rows += [row(PROTOCOLS[name].title, label, key, decimal(float(value), 4)) for key, value in values]
    caption = "Every number of each protocol as in its file, not in percent; map: mean average precision."
    text = ["Protocol", "Model", "Number"]
    return table_of("protocols_numbers", "All numbers of other papers' rules on", caption, text, ["Value"], rows)


def _with_ranks(scores: ProtocolScores) -> dict[str, Cell]:
    cells = {title: number(Estimate(value)) for title, value in {**scores.references, **scores.values}.items()}
    order = sorted(scores.values.values(), reverse=True)
    for label, value in scores.values.items() if len(order) > 1 else ():
        rank = 1 + order.index(value)  # equal ones share the better place
        text = f"{cells[label].text} ({rank})"
        cells[label] = replace(cells[label], text=text, mark="best" if rank == 1 else None)
    return cells


def _rule_and_flaw(protocol: Protocol, in_frame: bool = True) -> str:
    rule = f"{protocol.rule[0].upper()}{protocol.rule[1:]}"
    frame = "" if in_frame else f" Frame: {protocol.our_setting}; the authors': {protocol.setting}."
    return f"{protocol.title}: {rule}.{frame} Flaw: {protocol.flaw} Source: {protocol.citation}."


def _calibration(dataset: DatasetAnalysis) -> Table:
    # Of the protocol that scores probabilities: it does not rank maps.
    (protocol,) = (protocol for protocol in PROTOCOLS.values() if "score" in protocol.takes)
    columns = {protocol.headline: protocol.heading, **protocol.others}
    rows = []
    for label, entry in dataset.by_label.items():
        if protocol.name in stored_protocols(entry.run.folder):
            numbers = read_protocol(entry.run.folder, protocol.name)["numbers"]
            if numbers[protocol.headline]["value"] is not None:
                rows.append(row(label, *(numbers[name]["value"] for name in columns)))
    return table_of(
        f"protocols_{protocol.name}",
        f"{protocol.title} on",
        "Difference between predicted probabilities and observed frequencies: errors in percent, means over findings; "
        "lower is better. By chance: the expected error if labels were drawn with the predicted probabilities.",
        ["Model"],
        columns.values(),
        rows,
        [_rule_and_flaw(protocol)],
    )


def _labels_of_protocols(dataset: DatasetAnalysis) -> list[str]:
    return [label for label in dataset.by_label if any(label in one.values for one in dataset.protocols)]


def _title(scores: ProtocolScores) -> str:
    return f"{PROTOCOLS[scores.name].title}{'' if scores.in_frame else '*'}"


def _turned(dataset: DatasetAnalysis) -> Table:
    rows = []
    for first, second in combinations(_labels_of_protocols(dataset), 2):
        leads = [(scores, lead) for scores in dataset.protocols if (lead := scores.lead(first, second))]
        if len({lead > 0 for _, lead in leads}) < 2:
            continue
        for scores, lead in leads:
            lower, upper = sorted((first, second))
            ahead = "first" if lead > 0 else "second"
            p = scores.p.get(lower, {}).get(upper)
            rows.append(row(first, second, _title(scores), ahead, number(Estimate(abs(lead))), p_value(p)))
    caption = (
        "Pairs of models whose order differs between protocols. For each protocol: which model is ahead, by how many "
        "percentage points, and the p of a two-sided paired test that exchanges the models by patient (by image where "
        "patients are unknown), not corrected for the number of tests. Where a protocol pools pixels or boxes, the "
        "test compares means over pairs."
    )
    text, numbers = ["First", "Second", "Protocol", "Ahead"], ["Difference", "p"]
    return table_of("protocols_turned", "Order of models by protocol on", caption, text, numbers, rows)


def _grounding_honest(analysis: Analysis) -> Table:
    rows = [
        row(analysis.heading(dataset), *found.cells, kind=found.kind)
        for dataset in analysis.datasets
        for found in rows_of_models(dataset.by_label, [cells_of(dataset, key) for key in _HONEST], dataset.references)
    ]
    return table_of(
        "grounding_honest",
        "Dice and IoU with honest thresholds",
        "Means over findings, in percent. Best: at the threshold that is best on the same images. Cross-fitted: each "
        f"image is scored at the threshold that is best on the other folds ({analysis.folds} folds of whole patients, "
        "where these are known). Optimism: Dice, best minus cross-fitted. Calibration gap: Dice, best minus at 0.5."
        f"{marks(rows, 'cross-fitted Dice, cross-fitted IoU and Dice at 0.5 are')} {INTERVALS}",
        ["Dataset", "Model"],
        _HONEST.values(),
        rows,
        analysis.notes_of(),
    )


def _own_scale(analysis: Analysis) -> Table:
    groups = [f"{measure}, {scale}" for scale in ("own scale", "stretched") for measure in ("Dice", "IoU")]
    return table_of(
        "grounding_own_scale",
        "Dice and IoU on the maps' own scale",
        "Means over findings, in percent, for models whose maps are logits or probabilities. Own scale: pixels whose "
        "probability reaches one threshold for all images. Stretched: each map is first stretched to 0 to 1, as in the "
        "other tables. Best: at the threshold that is best for the finding on the same images.",
        ["Dataset", "Model", "Maps"],
        [Column(title, group) for group in groups for title in ("At 0.5", "Best")],
        [
            row(analysis.heading(dataset), entry.run.label, own.scale, *map(own.macro.get, _OWN), *map(macro.get, _OWN))
            for dataset in analysis.datasets
            for entry in dataset.by_label.values()
            for own, macro in [(entry.run.results.own_scale, entry.run.results.grounding.macro)]
            if own
        ],
        analysis.notes_of(),
    )


def _best_and_worst_findings(analysis: Analysis) -> Table:
    known = {key for run in analysis.runs for key, score in run.macro.items() if score.value is not None}
    numbers = [key for key in ("dice_cross_fitted", "auroc") if key in known]
    rows = []
    for dataset in analysis.datasets:
        for entry in dataset.by_label.values():
            for place, finding in best_and_worst(entry):
                values = entry.findings[finding]
                names = (analysis.heading(dataset), entry.run.label, place, finding)
                scored = entry.run.results.grounding.per_class[finding].count
                floor = dataset.floor("pointing_game", finding)
                rows.append(row(*names, scored, values["pointing_game"], floor, *(values.get(key) for key in numbers)))
    return table_of(
        "best_and_worst_findings",
        "Best and worst findings",
        "For each model and dataset, up to three findings with the highest and three with the lowest pointing game, in "
        "percent. Ties follow the dataset's order; no finding is both best and worst. Floor: the highest pointing game "
        f"that any rule ignoring the image reaches on that finding. {INTERVALS}",
        ["Dataset", "Model", "Place", "Finding"],
        ["Images", "Pointing game", "Floor", *(NUMBERS[key].title for key in numbers)],
        rows,
    )


def best_and_worst(entry: RunAnalysis) -> list[tuple[str, str]]:
    """Return up to three best and three worst findings by pointing game, as place and name."""
    scores = {finding: numbers["pointing_game"].value for finding, numbers in entry.findings.items()}
    known = {finding: score for finding, score in scores.items() if score is not None}
    ranked = sorted(known, key=lambda finding: -known[finding])
    size = min(3, len(ranked) // 2)
    best = [(f"best {n}", one) for n, one in enumerate(ranked[:size], 1) if known[one] > known[ranked[-1]]]
    worst = [(f"worst {n}", one) for n, one in enumerate(ranked[::-1][:size], 1) if known[one] < known[ranked[0]]]
    return best + worst


def comparisons(dataset: DatasetAnalysis) -> Table:
    """Return the table of every pair of models, by number."""
    rows, untested, boxes = [], set(), _without_thresholds(dataset)
    for entry in dataset.comparisons:
        # As in the chart, a difference is how far a run lies below the better one.
        entry = entry.turned() if (entry.difference.value or 0) > 0 else entry
        title, difference = {**NUMBERS, **WORDS}[entry.number].title, number(entry.difference, signed=True)
        if {entry.first, entry.second} <= boxes:
            title = re.sub(r",? (at 0\.5|cross-fitted threshold)", "", title)
        tests = p_value(entry.p), p_value(entry.p_adjusted)
        rows.append(row(title, entry.first, entry.second, entry.images, difference, *tests))
        if entry.untested:
            untested.add(f"{entry.first} and {entry.second} were not tested by {title}: {entry.untested}.")
    sides = ", and for the two numbers of sides together" * any(one.number in WORDS for one in dataset.comparisons)
    return table_of(
        "comparisons",
        "Models compared on",
        "Paired tests on the images that both models scored. The second is the better one. Difference: first minus "
        "second, in percentage points, with its 95% interval. Adjusted p: corrected for all comparisons of the number "
        f"on the dataset{sides}. Intervals and p come from different methods, so they can disagree.",
        ["Number", "First", "Second"],
        ["Images", "Difference", "p", "Adjusted p"],
        rows,
        sorted(untested),
    )


def _without_thresholds(dataset: DatasetAnalysis) -> set[str]:
    """Return the labels of runs that answer with boxes or points: their Dice at any threshold is that of the boxes."""
    return {entry.run.label for entry in dataset.runs if entry.run.results.answered}


def _quadrants(dataset: DatasetAnalysis) -> Table:
    rows = []
    for entry in dataset.by_label.values():
        for finding, shares in entry.quadrants.items():
            # A probability, not a score: as people set it, not in percent.
            threshold = decimal(shares.threshold, 4)
            values = (shares.both, shares.near_miss, shares.elsewhere, shares.grounded_only, shares.neither)
            rows.append(row(entry.run.label, finding, shares.count, threshold, *values))
    return table_of(
        "quadrants",
        "Recognized and grounded on",
        "Among images with the finding and its region, the percentage by whether the model recognizes the finding (its "
        "probability reaches the threshold that maximizes sensitivity plus specificity) and whether it grounds it (the "
        "peak of the map, or at least half of the box area or points, lies in the region). A pair that is recognized "
        "but not grounded is a near miss if the peak, or the center of the boxes, is at most "
        f"{100 * NEAR:g}% of the image's width from the region. Elsewhere: farther away, so the output does not show "
        "what the model based its recognition on.",
        ["Model", "Finding"],
        ["Images", "Threshold", "Both", "Recognized, near miss", "Recognized, elsewhere", "Grounded only", "Neither"],
        rows,
    )


def _by_area(dataset: DatasetAnalysis) -> Table:
    keys = ["pointing_game", "dice_fixed", "dice_cross_fitted"]
    titles = [NUMBERS[key].title for key in keys]
    if _without_thresholds(dataset) == {*dataset.by_label}:
        keys, titles = keys[:2], [titles[0], "Dice"]
    return table_of(
        "by_area",
        "Grounding against lesion size on",
        "Scored pairs of all findings in up to ten groups of about equal size, sorted by region area in "
        "percent of the image; mean scores in percent, and Dice of marking the whole image on the same pairs. "
        f"{INTERVALS}",
        ["Model"],
        ["Area from", "Area to", "Pairs", *titles, "Dice of the whole image"],
        [
            row(entry.run.label, part.low, part.high, part.count, *map(part.scores.get, keys), part.whole_image)
            for entry in dataset.by_label.values()
            for part in entry.areas
        ],
    )


def _by_position(dataset: DatasetAnalysis) -> Table:
    keys = ("pointing_game", "dice_fixed")
    # Names of the nine cells, row by row: sides of the image, not of the patient.
    names = [f"{height} {side}" for height in ("upper", "middle", "lower") for side in ("left", "center", "right")]
    return table_of(
        "by_position",
        "Grounding against position on",
        "Scored pairs of all findings by the cell of a 3 x 3 grid that holds their region's center of mass; left and "
        "right are sides of the image. Mean scores in percent. Peaks: of the maps of all scored pairs, the "
        f"percentage that peak in that cell; of answers, the percentage with their center there. {INTERVALS}",
        ["Model", "Position"],
        ["Pairs", *(NUMBERS[key].title for key in keys), "Peaks"],
        [
            row(entry.run.label, name, part.count, *map(part.scores.get, keys), part.peaks)
            for entry in dataset.by_label.values()
            for name, part in zip(names, entry.positions, strict=False)
        ],
    )


def _phrases(dataset: DatasetAnalysis) -> Table:
    rows = []
    for label, of in [(label, of) for label, entry in dataset.by_label.items() for of in entry.phrases]:
        scores = map(of.scores.get, SCORES)
        rows.append(row(label, of.name, of.phrases, of.scored, *scores, of.absent, of.false_alarms))
    return table_of(
        "phrases",
        "Phrases on",
        "The images' own phrases by finding, by number of words, and by whether they contain a negation (such as no, "
        "without, sin). Scored: present and with a region; means over these in percent. Absent: phrases that are false "
        "for the image. False alarms: percentage of the absent phrases that get a box, if a model answers with boxes "
        f"and was asked about them. {INTERVALS}",
        ["Model", "Phrases"],
        ["Number", "Scored", *(NUMBERS[key].title for key in SCORES), "Absent", "False alarms"],
        rows,
    )


def _rewordings(dataset: DatasetAnalysis) -> Table:
    what = {"name": "name of the finding", "phrase": "stock phrase", "negation": "negation", "other": "other region"}
    return table_of(
        "rewordings",
        "Phrases in other words on",
        "The same regions, with the original phrase and in other words: the name of its finding, the package's phrase "
        "for the finding, the negated phrase, and the phrase of another region of the same image. A model that follows "
        "the words leaves the region for a negation and for another region. Means over findings in percent. "
        "Difference: other words minus the original. Adjusted p: paired test, corrected over the model's rows. "
        f"{INTERVALS}",
        ["Model", "Words", "Number"],
        ["Phrases", "Original", "In other words", "Difference", "Adjusted p"],
        [
            row(
                *(one.label, what[one.wording], NUMBERS[one.number].title),
                *(one.pairs, one.own, one.other, number(one.difference, signed=True), p_value(one.p_adjusted)),
            )
            for one in dataset.rewordings
        ],
    )


def _subgroups(dataset: DatasetAnalysis) -> Table:
    rows = []
    for of in dataset.subgroups:
        gap = of.images is None
        numbers = (number(of.scores.get(key), signed=gap) for key in LEAST)
        cells = of.images, of.patients, of.positives, of.scored, *numbers, p_value(of.p), p_value(of.p_adjusted)
        rows.append(row(of.label, of.attribute, of.name, *cells, kind="difference" if gap else "model"))
    return table_of(
        "subgroups",
        "Sex, age and projection on",
        "Images by sex, age and projection as recorded in the dataset. Positives: pairs of an image and a finding that "
        "is present; scored: those with a region. Numbers in percent. AUROC: mean over the findings with at "
        f"least {LEAST['auroc']} positives and {LEAST['auroc']} negatives in every group. Pointing game: mean over the "
        f"findings that occur in every group, if the group has at least {LEAST['pointing_game']} scored pairs in all. "
        "Below the groups: largest minus smallest, in percentage points, with the number of findings in the mean and "
        "an interval corrected for picking the extremes; p from permuting the groups of patients (of images "
        "where patients are not known), adjusted for all attributes and scores tested for this model. A gap may come "
        f"from different lesions, diseases or devices in a group. We chose the age bands. {INTERVALS}",
        ["Model", "Attribute", "Group"],
        ["Images", "Patients", "Positives", "Scored", *(NUMBERS[key].title for key in LEAST), "p", "Adjusted p"],
        rows,
    )


def _correlations(analysis: Analysis) -> Table:
    rows = []
    for line, where in (*analysis.lines("models"), *analysis.lines("findings")):
        if line.points:
            numbers = [decimal(value, 2) for value in (line.r_squared, line.slope, line.intercept)]
            rows.append(row(_POINTS[line.scope], where, line.models, len(line.points), *numbers, p_value(line.p)))
    return table_of(
        "correlations",
        "Recognition and grounding",
        "Least-squares line through AUROC and pointing game, both as fractions. Each point is a model with its own "
        "settings (on all datasets: the model's means), or one finding of a model. p: test of slope zero; none "
        "if points are not independent, such as findings of several models or datasets. Left out: models and findings "
        "with equal probabilities for all images, whose AUROC is 0.5 by construction.",
        ["Each point is a", "Dataset"],
        ["Models", "Points", "R\u00b2", "Slope", "Intercept", "p"],
        rows,
        analysis.notes,
    )


def _studies(analysis: Analysis) -> Iterator[Table]:
    models = [model_title(entry.run.model) for entry in analysis.by_label.values()]
    for study in sorted({of.study for of in analysis.studies}):
        studied = [of for of in analysis.studies if of.study == study]
        studied.sort(key=lambda of: models.index(of.model))
        # Sizes by number, words by letter.
        by_size = {value: int(value) if value.isdecimal() else 0 for of in studied for value in of.values}
        values = sorted(by_size, key=lambda value: (by_size[value], value))
        name = study.replace("_", " ")
        yield table_of(
            f"studies_{study}",
            _STUDIES.get(study, name.capitalize()),
            f"Scores by {name}, all else equal, in percent. Spread: largest value minus smallest. Relative: the spread "
            "divided by the value at the model's own setting. Adjusted p: paired test of the two extremes, "
            "multiplied by the number of pairs of settings, then corrected with Holm's method over the findings and "
            f"their mean. {INTERVALS}",
            ["Model", "Dataset", "Finding", "Number"],
            [*(Column(value, name.capitalize()) for value in values), "Spread", "Relative", "Adjusted p"],
            [
                row(
                    *(of.model, dataset_title(of.dataset), of.finding, NUMBERS[of.number].title),
                    *map(of.values.get, values),
                    *(of.spread, of.relative, p_value(of.p_adjusted)),
                )
                for of in studied
            ],
        )
