"""Base class of protocols. Values that the official code does not define are NaN, never 0. Needs no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from xbench.geometry.grid import Upsampling, View, maps_on_grid

if TYPE_CHECKING:
    from xbench.geometry.location import Location
    from xbench.geometry.shapes import Shape
    from xbench.predictions.words import Stated

Mask = NDArray[np.bool_]
Table = dict[str, NDArray[Any]]
"""Columns of pairs: `index`, `image_id`, `column` (of the finding), `label`, `probability`, `chance` (share of the grid
that the region covers), and a protocol's own. Sorted by `index`, then `column`."""
Number = dict[str, Any]
"""A number as stored: `value`, `average`, `undefined`, `first_undefined`, `strict` and `per_finding`."""
Tuned = Mapping[str, Mapping[str, Any]]  # a protocol's settings by finding, chosen on another run
_KINDS = {"map": "maps", "boxes": "boxes", "points": "points", "words": "words", "score": "probabilities"}
_OF_TRUTH = ("pixels", "region", "images", "lesions")


@dataclass(frozen=True)
class PairView:
    """Prediction for a pair: a raw map in the frame of the model input, or boxes x0, y0, x1, y1 in fractions."""

    cells: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # (h, w)
    crop: View = (0.0, 0.0, 1.0, 1.0)  # part of the radiograph that the map shows
    scale: str = "none"  # meaning of its values, as declared by the model
    upsampling: Upsampling = "bilinear"
    sigma: float = 0.0  # standard deviation in cells of the Gaussian smoothing that the model applied
    missing: bool = False  # whether an external map is missing; its cells are 0
    boxes: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))  # (N, 4), in the order of the answer
    confidence: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # (N,)
    words: Stated | None = None  # mentions of the finding in a text; None without a text
    own: Stated | None = None  # mentions by the finding's own name only
    place: Stated | None = None  # location of the map's peak or the boxes' centers, as if stated

    def on_grid(
        self, size: tuple[int, ...], mode: Upsampling = "bilinear", cells: NDArray[Any] | None = None
    ) -> NDArray[np.float32]:
        """Return the map, or other `cells` (h, w), on a grid (H, W), with the arithmetic of a run."""
        values = self.cells if cells is None else cells.astype(np.float32, copy=False)
        return maps_on_grid(values, self.crop, (size[0], size[1]), mode)


@dataclass(frozen=True)
class PairTruth:
    """Annotation of a pair: a region on the grid, or boxes x0, y0, x1, y1 in fractions of the radiograph."""

    label: int  # 1 present, 0 absent, -1 unknown
    region: Mask = field(default_factory=lambda: np.zeros((0, 0), np.bool_))  # (H, W), empty without the finding
    items: Sequence[Shape] = ()  # individual annotations; empty if only the region is known
    gamma: float = 0.5  # share of a grid pixel that an item must cover
    boxes: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))  # (M, 4)
    separate: bool = True  # whether each box is one item; otherwise only their union is known
    location: Location | None = None  # sides and zones of the items
    sided: bool = True  # whether the finding can have sides and zones

    def lesions(self) -> list[Mask]:
        """Return the items as masks on the grid."""
        from xbench.geometry.regions import Coverage

        return [Coverage.of(item.draw(), self.region.shape).at(self.gamma) for item in self.items]


@dataclass(frozen=True)
class Group:
    """Rows of one finding, as columns (N,)."""

    finding: str
    columns: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["label"])


@dataclass(frozen=True)
class RunView:
    """Facts that decide whether a run can be scored."""

    folder: Path
    shows: frozenset[str]  # kinds, as in `Protocol.takes`
    scale: str = "none"  # of its maps, as declared by the model
    unranked: str = ""  # the first pair with a box without a confidence; empty if there is none


class Protocol(ABC):
    """A way in which the field scores predictions."""

    name: ClassVar[str]  # for `rescore --protocol`
    title: ClassVar[str]  # name in reports
    headline: ClassVar[str]  # the number that ranks models
    heading: ClassVar[str]  # name of this number in reports
    others: ClassVar[Mapping[str, str]] = {}  # further numbers in reports, with their names
    citation: ClassVar[str]  # publication and code
    rule: ClassVar[str]  # map, mask and score in a few words
    flaw: ClassVar[str]  # its main problem, in a sentence
    setting: ClassVar[str] = "the whole radiograph on the evaluation grid"  # the image frame of the authors
    our_setting: ClassVar[str] = "the whole radiograph on the evaluation grid"
    in_setting: ClassVar[Literal["always", "native", "never"]] = "never"  # whether a run is in the authors' frame
    limits: ClassVar[tuple[str, ...]] = ()  # differences that a stored run makes unavoidable
    takes: ClassVar[frozenset[str]] = frozenset({"map"})  # of `map`, `boxes`, `points`, `words` and `score`
    scales: ClassVar[frozenset[str]] = frozenset()  # allowed scales of maps; empty: any
    negatives: ClassVar[bool] = False  # whether pairs without the finding are measured
    means: ClassVar[tuple[str, ...]] = ()  # columns whose means are numbers
    average: ClassVar[Literal["findings", "pairs", "squares"]] = "findings"  # method of these means
    of_negatives: ClassVar[frozenset[str]] = frozenset()  # means that pairs without the finding should have
    lower: ClassVar[frozenset[str]] = frozenset()  # numbers for which lower is better

    def refuses(self, run: RunView, tuned: bool) -> str | None:
        """Return why a run cannot be scored, or None; `tuned` is whether there are settings from another run."""
        if not self.takes & run.shows:
            takes, shows = (
                " or ".join(_KINDS[kind] for kind in _KINDS if kind in of) for of in (self.takes, run.shows)
            )
            return f"--protocol {self.name} scores {takes}, and {run.folder} has {shows or 'none'}."
        if {"boxes", "points"} <= run.shows and not {"score", "words"} & self.takes:
            return f"--protocol {self.name} scores boxes, and {run.folder} also has points, which have no extent."
        if "map" in run.shows and self.scales and run.scale not in self.scales:
            return (
                f"--protocol {self.name} compares values of {' or '.join(sorted(self.scales))} maps between images, "
                f"and those of {run.folder} are {run.scale!r}: the same value would mean something else."
            )
        return None

    @abstractmethod
    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, Any] | None:
        """Return the columns of a pair, or None to skip it."""

    def tune(self, groups: Sequence[Group]) -> Tuned | None:
        """Return settings by finding, chosen on the pairs of another run; None for a protocol without settings."""
        return None

    def read_tuning(self, paths: Sequence[Path], findings: Sequence[str]) -> Tuned | None:
        """Read settings from the authors' files; None if the authors do not publish any."""
        return None

    @property
    def tunes(self) -> bool:
        """Whether it has settings, to be chosen on another run."""
        return type(self).tune is not Protocol.tune

    def derive(self, group: Group, tuned: Mapping[str, Any] | None) -> Table:
        """Return columns (N,) of a finding that follow from its measured ones and its settings."""
        return {}

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        """Return the numbers of a run from a group per finding; by default the `means`."""
        return {name: mean_of(groups, name, self.average, name in self.of_negatives) for name in self.means}

    def pair_values(self, group: Group) -> NDArray[np.float64]:
        """Return each pair's value of the headline (N,), for paired tests; NaN if undefined."""
        return group[self.headline].astype(np.float64)

    def missed(self, values: dict[str, Any], present: bool) -> dict[str, Any]:
        """Return the values of a pair whose map is missing: a miss, or undefined for numbers where lower is better."""
        missed = dict(values)
        for name, value in values.items():
            if not name.startswith(_OF_TRUTH) and not isinstance(value, list):
                missed[name] = math.nan if name in self.lower else 0 * (np.nan_to_num(value) if present else value)
        return missed

    def named(self, native: bool) -> str:
        """Return the name, with "(our frame)" unless the run is in the authors' frame; `native` is its grid."""
        theirs = self.in_setting == "always" or (self.in_setting == "native" and native)
        return self.name if theirs else f"{self.name} (our frame)"

    def results(self, table: Table, findings: Sequence[str], native: bool, tuned: Tuned | None) -> dict[str, Any]:
        """Return the numbers of a table (`native` grids, `tuned` settings) as stored; add derived columns to it."""
        order = np.argsort(table["column"], kind="stable")
        groups = groups_of(table, findings)
        derived = [self.derive(group, None if tuned is None else tuned[group.finding]) for group in groups]
        for name in derived[0]:
            values = np.concatenate([columns[name] for columns in derived])
            table[name] = np.empty_like(values)
            table[name][order] = values
        groups = groups_of(table, findings)
        title = self.named(native)
        return {
            "schema": 1,
            "protocol": self.name,
            "title": title,
            "citation": self.citation,
            "flaw": self.flaw,
            "rule": self.rule,
            "frame": self.setting if title == self.name else self.our_setting,
            "cannot": [*self.limits],
            "headline": self.headline,
            "pairs": len(order),
            "chance_area": mean(mean(group["chance"][group["chance"] > 0]) for group in groups),
            "tuned": tuned,
            "numbers": self.numbers(groups),
        }


def groups_of(table: Table, findings: Sequence[str]) -> list[Group]:
    """Return the rows of each finding, in the order of the findings."""
    rows = [table["column"] == place for place in range(len(findings))]
    return [Group(name, {key: table[key][of] for key in table}) for name, of in zip(findings, rows, strict=True)]


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are neither None nor NaN, in any order; None if there are none."""
    defined = [float(value) for value in values if value is not None and not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else None


def _mean_by_squares(values: Sequence[list[float]]) -> float | None:
    weights = sum(len(one) ** 2 for one in values)
    return math.fsum(len(one) * value for one in values for value in one) / weights if weights else None


_AVERAGES: Mapping[str, Callable[[Sequence[list[float]]], float | None]] = {
    "findings": lambda values: mean(map(mean, values)),
    "pairs": lambda values: mean(value for one in values for value in one),
    "squares": _mean_by_squares,
}


def mean_of(groups: Sequence[Group], name: str, average: str = "findings", of_negatives: bool = False) -> Number:
    """Return the mean of a column over pairs with a region, or without the finding if `of_negatives`.

    `average` is `findings`: over the pairs of a finding, then over findings; `pairs`: over all pairs; or `squares`:
    over all pairs, each weighted by its finding's number of pairs.
    """
    combine, missing = _AVERAGES[average], []
    defined: list[list[float]] = []
    strict: list[list[float]] = []
    for place, group in enumerate(groups):
        values = group[name].astype(np.float64)
        known = ~np.isnan(values)
        expected = ~known & (group["label"] == 0 if of_negatives else group["chance"] > 0)
        defined.append(values[known].tolist())
        strict.append(np.where(expected, 0.0, values)[known | expected].tolist())
        missing += [(group["index"][row], place, group["image_id"][row]) for row in np.flatnonzero(expected)]
    first = [{"image_id": str(image), "finding": groups[place].finding} for _, place, image in sorted(missing)[:10]]
    return _number(average, combine(defined), groups, map(mean, defined)) | {
        "undefined": len(missing),
        "first_undefined": first,
        "strict": combine(strict),
    }


def ratio_of_sums(groups: Sequence[Group], above: str, below: str) -> Number:
    """Return the ratio of two columns' sums over a finding's pairs, then the mean over findings that have one."""
    sums = [(int(group[above].sum()), int(group[below].sum())) for group in groups]
    each = [part / whole if whole else None for part, whole in sums]
    return _number("sums", mean(each), groups, each)


def of_group(groups: Sequence[Group], function: Callable[[Group], Mapping[str, float | None]]) -> dict[str, Number]:
    """Return numbers of each finding's pairs together, then their means over findings that have one."""
    each = [function(group) for group in groups]
    values = {name: [numbers[name] for numbers in each] for name in each[0]}
    return {name: _number("images", mean(of_findings), groups, of_findings) for name, of_findings in values.items()}


def of_all(
    groups: Sequence[Group], average: str, function: Callable[[Group], Mapping[str, float | None]]
) -> dict[str, Number]:
    """Return numbers of all pairs together, regardless of finding."""
    whole = Group("", {name: np.concatenate([group[name] for group in groups]) for name in groups[0].columns})
    each = [function(group) for group in groups]
    return {
        name: _number(average, value, groups, [numbers[name] for numbers in each])
        for name, value in function(whole).items()
    }


def _number(average: str, value: float | None, groups: Sequence[Group], each: Iterable[float | None]) -> Number:
    number: Number = {"value": value, "average": average, "undefined": 0, "first_undefined": []}
    per_finding = zip((group.finding for group in groups), each, strict=True)
    return number | {"strict": value, "per_finding": dict(per_finding)}
