from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from downloads import CLASSES

from xbench.data import VinDrCXR

PATIENTS = {
    "chestxray14": lambda name: name[:8],
    "chexlocalize": lambda name: name[: len("patient00000")],
    "covid": lambda name: name[: len("COVID-19-AR-00000000")],
}


@pytest.mark.parametrize("dataset", sorted(CLASSES))
def test_patients_are_known_where_names_tell(downloads, dataset):
    data = CLASSES[dataset](str(downloads(dataset).root))
    data.setup("test")
    whose = PATIENTS.get(dataset, downloads(dataset).patients.get)
    assert all(record.patient_id == whose(record.image_id) for record in data.records)


@pytest.mark.parametrize("layout", ["physionet", "kaggle"])
def test_agreement_of_readers_is_the_mean_over_pairs_of_them(downloads, layout):
    official = downloads("vindr", layout=layout, outside=False)
    data = VinDrCXR(str(official.root), split="train")
    data.setup("test")
    compared = 0
    for record in data.records:
        height, width = official.images[record.image_id].shape
        agreement = data.load(record).reader_agreement
        for finding in data.findings:
            masks = {}
            for box in official.boxes.get(record.image_id, []):
                if box.finding == finding:
                    mask = masks.setdefault(box.reader, np.zeros((height, width), bool))
                    mask[box.y1 : box.y2, box.x1 : box.x2] = True
            if len(masks) < 2:
                assert finding not in agreement
                continue
            pairs = list(combinations(masks.values(), 2))
            iou = np.mean([(a & b).sum() / (a | b).sum() for a, b in pairs])
            dice = np.mean([2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in pairs])
            assert agreement[finding] == (pytest.approx(dice), pytest.approx(iou))
            compared += 1
    assert compared >= 2
    consensus = VinDrCXR(str(downloads("vindr").root))
    assert not any(consensus.load(record).reader_agreement for record in consensus.read_records(annotated=True))
