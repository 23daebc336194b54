"""Decode PNG, JPEG and DICOM files into 8-bit gray images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from xbench.data.gray import MAX_PIXELS as MAX_PIXELS
from xbench.data.gray import NOT_OURS_TO_GUESS, RefusalError, check_size, distinct, stretch
from xbench.runtime.errors import UserError
from xbench.runtime.files import check_readable

_DICOM_SUFFIXES = (".dcm", ".dicom")


def decode_image(path: Path, percentiles: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """Read a PNG, JPEG or DICOM file as a gray image (H, W), uint8, bright where the body attenuates.

    DICOM images (recognized by DICM at byte 128, or the ending) go through the modality LUT or rescale, then the first
    VOI LUT or else window; MONOCHROME1 is inverted. Color becomes its ITU-R BT.601 luma. Transparency is ignored.

    Images of 8 unsigned bits that this leaves unchanged are returned as stored. All others are stretched linearly from
    their minimum and maximum to 0 and 255, and rounded; constant images become zeros. Padding in DICOM files (stored
    values from PixelPaddingValue to PixelPaddingRangeLimit) becomes black and does not count for minimum and maximum.
    `percentiles` sets the window of a PNG of more than 8 bits to these percentiles of its pixels.

    Raise only UserErrors: for files that are missing, damaged, larger than `MAX_PIXELS`, all padding, of several frames
    or not images, and for compression that no installed package decodes.
    """
    try:
        check_readable(path, most=4 * MAX_PIXELS)
        with open(path, "rb") as file:
            head = file.read(132)
        if not head:
            raise RefusalError("the file is empty")
        if head[128:] == b"DICM" or path.suffix.lower() in _DICOM_SUFFIXES:
            from xbench.data.dicom import decode_dicom  # importing pydicom takes a tenth of a second

            return decode_dicom(path)
        return _decode_picture(path, percentiles)
    except RefusalError as error:
        reason = str(error)
    except UnidentifiedImageError:
        reason = "it is not a PNG, JPEG or DICOM file"
    except OSError as error:
        reason = error.strerror or str(error)
    except Exception as error:
        reason = f"the file is damaged ({type(error).__name__}: {error})"
    raise UserError(f"{path} cannot be decoded: {' '.join(reason.split())[:500]}.")


def _decode_picture(path: Path, percentiles: tuple[float, float] | None) -> NDArray[np.uint8]:
    with Image.open(path, formats=("PNG", "JPEG")) as picture:
        check_size(picture.height, picture.width)
        if getattr(picture, "n_frames", 1) > 1:
            raise RefusalError(f"it has several frames, {NOT_OURS_TO_GUESS}")
        if picture.mode.startswith("I"):
            stored = np.array(picture)
            levels, places = distinct(stored)
            if percentiles is not None:
                levels = levels.clip(*np.percentile(stored, percentiles))
            gray: NDArray[np.uint8] = stretch(levels)[places]
            return gray
        return np.array(picture.convert("L"))
