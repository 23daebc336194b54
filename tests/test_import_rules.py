"""Dependencies point one way, and the package lists its folders."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Each part may import only what stands to its right.
ALLOWED = {
    "types": {"coverage"},
    "coverage": set(),
    "stopwatch": set(),
    "errors": set(),
    "complaints": set(),
    "command_parser": {"errors"},
    "options": {"complaints", "errors", "shipped"},
    "faults": {"errors"},
    "processes": set(),
    "results": set(),
    "findings": set(),
    "parquet": set(),
    "rows": {"parquet", "results"},
    "cases": {"coverage", "errors", "parquet", "results"},
    "scoring": {"geometry", "metrics", "rows", "stopwatch", "types"},
    "journal": {"cases", "coverage", "errors", "rows", "scoring", "types"},
    "verify": {"cases", "errors", "results", "rows"},
    "reproduce": {"command_parser", "errors", "results"},
    "stored_run": {"cases", "coverage", "errors", "geometry", "metrics", "provenance", "results", "rows", "types"},
    "rescore": {
        "cases",
        "command_parser",
        "errors",
        "metrics",
        "processes",
        "provenance",
        "results",
        "rows",
        "scoring",
        "shipped",
        "stopwatch",
        "stored_run",
        "summary",
    },
    "summary": {"metrics", "results", "rows", "types"},
    "report": {
        "cases",
        "command_parser",
        "coverage",
        "errors",
        "findings",
        "geometry",
        "metrics",
        "published",
        "results",
        "rows",
        "wandb_session",
    },
    "wandb_session": {"errors"},
    "distributed": set(),
    "progress_bar": {"distributed"},
    "lazy": set(),
    "cache": set(),
    "phantom": {"findings"},
    "published": {"findings"},
    "geometry": {"coverage"},
    "preprocessing": {"results", "types"},
    "prompts": {"errors"},
    "shipped": {"errors", "configs"},
    "metrics": {"geometry"},
    "models": {"lazy", "cache", "types", "errors", "findings", "geometry", "preprocessing", "prompts", "results"},
    "data": {
        "lazy",
        "cache",
        "coverage",
        "types",
        "errors",
        "preprocessing",
        "findings",
        "phantom",
        "distributed",
        "processes",
        "results",
    },
    "contact_sheet": {"data", "errors"},
    "prepare": {"data", "errors", "preprocessing"},
    "check": {"contact_sheet", "data", "errors", "models", "preprocessing", "published", "types"},
    "convert": {"complaints", "errors", "models", "shipped"},
    "listing": {"errors", "findings", "shipped"},
    "sources": {"configs"},
    "provenance": {"data", "models", "sources"},
    "bench": {
        "check",
        "command_parser",
        "data",
        "errors",
        "models",
        "provenance",
        "report",
        "results",
        "rows",
        "run",
        "shipped",
        "sources",
    },
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "xbench"}


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_parts_import_only_what_they_may(part):
    files = list((ROOT / "xbench").glob(f"{part}/**/*.py")) or [ROOT / "xbench" / f"{part}.py"]
    for path in files:
        for name in imports(path):
            parts = name.split(".")
            assert len(parts) == 1 or parts[1] in ALLOWED[part] | {part}, f"{path.name} imports {name}"


def test_nothing_in_the_package_imports_callbacks():
    # The conformance tests are no part that others build on: they stand above both.
    for path in {*(ROOT / "xbench").rglob("*.py")} - {*(ROOT / "xbench" / "conformance").iterdir()}:
        assert not [name for name in imports(path) if name.startswith("xbench.callbacks")], path


def test_setup_lists_every_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    existing = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "xbench").rglob("__init__.py")}
    assert listed == existing | {"xbench.callbacks", "xbench.configs"}


@pytest.mark.parametrize("words", [["--help"], ["list"], ["bench", "--models", "klip"]])
def test_help_and_list_import_nothing_heavy(words):
    code = (
        f"import sys; from xbench.cli import main; main({words!r}); "
        "print(sorted({'torch', 'lightning'} & {*sys.modules}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
