"""Images made to exhaust the memory: decoded in a process that may take 2 GB more, or refused."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pydicom.data
from bounded import assert_outcomes
from official.dicom import write_dicom
from PIL import Image
from pydicom import dcmread, uid
from pydicom.encaps import encapsulate, get_frame

from xbench.data.decoding import MAX_PIXELS, decode_image

ROOM = 2_000_000_000
LARGEST = 11_584  # squared just below MAX_PIXELS
GRAY = np.arange(48 * 64, dtype=np.uint8).reshape(48, 64)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def zeros(length: int) -> bytes:
    """So many zeros as zlib would compress them, without the time that it takes."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    blocks, rest = divmod(length, 2**20)
    packer = zlib.compressobj(9, wbits=-15)
    return (
        b"\x78\xda"
        + block * blocks
        + packer.compress(bytes(rest))
        + packer.flush()
        + struct.pack(">I", (length % 65_521) << 16 | 1)
    )


def png(side: int, bits: int, color: int, *chunks: bytes, samples: int = 1, content: bytes | None = None) -> bytes:
    packed = zeros(side * (1 + -(-side * bits * samples // 8))) if content is None else content
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, bits, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def jpeg(height: int, width: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(GRAY).save(stream, "JPEG")
    content = bytearray(stream.getvalue())
    at = content.index(b"\xff\xc0") + 5
    content[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def dicom(path: Path, encoding: str = "native", frame: bytes | None = None, **tags: object) -> None:
    write_dicom(path, GRAY, "jpeg" if encoding == "jpeg-ls" else encoding)
    dataset = dcmread(path)
    if encoding == "jpeg-ls":
        dataset.file_meta.TransferSyntaxUID = uid.JPEGLSLossless
    for name, value in tags.items():
        setattr(dataset, name, value)
    if frame is not None:
        dataset.PixelData = encapsulate([frame])
    dataset.save_as(path)


def frame_of(folder: Path, encoding: str) -> bytes:
    path = pydicom.data.get_testdata_file("MR_small_jpeg_ls_lossless.dcm", download=False)
    dataset = dcmread(path if encoding == "jpeg-ls" else write_dicom(folder / "a.dcm", GRAY, encoding))
    return get_frame(dataset.PixelData, 0, number_of_frames=1)


def test_bombs(tmp_path):
    folder, aside = tmp_path / "bombs", tmp_path / "aside"
    folder.mkdir()
    aside.mkdir()
    expected: dict[str, str | list[int]] = {}

    def put(name: str, outcome: str | list[int], content: bytes | None = None) -> Path:
        expected[name] = outcome
        if content is not None:
            (folder / name).write_bytes(content)
        return folder / name

    whole, small = [LARGEST] * 2, [48, 64]
    # A thousand times larger than the file, but an image like any other.
    put("gray.png", whole, png(LARGEST, 8, 0))
    put("gray-16.png", whole, png(LARGEST, 16, 0))
    put("rgb.png", whole, png(LARGEST, 8, 2, samples=3))
    put("giant.png", "pixels", png(12_032, 8, 0))
    packed = zeros(10**9)
    put("iccp.png", "too large", png(64, 8, 0, chunk(b"iCCP", b"a\0\0" + packed)))
    put("ztxt.png", "too large", png(64, 8, 0, chunk(b"zTXt", b"a\0\0" + packed)))
    put("itxt.png", "too large", png(64, 8, 0, chunk(b"iTXt", b"a\0\1\0\0\0" + packed)))
    put("many-texts.png", "Too much memory", png(64, 8, 0, *[chunk(b"zTXt", b"a\0\0" + zeros(10**6))] * 300))
    put("endless.png", [64, 64], png(64, 8, 0, content=packed))
    put("giant.jpg", "pixels", jpeg(65_535, 65_535))
    put("wide.jpg", "pixels", jpeg(2_100, 65_000))

    # A thousand million pixels in every way that a header can claim them.
    dicom(put("rows.dcm", "25000 x 40000 pixels"), Rows=40_000, Columns=25_000)
    dicom(put("frames.dcm", "1000000000 frames"), NumberOfFrames=10**9)
    dicom(put("samples.dcm", "damaged"), SamplesPerPixel=65_535)
    dicom(put("bits.dcm", "pixels of 8191 bytes"), BitsAllocated=65_528, Rows=11_000, Columns=11_000)
    dicom(put("four-bytes.dcm", "pixels of 4 bytes"), BitsAllocated=32, Rows=9_000, Columns=9_000)
    dicom(put("short.dcm", "damaged"), Rows=10_000, Columns=10_000)
    dicom(put("two.dcm", "several frames"), Rows=24)
    run = b"\x81\x07" * (2_000_000)
    dicom(put("runs.dcm", small), "rle", frame=struct.pack("<16I", 1, 64, *[0] * 14) + run)
    dicom(put("more-runs.dcm", "run lengths"), "rle", frame=struct.pack("<16I", 1, 64, *[0] * 14) + run * 9)
    # Sparse: three gigabytes that take no room on the disk.
    sparse = put("sparse.dcm", "3221225472 bytes")
    dicom(sparse)
    with sparse.open("r+b") as file:
        at = file.read().rindex(b"\xe0\x7f\x10\x00")
        file.seek(at + 8)
        file.write(struct.pack("<I", 0xFFFFFFFE))
        file.truncate(3 << 30)
    # The compressed image says otherwise than the header around it.
    for encoding in ("jpeg", "jpeg-lossless", "jpeg-ls"):
        frame = bytearray(frame_of(aside, encoding))
        at = next(frame.index(marker) for marker in (b"\xff\xc0", b"\xff\xc3", b"\xff\xf7") if marker in frame)
        dicom(
            put(f"{encoding}.dcm", "has 255"),
            encoding,
            frame=bytes(frame[: at + 5] + struct.pack(">HHB", 48, 64, 255) + frame[at + 10 :]),
        )
    frame = bytearray(frame_of(aside, "jpeg-2000"))
    start = frame.index(b"\xff\x4f\xff\x51")
    many = frame[:start] + frame[start : start + 40] + struct.pack(">H", 16_384) + frame[start + 42 :]
    dicom(put("jpeg-2000.dcm", "has 16384"), "jpeg-2000", frame=bytes(many))
    # In a JP2 file: an image of the right size in a box that nobody looks into, before one of 10^9 pixels.
    huge = bytearray(frame[start:])
    huge[8:16] = struct.pack(">II", 40_000, 25_000)
    boxes = b"\0\0\0\x0cjP  \r\n\x87\n" + struct.pack(">I", 8 + 100) + b"xml " + bytes(frame[start : start + 100])
    wrapped = boxes + struct.pack(">I", 8 + len(huge)) + b"jp2c" + bytes(huge)
    dicom(put("jp2.dcm", "inside 40000 x 25000"), "jpeg-2000", frame=wrapped)
    # Deflated: the larger one inflates to a thousand million zeros.
    write_dicom(put("deflated.dcm", small), GRAY, "deflated")
    content = write_dicom(aside / "a.dcm", GRAY, "deflated").read_bytes()
    (length,) = struct.unpack("<I", content[140:144])
    put("inflated.dcm", "inflates to more than the 268435456 bytes", content[: 144 + length] + packed[2:])
    # Sequences in sequences, without an end.
    content = write_dicom(aside / "a.dcm", GRAY).read_bytes()
    (length,) = struct.unpack("<I", content[140:144])
    nested = b"\x08\0\x40\x11SQ\0\0" + b"\xff" * 4 + b"\xfe\xff\0\xe0" + b"\xff" * 4
    start = 144 + length
    put("nested.dcm", "damaged", content[:start] + nested * 50_000 + content[start:])
    os.mkfifo(put("pipe.png", "a device or a pipe"))
    put("zeros.png", "a device or a pipe").symlink_to("/dev/zero")

    assert_outcomes(folder, expected, lambda path: list(decode_image(path).shape), ROOM, 20)
    assert LARGEST**2 < MAX_PIXELS < 12_032**2
