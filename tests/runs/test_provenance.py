from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from toys import Brightness, Squares

from xbench.report.runs import collect
from xbench.runtime.digests import file_sha256


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


class Loaded(Brightness):
    stated = "gain fault"

    def __init__(self, checkpoint: str = "", crop: bool = False, words: Sequence[str] = (), split: str = "a"):
        super().__init__(crop=crop)


def test_a_report_tells_own_models_apart_by_the_files_and_values_of_their_options(command, toy_config, tmp_path):
    toy_config.write_text(toy_config.read_text().replace("toys.Brightness", f"{__name__}.Loaded"))
    (tmp_path / "b.pt").write_text("other weights")
    usual = "--config", toy_config, "--data.limit", "4", "--model.checkpoint", toy_config
    variants = ["checkpoint=b.pt", f"words=[{toy_config}]", "words=[b.pt]", "split=b", "crop=true", "split=a"]
    for given in [*variants, variants[-1]]:
        run = command("test", *usual, f"--model.{given}", status=0)
    assert run.results["provenance"]["model"].items() >= {"gain": 8.0, "fault": "none"}.items()
    assert run.results["provenance"]["checkpoint_sha256"] == file_sha256(toy_config)
    found = collect([tmp_path / "runs"])
    assert len(found.runs) == len({one.label for one in found.runs}) == len(variants) and len(found.set_aside) == 1
