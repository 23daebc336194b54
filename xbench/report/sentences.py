"""The findings of a report in words, for a reader in a hurry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from xbench.report.names import dataset_title
from xbench.report.schema import (
    NEAR,
    Analysis,
    Correlation,
    DatasetAnalysis,
    Estimate,
    Reference,
    RunAnalysis,
    floor_of,
)
from xbench.report.words import tests_in_words

__all__ = ["headlines"]

_FEW = 3
"""Up to so many datasets get a sentence each."""


def headlines(analysis: Analysis) -> tuple[str, ...]:
    """Return what a report found, each point a sentence or two of plain text; nothing is said that is not computed."""
    return (
        *_signs(analysis.datasets),
        *_best(analysis.datasets),
        *_floors(analysis.datasets),
        *_recognised_elsewhere(analysis.datasets),
        *_correlations(analysis.correlations),
        *_thresholds(analysis.datasets),
        *_sizes(analysis.datasets),
    )


def _signs(datasets: Sequence[DatasetAnalysis]) -> Iterator[str]:
    """Name the runs whose maps may be upside down."""
    for dataset in datasets:
        for run in dataset.runs:
            if warning := run.run.results.sign_warning():
                yield f"{run.run.label} on {dataset_title(dataset.dataset)}: {warning}"


def _best(datasets: Sequence[DatasetAnalysis]) -> Iterator[str]:
    """Say who points best."""
    bests = [(dataset, _leader(dataset)) for dataset in datasets]
    known = [(dataset, best) for dataset, best in bests if best is not None]
    if len(known) > _FEW:
        counts = Counter(best.run.label for _, best in known).most_common()
        said = _listed([f"{label} on {count} of {len(known)} datasets" for label, count in counts])
        yield f"Highest pointing game: {said}. The table below marks whom a paired test cannot tell from the best."
        return
    for dataset, best in known:
        score, title = best.macro["pointing_game"], dataset_title(dataset.dataset)
        found = (
            f"in the annotated region in {_percent(score.value)} of images{_interval(score)}, averaged over findings."
        )
        if len(dataset.runs) == 1:
            yield f"On {title}, the maximum of the map of {best.run.label} lies {found}"
            continue
        yield f"On {title}, {best.run.label} has the highest pointing game: the maximum of its map lies {found}" + (
            tests_in_words(dataset, "pointing_game", best.run.label)
        )


def _floors(datasets: Sequence[DatasetAnalysis]) -> Iterator[str]:
    """Name who does no better than a map that knows nothing."""
    guessing, whole = [], []
    for dataset in datasets:
        image = _reference(dataset, "Whole image")
        for run in dataset.runs:
            where = f"{run.run.label} on {dataset_title(dataset.dataset)}"
            # A floor of the macro would mix findings that the middle of the image hits always with those it never does.
            beaten = [
                finding
                for finding, numbers in run.findings.items()
                if (floor := floor_of(dataset, finding, "pointing_game")) is not None
                and _at_most(numbers.get("pointing_game"), floor)
            ]
            if beaten:
                guessing.append(f"{where} for {_listed(beaten)}")
            if image is not None and _at_most(run.macro.get("dice_best"), image.macro.get("dice_best"), 1e-4):
                whole.append(where)
    if guessing:
        yield (
            "On some findings a map that knows nothing of the image points as well as the model: "
            f"{'; '.join(guessing)}."
        )
    if whole:
        yield (
            "Best-threshold Dice no higher than marking the whole image, so that it says nothing about the map: "
            f"{_listed(whole)}."
        )


def _recognised_elsewhere(datasets: Sequence[DatasetAnalysis]) -> Iterator[str]:
    """Say how often a model recognises a finding and looks elsewhere, near misses left out."""
    recognised: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    for run in (run for dataset in datasets for run in dataset.runs):
        for quadrants in run.quadrants.values():
            recognised[run.run.label] += round(quadrants.count * (quadrants.both + quadrants.recognised_only))
            elsewhere[run.run.label] += round(quadrants.count * quadrants.elsewhere)
    shares = sorted((elsewhere[label] / count, label) for label, count in recognised.items() if count)
    if not shares:
        return
    (least, first), (most, last) = shares[0], shares[-1]
    far = f"more than {_percent(NEAR, 0)} of the film's width from the region"
    if first == last:
        yield (
            f"Of the lesions that {first} recognises by its score, its map points elsewhere, {far}, in "
            f"{_percent(least)}."
        )
    else:
        yield (
            f"Of the lesions that a model recognises by its score, its map points elsewhere, {far}, in "
            f"{_percent(least)} for {first}, the fewest, and in {_percent(most)} for {last}, the most."
        )


def _correlations(correlations: Sequence[Correlation]) -> Iterator[str]:
    """Say how far recognition tells grounding."""
    pooled = {entry.scope: entry for entry in correlations if entry.dataset is None and entry.r_squared is not None}
    said = []
    if models := pooled.get("models"):
        said.append(
            f"over {len(models.points)} models it accounts for {_percent(models.r_squared)} of the variance of the "
            f"pointing game{_direction(models)}"
        )
    if findings := pooled.get("findings"):
        said.append(
            f"over {len(findings.points)} points of a model and finding for {_percent(findings.r_squared)}"
            f"{_direction(findings)}"
        )
    if said:
        yield f"How far AUROC tells grounding: {', '.join(said)}."


def _thresholds(datasets: Sequence[DatasetAnalysis]) -> Iterator[str]:
    """Say what the fixed threshold costs, and how far one chosen on the scored images flatters."""
    runs = [run for dataset in datasets for run in dataset.runs]
    gap, optimism = _mean(runs, "dice_gap"), _mean(runs, "dice_optimism")
    if gap is not None:
        flatters = "" if optimism is None else f" Choosing it on the same images flatters by {100 * optimism:.1f}."
        yield (
            f"Threshold 0.5 costs {100 * gap:.1f} percentage points of Dice against the best threshold, averaged over "
            f"models and datasets.{flatters}"
        )


def _sizes(datasets: Sequence[DatasetAnalysis]) -> Iterator[str]:
    """Set the smallest tenth of lesions against the largest."""
    small, large = [], []
    for run in (run for dataset in datasets for run in dataset.runs):
        if len(run.areas) > 1:
            ends = [run.areas[end].scores["pointing_game"].value for end in (0, -1)]
            if ends[0] is not None and ends[1] is not None:
                small.append(ends[0])
                large.append(ends[1])
    if small:
        yield (
            f"The pointing game is {_percent(sum(small) / len(small))} on the smallest lesions of each dataset and "
            f"{_percent(sum(large) / len(large))} on the largest, averaged over models and datasets."
        )


def _leader(dataset: DatasetAnalysis) -> RunAnalysis | None:
    def score(run: RunAnalysis) -> float:
        value = run.macro["pointing_game"].value
        return -1.0 if value is None else value

    best = max(dataset.runs, key=score, default=None)
    return None if best is None or best.macro["pointing_game"].value is None else best


def _reference(dataset: DatasetAnalysis, title: str) -> Reference | None:
    return next((reference for reference in dataset.references if reference.title.startswith(title)), None)


def _at_most(score: Estimate | None, floor: Estimate | None, slack: float = 0.0) -> bool:
    if score is None or floor is None or score.value is None or floor.value is None:
        return False
    return score.value <= floor.value + slack


def _mean(runs: Sequence[RunAnalysis], number: str) -> float | None:
    values = [run.macro[number].value for run in runs if number in run.macro]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _direction(correlation: Correlation) -> str:
    falling = ", falling as AUROC rises" if correlation.slope is not None and correlation.slope < 0 else ""
    return falling + ("" if correlation.p is None else f" ({_p(correlation.p)})")


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _percent(value: float | None, digits: int = 1) -> str:
    return "\u2013" if value is None else f"{100 * value:.{digits}f}\u00a0%"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" (95\u00a0% interval {100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
