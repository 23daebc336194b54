"""The written downloads of the datasets, each written once a session, and copies of them to be spoiled."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from official.base import Official
from official.chestxdet10 import write_chestxdet10, write_chexdet
from official.chestxray14 import write_chestxray14
from official.chexlocalize import write_chexlocalize
from official.covid import write_covid
from official.dicom import write_dicom
from official.mscxr import write_mscxr
from official.padchestgr import write_padchestgr
from official.rsna import write_rsna
from official.siim import write_siim
from official.tbx11k import write_tbx11k
from official.vindr import write_vindr
from PIL import Image

from xbench.data import (
    MSCXR,
    TBX11K,
    ChestXDet,
    ChestXDet10,
    ChestXray14,
    CheXlocalize,
    COVID19Rural,
    PadChestGR,
    RSNAPneumonia,
    SIIMPneumothorax,
    VinDrCXR,
)
from xbench.data.datasets.downloaded import DownloadedDataset
from xbench.data.records import Record
from xbench.runtime.errors import UserError

CLASSES: dict[str, type[DownloadedDataset]] = {
    cls.name: cls
    for cls in (
        *(RSNAPneumonia, SIIMPneumothorax, COVID19Rural, ChestXDet10, ChestXDet, CheXlocalize, ChestXray14, VinDrCXR),
        *(MSCXR, PadChestGR, TBX11K),
    )
}
_WRITERS = {
    write.__name__.removeprefix("write_"): write
    for write in (
        *(write_rsna, write_siim, write_covid, write_chestxdet10, write_chexdet, write_chexlocalize),
        *(write_chestxray14, write_vindr, write_mscxr, write_padchestgr, write_tbx11k),
    )
}
CUT_OFF = "an annotation reaches over the edge of the image and is cut off there"


@dataclass(frozen=True)
class AnnotationFile:
    """An annotation file of a dataset, and the name of one that is read instead of it if it is there."""

    dataset: str
    path: str
    required: bool = True
    split: str | None = None
    instead_of: str = ""

    def __str__(self) -> str:
        return f"{self.dataset}-{Path(self.path).name}"

    def open(self, root: Path, **options: Any) -> DownloadedDataset:
        return CLASSES[self.dataset](str(root), split=self.split, **options)


ANNOTATION_FILES = (
    AnnotationFile("rsna", "stage_2_train_labels.csv"),
    AnnotationFile("siim", "train-rle.csv"),
    AnnotationFile("covid", "covid_rural_annot/jpgs/jsons/COVID-19-AR-16407002_02-03-2020-XR.json", required=False),
    AnnotationFile("chestxdet10", "test.json"),
    AnnotationFile("chexdet", "ChestX_Det_test.json"),
    AnnotationFile("chexlocalize", "CheXlocalize/gt_segmentations_test.json", required=False),
    AnnotationFile("chexlocalize", "CheXlocalize/gt_annotations_test.json", instead_of="gt_segmentations_test.json"),
    AnnotationFile("chexlocalize", "CheXpert/test_labels.csv"),
    AnnotationFile("chestxray14", "BBox_List_2017.csv"),
    AnnotationFile("chestxray14", "Data_Entry_2017_v2020.csv", required=False),
    AnnotationFile("chestxray14", "test_list.txt", split="test"),
    AnnotationFile("vindr", "annotations/annotations_test.csv"),
    AnnotationFile("vindr", "annotations/image_labels_test.csv", required=False),
    AnnotationFile("vindr", "annotations/annotations_train.csv", split="train"),
    AnnotationFile("mscxr", "MS_CXR_Local_Alignment_v1.1.0.csv"),
    AnnotationFile("padchestgr", "grounded_reports_20240819.json"),
    AnnotationFile("padchestgr", "master_table.csv"),
    AnnotationFile("tbx11k", "annotations/json/TBX11K_val.json"),
)


class Downloads:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[tuple[str, str], Official] = {}

    def __call__(self, name: str, **options: Any) -> Official:
        """A download that nobody may change; unless told otherwise with an annotation that reaches over the edge."""
        if name != "siim":
            options = {"outside": True} | options
        key = name, repr(sorted(options.items()))
        if key not in self._written:
            root = self._folder / f"{name}-{len(self._written)}" / "download"
            root.parent.mkdir()
            self._written[key] = _WRITERS[name](root, **options)
        return self._written[key]

    def copy(self, name: str, root: Path, images: bool = True, **options: Any) -> Official:
        """A copy to spoil; of its images, which are hard links, any may be removed or replaced but not written into."""
        official = self(name, **options)
        for path in official.root.rglob("*"):
            target = root / path.relative_to(official.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                target.mkdir(exist_ok=True)
            elif path.suffix in (".csv", ".json", ".txt"):
                shutil.copyfile(path, target)
            elif images:
                os.link(path, target)
        files = {image_id: root / file.relative_to(official.root) for image_id, file in official.files.items()}
        return replace(official, root=root, files=files)

    def copy_with(self, file: AnnotationFile, root: Path, images: bool = False) -> Path:
        self.copy(file.dataset, root, images=images)
        for other in root.rglob(file.instead_of) if file.instead_of else ():
            other.unlink()
        return root / file.path


def records_of(data: DownloadedDataset) -> dict[str, Record]:
    data.setup("test")
    return {record.image_id: record for record in data.records}


def notes_of(data: DownloadedDataset) -> dict[str, list[str]]:
    notes: dict[str, list[str]] = {}
    for text, image_id in sorted(data.notes):
        notes.setdefault(text, []).append(image_id)
    return notes


def assert_reads(data: DownloadedDataset, official: Official, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Assert that images, labels and regions come back exactly; return the notes of each image that has some."""
    records = records_of(data)
    assert list(records) == sorted(names)
    noted = {}
    for name, record in records.items():
        assert not record.missing
        assert dict(record.labels) == official.labels[name], name
        assert [*(record.queries or ())] == official.queries.get(name, [])
        assert {*record.labels} <= {query.name for query in record.looked_for(data.findings)}
        radiograph = data.load(record)
        expected = official.images[name]
        assert radiograph.image.dtype == np.uint8
        assert radiograph.image.shape == expected.shape
        assert np.abs(radiograph.image.astype(int) - expected).max() <= official.tolerance, name
        masks = official.masks[name]
        assert radiograph.regions.keys() == masks.keys(), name
        for finding, region in radiograph.regions.items():
            assert region.dtype == np.bool_
            np.testing.assert_array_equal(region, masks[finding], err_msg=f"{name} {finding}")
            items = radiograph.instances[finding]
            drawn = [item.draw() for item in items]
            assert all(item.any() for item in drawn)
            np.testing.assert_array_equal(np.any(drawn, axis=0), region)
            if any(item.kind == "box" for item in items):
                boxes = [box for box in official.boxes[name] if box.finding == finding]
                written = [([box.x1, box.y1, box.x2, box.y2], box.reader) for box in boxes]
                assert sorted((item.coordinates.tolist(), item.reader) for item in items) == sorted(written)
        if radiograph.notes:
            noted[name] = radiograph.notes
    return noted


def refusal(name: str, root: Path | str, says: Sequence[str | Path] = (), **options: Any) -> str:
    """The one paragraph with which a dataset refuses what it is given, and which says all of these."""
    with pytest.raises(UserError) as caught:
        CLASSES[name](str(root), **options).setup("test")
    message = str(caught.value)
    assert message.count("\n") == 0
    assert message[-1] in ".?)"
    assert 40 < len(message) < 1500, message
    for part in says:
        assert str(part) in message
    return message


def write_small(root: Path, names: Sequence[str], suffix: str = ".png", size: tuple[int, int] = (16, 16)) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    gray = np.full(size, 90, np.uint8)
    for name in names:
        if suffix in (".dcm", ".dicom"):
            write_dicom(root / f"{name}{suffix}", gray)
        else:
            Image.fromarray(gray).save(root / f"{name}{suffix}")
    return root
