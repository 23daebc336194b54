"""A page of radiographs with their annotations outlined, to see at a glance whether they lie where they should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.records import Radiograph, Record
from xbench.errors import UserError

_MOST = 48
_SIDE = 320
_CAPTION = 40
_COLUMNS = 6
_OUTLINE = (255, 196, 0)


class Cell(NamedTuple):
    """A picture of the sheet: an image and the finding whose region is outlined."""

    record: Record
    finding: str


def choose_cells(data: ChestXrayDataModule, regions: Mapping[str, Sequence[Record]]) -> list[Cell]:
    """Choose up to 48 pictures, every finding in turn, spread evenly over its images with a region."""
    share = -(-_MOST // max(1, sum(bool(records) for records in regions.values())))
    columns = []
    for finding in data.findings:
        records = regions.get(finding, [])
        places = np.linspace(0, len(records) - 1, min(share, len(records))).round().astype(int)
        columns.append([Cell(records[place], finding) for place in places])
    return [cell for row in zip_longest(*columns) for cell in row if cell is not None][:_MOST]


def write_contact_sheet(path: Path, data: ChestXrayDataModule, cells: Sequence[Cell]) -> None:
    """Load the chosen images and write the sheet as PNG.

    Raises:
        UserError: An image cannot be read any more, or the file cannot be written.
    """
    columns = min(_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * _SIDE, rows * (_SIDE + _CAPTION)), "black")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for number, cell in enumerate(cells):
        x, y = number % columns * _SIDE, number // columns * (_SIDE + _CAPTION)
        radiograph = data.load(cell.record)
        picture = Image.fromarray(_outline(radiograph, cell.finding))
        sheet.paste(picture, (x + (_SIDE - picture.width) // 2, y + (_SIDE - picture.height) // 2))
        height, width = radiograph.image.shape
        pen.text((x + 6, y + _SIDE + 3), f"{cell.finding}  {width} x {height}", "white", font)
        name = cell.record.image_id
        name = name if len(name) <= 40 else f"{name[:18]}...{name[-18:]}"
        pen.text((x + 6, y + _SIDE + 20), name, "grey", font)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(path)
    except OSError as error:
        raise UserError(f"The contact sheet {path} cannot be written: {error.strerror or error}.") from error


def _outline(radiograph: Radiograph, finding: str) -> NDArray[np.uint8]:
    """The radiograph fitted into a square, in colour, with the region's outline."""
    image = radiograph.image
    scale = (_SIDE - 4) / max(image.shape)
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    small = cv2.cvtColor(cv2.resize(image, size, interpolation=cv2.INTER_AREA), cv2.COLOR_GRAY2RGB)
    covered = cv2.resize(radiograph.regions[finding].astype(np.float32), size, interpolation=cv2.INTER_AREA)
    # Whatever is covered at all, so that the smallest lesion shows.
    contours, _ = cv2.findContours((covered > 0).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(small, contours, -1, _OUTLINE, 1, cv2.LINE_8)
    return small.astype(np.uint8, copy=False)
