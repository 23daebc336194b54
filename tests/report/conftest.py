"""What the tests of reports share."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import write_run


@pytest.fixture(scope="session")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with finished runs of CLIP, KAD and CARZero on ChestX-ray14, from the least skilled to the most."""
    root = tmp_path_factory.mktemp("three_runs")
    write_run(root, "clip", skill=0.2, recognition=0.3)
    write_run(root, "kad", skill=0.6, recognition=1.2)
    write_run(root, "carzero", skill=0.9, recognition=2.0)
    return root
