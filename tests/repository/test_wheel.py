from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from places import ROOT

BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    for name in ("xbench", "callbacks", "configs"):
        shutil.copytree(ROOT / name, made / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made / "source")

    def run(*words: object, cwd: Path) -> None:
        done = subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]

    run("-c", BUILD, "build_sdist", made, cwd=made / "source")
    (archive,) = made.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(made, filter="data")
    run("-c", BUILD, "build_wheel", made, cwd=made / archive.name.removesuffix(".tar.gz"))
    (wheel,) = made.glob("*.whl")
    run("-m", "pip", "install", "--no-deps", "--no-index", "--target", made / "site", wheel, cwd=made)
    return made / "site"


def files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file(site: Path) -> None:
    expected = {f"{name}/{file}" for name in ("callbacks", "configs") for file in files(ROOT / name)}
    assert files(site / "xbench") == files(ROOT / "xbench") | expected


def test_the_wheel_runs_the_demo(site: Path, tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(site)}
    few = ("--data.images", "24", "--data.num_workers", "0", "--trainer.logger", "false")
    program = (sys.executable, str(site / "bin" / "xbench"))
    for words in (("test", "--config", "demo", *few), ("report", "runs", "--figures", "false")):
        done = subprocess.run([*program, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs" / "report" / "index.html").is_file()
    asked = (sys.executable, "-c", "import xbench; print(xbench.__file__)")
    assert subprocess.check_output(asked, cwd=tmp_path, env=env, text=True).startswith(str(site))
