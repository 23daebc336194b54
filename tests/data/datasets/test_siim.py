from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from downloads import Downloads, notes_of, records_of
from official.base import Official
from official.dicom import write_dicom
from official.siim import rows_of, write_mavl_list
from places import SHARED

from xbench.data.datasets.siim import SIIMPneumothorax
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.runtime.errors import UserError
from xbench.types import Failure, Sample

REAL = SHARED / "data" / "siim_acr"
TABLE = "train-rle.csv"
GRAY = np.full((64, 64), 90, np.uint8)


@pytest.fixture
def official(downloads: Downloads) -> Official:
    return downloads("siim")


def small(root: Path, *rows: str, files: tuple[str, ...] = ("a", "b"), header: str = "ImageId, EncodedPixels") -> Path:
    (root / "stage_2_images").mkdir(parents=True)
    for name in files:
        write_dicom(root / "stage_2_images" / f"{name}.dcm", GRAY)
    (root / "stage_2_train.csv").write_text("\n".join([header, *rows]) + "\n")
    return root


def test_the_published_test_list_repeats_images(official, tmp_path):
    chosen = write_mavl_list(official, tmp_path / "test.csv")
    data = SIIMPneumothorax(str(official.root), image_list=str(tmp_path / "test.csv"))
    records = records_of(data)
    assert list(records) == sorted(chosen)
    everything = records_of(SIIMPneumothorax(str(official.root)))
    for name, record in records.items():
        assert record.source == everything[name].source, "with all of its masks, wherever they stand"


def test_an_image_list_and_a_split_are_refused_together(official):
    with pytest.raises(UserError, match="leave one out"):
        SIIMPneumothorax(str(official.root), image_list="list.txt", split="stage1_test")


@pytest.mark.parametrize("mask", ["1", "-1 2", "x y", "0 1048577"])
def test_malformed_masks_fail_with_their_image(tmp_path, mask):
    root = small(tmp_path, "a,-1", f"b,{mask}")
    data = SIIMPneumothorax(str(root))
    data.setup("test")
    samples = data.samples(Preprocessing(stretch((32, 32))))
    assert isinstance(samples[0], Sample)
    failure = samples[1]
    assert isinstance(failure, Failure)
    assert f"{root / 'stage_2_train.csv'}, image b, Pneumothorax: The run-length encoding" in failure.reason


def test_missing_files_are_noted_where_the_folder_decides(official, tmp_path):
    table = tmp_path / "more.csv"
    table.write_text("\n".join(["ImageId,EncodedPixels", *rows_of(official.root / TABLE), "gone,-1\n"]))
    data = SIIMPneumothorax(str(official.root), annotations=str(table), split="stage1_test")
    assert list(records_of(data)) == sorted(official.splits["stage1_test"])
    said = "an annotated image without a file; it is in neither split, which go by the folder"
    assert notes_of(data) == {said: ["gone"]}


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
def test_real_rows(tmp_path):
    spellings = []
    for table in sorted(REAL.glob("*.csv")):
        names = {line.partition(",")[0].strip() for line in rows_of(table)}
        root = small(tmp_path / table.stem, files=tuple(names))
        data = SIIMPneumothorax(str(root), annotations=str(table))
        records = data.read_records(annotated=True)
        spellings.append({record.image_id: (record.labels, data.load(record).regions) for record in records})
    plain, spaced = spellings
    assert (len(plain), len(spaced)) == (15, 14)
    assert sum(labels["Pneumothorax"] == 0 for labels, _ in plain.values()) == 5
    for name, (labels, regions) in spaced.items():
        assert labels == plain[name][0]
        assert len(regions) == len(plain[name][1]) == labels["Pneumothorax"]
        for finding, region in regions.items():
            np.testing.assert_array_equal(region, plain[name][1][finding])
            # Lesions of the lung are not in the outermost columns, where a decoder of absolute starts would put them.
            columns = np.flatnonzero(region.any(axis=0))
            assert columns.min() > 100
            assert columns.max() < 924
