"""A dataset whose files crash, hang or kill whoever reads them, and a model that fills the disk."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from toys import Squares

from xbench.data.records import Radiograph, Record
from xbench.runtime.errors import UserError


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def configure(path: Path, files: Path, **options: object) -> Path:
    files.mkdir(exist_ok=True)
    for index in range(19):
        (files / f"square-{index:03d}.png").open("a").close()
    data = {"root": str(files), "images": 19, "batch_size": 2} | options
    quiet = {"logger": False, "accelerator": "cpu", "enable_progress_bar": False, "devices": 1}
    parts = {"data": {"class_path": "hostile.Hostile", "init_args": data}, "trainer": quiet}
    path.write_text(json.dumps({"model": {"class_path": "toys.Brightness"}} | parts))
    return path


class Hostile(Squares):
    """Squares, each with a file in the folder `root`; `FAULTS="crash:3 hang:5"` says what is wrong by position."""

    def __init__(self, root: str, **kwargs) -> None:
        super().__init__(**kwargs)
        self.root = root

    def read_records(self, annotated: bool) -> list[Record]:
        records = super().read_records(annotated)
        return [replace(record, files=(Path(self.root) / f"{record.image_id}.png",)) for record in records]

    def load(self, record: Record) -> Radiograph:
        # From the environment, so that the configuration of a run that fails is that of one that does not.
        faults = (word.partition(":") for word in os.environ.get("FAULTS", "").split())
        fault = {int(position): fault for fault, _, position in faults}.get(record.source)
        assert record.files is not None
        record.files[0].read_bytes()
        match fault:
            case "crash":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "hang":
                time.sleep(1000)
            case "broken":
                raise UserError("The file is broken.", exit_status=2)
            case "bug":
                raise KeyError("a bug")
            case "kill_worker":
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(1000)
            case "fill":
                fill(Path(os.environ["SMALL_DISK"]))
        return super().load(record)
