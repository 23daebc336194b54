"""Annotated boxes of another split or source, for instruments that know where a finding usually lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from xbench.geometry.shapes import Shape
from xbench.predictions.answer import Box
from xbench.predictions.files import named
from xbench.runtime.errors import UserError

_MOST_ROWS = 2 * 10**7


def read_annotated(path: Path) -> tuple[dict[str, list[Box]], frozenset[str]]:
    """Read the boxes around annotated items, by finding, and the names of their images.

    Args:
        path: `truth.parquet` of a run on other images, or the run's folder.

    Raises:
        UserError: It cannot be read, or holds what no run writes.
    """
    file = path / "truth.parquet" if path.is_dir() else path
    found: dict[str, list[Box]] = {}
    with named(file):
        table = pq.ParquetFile(file)
        if table.metadata.num_rows > _MOST_ROWS:
            raise ValueError(f"it says that it has {table.metadata.num_rows} rows")
        names = ["image_id", "finding", "shapes"]
        if lacking := {*names} - {*table.schema_arrow.names}:
            raise ValueError(f"it has no column {min(lacking)}, so it is no truth.parquet of a run")
        rows = table.read(names).to_pylist()
        for row in rows:
            for values in row["shapes"]:
                item = Shape.checked(**values | {"coordinates": np.array(values["coordinates"], np.float64)})
                if (box := item.box()) is not None:
                    found.setdefault(str(row["finding"]), []).append(Box(*box))
    if not found:
        raise UserError(f"{file} has no annotated item, so it does not say where findings lie.", exit_status=2)
    return found, frozenset(str(row["image_id"]) for row in rows)
