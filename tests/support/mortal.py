"""A model that can be made to die, and that writes down every image it is asked about."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from toys import Brightness

from xbench.types import Batch, ModelOutput

IMAGES, BATCH = 19, 2
UNREADABLE = (4, 5, 8)
CONFIG = (
    "model: {class_path: mortal.Mortal, init_args: {fault: unnormalized}}\n"
    f"data: {{class_path: toys.Squares, init_args: {{num_workers: 0, images: {IMAGES}, batch_size: {BATCH}, "
    f"unreadable: {[*UNREADABLE]}, on_error: skip, odd: [1, 3, 4, 6]}}}}\n"
    "trainer: {logger: false, accelerator: cpu, enable_progress_bar: false, devices: 1}\n"
)


def words(folder: Path, *options: str, command: str = "test") -> list[str]:
    (folder / "mortal.yaml").write_text(CONFIG)
    runs = ("--trainer.default_root_dir", str(folder / "runs"))
    return [command, "--config", str(folder / "mortal.yaml"), *runs, *options]


def logged(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


class Mortal(Brightness):
    """Brightness with faults from the environment, so that the configuration stays the same.

    MORTAL_LOG names a file that gets a line per image; `{rank}` stands for the process. MORTAL_DIES `SIGKILL 3 1` ends
    process 1 by that signal at its batch 3, counted from 0. MORTAL_WAITS are seconds per batch, for all or for each.
    """

    name = "mortal"
    asked_batches = 0

    def score(self, batch: Batch) -> ModelOutput:
        how = os.environ.get("MORTAL_DIES", "").split()
        if how and [self.asked_batches, self.trainer.global_rank] == [int(how[1]), int(how[2])]:
            os.kill(os.getpid(), signal.Signals[how[0]])
        self.asked_batches += 1
        rank = self.trainer.global_rank
        if log := os.environ.get("MORTAL_LOG"):
            with Path(log.format(rank=rank)).open("a") as file:
                file.write("".join(f"{image_id}\n" for image_id in batch.truth.image_ids))
        waits = os.environ.get("MORTAL_WAITS", "0").split()
        time.sleep(float(waits[rank % len(waits)]))
        return super().score(batch)


class KillsWandb(Callback):
    """Kills the service of Weights & Biases, a process of its own, after the second batch, and says how many it was."""

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self.batches = getattr(self, "batches", 0) + 1
        if self.batches == 2:
            services = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm") if _is_our_wandb(path)]
            for service in services:
                os.kill(service, signal.SIGKILL)
            print(f"{len(services)} services of W&B killed")


def _is_our_wandb(comm: Path) -> bool:
    try:
        parent = (comm.parent / "stat").read_text().rpartition(")")[2].split()[1]
        return comm.read_text().startswith("wandb-core") and int(parent) == os.getpid()
    except OSError:
        return False
