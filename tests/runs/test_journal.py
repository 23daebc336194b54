from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from xbench.runs.files import PAIRS, PREDICTIONS, SCHEMAS
from xbench.runs.folder import open_journaled_folder
from xbench.runs.journal import BatchRecord, all_batches, append_records, finished_batches, read_record
from xbench.scoring.rows import column_of, nulls
from xbench.types import Note


def test_a_table_that_is_kept_does_not_keep_the_others_of_its_batch(tmp_path):
    cells = column_of(np.random.default_rng(0).random((1, 2**20)), pa.list_(pa.float32()))
    maps = pa.table(nulls(SCHEMAS[PREDICTIONS], 1) | {"map": cells})
    rows = pa.table(nulls(SCHEMAS[PAIRS], 2) | {"index": pa.array([0, 1])})
    for batch in range(3):
        append_records(tmp_path / "0.arrow", BatchRecord(batch, {PAIRS: rows, PREDICTIONS: maps}, (), ()))
    finished = finished_batches(tmp_path)
    gc.collect()
    before, kept = pa.total_allocated_bytes(), [read_record(*one).tables[PAIRS] for one in finished.items()]
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


def test_the_record_of_the_last_attempt_counts(tmp_path):
    same = SimpleNamespace(broadcast=lambda choice: choice)
    trainer = SimpleNamespace(is_global_zero=True, world_size=1, default_root_dir=tmp_path, callbacks=[], strategy=same)
    run = open_journaled_folder(trainer, "model", "data", lambda: {}, batches=2, resume=False)
    rows = pa.table(nulls(SCHEMAS[PAIRS], 2))
    for batch in range(2):
        append_records(run.part(0), BatchRecord(batch, {PAIRS: rows}, (), ()))
    again = open_journaled_folder(trainer, "model", "data", lambda: {}, batches=2, resume=True)
    assert again.path == run.path and [*again.finished] == [0]
    append_records(again.part(0), BatchRecord(1, {PAIRS: rows}, (), notes := (Note("again", "a"),)))
    assert [*all_batches(run.journal, 2)] == [BatchRecord(0, {PAIRS: pa.concat_tables([rows] * 2)}, (), notes)]
