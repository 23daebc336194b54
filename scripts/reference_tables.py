"""Write the reference tables of the docs from the code.

    python scripts/reference_tables.py
    python scripts/reference_tables.py --check

A table stands between `<!--table:NAME-->` and `<!--end-->`. Cells that the code does not know stay as they are on
the page; a new row gets `?` there.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from xbench.runs import files, results
from xbench.runs import protocols as protocol_files
from xbench.scoring import rows
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import _KINDS, Protocol

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(?<=<!--table:)([\w.]+)(-->\n\n)(.*?)(?=\n\n<!--end-->)", re.S)
# Words of comments that are links or bold on the page.
MARKS = {
    "curves and randomization": "[curves and randomization](interventions.md#curves-and-randomization)",
    "at probability": "[at probability](numbers.md#recognition)",
    "distance of the peak": "[distance](numbers.md#distance-of-the-peak)",
    "largest over": "[largest](numbers.md#dice-and-iou-over-thresholds) over",
    "lateral`": "lateral` ([sources](datasets.md#sex-age-and-projection))",
    "maximum in": "[maximum](numbers.md#pointing-game) in",
    "patients' images": "**patients' images**",
    "phrase": "[phrase](numbers.md#phrases-and-conditions)",
    "rates of answers": "[rates of answers](answers.md#scores)",
    "scores of boxes": "[scores of boxes](answers.md#scores)",
    "sign test": "[sign test](numbers.md#sign-of-the-maps)",
    "status of the answer": "[status](answers.md#an-answer)",
    "unstretched": "[unstretched](numbers.md#maps-on-their-own-scale)",
    "words were scored": "[words](words.md) were scored",
    "yes or no": "[yes or no](answers.md#yes-or-no)",
}
# Keys of results.json with a section of their own on the page.
SECTIONS = ("counts", "scored_on", "grounding", "own_scale", "classification", "answers", "interventions", "provenance")

Row = tuple[str, ...]
_TABLES = ("PAIRS", "IMAGES", "PREDICTIONS", "TRUTH", "PERTURBATIONS")


def table(head: Row, body: Iterable[Row]) -> str:
    """Return a table in Markdown."""
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in body)])


def meanings(source: str) -> dict[str, str]:
    """Return the comment behind or above each line of Python, by the fields, constants or texts on the line."""
    found, above = {}, ""
    for code, _, comment in (line.partition("# ") for line in source.splitlines()):
        names = re.findall(r'^ {4}(\w+): |^([A-Z_]+) = "|"(\w+)"', code)
        found = {name: comment.strip() or above for of in names for name in of if name} | found
        above = "" if code.strip() else f"{above} {comment}".strip()
    return found


def explained(head: str, names: Mapping[str, str]) -> str:
    """Return a table of names and their meanings, with one row for neighbors of the same meaning."""
    body = []
    for meaning, group in itertools.groupby(names, lambda name: names[name] or "?"):
        for words, marked in MARKS.items():
            meaning = re.sub(rf"(?<!\w){re.escape(words)}(?!\w)", marked, meaning, count=1)
        body.append((", ".join(group), meaning))
    return table((head, "meaning"), body)


def columns(constant: str) -> str:
    """Return the columns of a table of a run, which the comments of its schema explain."""
    source = inspect.getsource(rows if constant == "PAIRS" else files)
    start = "SCHEMA = " if constant == "PAIRS" else f"    {constant}: "
    (schema,) = re.findall(rf"^{start}pa\.schema\((?:[^\n]+$|.*?^ *\))", source, re.M | re.S)
    found = meanings("\n".join([*re.findall(r"^_IMAGE = .*$", source, re.M), schema]))
    names = files.SCHEMAS[getattr(files, constant)].names
    return explained("column", {f"`{name}`": found.get(name, "") for name in names})


def keys(*sections: type) -> str:
    """Return the keys of sections of results.json, which the comments of their fields explain."""
    found: dict[str, str] = {}
    for section in sections:
        said = meanings(inspect.getsource(section))
        for field in dataclasses.fields(section):
            found[f"`{field.name}`"] = "below" if field.name in SECTIONS else said.get(field.name, "")
    return explained("key", found)


def run_files() -> str:
    """Return the files of a run."""
    source = inspect.getsource(files) + inspect.getsource(protocol_files)
    found, shown = meanings(source), {}
    for constant, name in re.findall(r'^([A-Z_]+) = "([\w.]+)"  # ', source, re.M):
        link = name in {*TABLES, protocol_files.FOLDER}
        label = f"`{name}`" if "." in name else f"`{name}/`"
        more = f": {', '.join(f'`{one}`' for one in files.OF_WORDS[name].names[2:])}" if name in files.OF_WORDS else ""
        shown[f"[{label}](#{name.replace('.', '')})" if link else label] = found[constant] + more
    shown.pop("`parts/`")
    return explained("file", shown)


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


TABLES: Mapping[str, Callable[[], str]] = {
    "protocols": protocols,
    "files": run_files,
    **{getattr(files, name): partial(columns, name) for name in _TABLES},
    "results.json": partial(keys, results.Results),
    "counts": partial(keys, results.Counts),
    "grounding": partial(keys, results.Grounding, results.FindingGrounding),
    "classification": partial(keys, results.Classification, results.FindingClassification),
    "answers": partial(keys, results.Answers),
}


def with_tables(text: str) -> str:
    """Return a page with its tables as the code has them."""
    return MARKED.sub(lambda match: f"{match[1]}{match[2]}{TABLES[match[1]]()}", text)


def problems(name: str, old: str, new: str) -> Iterable[str]:
    """Yield what is wrong with the tables of a page."""
    for before, after in zip(MARKED.findall(old), MARKED.findall(new), strict=True):
        if before != after:
            yield f"docs/{name}: the table `{before[0]}` is not what the code says. Run `make tables`."
        if "| ? " in after[2]:
            yield f"docs/{name}: the table `{before[0]}` has a `?`: explain it in a comment of the code."


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
