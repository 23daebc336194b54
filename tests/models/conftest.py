"""Parity with the numbers of the authors is never skipped where nobody would look."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what is marked `parity` and skipped, under continuous integration."""
    report = yield
    if report.skipped and item.get_closest_marker("parity") and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped under CI, where parity with official numbers must be tested"
    return report
