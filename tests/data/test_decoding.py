from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pydicom.data
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official.dicom import SYNTAXES, write_dicom
from PIL import Image
from places import SHARED
from pydicom import Dataset, dcmread
from pydicom.encaps import encapsulate, get_frame
from pydicom.pixels.utils import pixel_array
from pydicom.sequence import Sequence

from xbench.data import dicom
from xbench.data.decoding import decode_image
from xbench.runtime.errors import UserError

REAL = SHARED / "data" / "siim_acr"
RNG = np.random.default_rng(0)
GRAY = RNG.integers(20, 240, (48, 64), dtype=np.uint8)
DEEP = RNG.integers(0, 4096, (48, 64), dtype=np.uint16)
COLOUR = RNG.integers(0, 256, (48, 64, 3), dtype=np.uint8)
TWELVE_BITS = {"BitsStored": 12, "HighBit": 11}
LUMA = (0.299, 0.587, 0.114)


def stretched(values: list[float]) -> list[int]:
    low, high = min(values), max(values)
    return [0 if high == low else round((value - low) * 255 / (high - low)) for value in values]


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        decode_image(path)
    message = str(caught.value)
    assert message.startswith(f"{path} cannot be decoded: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1"])
def test_png_modes(tmp_path, mode):
    picture = Image.fromarray(COLOUR).convert(mode)
    if "A" in mode:
        picture.putalpha(Image.fromarray(RNG.integers(0, 256, GRAY.shape, dtype=np.uint8)))
    picture.save(tmp_path / "a.png")
    rgb = np.array(picture.convert("RGBA"), float)[..., :3]
    expected = rgb @ LUMA
    decoded = decode_image(tmp_path / "a.png")
    assert decoded.dtype == np.uint8
    assert decoded.flags.writeable
    assert np.abs(decoded - expected).max() <= 1
    if mode in ("L", "1"):
        np.testing.assert_array_equal(decoded, rgb[..., 0])


@pytest.mark.parametrize("encoding", [name for name in SYNTAXES if name != "jpeg"])
@pytest.mark.parametrize(("pixels", "tags"), [(GRAY, {}), (DEEP, TWELVE_BITS), (DEEP * 16, {})])
def test_lossless_encodings(tmp_path, encoding, pixels, tags):
    path = write_dicom(tmp_path / "a.dcm", pixels, encoding, tags)
    expected = pixels.ravel().tolist() if pixels is GRAY else stretched(pixels.ravel().tolist())
    np.testing.assert_array_equal(decode_image(path).ravel(), expected)


def test_dicom_jpeg_equals_the_same_jpeg_in_a_file(tmp_path):
    dicom = write_dicom(tmp_path / "a.dcm", GRAY, "jpeg")
    Image.fromarray(GRAY).save(tmp_path / "a.jpg", "JPEG", quality=95)
    np.testing.assert_array_equal(decode_image(dicom), decode_image(tmp_path / "a.jpg"))


def shipped(name: str) -> Path:
    path = pydicom.data.get_testdata_file(name, download=False)
    if path is None:
        pytest.skip(f"{name} does not come with this pydicom")
    return Path(path)


def written(path: Path, encoding: str) -> Path:
    """A file of an encoding; that of JPEG-LS comes with pydicom, as nothing here can write one."""
    if encoding != "jpeg-ls":
        return write_dicom(path, GRAY, encoding)
    return Path(shutil.copyfile(shipped("MR_small_jpeg_ls_lossless.dcm"), path))


@pytest.mark.parametrize("variant", ["RLE", "jp2klossless", "jpeg_ls_lossless", "bigendian", "expb", "implicit"])
def test_one_image_in_many_syntaxes(variant):
    reference = dcmread(shipped("MR_small.dcm"))
    values = np.frombuffer(reference.PixelData, "<i2").tolist()
    center, width = float(reference.WindowCenter), float(reference.WindowWidth)
    expected = stretched([min(max((value - center + 0.5) / (width - 1) + 0.5, 0), 1) for value in values])
    np.testing.assert_array_equal(decode_image(shipped(f"MR_small_{variant}.dcm")).ravel(), expected)


COLOURED = (
    *("rgb_rle", "rgb_gdcm_KY", "rgb_jpeg_gdcm", "rgb_jls_lossy_line", "rgb_dcmtk_+eb+cr", "rgb_dcmtk_+eb+cy+np"),
    *("rgb_dcmtk_+eb+cy+s4", "ybr_full_422_uncompressed", "rgb_small_odd_big_endian"),
)


@pytest.mark.parametrize("name", COLOURED)
def test_colour_becomes_luma(name):
    path = shipped(f"SC_{name}.dcm")
    rgb = pixel_array(path).astype(float)
    assert np.abs(decode_image(path) - rgb @ LUMA).max() <= 2


@pytest.mark.parametrize("padding", [None, 3])
def test_palette(tmp_path, padding):
    indices = np.concatenate([[0, 1, 2, 3], RNG.integers(0, 4, 44)]).astype(np.uint8).reshape(6, 8)
    entries = {"Red": [0, 50, 200, 255], "Green": [0, 80, 10, 255], "Blue": [0, 90, 60, 255]}
    tags: dict[str, object] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for color, table in entries.items():
        tags[f"{color}PaletteColorLookupTableDescriptor"] = [4, 0, 16]
        tags[f"{color}PaletteColorLookupTableData"] = np.array(table, "<u2").tobytes()
    if padding is not None:
        tags["PixelPaddingValue"] = padding
    luma = (np.array(list(entries.values())).T @ LUMA)[indices]
    decoded = decode_image(write_dicom(tmp_path / "a.dcm", indices, tags=tags))
    shown = indices != padding
    np.testing.assert_array_equal(decoded[shown], stretched(luma[shown].tolist()))
    assert not decoded[~shown].any()


@pytest.mark.parametrize(
    ("kind", "tags"),
    [("u1", {}), ("u1", {"RescaleSlope": "1", "RescaleIntercept": "0"}), ("u2", {"BitsStored": 8, "HighBit": 7})],
)
def test_untouched_8_bits_stay_as_they_are(tmp_path, kind, tags):
    np.testing.assert_array_equal(decode_image(write_dicom(tmp_path / "a.dcm", GRAY.astype(kind), tags=tags)), GRAY)


WINDOWS = st.fixed_dictionaries(
    {
        "WindowCenter": st.integers(-3000, 6000),
        "WindowWidth": st.integers(1, 5000),
        "VOILUTFunction": st.sampled_from([None, "LINEAR", "LINEAR_EXACT", "SIGMOID"]),
        "RescaleSlope": st.sampled_from([None, "1", "-2", "0.25"]),
        "RescaleIntercept": st.sampled_from(["0", "-1024"]),
        "PhotometricInterpretation": st.sampled_from(["MONOCHROME1", "MONOCHROME2"]),
    }
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WINDOWS, st.sampled_from([np.uint8, np.int8, np.uint16, np.int16, np.int32]), st.integers(0, 99))
def test_tags_against_a_plain_loop(tmp_path, tags, kind, seed):
    tags = {name: value for name, value in tags.items() if value is not None}
    if tags.get("VOILUTFunction") == "SIGMOID":
        # So far out on its tails that all values are one to the last bit, a sigmoid has no contrast to compare.
        tags["WindowWidth"] += 2000
    limits = np.iinfo(kind)
    pixels = np.random.default_rng(seed).integers(max(limits.min, -4000), min(limits.max, 4000), (6, 6)).astype(kind)
    path = write_dicom(
        tmp_path / "a.dcm",
        pixels,
        tags={**tags, "WindowCenter": [tags["WindowCenter"], 7], "WindowWidth": [tags["WindowWidth"], 9]},
    )

    windowed = []
    for value in pixels.ravel().tolist():
        x = value * float(tags["RescaleSlope"]) + float(tags["RescaleIntercept"]) if "RescaleSlope" in tags else value
        center, width = tags["WindowCenter"], tags["WindowWidth"]
        function = tags.get("VOILUTFunction", "LINEAR")
        if function == "SIGMOID":
            y = 1 / (1 + math.exp(min(-4 * (x - center) / width, 700)))
        else:
            if function == "LINEAR":
                center, width = center - 0.5, width - 1
            y = 0.0 if x <= center - width / 2 else 1.0 if x > center + width / 2 else (x - center) / width + 0.5
        windowed.append(y)
    if tags["PhotometricInterpretation"] == "MONOCHROME1":
        windowed = [max(windowed) - y for y in windowed]
    decoded = decode_image(path)
    # Rounding of exact halves may go either way in the two orders of computation.
    assert np.abs(decoded.ravel().astype(int) - stretched(windowed)).max() <= 1
    assert (decoded.ravel() != stretched(windowed)).mean() < 0.1


@pytest.mark.parametrize("sequence", ["ModalityLUTSequence", "VOILUTSequence"])
@pytest.mark.parametrize("bits", [8, 16])
def test_lut(tmp_path, sequence, bits):
    table = [3, 1, 4, 1, 5, 200]
    item = Dataset()
    item.LUTDescriptor = [len(table), 100, bits]
    item.LUTData = np.array(table, "u1" if bits == 8 else "<u2").tobytes()
    item["LUTDescriptor"].VR, item["LUTData"].VR = "US", "OW"
    if sequence == "ModalityLUTSequence":
        item.ModalityLUTType = "US"
    pixels = np.array([[0, 99, 100, 101], [102, 103, 104, 105], [106, 400, 4000, 100]], np.uint16)
    tags = {sequence: Sequence([item])}
    if sequence == "VOILUTSequence":
        tags |= {"WindowCenter": 1, "WindowWidth": 1}
    looked_up = [table[min(max(value - 100, 0), 5)] for value in pixels.ravel().tolist()]
    decoded = decode_image(write_dicom(tmp_path / "a.dcm", pixels, tags=tags))
    np.testing.assert_array_equal(decoded.ravel(), stretched(looked_up))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WINDOWS, st.sampled_from([np.uint8, np.uint16, np.int16, np.int32]), st.integers(0, 99), st.data())
def test_padding_is_black_and_has_no_part_in_the_rest(tmp_path, tags, kind, seed, data):
    tags = {name: value for name, value in tags.items() if value is not None}
    if not data.draw(st.booleans(), "windowed"):
        tags = {name: value for name, value in tags.items() if not name.startswith(("Window", "VOI"))}
    limits = np.iinfo(kind)
    low, high = max(limits.min, -4000), min(limits.max, 4000)
    rng = np.random.default_rng(seed)
    pixels = rng.integers(low, high, (6, 6)).astype(kind)
    first = data.draw(st.sampled_from([max(limits.min, -32768), low, 0, 7, int(pixels[2, 3]), min(limits.max, 32767)]))
    width = data.draw(st.sampled_from([None, 0, 100, high - low]))
    last = first if width is None else max(-32768, min(first + width, 32767))
    pixels[rng.random((6, 6)) < 0.3] = first
    padding = (pixels >= first) & (pixels <= last)
    named = {"PixelPaddingValue": first} | ({} if width is None else {"PixelPaddingRangeLimit": last})
    if tags["PhotometricInterpretation"] == "MONOCHROME1" and width is not None:
        named = {"PixelPaddingValue": last, "PixelPaddingRangeLimit": first}
    encoding = data.draw(st.sampled_from(["native", "implicit", "deflated"]))
    path = write_dicom(tmp_path / "a.dcm", pixels, encoding, tags | named)
    if padding.all():
        assert "all its pixels are padding" in refusal(path)
        return
    decoded = decode_image(path)
    assert not decoded[padding].any()
    whole = pixels.copy()
    whole[padding] = pixels[~padding][0]
    expected = decode_image(write_dicom(tmp_path / "b.dcm", whole, encoding, tags))
    np.testing.assert_array_equal(decoded[~padding], expected[~padding])


@pytest.mark.parametrize(("kind", "vr", "value"), [("i2", "US", 63_536), ("i2", "SS", -2000), ("u2", "SS", -2000)])
def test_the_sign_of_padding_is_that_of_the_pixels(tmp_path, kind, vr, value):
    """Its two bytes are often called by the wrong one of the two types."""
    pixels = DEEP.astype(kind)
    pixels[:, :8] = np.array(-2000, np.int16).astype(kind)
    path = write_dicom(tmp_path / "a.dcm", pixels)
    dataset = dcmread(path)
    dataset.add_new("PixelPaddingValue", vr, value)
    dataset.save_as(path)
    assert vr == dcmread(path)["PixelPaddingValue"].VR
    assert decode_image(path)[:, 8:].ravel().tolist() == stretched(DEEP[:, 8:].ravel().tolist())
    assert not decode_image(path)[:, :8].any()


def test_missing_empty_and_foreign_files(tmp_path):
    assert "No such file" in refusal(tmp_path / "none.png")
    assert "directory" in refusal(tmp_path)
    for name, content, said in [
        ("empty.dcm", b"", "empty"),
        ("text.dcm", b"Dear reader" * 20, "not a DICOM"),
        ("gif.png", b"GIF89a" + bytes(40), "not a PNG, JPEG or DICOM"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert said in refusal(tmp_path / name)


@pytest.mark.parametrize("encoding", ["jpeg", "jpeg-lossless", "jpeg-ls", "jpeg-2000"])
def test_the_compressed_image_must_be_whole_and_have_the_size_of_the_header(tmp_path, encoding):
    path = written(tmp_path / "a.dcm", encoding)
    dataset = dcmread(path)
    rows, columns = dataset.Rows, dataset.Columns
    dataset.Rows = rows + 16
    dataset.save_as(path)
    assert f"{columns} x {rows + 16} pixels, the compressed image inside {columns} x {rows}" in refusal(path)
    dataset.Rows = rows
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    dataset.PixelData = encapsulate([frame[: len(frame) * 3 // 4]])
    dataset.save_as(path)
    assert "cut off" in refusal(path)


def test_missing_codec(tmp_path, monkeypatch):
    class Bare:
        available_plugins = ()

    path = write_dicom(tmp_path / "a.dcm", GRAY, "jpeg-2000")
    monkeypatch.setattr(dicom, "get_decoder", lambda syntax: Bare)
    message = refusal(path)
    assert "JPEG 2000" in message
    assert "1.2.840.10008.1.2.4.90" in message
    assert "pip install pylibjpeg pylibjpeg-openjpeg" in message


@pytest.mark.parametrize(
    "tags", [{"WindowWidth": 0}, {"WindowWidth": 0, "VOILUTFunction": "LINEAR_EXACT"}, {"VOILUTFunction": "ODD"}]
)
def test_undefined_windows(tmp_path, tags):
    path = write_dicom(tmp_path / "a.dcm", DEEP, tags={"WindowCenter": 5, "WindowWidth": 100, **tags})
    assert "window" in refusal(path)


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
def test_real_image():
    decoded = decode_image(next(REAL.glob("*.dcm")))
    assert decoded.shape == (1024, 1024)
    # Decoders of lossy JPEG differ by a gray level: 160.40 with libjpeg-turbo, 160.43 with another.
    assert (decoded.min(), decoded.max()) in [(0, 254), (0, 255)]
    assert decoded.mean() == pytest.approx(160.4, abs=0.05)
