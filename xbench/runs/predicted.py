"""Stored predictions of `predict` or `test`, as input of `score`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.geometry.grid import MapScale, Upsampling, View
from xbench.predictions.asking import TEXTS
from xbench.predictions.source import Map, Names, Source
from xbench.runs.files import IMAGES, PREDICTIONS, SCHEMAS, Table, reading
from xbench.runs.images import crop_of, map_of
from xbench.runtime.errors import UsageError


def holds_predictions(path: Path) -> bool:
    """Return whether a folder, or a file of any name, holds predictions of `predict` or `test`."""
    if path.is_dir():
        return (path / PREDICTIONS).is_file()
    try:
        return bool(pq.read_schema(path).equals(SCHEMAS[PREDICTIONS]))
    except (OSError, pa.ArrowException):
        return False


class StoredPredictions(Source):
    """Stored predictions with their own geometry, upsampling and scale; UserError for answers and unreadable files."""

    def __init__(self, path: Path, names: Names) -> None:
        table = path / PREDICTIONS if path.is_dir() else path
        self._folder, self.files = table.parent, [table, table.parent / IMAGES]
        with reading(self._folder):
            file, images = Table(table, PREDICTIONS), Table(self.files[1])
            columns = ("image_id", "query", "asked", "condition", "logit", "probability")
            rows, drawn, seen, strange = file.read(columns), _drawn(file), set(), []
            wanted_images, wanted_queries = {*names.images}, {*names.findings}
            scores: dict[tuple[str, str], tuple[float, float]] = {}
            self._places: dict[str, dict[str, int]] = {}
            of_rows = zip(*(rows[name].to_pylist() for name in columns), strict=True)
            for place, (image_id, query, asked, condition, logit, probability) in enumerate(of_rows):
                if asked in TEXTS:
                    continue
                if asked is not None:
                    again = "`xbench rescore` reads them again, by another --family or --frame"
                    raise UsageError(f"--predictions {path} holds answers of a model: {again}.")
                if not (known := image_id in wanted_images and query in wanted_queries):
                    strange.append(f"{image_id}, {query}")
                if condition != "":
                    continue
                if (image_id, query) in seen:
                    raise ValueError(f"{table.name} has two rows of an image and a finding")
                seen.add((image_id, query))
                if known and None not in (logit, probability):
                    scores[image_id, query] = logit, probability
                if known and drawn[place]:
                    self._places.setdefault(image_id, {})[query] = place
            super().__init__(scores, unknown=strange)
            self.maps = {(image_id, query) for image_id, of_image in self._places.items() for query in of_image}
            names_of_images = images.read(["image_id"])["image_id"].to_pylist()
            self._image = {image_id: place for place, image_id in enumerate(names_of_images)}
            self._table, self._images = file, images
            model = file.stated("depends_on")["model"]
            self.upsampling: Upsampling = model["saliency_upsample"]
            self.map_scale: MapScale = model["map_scale"]
            self.map_sigma = float(model.get("map_sigma", 0))  # standard deviation of their smoothing in cells
            if self.upsampling not in get_args(Upsampling) or self.map_scale not in get_args(MapScale):
                raise ValueError(f"{table.name} names an unknown upsampling or map_scale")

    def read(self, image: str) -> dict[str, Map]:
        """Return the maps of an image by finding."""
        with reading(self._folder):
            return {
                query: map_of(self._table.row(place)).copy() for query, place in self._places.get(image, {}).items()
            }

    def shown(self, image: str) -> tuple[View, str | None]:
        """Return the part of the image that its maps show, and the digest of the model input."""
        with reading(self._folder):
            row = self._images.row(self._image[image])
            return crop_of(row), row["sha256"]


def _drawn(file: Table) -> NDArray[np.bool_]:
    """Return which rows have a map (R,), reading maps only in groups with missing ones."""
    parts = [np.zeros(0, np.bool_)]
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        columns = (about.column(place) for place in range(about.num_columns))
        statistics = next(one.statistics for one in columns if one.path_in_schema.startswith("map."))
        if statistics is not None and statistics.has_null_count and statistics.null_count == 0:
            parts.append(np.ones(about.num_rows, np.bool_))
        else:
            parts.append(np.asarray(file.read_row_group(group, ["map"])["map"].is_valid()))
    return np.concatenate(parts)
