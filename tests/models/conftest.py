"""What the tests of several models share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from book_reference import write_bert


@pytest.fixture(scope="session")
def golden_bert() -> Iterator[str]:
    """The text encoder of the golden vectors of MedKLIP and MAVL; it takes seconds to draw, and 430 MB of disk."""
    with TemporaryDirectory() as folder:
        yield write_bert(Path(folder))
