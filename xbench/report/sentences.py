"""What a report says in sentences: its headlines, what it found on each dataset, and notes on what cannot be compared.

Nothing is said that is not computed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from xbench.geometry.preprocessing import INPUT_NOTE
from xbench.report.names import dataset_title
from xbench.report.runs import Run, part_of, widest
from xbench.report.schema import (
    NEAR,
    NUMBERS,
    Analysis,
    DatasetAnalysis,
    Estimate,
    RunAnalysis,
    floor_of,
    in_order,
)
from xbench.types import DOUBT_NOTE, EXPLORATORY_NOTE

_OVERSTATES = "Choosing the threshold on the very images that are scored overstates Dice by"


def headlines(analysis: Analysis) -> tuple[str, ...]:
    """Return what a report found, each point a sentence or two of plain text."""
    datasets, runs = analysis.datasets, analysis.runs
    return (
        *warnings(runs),
        *_best_models(datasets),
        *_no_better_than_floors(datasets),
        *recognised_elsewhere(runs),
        *_correlations(analysis),
        *_means_over_runs(runs),
    )


def warnings(runs: Sequence[RunAnalysis]) -> tuple[str, ...]:
    """Return what makes a run's numbers doubtful as a whole, as maps that look upside down."""
    return tuple(
        f"{run.run.label} on {dataset_title(run.run.dataset)}: {warning}"
        for run in runs
        for warning in (
            *filter(None, [run.run.results.sign_warning(), run.auroc_warning]),
            *(run.run.results.answers.warnings() if run.run.results.answers else ()),
        )
    )


def dataset_in_words(dataset: DatasetAnalysis) -> tuple[str, ...]:
    """Return what was found on a dataset and its notes, each point a sentence or two of plain text."""
    return (*_of_dataset(dataset), *dataset.notes)


def _best_models(datasets: Sequence[DatasetAnalysis]) -> Iterator[str]:
    bests = [
        (dataset, max(values, key=lambda label: values[label]))
        for dataset in datasets
        if (values := dataset.values("pointing_game"))
    ]
    # Three datasets get a headline each.
    if len(bests) > 3:
        counts = Counter(label for _, label in bests).most_common()
        leaders = listed([f"{label} on {count} of {len(bests)} datasets" for label, count in counts])
        yield (
            f"Highest pointing game: {leaders}. The table of grounding marks models that are not significantly "
            "different from the best."
        )
        return
    for dataset, label in bests:
        score = next(entry.macro["pointing_game"] for entry in dataset.runs if entry.run.label == label)
        alone = len(dataset.values("pointing_game")) == 1
        answers = next(entry.run.results.answers for entry in dataset.runs if entry.run.label == label)
        what, does = ("map", "peaks") if answers is None else (answers.kind, "point")
        whose = f"the {what} of {label}" if alone else f"{label} has the highest pointing game: its {what}"
        yield (
            f"On {dataset_title(dataset.dataset)}, {whose} {does} inside the annotated region in "
            f"{_percent(score.value)} of images{_interval(score)}, averaged over findings."
            f"{'' if alone else _tests(dataset, 'pointing_game', label)}"
        )


def _no_better_than_floors(datasets: Sequence[DatasetAnalysis]) -> Iterator[str]:
    guessing, whole = [], []
    for dataset in datasets:
        image = next((floor for floor in dataset.references if floor.title == "Whole image"), None)
        for run in dataset.runs:
            where = f"{run.run.label} on {dataset_title(dataset.dataset)}"
            # A floor of the macro would mix findings that the middle of the image hits always with those it never does.
            if beaten := beaten_findings(dataset, run):
                guessing.append(f"{where} for {listed(beaten)}")
            if image is not None and _at_most(run.macro.get("dice_best"), image.macro.get("dice_best"), 1e-4):
                whole.append(where)
    if guessing:
        yield f"No better at pointing than a map that ignores the image: {'; '.join(guessing)}."
    if whole:
        yield (
            "At the best threshold, Dice is no higher than for marking the whole image, so it is no sign of grounding: "
            f"{listed(whole)}."
        )


def beaten_findings(dataset: DatasetAnalysis, run: RunAnalysis) -> list[str]:
    """Return the findings on which a run's pointing game is no higher than the highest floor."""
    return [
        finding
        for finding, numbers in run.findings.items()
        if _at_most(numbers.get("pointing_game"), floor_of(dataset, finding, "pointing_game"))
    ]


def recognised_elsewhere(runs: Sequence[RunAnalysis]) -> Iterator[str]:
    """Say how often a model recognises a finding and looks elsewhere, near misses left out."""
    recognised, elsewhere = Counter[str](), Counter[str]()
    for run in runs:
        for quadrants in run.quadrants.values():
            recognised[run.run.label] += round(quadrants.count * (quadrants.both + quadrants.recognised_only))
            elsewhere[run.run.label] += round(quadrants.count * quadrants.elsewhere)
    shares = sorted((elsewhere[label] / count, label) for label, count in recognised.items() if count)
    if not shares:
        return
    (least, first), (most, last) = shares[0], shares[-1]
    who = first if len(shares) == 1 else "a model"
    said = _percent(most)
    if least != most:
        said = f"{_percent(least)} ({first}) to {said} ({last})"
    nowhere = ", or nowhere," if any(run.run.results.answers and run.quadrants for run in runs) else ""
    yield (
        f"Where {who} recognises a finding, it still points more than {_percent(NEAR, 0)} of the film's width away "
        f"from the region{nowhere} in {said} of these films, all findings together."
    )


def _correlations(analysis: Analysis) -> Iterator[str]:
    said: list[str] = []
    for scope in ("models", "findings"):
        for line in analysis.correlations:
            # Pairs of one or two models say something about these models only.
            if line.scope == scope and line.dataset is None and line.r_squared is not None and line.models > 2:
                falling = "falling as AUROC rises" if line.slope is not None and line.slope < 0 else ""
                points = (
                    f"{line.models} models" if scope == "models" else f"{len(line.points)} pairs of model and finding"
                )
                of = f"of {line.models} models, not independent" if scope == "findings" else ""
                about = filter(None, (points, of, line.p_in_words, falling))
                what = "" if said else " of the variation in pointing game"
                said.append(f"{_percent(line.r_squared)}{what} ({', '.join(about)})")
    if said:
        yield f"AUROC explains {listed(said)}."


def _means_over_runs(runs: Sequence[RunAnalysis]) -> Iterator[str]:
    gap, optimism = (_mean(run.macro[number].value for run in runs) for number in ("dice_gap", "dice_optimism"))
    if gap is not None:
        swept = [run for run in runs if run.macro["dice_gap"].value is not None]
        yield (
            f"Threshold 0.5 costs {100 * gap:.1f} percentage points of Dice against the best threshold{_over(swept)}."
            + ("" if optimism is None else f" {_OVERSTATES} {100 * optimism:.1f}.")
        )
    sized = [run for run in runs if len(run.areas) > 1]
    small, large = (_mean(run.areas[end].scores["pointing_game"].value for run in sized) for end in (0, -1))
    if small is not None:
        labels = list(in_order(sized))
        whose = "" if labels == list(in_order(runs)) and len(labels) > 1 else f" of {listed(labels)}"
        where = f" of {listed(list(dict.fromkeys(dataset_title(run.run.dataset) for run in sized)))}"
        counts = [f"{sized[0].areas[end].count} " if len(sized) == 1 else "" for end in (0, -1)]
        yield (
            f"The pointing game{whose} is {_percent(small)} on the {counts[0]}smallest lesions{where} and "
            f"{_percent(large)} on the {counts[1]}largest{_over(sized)}."
        )


def _of_dataset(dataset: DatasetAnalysis) -> Iterator[str]:
    for key in ("pointing_game", "dice_cross_fitted", "auroc"):
        if values := dataset.values(key):
            leaders = [label for label, value in values.items() if value == max(values.values())]
            best = next(entry.macro[key] for entry in dataset.runs if entry.run.label == leaders[0])
            tests = _tests(dataset, key, leaders[0]) if len(values) > len(leaders) == 1 else ""
            yield f"{NUMBERS[key].title}: {listed(leaders)} with {_percent(best.value, 2)}{_interval(best, 2)}.{tests}"
    if gaps := dataset.values("dice_gap"):
        label = max(gaps, key=lambda label: gaps[label])
        begin = "Largest calibration gap: threshold 0.5" if len(gaps) > 1 else "Threshold 0.5"
        yield f"{begin} costs {label} {100 * gaps[label]:.2f} points of Dice against its best threshold."
    if optimism := dataset.values("dice_optimism"):
        label = max(optimism, key=lambda label: optimism[label])
        most = f" on average, most for {label} ({100 * optimism[label]:.2f})" if len(optimism) > 1 else ""
        yield f"{_OVERSTATES} {100 * sum(optimism.values()) / len(optimism):.2f} points{most}."
    # Of fewer pairs than ten a share is no finding.
    shares = [
        (shares.elsewhere, f"{finding} by {entry.run.label} ({_percent(shares.elsewhere, 2)} of {shares.count} images)")
        for entry in dataset.runs
        for finding, shares in entry.quadrants.items()
        if shares.count >= 10 and shares.elsewhere > 0
    ]
    if shares:
        said = [text for _, text in sorted(shares, key=lambda share: -share[0])[:3]]
        yield f"Most often recognised while the model points elsewhere: {listed(said)}."
    for reference in dataset.references:
        expected = reference.macro.get("pointing_game", Estimate(None)).value
        spread = reference.spread.get("pointing_game")
        if expected is not None and spread is not None:
            yield (
                f"Random maps have a pointing game of {_percent(expected, 2)} on average; single runs of random maps "
                f"have a standard deviation of {100 * spread:.2f} points."
            )


def _tests(dataset: DatasetAnalysis, number: str, best: str) -> str:
    """Say which runs the paired tests tell from the best one, which not, and which were not tested."""
    tied = sorted(dataset.tied_with_best.get(number, frozenset()) - {best})
    untested = dataset.untested(number, best)
    said = ""
    if tied:
        said = f" Not significantly different (paired test): {listed(tied)}."
    elif len(dataset.values(number)) - 1 > len(untested):
        which = " that could be tested" if untested else ""
        said = f" Every other model{which} is significantly different (paired test)."
    if untested:
        said += f" No test was possible against {listed(untested)}, so this is no ranking: the notes say why."
    return said


Different = tuple[Sequence[Run], Sequence[Run], int, Mapping[str, tuple[int, int]]]
"""Runs scored alike, the runs scored as most were, how many images both scored, and by finding on how many of these the
labels differ, and on how many others the regions."""


def dataset_notes(entries: Sequence[RunAnalysis], different: Iterable[Different]) -> tuple[str, ...]:
    """Return what a reader must know before setting the runs of a dataset side by side, and of each run alone.

    The entries are all runs of one dataset and split, `different` those scored on other labels or regions than most.
    """
    runs = [entry.run for entry in entries]
    images = {run.label: frozenset(run.images.image_ids) for run in runs}
    notes = []
    if len({*images.values()}) > 1:
        counts = ", ".join(f"{label} {len(ids):,}" for label, ids in images.items())
        notes.append(
            f"The runs scored different images: {counts}; {len(frozenset.intersection(*images.values())):,} are common "
            "to all. Tables show each run on its own images, tests compare two runs on the images that both scored."
        )
    notes += [
        f"{run.label} scored {len(images[run.label]):,} of the {len(images[whole.label]):,} images of {whole.label}: "
        "the same dataset on fewer images, and no other dataset or setting."
        for run in runs
        if (whole := part_of(run, runs))
    ]
    notes += _ground_notes(runs, different)
    # Runs are told apart by all of a value; a note shows its last part.
    values: dict[str, list[tuple[str, ...]]] = {
        "The runs scored different findings, so their means over findings are over different ones": [
            (*run.results.findings, count_of(len(run.results.findings), "finding")) for run in runs
        ],
        "The runs read different annotation files; paired tests use the labels and regions that agree": [
            (run.settings.get("annotation", "none"),) for run in runs
        ],
        "The runs swept different numbers of thresholds": [
            (str(len(run.results.grounding.thresholds)),) for run in runs
        ],
    }
    for sentence, of_runs in values.items():
        groups: defaultdict[tuple[str, ...], list[Run]] = defaultdict(list)
        for run, value in zip(runs, of_runs, strict=True):
            groups[value].append(run)
        if len(groups) > 1:
            said = [f"{value[-1]} ({_labels(group)})" for value, group in groups.items()]
            notes.append(f"{sentence}: {'; '.join(said)}.")
    return (*notes, *(note for entry in entries for note in _notes_of(entry)))


def _notes_of(entry: RunAnalysis) -> Iterator[str]:
    run, results = entry.run, entry.run.results
    yield from _disagreement(entry)
    for warning in filter(None, (results.sign_warning(), entry.auroc_warning)):
        yield f"{run.label}: {warning}"
    if results.answers is not None:
        yield (
            f"{run.label} answers with {results.answers.kind}, which are one mask: what a sweep of thresholds gives is "
            "a dash. Its Dice and IoU at 0.5 compare with the cross-fitted ones of maps, as in the paired tests, never "
            "with their best."
        )
    if limit := run.settings.get("limit"):
        yield f"{run.label} was limited to the first {limit} images: its numbers do not describe the dataset."
    for note in results.counts.notes:
        if note.note.startswith((INPUT_NOTE, EXPLORATORY_NOTE, DOUBT_NOTE)):
            yield f"{run.label}: {note.note}."
    if skipped := results.counts.skipped:
        yield (
            f"{run.label} left out {count_of(len(skipped), 'image')} that could not be scored; the first is "
            f"{skipped[0].image_id}: {skipped[0].reason}"
        )
    if results.answers is None and (count := int(np.isnan(run.images.peak_x[run.images.scored]).sum())):
        yield f"{run.label} lacks the maps of {count_of(count, 'scored pair')}, which count as misses."
    if count := results.counts.constant_maps.count:
        yield (
            f"{run.label} has {count_of(count, 'constant saliency map')}, the same value at every pixel, scored as "
            "zeros with all pixels tied for the maximum."
        )


def _disagreement(entry: RunAnalysis) -> Iterator[str]:
    """Say that the run's tables give other numbers than its results.json, if so."""
    results, derived = entry.run.results, {"macro": entry.macro, **entry.findings}
    stored = {"macro": results.macro}
    for finding in entry.findings:
        both = results.grounding.per_class.get(finding), results.classification.per_class.get(finding)
        stored[finding] = {key: value for half in both if half is not None for key, value in vars(half).items()}
    wrong = [
        (finding, key, value, derived[finding][key].value)
        for finding, numbers in stored.items()
        for key, value in numbers.items()
        if key in NUMBERS and not _agree(value, derived[finding][key].value)
    ]
    if wrong:
        finding, key, says, give = wrong[0]
        yield (
            f"{entry.run.label}: results.json in {entry.run.folder} disagrees with the tables beside it in "
            f"{count_of(len(wrong), 'number')}; the first is {key} of {finding}, {says} there and {give} by the "
            "tables, which this report follows. Do these files belong together?"
        )


def _agree(one: float | None, other: float | None) -> bool:
    # Far above the rounding of a run's sums, far below what a table shows.
    return one is other if one is None or other is None else abs(one - other) <= 1e-9


def _ground_notes(runs: Sequence[Run], different: Iterable[Different]) -> list[str]:
    """Say which runs have other labels or regions than most, where, and by which options."""
    notes = []
    for group, usual, images, differ in different:
        where = []
        for place, what in enumerate(("labels", "regions")):
            # The findings that differ, each with on how many images, the most first.
            counts = {finding: of_finding[place] for finding, of_finding in differ.items() if of_finding[place]}
            most = sorted(counts, key=lambda finding: -counts[finding])
            more = f" and {count_of(len(most) - 5, 'more finding')}" if len(most) > 5 else ""
            if counts:
                where.append(f"the {what} of {', '.join(f'{name} on {counts[name]:,}' for name in most[:5])}{more}")
        notes.append(
            f"{_labels(group)} and {_labels(usual)} were scored on different ground: {_options(group, usual)}. Of "
            f"{count_of(images, 'image')} that both scored, {' and '.join(where)} differ. Paired tests and pictures "
            "leave these pairs out, tests of AUROC only images whose labels differ. Do not compare the other numbers "
            "of these runs."
        )
    if notes:
        notes.append(
            f"Floors and ceilings without a run of their own use the labels and regions of {widest(runs).label}."
        )
    return notes


def _options(group: Sequence[Run], usual: Sequence[Run]) -> str:
    """Name the settings of the dataset in which no run of a group agrees with a run of the other."""
    said = []
    names = {name for run in (*group, *usual) for name in run.data_settings} | {"annotation"}
    for name in sorted(names):
        mine, theirs = ({run.settings.get(name, "none") for run in runs} for runs in (group, usual))
        if not mine & theirs:
            said.append(f"{name.replace('_', ' ')} {' or '.join(sorted(mine))} against {' or '.join(sorted(theirs))}")
    return ", ".join(said) or "no option on record says why"


def _labels(runs: Sequence[Run]) -> str:
    return ", ".join(run.label for run in runs)


def _at_most(score: Estimate | None, floor: Estimate | None, slack: float = 0.0) -> bool:
    if score is None or floor is None or score.value is None or floor.value is None:
        return False
    return score.value <= floor.value + slack


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _over(runs: Sequence[RunAnalysis]) -> str:
    """Say what a mean over runs is over, if they are several."""
    several = {"models": {run.run.label for run in runs}, "datasets": {run.run.dataset for run in runs}}
    what = " and ".join(name for name, values in several.items() if len(values) > 1)
    return f", averaged over {what}" if what else ""


def _percent(value: float | None, digits: int = 1) -> str:
    return "\u2013" if value is None else f"{100 * value:.{digits}f}%"


def _interval(estimate: Estimate, digits: int = 1) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" (95% interval {100 * estimate.low:.{digits}f} to {100 * estimate.high:.{digits}f})"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words: `A, B and C`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def count_of(number: int, thing: str, things: str = "") -> str:
    """Return a number of things: `1 image`, `2 images`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
