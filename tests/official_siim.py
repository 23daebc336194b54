"""Phantoms written to disk the way SIIM-ACR Pneumothorax is published, and DICOM files of every kind."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openjpeg.utils import encode_array
from PIL import Image
from pydicom import Dataset, uid
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate

from xbench.phantom import draw_phantom

SIDE = 1024

SYNTAXES = {
    "native": uid.ExplicitVRLittleEndian,
    "implicit": uid.ImplicitVRLittleEndian,
    "rle": uid.RLELossless,
    "jpeg": uid.JPEGBaseline8Bit,
    "jpeg-lossless": uid.JPEGLosslessSV1,
    "jpeg-2000": uid.JPEG2000Lossless,
}


@dataclass
class Official:
    """A folder laid out like the download.

    Attributes:
        root: The folder.
        images: The image that each file shows, by name.
        masks: The pneumothorax of each positive image (1024, 1024), by name.
    """

    root: Path
    images: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    masks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)


def write_official(
    root: Path, positives: int = 6, negatives: int = 4, header: str = "ImageId, EncodedPixels", before: str = ""
) -> Official:
    """Write phantoms with and without a pneumothorax.

    Args:
        root: Where to; created.
        positives: Images with a pneumothorax. Every second one has several, overlapping masks.
        negatives: Images without.
        header: First line of the annotation file.
        before: What stands before each encoded mask.
    """
    official = Official(root)
    rows = []
    wanted = {True: positives, False: negatives}
    index = 0
    while any(wanted.values()):
        phantom = draw_phantom(0, index, SIDE // 8, SIDE // 8)
        mask = phantom.masks.get("Pneumothorax")
        index += 1
        if not wanted[mask is not None]:
            continue
        wanted[mask is not None] -= 1
        name = f"1.2.276.0.7230010.3.1.4.8323329.{index}.1517875201.{850000 + index}"
        official.images[name] = image = enlarge(phantom.image)
        # Full range, so that the stretch to 8 bits gives the image back.
        image[0, :2] = 0, 255
        number = len(official.images)
        folder = root / ("dicom-images-test" if number % 4 == 0 else "dicom-images-train") / f"{index}.1" / f"{index}.2"
        folder.mkdir(parents=True)
        write_dicom(folder / f"{name}.dcm", *_as_published(image, number))
        if mask is None:
            rows.append(f"{name},{before}-1")
            continue
        official.masks[name] = enlarge(mask)
        for part in split(official.masks[name]) if number % 2 else [official.masks[name]]:
            rows.append(f"{name},{before}{encode_relative_rle(part)}")
    # Every third row first: the rows of one image are never neighbours.
    scattered = [row for start in range(3) for row in rows[start::3]]
    (root / "train-rle.csv").write_text("\n".join([header, *scattered, scattered[0]]) + "\n")
    return official


def enlarge(pixels: NDArray[Any]) -> NDArray[Any]:
    """Make every pixel of a drawing 8 x 8, which is quicker than to draw at full size."""
    return pixels.repeat(8, axis=0).repeat(8, axis=1)


def split(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Three overlapping masks with the union `mask`; empty ones are left out."""
    rows = np.flatnonzero(mask.any(axis=1))
    parts = []
    for low, high in ((0.0, 0.4), (0.3, 0.7), (0.6, 1.0)):
        part = np.zeros_like(mask)
        chosen = rows[int(low * len(rows)) : int(np.ceil(high * len(rows)))]
        part[chosen] = mask[chosen]
        if part.any():
            parts.append(part)
    return parts


def encode_relative_rle(mask: NDArray[np.bool_]) -> str:
    """The encoding of SIIM-ACR, pixel by pixel."""
    numbers, gap, run = [], 0, 0
    for on in [*mask.T.ravel().tolist(), False]:
        if on:
            run += 1
        elif run:
            numbers += [gap, run]
            gap, run = 1, 0
        else:
            gap += 1
    return " ".join(map(str, numbers))


def _as_published(image: NDArray[np.uint8], number: int) -> tuple[NDArray[Any], str, dict[str, Any]]:
    """An image as pixels, encoding and tags of a DICOM file that shows it; the kinds take turns.

    The official files are all of the first kind.
    """
    image = image.astype(np.int64)
    kinds: list[tuple[NDArray[Any], str, dict[str, Any]]] = [
        (image.astype(np.uint8), "jpeg", {}),
        (image.astype(np.uint8), "native", {}),
        (image.astype(np.uint8), "rle", {}),
        ((4095 - image * 16 - 7).astype(np.uint16), "native", _inverted(12, 2048, 4080)),
        ((image * 257).astype(np.uint16), "jpeg-2000", {}),
        ((image - 1024).astype(np.int16), "native", {"RescaleSlope": "2", "RescaleIntercept": "2048"}),
    ]
    return kinds[(number - 1) % len(kinds)]


def _inverted(bits: int, centre: int, width: int) -> dict[str, Any]:
    return {
        "BitsStored": bits,
        "HighBit": bits - 1,
        "PhotometricInterpretation": "MONOCHROME1",
        "WindowCenter": [centre, 1],
        "WindowWidth": [width, 1],
        "VOILUTFunction": "LINEAR_EXACT",
    }


def write_dicom(
    path: Path, pixels: NDArray[Any], encoding: str = "native", tags: Mapping[str, Any] | None = None
) -> Path:
    """Write (H, W) or (H, W, 3) integers as DICOM, in the bits of their type unless `tags` say otherwise."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.SOPClassUID = uid.SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = "1.2.3.4"
    dataset.Rows, dataset.Columns = pixels.shape[:2]
    dataset.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
    dataset.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
    if pixels.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = dataset.BitsStored = pixels.itemsize * 8
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    for name, value in (tags or {}).items():
        setattr(dataset, name, value)
    dataset.file_meta.TransferSyntaxUID = SYNTAXES[encoding]
    if encoding == "rle":
        dataset.file_meta.TransferSyntaxUID = SYNTAXES["native"]
        dataset.PixelData = pixels.tobytes()
        dataset.compress(uid.RLELossless, generate_instance_uid=False)
    elif encoding in ("native", "implicit"):
        data = pixels.tobytes()
        dataset.PixelData = data + bytes(len(data) % 2)
        dataset["PixelData"].VR = "OB" if pixels.itemsize == 1 else "OW"
    else:
        dataset.PixelData = encapsulate([_compress(pixels, encoding, dataset.BitsStored)])
    dataset.save_as(path, enforce_file_format=True)
    return path


def _compress(pixels: NDArray[Any], encoding: str, bits: int) -> bytes:
    if encoding == "jpeg-2000":
        return bytes(encode_array(pixels, photometric_interpretation=2, bits_stored=bits))
    if encoding == "jpeg-lossless":
        return jpeg_lossless(pixels, bits)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def jpeg_lossless(pixels: NDArray[Any], bits: int) -> bytes:
    """Grey image (H, W) as lossless JPEG with first-order prediction (ITU-T T.81, annex H), codes of 5 bits each."""
    height, width = pixels.shape
    code = []
    above = 1 << (bits - 1)
    for row in pixels.tolist():
        left = above
        for value in row:
            difference = (value - left + 32768) % 65536 - 32768
            size = abs(difference).bit_length()
            code.append(f"{size:05b}")
            # A negative number is written less 1; -32768 has no bits of its own.
            if 0 < size < 16:
                code.append(f"{difference if difference > 0 else difference + (1 << size) - 1:0{size}b}")
            left = value
        above = row[0]
    text = "".join(code)
    text += "1" * (-len(text) % 8)
    scan = int(text, 2).to_bytes(len(text) // 8).replace(b"\xff", b"\xff\x00")
    return b"".join(
        [
            b"\xff\xd8",
            _segment(0xC3, bytes([bits]) + height.to_bytes(2) + width.to_bytes(2) + bytes([1, 1, 0x11, 0])),
            _segment(0xC4, bytes([0, *[0] * 4, 17, *[0] * 11, *range(17)])),
            _segment(0xDA, bytes([1, 1, 0, 1, 0, 0])),
            scan,
            b"\xff\xd9",
        ]
    )


def _segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2) + content


def rows_of(path: Path) -> Sequence[str]:
    """Lines of an annotation file after the header."""
    return path.read_text().splitlines()[1:]
