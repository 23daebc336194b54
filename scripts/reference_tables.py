"""Write the reference tables of the docs from the code.

    python scripts/reference_tables.py
    python scripts/reference_tables.py --check

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Cells that the code does not know stay as they are on
the page; a new row gets `?` there.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import _KINDS, Protocol

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(?<=<!-- table: )(\w+)( -->\n\n)(.*?)(?=\n\n<!-- end -->)", re.S)


def protocols() -> str:
    """Return a section for each protocol: where it comes from, what it does, its flaw and limits."""
    return "\n\n".join(section for protocol in PROTOCOLS.values() for section in _sections(protocol))


def _sections(protocol: Protocol) -> Iterable[str]:
    takes = " or ".join(word for kind, word in _KINDS.items() if kind in protocol.takes)
    takes = "" if protocol.takes == Protocol.takes else f" Takes: {takes}."
    frame = "" if protocol.setting == Protocol.setting else f" Frame: {protocol.setting}."
    limits = f" **Limits**: {'; '.join(protocol.limits)}." if protocol.limits else ""
    yield f"### {protocol.name}"
    for text in (
        f"*{protocol.citation}.* {protocol.rule[0].upper()}{protocol.rule[1:]}.{takes}{frame}",
        f"**Flaw.** {protocol.flaw}{limits}",
    ):
        yield textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


TABLES: Mapping[str, Callable[[], str]] = {"protocols": protocols}


def with_tables(text: str) -> str:
    """Return a page with its tables as the code has them."""
    return MARKED.sub(lambda match: f"{match[1]}{match[2]}{TABLES[match[1]]()}", text)


def problems(name: str, old: str, new: str) -> Iterable[str]:
    """Yield what is wrong with the tables of a page."""
    for before, after in zip(MARKED.findall(old), MARKED.findall(new), strict=True):
        if before != after:
            yield f"docs/{name}: the table `{before[0]}` is not what the code says. Run `make tables`."


def main(words: Sequence[str] | None = None) -> int:
    """Write the tables, or compare them; return 1 if something is left to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check, wrong = parser.parse_args(words).check, []
    for path in sorted((ROOT / "docs").glob("*.md")):
        old = path.read_text(encoding="utf-8")
        new = with_tables(old)
        wrong += problems(path.name, old, new) if check else ()
        if new != old and not check:
            path.write_text(new, encoding="utf-8")
            print(path)
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
