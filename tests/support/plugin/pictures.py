"""A dataset outside the package that reads files, and says which; what a user's own looks like."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.decoding import decode_image
from xbench.data.records import Radiograph, Record
from xbench.runtime.errors import UserError


class Pictures(ChestXrayDataModule):
    """PNG files of a folder, each with the region "Left" on its left half; every third one without."""

    findings = ("Left", "Right")

    def __init__(self, root: str, inverted: bool = False, seconds: float = 0, **kwargs) -> None:
        super().__init__(**kwargs)
        self.root = Path(root)
        self.inverted = inverted
        self.seconds = seconds

    def read_records(self, annotated: bool) -> Sequence[Record]:
        paths = sorted(self.root.glob("*.png"))
        return [
            Record(path.stem, {"Left": int(place % 3 != 0), "Right": place % 2}, (path, place % 3 != 0), files=(path,))
            for place, path in enumerate(paths)
        ]

    def load(self, record: Record) -> Radiograph:
        time.sleep(self.seconds)
        path, has_left = record.source
        image = decode_image(path)
        if image.max() == 0:
            raise UserError(f"{path} is black.")
        left = np.zeros(image.shape, np.bool_)
        left[:, : image.shape[1] // 2] = True
        notes = ("an even image",) if int(record.image_id.split("-")[1]) % 2 == 0 else ()
        return Radiograph(255 - image if self.inverted else image, {"Left": left} if has_left else {}, notes)


def write_pictures(root: Path, count: int, size: tuple[int, int] = (80, 64)) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        gray = np.random.default_rng(number).integers(0, 256, (size[0], size[1] + number), dtype=np.uint8)
        Image.fromarray(gray).save(root / f"picture-{number:03d}.png")
    return root
