"""The book that MedKLIP and MAVL read an image with: all that they ask about, which they always ask together.

The queries of these models attend to one another, so the score of a finding depends on what else is in the book. The
authors decode a fixed book of 75 entries and pick the columns that a dataset has. So does the harness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xbench.errors import UserError
from xbench.protocol.findings import canonical
from xbench.protocol.prompts import prompts_in_style, read_prompts, wordings

__all__ = ["OFFICIAL_ENTRIES", "Book", "entry_of", "own_entries", "own_texts", "read_entries", "with_findings"]

_NAMES = """
normal clear sharp sharply unremarkable intact stable free effusion opacity pneumothorax edema atelectasis tube
consolidation process abnormality enlarge tip low pneumonia line congestion catheter cardiomegaly fracture air
tortuous lead disease calcification prominence device engorgement picc clip elevation expand nodule wire fluid
degenerative pacemaker thicken marking scar hyperinflate blunt loss widen collapse density emphysema aerate mass
crowd infiltrate obscure deformity hernia drainage distention shift stent pressure lesion finding borderline
hardware dilation chf redistribution aspiration tail_abnorm_obs excluded_obs
"""

OFFICIAL_ENTRIES = tuple(_NAMES.split())
"""Names of the entries of the authors' book, in class order."""

# From the authors' scripts: ChestX-ray14 (both models), RSNA, SIIM, CheXpert and COVID-rural (MAVL); `calcification` is
# the one entry that names a finding which no script of theirs asks about. Aortic Enlargement, Clavicle Fracture,
# Enlarged PA, ILD, Lung Cavity, Lung Cyst, Mediastinal Shift, Nodule/Mass, Other Lesion and Rib Fracture have none.
_ENTRY_OF = {
    "Atelectasis": "atelectasis",
    "COVID-19": "covid19",
    "Calcification": "calcification",
    "Cardiomegaly": "cardiomegaly",
    "Consolidation": "consolidation",
    "Edema": "edema",
    "Emphysema": "emphysema",
    "Enlarged Cardiomediastinum": "enlarge",
    "Fracture": "fracture",
    "Infiltration": "infiltrate",
    "Lung Lesion": "lesion",
    "Lung Opacity": "opacity",
    "Mass": "mass",
    "Nodule": "nodule",
    "Pleural Effusion": "effusion",
    "Pleural Other": "abnormality",
    "Pleural Thickening": "thicken",
    "Pneumonia": "pneumonia",
    "Pneumothorax": "pneumothorax",
    "Pulmonary Fibrosis": "tail_abnorm_obs",
    "Support Devices": "device",
}

Entries = Mapping[str, Sequence[str]]
"""Texts by name of the entry, in class order: the explanation, and for MAVL one text on each aspect after it."""


@dataclass(frozen=True)
class Book:
    """What is asked in a run.

    Attributes:
        entries: Everything that is asked together.
        columns: Name of the entry of each finding of the dataset, in their order.
        added: Findings that the book had no entry for, which were appended to it.
    """

    entries: Entries
    columns: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def indices(self) -> list[int]:
        """The position of each finding's entry in the book."""
        names = list(self.entries)
        return [names.index(column) for column in self.columns]


def own_texts(finding: str, texts: int) -> list[str]:
    """Return what the package says of a finding: its description, and with more than one text its aspects."""
    return [*prompts_in_style("description", finding), *(prompts_in_style("aspects", finding) if texts > 1 else ())]


def own_entries(texts: int) -> Entries:
    """Return the book in the words of the package: the two references, then every finding."""
    return {name: own_texts(name, texts) for name in (*wordings("references"), *wordings("findings"))}


def read_entries(book: str, concepts: str | None, texts: int) -> Entries:
    """Read the authors' book, or one in its form.

    Args:
        book: Path of a mapping from names to an explanation each.
        concepts: For MAVL the path of a mapping from the same names to the texts on the other aspects.
        texts: Number of texts of an entry, the explanation included.

    Raises:
        UserError: A file that cannot be read, or an entry without the right number of texts.
    """
    explanations = read_prompts(book)
    # MedKLIP's file has lost a letter, which does no harm where entries are told by their position.
    explanations = {"pneumonia" if name == "eumonia" else name: value for name, value in explanations.items()}
    for name, value in explanations.items():
        if len(value) != 1:
            raise UserError(f"--model.book {book} gives {name} {len(value)} texts: an entry has one explanation.")
    # Files for some datasets append entries, on which scores would depend; the authors ask them there alone.
    if {*OFFICIAL_ENTRIES} <= {*explanations}:
        explanations = {name: explanations[name] for name in (*OFFICIAL_ENTRIES, *explanations)}
    if concepts is None:
        return explanations
    aspects = read_prompts(concepts)
    for name in explanations:
        if len(aspects.get(name, ())) != texts - 1:
            raise UserError(
                f"--model.concepts {concepts} has {len(aspects.get(name, ()))} texts on {name}, an entry of the book "
                f"{book}: these weights need {texts - 1} for every entry. Give the two files that belong together."
            )
    return {name: [*explanation, *aspects[name]] for name, explanation in explanations.items()}


def entry_of(finding: str, entries: Entries) -> str | None:
    """Return the name of a finding's entry in a book: that of the authors' scripts, or one that is called the same."""
    official = _ENTRY_OF.get(finding)
    if official in entries:
        return official
    return next((name for name in entries if finding in (name, canonical(name))), None)


def with_findings(entries: Entries, findings: Sequence[str], prompts: Sequence[Sequence[str]]) -> Book:
    """Make the book of a run.

    A finding's prompts stand in the place of its entry, if the book has one, or else at the end, as the authors of MAVL
    append what is not in theirs. Beyond the 75 official entries, others stay out unless they belong to a finding.

    Args:
        entries: From `read_entries` or `own_entries`.
        findings: The dataset's.
        prompts: The texts of each finding: all that an entry has, or the explanation alone, or the aspects alone. The
            others stay as they are.

    Raises:
        UserError: Another number of texts.
    """
    found = {finding: entry_of(finding, entries) for finding in findings}
    official = {*OFFICIAL_ENTRIES} <= {*entries}
    texts = len(next(iter(entries.values())))
    asked = {
        name: list(value)
        for name, value in entries.items()
        if not official or name in OFFICIAL_ENTRIES or name in found.values()
    }
    for finding, given in zip(findings, prompts, strict=True):
        name = found[finding] or finding
        if len(given) == texts:
            asked[name] = list(given)
        elif len(given) in (1, texts - 1):
            usual = asked[name] if name in asked else own_texts(finding, texts)
            asked[name] = [*given, *usual[1:]] if len(given) == 1 else [usual[0], *given]
        else:
            raise UserError(
                f"{finding} has {len(given)} prompts; the model takes {texts} of each finding"
                + (f", or the explanation alone, or the {texts - 1} aspects alone." if texts > 1 else "."),
                exit_status=2,
            )
    return Book(
        entries=asked,
        columns=tuple(found[finding] or finding for finding in findings),
        added=tuple(finding for finding in findings if found[finding] is None),
    )
