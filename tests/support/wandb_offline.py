"""Offline runs of Weights & Biases, read back from their files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


def shut_out(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Take away the network, the keys and the settings of W&B until the patch is undone."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network in this test")

    patch.setattr(socket, "create_connection", refuse)
    patch.setenv("NETRC", str(folder / "none"))
    # A run sets it for its process; what was set before must be known to the patch.
    patch.setenv("WANDB_DATA_DIR", "")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        patch.delenv(name)


@dataclass(frozen=True)
class OfflineRun:
    folder: Path
    records: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> OfflineRun:
        inspect = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
        printed = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout
        return cls(folder, [json.loads(line) for line in printed.splitlines() if line.strip()])

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record[kind] for record in self.records if record["type"] == kind]

    @property
    def history(self) -> dict[str, list[Any]]:
        values: dict[str, list[Any]] = {}
        for entry in self.of("history"):
            for name, value in entry["item"].items():
                values.setdefault(name, []).append(value)
        return values

    @property
    def summary(self) -> dict[str, Any]:
        return {name: value for entry in self.of("summary") for name, value in entry.get("update", {}).items()}

    def table(self, name: str) -> list[dict[str, Any]]:
        (path,) = self.folder.glob(f"files/media/table/{name}_[0-9]*.table.json")
        table = json.loads(path.read_text())
        return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]

    def artifact(self, kind: str) -> dict[str, Any]:
        (artifact,) = (artifact for artifact in self.of("artifact") if artifact["type"] == kind)
        return artifact
