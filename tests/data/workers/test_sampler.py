from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Trainer
from mortal import Mortal
from processes import run_ranks
from toys import Squares

from xbench.callbacks.evaluation import Evaluation
from xbench.callbacks.prediction_writer import PredictionWriter
from xbench.cli import main
from xbench.data.workers.sampler import DealtBatchSampler
from xbench.runtime.distributed import shared_counter
from xbench.runtime.errors import UserError

IMAGES, BATCH = 24, 2
TWO = ("--trainer.devices", "2", "--oversubscribe", "true")
PARTS = (
    f"data: {{class_path: toys.Squares, init_args: {{num_workers: 0, images: {IMAGES}, batch_size: {BATCH}, "
    "unreadable: [4, 9], on_error: skip, widths: [64, 48]}}\n"
    "model: {class_path: mortal.Mortal}\n"
    "trainer: {logger: false, accelerator: cpu, enable_progress_bar: false}\n"
)
SCORED = [f"square-{index:03d}" for index in range(IMAGES) if index not in (4, 9)]


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.data())
def test_whatever_the_order_of_asking_each_batch_is_dealt_once(count, size, processes, data):
    batches = -(-count // size)
    finished = data.draw(st.sets(st.integers(0, batches - 1)))
    left = [[*range(k * size, min(count, (k + 1) * size))] for k in range(batches) if k not in finished]
    if len(left) < processes:
        with pytest.raises((UserError, ValueError)):
            DealtBatchSampler(count, size, 0, processes, finished, itertools.count)
        return
    counter = itertools.count()
    samplers = [
        DealtBatchSampler(count, size, rank, processes, finished, lambda: counter.__next__) for rank in range(processes)
    ]
    asking = {rank: iter(sampler) for rank, sampler in enumerate(samplers)}
    hands = [[] for _ in samplers]
    while asking:
        rank = data.draw(st.sampled_from(sorted(asking)))
        batch = next(asking[rank], None)
        if batch is None:
            del asking[rank]
        else:
            hands[rank].append(batch)
    # The batches are those of a single process, whoever gets them, and everyone gets one.
    assert sorted(batch for hand in hands for batch in hand) == left
    assert [hand[0] for hand in hands] == left[:processes]
    assert all(hand == sorted(hand) for hand in hands)
    assert all(len(hand) <= len(sampler) for hand, sampler in zip(hands, samplers, strict=True))
    alone = DealtBatchSampler(count, size, finished=finished)
    assert [*alone] == [*alone] == left and len(alone) == len(left)


def test_fewer_batches_than_processes_are_refused():
    with pytest.raises(UserError, match="2 batches, too few for 3 processes"):
        DealtBatchSampler(5, 4, 0, 3)


def test_a_process_alone_counts_for_itself():
    one, other = shared_counter("test"), shared_counter("test")
    assert [one(), one(), other(), one(), other()] == [0, 1, 0, 2, 1]


def words(folder: Path, command: str, *options: str) -> list[str]:
    (folder / "parts.yaml").write_text(PARTS)
    runs = ("--trainer.default_root_dir", str(folder / "runs"))
    return [command, "--config", str(folder / "parts.yaml"), *runs, *options]


def read(parent: Path) -> dict[str, bytes | str]:
    (config,) = parent.glob("runs/*/*/config.yaml")
    folder = config.parent
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("config.yaml", "results.json")
    }
    if (results := folder / "results.json").exists():
        files["results.json"] = json.dumps(json.loads(results.read_text()) | {"provenance": None})
    return files


def logged(path: Path) -> list[str]:
    return path.read_text().split()


@pytest.mark.parametrize(("command", "workers", "more"), [("test", "2", ()), ("predict", "0", ("--overlays", "Hole"))])
def test_a_fast_process_takes_more_and_the_results_stay(command, workers, more, tmp_path):
    (alone := tmp_path / "alone").mkdir()
    (both := tmp_path / "both").mkdir()
    assert main(words(alone, command, "--trainer.devices", "1", *more)) == 0
    started = words(both, command, *TWO, "--data.num_workers", workers, *more)
    log = str(tmp_path / "log-{rank}")
    statuses, said = run_ranks(2, started, both, MORTAL_WAITS="0 0.4", MORTAL_LOG=log)
    assert statuses == [0, 0], said
    assert len(read(both)) > (4 if command == "test" else len(SCORED))
    assert read(both) == read(alone)
    fast, slow = logged(tmp_path / "log-0"), logged(tmp_path / "log-1")
    assert sorted(fast + slow) == SCORED
    assert len(fast) > len(slow) >= BATCH


def evaluate_twice_and_predict(words: Sequence[str]) -> None:
    data, model = Squares(num_workers=2, images=24, batch_size=2), Mortal()
    common = dict(accelerator="cpu", devices=2, logger=False, enable_checkpointing=False, use_distributed_sampler=False)
    evaluation = Evaluation()
    trainer = Trainer(callbacks=[evaluation], **common)
    for _ in range(2):
        trainer.test(model, data, verbose=False)
        if trainer.is_global_zero:
            print("MACRO", evaluation.results.counts.images, evaluation.results.grounding.macro)
    Trainer(callbacks=[PredictionWriter(overlays=False)], default_root_dir=words[0], **common).predict(model, data)


def test_loops_in_one_process_share_no_counter(tmp_path):
    log = tmp_path / "log"
    statuses, said = run_ranks(2, [tmp_path], tmp_path, evaluate_twice_and_predict, MORTAL_LOG=log)
    assert statuses == [0, 0], said
    first, second = (line for line in said.splitlines() if line.startswith("MACRO"))
    assert first == second and first.startswith(f"MACRO {IMAGES} ")
    assert sorted(logged(log)) == sorted(3 * [f"square-{index:03d}" for index in range(IMAGES)])
