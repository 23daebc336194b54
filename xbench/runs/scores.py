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
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.runs.files import PER_IMAGE, WRITING, Table
from xbench.runs.results import ScoredOn
from xbench.runtime.files import atomic_writer

_PAIRS_AT_A_TIME = 1024
"""To a group of rows: enough to compress well."""

_MAX_ROWS = 2 * 10**7
"""Of a table that is read: ten times those of the largest dataset. A file of a few bytes can claim any number."""


@dataclass(frozen=True)
class ImageScores:
    """Scores of N images and C findings, every array (N, C) unless said otherwise.

    Attributes:
        index: Position of each image in the dataset, (N,) int64, ascending.
        image_ids: Names of the images, N of them.
        patient_ids: Whose image each is, N of them; None where the dataset does not say.
        labels: int8: 1 present, 0 absent, -1 unknown.
        has_region: bool.
        logits: float64.
        probabilities: float64.
        pointing_hit: float64; NaN where the pair is not scored, that is unless the finding is present with a region.
        dice: float64, at threshold 0.5; NaN where not scored.
        iou: float64, at threshold 0.5; NaN where not scored.
        region_area: float64, share of the evaluation grid; NaN without a region.
        region_x: float64, centre of mass of the region, 0 at the left and 1 at the right edge; NaN without a region.
        region_y: float64, its height, 0 at the top and 1 at the bottom edge; NaN without a region.
        peak_x: float64, where the map is highest, in the same unit; the mean of tied places. NaN where not scored.
        peak_y: float64, its height, as `region_y`. NaN where not scored.
        peak_distance: float64, from the nearest of tied maxima to the region, as `peak_distance` measures it; NaN where
            not scored.
        minimum_hit: float64, share of the map's tied minima in the region; NaN where not scored. Like `peak_distance`,
            NaN everywhere in runs of earlier versions.
        reader_dice: float64, mean Dice between the regions of any two readers, on the pixels of the annotation; NaN
            unless several readers drew the finding.
        reader_iou: float64, the same for IoU.
        region_digests: 16 bytes, the digest of the region on the grid (`region_digest` of `geometry.coverage`); empty
            without a region, and all of them in runs of earlier versions.
    """

    index: NDArray[np.int64]
    image_ids: list[str]
    patient_ids: list[str | None]
    labels: NDArray[np.int8]
    has_region: NDArray[np.bool_]
    logits: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    pointing_hit: NDArray[np.float64]
    dice: NDArray[np.float64]
    iou: NDArray[np.float64]
    region_area: NDArray[np.float64]
    region_x: NDArray[np.float64]
    region_y: NDArray[np.float64]
    peak_x: NDArray[np.float64]
    peak_y: NDArray[np.float64]
    peak_distance: NDArray[np.float64]
    minimum_hit: NDArray[np.float64]
    reader_dice: NDArray[np.float64]
    reader_iou: NDArray[np.float64]
    region_digests: NDArray[np.bytes_]

    def check_complete(self) -> None:
        """Refuse scores of earlier versions, which lack `peak_distance`, `minimum_hit` and `region_digest`.

        Raises:
            ValueError: These are such scores.
        """
        lacking = np.isnan(self.minimum_hit[self.scored] + self.peak_distance[self.scored])
        if lacking.any() or (self.region_digests[self.has_region] == b"").any():
            raise ValueError(
                f"{PER_IMAGE} has no peak_distance, minimum_hit and region_digest, for an earlier version wrote it: "
                "python -m xbench.cli rescore RUN makes a run that has them, without the model"
            )

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Which pairs grounding is scored on (N, C): present, with a region."""
        return np.asarray((self.labels == 1) & self.has_region)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Join parts and sort the images by position."""
        order = np.argsort(np.concatenate([part.index for part in parts]), kind="stable")
        joined: dict[str, Any] = {}
        for field in fields(cls):
            values = [getattr(part, field.name) for part in parts]
            if field.name in ("image_ids", "patient_ids"):
                flat = [value for part in values for value in part]
                joined[field.name] = [flat[position] for position in order]
            else:
                joined[field.name] = np.concatenate(values)[order]
        return cls(**joined)


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
    scored the same images on the same truth, in whatever order.

    Args:
        scores: Of a run that has the digests of its regions.
        findings: Its findings.
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

    def repeated(values: Sequence[str | None]) -> pa.Array:
        return pa.array(np.repeat(np.array(values, dtype=object), classes), pa.string())

    columns = {
        "image_id": repeated(scores.image_ids),
        "patient_id": repeated(scores.patient_ids),
        "finding": pa.array(list(findings) * images, pa.string()),
        **{
            name: pa.array(getattr(scores, field).reshape(-1), from_pandas=True)
            for name, field in _PAIR_COLUMNS.items()
        },
        _DIGEST: pa.array(
            scores.region_digests.reshape(-1).astype("U16"), mask=scores.region_digests.reshape(-1) == b""
        ),
    }
    with atomic_writer(path) as file:
        pq.write_table(pa.table(columns), file, **WRITING)


def read_per_image(path: Path, findings: Sequence[str]) -> ImageScores:
    """Read `per_image.parquet`.

    Args:
        path: The file.
        findings: The run's findings, in the order of its results.

    Raises:
        ValueError: The file's findings are others, or not every image has a row for each.
        OSError: The file cannot be read.
        pyarrow.ArrowInvalid: It is no such file.
    """
    table = _read(
        path,
        {name: str for name in ("image_id", "patient_id", "finding", _DIGEST)} | dict.fromkeys(_PAIR_COLUMNS, float),
    )
    classes = len(findings)
    images = table.num_rows // classes
    if table["finding"].to_pylist() != list(findings) * images:
        raise ValueError(f"{path} has not one row for each of {', '.join(findings)} for every image, in this order.")
    names = [np.array(table[name].to_pylist(), dtype=object).reshape(images, classes) for name in _OF_AN_IMAGE]
    for name, values in zip(_OF_AN_IMAGE, names, strict=True):
        for row, column in np.argwhere(values != values[:, :1])[:1]:
            raise ValueError(
                f"{path}: row {row * classes + column} has {name} {values[row, column]!r:.200} among the rows of "
                f"{values[row, 0]!r:.200}."
            )
    image_ids, patient_ids = (values[:, 0].tolist() for values in names)
    there = [name for name in _PAIR_COLUMNS if name in table.column_names]
    columns = dict.fromkeys(_PAIR_COLUMNS, np.full((images, classes), np.nan))
    columns |= {name: table[name].to_numpy().astype(np.float64).reshape(images, classes) for name in there}
    fine = _as_a_run_writes(columns)
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
    scored = has_region & (columns["label"] == 1)
    exists = {name: np.isfinite(values) for name, values in columns.items()}
    fine = {name: (values >= 0) & (values <= 1) for name, values in columns.items()}
    fine |= {
        "peak_distance": (columns["peak_distance"] >= 0) & (columns["peak_distance"] < 2**0.5),
        "label": np.isin(columns["label"], (-1, 0, 1)),
        "has_region": np.isin(columns["has_region"], (0, 1)),
        "logit": exists["logit"],
    }
    for name in _OF_SCORED:
        fine[name] = np.where(scored, fine[name], np.isnan(columns[name]))
    for name in ("region_area", "region_x", "region_y"):
        fine[name] = np.where(has_region, fine[name], np.isnan(columns[name]))
    for name, other in (("reader_dice", "reader_iou"), ("reader_iou", "reader_dice")):
        drawn = has_region & exists[other]
        fine[name] = np.where(drawn, fine[name], np.isnan(columns[name]))
    return fine


@dataclass(frozen=True)
class PairCounts:
    """Sizes in pixels of the evaluation grid, of P scored pairs, at each of T thresholds.

    Dice is 2 overlap / (mask + region), IoU is overlap / (mask + region - overlap).

    Attributes:
        index: Position of the image in the dataset, (P,) int64, ascending.
        column: Position of the finding among the run's, (P,) int64, ascending within an image.
        image_ids: Name of each pair's image, P of them.
        grid: Pixels of the grid, (P,) int64.
        region: Pixels of the region, (P,) int64.
        mask: Pixels where the normalised map reaches the threshold, (P, T) int32.
        overlap: Those of them in the region, (P, T) int32.
    """

    index: NDArray[np.int64]
    column: NDArray[np.int64]
    image_ids: list[str]
    grid: NDArray[np.int64]
    region: NDArray[np.int64]
    mask: NDArray[np.int32]
    overlap: NDArray[np.int32]

    def dice(self) -> NDArray[np.float64]:
        """Dice at each threshold, (P, T)."""
        return 2 * self.overlap.astype(np.float64) / (self.mask + self.region[:, None])

    def iou(self) -> NDArray[np.float64]:
        """IoU at each threshold, (P, T)."""
        return self.overlap.astype(np.float64) / (self.mask + self.region[:, None] - self.overlap)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Join parts and sort the pairs by image, then by finding."""
        order = np.lexsort([np.concatenate([getattr(part, key) for part in parts]) for key in ("column", "index")])
        ids = [image_id for part in parts for image_id in part.image_ids]
        arrays: dict[str, Any] = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])[order]
            for field in fields(cls)
            if field.name != "image_ids"
        }
        return cls(image_ids=[ids[position] for position in order], **arrays)


@contextmanager
def pair_counts_writer(path: Path, findings: Sequence[str], thresholds: int) -> Iterator[Callable[[PairCounts], None]]:
    """Write `curves.parquet`, a row per scored pair with lists over the thresholds, as the pairs come.

    The file appears when all is written, or not at all.

    Args:
        path: The file.
        findings: Names of the findings.
        thresholds: Their number T.

    Yields:
        A function that takes the next pairs; image by image in the dataset's order, then finding by finding.
    """
    lists = pa.list_(pa.int32(), thresholds)
    kinds = [pa.string(), pa.string(), pa.int64(), pa.int64(), lists, lists]
    schema = pa.schema(list(zip(("image_id", "finding", "grid_pixels", "region_pixels", *_LISTS), kinds, strict=True)))
    names = np.array(findings, dtype=object)
    waiting: list[pa.RecordBatch] = []

    with atomic_writer(path) as file, pq.ParquetWriter(file, schema, **WRITING) as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_batches(waiting, schema))
            waiting.clear()

        def add(counts: PairCounts) -> None:
            sizes = (
                pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1), pa.int32()), thresholds)
                for pixels in (counts.mask, counts.overlap)
            )
            columns = (counts.image_ids, names[counts.column], counts.grid, counts.region, *sizes)
            waiting.append(
                pa.record_batch([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], schema)
            )
            if sum(map(len, waiting)) >= _PAIRS_AT_A_TIME:
                flush()

        yield add
        flush()


def read_pair_counts(path: Path, findings: Sequence[str], image_ids: Sequence[str]) -> PairCounts:
    """Read `curves.parquet`.

    Args:
        path: The file.
        findings: The run's findings, in the order of its results.
        image_ids: The run's images, in the order of `per_image.parquet`.

    Raises:
        ValueError: The file speaks of other findings or images, or two images have one name.
        OSError: The file cannot be read.
        pyarrow.ArrowInvalid: It is no such file.
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

    def lists(name: str) -> NDArray[np.int32]:
        values = table[name].combine_chunks()
        return np.asarray(values.flatten()).reshape(len(values), values.type.list_size)

    grid, region = (table[name].to_numpy() for name in ("grid_pixels", "region_pixels"))
    mask, overlap = map(lists, _LISTS)
    inside = (overlap >= 0) & (overlap <= mask) & (overlap <= region[:, None]) & (mask <= grid[:, None])
    if mask.shape != overlap.shape or not (inside.all() and ((region > 0) & (region <= grid)).all()):
        raise ValueError(f"{path} holds sizes of masks and regions that no run writes.")
    return PairCounts(index=index, column=column, image_ids=ids, grid=grid, region=region, mask=mask, overlap=overlap)


_LISTS = ("mask_pixels", "overlap_pixels")
_SINCE = (_DIGEST, "peak_distance", "minimum_hit")
"""Columns that runs of earlier versions have not."""
_MAY_LACK = ("patient_id", _DIGEST, *_OF_SCORED, "region_", "reader_")


def _read(path: Path, columns: Mapping[str, type], *lists: str) -> pa.Table:
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
    fields_of = {field.name: field.type for field in file.schema_arrow}
    columns = {name: kind for name, kind in columns.items() if name in fields_of or name not in _SINCE}
    for name, kind in columns.items():
        if name not in fields_of or not is_kind[kind](fields_of[name]):
            raise ValueError(f"{path} has no column {name} of the kind that a run writes.")
    for name in lists:
        if (
            name not in fields_of
            or not pa.types.is_fixed_size_list(fields_of[name])
            or fields_of[name].value_type != pa.int32()
        ):
            raise ValueError(f"{path} has no column {name} of lists of whole numbers.")
    table = file.read([*columns, *lists])
    if any(table[name].null_count for name in (*columns, *lists) if not name.startswith(_MAY_LACK)):
        raise ValueError(f"{path} has gaps that no run leaves.")
    return table


@dataclass(frozen=True)
class BatchScores:
    """Scores of a batch.

    Attributes:
        images: Per image and finding.
        pairs: Per scored pair.
        constant: Scored pairs whose map is the same everywhere on the grid: position of the image in the dataset, its
            name, and position of the finding.
    """

    images: ImageScores
    pairs: PairCounts
    constant: tuple[tuple[int, str, int], ...]
