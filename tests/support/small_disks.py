"""Print a line of JSON (name, exit status, stderr) for commands on full or read-only disks, in a mount namespace."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

from hostile import fill

from xbench.cli import main

ROOT = Path(sys.argv[-1])
SEALED = ROOT / "sealed"
WANDB = ("--trainer.logger", "xbench.callbacks.wandb_logger.WandbLogger", "--trainer.logger.save_dir")


def mount(folder: Path, *words: str) -> Path:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", *words, str(folder)], check=True)
    return folder


def small(name: str, size: str) -> Path:
    return mount(ROOT / name, "-t", "tmpfs", "-o", f"size={size}", "none")


def run(name: str, *words: object, faults: str = "", disk: Path = SEALED) -> None:
    """Run a command whose faults fill a disk, and make room afterwards."""
    os.environ |= {"FAULTS": faults, "SMALL_DISK": str(disk)}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            status = main([str(word) for word in words])
    except BaseException:
        status = -1
        said.write(traceback.format_exc())
    with contextlib.suppress(OSError):
        (disk / "filler").unlink()
    print(json.dumps({"name": name, "status": status, "said": " ".join(said.getvalue().split())}), flush=True)


def into(folder: Path, *words: object) -> tuple[object, ...]:
    return ("--config", ROOT / "hostile.yaml", "--trainer.default_root_dir", folder, *words)


if __name__ == "__main__":
    mount(mount(SEALED, "--bind", str(SEALED)), "-o", "remount,ro,bind")
    run("results read-only", "test", *into(SEALED))
    run("W&B read-only", "test", *into(ROOT / "kept", *WANDB, SEALED / "wandb"))

    disk = small("journal", "4m")
    run("journal full", "test", *into(disk), faults="fill:9", disk=disk)
    run("journal full, resumed", "test", *into(disk, "--resume", "true"))
    shutil.copytree(disk, ROOT / "kept" / "journal" / "runs")

    disk = small("predictions", "4m")
    run("predictions full", "predict", *into(disk), faults="fill:9", disk=disk)

    disk = small("store", "4m")
    run("prepared images full", "prepare", *into(ROOT / "kept", "--data.cache", disk), faults="fill:9", disk=disk)
    run("prepared images full, again", "prepare", *into(ROOT / "kept", "--data.cache", disk))
    run("prepared images used", "test", *into(ROOT / "kept" / "prepared" / "runs", "--data.cache", disk))

    run("report read-only", "report", ROOT / "kept" / "journal", "--out", SEALED / "report")

    bench = ("bench", "--models", "demo", "--datasets", "phantom", "--out")
    run("bench read-only", *bench, SEALED / "bench")
    disk = small("bench", "100k")
    (disk / "bench").mkdir()
    fill(disk)
    run("bench full", *bench, disk)

    disk = small("wandb", "1m")
    run("W&B full", "test", *into(ROOT / "kept" / "wandb" / "runs", *WANDB, disk), faults="fill:9", disk=disk)

    mount(Path("/dev/shm"), "-t", "tmpfs", "-o", "size=64k", "none")
    run("shared memory full", "test", *into(ROOT / "kept", "--data.num_workers", "2", "--data.grid", "4000"))
