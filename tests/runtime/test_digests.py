"""The digest of the code follows whatever makes numbers, and nothing else."""

from __future__ import annotations

import shutil

import pytest
from places import ROOT
from toys import Squares

import xbench.runtime.digests
from xbench.models import Demo


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package's code, and a function that gives its digest."""
    own = ROOT / "xbench"
    root = tmp_path / "xbench"
    shutil.copytree(own, root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(own.parent / "callbacks", tmp_path / "callbacks", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(xbench.runtime.digests, "_PACKAGE", root)
    monkeypatch.setattr(xbench.runtime.digests, "_CALLBACKS", tmp_path / "callbacks")
    monkeypatch.setattr(xbench.runtime.digests, "_own", xbench.runtime.digests._own.__wrapped__)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("xbench/metrics/functional.py", True),
        ("xbench/protocol/prompts.yaml", True),
        ("xbench/models/weights/demo.safetensors", True),
        ("callbacks/evaluation.py", True),
        ("xbench/new.py", True),
        ("xbench/report/names.py", False),
        ("xbench/commands/bench/jobs.py", False),
        ("xbench/py.typed", False),
    ],
)
def test_an_edit(package, name, counts):
    before = xbench.runtime.digests.source_sha256(Demo)
    with (package / name).open("ab") as file:
        file.write(b"#")
    assert (xbench.runtime.digests.source_sha256(Demo) != before) == counts


def test_classes_from_outside_count():
    assert xbench.runtime.digests.source_sha256(Demo) == xbench.runtime.digests.source_sha256()
    assert xbench.runtime.digests.source_sha256(Demo, Squares) != xbench.runtime.digests.source_sha256(Demo)
    assert xbench.runtime.digests.source_sha256(Squares, Demo) == xbench.runtime.digests.source_sha256(Demo, Squares)
