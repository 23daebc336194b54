"""Names of the findings, their anatomy, and the findings of each dataset; all other code uses the canonical names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from xbench.runtime.strict import load_yaml

MACRO = "macro"
"""Reserved: the row of means in `per_class.csv`."""

Group = Literal["lung", "pleura", "heart and mediastinum", "bone", "device"]
Size = Literal["small", "medium", "large"]


@dataclass(frozen=True)
class Finding:
    """A finding on a chest radiograph.

    Attributes:
        name: Canonical name, in title case.
        size: Typical share of the whole radiograph that its annotations cover: small below 1%, medium up to 5%, large
            above. For orientation only; no number is computed from it.
        spelled: Name in the box or mask annotations (or else in the labels) of each dataset that has it.
            `vindr_kaggle` is VinDr-CXR with the 14 classes of its copy on Kaggle.
        synonyms: Other names of the finding in files. Case, underscores and spaces around a name do not matter.
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
"""All findings that are scored, by canonical name."""

_DATASETS = (
    *("rsna", "siim", "covid", "chestxdet10", "chexdet", "chexlocalize", "chestxray14", "vindr", "phantom"),
    *("mscxr", "padchestgr", "tbx11k"),
)


def _fold(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()


_CANONICAL = {_fold(name): one.name for one in TABLE for name in (one.name, *one.synonyms, *one.spelled.values())}


def names_of(finding: str) -> list[str]:
    """Return all names of a finding, the canonical one first; only the name itself if it is unknown.

    >>> names_of("Lung Opacity")[:1], "Airspace Opacity" in names_of("Lung Opacity"), names_of("Gout")
    (['Lung Opacity'], True, ['Gout'])
    """
    of = [entry for entry in TABLE if entry.name == finding]
    return list(dict.fromkeys([finding, *(name for one in of for name in (*one.synonyms, *one.spelled.values()))]))


def spellings(dataset: str) -> dict[str, str]:
    """Return a dataset's spelling of each of its findings, by canonical name, sorted like the paper's tables."""
    written = {finding.name: finding.spelled[dataset] for finding in TABLE if dataset in finding.spelled}
    return dict(sorted(written.items(), key=lambda item: item[1]))


FINDINGS: Mapping[str, tuple[str, ...]] = MappingProxyType({name: tuple(spellings(name)) for name in _DATASETS})
"""Canonical names of the findings of each dataset, in the order of its results."""

CHESTXRAY14_CLASSES = (
    *FINDINGS["chestxray14"],
    *("Consolidation", "Edema", "Emphysema", "Pulmonary Fibrosis", "Pleural Thickening", "Hernia"),
)
"""The fourteen classes that ChestX-ray14 labels: its findings, and classes without boxes."""


def canonical(name: str) -> str | None:
    """Return the canonical name of a finding for any spelling, or None if it is unknown.

    >>> canonical("Pleural effusion"), canonical(" fibrosis"), canonical("Lung tumor")
    ('Pleural Effusion', 'Pulmonary Fibrosis', None)
    """
    return _CANONICAL.get(_fold(name))


def chosen(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return a user's findings, a list or comma-separated, by canonical names if they have one.

    >>> chosen("effusion, Tree in bud"), chosen(["NODULE"])
    (('Pleural Effusion', 'Tree in bud'), ('Nodule',))
    """
    listed = names.split(",") if isinstance(names, str) else names
    return tuple(dict.fromkeys(canonical(name) or name.strip() for name in listed if name.strip()))


def is_name(name: object) -> bool:
    """Tell whether this is a valid name of a model, dataset, split or finding."""
    if not isinstance(name, str) or not name.isprintable() or name != name.strip():
        return False
        # Spreadsheets read such values as formulas, even in CSV files.
    return 0 < len(name) <= 200 and name[0] not in "=+-@"


def is_folder_name(name: object) -> bool:
    """Tell whether this is a valid name of a model or dataset, safe as part of a folder name."""
    return is_name(name) and isinstance(name, str) and name[0] != "." and not {*name} & {*"/\\"}


def findings_problem(findings: Sequence[object]) -> str | None:
    """Return why these are not valid findings of a run; None if they are."""
    if not findings:
        return "there are no findings"
    for number, finding in enumerate(findings):
        if not is_name(finding):
            return f"{finding!r:.60} is not a name: give 1 to 200 printable characters, not starting with = + - @"
        if finding == MACRO:
            return f"{finding!r} is the name of the mean over the findings"
        if finding in findings[:number]:
            return f"{finding!r:.60} occurs twice"
    return None
