"""Command `words`: read findings and places from texts, without a dataset or scores."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from xbench.findings.names import canonical
from xbench.geometry.location import ZONES, locate
from xbench.geometry.shapes import FRACTIONS, Shape
from xbench.predictions.files import named
from xbench.predictions.tables import read_rows
from xbench.predictions.words import Vocabulary
from xbench.runtime.errors import UsageError
from xbench.runtime.files import atomic_writer, writing

_TEXTS = ("text", "report", "findings", "answer")  # columns; the first one counts
_KEPT = ("id", "image", "finding")


def words(given: Namespace) -> None:
    """Read the texts of a file, write their statements as JSON lines and print counts; or locate regions."""
    if (given.file is None) == (given.regions is None):
        raise UsageError("words needs a FILE of texts or --regions FILE, not both.")
    out: Path = given.out.expanduser()
    if out.absolute() == (given.file or given.regions).expanduser().absolute():
        raise UsageError(f"--out {out} is the file that is read: give another one.")
    with writing(f"{out} cannot be written", "Give another file with --out."), atomic_writer(out) as file:
        if given.regions is not None:
            file.writelines(f"{json.dumps(line)}\n".encode() for line in _located(given.regions.expanduser()))
            return
        vocabulary = Vocabulary.of(given.words)
        texts: Counter[str] = Counter()
        mentions: Counter[str] = Counter()
        for row in track(_rows(given.file.expanduser()), "Reading texts", total=None, transient=True):
            asked = row["asked"]
            reading = vocabulary.read(row["text"], asked and (canonical(asked) or asked), row["finish"])
            texts[reading.status] += 1
            mentions.update(mention.status for mention in reading.mentions)
            line = row["kept"] | {"status": reading.status, "mentions": [asdict(one) for one in reading.mentions]}
            file.write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())
    counts = [
        f"{what}: {sum(of.values()):,} ({', '.join(f'{number:,} {status}' for status, number in of.most_common())})"
        for what, of in (("Texts", texts), ("Mentions", mentions))
    ]
    Console(highlight=False).print("\n".join([*counts, f"Results: {out}"]), soft_wrap=True)


def _located(path: Path) -> Iterator[dict[str, Any]]:
    with named(path):
        for where, row in read_rows(path):
            try:
                boxes = np.array(row["items"], np.float64).reshape(-1, 4)
            except (TypeError, ValueError, LookupError):
                raise ValueError(f"{where} has no `items`: give a list of boxes x0, y0, x1, y1 in fractions") from None
            found = locate([Shape("box", FRACTIONS, box) for box in boxes])
            of_zones = {"zones": found.zones, "zones_allowed": found.zones_allowed}
            zones = {name: [zone for zone in ZONES if zone in of] for name, of in of_zones.items()}
            yield {"id": row.get("id"), "sides": sorted(found.sides) or None, **zones}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with named(path):
        for where, row in read_rows(path):
            if not isinstance(row, dict):
                raise ValueError(f"{where} has no keys")
            text = next((row[name] for name in _TEXTS if name in row), None)
            asked = row.get("asked") or (row.get("finding") if "answer" in row else None)
            if not isinstance(text, str) or not isinstance(asked, str | None):
                needed = "give it as `text`, and the finding that was asked for as `asked`"
                raise ValueError(f"{where} has no text: {needed}")
            kept = {name: row[name] for name in _KEPT if name in row}
            yield {"text": text, "asked": asked, "finish": row.get("finish"), "kept": kept}
