"""A dataset whose files crash, hang or kill whoever reads them, and a model that fills the disk."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from toys import Squares

from xbench.data.records import Radiograph, Record
from xbench.errors import UserError


def faults() -> dict[int, str]:
    """What is wrong by position of the image: `FAULTS="crash:3 hang:5"`.

    From the environment, so that the configuration of a run that fails is that of one that does not.
    """
    return {
        int(position): fault for fault, _, position in (w.partition(":") for w in os.environ.get("FAULTS", "").split())
    }


def fill(folder: Path) -> None:
    """Leave no byte of a small disk."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


class Hostile(Squares):
    """Squares, each with a file.

    Args:
        root: Folder of the files.
    """

    def __init__(self, root: str, **kwargs) -> None:
        super().__init__(**kwargs)
        self.root = root

    def read_records(self, annotated: bool) -> list[Record]:
        records = super().read_records(annotated)
        return [replace(record, files=(Path(self.root) / f"{record.image_id}.png",)) for record in records]

    def load(self, record: Record) -> Radiograph:
        fault = faults().get(record.source)
        assert record.files is not None
        record.files[0].read_bytes()
        if fault == "crash":
            ctypes.string_at(0)
        elif fault == "abort":
            os.abort()
        elif fault == "exit":
            os._exit(3)
        elif fault == "hang":
            time.sleep(1000)
        elif fault == "broken":
            raise UserError("The file is broken.", exit_status=2)
        elif fault == "bug":
            raise KeyError("a bug")
        elif fault == "kill_worker":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        elif fault == "fill":
            fill(Path(os.environ["SMALL_DISK"]))
        return super().load(record)
