from __future__ import annotations

import pytest
from hostile import configure

from xbench.data.workers.isolation import StallGuard
from xbench.runtime.errors import UserError


def test_five_in_a_row():
    guard = StallGuard("films")
    for timed_out in (True, True, True, True, False, True, True, True, True):
        guard.see("a film", timed_out)
    with pytest.raises(UserError, match=r"films: 5 images in a row \(last: the fifth\) took longer"):
        guard.see("the fifth", True)


def test_the_run_ends_and_goes_on_once_the_files_are_back(command, tmp_path, monkeypatch):
    options = {"num_workers": 2, "cache": str(tmp_path / "cache"), "on_error": "skip"}
    configuration = configure(tmp_path / "hostile.yaml", tmp_path / "files", **options)
    monkeypatch.setenv("FAULTS", " ".join(f"hang:{index}" for index in range(7, 12)))
    stopped = command("test", "--config", configuration, "--data.timeout", "0.3", status=1)
    assert "5 images in a row (last: square-011) took longer than --data.timeout" in " ".join(stopped.errors.split())
    monkeypatch.delenv("FAULTS")
    again = command("test", "--config", configuration, "--resume", "true", status=0)
    (results,) = configuration.parent.glob("runs/*/*/results.json")
    assert '"batches_of_earlier_attempts": 5' in results.read_text()
    assert again.output.count("Skipped 3 unreadable images") == 1
