"""The conformance tests on the seven models of the package, in the layouts of their authors and with drawn weights."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from deterministic_checkpoints import MODELS, write_checkpoint
from small_networks import shrink

from xbench.commands.configs import shipped

# Sides of input in pixels that give maps of 4 x 4; at 224 the image encoders would take most of the time.
SIDES = {"clip": 128, "kad": 128}


class Outcomes:
    """What became of the tests, those of each part of a test that failed with the account of it."""

    def __init__(self) -> None:
        self.passed = 0
        self.others: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.others.append(f"{report.nodeid} {report.outcome}\n{report.longreprtext}")
        elif report.when == "call":
            self.passed += 1


@pytest.mark.parametrize("model", MODELS)
def test_the_models_of_the_package_conform(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    # The inner run would take from the path what both put there.
    monkeypatch.setattr(sys, "path", [*sys.path])
    outcomes = Outcomes()
    with TemporaryDirectory() as folder:
        arguments = {
            **write_checkpoint(model, Path(folder)),
            "image_size": SIDES.get(model, 64),
        }
        path = yaml.safe_load(shipped("models")[model].read_text())["class_path"]
        options = ("--pyargs", "xbench.conformance", "--model", path, "--model-args", json.dumps(arguments))
        # The last of these would collect all garbage ten times.
        without = ["-pno:cacheprovider", "-pno:faulthandler", "-pno:unraisableexception"]
        pytest.main([*without, *options], plugins=[outcomes])
    gc.collect()
    assert outcomes.others == []
    assert outcomes.passed == 17
