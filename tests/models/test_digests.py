"""Digests of files: right after every change, and free as long as there is none."""

from __future__ import annotations

import hashlib
import os

from xbench.models import base


def test_a_file_is_read_again_when_it_has_changed_and_only_then(tmp_path, monkeypatch):
    read, digest = [], hashlib.file_digest

    def counted(file, name):
        read.append(file.name)
        return digest(file, name)

    monkeypatch.setattr(base.hashlib, "file_digest", counted)
    path = tmp_path / "weights"
    path.write_bytes(b"0123456789")
    for _ in range(3):
        assert base.file_sha256(path) == hashlib.sha256(b"0123456789").hexdigest()
    assert len(read) == 1

    # As many bytes, and the time of modification set back.
    before = path.stat()
    path.write_bytes(b"012345678X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert base.file_sha256(path) == hashlib.sha256(b"012345678X").hexdigest()

    # Another file under the same name, and the same name in another folder.
    path.unlink()
    path.write_bytes(b"another")
    assert base.file_sha256(path) == hashlib.sha256(b"another").hexdigest()
    other = tmp_path / "folder" / "weights"
    other.parent.mkdir()
    other.write_bytes(b"a third")
    for folder in (tmp_path, other.parent):
        monkeypatch.chdir(folder)
        content = (folder / "weights").read_bytes()
        assert base.file_sha256(type(path)("weights")) == hashlib.sha256(content).hexdigest()
    assert len(read) == 4
