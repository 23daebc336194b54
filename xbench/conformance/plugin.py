"""The options of the conformance tests. pytest loads this in every session, so nothing heavy is imported."""

from __future__ import annotations

import pytest


def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Add `--model` and `--model-args` where these tests are asked for; elsewhere a `--model` may be another's."""
    if not any("xbench.conformance" in arg or "xbench/conformance" in arg for arg in args):
        return
    group = parser.getgroup("xbench", "conformance of a model (--pyargs xbench.conformance)")
    group.addoption("--model", metavar="PACKAGE.CLASS", help="the model to test")
    group.addoption("--model-args", metavar="YAML", default="{}", help="arguments of its constructor")
