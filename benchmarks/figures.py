"""Figures, what is wanted of each, and how both are written down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

__all__ = ["Figure", "Measured", "Target", "at_least", "at_most", "missed", "summary", "table"]


_SIGNS = {"at most": "≤", "at least": "≥"}


@dataclass(frozen=True)
class Target:
    """What is wanted of a figure."""

    direction: Literal["at most", "at least"]
    limit: float


@dataclass(frozen=True)
class Figure:
    """One number of the benchmark.

    Attributes:
        name: What is measured.
        unit: `x` for a ratio.
        target: What is wanted of it; None where nobody asked for anything.
        note: Why the target is missed and what would be needed; printed only when it is.
        value: None until it is measured.
    """

    name: str
    unit: str = "x"
    target: Target | None = None
    note: str = ""
    value: float | None = None

    @property
    def verdict(self) -> Literal["met", "missed", "not measured", ""]:
        """How the figure, as it is shown, stands to its target."""
        if self.value is None:
            return "not measured"
        if self.target is None:
            return ""
        value, limit = float(_digits(self.value).replace(",", "")), self.target.limit
        return "met" if (value <= limit if self.target.direction == "at most" else value >= limit) else "missed"

    def row(self) -> tuple[str, ...]:
        """Name, value, target and verdict, as they are shown."""
        value = "" if self.value is None else f"{_digits(self.value)} {self.unit}".removesuffix(" x")
        target = "" if self.target is None else f"{_SIGNS[self.target.direction]} {self.target.limit:g}"
        return self.name, value, target, f"**{self.verdict}**" if self.verdict == "missed" else self.verdict


@dataclass(frozen=True)
class Measured:
    """What a part found.

    Attributes:
        values: By name of the figure.
        text: Markdown: how it was measured, and tables of what else was.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    text: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Measured:
        return cls(**json.loads(text))


def at_most(limit: float) -> Target:
    return Target("at most", limit)


def at_least(limit: float) -> Target:
    return Target("at least", limit)


def summary(parts: Mapping[str, Sequence[Figure]]) -> str:
    """All figures with their targets, as a table with a row before each part."""
    rows = []
    for part, figures in parts.items():
        rows.append((f"*{part}*", "", ""))
        for name, value, target, verdict in (figure.row() for figure in figures):
            rows.append((name, value, target if verdict in ("met", "") else f"{target}: {verdict}"))
    return table(("figure", "measured", "target"), rows)


def missed(figures: Sequence[Figure]) -> str:
    """Why targets are missed and what would be needed, as a list."""
    return "".join(f"- **{figure.name}**: {figure.note}\n" for figure in figures if figure.verdict == "missed")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown; numbers are shown with three digits or more."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(_digits(c) if isinstance(c, float) else str(c) for c in line)} |\n" for line in lines
    )


def _digits(value: float) -> str:
    """A number with three digits, and ratios about 1 with four."""
    places = next((places for places, least in enumerate((100, 10)) if abs(value) >= least), 3 if abs(value) < 2 else 2)
    return f"{value:,.{places}f}"
