from __future__ import annotations

import hashlib
import os
import shutil

import pytest
from places import ROOT
from toys import Squares

from xbench.models import Demo
from xbench.runtime import digests


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name in ("xbench", "callbacks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(digests, "_PACKAGE", tmp_path / "xbench")
    monkeypatch.setattr(digests, "_CALLBACKS", tmp_path / "callbacks")
    monkeypatch.setattr(digests, "_own", digests._own.__wrapped__)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("xbench/scoring/sweep.py", True),
        ("xbench/findings/prompts.yaml", True),
        ("xbench/models/weights/demo.safetensors", True),
        ("callbacks/evaluation.py", True),
        ("xbench/new.py", True),
        ("xbench/report/names.py", False),
        ("xbench/commands/bench/worker.py", False),
        ("xbench/py.typed", False),
    ],
)
def test_an_edit(package, name, counts):
    before = digests.source_sha256(Demo)
    with (package / name).open("ab") as file:
        file.write(b"#")
    assert (digests.source_sha256(Demo) != before) == counts


def test_classes_from_outside_count():
    assert digests.source_sha256(Demo) == digests.source_sha256()
    assert digests.source_sha256(Demo, Squares) != digests.source_sha256(Demo)
    assert digests.source_sha256(Squares, Demo) == digests.source_sha256(Demo, Squares)


def test_a_file_is_read_again_when_it_has_changed_and_only_then(tmp_path, monkeypatch):
    read, digest = [], hashlib.file_digest

    def counted(file, name):
        read.append(file.name)
        return digest(file, name)

    monkeypatch.setattr(digests.hashlib, "file_digest", counted)
    path = tmp_path / "weights"
    path.write_bytes(b"0123456789")
    for _ in range(3):
        assert digests.file_sha256(path) == hashlib.sha256(b"0123456789").hexdigest()
    assert len(read) == 1

    # As many bytes, and the time of modification set back.
    before = path.stat()
    path.write_bytes(b"012345678X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digests.file_sha256(path) == hashlib.sha256(b"012345678X").hexdigest()

    # Another file under the same name, and the same name in another folder.
    path.unlink()
    path.write_bytes(b"another")
    other = tmp_path / "folder" / "weights"
    other.parent.mkdir()
    other.write_bytes(b"a third")
    for content in (path, other):
        monkeypatch.chdir(content.parent)
        assert digests.file_sha256(type(path)("weights")) == hashlib.sha256(content.read_bytes()).hexdigest()
    assert len(read) == 4
