"""What the benchmarks evaluate, and how: drawn radiographs in files, networks without a download, and whole runs.

Every run goes through the command line's own code, with the callbacks of `configs/defaults/test.yaml` and the journal
that `--resume true` needs; only the logger is off.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
import yaml
from lightning.pytorch import Callback
from open_clip import OPENAI_DATASET_MEAN as MEAN
from open_clip import OPENAI_DATASET_STD as STD
from PIL import Image
from torch import Tensor, nn

# The weights that the tests draw.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from deterministic_checkpoints import write_checkpoint

from xbench.commands.configs import defaults
from xbench.commands.prepare import prepare
from xbench.commands.run import run_test
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.decoding import decode_image
from xbench.data.phantom import draw_phantom
from xbench.data.records import Radiograph, Record
from xbench.geometry.shapes import Shape
from xbench.geometry.transforms import CenterCrop, PillowResize, Preprocessing
from xbench.models.base import VLM
from xbench.types import ModelOutput

DISTINCT = 16
STAGES = ("loading", "transfer", "forward", "saliency", "metrics", "logging")
"""Of the loop over batches, as `results.json` has them."""


def write_radiographs(root: Path, images: int, findings: int, side: int, every: int = 2) -> Path:
    """Write PNG files, each of one of sixteen phantoms, and `boxes.csv`: every image has a box of every second finding.

    Corners are odd. So no cell of the grid is covered by exactly half, which floating-point coverage would round
    either way, and every way to bring a box to the grid agrees.
    """
    (root / "images").mkdir(parents=True)
    drawn = []
    for number in range(min(images, DISTINCT)):
        phantom = draw_phantom(0, number, 320, 320).image
        drawn.append(root / f"phantom{number}.png")
        Image.fromarray(phantom).resize((side, side), Image.Resampling.BICUBIC).save(drawn[-1])
    random = np.random.default_rng(0)
    with (root / "boxes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "finding", "x0", "y0", "x1", "y1"))
        for number in range(images):
            name = f"{number:05d}.png"
            (root / "images" / name).hardlink_to(drawn[number % DISTINCT])
            for finding in range(number % every, findings, every):
                low = random.integers(0, side // 4, 2) * 2 + 1
                high = low + random.integers(side // 16, side // 4, 2) * 2
                writer.writerow((name, f"Finding {finding + 1}", *low, *np.minimum(high, side - 1)))
    return root


def read_boxes(root: Path) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Finding and corners of every box, by image; images without one included."""
    boxes: dict[str, list[tuple[str, tuple[int, ...]]]] = {
        path.name: [] for path in sorted((root / "images").iterdir())
    }
    with (root / "boxes.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            boxes[row["image"]].append((row["finding"], tuple(int(row[edge]) for edge in ("x0", "y0", "x1", "y1"))))
    return boxes


class Drawn(ChestXrayDataModule):
    """A folder of `write_radiographs`."""

    def __init__(self, root: str, number: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = root
        self.findings = tuple(f"Finding {finding + 1}" for finding in range(number))

    def read_records(self, annotated: bool) -> Sequence[Record]:
        records = []
        for name, boxes in read_boxes(Path(self.root)).items():
            present = {finding for finding, _ in boxes}
            path = Path(self.root, "images", name)
            labels = {finding: int(finding in present) for finding in self.findings}
            records.append(Record(name, labels, (path, *boxes), files=(path,)))
        return records

    def load(self, record: Record) -> Radiograph:
        path, *boxes = record.source
        image = decode_image(path)
        shapes = {finding: Shape.from_corners(*corners).on(*image.shape) for finding, corners in boxes}
        return Radiograph(image, {finding: shape.draw() for finding, shape in shapes.items()})


class Patches(VLM):
    """A network that scores patches by their cosine with a vector that stands for the prompt."""

    def __init__(self, tower: nn.Module, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.preprocessing = Preprocessing([PillowResize(224), CenterCrop(224)], MEAN, STD)
        self.width = width
        self.tower = tower.eval().requires_grad_(False)

    def default_prompts(self, finding: str) -> Sequence[str]:
        return [f"there is {finding}"]

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        # In float32 whatever the precision of the run, as the real text towers give it.
        generator = torch.Generator().manual_seed(0)
        return F.normalize(torch.randn(len(prompts), self.width, generator=generator, dtype=torch.float32), dim=1)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        patches = F.normalize(self.tower(images).float(), dim=1)
        saliency = torch.einsum("bdhw,cd->bchw", patches, queries)
        logits = 10 * saliency.amax((2, 3))
        return ModelOutput(logits=logits, probabilities=logits.sigmoid(), saliency=saliency)


class ResNet50(Patches):
    """ResNet-50 up to its last 7 x 7 map, with drawn weights: the least that a model of this size can cost."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        layers = list(torchvision.models.resnet50().children())[:-2]
        super().__init__(nn.Sequential(*layers), 2048, **options)


class Tiny(Patches):
    """One layer, so that nearly all of the time is the harness's."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Conv2d(3, 32, 16, 16), 32, **options)


class Clock(Callback):
    """Moments of the newest run in this process. Goes last, so that a moment includes what all others do in it."""

    moments: ClassVar[dict[str, float]] = {}
    processor: ClassVar[dict[str, float]] = {}
    """Seconds of processor time that this process had used by then."""

    def __init__(self) -> None:
        self.moments.clear()
        self.processor.clear()
        self._note("built")

    def setup(self, *_: object, **__: object) -> None:
        self._note("set up")

    def on_test_epoch_start(self, *_: object) -> None:
        self._note("text")

    def on_test_batch_start(self, *_: object, **__: object) -> None:
        self._note("first batch")

    def on_test_end(self, *_: object) -> None:
        self._note("end")

    def _note(self, what: str) -> None:
        self.moments.setdefault(what, time.perf_counter())
        self.processor.setdefault(what, time.process_time())


@dataclass(frozen=True)
class Timing:
    """Of one run of `test`, in seconds.

    Attributes:
        start_up: From the call to the first batch: building, text, waiting for that batch.
        loop: From the first batch until `results.json` is written.
        moments: Those of `Clock`, since the call.
        stages: As `results.json` has them.
        results: All of `results.json`.
        files: Bytes of the files in the run's folder, by name.
    """

    start_up: float
    loop: float
    moments: dict[str, float]
    stages: dict[str, float]
    results: dict[str, Any]
    files: dict[str, int]


def evaluate(
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    precision: str = "32-true",
    thresholds: int = 101,
    keep: Path | None = None,
) -> Timing:
    """Run `test` in this process, on the CPU and in one thread, without a logger.

    Args:
        model: `class_path` and `init_args`.
        data: Likewise.
        precision: Of the trainer.
        thresholds: Of the sweep.
        keep: Folder to leave the run's files in; they are deleted otherwise.
    """
    logging.getLogger("xbench").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as place:
        runs = keep or Path(place, "runs")
        (usual,) = (path for path in defaults("test") if path.stem == "test")
        callbacks = yaml.safe_load(usual.read_text())["trainer"]["callbacks"]
        callbacks[0]["init_args"] = {"thresholds": thresholds}
        callbacks.append({"class_path": f"{Clock.__module__}.Clock"})
        trainer = {
            "callbacks": callbacks,
            "logger": False,
            "enable_progress_bar": False,
            "accelerator": "cpu",
            "devices": 1,
            "precision": precision,
            "default_root_dir": str(runs),
        }
        config = Path(place, "pair.yaml")
        config.write_text(yaml.safe_dump({"model": dict(model), "data": dict(data), "trainer": trainer}))
        started = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            run_test(["--config", str(config)])
        moments = {what: moment - started for what, moment in Clock.moments.items()}
        newest = max(runs.glob("*/*/results.json"), key=lambda path: path.stat().st_mtime_ns)
        results = json.loads(newest.read_text())
        files = {path.name: path.stat().st_size for path in newest.parent.iterdir() if path.is_file()}
    return Timing(
        start_up=moments["first batch"],
        loop=moments["end"] - moments["first batch"],
        moments=moments,
        stages=results["provenance"]["seconds"],
        results=results,
        files=files,
    )


def prepared(root: Path, number: int, preprocessing: Preprocessing) -> dict[str, Any]:
    """Prepare a folder of radiographs, and return what `evaluate` takes as data to read them."""
    arguments: dict[str, Any] = {"root": str(root), "number": number, "cache": str(root / "cache")}
    with contextlib.redirect_stdout(io.StringIO()):
        prepare(Drawn(**arguments), preprocessing, progress=False)
    return {"class_path": f"{Drawn.__module__}.Drawn", "init_args": arguments}


def warm_up(folder: Path) -> None:
    """Run `test` once on eight images, for the first run of a process imports what others find: start-up."""
    write_radiographs(folder, 8, 2, 224)
    evaluate(tiny(), prepared(folder, 2, Tiny().preprocessing))


def undecoded(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same data without its prepared images."""
    return {**data, "init_args": {**data["init_args"], "cache": False}}


@cache
def vit(folder: Path) -> dict[str, Any]:
    """A CLIP with a ViT-B/16, its drawn weights in a file of `folder`; the released ones have the same shapes."""
    folder.mkdir(parents=True)
    logging.disable(logging.WARNING)
    return {"class_path": "xbench.models.CLIP", "init_args": write_checkpoint("clip", folder, full=True)}


def resnet() -> dict[str, Any]:
    return {"class_path": f"{ResNet50.__module__}.ResNet50"}


def tiny() -> dict[str, Any]:
    return {"class_path": f"{Tiny.__module__}.Tiny"}


def build(model: Mapping[str, Any], findings: Sequence[str]) -> VLM:
    """Build a model outside of a trainer, ready to be called with images and its `queries`."""
    network: VLM = resolve_name(":".join(model["class_path"].rsplit(".", 1)))(**model.get("init_args", {}))
    # As the trainer does before a run.
    network._trainer = SimpleNamespace(datamodule=SimpleNamespace(findings=findings))  # type: ignore[assignment]
    network.setup("test")
    with torch.inference_mode():
        network.queries = network.encode_prompts(network.asked())
    return network.eval()
