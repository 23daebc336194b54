"""Command `prepare`: decode and resize the images of a dataset once, for all later runs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.data import DataLoader, Dataset

from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.records import Record
from xbench.data.samples import Samples
from xbench.data.store import PreparedStore, files_state, pack, record_key
from xbench.data.workers.isolation import StallGuard, TimedOutError, isolated, one_thread
from xbench.geometry.preprocessing import Preprocessing
from xbench.runtime.errors import UserError


def prepare(data: ChestXrayDataModule, preprocessing: Preprocessing, progress: bool) -> None:
    """Decode and resize new images in worker processes, store them, and print a summary.

    An interrupted call can be repeated to continue. The data module is not set up yet. Raises a `UserError` if images
    cannot be prepared or stored; or at the end, if an image is unreadable and `on_error` is `stop`.
    """
    data.setup("prepare")
    store = data.store_for(preprocessing)
    if all(record.files is None for record in data.records):
        raise UserError(
            f"{data.name}: its images do not come from known files, so there is nothing to prepare; `test` works "
            "without."
        )
    samples = data.samples(preprocessing)
    outcomes: Counter[str] = Counter()
    failures: list[_Outcome] = []
    loader = DataLoader(_Work(samples, store), batch_size=None, num_workers=data.num_workers, worker_init_fn=one_thread)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started, guard = time.perf_counter(), StallGuard(data.name)
    with store.writing(), Progress(*columns, disable=not progress) as bar:
        task = bar.add_task(f"{data.name}, {data.split}", total=len(samples))
        try:
            for outcome in loader:
                if outcome.content:
                    store.add(outcome.key, outcome.content)
                if outcome.reason:
                    failures.append(outcome)
                guard.see(outcome.image_id, outcome.timed_out)
                outcomes[outcome.kind] += 1
                bar.advance(task)
        except KeyboardInterrupt:
            raise UserError(
                f"Interrupted after {outcomes.total()} of {len(samples)} images. They are kept: repeat the command "
                "to continue.",
                exit_status=130,
            ) from None
    seconds, console = time.perf_counter() - started, Console(markup=False, highlight=False)
    console.print(", ".join(f"{kind}: {count}" for kind, count in sorted(outcomes.items())))
    if made := outcomes["prepared"]:
        console.print(f"{made / seconds:.1f} images a second")
    # soft_wrap: a wrapped path cannot be copied.
    console.print(f"{store.size / 1e6:.1f} MB in {store.folder}", soft_wrap=True)
    if failures:
        first = failures[0]
        text = f"{len(failures)} of {len(samples)} images cannot be read. The first: {first.image_id}: {first.reason}"
        if data.on_error == "stop":
            raise UserError(
                f"{data.name}: {text} Repair the files, or skip such images with --data.on_error skip. All others "
                "are prepared."
            )
        console.print(text, style="yellow")


@dataclass(frozen=True)
class _Outcome:
    """Outcome for an image: `kind` as in the summary, and the data to store or the error."""

    kind: str
    image_id: str
    key: str = ""
    content: bytes = b""
    reason: str = ""
    timed_out: bool = False


@dataclass(frozen=True)
class _Work(Dataset[_Outcome]):
    samples: Samples
    store: PreparedStore

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> _Outcome:
        record = self.samples.records[index]
        try:
            # Everything in isolation, because even reading time stamps may hang.
            return isolated(self._prepare, record, self.samples.timeout)
        except UserError as error:
            late = isinstance(error, TimedOutError)
            return _Outcome("unreadable", record.image_id, reason=str(error), timed_out=late)

    def _prepare(self, record: Record) -> _Outcome:
        if self.store.read(record) is not None:
            return _Outcome("already there", record.image_id)
        # Taken before and after reading: a copy must not be newer than its key.
        before, key = files_state(record), record_key(record)
        content = pack(self.samples.read(record)[0])
        if key is None or files_state(record) != before:
            return _Outcome("not stored (files unknown or just changed)", record.image_id)
        return _Outcome("prepared", record.image_id, key, content)
