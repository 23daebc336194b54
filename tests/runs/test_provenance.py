from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from toys import Squares


@pytest.mark.parametrize("from_configuration", [False, True])
def test_options_of_a_dataset_are_plain_and_name_no_place(tmp_path, from_configuration):
    given = {"images": 3, "widths": (64, 90), "num_workers": 0, "gamma": 0.25, "split": "test"}
    strange = {"least": float("inf"), "draw": print, "name": {"a": (1, None)}}
    strange |= {"root": tmp_path, "files": [str(tmp_path)]}
    data = Squares(**given)
    options = data.options(given | strange if from_configuration else None)
    json.dumps(options, allow_nan=False)
    assert options.items() >= {"images": 3, "widths": [64, 90], "gamma": 0.25, "split": "test"}.items()
    assert not options.keys() & {"num_workers", "cache", "timeout", "root", "files"}
    if from_configuration:
        shown = {"least": "inf", "draw": "builtins.builtin_function_or_method", "name": {"a": [1, None]}}
        assert options.items() >= shown.items()


def test_whatever_a_model_says_of_itself_can_be_written(command, toy_config, monkeypatch):
    strange = {
        "weight": float("nan"),
        "size": np.float32(1.5),
        "word": "\ud800",
        "layers": {1: print},
        "path": (Path("x"),),
    }
    monkeypatch.setattr("toys.Brightness.provenance", lambda self: strange)
    run = command("test", "--config", toy_config, "--data.limit", "2", status=0)
    expected = {"weight": "nan", "size": "1.5", "word": "\\ud800", "path": ["x"]}
    assert run.results["provenance"]["model"].items() >= expected.items()
