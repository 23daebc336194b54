"""The findings: what they are called, where they lie, and which dataset has which.

The one place where a finding is named. Everything else speaks of it by its canonical name; files of a dataset, whatever
their spelling, are understood through `canonical`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from xbench.runtime.yaml_files import load_yaml

MACRO = "macro"
"""The name of the row of means in `per_class.csv`, which no finding may have."""

Group = Literal["lung", "pleura", "heart and mediastinum", "bone", "device"]
Size = Literal["small", "medium", "large"]


@dataclass(frozen=True)
class Finding:
    """A finding on a chest radiograph.

    Attributes:
        name: Canonical name, in title case.
        size: What its annotations typically cover of the whole radiograph: small below 1 %, medium up to 5 %, large
            more. An orientation for readers of results; no number is computed from it.
        spelled: The name in each dataset that has it, as its box or mask annotations (or else its labels) write it.
            `vindr_kaggle` is VinDr-CXR with the 14 classes of its copy on Kaggle.
        synonyms: Further names that stand for the same finding in some file. Case, underscores and space around a name
            never matter.
    """

    name: str
    group: Group
    size: Size
    spelled: Mapping[str, str] = field(default_factory=dict)
    synonyms: tuple[str, ...] = ()


TABLE: tuple[Finding, ...] = tuple(
    Finding(name, entry["group"], entry["size"], MappingProxyType(entry["spelled"]), tuple(entry.get("synonyms", ())))
    for name, entry in load_yaml(Path(__file__).with_name("findings.yaml")).items()
)
"""Every finding that is scored, by canonical name."""

_DATASETS = (
    *("rsna", "siim", "covid", "chestxdet10", "chexdet", "chexlocalize", "chestxray14", "vindr", "phantom"),
    *("mscxr", "padchestgr", "tbx11k"),
)


def _fold(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()


_CANONICAL = {_fold(name): one.name for one in TABLE for name in (one.name, *one.synonyms, *one.spelled.values())}


def names_of(finding: str) -> list[str]:
    """Return all that a finding is called, its canonical name first; the name itself of one that is not in the table.

    >>> names_of("Lung Opacity")[:1], "Airspace Opacity" in names_of("Lung Opacity"), names_of("Gout")
    (['Lung Opacity'], True, ['Gout'])
    """
    of = [entry for entry in TABLE if entry.name == finding]
    return list(dict.fromkeys([finding, *(name for one in of for name in (*one.synonyms, *one.spelled.values()))]))


def spellings(dataset: str) -> dict[str, str]:
    """Return how a dataset spells each of its findings, by canonical name, in the class order of its results.

    The order is that of the paper's tables, in which each dataset's findings stand by their own spelling, capital
    letters first.
    """
    written = {finding.name: finding.spelled[dataset] for finding in TABLE if dataset in finding.spelled}
    return dict(sorted(written.items(), key=lambda item: item[1]))


FINDINGS: Mapping[str, tuple[str, ...]] = MappingProxyType({name: tuple(spellings(name)) for name in _DATASETS})
"""Canonical names of the findings of each dataset, in the order of its results."""

CHESTXRAY14_CLASSES = (
    *FINDINGS["chestxray14"],
    *("Consolidation", "Edema", "Emphysema", "Pulmonary Fibrosis", "Pleural Thickening", "Hernia"),
)
"""The fourteen classes that ChestX-ray14 labels: its findings, and those that have no boxes."""


def canonical(name: str) -> str | None:
    """Return the canonical name of a finding however it is written, or None for a name that is not in the table.

    >>> canonical("Pleural effusion"), canonical(" fibrosis"), canonical("Lung tumor")
    ('Pleural Effusion', 'Pulmonary Fibrosis', None)
    """
    return _CANONICAL.get(_fold(name))


def chosen(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return findings as a user lists them, or writes them with commas between, by canonical names where there are any.

    >>> chosen("effusion, Tree in bud"), chosen(["NODULE"])
    (('Pleural Effusion', 'Tree in bud'), ('Nodule',))
    """
    listed = names.split(",") if isinstance(names, str) else names
    return tuple(dict.fromkeys(canonical(name) or name.strip() for name in listed if name.strip()))


def distinct_spellings(datasets: Iterable[str]) -> set[str]:
    """Return every string by which one of the datasets names one of its findings."""
    return {name for dataset in datasets for name in spellings(dataset).values()}


def is_name(name: object) -> bool:
    """Tell whether a model, a dataset, a split or a finding may have this name."""
    if not isinstance(name, str) or not name.isprintable() or name != name.strip():
        return False
    # Spreadsheets take what begins so for a formula, even in a file of values.
    return 0 < len(name) <= 200 and name[0] not in "=+-@"


def is_folder_name(name: object) -> bool:
    """Tell whether a model or a dataset may have this name: it becomes part of a folder's and never leads elsewhere."""
    return is_name(name) and isinstance(name, str) and name[0] != "." and not {*name} & {*"/\\"}


def findings_problem(findings: Sequence[object]) -> str | None:
    """Return why these cannot be the findings of a run; None if they can."""
    if not findings:
        return "there is none"
    for number, finding in enumerate(findings):
        if not is_name(finding):
            return f"{finding!r:.60} is no name: give 1 to 200 printable characters, and none of = + - @ as the first"
        if finding == MACRO:
            return f"{finding!r} is what tables call the mean over the findings"
        if finding in findings[:number]:
            return f"{finding!r:.60} is there twice"
    return None
