"""The findings: what they are called, where they lie, and which dataset has which.

The one place where a finding is named. Everything else speaks of it by its canonical name; files of a dataset, whatever
their spelling, are understood through `canonical`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

__all__ = [
    "CHESTXRAY14_CLASSES",
    "FINDINGS",
    "MACRO",
    "TABLE",
    "Finding",
    "canonical",
    "distinct_spellings",
    "findings_problem",
    "is_folder_name",
    "is_name",
    "spellings",
]

MACRO = "macro"
"""Of the row of means in `per_class.csv`, and so of no finding."""

Group = Literal["lung", "pleura", "heart and mediastinum", "bone", "device"]
Size = Literal["small", "medium", "large"]


@dataclass(frozen=True)
class Finding:
    """A finding on a chest radiograph.

    Attributes:
        name: Canonical name, in title case.
        group: Part of the anatomy that it belongs to.
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


def _finding(name: str, group: Group, size: Size, *synonyms: str, **spelled: str | Literal[True]) -> Finding:
    # True says that a dataset spells the finding canonically.
    written = {dataset: name if spelling is True else spelling for dataset, spelling in spelled.items()}
    return Finding(name, group, size, MappingProxyType(written), synonyms)


TABLE: tuple[Finding, ...] = (
    _finding(
        "Aortic Enlargement",
        "heart and mediastinum",
        "medium",
        vindr="Aortic enlargement",
        vindr_kaggle="Aortic enlargement",
    ),
    _finding(
        "Atelectasis",
        "lung",
        "medium",
        chestxdet10=True,
        chestxray14=True,
        chexlocalize=True,
        vindr=True,
        vindr_kaggle=True,
        phantom=True,
    ),
    _finding("COVID-19", "lung", "large", "COVID", "COVID19", covid=True),
    _finding("Calcification", "lung", "small", chestxdet10=True, vindr=True, vindr_kaggle=True),
    _finding(
        "Cardiomegaly",
        "heart and mediastinum",
        "large",
        chestxray14=True,
        chexlocalize=True,
        vindr=True,
        vindr_kaggle=True,
        phantom=True,
    ),
    _finding("Clavicle Fracture", "bone", "small", vindr="Clavicle fracture"),
    _finding(
        "Consolidation",
        "lung",
        "large",
        chestxdet10=True,
        chexlocalize=True,
        vindr=True,
        vindr_kaggle=True,
        phantom=True,
    ),
    _finding("Edema", "lung", "large", "Pulmonary Edema", chexlocalize=True),
    _finding("Emphysema", "lung", "large", chestxdet10=True, vindr=True),
    _finding("Enlarged Cardiomediastinum", "heart and mediastinum", "large", chexlocalize=True),
    _finding("Enlarged PA", "heart and mediastinum", "small", "Enlarged Pulmonary Artery", vindr=True),
    _finding("Fracture", "bone", "small", chestxdet10=True, chexlocalize=True, phantom=True),
    _finding("ILD", "lung", "large", "Interstitial Lung Disease", vindr=True, vindr_kaggle=True),
    _finding("Infiltration", "lung", "medium", chestxray14="Infiltrate", vindr=True, vindr_kaggle=True),
    _finding("Lung Cavity", "lung", "medium", vindr="Lung cavity"),
    _finding("Lung Cyst", "lung", "medium", vindr="Lung cyst"),
    _finding("Lung Lesion", "lung", "small", chexlocalize=True),
    _finding("Lung Opacity", "lung", "large", chexlocalize="Airspace Opacity", vindr=True, vindr_kaggle=True),
    _finding("Mass", "lung", "medium", chestxdet10=True, chestxray14=True, phantom=True),
    _finding("Mediastinal Shift", "heart and mediastinum", "large", vindr="Mediastinal shift"),
    _finding("Nodule", "lung", "small", chestxdet10=True, chestxray14=True, phantom=True),
    _finding("Nodule/Mass", "lung", "small", vindr=True, vindr_kaggle=True),
    _finding("Other Lesion", "lung", "medium", vindr="Other lesion", vindr_kaggle="Other lesion"),
    _finding(
        "Pleural Effusion",
        "pleura",
        "medium",
        chestxdet10="Effusion",
        chestxray14="Effusion",
        chexlocalize=True,
        vindr="Pleural effusion",
        vindr_kaggle="Pleural effusion",
        phantom=True,
    ),
    _finding("Pleural Other", "pleura", "medium", chexlocalize=True),
    _finding("Pleural Thickening", "pleura", "small", vindr="Pleural thickening", vindr_kaggle="Pleural thickening"),
    _finding("Pneumonia", "lung", "large", rsna=True, chestxray14=True, chexlocalize=True),
    _finding(
        "Pneumothorax",
        "pleura",
        "medium",
        siim=True,
        chestxdet10=True,
        chestxray14=True,
        chexlocalize=True,
        vindr=True,
        vindr_kaggle=True,
        phantom=True,
    ),
    _finding(
        "Pulmonary Fibrosis",
        "lung",
        "medium",
        chestxdet10="Fibrosis",
        vindr="Pulmonary fibrosis",
        vindr_kaggle="Pulmonary fibrosis",
    ),
    _finding("Rib Fracture", "bone", "small", vindr="Rib fracture"),
    _finding("Support Devices", "device", "medium", chexlocalize=True),
)
"""Every finding that is scored, by canonical name."""

_DATASETS = ("rsna", "siim", "covid", "chestxdet10", "chexlocalize", "chestxray14", "vindr", "phantom")


def _fold(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()


_CANONICAL = {
    _fold(name): finding.name
    for finding in TABLE
    for name in (finding.name, *finding.synonyms, *finding.spelled.values())
}


def spellings(dataset: str) -> dict[str, str]:
    """Return how a dataset spells each of its findings, by canonical name, in the class order of its results.

    The order is that of the paper's tables, in which each dataset's findings stand by their own spelling, capital
    letters first.
    """
    written = {finding.name: finding.spelled[dataset] for finding in TABLE if dataset in finding.spelled}
    return dict(sorted(written.items(), key=lambda item: item[1]))


FINDINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {dataset: tuple(spellings(dataset)) for dataset in _DATASETS}
)
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


def distinct_spellings(datasets: Iterable[str]) -> set[str]:
    """Return every string by which one of the datasets names one of its findings."""
    return {name for dataset in datasets for name in spellings(dataset).values()}


def is_name(name: object) -> bool:
    """Tell whether a model, a dataset, a split or a finding may have this name."""
    # Spreadsheets take what begins so for a formula, even in a file of values.
    return (
        isinstance(name, str)
        and name.isprintable()
        and name == name.strip()
        and 0 < len(name) <= 200
        and (name[0] not in "=+-@")
    )


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
