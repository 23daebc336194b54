"""Files of a run: complete or absent, and free of NaN."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from xbench.cases import PackedCase
from xbench.results import atomic_writer, macro_mean
from xbench.rows import ImageRows


def test_an_interrupted_write_leaves_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), atomic_writer(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_macro_mean_leaves_out_what_does_not_exist():
    assert macro_mean([0.5, None, 1.0]) == 0.75
    assert macro_mean([None]) is None
    assert macro_mean([0.0, None]) == 0.0


def test_rows_are_joined_in_the_order_of_the_dataset():
    def part(*index):
        table = np.array(index, float)[:, None]
        ids = [f"image {i}" for i in index]
        return ImageRows(np.array(index), ids, [None, *ids[1:]], table.astype(np.int8), table > 1, *[table] * 12)

    joined = ImageRows.concatenate([part(2, 5), part(0), part(1, 4, 3)])
    assert joined.index.tolist() == [0, 1, 2, 3, 4, 5]
    assert joined.image_ids == [f"image {i}" for i in range(6)]
    assert joined.dice[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_results_json_is_strict_json(command, toy_config):
    run = command("test", "--config", toy_config, "--data.limit", "1")

    def refuse(constant):
        raise AssertionError(constant)

    results = json.loads((run.folder / "results.json").read_text(), parse_constant=refuse)
    assert results["schema"] == 1
    # One image without a Square: nothing to ground, one label only.
    assert results["grounding"]["per_class"]["Square"]["pointing_game"] is None
    assert results["classification"]["per_class"]["Square"]["auroc"] is None
    assert results["classification"]["macro"]["auroc"] is None
    assert results["classification"]["per_class"]["Square"]["accuracy"] == 1.0


def test_time_for_pictures_does_not_count_as_waiting_for_images(command, toy_config, monkeypatch):
    pack, slept = PackedCase.pack, []

    def slow(*arguments):
        slept.append(0.02)
        time.sleep(slept[-1])
        return pack(*arguments)

    monkeypatch.setattr(PackedCase, "pack", slow)
    run = command("test", "--config", toy_config)
    assert len(slept) > 10
    # Seconds are kept to the millisecond.
    assert run.results["provenance"]["seconds"]["keeping"] >= sum(slept) - 0.001
