"""The tables of scores: per image and finding, and pixel counts of every scored pair at every threshold.

`per_image.parquet` has a row per image and finding, `curves.parquet` one per scored pair, that is per image and finding
that it has with an annotated region. Every number of a run follows from the two. Needs no torch, so that reports start
fast.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.runs.answers import AnswerRow
from xbench.runs.files import PER_IMAGE, WRITING, Table
from xbench.runs.results import ScoredOn
from xbench.runtime.files import atomic_writer

_PAIRS_AT_A_TIME = 1024
"""To a group of rows: enough to compress well."""

_MAX_ROWS = 2 * 10**7
"""Of a table that is read: ten times those of the largest dataset. A file of a few bytes can claim any number."""


class _Columns:
    """Lists and arrays of equal length, one a field, whose rows are sorted by some of them, the last first."""

    _sorted_by: ClassVar[tuple[str, ...]]

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Join parts and sort the rows by position in the dataset."""
        order = np.lexsort([np.concatenate([getattr(part, key) for part in parts]) for key in cls._sorted_by])
        joined: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            values = [getattr(part, field.name) for part in parts]
            if isinstance(values[0], list):
                flat = [*chain(*values)]
                joined[field.name] = [flat[place] for place in order]
            else:
                joined[field.name] = np.concatenate(values)[order]
        return cls(**joined)


@dataclass(frozen=True)
class ImageScores(_Columns):
    """Scores of N images and C findings, every array (N, C) unless said otherwise.

    Grounding is scored on pairs of an image and a finding that is present with a region; of others it is NaN. Places
    are fractions of the evaluation grid, from 0 at its left or top edge to 1 at the other.
    """

    _sorted_by = ("index",)

    index: NDArray[np.int64]  # position of each image in the dataset (N,), ascending
    image_ids: list[str]
    patient_ids: list[str | None]  # None where the dataset does not say
    labels: NDArray[np.int8]  # 1 present, 0 absent, -1 unknown
    has_region: NDArray[np.bool_]
    logits: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    pointing_hit: NDArray[np.float64]
    dice: NDArray[np.float64]  # at threshold 0.5
    iou: NDArray[np.float64]
    region_area: NDArray[np.float64]  # share of the evaluation grid; NaN without a region
    region_x: NDArray[np.float64]  # centre of mass; NaN without a region
    region_y: NDArray[np.float64]
    peak_x: NDArray[np.float64]  # where the map is highest, the mean of tied places; NaN if nobody drew it
    peak_y: NDArray[np.float64]
    peak_distance: NDArray[np.float64]  # see `metrics.peaks`; NaN everywhere in runs of earlier versions
    minimum_hit: NDArray[np.float64]  # share of the map's tied minima in the region; NaN in runs of earlier versions
    reader_dice: NDArray[np.float64]  # mean over any two readers, on the annotation's pixels; NaN without two
    reader_iou: NDArray[np.float64]
    region_digests: NDArray[np.bytes_]  # of `region_digest`; empty without a region and in runs of earlier versions

    def check_complete(self, answers: bool = False) -> None:
        """Raise a ValueError for scores of earlier versions, which lack distances of peaks, minima and digests.

        Those of a model that answers have no peaks and minima.
        """
        lacking = np.isnan(self.minimum_hit) | (np.isnan(self.peak_distance) & ~np.isnan(self.peak_x))
        if (lacking & self.scored & (not answers)).any() or (self.region_digests[self.has_region] == b"").any():
            raise ValueError(
                f"{PER_IMAGE} has no peak_distance, minimum_hit and region_digest, for an earlier version wrote it: "
                "xbench rescore RUN makes a run that has them, without the model"
            )

    @property
    def counted_probabilities(self) -> NDArray[np.float64]:
        """Probabilities (N, C) where those that a model did not give count as the worst: 0 if present, 1 if absent."""
        return np.where(np.isnan(self.probabilities), (self.labels != 1).astype(np.float64), self.probabilities)

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Which pairs grounding is scored on (N, C): present, with a region."""
        return np.asarray((self.labels == 1) & self.has_region)


_COLUMN_OF = {"labels": "label", "logits": "logit", "probabilities": "probability"}
_PAIR_COLUMNS = {
    _COLUMN_OF.get(field.name, field.name): field.name
    for field in fields(ImageScores)
    if field.name not in ("index", "image_ids", "patient_ids", "region_digests")
}
"""Columns of `per_image.parquet` and the arrays they hold."""


def scored_on(scores: ImageScores, findings: Sequence[str]) -> dict[str, ScoredOn]:
    """Return what images were scored on: of each finding a digest of the `labels` and one of the `regions`.

    The first is of the name and label of every image whose label is known, the second of the name and region of every
    scored pair, each the SHA-256 of a list of pairs in JSON, sorted by name. So runs have equal digests just where they
    scored the same images on the same truth, in whatever order. `scores` must have the digests of regions.
    """
    digests = scores.region_digests.astype("U16")
    found = {}
    for c, finding in enumerate(findings):
        regions = [(scores.image_ids[row], digests[row, c].item()) for row in np.flatnonzero(scores.scored[:, c])]
        labels = zip(scores.image_ids, scores.labels[:, c].tolist(), strict=True)
        found[finding] = ScoredOn(labels_digest(labels), _digest(regions))
    return found


def labels_digest(labels: Iterable[tuple[str, int]]) -> str:
    """Return the digest of what is known of a finding: names and labels of images, in any order, as in `scored_on`."""
    return _digest([(image_id, label) for image_id, label in labels if label >= 0])


def _digest(pairs: Iterable[tuple[str, int | str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(pairs)).encode()).hexdigest()


def write_per_image(path: Path, scores: ImageScores, findings: Sequence[str]) -> None:
    """Write `per_image.parquet`: a row per image and finding, images in the dataset's order; null where not scored."""
    images, classes = scores.labels.shape
    digests = scores.region_digests.ravel()
    columns = {
        name: pa.array(np.repeat(np.array(values, dtype=object), classes), pa.string())
        for name, values in zip(_OF_AN_IMAGE, (scores.image_ids, scores.patient_ids), strict=True)
    }
    columns["finding"] = pa.array(list(findings) * images, pa.string())
    for name, field in _PAIR_COLUMNS.items():
        columns[name] = pa.array(getattr(scores, field).ravel(), from_pandas=True)
    columns[_DIGEST] = pa.array(digests.astype("U16"), mask=digests == b"")
    with atomic_writer(path) as file:
        pq.write_table(pa.table(columns), file, **WRITING)


def read_per_image(path: Path, findings: Sequence[str], answers: bool = False) -> ImageScores:
    """Read `per_image.parquet` of a run with these findings, in their order; `answers` if its model gives no maps.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run with these findings
            writes.
    """
    texts = dict.fromkeys((*_OF_AN_IMAGE, "finding", _DIGEST), str)
    table = _read(path, texts | dict.fromkeys(_PAIR_COLUMNS, float), may_lack=_OF_MAPS if answers else ())
    classes = len(findings)
    images = table.num_rows // classes
    if table["finding"].to_pylist() != list(findings) * images:
        raise ValueError(f"{path} has not one row for each of {', '.join(findings)} for every image, in this order.")
    names = {}
    for name in _OF_AN_IMAGE:
        names[name] = values = np.array(table[name].to_pylist(), dtype=object).reshape(images, classes)
        for row, column in np.argwhere(values != values[:, :1])[:1]:
            raise ValueError(
                f"{path}: row {row * classes + column} has {name} {values[row, column]!r:.200} among the rows of "
                f"{values[row, 0]!r:.200}."
            )
    image_ids, patient_ids = (values[:, 0].tolist() for values in names.values())
    there = [name for name in _PAIR_COLUMNS if name in table.column_names]
    columns = dict.fromkeys(_PAIR_COLUMNS, np.full((images, classes), np.nan))
    columns |= {name: table[name].to_numpy().astype(np.float64).reshape(images, classes) for name in there}
    fine = _as_a_run_writes(columns)
    unsaid = ("logit", "probability")
    if all(np.isnan(columns[name]).all() for name in unsaid):
        # A model that recognises nothing.
        fine |= {name: np.isnan(columns[name]) for name in unsaid}
    if answers:
        fine |= {name: fine[name] | np.isnan(columns[name]) for name in _OF_MAPS}
    for name in there:
        for row, column in np.argwhere(~fine[name])[:1]:
            value = columns[name][row, column]
            raise ValueError(
                f"{path}: {name} of {findings[column]} in {image_ids[row]!r:.200} is "
                f"{'null' if np.isnan(value) else value}, which no run writes beside label "
                f"{columns['label'][row, column]:g} and has_region {columns['has_region'][row, column]:g}."
            )
    arrays: dict[str, Any] = {"region_digests": _digests(path, table, columns["has_region"])}
    dtypes = {"labels": np.int8, "has_region": np.bool_}
    arrays |= {field: columns[name].astype(dtypes.get(field, np.float64)) for name, field in _PAIR_COLUMNS.items()}
    return ImageScores(index=np.arange(images), image_ids=image_ids, patient_ids=patient_ids, **arrays)


_DIGEST = "region_digest"
_OF_AN_IMAGE = ("image_id", "patient_id")
_OF_MAPS = ("logit", "probability", "dice", "iou", "peak_x", "peak_y", "peak_distance", "minimum_hit")
"""What models that answer may lack."""
_OF_SCORED = ("pointing_hit", "dice", "iou", "peak_x", "peak_y", "peak_distance", "minimum_hit")


def _digests(path: Path, table: pa.Table, has_region: NDArray[np.float64]) -> NDArray[np.bytes_]:
    """Return the digests of regions (N, C), all of them empty in a file that has none."""
    if _DIGEST not in table.column_names:
        return np.zeros(has_region.shape, "S16")
    texts = table[_DIGEST].to_pylist()
    for row, (text, drawn) in enumerate(zip(texts, has_region.ravel().tolist(), strict=True)):
        if re.fullmatch("[0-9a-f]{16}" if drawn else "", text or "") is None:
            raise ValueError(f"{path}: {_DIGEST} of row {row} is {text!r:.60}, which no run writes there.")
    return np.array([text or "" for text in texts], "S16").reshape(has_region.shape)


def _as_a_run_writes(columns: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.bool_]]:
    """Which values (N, C) of each column a run can have written, by the columns of `per_image.parquet`."""
    has_region = columns["has_region"] == 1
    fine = {name: (values >= 0) & (values <= 1) for name, values in columns.items()}
    fine |= {
        "peak_distance": (columns["peak_distance"] >= 0) & (columns["peak_distance"] < 2**0.5),
        "label": np.isin(columns["label"], (-1, 0, 1)),
        "has_region": np.isin(columns["has_region"], (0, 1)),
        "logit": np.isfinite(columns["logit"]),
    }
    exists = dict.fromkeys(_OF_SCORED, has_region & (columns["label"] == 1))
    # A map that nobody drew is highest nowhere, and a miss.
    missed = np.all([columns[name] == 0 for name in ("pointing_hit", "dice", "iou", "minimum_hit")], axis=0)
    drawn = ~(missed & np.isnan(columns["peak_x"]) & np.isnan(columns["peak_y"]) & np.isnan(columns["peak_distance"]))
    exists |= dict.fromkeys(("peak_x", "peak_y", "peak_distance"), exists["dice"] & drawn)
    exists |= dict.fromkeys(("region_area", "region_x", "region_y"), has_region)
    exists["reader_dice"] = has_region & np.isfinite(columns["reader_iou"])
    exists["reader_iou"] = has_region & np.isfinite(columns["reader_dice"])
    return fine | {name: np.where(where, fine[name], np.isnan(columns[name])) for name, where in exists.items()}


@dataclass(frozen=True)
class PairCounts(_Columns):
    """Sizes in pixels of the evaluation grid, of P scored pairs, at each of T thresholds.

    Dice is 2 overlap / (mask + region), IoU is overlap / (mask + region - overlap).
    """

    _sorted_by = ("column", "index")

    index: NDArray[np.int64]  # position of the image in the dataset (P,), ascending
    column: NDArray[np.int64]  # position of the finding among the run's (P,), ascending within an image
    image_ids: list[str]
    grid: NDArray[np.int64]  # pixels of the grid (P,)
    region: NDArray[np.int64]  # pixels of the region (P,)
    mask: NDArray[np.int32]  # pixels where the normalised map reaches the threshold (P, T)
    overlap: NDArray[np.int32]  # those of them in the region (P, T)

    def dice(self) -> NDArray[np.float64]:
        """Dice at each threshold, (P, T)."""
        return 2 * self.overlap.astype(np.float64) / (self.mask + self.region[:, None])

    def iou(self) -> NDArray[np.float64]:
        """IoU at each threshold, (P, T)."""
        return self.overlap.astype(np.float64) / (self.mask + self.region[:, None] - self.overlap)


@contextmanager
def pair_counts_writer(path: Path, findings: Sequence[str], thresholds: int) -> Iterator[Callable[[PairCounts], None]]:
    """Write `curves.parquet`, a row per scored pair with lists over the T thresholds; it appears whole or not at all.

    Yields a function that takes the next pairs: image by image in the dataset's order, then finding by finding.
    """
    lists = pa.list_(pa.int32(), thresholds)
    kinds = {"image_id": pa.string(), "finding": pa.string(), "grid_pixels": pa.int64(), "region_pixels": pa.int64()}
    schema = pa.schema(kinds | dict.fromkeys(_LISTS, lists))
    names = np.array(findings, dtype=object)
    waiting: list[pa.Table] = []

    with atomic_writer(path) as file, pq.ParquetWriter(file, schema, **WRITING) as writer:

        def flush() -> None:
            writer.write_table(pa.concat_tables(waiting) if waiting else schema.empty_table())
            waiting.clear()

        def add(counts: PairCounts) -> None:
            sizes = (
                pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1), pa.int32()), thresholds)
                for pixels in (counts.mask, counts.overlap)
            )
            columns = (counts.image_ids, names[counts.column], counts.grid, counts.region, *sizes)
            waiting.append(pa.table(dict(zip(schema.names, columns, strict=True)), schema))
            if sum(map(len, waiting)) >= _PAIRS_AT_A_TIME:
                flush()

        yield add
        flush()


def read_pair_counts(path: Path, findings: Sequence[str], image_ids: Sequence[str]) -> PairCounts:
    """Read `curves.parquet` of a run with these findings and images, in the order of its other files.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or speaks of other findings or images, or
            two images have one name.
    """
    table = _read(path, {"image_id": str, "finding": str, "grid_pixels": int, "region_pixels": int}, *_LISTS)
    image_of = {image_id: position for position, image_id in enumerate(image_ids)}
    if len(image_of) < len(image_ids):
        raise ValueError(f"{path}: several images of the run have one name, so its rows cannot be told apart.")
    column_of = {finding: position for position, finding in enumerate(findings)}
    ids = table["image_id"].to_pylist()
    try:
        index = np.array([image_of[image_id] for image_id in ids], dtype=np.int64)
        column = np.array([column_of[finding] for finding in table["finding"].to_pylist()], dtype=np.int64)
    except KeyError as error:
        raise ValueError(f"{path} speaks of {error}, which is not in the run's {PER_IMAGE}.") from None
    grid, region = (table[name].to_numpy() for name in ("grid_pixels", "region_pixels"))
    lists = [table[name].combine_chunks() for name in _LISTS]
    mask, overlap = (np.asarray(one.flatten()).reshape(len(one), one.type.list_size) for one in lists)
    inside = (overlap >= 0) & (overlap <= mask) & (overlap <= region[:, None]) & (mask <= grid[:, None])
    if mask.shape != overlap.shape or not (inside.all() and ((region > 0) & (region <= grid)).all()):
        raise ValueError(f"{path} holds sizes of masks and regions that no run writes.")
    return PairCounts(index=index, column=column, image_ids=ids, grid=grid, region=region, mask=mask, overlap=overlap)


_LISTS = ("mask_pixels", "overlap_pixels")
_SINCE = (_DIGEST, "peak_distance", "minimum_hit")
"""Columns that runs of earlier versions have not."""
_MAY_LACK = ("patient_id", _DIGEST, *_OF_SCORED, "logit", "probability", "region_", "reader_")


def _read(path: Path, columns: Mapping[str, type], *lists: str, may_lack: Sequence[str] = ()) -> pa.Table:
    """Read columns of texts, whole numbers or numbers, and lists of so many whole numbers.

    Raises:
        ValueError: There are too many rows, or a column is missing, of another type, or has gaps that no run leaves.
    """
    file = Table(path)
    if file.metadata.num_rows > _MAX_ROWS:
        raise ValueError(f"{path} claims {file.metadata.num_rows} rows, more than the {_MAX_ROWS} that are read.")
    is_kind = {
        str: pa.types.is_string,
        int: pa.types.is_integer,
        float: lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind),
    }
    types = {field.name: field.type for field in file.schema_arrow}
    columns = {name: kind for name, kind in columns.items() if name in types or name not in _SINCE}
    for name, kind in columns.items():
        if name not in types or not is_kind[kind](types[name]):
            raise ValueError(f"{path} has no column {name} of the kind that a run writes.")
    for name in lists:
        lists_of = types.get(name)
        if lists_of is None or not pa.types.is_fixed_size_list(lists_of) or lists_of.value_type != pa.int32():
            raise ValueError(f"{path} has no column {name} of lists of whole numbers.")
    table = file.read([*columns, *lists])
    if any(table[name].null_count for name in (*columns, *lists) if not name.startswith((*_MAY_LACK, *may_lack))):
        raise ValueError(f"{path} has gaps that no run leaves.")
    return table


@dataclass(frozen=True)
class BatchScores:
    """Scores of a batch.

    `constant` are the scored pairs whose map is the same everywhere on the grid: position of the image in the dataset,
    its name, and position of the finding.
    """

    images: ImageScores
    pairs: PairCounts
    constant: tuple[tuple[int, str, int], ...]
    answers: tuple[AnswerRow, ...] = ()  # of a model that answers, image by image
