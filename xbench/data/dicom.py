"""Decode DICOM files into 8-bit gray images; separate from `decoding` because importing pydicom takes time."""

from __future__ import annotations

import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread, uid
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import get_frame
from pydicom.errors import InvalidDicomError
from pydicom.filereader import read_dataset, read_file_meta_info
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.processing import apply_color_lut
from pydicom.pixels.utils import pixel_array

from xbench.data.gray import MAX_DECODED, NOT_OURS_TO_GUESS, RefusalError, check_size, distinct, stretch

# Bytes of run lengths; each decodes to up to 64 bytes.
_MAX_RUNS = 2**25
_LUMA = (0.299, 0.587, 0.114)
_DAMAGED = "the compressed image inside is damaged"

# One fixed decoder per format, because decoders of lossy JPEG differ by a gray level: pydicom's name, and packages.
_CODECS: dict[uid.UID, tuple[str, str]] = {
    uid.RLELossless: ("pydicom", "pydicom"),
    uid.JPEGBaseline8Bit: ("pillow", "pillow"),
    **dict.fromkeys(
        (uid.JPEGExtended12Bit, uid.JPEGLossless, uid.JPEGLosslessSV1, uid.JPEGLSLossless, uid.JPEGLSNearLossless),
        ("pylibjpeg", "pylibjpeg pylibjpeg-libjpeg"),
    ),
    **dict.fromkeys(
        (uid.JPEG2000Lossless, uid.JPEG2000, uid.HTJ2KLossless, uid.HTJ2KLosslessRPCL, uid.HTJ2K),
        ("pylibjpeg", "pylibjpeg pylibjpeg-openjpeg"),
    ),
}


def decode_dicom(path: Path) -> NDArray[np.uint8]:
    """Read a DICOM file as documented in `decode_image`; invalid files raise a `RefusalError` or pydicom's errors."""
    try:
        meta = read_file_meta_info(path)
    except InvalidDicomError:
        raise RefusalError("it is not a DICOM file") from None
    decoder = _find_decoder(meta.get("TransferSyntaxUID"))
    deflated = meta.TransferSyntaxUID == uid.DeflatedExplicitVRLittleEndian
    header = _inflate(path, meta) if deflated else dcmread(path)
    for tag in ("PixelData", "Rows", "Columns", "BitsStored", "PhotometricInterpretation"):
        if header.get(tag) is None:
            raise RefusalError(f"the DICOM header lacks {tag}")
    if int(header.get("NumberOfFrames") or 1) != 1:
        raise RefusalError(f"it has {header.NumberOfFrames} frames, {NOT_OURS_TO_GUESS}")
    rows, columns, samples = int(header.Rows), int(header.Columns), int(header.get("SamplesPerPixel") or 1)
    check_size(rows, columns, samples * -(-int(header.get("BitsAllocated") or 8) // 8))
    _check_stored(header, decoder, rows, columns, samples)
    stored = pixel_array(header, decoding_plugin=decoder)

    photometric = str(header.PhotometricInterpretation).strip()
    color = not photometric.startswith(("MONOCHROME", "PALETTE"))
    if stored.ndim != (3 if color else 2):
        raise RefusalError(f"its pixels, {stored.shape}, are not {photometric}")
    eight_bits = int(header.BitsStored) == 8 and stored.dtype.kind == "u" and stored.max() < 256
    if color:
        luma = np.empty(stored.shape[:2])
        # Save memory: float64 takes eight times as much.
        for top in range(0, rows, 64):
            luma[top : top + 64] = stored[top : top + 64] @ _LUMA
        return np.rint(luma, out=luma).astype(np.uint8) if eight_bits else stretch(luma)
    levels, places = distinct(stored)
    shown = ~_padding(levels, stored.dtype.kind == "i", header)
    if not shown.any():
        raise RefusalError(f"all its pixels are padding (PixelPaddingValue {header.PixelPaddingValue})")
    levels = levels[shown]
    if photometric.startswith("PALETTE"):
        gray = stretch(apply_color_lut(levels.astype(stored.dtype), header) @ _LUMA)
    else:
        values = _voi(_modality(levels, header), header)
        as_stored = eight_bits and values is levels
        gray = values.astype(np.uint8) if as_stored else stretch(values)
        if photometric == "MONOCHROME1" and (as_stored or gray.any()):
            gray = 255 - gray
    all_gray = np.zeros(len(shown), np.uint8)
    all_gray[shown] = gray
    image: NDArray[np.uint8] = all_gray[places]
    return image


def _inflate(path: Path, meta: FileMetaDataset) -> Dataset:
    """Read a deflated DICOM file up to a size limit, which pydicom lacks: a byte may inflate to a thousand."""
    with open(path, "rb") as file:
        # After the preamble and the group of the meta information.
        file.seek(144 + meta.FileMetaInformationGroupLength)
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        content = inflater.decompress(file.read(), MAX_DECODED + 1)
    if len(content) > MAX_DECODED:
        raise RefusalError(f"it inflates to more than the {MAX_DECODED} bytes that are read")
    if not inflater.eof:
        raise RefusalError("its deflated content is cut off")
    header = read_dataset(BytesIO(content), False, True)
    header.file_meta = meta
    header.set_original_encoding(False, True)
    return header


def _padding(levels: NDArray[np.float64], signed: bool, header: Dataset) -> NDArray[np.bool_]:
    """Return which stored values are padding (DICOM PS3.3, C.7.5.1.1.2)."""
    value, limit = header.get("PixelPaddingValue"), header.get("PixelPaddingRangeLimit")
    if value is None:
        return np.zeros(levels.shape, np.bool_)
    # The value's two bytes are signed if the pixels are, whatever the tag says. The limit is below it in MONOCHROME1.
    ends = np.array([value, value if limit is None else limit], np.int64).astype(np.int16 if signed else np.uint16)
    padding: NDArray[np.bool_] = (levels >= ends.min()) & (levels <= ends.max())
    return padding


def _find_decoder(syntax: uid.UID | None) -> str:
    if syntax is None:
        raise RefusalError("the DICOM header lacks the encoding of its pixels (TransferSyntaxUID)")
    if syntax in uid.UncompressedTransferSyntaxes:
        return ""
    if syntax not in _CODECS:
        raise RefusalError(f"its transfer syntax {syntax.name} ({syntax}) is not supported; convert the file")
    decoder, packages = _CODECS[syntax]
    if decoder not in get_decoder(syntax).available_plugins:
        raise RefusalError(f"its transfer syntax {syntax.name} ({syntax}) needs a codec: pip install {packages}")
    return decoder


def _check_stored(header: Dataset, decoder: str, rows: int, columns: int, samples: int) -> None:
    if not decoder:
        # pydicom decodes two frames if there are enough bytes, despite the header. One byte may be padded to two.
        if len(header.PixelData) >= max(4, 2 * rows * columns * samples * -(-int(header.BitsAllocated) // 8)):
            raise RefusalError(f"it has several frames, {NOT_OURS_TO_GUESS}")
        return
    frame = get_frame(header.PixelData, 0, number_of_frames=1)
    if decoder == "pydicom":
        if len(frame) > _MAX_RUNS:
            raise RefusalError(f"its run lengths take {len(frame)} bytes, more than the {_MAX_RUNS} that are read")
        return
    # The decoders trust the size in the frame instead of the header, and fill missing data with gray.
    height, width, components = _jpeg_size(frame) if frame[:2] == b"\xff\xd8" else _jpeg2000_size(frame)
    if (height, width) != (rows, columns):
        inside = f"the compressed image inside {width} x {height}"
        raise RefusalError(f"the DICOM header has {columns} x {rows} pixels, {inside}")
    if components != samples:
        inside = f"the compressed image inside has {components}"
        raise RefusalError(f"the DICOM header has {samples} values per pixel, {inside}")
    # A pad byte may follow the end-of-image marker.
    if b"\xff\xd9" not in frame[-10:]:
        raise RefusalError("the compressed image inside is cut off")


def _jpeg_size(frame: bytes) -> tuple[int, int, int]:
    """Return height, width and components from the frame header of a JPEG or JPEG-LS image (ITU-T T.81, B.2.2)."""
    at = 2
    while at + 10 <= len(frame) and frame[at] == 0xFF:
        marker = frame[at + 1]
        if marker in (0xC0, 0xC1, 0xC2, 0xC3, 0xF7):
            return int.from_bytes(frame[at + 5 : at + 7]), int.from_bytes(frame[at + 7 : at + 9]), frame[at + 9]
        # Fill bytes may precede a marker.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(frame[at + 2 : at + 4])
    raise RefusalError(_DAMAGED)


def _jpeg2000_size(frame: bytes) -> tuple[int, int, int]:
    """Return height, width and components from a JPEG 2000 main header (ISO/IEC 15444-1, A.5.1 and I.4)."""
    start = 0
    # In a JP2 file, find the box with the image; other boxes may hold bytes that look like one.
    while frame[start : start + 2] != b"\xff\x4f":
        length, kind = int.from_bytes(frame[start : start + 4]), frame[start + 4 : start + 8]
        if kind != b"jp2c" and length < 8:
            raise RefusalError(_DAMAGED)
        start += 8 if kind == b"jp2c" else length
        if kind == b"jp2c":
            break
    if frame[start : start + 4] != b"\xff\x4f\xff\x51":
        raise RefusalError(_DAMAGED)
    right, bottom, left, top = np.frombuffer(frame, ">u4", 4, start + 8).tolist()
    return bottom - top, right - left, int.from_bytes(frame[start + 40 : start + 42])


def _modality(stored: NDArray[np.float64], header: Dataset) -> NDArray[np.float64]:
    """Apply the modality LUT or rescale (DICOM PS3.3, C.11.1); return `stored` itself if there is none."""
    if header.get("ModalityLUTSequence"):
        return _look_up(stored, header.ModalityLUTSequence[0], header)
    slope, intercept = header.get("RescaleSlope"), header.get("RescaleIntercept")
    if slope is None or intercept is None or (slope == 1 and intercept == 0):
        return stored
    return stored * float(slope) + float(intercept)


def _voi(values: NDArray[np.float64], header: Dataset) -> NDArray[np.float64]:
    """Apply the first VOI LUT or window (DICOM PS3.3, C.11.2); return `values` itself if there is none."""
    if header.get("VOILUTSequence"):
        return _look_up(values, header.VOILUTSequence[0], header)
    window = header.get("WindowCenter"), header.get("WindowWidth")
    if None in window:
        return values
    # Of several alternative windows, use the first.
    center, width = (float(np.ravel(value)[0]) for value in window)
    function = str(header.get("VOILUTFunction") or "LINEAR").strip().upper()
    if function == "LINEAR":
        center, width = center - 0.5, width - 1
    if width < 0 or (width == 0 and function != "LINEAR"):
        raise RefusalError(f"a {function} window of width {window[1]} is not defined")
    if width == 0:
        return (values > center).astype(np.float64)
    if function in ("LINEAR", "LINEAR_EXACT"):
        return np.clip((values - center) / width + 0.5, 0, 1)
    if function == "SIGMOID":
        # 1 / (1 + exp(-4 x)), without overflow.
        return 0.5 + 0.5 * np.tanh(2 * (values - center) / width)
    raise RefusalError(f"the window function {function} is not defined")


def _look_up(values: NDArray[np.float64], item: Dataset, header: Dataset) -> NDArray[np.float64]:
    """Map values through a LUT; values beyond its ends get its first or last entry (DICOM PS3.3, C.11.1.1)."""
    count, first, _ = (int(number) for number in item.LUTDescriptor)
    # 0 means 65536; a count read as signed wraps around.
    count = count % 65536 or 65536
    entries = item.LUTData
    if isinstance(entries, bytes):
        # 8-bit entries may be packed two to a word.
        kind = "u1" if len(entries) < 2 * count else "<u2" if header.original_encoding[1] else ">u2"
        entries = np.frombuffer(entries, kind, count)
    table = np.ravel(entries).astype(np.float64)
    if len(table) < count:
        raise RefusalError(f"a LUT of {count} entries holds {len(table)}")
    places = np.clip(np.rint(values) - first, 0, count - 1)
    found: NDArray[np.float64] = table[places.astype(np.int64)]
    return found
