"""What `words` does: read the findings and places that texts state, without a dataset and without scores."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from xbench.findings.names import canonical
from xbench.predictions.files import named
from xbench.predictions.tables import read_rows
from xbench.predictions.words import Vocabulary
from xbench.runtime.files import atomic_writer, writing

_TEXTS = ("text", "report", "findings", "answer")  # columns, the first of them counts
_KEPT = ("id", "image", "finding")


def words(given: Namespace) -> None:
    """Read the texts of a file, write what they state line by line, and print counts."""
    vocabulary = Vocabulary.of(given.words)
    texts: Counter[str] = Counter()
    mentions: Counter[str] = Counter()
    out: Path = given.out.expanduser()
    with writing(f"{out} cannot be written", "Give another file with --out."), atomic_writer(out) as file:
        for row in track(_rows(given.file.expanduser()), "Reading texts", total=None, transient=True):
            asked = row["asked"]
            reading = vocabulary.read(row["text"], asked and (canonical(asked) or asked), row["finish"])
            texts[reading.status] += 1
            mentions.update(mention.status for mention in reading.mentions)
            line = row["kept"] | {"status": reading.status, "mentions": [asdict(one) for one in reading.mentions]}
            file.write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())
    counts = [
        f"{sum(of.values()):,} {what}: {', '.join(f'{number:,} {status}' for status, number in of.most_common())}"
        for what, of in (("texts", texts), ("mentions", mentions))
    ]
    Console(highlight=False).print("\n".join([*counts, f"in {out}"]), soft_wrap=True)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with named(path):
        for where, row in read_rows(path):
            if not isinstance(row, dict):
                raise ValueError(f"{where} has no keys")
            text = next((row[name] for name in _TEXTS if name in row), None)
            asked = row.get("asked") or (row.get("finding") if "answer" in row else None)
            if not isinstance(text, str) or not isinstance(asked, str | None):
                raise ValueError(
                    f"{where} has no text: give it as `text`, and the finding that was asked for as `asked`"
                )
            kept = {name: row[name] for name in _KEPT if name in row}
            yield {"text": text, "asked": asked, "finish": row.get("finish"), "kept": kept}
