"""The written downloads have the variety that other tests rely on without saying so.

That their files hold what they promise shows wherever the product reads them.
"""

from __future__ import annotations

import numpy as np
import pytest
from downloads import CLASSES
from official.base import Official
from PIL import Image


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


def test_files_show_the_images(official):
    """Read by Pillow alone, where it can: no decoder of the product has a part in it."""
    for image_id, path in official.files.items():
        if path.suffix not in (".dcm", ".dicom"):
            shown = np.array(Image.open(path).convert("L"), float)
            assert np.abs(shown - official.images[image_id]).max() <= official.tolerance
