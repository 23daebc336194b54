"""Memory of the largest run there is: VinDr-CXR on its own pixels, every finding on every film.

python benchmarks/run.py memory
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from figures import Figure, Measured, at_most, table
from measuring import alone, watched_memory
from workload import evaluate, tiny, vit

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from official.base import hexadecimal, write_lines
from official.dicom import write_dicom

from xbench.data import VinDrCXR
from xbench.data.phantom import draw_phantom
from xbench.findings.names import FINDINGS

HEIGHT, WIDTH, FILMS = 3_000, 2_500, 16
FIGURES = (
    Figure(
        "VinDr-CXR on its own pixels, 21 findings on each film, batches of 8, all processes",
        "GB",
        at_most(8),
        note="Every worker prepares a batch ahead, and a film of 7.5 million pixels with 21 regions takes 165 MB. "
        "Fewer workers (`--data.num_workers`) or smaller batches take less; regions of one bit a pixel would take an "
        "eighth.",
    ),
)


def measure(quick: bool = False) -> Measured:
    height, width, films = (300, 250, 8) if quick else (HEIGHT, WIDTH, FILMS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_vindr(folder / "vindr", height, width, films)
        model = tiny() if quick else alone(vit, folder / "vit")
        gigabytes, seconds, workers = watch(model, folder / "vindr")
    lines = [(f"{height} x {width}", films, workers, gigabytes, seconds / films)]
    text = (
        "Films in VinDr-CXR's layout: DICOM files of 16 bits, uncompressed and JPEG 2000 in turn, each with a box of "
        "all 21 findings, which no real film has. `test --data.grid native` with CLIP ViT-B/16 in float32 and the "
        "default number of workers. The sum of the proportional set sizes of the main and all worker processes, which "
        "counts what they share once, is looked at every 50 ms; its largest value stands here, Python and the network "
        "included.\n\n" + table(("pixels", "films", "workers", "GB", "seconds a film"), lines)
    )
    return Measured({FIGURES[0].name: gigabytes}, text)


def watch(model: dict[str, Any], root: Path) -> tuple[float, float, int]:
    """Peak in GB, seconds of the loop, and number of workers."""
    torch.set_num_threads(1)
    data = {"class_path": "xbench.data.VinDrCXR", "init_args": {"root": str(root), "grid": "native", "cache": False}}
    with watched_memory() as seen:
        run = evaluate(model, data)
    return seen.peak / 1e9, run.loop, VinDrCXR(str(root)).num_workers


def write_vindr(root: Path, height: int, width: int, films: int) -> None:
    """Write two films under many names, and their tables."""
    (root / "test").mkdir(parents=True)
    image = cv2.resize(draw_phantom(0, 3, 320, 320).image, (width, height), interpolation=cv2.INTER_CUBIC)
    noise = np.random.default_rng(0).integers(0, 16, image.shape, np.uint16)
    deep = image.astype(np.uint16) * 16 + noise
    tags = {"BitsStored": 12, "HighBit": 11}
    kinds = [write_dicom(root / f"{kind}.dcm", deep, kind, tags) for kind in ("native", "jpeg-2000")]
    boxes = []
    for number in range(films):
        name = hexadecimal(f"film {number}")
        (root / "test" / f"{name}.dicom").hardlink_to(kinds[number % 2])
        for place, finding in enumerate(FINDINGS["vindr"]):
            x, y = (place % 5 + 1) * width // 8, (place // 5 + 1) * height // 8
            boxes.append(f"{name},{finding},{x},{y},{x + width // 7},{y + height // 7}")
    write_lines(root / "annotations" / "annotations_test.csv", "image_id,class_name,x_min,y_min,x_max,y_max", *boxes)
