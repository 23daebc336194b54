"""Write the reference tables of the docs from the code.

    python scripts/reference_tables.py [--check]

A table stands between `<!--table:NAME-->` and `<!--end-->`. Facts that the code lacks stay as they are on the page.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from xbench.commands.configs import Kind, shipped, summary
from xbench.models.answers.local import ARCHITECTURES
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
    "distance of the peak": "[distance](numbers.md#distance-of-the-peak)",
    "keys below": "[keys](numbers.md) below",
    "lateral`": "lateral` ([sources](datasets.md#sex-age-and-projection))",
    "patients' images": "**patients' images**",
    "phrase": "[phrase](numbers.md#phrases-and-conditions)",
    "scores of boxes": "[scores of boxes](answers.md#scores)",
    "sign test": "[sign test](numbers.md#sign-of-the-maps)",
    "status of the answer": "[status](answers.md#an-answer)",
    "unstretched": "[unstretched](numbers.md#maps-on-their-own-scale)",
    "words were scored": "[words](words.md) were scored",
    "yes or no": "[yes or no](answers.md#yes-or-no)",
}
# Keys of results.json with a section of their own on the page.
SECTIONS = ("counts", "scored_on", "grounding", "own_scale", "classification", "answers", "interventions", "provenance")


def table(head: str, body: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown; `head` has its headings, and `?` is a cell that the code does not know."""
    return "\n".join(
        [f"| {head} |", "|---" * len(head.split(" | ")) + "|", *(f"| {' | '.join(row)} |" for row in body)]
    )


def meanings(source: str) -> dict[str, str]:
    """Return the comment behind or above each line of Python, by the fields, constants or texts on the line."""
    found: dict[str, str] = {}
    above = ""
    for code, _, comment in (line.partition("# ") for line in source.splitlines()):
        names = re.findall(r'^ {4}(\w+): |^([A-Z_]+) = "|"(\w+)"', code)
        found = {name: comment.strip() or above for of in names for name in of if name} | found
        above = "" if code.strip() else f"{above} {comment}".strip()
    return found


def explained(head: str, names: Mapping[str, str]) -> str:
    """Return a table of names and their meanings, with one row for neighbors of the same meaning."""
    body = []
    for meaning, group in itertools.groupby(names, lambda name: names[name] or "??"):
        for words, marked in MARKS.items():
            meaning = re.sub(rf"(?<!\w){re.escape(words)}(?!\w)", marked, meaning, count=1)
        body.append((", ".join(group), meaning))
    return table(f"{head} | meaning", body)


def run_files() -> str:
    """Return the files of a run."""
    source = inspect.getsource(files) + inspect.getsource(protocol_files)
    found, shown = meanings(source), {}
    for constant, name in re.findall(r'^([A-Z_]+) = "([\w.]+)"  # ', source, re.M):
        label = f"`{name}`" if "." in name else f"`{name}/`"
        more = f": {', '.join(f'`{one}`' for one in files.OF_WORDS[name].names[2:])}" if name in files.OF_WORDS else ""
        link = f"[{label}](#{name.replace('.', '')})" if name in {*TABLES, protocol_files.FOLDER} else label
        shown[link] = found[constant] + more
    return explained("file", {name: text for name, text in shown.items() if name != "`parts/`"})


def columns(file: str) -> str:
    """Return the columns of a table of a run, which the comments of its schema explain."""
    source = inspect.getsource(rows if file == files.PAIRS else files)
    start = "SCHEMA = " if file == files.PAIRS else f"    {file.partition('.')[0].upper()}: "
    (schema,) = re.findall(rf"^{start}pa\.schema\(.*?^ *\)", source, re.M | re.S)
    found = meanings("\n".join([*re.findall(r"^_IMAGE = .*$", source, re.M), schema]))
    return explained("column", {f"`{name}`": found.get(name, "") for name in files.SCHEMAS[file].names})


def keys(*sections: type) -> str:
    """Return the keys of sections of results.json, which the comments of their fields explain."""
    found: dict[str, str] = {}
    for section in sections:
        said = meanings(inspect.getsource(section)) | dict.fromkeys(SECTIONS, "below")
        found |= {f"`{field.name}`": said.get(field.name, "") for field in dataclasses.fields(section)}
    return explained("key", found)


def protocols() -> str:
    """Return a section for each protocol: where it comes from, what it does, its flaw and limits."""
    sections = []
    for one in PROTOCOLS.values():
        takes = " or ".join(word for kind, word in _KINDS.items() if kind in one.takes)
        takes = "" if one.takes == Protocol.takes else f" Takes: {takes}."
        frame = "" if one.setting == Protocol.setting else f" Authors' frame: {one.setting}."
        frame += " No run of xbench has this frame." if one.in_setting == "never" else ""
        limits = f" **Limits of our version**: {'; '.join(one.limits)}." if one.limits else ""
        rule = f"*{one.citation}.* {one.rule[0].upper()}{one.rule[1:]}.{takes}{frame}"
        texts = (f"### {one.name}", rule, f"**Flaw.** {one.flaw}{limits}")
        sections += [textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) for text in texts]
    return "\n\n".join(sections)


def registered(kind: Kind, page: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield name, options and class of the models or datasets of a page; the name links to their section."""
    for name, path in shipped(kind).items():
        text = path.read_text(encoding="utf-8")
        if found := re.search(rf"^# See docs/{page}.md(#.*)?$", text, re.M):
            content = yaml.safe_load(text)
            label = f"[`{name}`]({found[1]})" if found[1] else f"`{name}`"
            label += "".join(f" (**{mark}**)" for mark in re.findall(r"\((supervised|exploratory)\)", summary(path)))
            yield label, content.get("init_args", {}), resolve_name(content["class_path"])


def models() -> str:
    """Return the models with maps."""
    body = [(name, "?", "?", "?") for name, *_ in registered("models", "models")]
    return table("name | checkpoint | license of the weights | verified against", body)


def multimodal() -> str:
    """Return the models that answer on this machine."""
    body = []
    for name, options, cls in registered("models", "multimodal"):
        architecture = ARCHITECTURES[options["family"]] if "family" in options else cls.architecture
        body.append((name, f"`{architecture.example}`", "?"))
    return table("model | checkpoint | license of the weights", body)


def datasets() -> str:
    """Return the datasets to download, the default split first."""
    found = registered("data", "datasets")
    body = [(name, ", ".join(f"`{split}`" for split in cls.splits), "?", "?") for name, *_, cls in found]
    return table("name | `--data.split` (default first) | images by default | positives with a region", body)


TABLES: Mapping[str, Callable[[], str]] = {
    **{function.__name__: function for function in (models, multimodal, datasets, protocols)},
    "files": run_files,
    **{name: partial(columns, name) for name in files.SCHEMAS if name != files.PICTURES},
    "results.json": partial(keys, results.Results),
    "grounding": partial(keys, results.Grounding, results.FindingGrounding),
    "classification": partial(keys, results.Classification, results.FindingClassification),
    **{one.__name__.lower(): partial(keys, one) for one in (results.Counts, results.Answers, results.Interventions)},
}


def filled(new: str, old: str) -> str:
    """Return a table with the page's cells in place of `?`, in the page's order."""
    if "| ? " not in new:
        return new
    split = [[line.strip("| ").split(" | ") for line in text.splitlines()] for text in (new, old)]
    ours, theirs = ({re.findall(r"`\w+`|$", row[0])[0]: row for row in lines[2:]} for lines in split)
    order = [name for name in theirs if name in ours] + [name for name in ours if name not in theirs]
    pairs = ([*zip(ours[name], theirs.get(name, ours[name]), strict=False)] for name in order)
    return table(" | ".join(split[0][0]), [[page if code == "?" else code for code, page in row] for row in pairs])


def main(words: Sequence[str] | None = None) -> int:
    """Write the tables, or compare them; return 1 if something is left to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check, wrong = parser.parse_args(words).check, ""
    for path in sorted((ROOT / "docs").glob("*.md")):
        old = path.read_text(encoding="utf-8")
        new = MARKED.sub(lambda found: f"{found[1]}{found[2]}{filled(TABLES[found[1]](), found[3])}", old)
        for (name, _, before), (*_, after) in zip(MARKED.findall(old), MARKED.findall(new), strict=True):
            if "| ?" in after or (check and after != before):
                wrong = f"docs/{path.name}: the table `{name}` differs from the code or has a `?`. Run `make tables`."
                print(wrong, file=sys.stderr)
        if new != old and not check:
            path.write_text(new, encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
