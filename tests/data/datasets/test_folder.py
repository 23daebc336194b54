from __future__ import annotations

import os

import numpy as np
import pytest
from official.dicom import write_dicom
from PIL import Image

from xbench.data import ImageFolder
from xbench.findings.names import FINDINGS
from xbench.runtime.errors import UserError

GRAY = np.arange(48, dtype=np.uint8).reshape(6, 8)


@pytest.fixture
def films(tmp_path):
    root = tmp_path / "films"
    for place in ("ward 3", "scan/1.2.840", ".hidden"):
        (root / place).mkdir(parents=True)
    for place in ("b.png", "ward 3/b.png", ".hidden/c.png", "ward 3/.d.png"):
        Image.fromarray(GRAY).save(root / place)
    Image.fromarray(GRAY).save(root / "A.JPeG")
    Image.fromarray(GRAY).save(root / "\u80f8", "PNG")
    write_dicom(root / "scan" / "IM000001", GRAY)
    write_dicom(root / "scan" / "1.2.840" / "1.2.840.7", GRAY)
    write_dicom(root / "e.dcm", GRAY)
    write_dicom(root / "scan" / "DICOMDIR", GRAY)
    (root / "notes.txt").write_text("lateral views are elsewhere")
    (root / "empty").touch()
    (root / "ward 3" / "up").symlink_to(root)
    os.mkfifo(root / "pipe")
    return root


IMAGES = ["A.JPeG", "b.png", "e.dcm", "scan/1.2.840/1.2.840.7", "scan/IM000001", "ward 3/b.png", "\u80f8"]


@pytest.mark.parametrize("stage", ["predict", "prepare"])
def test_images_are_told_by_their_ending_or_their_first_bytes(films, stage):
    data = ImageFolder(str(films))
    data.setup(stage)
    assert [record.image_id for record in data.records] == IMAGES
    assert [note.image_id for note in data.notes] == ["empty", "notes.txt", "pipe", "scan/DICOMDIR"]
    for record in data.records:
        assert not record.labels and record.files == (films / record.image_id,)
        shown = data.load(record)
        np.testing.assert_allclose(shown.image, GRAY, atol=3 if record.image_id == "A.JPeG" else 0)
        assert not shown.regions


def test_one_file_will_do(films):
    data = ImageFolder(str(films / "scan" / "IM000001"), limit=5)
    data.setup("predict")
    assert [record.image_id for record in data.records] == ["IM000001"]


@pytest.mark.parametrize(
    ("given", "findings"),
    [
        (None, FINDINGS["phantom"]),
        ("effusion, pneumothorax,", ("Pleural Effusion", "Pneumothorax")),
        (["Nodule", "tree in bud", "nodule"], ("Nodule", "tree in bud")),
    ],
)
def test_findings_in_the_words_of_the_user(films, given, findings):
    assert ImageFolder(str(films), findings=given).findings == findings


def test_a_name_that_is_nearly_one_of_ours_is_asked_about(films):
    with pytest.warns(UserWarning, match="Pnuemothorax is not a name that xbench knows.* Did you mean Pneumothorax"):
        ImageFolder(str(films), findings="Pnuemothorax")


@pytest.mark.parametrize(
    ("spoil", "stage", "said"),
    [
        (lambda root: {}, "test", "no annotations.*use `predict`"),
        (lambda root: {"root": str(root / "none")}, "predict", "no such folder or file"),
        (lambda root: {"findings": " ,"}, "predict", "--data.findings: there are no findings"),
        (lambda root: {"findings": "=1"}, "predict", "--data.findings: '=1' is not a name"),
        (lambda root: {"root": str(root / "notes.txt")}, "predict", r"1 other files do \(first: 'notes.txt'\)"),
        (lambda root: (root / "new").mkdir() or {"root": str(root / "new")}, "predict", "nor does any other"),
        (lambda root: (root / "a\nb.png").touch() or {}, "predict", r"image name 'a\\nb.png'"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_paragraph(films, spoil, stage, said):
    with pytest.raises(UserError, match=said) as refused:
        ImageFolder(**{"root": str(films), **spoil(films)}).setup(stage)
    assert "\n" not in str(refused.value)
