"""A journal gives back what a batch added, part by part."""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa

from xbench.runs.journal import BatchRecord, append_record, finished_batches, read_record


def test_a_table_that_is_kept_does_not_keep_the_others_of_its_batch(tmp_path):
    maps = pa.table({"map": np.random.default_rng(0).random(2**20)})
    rows = pa.table({"index": [0, 1]})
    for batch in range(3):
        append_record(tmp_path, BatchRecord(batch, {"rows": rows, "maps": maps}, (), ()))
    paths = [*finished_batches(tmp_path).values()]
    gc.collect()
    before, kept = pa.total_allocated_bytes(), [read_record(path).tables["rows"] for path in paths]
    gc.collect()
    assert all(table.equals(rows) for table in kept)
    # Buffers of Arrow's own pool; one that borrows from Python's bytes says so by its parent.
    assert pa.total_allocated_bytes() - before < 2**16
    assert all(buffer.size < 2**16 and _root(buffer).size < 2**16 for table in kept for buffer in _buffers(table))


def _buffers(table: pa.Table) -> list[pa.Buffer]:
    return [buffer for chunk in table["index"].chunks for buffer in chunk.buffers() if buffer is not None]


def _root(buffer: pa.Buffer) -> pa.Buffer:
    while buffer.parent is not None:
        buffer = buffer.parent
    return buffer
