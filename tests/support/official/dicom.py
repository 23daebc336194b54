"""DICOM files of every kind."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from openjpeg.utils import encode_array
from PIL import Image
from pydicom import Dataset, uid
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate

SYNTAXES = {
    "native": uid.ExplicitVRLittleEndian,
    "implicit": uid.ImplicitVRLittleEndian,
    "deflated": uid.DeflatedExplicitVRLittleEndian,
    "rle": uid.RLELossless,
    "jpeg": uid.JPEGBaseline8Bit,
    "jpeg-lossless": uid.JPEGLosslessSV1,
    "jpeg-2000": uid.JPEG2000Lossless,
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
    elif encoding in ("native", "implicit", "deflated"):
        data = pixels.tobytes()
        dataset.PixelData = data + bytes(len(data) % 2)
        dataset["PixelData"].VR = "OB" if pixels.itemsize == 1 else "OW"
    else:
        dataset.PixelData = encapsulate([_compress(pixels, encoding, dataset.BitsStored)])
    dataset.save_as(path, enforce_file_format=True)
    return path


def secondary_capture(patient: str, instance: str, view: str = "PA") -> dict[str, Any]:
    """Tags of the conversion that RSNA and SIIM share; the patient's age, which is not valid there, is left out."""
    series, study = instance.replace(".1.4.", ".1.3."), instance.replace(".1.4.", ".1.2.")
    return {
        **dict(SOPInstanceUID=instance, SeriesInstanceUID=series, StudyInstanceUID=study),
        **dict(SpecificCharacterSet="ISO_IR 100", StudyDate="19010101", StudyTime="000000.00"),
        **dict(PatientName=patient, PatientID=patient, PatientSex="M", BodyPartExamined="CHEST"),
        **dict(Modality="CR", ConversionType="WSD", ViewPosition=view, SeriesDescription=f"view: {view}"),
        "PixelSpacing": ["0.168", "0.168"],
    }


def _compress(pixels: NDArray[Any], encoding: str, bits: int) -> bytes:
    if encoding == "jpeg-2000":
        return bytes(encode_array(pixels, photometric_interpretation=2, bits_stored=bits))
    if encoding == "jpeg-lossless":
        return _jpeg_lossless(pixels, bits)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def _jpeg_lossless(pixels: NDArray[Any], bits: int) -> bytes:
    """Gray image (H, W) as lossless JPEG (T.81, annex H) with first-order prediction, codes of 5 bits each."""
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
