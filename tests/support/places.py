"""Folders of this repository that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""

SUPPORT = ROOT / "tests" / "support"
"""Helpers of the tests; a process that loads their classes needs it in PYTHONPATH."""

SHARED = ROOT.parent / "shared"
"""Real excerpts and golden vectors beside the repository, absent from a plain clone."""
