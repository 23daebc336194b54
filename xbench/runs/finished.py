"""Reader of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Self, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xbench.findings.attributes import ATTRIBUTES, known_attributes
from xbench.findings.queries import PHRASES, Query
from xbench.geometry.grid import MAX_THRESHOLDS, MapScale, Rules, TieRule, Upsampling
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape
from xbench.predictions import family_named
from xbench.predictions.asking import TEXTS, Question
from xbench.predictions.conventions import Convention
from xbench.runs import images as saved
from xbench.runs.answers import AnswerRow, read_answers
from xbench.runs.by_finding import Images
from xbench.runs.files import IMAGES, PAIRS, PICTURES, PREDICTIONS, RESULTS, TRUTH, Table, reading
from xbench.runs.fingerprint import outputs_depend_on
from xbench.runs.images import SavedImage, ScoredPairs
from xbench.runs.results import Results, read_results
from xbench.runs.tables import read_conditions, read_rows
from xbench.scoring.interventions import CONDITIONS, keys_of
from xbench.scoring.rows import Rows

if TYPE_CHECKING:
    from xbench.types import Prediction, Truth


class FinishedRun:
    """A finished run. Files are read and checked on first use.

    Missing, damaged or foreign files, and failed checks, raise a `RunFileError`, which is a `UserError`. Only `batch`
    needs torch.
    """

    def __init__(self, folder: Path, results: Results, condition: str = "") -> None:
        self.folder = folder
        self.results = results
        self.condition = condition

    def __reduce__(self) -> tuple[type[Self], tuple[Path, Results, str]]:
        return type(self), (self.folder, self.results, self.condition)

    @classmethod
    def open(cls, folder: Path, *needed: str) -> Self:
        """Open the run in a folder and read `results.json`; `needed` names other required files."""
        with reading(folder):
            for name in (RESULTS, *needed):
                if not (folder / name).exists():
                    raise FileNotFoundError(2, "no such file", name)
            return cls(folder, read_results(folder / RESULTS))

    @cached_property
    def under_conditions(self) -> list[Self]:
        """The run and, for each other condition, the run with rows, predictions and answers of that."""
        with reading(self.folder):
            there = Table(self.folder / PAIRS).read(["condition"])["condition"].unique().to_pylist()
        return [self, *(type(self)(self.folder, self.results, name) for name in there if name)]

    @cached_property
    def rows(self) -> Rows:
        """Rows of `pairs.parquet`."""
        with reading(self.folder):
            return read_rows(self.folder / PAIRS, self.results.findings, self.condition)

    @cached_property
    def changed(self) -> dict[str, Rows]:
        """Rows under interventions that hide pixels, by condition."""
        names = [view.condition for view in self.under_conditions if view.condition in CONDITIONS]
        with reading(self.folder):
            return read_conditions(self.folder / PAIRS, self.results.findings, names) if names else {}

    @cached_property
    def image_scores(self) -> Images:
        """Rows by image and finding."""
        return Images(self.rows)

    @cached_property
    def answers(self) -> dict[str, list[AnswerRow]]:
        """Questions and answers by image; empty for other models."""
        if not self.results.answered:
            return {}
        found: dict[str, list[AnswerRow]] = {image_id: [] for image_id in self.rows.image_ids}
        asked = {image_id: {query[:2] for query in queries} for image_id, queries in self.queries.items()}
        with reading(self.folder):
            for row in read_answers(self.folder / PREDICTIONS, self.condition):
                if (row.finding, row.group) not in asked.get(row.image_id, ()):
                    about = f"{row.finding!r:.60} on {row.image_id!r:.200}"
                    raise ValueError(f"{PREDICTIONS} names {about}, which is not in {PAIRS}")
                found[row.image_id].append(row)
            scored = self.rows["scored"]
            for image_id, rows in found.items():
                located = [row.finding for row in rows if row.query == "locate"]
                drawn = [row.finding for row in rows if row.annotated is not None]
                own = self.pairs_of[self.row_of[image_id]]
                needed = [query.name for query, pair in zip(self.queries[image_id], own, strict=True) if scored[pair]]
                if len({*located}) < len(located) or sorted(drawn) != sorted(needed):
                    raise ValueError(f"{PREDICTIONS} needs one answer for each scored pair of {image_id!r:.200}")
        return found

    @property
    def located(self) -> list[AnswerRow]:
        """Answers where findings are."""
        return [answer for answers in self.answers.values() for answer in answers if answer.query == "locate"]

    @cached_property
    def texts(self) -> list[AnswerRow]:
        """Reports and answers in words, in the dataset's order."""
        with reading(self.folder):
            return [row for row in read_answers(self.folder / PREDICTIONS, self.condition) if row.query in TEXTS]

    @property
    def saves_images(self) -> bool:
        """Whether the run has the files of `CaseKeeper`, including pictures."""
        return all((self.folder / name).is_file() for name in (IMAGES, PREDICTIONS, TRUTH, PICTURES))

    @cached_property
    def instances(self) -> dict[tuple[str, str], tuple[Shape, ...]]:
        """Annotated items by image and finding from `truth.parquet`, in order; none if only regions are known."""
        with reading(self.folder):
            rows = Table(self.folder / TRUTH).rows()
            return {(row["image_id"], row["query"]): saved.shapes_of(row) for row in rows if row["shapes"]}

    def regions(self) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
        """Yield image, finding and scored region (H, W)."""
        with reading(self.folder):
            truth = Table(self.folder / TRUTH)
            gamma = saved.stated_gamma(truth)
            for row in truth.rows(["image_id", "query", *Coverage.__slots__]):
                yield row["image_id"], row["query"], saved.coverage_of(row).at(gamma)

    @cached_property
    def image_sizes(self) -> dict[str, tuple[int, int] | None]:
        """Height and width of each decoded image; None if unknown."""
        with reading(self.folder):
            rows = Table(self.folder / IMAGES).rows()
            return {row["image_id"]: saved.size_of(row) for row in rows if row["failure"] is None}

    @cached_property
    def attributes(self) -> dict[str, dict[str, str | float]]:
        """Sex, age and projection of each image, if known."""
        with reading(self.folder):
            rows = Table(self.folder / IMAGES).rows(["image_id", *ATTRIBUTES])
            return {row["image_id"]: known_attributes(row)[0] for row in rows}

    @cached_property
    def draws_maps(self) -> bool:
        """Whether the run saved maps, rather than boxes or only probabilities."""
        with reading(self.folder):
            shapes = Table(self.folder / PREDICTIONS).read(["map_shape"])["map_shape"]
            return bool(len(shapes) > shapes.null_count)

    @property
    def map_scale(self) -> MapScale | None:
        """Scale of the raw maps that the model's class declares, or None."""
        with reading(self.folder):
            model = self.results.provenance.get("model")
            scale = model.get("map_scale") if isinstance(model, dict) else None
            if scale is not None and scale not in get_args(MapScale):
                raise ValueError(f"{RESULTS} names an unknown map_scale {scale!r:.40}")
            return scale

    @cached_property
    def scored_pairs(self) -> ScoredPairs:
        """Maps, regions and pictures of the scored pairs, read one at a time and checked against the rows."""
        digests = self.rows["region_digest"].tolist()
        return ScoredPairs(self.folder, dict(zip(keys_of(self.rows), digests, strict=True)))

    def check_tables(self) -> None:
        """Check that the tables are readable and match the results."""
        rows, results, _ = self.rows, self.results, self.answers
        with reading(self.folder):
            if len(rows.image_ids) != results.counts.images:
                raise ValueError(f"{RESULTS} counts {results.counts.images} images, {PAIRS} has {len(rows.image_ids)}")
            if len(rows.counts.row) and rows.counts.mask.shape[1] != results.masks:
                raise ValueError(f"{PAIRS} has {rows.counts.mask.shape[1]} thresholds, unlike {RESULTS}")

    def saved_images(self) -> Iterator[SavedImage]:
        """Yield the saved images in the dataset's order."""
        rows_of, last = self.rows, -1
        present = rows_of["has_region"] & (rows_of["label"] == 1)
        with reading(self.folder):
            rows = iter(range(len(rows_of.image_ids)))
            for image in saved.read_saved_images(self.folder, self.queries, self.condition):
                if not image.queries:
                    continue
                row = next(rows, None)
                if row is None or rows_of.image_ids[row] != image.image_id:
                    raise ValueError(f"{IMAGES} and {PAIRS} differ in images")
                own = self.pairs_of[row]
                drawn, scored = (tuple(np.flatnonzero(which[own])) for which in (rows_of["has_region"], present))
                if image.index <= last or tuple(image.regions) != drawn or image.scored != scored:
                    raise ValueError(f"{image.image_id}: its position or its regions are not those of {PAIRS}")
                last = image.index
                yield image
            if next(rows, None) is not None:
                raise ValueError(f"{IMAGES} has fewer images than {PAIRS}")

    @cached_property
    def rules(self) -> Rules:
        """Rules of scoring from the provenance."""
        with reading(self.folder):
            provenance = self.results.provenance
            try:
                outputs_depend_on(provenance)
                data, evaluation = provenance["data"], provenance["evaluation"]
                grid, thresholds, gamma = data["grid"], evaluation["thresholds"], data["gamma"]
                sides = () if grid == "native" else tuple(grid)
                upsampling, ties = provenance["model"]["saliency_upsample"], evaluation["ties"]
                sound = (
                    all(type(number) is int and number >= 1 for number in (data["batch_size"], thresholds, *sides))
                    and (len(sides) == 2 or grid == "native")
                    and upsampling in get_args(Upsampling)
                    and 3 <= thresholds <= MAX_THRESHOLDS
                    and ties in get_args(TieRule)
                    and isinstance(gamma, float | int)
                    and 0 < gamma <= 1
                )
            except (KeyError, TypeError) as error:
                raise ValueError(f"the provenance in {RESULTS} is incomplete: {error}") from None
            if not sound:
                raise ValueError(f"the provenance in {RESULTS} is not that of a run")
            return Rules(sides or "native", upsampling, gamma, thresholds, ties, self.map_scale or "none")

    def saved_tables(self, name: str, images: frozenset[str] | None = None) -> Iterator[pa.Table]:
        """Yield a table in parts: rows of all images or the given ones, and failures in `images.parquet`."""
        with reading(self.folder):
            file = Table(self.folder / name)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, use_threads=False).replace_schema_metadata(None)
                if any(table[key].null_count for key in ("index", "image_id") if key in table.column_names):
                    raise ValueError(f"{name} has gaps that no run leaves")
                if images is not None:
                    kept = pc.is_in(table["image_id"], pa.array([*images]))
                    table = table.filter(pc.or_(kept, table["failure"].is_valid()) if name == IMAGES else kept)
                yield table

    def saved_batches(self, images: frozenset[str] | None = None) -> Iterator[list[SavedImage]]:
        """Yield saved images in the run's batches: others would round interpolated crops differently."""
        grid, size = self.rules.grid, self.results.provenance["data"]["batch_size"]
        for _, batch in groupby(self.saved_images(), key=lambda image: image.index // size):
            chosen = [image for image in batch if images is None or image.image_id in images]
            with reading(self.folder):
                for image in chosen:
                    if grid != "native" and any(region.shape != grid for region in image.regions.values()):
                        raise ValueError(f"{image.image_id}: its regions are on another grid than that of {RESULTS}")
                    if _size_of(image) != _size_of(chosen[0]):
                        raise ValueError(f"{image.image_id}: its maps have another size than those of its batch")
            if chosen:
                yield chosen

    def batch(
        self, images: Sequence[SavedImage], gamma: float, family: str | None = None, frame: str | None = None
    ) -> tuple[Prediction, Truth]:
        """Return predictions and truth of saved images; `family` or `frame` read answers anew."""
        import torch

        from xbench.types import Answers, Maps, Prediction, Truth

        rows = [self.pairs_of[self.row_of[image.image_id]] for image in images]
        pairs = np.concatenate(rows)
        logits, probabilities = (torch.from_numpy(self.rows[name][pairs]) for name in ("logit", "probability"))
        asked = self.rows["asked"].any()
        prediction = Prediction(logits, probabilities, None) if asked else Prediction(None, None, None)
        if drawn := [image.saliency for image in images if image.saliency is not None]:
            maps = np.concatenate(drawn)
            prediction.shown = Maps(torch.from_numpy(maps), torch.from_numpy(saved.no_maps(maps)))
        if read_as := self.results.read_as:
            by = family_named(family or read_as["family"])
            numbers = Convention.named(frame or read_as["frame"])
            prediction.shown = shown = Answers([None] * len(pairs))
            before = 0
            for place, image in enumerate(images):
                names = [query.name for query in image.queries]
                for one in self.answers[image.image_id]:
                    pair, reply = before + names.index(one.finding), one.reply()
                    if one.query == "again":
                        reply, answer = one.read_again(by, numbers)
                        shown.repeated.append(answer)
                    elif one.query == "locate":
                        reply, shown.answers[pair] = one.read_again(by, numbers)
                    shown.replies.append((Question(one.query, place, pair, one.finding), reply))
                before += len(names)
        truths = [
            Truth.of_image(
                image.index,
                image.image_id,
                self.rows.patient_ids[self.row_of[image.image_id]],
                image.view,
                image.image_size,
                image.queries,
                labels=self.rows["label"][own],
                coverage=[image.regions.get(place) for place in range(len(image.queries))],
                gamma=gamma,
                shapes=[image.instances.get(place, ()) for place in range(len(image.queries))],
                agreement=np.stack([self.rows[name][own] for name in ("reader_dice", "reader_iou")], axis=-1),
            )
            for own, image in zip(rows, images, strict=True)
        ]
        return prediction, Truth.concatenate(truths)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Position of each image among those of `rows`."""
        return {image_id: row for row, image_id in enumerate(self.rows.image_ids)}

    @cached_property
    def pairs_of(self) -> list[NDArray[np.int64]]:
        """Positions of the rows of each image, in the order of its queries."""
        images = len(self.rows.image_ids)
        ends = np.bincount(self.rows.image, minlength=images).cumsum()
        return np.split(np.argsort(self.rows.image, kind="stable"), ends[:-1])[:images]

    @cached_property
    def queries(self) -> dict[str, list[Query]]:
        """Queries by image."""
        rows = self.rows
        findings = [None if name == PHRASES else name for name in (*self.results.findings, PHRASES)]
        texts = [*rows.texts, None]
        columns = (column.tolist() for column in (rows.query, rows.finding, rows.text, rows["language"]))
        queries = [
            Query(rows.queries[query], findings[finding], texts[text], language or None)
            for query, finding, text, language in zip(*columns, strict=True)
        ]
        pairs = zip(rows.image_ids, self.pairs_of, strict=True)
        return {image_id: [queries[pair] for pair in own] for image_id, own in pairs}


def _size_of(image: SavedImage) -> tuple[int, ...]:
    return () if image.saliency is None else image.saliency.shape[1:]
