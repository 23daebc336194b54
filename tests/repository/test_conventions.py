"""What stands beside the code names only what there is: reference, citation, workflow, containers, notebook."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml
from places import ROOT
from synthetic import write_run

import xbench

sys.path.append(str(ROOT / "scripts"))
PAGE = import_module("api_names").on_page_markdown((ROOT / "docs/api.md").read_text())
REFERENCE = re.findall(r"^::: (?:callbacks|(xbench))\.(\S+)$", PAGE, re.M)


@pytest.mark.parametrize("name", [f"xbench.{name}" if own else f"xbench.callbacks.{name}" for own, name in REFERENCE])
def test_the_reference_names_what_there_is(name):
    assert resolve_name(name).__doc__


@pytest.mark.parametrize("package", ["models", "data", "metrics"])
def test_the_reference_has_every_public_name(package):
    source = (ROOT / f"xbench/{package}/__init__.py").read_text()
    public = re.findall(r" as (\w+)$", source, re.M) or import_module(f"xbench.{package}").__all__
    missing = {f"{package}.{name}" for name in public} - {name for _, name in REFERENCE}
    assert public and not missing, f"docs/api.md lacks {sorted(missing)}"


def test_citation_and_changelog_name_this_version():
    released = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert (
        released[0] == ("Unreleased", "")
        and released[1][0] == xbench.__version__
        and all(day for _, day in released[1:])
    )
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (xbench.__version__, "Apache-2.0")
    assert citation["preferred-citation"]["url"].endswith("/2510.19599")


def test_the_words_of_all_pages_stay_within_their_budget():
    """Lower the budget when words go. `git ls-files '*.md' | xargs cat | wc -w` counts the same."""
    pages = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    pages = pages or [*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *ROOT.glob("docs/*.md")]
    assert sum(len((ROOT / page).read_text(encoding="utf-8").split()) for page in pages) <= 30_000


def test_the_workflow_runs_targets_of_the_makefile():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = " ".join([*commands, *jobs["check"]["strategy"]["matrix"]["targets"]])
    named = set(re.findall(r"\b[a-z]+\b(?!\.)", re.sub(r"\${{.*?}}|\bmake\b", "", targets)))
    assert named == {"lint", "types", "docs", "test"}
    assert named <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("cpu", [False, True], ids=["with-cuda", "cpu"])
def test_the_demo_says_what_it_does_and_ends_with_the_report(tmp_path, cpu):
    words = ["make", "--no-print-directory", "--dry-run", "demo", f"VENV={tmp_path}", *(["CPU=1"] if cpu else [])]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--extra-index-url" not in said and ("gigabytes" not in said) == cpu
    # PyTorch comes first, alone, and from one index; everything else is checked against hashes.
    pins = re.findall(r"^((?:torch|torchvision)==.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    (torch,) = re.findall(r"pip install (.*?) \|\| {", said) if cpu else [""]
    assert cpu is torch.startswith("--disable-pip-version-check --quiet --no-deps --retries 0 ")
    assert cpu is ("Leave out CPU=1" in said) is ("--index-url https://download.pytorch.org/whl/cpu" in torch)
    found = subprocess.run(f"echo {torch}", shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found.split()[-2:] == [f"{pin}+cpu" for pin in pins] if cpu else not found.strip()
    assert said.index("--constraint hashes.txt --requirement") > said.index(torch)
    assert re.findall(r"Step (\d) of 3: .* [Aa]bout ", said) == ["1", "2", "3"]
    assert said.rstrip().endswith("xbench report runs")


def test_nothing_comes_from_two_indexes():
    files = [*ROOT.glob("*file"), *ROOT.glob("docs/*.md"), *ROOT.glob("containers/*"), *ROOT.glob(".*/**/*.yml")]
    assert len(files) > 20
    assert not [file for file in files if re.search(r"extra.index.url", file.read_text(), re.I)]
    for line in re.findall(r"uses: (.*)", (ROOT / ".github/workflows/ci.yml").read_text()):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", line)


def test_each_pinned_version_has_hashes():
    pins = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    blocks = re.findall(
        r"^(\S+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", (ROOT / "hashes.txt").read_text(), re.M
    )
    assert [pin for pin, _ in blocks] == pins


def test_containers_copy_what_there_is():
    docker = (ROOT / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", docker, re.M) for word in line.split()]
    files = (ROOT / "containers/xbench.def").read_text().partition("%files\n")[2].partition("\n\n")[0]
    named = [line.split()[0] for line in files.splitlines()]
    assert all((ROOT / name).exists() for name in [*copied, *named])
    # Folders of the package, and what setup.cfg reads.
    assert {"xbench", "callbacks", "configs", "README.md", "LICENSE", "setup.cfg", "pyproject.toml"} <= {*named}
    left_out = {line.rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert not left_out & {*copied, *named}


@pytest.mark.parametrize("index", ["", "https://wheels.example/cpu"])
def test_a_container_installs_the_pinned_libraries(tmp_path, index):
    for name in ("constraints.txt", "hashes.txt", "setup.cfg", "containers/install.sh", "containers/requirements.py"):
        (tmp_path / Path(name).name).write_text((ROOT / name).read_text())
    program = tmp_path / "bin/python"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" != -m ] && exec {sys.executable} "$@"\necho "$@" >>pip.log\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "install.sh", "libraries", index], cwd=tmp_path, env={"PATH": path}, check=True)
    lines = (tmp_path / "pip.log").read_text().splitlines()
    assert len(lines) == (3 if index else 2)
    assert lines[-1].endswith("--constraint hashes.txt --requirement requirements.txt")
    pins = re.findall(r"^(?:torch|torchvision)==.*$", (ROOT / "constraints.txt").read_text(), re.M)
    if index:
        assert index in lines[1] and lines[1].split()[-2:] == pins
    needed = (tmp_path / "requirements.txt").read_text().split("\n")
    assert any(line.startswith("torch ") for line in needed) and not any("#" in line for line in needed)


def test_pictures_are_there_described_and_small():
    shown = [
        (page, said, page.parent / target)
        for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
        for said, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
    ]
    for page, said, picture in shown:
        assert said and picture.is_file() and picture.stat().st_size < 200_000, f"{page}: {picture}"
    assert {picture.resolve() for *_, picture in shown} >= {*(ROOT / "docs/assets").glob("*.png")}


notebooks = import_module("notebooks")
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_on_any_run(tmp_path, path):
    notebook = json.loads(path.read_text())
    before = [[output["output_type"] for output in cell.get("outputs", ())] for cell in notebook["cells"]]
    notebooks.run(notebook, RUN=write_run(tmp_path, "clip"))
    after = [[output["output_type"] for output in cell.get("outputs", ())] for cell in notebook["cells"]]
    assert after == before, "python scripts/notebooks.py writes the outputs anew"
    page, figures = notebooks.as_page(notebook, path.stem)
    assert len(figures) == 2 and all(
        png.startswith(b"\x89PNG") and f"({name})" in page for name, png in figures.items()
    )
    assert "Nodule" in page and "0x" not in page
