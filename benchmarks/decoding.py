"""What decoding costs, by format, and what reading a prepared image costs instead.

Each format is one drawn radiograph with one annotated box. Both sides do all that a sample needs before mean and
standard deviation: on one side the file is decoded and resized and the box brought to the grid, on the other the copy
is found, read, checked and unpacked. They take turns, every ratio is the median of those within a round, and time is
that of the processor, in one thread. Files are in the page cache, so a slow disk is not part of it.

    python benchmarks/run.py decoding
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from figures import Figure, Measured, at_least, table
from measuring import take_turns
from PIL import Image

# Encoders of DICOM that the tests have already.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from official.dicom import write_dicom

from xbench.commands.prepare import prepare
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.decoding import decode_image
from xbench.data.phantom import draw_phantom
from xbench.data.records import Radiograph, Record
from xbench.data.samples import Samples
from xbench.data.store import PreparedStore, pack
from xbench.geometry.shapes import Shape
from xbench.geometry.transforms import CenterCrop, PillowResize, Preprocessing

ROUNDS = 5
RECORDS = 12_600
PREPROCESSING = Preprocessing([PillowResize(224), CenterCrop(224)])
FIGURES = (
    Figure(
        "decoding / reading a prepared image, least of six formats",
        target=at_least(200),
        note="Reading checks that a prepared image is whole and up to date.",
    ),
    Figure("preparing / decoding the same files"),
    Figure(f"start-up of a store of {RECORDS:,} images", "s"),
)


class Files(ChestXrayDataModule):
    """Every file of a folder, each with the same box."""

    findings = ("Nodule",)

    def __init__(self, root: Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = root

    def read_records(self, annotated: bool) -> Sequence[Record]:
        return [
            Record(path.stem, {"Nodule": 1}, (path, Shape.from_corners(300, 400, 500, 700)), files=(path,))
            for path in sorted(self.root.iterdir())
        ]

    def load(self, record: Record) -> Radiograph:
        path, box = record.source
        image = decode_image(path)
        return Radiograph(image, {"Nodule": box.on(*image.shape).draw()})


def write_files(root: Path) -> dict[str, Path]:
    """A file of each format, by what it is called in the table."""
    small, large = draw(1024, 1024), draw(2500, 2000)
    wide = np.ascontiguousarray(cv2.resize(large, (2300, 2800), interpolation=cv2.INTER_CUBIC))
    # 12 bits in 16, with noise in the lowest, as detectors have it.
    noise = np.random.default_rng(0).integers(0, 16, large.shape, np.uint16)
    deep = large.astype(np.uint16) * 16 + noise
    tags = {"BitsStored": 12, "HighBit": 11}
    root.mkdir()
    Image.fromarray(small).save(root / "a.png")
    Image.fromarray(wide).save(root / "b.jpg", quality=95)
    write_dicom(root / "c.dcm", small, "jpeg")
    write_dicom(root / "d.dcm", deep, "native", tags)
    write_dicom(root / "e.dcm", deep, "jpeg-lossless", tags)
    write_dicom(root / "f.dcm", deep, "jpeg-2000", tags)
    names = (
        "PNG, 1024 x 1024",
        "JPEG, 2300 x 2800",
        "DICOM, JPEG baseline, 1024 x 1024",
        "DICOM, uncompressed, 2000 x 2500, 12 bits",
        "DICOM, JPEG lossless, 2000 x 2500, 12 bits",
        "DICOM, JPEG 2000 lossless, 2000 x 2500, 12 bits",
    )
    return dict(zip(names, sorted(root.iterdir()), strict=True))


def draw(height: int, width: int) -> np.ndarray:
    return draw_phantom(0, 3, height, width).image


def measure(quick: bool = False) -> Measured:
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    rounds, records = (1, 100) if quick else (ROUNDS, RECORDS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = write_files(folder / "files")
        data = Files(folder / "files", cache=str(folder / "cache"), num_workers=0)
        data.setup("test")
        decoding = data.samples(PREPROCESSING)
        methods = {f"decode {name}": every(decoding, [number]) for number, name in enumerate(files)}

        started = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            prepare(data, PREPROCESSING, progress=False)
        preparing = time.process_time() - started
        reading = data.samples(PREPROCESSING)
        methods |= {f"read {name}": every(reading, [number] * 50) for number, name in enumerate(files)}
        seconds = take_turns(methods, rounds)

        lines, once = [], 0.0
        for name, path in files.items():
            decode, read = seconds[f"decode {name}"], seconds[f"read {name}"] / 50
            once += float(np.median(decode))
            times = (float(np.median(decode) * 1e3), float(np.median(read) * 1e3), float(np.median(decode / read)))
            lines.append((name, f"{path.stat().st_size / 1e6:.1f}", *times))
        pays, size = start_up(data, reading, folder, records)
    ratios = [line[-1] for line in lines]
    text = (
        "Both sides do all that a sample needs before mean and standard deviation: a drawn radiograph with one box, to "
        "224 x 224 by Pillow's bicubic filter and on a grid of 224 x 224. One thread, processor time, medians of "
        f"{rounds} interleaved rounds; files are in the page cache.\n\n"
        f"{table(('file', 'MB', 'decode, ms', 'read, ms', 'ratio'), lines)}\n"
        f"{records:,} prepared images take {size / 1e9:.2f} GB. Besides reading them a run pays, in seconds: "
        + ", ".join(f"{what} {took:.2f}" for what, took in pays.items())
        + ".\n"
    )
    found = (min(ratios), preparing / once, sum(pays.values()))
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def every(samples: Samples, numbers: Sequence[int]) -> Any:
    return lambda: [samples.read(samples.records[number]) for number in numbers]


def start_up(data: Files, samples: Samples, folder: Path, count: int) -> tuple[dict[str, float], int]:
    """Seconds that a run of many images pays besides reading them, by what for, and bytes of their store."""
    path, box = data.records[0].source
    content = pack(samples.read(data.records[0])[0])
    records = []
    for number in range(count):
        link = folder / f"{number:05d}.png"
        link.hardlink_to(path)
        records.append(Record(link.stem, {}, (link, box), files=(link,)))
    store = PreparedStore(folder / "many")
    with store.writing():
        for number in range(count):
            store.add(f"{number:064x}", content)
    clocks = [time.process_time()]
    data.store_for(PREPROCESSING)
    clocks.append(time.process_time())
    len(store)
    clocks.append(time.process_time())
    store.holding(records)
    clocks.append(time.process_time())
    parts = ("what they depend on", "index", "keys and states of files")
    return dict(zip(parts, np.diff(clocks).tolist(), strict=True)), store.size
