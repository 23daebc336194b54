from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from synthetic import write_run

from xbench.runtime import start_up


@pytest.fixture
def fresh(monkeypatch) -> Iterator[None]:
    """Let torchmetrics be imported once more, and put the one that all others use back afterwards."""
    used = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchmetrics"}
    for name in used:
        del sys.modules[name]
    start_up.import_lean_torchmetrics()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchmetrics"]:
        del sys.modules[name]
    sys.modules.update(used)


def test_the_rest_of_torchmetrics_comes_when_it_is_asked_for(fresh):
    import torchmetrics
    from torchmetrics import Metric

    assert "torchmetrics.functional" not in sys.modules
    assert torchmetrics.__version__
    with pytest.raises(AttributeError, match="no attribute '__wrapped__'"):
        torchmetrics.__wrapped__  # noqa: B018
    assert issubclass(torchmetrics.AUROC, object)
    assert "torchmetrics.functional" in sys.modules
    assert issubclass(torchmetrics.MeanMetric, Metric)
    assert torchmetrics.Metric is Metric
    with pytest.raises(AttributeError):
        torchmetrics.nothing  # noqa: B018


def test_a_part_of_torchmetrics_is_imported_as_ever(fresh):
    from torchmetrics.classification import BinaryAUROC
    from torchmetrics.metric import Metric

    assert issubclass(BinaryAUROC, Metric)


def test_another_torchmetrics_is_imported_whole(fresh, monkeypatch):
    monkeypatch.setattr(start_up, "_LEAN", {"Metric": "not_in_this_version"})
    import torchmetrics
    from torchmetrics import Metric

    assert "torchmetrics.functional" in sys.modules
    assert issubclass(torchmetrics.MeanMetric, Metric)


def test_rescore_imports_no_lightning_and_nothing_that_models_need():
    script = (
        "import sys\nfrom xbench.runtime.start_up import import_lean_torchmetrics\nimport_lean_torchmetrics()\n"
        "import xbench.commands.rescore\n"
        "heavy = 'lightning', 'numba', 'torchvision', 'transformers', 'scipy', 'albumentations', 'wandb'\n"
        "found = {*heavy} & {*sys.modules}\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (("report", "RUN", "--out", "report"), {"torch", "matplotlib.figure", "scipy.stats", "albumentations"}),
        (("verify", "RUN"), {"torch", "lightning"}),
    ],
    ids=["report", "verify"],
)
def test_what_reads_runs_needs_no_torch(tmp_path, words, heavy):
    run = write_run(tmp_path, "kad", images=16)
    script = (
        "import sys\nfrom xbench.cli import main\nassert main(sys.argv[1:]) == 0\n"
        f"found = {heavy} & {{*sys.modules}}\nassert not found, found"
    )
    words = [sys.executable, "-c", script, *(run if word == "RUN" else word for word in words)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_failed_download_is_reported_once():
    """The first use of huggingface_hub sets the level of its log."""
    script = (
        "from xbench.runtime.start_up import import_lean_torchmetrics\nimport_lean_torchmetrics()\n"
        "from xbench.commands.run import silence_libraries\nsilence_libraries()\n"
        "from huggingface_hub.utils import logging\nassert logging.get_verbosity() == logging.ERROR\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
