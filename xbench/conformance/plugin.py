"""Options of the conformance tests. pytest loads this module in every session, so it imports nothing heavy."""

from __future__ import annotations

import pytest


def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Add `--model` and `--model-args` if these tests are requested; other plug-ins may own a `--model`."""
    if not any("xbench.conformance" in arg or "xbench/conformance" in arg for arg in args):
        return
    group = parser.getgroup("xbench", "conformance of a model (--pyargs xbench.conformance)")
    group.addoption("--model", metavar="PACKAGE.CLASS", help="the model to test")
    group.addoption("--model-args", metavar="YAML", default="{}", help="arguments of its constructor")
