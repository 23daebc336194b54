"""The table of findings against a second copy of what the datasets write, and nowhere else a finding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.data import PhantomCXR
from xbench.findings.names import FINDINGS, TABLE, canonical, spellings

# As the box or mask files of the datasets write them, in the order of the paper's tables.
WRITTEN = {
    "rsna": ["Pneumonia"],
    "siim": ["Pneumothorax"],
    "covid": ["COVID-19"],
    "chestxdet10": [
        "Atelectasis", "Calcification", "Consolidation", "Effusion", "Emphysema", "Fibrosis", "Fracture", "Mass",
        "Nodule", "Pneumothorax",
    ],
    "chexdet": [
        "Atelectasis", "Calcification", "Cardiomegaly", "Consolidation", "Diffuse Nodule", "Effusion", "Emphysema",
        "Fibrosis", "Fracture", "Mass", "Nodule", "Pleural Thickening", "Pneumothorax",
    ],
    "chexlocalize": [
        "Airspace Opacity", "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum",
        "Fracture", "Lung Lesion", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices",
    ],
    "chestxray14": [
        "Atelectasis", "Cardiomegaly", "Effusion", "Infiltrate", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
    ],
    "vindr": [
        "Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Clavicle fracture", "Consolidation",
        "Emphysema", "Enlarged PA", "ILD", "Infiltration", "Lung Opacity", "Lung cavity", "Lung cyst",
        "Mediastinal shift", "Nodule/Mass", "Other lesion", "Pleural effusion", "Pleural thickening", "Pneumothorax",
        "Pulmonary fibrosis", "Rib fracture",
    ],
    "mscxr": [
        "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Lung Opacity", "Pleural Effusion", "Pneumonia",
        "Pneumothorax",
    ],
    "padchestgr": [
        "atelectasis", "cardiomegaly", "cavitation", "clavicle fracture", "consolidation", "emphysema", "infiltrates",
        "mass", "nodule", "pleural effusion", "pleural thickening", "pneumonia", "pneumothorax", "pulmonary edema",
        "pulmonary fibrosis", "rib fracture", "tuberculosis",
    ],
    "tbx11k": ["Tuberculosis"],
}  # fmt: skip
KAGGLE = [
    "Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Consolidation", "ILD", "Infiltration",
    "Lung Opacity", "Nodule/Mass", "Other lesion", "Pleural effusion", "Pleural thickening", "Pneumothorax",
    "Pulmonary fibrosis",
]  # fmt: skip
OTHER_WORDS = {
    "Effusion": "Pleural Effusion",
    "Fibrosis": "Pulmonary Fibrosis",
    "Airspace Opacity": "Lung Opacity",
    "Infiltrate": "Infiltration",
    "infiltrates": "Infiltration",
    "cavitation": "Lung Cavity",
    "pulmonary edema": "Edema",
}
NAMES = [finding.name for finding in TABLE]


def expected(written: str) -> str:
    """The canonical name: the same words in title case, but for a few."""
    if written in OTHER_WORDS:
        return OTHER_WORDS[written]
    return " ".join(word[:1].upper() + word[1:] for word in written.split(" "))


@pytest.mark.parametrize("dataset", WRITTEN)
def test_findings_of_each_dataset(dataset):
    assert list(spellings(dataset).values()) == WRITTEN[dataset] == sorted(WRITTEN[dataset])
    assert list(FINDINGS[dataset]) == list(spellings(dataset)) == [expected(name) for name in WRITTEN[dataset]]


def test_kaggle_has_fourteen_of_vindr():
    assert list(spellings("vindr_kaggle").values()) == KAGGLE
    assert {*spellings("vindr_kaggle").items()} <= {*spellings("vindr").items()}


def test_how_the_36_of_the_paper_come_about():
    paper = WRITTEN.keys() - {"chexdet", "mscxr", "padchestgr", "tbx11k"}
    assert sum(len(WRITTEN[name]) for name in paper) == 55
    spelled = {name for dataset in paper for name in spellings(dataset).values()}
    assert len(spelled) == 36
    assert len({finding for dataset in paper for finding in FINDINGS[dataset]}) == 31
    folded = {name.casefold().replace("infiltrate", "infiltration") for name in spelled}
    assert len(folded) == 34


def test_the_table_is_consistent():
    assert len(NAMES) == len({*NAMES}) == 33
    assert sorted(NAMES) == NAMES
    datasets = {dataset for finding in TABLE for dataset in finding.spelled}
    assert datasets == {*WRITTEN, "vindr_kaggle", "phantom"}
    assert {*FINDINGS} == {*WRITTEN, "phantom"}
    assert FINDINGS["phantom"] == PhantomCXR.findings
    named: dict[str, str] = {}
    for finding in TABLE:
        assert finding.spelled
        for name in {finding.name, *finding.synonyms, *finding.spelled.values()}:
            folded = " ".join(name.replace("_", " ").casefold().split())
            assert named.setdefault(folded, finding.name) == finding.name, f"{name} stands for two findings"
    # What sounds alike and is not the same.
    for alike in (
        ("Nodule", "Mass", "Nodule/Mass", "Diffuse Nodule"),
        ("Lung Lesion", "Other lesion"),
        ("Fracture", "Rib fracture"),
        ("Pleural thickening", "Pleural Other"),
        ("Consolidation", "Lung Opacity"),
        ("Pneumonia", "COVID-19"),
    ):
        assert len({canonical(name) for name in alike}) == len(alike)


@given(
    st.sampled_from(sorted({*NAMES, *(n for f in TABLE for n in (*f.synonyms, *f.spelled.values()))})),
    st.sampled_from([str, str.upper, str.lower, str.title, str.swapcase]),
    st.sampled_from([" ", "_", "  ", "\t", "__"]),
    st.sampled_from(["", " ", "\n", "_"]),
)
def test_however_it_is_written(name, case, gap, around):
    assert canonical(around + case(name).replace(" ", gap) + around) == canonical(name)
