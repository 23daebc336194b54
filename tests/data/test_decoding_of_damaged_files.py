from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pydicom.data
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official.dicom import write_dicom
from PIL import Image

from xbench.data.decoding import decode_image
from xbench.runtime.errors import UserError

RAMP = (np.add.outer(np.arange(48), np.arange(64)) * 2).astype(np.uint8)
TAGS = {"WindowCenter": [100, 1], "WindowWidth": [150, 2], "RescaleSlope": "1.5", "RescaleIntercept": "-3"}


def _picture(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(RAMP).save(stream, kind)
    return stream.getvalue()


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("sound")
    files = {"png": _picture("PNG"), "jpg": _picture("JPEG")}
    for encoding in ("native", "deflated", "rle", "jpeg", "jpeg-lossless", "jpeg-2000"):
        files[f"{encoding}.dcm"] = write_dicom(folder / "a.dcm", RAMP, encoding, TAGS).read_bytes()
    for name in ("MR_small_jpeg_ls_lossless.dcm", "JPGExtended.dcm", "examples_palette.dcm"):
        if path := pydicom.data.get_testdata_file(name, download=False):
            files[name] = Path(path).read_bytes()
    return files


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 11), CHANGES, st.booleans(), st.none() | st.floats(0, 1))
def test_only_user_errors(sound, tmp_path, which, changes, early, cut):
    name = list(sound)[which % len(sound)]
    damaged = bytearray(sound[name])
    for place, value in changes:
        # Headers are short, and most of what can go wrong is in them.
        damaged[int(place * (min(len(damaged), 900) if early else len(damaged)))] = value
    if cut is not None:
        del damaged[int(cut * len(damaged)) :]
    path = tmp_path / f"image.{name.rpartition('.')[2]}"
    path.write_bytes(damaged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            gray = decode_image(path)
        except UserError as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)
        else:
            assert gray.dtype == np.uint8
            assert gray.ndim == 2


def test_a_truncated_file_never_shows_other_pixels(sound, tmp_path):
    refused = 0
    for name, content in sound.items():
        path = tmp_path / f"image.{name.rpartition('.')[2]}"
        path.write_bytes(content)
        whole = decode_image(path)
        lengths = {*range(0, len(content), len(content) // 20), len(content) - 30, len(content) - 3}
        for length in lengths:
            path.write_bytes(content[:length])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    np.testing.assert_array_equal(decode_image(path), whole)
                except UserError:
                    refused += 1
    assert refused > 0.9 * 20 * len(sound)
