"""TBX11K: RGB files of 512 x 512 in folders by kind, boxes in COCO's format; or Kaggle's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from official.base import Box, Official, write_lines
from official.films import draw_film, place, scaled

_CATEGORIES = ("ActiveTuberculosis", "ObsoletePulmonaryTuberculosis", "PulmonaryTuberculosis")
# Number of boxes by category. A name under `extra` is that of another image, too.
_VAL: dict[str, tuple[int, ...]] = {
    "health/h0001": (), "health/h0002": (), "sick/s0054": (), "tb/tb0005": (2, 0, 0), "tb/tb0006": (1, 1, 0),
    "tb/tb0007": (0, 1, 0), "tb/tb0008": (),
}  # fmt: skip
_TRAIN: dict[str, tuple[int, ...]] = {"tb/tb0009": (0, 0, 1), "sick/s0055": ()}
_EXTRA: dict[str, tuple[int, ...]] = {"extra/shenzhen/h0001": (), "extra/da+db/train/p01": ()}
FINDING = "Tuberculosis"


def write_tbx11k(root: Path, layout: Literal["official", "kaggle"] = "official", outside: bool = False) -> Official:
    """Write seven images for validation, two for training and two of other collections."""
    official = Official(root)
    kaggle = layout == "kaggle"
    drawn: dict[str, list[tuple[str, list[float]]]] = {}
    for number, (path, counts) in enumerate((_VAL | _TRAIN | ({} if kaggle else _EXTRA)).items()):
        folder, _, stem = path.rpartition("/")
        name = path if folder.startswith("extra") else stem
        file = root / ("images" if kaggle else f"imgs/{folder}") / f"{stem}.png"
        official.add(name, draw_film(number, 512, 512), file)
        Image.fromarray(np.repeat(official.images[name][..., None], 3, axis=2)).save(file)
        drawn[path] = [
            (category, _box(name, category, which))
            for category, count in zip(_CATEGORIES, counts or (0, 0, 0), strict=True)
            for which in range(count)
        ]
        if outside and name == "tb0005":
            drawn[path][0][1][2] = 600.5
        present = bool(drawn[path]) or folder == "tb"
        official.annotate(name, {FINDING: int(present)} if not folder.startswith("extra") else {})
        for _, (x, y, width, height) in drawn[path]:
            box = int(x), int(y), int(x) + int(width), int(y) + int(height)
            official.fill(name, Box(FINDING, *box))
    names = {path: name for path, name in zip(drawn, official.images, strict=True)}
    splits = {"val": _VAL, "train": _TRAIN, "trainval": _VAL | _TRAIN}
    splits |= {} if kaggle else {"all_val": _VAL | _EXTRA}
    official.splits = {split: [names[path] for path in paths] for split, paths in splits.items()}
    if kaggle:
        rows = [f'{names[path]}.png,no_tb,"none"' for path, boxes in drawn.items() if not boxes]
        rows += [f'{names[path]}.png,tb,"{_text(box)}"' for path, boxes in drawn.items() for _, box in boxes]
        write_lines(root / "data.csv", "fname,target,bbox", *rows)
    for split, paths in {} if kaggle else splits.items():
        target = root / "annotations/json" / f"{split if split.startswith('all') else f'TBX11K_{split}'}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(_content(drawn, paths)))
    return official


def _box(name: str, category: str, which: int) -> list[float]:
    x1, y1, x2, y2 = scaled(place("tbx11k", name, category, which), 512, 512)
    return [round(number, 4) for number in (x1, y1, x2 - x1, y2 - y1)]


def _text(box: list[float]) -> str:
    return str(dict(zip(("xmin", "ymin", "width", "height"), box, strict=True)))


def _content(drawn: dict[str, list[tuple[str, list[float]]]], paths: dict[str, Any]) -> dict[str, Any]:
    side = {"height": 512, "width": 512}
    images = [{"id": number, "file_name": f"{path}.png", **side} for number, path in enumerate(paths, 7)]
    categories = [{"id": number, "name": name} for number, name in enumerate(_CATEGORIES, 1)]
    annotations = [
        {"id": 0, "image_id": number, "category_id": 1 + _CATEGORIES.index(category), "bbox": box, "iscrowd": 0}
        for number, path in enumerate(paths, 7)
        for category, box in drawn[path]
    ]
    return {"images": images, "annotations": annotations, "categories": categories}
