"""The files of a run that a named protocol gives: its numbers, and the table of pairs that they follow from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.runs.files import WRITING, Table, reading
from xbench.runtime.files import atomic_writer

PROTOCOLS = "protocols"
"""The folder, in that of a run, with `NAME.json` and `NAME.parquet` of each protocol."""


def write_protocol(run: Path, name: str, numbers: Mapping[str, Any], table: Mapping[str, NDArray[Any]]) -> Path:
    """Write the numbers of a protocol and its table of pairs, where NaN is null; return the numbers' path."""
    folder = run / PROTOCOLS
    folder.mkdir(exist_ok=True)
    columns = {}
    for key, values in table.items():
        if values.ndim == 2:
            columns[key] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        elif values.dtype == object and any(isinstance(one, list) for one in values):
            columns[key] = pa.array(values.tolist(), pa.list_(_type_of(values)))
        else:
            columns[key] = pa.array(values, from_pandas=values.dtype.kind == "f")
    with atomic_writer(folder / f"{name}.parquet") as file:
        pq.write_table(pa.table(columns), file, **WRITING)
    path = folder / f"{name}.json"
    with atomic_writer(path) as file:
        file.write(f"{json.dumps(numbers, indent=1, allow_nan=False, ensure_ascii=False)}\n".encode())
    return path


def _type_of(lists: NDArray[Any]) -> pa.DataType:
    """Return the type of what lists hold; of empty ones alone float64."""
    first = next((value for one in lists for value in one), 0.0)
    return pa.array([first]).type


def stored_protocols(run: Path) -> list[str]:
    """Return the names of the protocols that a run was scored by."""
    return sorted(path.stem for path in (run / PROTOCOLS).glob("*.json"))


def read_protocol(run: Path, name: str) -> dict[str, Any]:
    """Read the numbers of a protocol.

    Raises:
        UserError: The file cannot be read, or holds what no run writes.
    """
    with reading(run):
        content = json.loads((run / PROTOCOLS / f"{name}.json").read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("schema") != 1 or content.get("protocol") != name:
            raise ValueError(f"{PROTOCOLS}/{name}.json holds what no run writes")
        return content


def read_protocol_pairs(run: Path, name: str) -> dict[str, NDArray[Any]]:
    """Read the table of pairs of a protocol by column; what is null is NaN.

    Raises:
        UserError: The file cannot be read.
    """
    with reading(run):
        table = Table(run / PROTOCOLS / f"{name}.parquet").read()
        columns = {}
        for key in table.column_names:
            values = table[key].combine_chunks()
            if pa.types.is_fixed_size_list(values.type):
                columns[key] = np.asarray(values.flatten()).reshape(len(values), -1)
            else:
                columns[key] = values.to_numpy(zero_copy_only=False)
        return columns
