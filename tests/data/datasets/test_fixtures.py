"""The written downloads have the variety that other tests rely on without saying so.

That their files hold what they promise shows wherever the product reads them.
"""

from __future__ import annotations

import numpy as np
import pytest
from downloads import CLASSES
from official.base import Official
from PIL import Image

# Findings of the default split that are positive and negative, and have a region somewhere.
SCORED = {"chestxdet10": 10, "chexlocalize": 10, "chestxray14": 8, "vindr": 19}


@pytest.fixture(params=CLASSES)
def official(request, downloads) -> Official:
    return downloads(request.param)


def test_what_is_promised_is_consistent(official):
    assert official.images.keys() == official.files.keys() >= official.labels.keys() == official.masks.keys()
    assert len({image.tobytes() for image in official.images.values()}) == len(official.images)
    for image_id, masks in official.masks.items():
        for finding, mask in masks.items():
            assert official.labels[image_id][finding] == 1
            assert mask.dtype == bool
            assert mask.shape == official.images[image_id].shape
            assert mask.any()
    for image_id, finding in official.outside:
        mask = official.masks[image_id][finding]
        assert mask[:, 0].any() or mask[:, -1].any()


@pytest.mark.parametrize("name", CLASSES)
def test_the_default_split_has_positives_with_and_without_region_and_negatives(downloads, name):
    official = downloads(name)
    ids = [image_id for image_id in next(iter(official.splits.values())) if image_id in official.labels]
    if name == "siim":
        ids = list(official.labels)
    scored = [
        finding
        for finding in official.labels[ids[0]]
        if len({official.labels[image_id][finding] for image_id in ids}) == 2
        and any(finding in official.masks[image_id] for image_id in ids)
    ]
    assert len(scored) == SCORED.get(name, 1)


def test_files_show_the_images(official):
    """Read by Pillow alone, where it can: no decoder of the product has a part in it."""
    for image_id, path in official.files.items():
        if path.suffix not in (".dcm", ".dicom"):
            shown = np.array(Image.open(path).convert("L"), float)
            assert np.abs(shown - official.images[image_id]).max() <= official.tolerance
