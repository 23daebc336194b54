"""The numbers of a report: tables, figures, sentences and the page show nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal

from xbench.findings.names import MACRO
from xbench.report.names import dataset_title
from xbench.report.runs import Run, SetAside, part_of


@dataclass(frozen=True)
class Number:
    """A number that reports show: `more_is_better` is None where neither is, `meaning` one sentence for readers."""

    title: str
    meaning: str
    group: Literal["grounding", "classification", "words"] = "grounding"
    more_is_better: bool | None = True


_CROSS_FITTED = "where every image is scored at the threshold that is best on other images."
_HIT = "Share of images with the finding where the maximum of the map lies in the annotated region."
_OPTIMISM = "Dice at the threshold best on these images, minus Dice with cross-fitted thresholds."
_GAP = "Dice at the best threshold minus Dice at 0.5: what the fixed threshold costs."
NUMBERS: Mapping[str, Number] = {
    "pointing_game": Number("Pointing game", _HIT),
    "dice_best": Number("Dice, best threshold", "Mean Dice at the threshold best on these same images."),
    "iou_best": Number("IoU, best threshold", "Mean IoU at the threshold best on these same images."),
    "dice_cross_fitted": Number("Dice, cross-fitted threshold", f"Mean Dice {_CROSS_FITTED}"),
    "iou_cross_fitted": Number("IoU, cross-fitted threshold", f"Mean IoU {_CROSS_FITTED}"),
    "dice_fixed": Number("Dice at 0.5", "Mean Dice at threshold 0.5."),
    "iou_fixed": Number("IoU at 0.5", "Mean IoU at threshold 0.5."),
    "dice_optimism": Number("Optimism", _OPTIMISM, more_is_better=None),
    "dice_gap": Number("Calibration gap", _GAP, more_is_better=False),
    "auroc": Number("AUROC", "Area under the ROC curve.", "classification"),
    "average_precision": Number("Average precision", "Area under the precision-recall curve.", "classification"),
    "f1": Number("F1", "F1 at probability 0.5 and above.", "classification"),
    "accuracy": Number("Accuracy", "Accuracy at probability 0.5 and above.", "classification"),
}
"""Every number of a report, by key, in the order of tables."""
WORDS: Mapping[str, Number] = {
    "side_joint": Number("Correct side", "Share of lesions with a clear side whose side is stated correctly.", "words"),
    "side_opposite": Number("Opposite side", "Share of stated sides that are the opposite one.", "words", False),
}
"""Numbers of words by which what runs say is compared, with their maps and boxes."""
NEAR = 0.05
"""Largest distance in image widths from the region to a peak outside it that is a near miss, not elsewhere."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval; None where it does not exist, as the interval of a single patient or image."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class AreaBin:
    """Scored pairs of a run whose regions take from `low` to `high` of the grid.

    `scores` are means over the pairs; `whole_image` is the mean Dice of marking the whole image on them.
    """

    low: float
    high: float
    count: int
    scores: Mapping[str, Estimate]
    whole_image: float


@dataclass(frozen=True)
class PositionCell:
    """Scored pairs whose region has its center of mass in one cell of a 3 x 3 division of the image, from the top left.

    `scores` are means over the pairs; `peaks` is the share of all scored pairs whose map is highest in this cell.
    """

    row: int
    column: int
    count: int
    scores: Mapping[str, Estimate]
    peaks: float


@dataclass(frozen=True)
class PhraseGroup:
    """Phrases of a run that have something in common: all of them, or those of one category, length or kind.

    `scores` are means over the `scored` phrases, those that are present and have a region. `false_alarms` is the share
    of the `absent` phrases that get a box, of a model that answers and was asked about them.
    """

    by: str
    name: str
    phrases: int
    scored: int
    absent: int
    scores: Mapping[str, Estimate]
    false_alarms: Estimate


@dataclass(frozen=True)
class Quadrants:
    """Shares of a finding's scored pairs by whether they are recognized and grounded.

    A pair is recognized if its probability reaches `threshold`: the lowest probability of an image with the largest sum
    of sensitivity and specificity on the run's images (Youden). It is grounded if the pointing game counts at least
    half. One that is recognized only is a near miss if the peak of its map lies at most `NEAR` from the region.
    """

    threshold: float
    both: float
    near_miss: float
    elsewhere: float
    grounded_only: float
    neither: float
    count: int


@dataclass(frozen=True)
class WordsAnalysis:
    """What a run's texts say of the places of lesions, or where its maps peak or its boxes lie, by the same rule."""

    label: str  # of the run, followed by the kind of what stands beside its words
    kind: Literal["words", "maps", "boxes"]
    numbers: Mapping[str, Mapping[str, Estimate]]  # by finding, and means over findings (`MACRO`), as in the protocol
    counts: Mapping[str, int]  # lesions on a clear side by finding


@dataclass(frozen=True)
class RunAnalysis:
    """A run with its numbers by key of `NUMBERS`, and of its first words: means over findings, and of each finding."""

    run: Run
    clustered_by: Literal["patients", "images"]  # images only where the dataset does not name patients
    clusters: int
    macro: Mapping[str, Estimate]
    findings: Mapping[str, Mapping[str, Estimate]]
    dice_curve: tuple[Estimate, ...]  # macro Dice at each threshold of the run; empty of a model that answers
    thresholds: Mapping[str, Mapping[str, tuple[float, ...]]]  # chosen in each fold, by finding, then `dice` and `iou`
    areas: tuple[AreaBin, ...]  # by decile of area, smallest first
    positions: tuple[PositionCell, ...]  # nine cells row by row; none without pairs
    quadrants: Mapping[str, Quadrants]  # of findings with both labels and a scored pair
    phrases: tuple[PhraseGroup, ...]  # none without phrases
    words: tuple[WordsAnalysis, ...] = ()  # of what it says, then of what stands beside; none if not scored
    auroc_warning: str = ""  # a sentence if AUROC is significantly below one half

    @property
    def evidence(self) -> str:
        """What intervals and tests count as independent: `57 patients`, `200 images, patients not known`."""
        if self.clustered_by == "images":
            return f"{self.clusters:,} images, patients not known"
        alone = self.clusters == self.run.results.counts.images
        return f"{self.clusters:,} patients{', one image each' if alone else ''}"


@dataclass(frozen=True)
class Comparison:
    """A paired test between two runs, by label, on the images that both scored."""

    number: str  # key of `NUMBERS`; macro over the findings that both scored
    first: str
    second: str
    images: int
    difference: Estimate  # first less second
    p: float | None  # two-sided; None if it cannot be tested, for the reason in `untested`
    p_adjusted: float | None  # corrected for all comparisons of this number on this dataset
    untested: str = ""


@dataclass(frozen=True)
class Reference:
    """What a useless or a perfect map scores on a dataset: a floor or a ceiling.

    The title is `Whole image`, `Random`, `Reader agreement`, or the label of a reference's run. Only numbers that exist
    are there; where they are expectations over draws, `spread` is the standard deviation of some of them.
    """

    title: str
    kind: Literal["floor", "ceiling"]
    macro: Mapping[str, Estimate]
    findings: Mapping[str, Mapping[str, Estimate]]
    spread: Mapping[str, float] = field(default_factory=dict)
    boxes: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ProtocolScores:
    """The headline number of a named protocol, by label of the run and by title of the reference.

    `p` is two-sided, of a paired test of two runs, by both labels in alphabetical order, not corrected for the number
    of tests; None where they share no pair.
    """

    name: str
    in_frame: bool  # whether maps were in the frame of its authors
    values: Mapping[str, float]
    references: Mapping[str, float]
    p: Mapping[str, Mapping[str, float | None]]

    @property
    def ranks(self) -> dict[str, int]:
        """Place of each run from 1; equal ones share the better place."""
        return {label: 1 + sum(other > value for other in self.values.values()) for label, value in self.values.items()}

    def lead(self, first: str, second: str) -> float | None:
        """Return by how much a run leads another; None unless both have the number."""
        return self.values[first] - self.values[second] if {first, second} <= self.values.keys() else None


@dataclass(frozen=True)
class Rewording:
    """A number of a run's phrases as they stand, and of the same phrases in other words, on the same regions.

    `difference` is that of the other words less the own ones; `p_adjusted` is that of the paired test, corrected for
    all wordings and numbers of the run; None if not tested.
    """

    label: str
    wording: str
    number: str
    pairs: int
    clusters: int  # patients, or images where the dataset does not name patients, that have such a pair
    own: Estimate
    other: Estimate
    difference: Estimate
    p_adjusted: float | None


@dataclass(frozen=True)
class FillAnalysis:
    """What hiding the region by one fill does to a run, against hiding an equal patch elsewhere.

    Attributes:
        counts: Pairs by what they are counted for in `results.json`: those that the means over findings rest on, and
            those of all findings that lack something.
        numbers: By finding and as means over findings (`MACRO`), by the names of `xbench.scoring.interventions`; also
            `follows` and `control_follows`, rank correlations of the map with that of the changed image.
        recognized: The means of the pairs whose finding the model sees in the image as it is.
        p_adjusted: Two-sided, of `use` and `premium`, from exchanging region and patch patient by patient; adjusted for
            the models and fills of the dataset. Without what could not be tested.
        p_exact: Of McNemar's exact test of the decisions that change for region or patch alone, pair by pair,
            of the findings with enough pairs; None if there are no such decisions.
        overlap: By `use` (that of the pair is above 0) and `flip_rate` (the decision changes), how many pairs are
            pointed at and depend on the region, are pointed at and do not, the other way round, and neither.
    """

    fill: str
    counts: Mapping[str, int]
    numbers: Mapping[str, Mapping[str, Estimate]]
    recognized: Mapping[str, Estimate]
    p_adjusted: Mapping[str, float]
    p_exact: float | None
    overlap: Mapping[str, tuple[int, int, int, int]]

    @property
    def mean(self) -> Mapping[str, Estimate]:
        """The means over findings."""
        return self.numbers[MACRO]


Dependence = Literal["depends", "fill", "any hole", "unchanged", "no sign", "too few"]
"""Whether what a model says depends on the region: significantly with every fill; with some; no more than on any other
place, which matters as well; no pair differs between region and patch; no sign of it; too few pairs to tell."""


@dataclass(frozen=True)
class InterventionAnalysis:
    """What a run does when parts of its images are hidden, or its words are changed.

    `number` is the headline: `use`, or `premium` of a model without scores. `numbers` are means over findings that no
    fill enters.
    """

    label: str
    number: Literal["use", "premium"]
    dependence: Dependence
    fills: tuple[FillAnalysis, ...]
    numbers: Mapping[str, Estimate]

    @property
    def main(self) -> tuple[FillAnalysis, ...]:
        """The fills that `dependence` rests on: all but black, which is for comparison, unless there is no other."""
        return tuple(one for one in self.fills if one.fill != "black") or self.fills


@dataclass(frozen=True)
class Subgroup:
    """Images of a run with one value of an attribute; or, without counts, the largest less the smallest of a number.

    `scores` are means over the findings that all groups of the attribute have. `p` is that no group differs from
    another, None where it cannot be tested; `p_adjusted` is corrected for the attributes and numbers of the run.
    """

    label: str
    attribute: str
    name: str
    scores: Mapping[str, Estimate]
    images: int | None = None
    patients: int | None = None  # None as well where the dataset does not name patients
    positives: int | None = None  # pairs of an image and what is looked for that are present
    scored: int | None = None  # of these, those that grounding is scored on
    p: float | None = None
    p_adjusted: float | None = None


@dataclass(frozen=True)
class Perturbed:
    """Means over pairs of a run, of images changed in the order of a map or of maps under weights drawn anew.

    `part` is the order (`map`, `random`, `region`), or how weights were drawn, with the `layer` that was drawn last.
    `numbers`: `deletion`, `insertion`, their `difference`, `probability` and `recognized` by percent of the pixels; or
    how alike maps are, by the names of `xbench.scoring.perturbations.similarities`.
    """

    label: str
    part: str
    layer: str
    pairs: int
    numbers: Mapping[str, Estimate]


@dataclass(frozen=True)
class DatasetAnalysis:
    """Everything about one dataset and split."""

    dataset: str
    split: str
    findings: tuple[str, ...]
    runs: tuple[RunAnalysis, ...]  # of models, in the order of the report; those of references are in `references`
    references: tuple[Reference, ...]  # floors, then ceilings
    comparisons: tuple[Comparison, ...]  # every pair of runs, for every number that is tested
    tied_with_best: Mapping[str, frozenset[str]]  # by number: the best run, and what is not significantly different
    notes: tuple[str, ...] = ()
    protocols: tuple[ProtocolScores, ...] = ()
    rewordings: tuple[Rewording, ...] = ()  # of phrases that were scored in other words too
    interventions: tuple[InterventionAnalysis, ...] = ()  # of runs with hidden regions
    perturbations: tuple[Perturbed, ...] = ()  # of runs with curves, or with weights drawn anew
    subgroups: tuple[Subgroup, ...] = ()  # by run, then attribute, gaps behind their groups

    def untested(self, number: str, best: str) -> list[str]:
        """Return the labels of the runs that have a number but no p-value against the best one, sorted."""
        tests = [test for test in self.comparisons if test.number == number and test.p is not None]
        tested = {label for test in tests for label in (test.first, test.second) if best in (test.first, test.second)}
        return sorted(self.values(number).keys() - tested - {best})

    def ranked(self, number: str) -> bool:
        """Tell whether every run was tested against the best one, by pointing game or AUROC."""
        key = "pointing_game" if NUMBERS[number].group == "grounding" else "auroc"
        values = self.values(key)
        return not values or not self.untested(key, max(values, key=lambda label: values[label]))

    def values(self, number: str) -> dict[str, float]:
        """Return a number's means over findings by label of the run, where they exist."""
        values = {entry.run.label: number_of(entry, number).value for entry in self.runs}
        return {label: value for label, value in values.items() if value is not None}


def number_of(entry: RunAnalysis | Reference, key: str, finding: str | None = None) -> Estimate:
    """Return a number of a finding, or its mean over findings; an empty estimate where it does not exist."""
    numbers = entry.macro if finding is None else entry.findings.get(finding, {})
    return numbers.get(key, Estimate(None))


def in_order(runs: Iterable[RunAnalysis]) -> dict[str, RunAnalysis]:
    """Return a run per label, in the order of every table, chart and legend of the report (see `placed`)."""
    return {entry.run.label: entry for entry in sorted(runs, key=lambda entry: entry.run.place)}


def parts_of(datasets: Sequence[DatasetAnalysis]) -> set[str]:
    """Return the labels of runs on some of another run's images, which are no series of their own."""
    return {entry.run.label for of in datasets for entry in of.runs if part_of(entry.run, [one.run for one in of.runs])}


def shared_datasets(datasets: Sequence[DatasetAnalysis], number: str) -> tuple[DatasetAnalysis, ...]:
    """Return the datasets on which everyone with a number has it; without one, that on which most have it."""
    parts = parts_of(datasets)
    having = [dataset.values(number).keys() - parts for dataset in datasets]
    everyone = set[str]().union(*having)
    shared = tuple(dataset for dataset, labels in zip(datasets, having, strict=True) if labels == everyone)
    return shared or tuple(sorted(datasets, key=lambda dataset: -len(dataset.values(number).keys() - parts))[:1])


def placed(datasets: Sequence[DatasetAnalysis]) -> list[DatasetAnalysis]:
    """Give each label its place, and put the runs of each dataset in that order.

    First come those that the answer ranks, by mean pointing game over shared datasets, the best first; then others with
    a pointing game, then those with words, then those with an AUROC alone, each by mean.
    """
    parts, order = parts_of(datasets), dict[str, int]()
    for number, shared in product(("pointing_game", "side_joint", "auroc"), (True, False)):
        means: dict[str, float] = {}
        scores = [of.values(number) for of in (shared_datasets(datasets, number) if shared else datasets)]
        for label in set[str]().union(*scores):
            known = [values[label] for values in scores if label in values]
            if not shared or (len(known) == len(scores) and label not in parts):
                means[label] = -sum(known) / len(known)
        for label in sorted(means, key=lambda label: (means[label], label)):
            order.setdefault(label, len(order))
    for label in sorted(entry.run.label for dataset in datasets for entry in dataset.runs):
        order.setdefault(label, len(order))

    def put(runs: Iterable[RunAnalysis]) -> tuple[RunAnalysis, ...]:
        runs = (replace(entry, run=replace(entry.run, place=order[entry.run.label])) for entry in runs)
        return tuple(in_order(runs).values())

    return [replace(dataset, runs=put(dataset.runs)) for dataset in datasets]


def floor_of(dataset: DatasetAnalysis, number: str, finding: str | None = None) -> Estimate:
    """Return the highest floor of a number, as a mean or on a finding; an empty estimate without one."""
    floors = [number_of(reference, number, finding) for reference in dataset.references if reference.kind == "floor"]
    return max(floors, key=lambda floor: -1.0 if floor.value is None else floor.value, default=Estimate(None))


@dataclass(frozen=True)
class Correlation:
    """A least-squares line through recognition (AUROC) and grounding (pointing game), on a dataset or all pooled.

    Its numbers are None for fewer than three points or all of one AUROC, `r_squared` and `p` also where all points have
    the same pointing game.
    """

    scope: Literal["models", "findings"]  # a point is a model on a dataset, or a model and finding
    dataset: str | None
    points: tuple[tuple[str, float, float], ...]  # label, AUROC and pointing game
    slope: float | None
    intercept: float | None
    r_squared: float | None
    p: float | None  # two-sided, of the slope; None as well where points are not independent
    models: int = 1  # how many models the points are of
    independent: bool = True  # whether each point is a model, or a finding of one model on one dataset

    @property
    def p_in_words(self) -> str:
        """The p-value as sentences and figures say it; empty without one."""
        return "" if self.p is None else "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"


@dataclass(frozen=True)
class StudyRow:
    """One finding, or `macro`, of a model under several values of one setting, `prompts` or `image_size`.

    `p_adjusted` is that of the paired test between the two extremes, corrected for their choice and for all rows of the
    study, model, dataset and number; None if not tested.
    """

    study: str
    model: str
    dataset: str
    finding: str
    number: str
    values: Mapping[str, Estimate]  # by value of the setting
    spread: float  # largest value less smallest
    relative: float | None  # the spread over the value at the model's own setting; None if that is 0
    p_adjusted: float | None


@dataclass(frozen=True)
class Analysis:
    """A whole report: datasets by name and split, correlations per dataset and pooled; `folds` are of cross-fitting."""

    datasets: tuple[DatasetAnalysis, ...]
    correlations: tuple[Correlation, ...]
    studies: tuple[StudyRow, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    folds: int = 0
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> list[RunAnalysis]:
        """The models' runs on all datasets."""
        return [entry for dataset in self.datasets for entry in dataset.runs]

    @property
    def main_line(self) -> Correlation | None:
        """The line over models where there are three or more, else over findings; over all datasets if several."""
        for scope, least in (("models", 3), ("findings", 1)):
            lines = [line for line in self.correlations if line.scope == scope and len(line.points) >= least]
            if pooled := [line for line in lines if line.dataset is None] or lines[:1]:
                return pooled[0]
        return None

    def heading(self, dataset: DatasetAnalysis) -> str:
        """Return how tables and figures call a dataset: with its split where there are several of it."""
        title = dataset_title(dataset.dataset)
        return f"{title} ({dataset.split})" if self._splits(dataset) > 1 else title

    def slug(self, dataset: DatasetAnalysis) -> str:
        """Return what names of a dataset's tables and figures end with."""
        name = f"{dataset.dataset}_{dataset.split}" if self._splits(dataset) > 1 else dataset.dataset
        return re.sub(r"\W+", "_", name)

    def _splits(self, dataset: DatasetAnalysis) -> int:
        return sum(other.dataset == dataset.dataset for other in self.datasets)

    def lines(self, scope: Literal["models", "findings"]) -> list[tuple[Correlation, str]]:
        """Return the lines over models or over findings, each with the heading of its dataset or `All datasets`."""
        # One per dataset, in their order: with several splits the name alone would not tell which.
        places = iter(self.datasets)
        return [
            (line, "All datasets" if line.dataset is None else self.heading(next(places)))
            for line in self.correlations
            if line.scope == scope
        ]


@dataclass(frozen=True)
class Drawn:
    """A figure that was written, under a name that is the stem of its files."""

    name: str
    title: str
    caption: str
