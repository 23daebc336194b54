"""The numbers of a report, which tables, figures, sentences and the page show."""

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
    """A number of reports: `more_is_better` is None if neither is; `meaning` is a sentence for readers."""

    title: str
    meaning: str
    group: Literal["grounding", "classification", "words"] = "grounding"
    more_is_better: bool | None = True


_CROSS_FITTED = "where every image is scored at the threshold that is best on other images."
_HIT = (
    "Share of images with the finding where the maximum of the map lies in the annotated region; for boxes and points, "
    "the mean share of their area, or of the points, in it."
)
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
"""Numbers of words by which runs, their maps and boxes are compared."""
NEAR = 0.05
"""Largest distance of a near miss, from the region to the peak, in image widths."""
Bound = Literal["floor", "ceiling"]
Scope = Literal["models", "findings"]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval; None if missing, such as the interval of a single cluster."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class AreaBin:
    """Scored pairs of a run whose regions take from `low` to `high` of the grid.

    `scores` are means over the pairs; `whole_image` is the mean Dice of marking the whole image.
    """

    low: float
    high: float
    count: int
    scores: Mapping[str, Estimate]
    whole_image: float


@dataclass(frozen=True)
class PositionCell:
    """Scored pairs whose region has its center of mass in one cell of a 3 x 3 grid, from the top left.

    `scores` are means over the pairs; `peaks` is the share of all scored pairs whose map peaks in this cell.
    """

    row: int
    column: int
    count: int
    scores: Mapping[str, Estimate]
    peaks: float


@dataclass(frozen=True)
class PhraseGroup:
    """Phrases of a run: all, or those of one category, length or kind.

    `scores` are means over the `scored` phrases, which are present and have a region. `false_alarms` is the share of
    the `absent` phrases that get a box, for a model that answers and was asked about them.
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

    A pair is recognized if its probability reaches `threshold`, the lowest probability with the largest sum of
    sensitivity and specificity on the run's images (Youden). It is grounded if the pointing game counts at least half.
    If recognized only, it is a near miss if the peak of its map is at most `NEAR` from the region.
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
    """Places of lesions as a run's texts state them, or as its maps or boxes do by the same rule."""

    label: str  # of the run, followed by the kind of what stands beside its words
    kind: Literal["words", "maps", "boxes"]
    numbers: Mapping[str, Mapping[str, Estimate]]  # by finding, and means over findings (`MACRO`), as in the protocol
    counts: Mapping[str, int]  # lesions on a clear side by finding


class _Numbers:
    macro: Mapping[str, Estimate]
    findings: Mapping[str, Mapping[str, Estimate]]

    def number(self, key: str, finding: str | None = None) -> Estimate:
        """Return a number of a finding, or its mean over findings; an empty estimate if missing."""
        numbers = self.macro if finding is None else self.findings.get(finding, {})
        return numbers.get(key, Estimate(None))


@dataclass(frozen=True)
class RunAnalysis(_Numbers):
    """A run with its numbers by key of `NUMBERS` and `WORDS`: means over findings, and of each finding."""

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

    def turned(self) -> Comparison:
        """Return the same with first and second exchanged."""
        of = self.difference
        difference = Estimate(*(None if end is None else -end for end in (of.value, of.high, of.low)))
        return replace(self, first=self.second, second=self.first, difference=difference)


@dataclass(frozen=True)
class Reference(_Numbers):
    """A floor or ceiling of a dataset.

    The title is `Whole image`, `Random`, `Reader agreement`, or the label of a reference's run. Missing numbers have no
    key; `spread` is the standard deviation of some expectations over draws.
    """

    title: str
    kind: Bound
    macro: Mapping[str, Estimate]
    findings: Mapping[str, Mapping[str, Estimate]]
    spread: Mapping[str, float] = field(default_factory=dict)
    boxes: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ProtocolScores:
    """The headline number of a protocol, by label of the run and by title of the reference.

    `p` is two-sided, of a paired test, by both labels in alphabetical order, uncorrected; None without a common pair.
    """

    name: str
    in_frame: bool  # whether maps were in the frame of its authors
    values: Mapping[str, float]
    references: Mapping[str, float]
    p: Mapping[str, Mapping[str, float | None]]

    def lead(self, first: str, second: str) -> float | None:
        """Return by how much a run leads another; None unless both have the number."""
        return self.values[first] - self.values[second] if {first, second} <= self.values.keys() else None


@dataclass(frozen=True)
class Rewording:
    """A number of a run's phrases, and of the same phrases in other words, on the same regions.

    `difference` is other minus own; `p_adjusted` is corrected for all wordings and numbers of the run, None if not
    tested.
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
    """Effect of hiding the region by one fill, against hiding an equal patch elsewhere.

    Attributes:
        counts: Numbers of pairs as in `results.json`: those in the means over findings, and those of all findings that
            lack something.
        numbers: By finding and as means over findings (`MACRO`), by the names of `xbench.scoring.interventions`; also
            `follows` and `control_follows`, rank correlations of the map with that of the changed image.
        recognized: Means of the pairs whose finding the model detects in the unchanged image.
        p_adjusted: Two-sided, of `use` and `premium` if tested, from exchanging region and patch patient by patient;
            adjusted for the models and fills of the dataset.
        p_exact: Of McNemar's exact test of the decisions that change for region or patch alone, pair by pair, of the
            findings with enough pairs; None without such a decision.
        overlap: By `use` (above 0) and `flip_rate` (the decision changes), how many pairs are pointed at and depend on
            the region, are pointed at and do not, the other way round, and neither.
    """

    fill: str
    counts: Mapping[str, int]
    numbers: Mapping[str, Mapping[str, Estimate]]
    recognized: Mapping[str, Estimate]
    p_adjusted: Mapping[str, float]
    p_exact: float | None
    overlap: Mapping[str, tuple[int, ...]]

    @property
    def mean(self) -> Mapping[str, Estimate]:
        """The means over findings."""
        return self.numbers[MACRO]


Dependence = Literal["depends", "fill", "any hole", "unchanged", "no sign", "too few"]
"""Dependence on the region: significant with every fill; with some; no more than on other places, which matter as well;
no pair differs between region and patch; no sign; too few pairs."""


@dataclass(frozen=True)
class InterventionAnalysis:
    """Effects of hidden parts of the image, or of changed words, on a run.

    `number` is the headline: `use`, or `premium` of a model without scores. `numbers` are means over findings without a
    fill.
    """

    label: str
    number: Literal["use", "premium"]
    dependence: Dependence
    fills: tuple[FillAnalysis, ...]
    numbers: Mapping[str, Estimate]

    @property
    def main(self) -> tuple[FillAnalysis, ...]:
        """The fills that `dependence` rests on: all but black, which is for comparison, if there is another."""
        return tuple(one for one in self.fills if one.fill != "black") or self.fills


@dataclass(frozen=True)
class Subgroup:
    """Images of a run with one value of an attribute; or, without counts, the largest minus the smallest of a number.

    `scores` are means over the findings that all groups of the attribute have. `p` tests that no group differs, None if
    untested; `p_adjusted` is corrected for the attributes and numbers of the run.
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
    """Means over pairs of a run, for images changed in the order of a map, or for maps under weights drawn again.

    `part` is the order (`map`, `random`, `region`), or how weights were drawn, up to `layer`. `numbers`: `deletion`,
    `insertion`, their `difference`, `probability` and `recognized` by percent of the pixels; or the similarities of
    `xbench.scoring.perturbations.similarities`.
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
        """Return whether every run was tested against the best one, by pointing game or AUROC."""
        key = "pointing_game" if NUMBERS[number].group == "grounding" else "auroc"
        values = self.values(key)
        return not values or not self.untested(key, max(values, key=lambda label: values[label]))

    def values(self, number: str) -> dict[str, float]:
        """Return a number's means over findings by label of the run, where they exist."""
        values = {entry.run.label: entry.number(number).value for entry in self.runs}
        return {label: value for label, value in values.items() if value is not None}

    def floor(self, number: str, finding: str | None = None) -> Estimate:
        """Return the highest floor of a number, as a mean or on a finding; an empty estimate without one."""
        floors = [reference.number(number, finding) for reference in self.references if reference.kind == "floor"]
        return max(floors, key=lambda floor: -1.0 if floor.value is None else floor.value, default=Estimate(None))

    @property
    def by_label(self) -> dict[str, RunAnalysis]:
        """The models' runs by label, in order (see `placed`)."""
        return in_order(self.runs)


def in_order(runs: Iterable[RunAnalysis]) -> dict[str, RunAnalysis]:
    """Return a run per label, in the order of tables, charts and legends (see `placed`)."""
    return {entry.run.label: entry for entry in sorted(runs, key=lambda entry: entry.run.place)}


def parts_of(datasets: Sequence[DatasetAnalysis]) -> set[str]:
    """Return the labels of runs on some of another run's images, which are not series."""
    return {entry.run.label for of in datasets for entry in of.runs if part_of(entry.run, [one.run for one in of.runs])}


def shared_datasets(datasets: Sequence[DatasetAnalysis], number: str) -> tuple[DatasetAnalysis, ...]:
    """Return the datasets on which every run with a number has it; or else the one on which most have it."""
    parts = parts_of(datasets)
    having = [dataset.values(number).keys() - parts for dataset in datasets]
    everyone = set[str]().union(*having)
    shared = tuple(dataset for dataset, labels in zip(datasets, having, strict=True) if labels == everyone)
    return shared or tuple(sorted(datasets, key=lambda dataset: -len(dataset.values(number).keys() - parts))[:1])


def placed(datasets: Sequence[DatasetAnalysis]) -> list[DatasetAnalysis]:
    """Give each label its place, and sort the runs of each dataset by it.

    First the runs that the answer ranks, by mean pointing game over shared datasets; then others with a pointing game,
    then those with words, then those with AUROC only, each by mean, the best first.
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


@dataclass(frozen=True)
class Correlation:
    """A least-squares line through recognition (AUROC) and grounding (pointing game), on a dataset or all pooled.

    Its numbers are None for fewer than three points or equal AUROCs; so are `r_squared` and `p` for equal pointing
    games.
    """

    scope: Scope  # a point is a model on a dataset, or a model and finding
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
        """The p-value in words; empty without one."""
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
    """A report: datasets by name and split, correlations by dataset and pooled, `folds` of cross-fitting."""

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
    def by_label(self) -> dict[str, RunAnalysis]:
        """One of the models' runs per label, in order (see `placed`)."""
        return in_order(self.runs)

    def notes_of(self, *datasets: DatasetAnalysis) -> tuple[str, ...]:
        """Return the notes of some datasets, or of all."""
        return tuple(f"{self.heading(of)}: {note}" for of in datasets or self.datasets for note in of.notes)

    @property
    def main_line(self) -> Correlation | None:
        """The line over models where there are three or more, else over findings; over all datasets if several."""
        for scope, least in (("models", 3), ("findings", 1)):
            lines = [line for line in self.correlations if line.scope == scope and len(line.points) >= least]
            if pooled := [line for line in lines if line.dataset is None] or lines[:1]:
                return pooled[0]
        return None

    def heading(self, dataset: DatasetAnalysis) -> str:
        """Return the title of a dataset, with its split if there are several."""
        title = dataset_title(dataset.dataset)
        return f"{title} ({dataset.split})" if self._splits(dataset) > 1 else title

    def slug(self, dataset: DatasetAnalysis) -> str:
        """Return the ending of names of a dataset's tables and figures."""
        name = f"{dataset.dataset}_{dataset.split}" if self._splits(dataset) > 1 else dataset.dataset
        return re.sub(r"\W+", "_", name)

    def _splits(self, dataset: DatasetAnalysis) -> int:
        return sum(other.dataset == dataset.dataset for other in self.datasets)

    def lines(self, scope: Scope) -> list[tuple[Correlation, str]]:
        """Return the lines over models or over findings, each with the heading of its dataset or `All datasets`."""
        # One per dataset, in their order, because several splits share a name.
        places = iter(self.datasets)
        lines = [line for line in self.correlations if line.scope == scope]
        return [(line, "All datasets" if line.dataset is None else self.heading(next(places))) for line in lines]


@dataclass(frozen=True)
class Drawn:
    """A written figure; `name` is the stem of its files."""

    name: str
    title: str
    caption: str
