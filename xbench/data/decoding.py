"""Decoding of image files into 8-bit grey: PNG, JPEG and DICOM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from xbench.data.grey import MAX_PIXELS as MAX_PIXELS
from xbench.data.grey import NOT_OURS_TO_GUESS, RefusalError, check_size, distinct, stretch
from xbench.runtime.errors import UserError
from xbench.runtime.files import check_readable

_MAX_FILE = 4 * MAX_PIXELS  # bytes; a sparse one takes no room on the disk
_DICOM_SUFFIXES = (".dcm", ".dicom")


def unreadable(image_id: str, reason: str) -> str:
    """Say that an image cannot be read and why, from the image's name on."""
    return f"{image_id} cannot be read. {reason}"


def decode_image(path: Path, percentiles: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """Read a PNG, JPEG or DICOM file as a grey image, bright where the body attenuates.

    A DICOM image goes through the modality LUT or rescale, then the first VOI LUT or, without one, the first window,
    and is inverted if it is MONOCHROME1. Colour (RGB, YBR, palette) becomes its ITU-R BT.601 luma; transparency is
    ignored.

    The step to 8 bits: an image stored in 8 unsigned bits that none of those tags changes is taken as it is. Any other
    (more or fewer bits, signed, 16-bit PNG, LUT, window, palette) is stretched linearly from its own minimum and
    maximum, after windowing, to 0 and 255, and rounded to nearest. A constant one becomes all zeros. If `percentiles`
    are given, the window of a PNG of more than 8 bits lies between these two of its pixels. Pixels that a DICOM file
    calls padding (PixelPaddingValue, to PixelPaddingRangeLimit if there is one; both are stored values, before any LUT)
    are black in the end, and have no part in that minimum and maximum.

    DICOM is told by the letters DICM at byte 128 or by the file's name, `.dcm` or `.dicom`. The result is (H, W) uint8.
    Whatever a file holds, nothing but a UserError is raised: for a file that is missing, empty, damaged, no image, of
    several frames, larger than `MAX_PIXELS`, all padding, or compressed in a way that no installed package decodes.
    """
    try:
        check_readable(path, _MAX_FILE)
        with open(path, "rb") as file:
            head = file.read(132)
        if not head:
            raise RefusalError("the file is empty")
        if head[128:] == b"DICM" or path.suffix.lower() in _DICOM_SUFFIXES:
            from xbench.data.dicom import decode_dicom  # pydicom takes a tenth of a second

            return decode_dicom(path)
        return _decode_picture(path, percentiles)
    except RefusalError as error:
        reason = str(error)
    except UnidentifiedImageError:
        reason = "it is not a PNG, JPEG or DICOM file"
    except OSError as error:
        reason = error.strerror or str(error)
    # The parsers meet arbitrary bytes here, and raise almost anything at them.
    except Exception as error:
        reason = f"the file is damaged ({type(error).__name__}: {error})"
    raise UserError(f"{path} cannot be decoded: {' '.join(reason.split())[:500]}.")


def _decode_picture(path: Path, percentiles: tuple[float, float] | None) -> NDArray[np.uint8]:
    with Image.open(path, formats=("PNG", "JPEG")) as picture:
        check_size(picture.height, picture.width)
        if getattr(picture, "n_frames", 1) > 1:
            raise RefusalError(f"it holds several frames, {NOT_OURS_TO_GUESS}")
        if picture.mode.startswith("I"):
            stored = np.array(picture)
            levels, places = distinct(stored)
            if percentiles is not None:
                levels = levels.clip(*np.percentile(stored, percentiles))
            grey: NDArray[np.uint8] = stretch(levels)[places]
            return grey
        return np.array(picture.convert("L"))
