"""The command `bench`."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from xbench.commands.bench.config import Job, parse, part_of, plan, read_bench
from xbench.commands.configs import compose
from xbench.commands.look import check_options, constructor
from xbench.runtime.errors import UserError
from xbench.runtime.locks import folder_lock
from xbench.runtime.processes import usable_cores

if TYPE_CHECKING:
    from xbench.commands.bench.preflight import Problem
    from xbench.commands.bench.worker import Share


def bench(options: Sequence[str]) -> None:
    """Run a benchmark: every run in a fresh process, then the report."""
    given, more = parse(options)
    config = read_bench(given.config, given.models, given.datasets)
    out = Path(given.out or config.out or "runs").expanduser()
    jobs = plan(config, out, more)
    if given.part is not None:
        jobs = part_of(jobs, given.part)
    for job in jobs:
        check_options("bench", compose(job.options), constructor)
    console = Console()
    if not jobs:
        console.print("There is nothing to run in this part.")
        return
    # Imported only now, for torch takes seconds and wrong words are answered at once.
    from xbench.commands.bench.worker import Interrupted, interruptible

    try:
        with interruptible():
            if given.dry_run == "true":
                _dry_run(jobs, out, console)
            elif given.check == "true":
                _check(jobs, out, console)
            else:
                with folder_lock(out / "bench", shared=given.part is not None or given.report == "false"):
                    _work(jobs, out, given, console)
    except Interrupted as error:
        raise UserError(f"Stopped by {error}. The same command goes on where it was.") from None


def _work(jobs: Sequence[Job], out: Path, given: Namespace, console: Console) -> None:
    from xbench.commands.bench.preflight import look
    from xbench.commands.bench.worker import Interrupted, Outcome, Worker, print_summary

    with console.status("Looking at configurations, data and weights"):
        planned, problems = look(jobs, out)
    if problems and not (given.missing == "skip" and all(problem.kind == "missing" for problem in problems)):
        _refuse(problems, len(jobs), console)
    reasons = {job.name: problem.text for problem in problems for job in problem.jobs}
    stopped = ""
    status = console.status("")
    worker = Worker(out, len(jobs), _shares(given.jobs, console), status)
    try:
        with status:
            for job in [job for job in jobs if job.name in reasons]:
                worker.note(Outcome(job, "left out", reasons[job.name]))
            # First those that are done, which then stand in the summary however this ends.
            worker.do(
                sorted((plan for plan in planned if plan.job.name not in reasons), key=lambda plan: not plan.done)
            )
    except Interrupted as error:
        stopped = f"Stopped by {error}"
    outcomes = [worker.outcomes.get(job.name, Outcome(job, "not begun")) for job in jobs]
    print_summary(console, outcomes)
    if stopped:
        done = sum(outcome.status in ("finished", "skipped") for outcome in outcomes)
        raise UserError(f"{stopped} after {done} of {len(jobs)} runs. The same command goes on where it was.")
    alone = given.part is None and given.report == "true"
    if alone and any(outcome.results is not None for outcome in outcomes):
        from xbench.commands.report import report

        report([str(out)])
    busy = [outcome.job.name for outcome in outcomes if outcome.status == "busy"]
    if len(busy) == len(jobs) or (alone and busy):
        raise UserError(f"Other processes are at work on {', '.join(busy)}: wait for them to end.")
    if failed := [outcome.job.name for outcome in outcomes if outcome.status in ("failed", "changed")]:
        raise UserError(
            f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}. Logs are in {out / 'bench' / 'logs'}; the "
            "same command tries again what failed."
        )


def _shares(jobs: int, console: Console) -> list[Share]:
    """Deal the GPUs and cores of this machine to runs at once."""
    import torch

    from xbench.commands.bench.worker import shares

    gpus = [str(number) for number in range(torch.cuda.device_count())]
    # Those that this process may use can have other names, such as those of parts of a GPU.
    if gpus and (visible := os.environ.get("CUDA_VISIBLE_DEVICES")):
        gpus = visible.split(",")[: len(gpus)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    dealt = shares(jobs, gpus, cores[: usable_cores()])
    if len(dealt) < jobs:
        console.print(f"--jobs {jobs}: there are {usable_cores()} cores, so {len(dealt)} at once.", highlight=False)
    return dealt


def _dry_run(jobs: Sequence[Job], out: Path, console: Console) -> None:
    """Print each run with its command, or why it would not be done."""
    from xbench.commands.bench.preflight import look

    with console.status("Looking at configurations, data and weights"):
        planned, problems = look(jobs, out)
    finished = {plan.job.name for plan in planned if plan.done}
    problem_of = {job.name: problem.text for problem in problems for job in problem.jobs}
    for job in jobs:
        if job.name in problem_of:
            text = f"cannot run: {problem_of[job.name]}"
        elif job.name in finished:
            text = "finished and unchanged, would be skipped"
        else:
            text = f"would run: xbench test {shlex.join(job.options)}"
        console.print(f"{job.name}: {text}", soft_wrap=True, markup=False, highlight=False)
    to_do = len(jobs) - len(finished) - len(problem_of)
    console.print(
        f"Of {len(jobs)} runs {to_do} would run, {len(finished)} are finished, {len(problem_of)} cannot run. "
        "Nothing was run.",
        highlight=False,
    )


def _check(jobs: Sequence[Job], out: Path, console: Console) -> None:
    """Look at everything and run nothing."""
    from xbench.commands.bench.preflight import check_all, look

    planned, problems = look(jobs, out)
    if texts := [*dict.fromkeys([*(problem.text for problem in problems), *check_all(planned, console)])]:
        raise UserError(f"{_list(texts, console)} in a benchmark of {len(jobs)} runs; they stand above.")
    done = sum(plan.done for plan in planned)
    console.print(f"Nothing is wrong. Of {len(jobs)} runs {done} are finished and unchanged.", highlight=False)


def _refuse(problems: Sequence[Problem], total: int, console: Console) -> None:
    """Say what is wrong, and which runs it keeps from being done."""
    texts = []
    for problem in problems:
        names = [job.name for job in problem.jobs]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        texts.append(f"{', '.join(names[:3])}{more}: {problem.text}")
    hindered = len({job.name for problem in problems for job in problem.jobs})
    advice = "correct this, choose others with --models and --datasets"
    if all(problem.kind == "missing" for problem in problems):
        advice += ", or leave those runs out with --missing skip"
    raise UserError(
        f"{hindered} of {total} runs cannot be done ({_list(texts, console)}, listed above), so none was begun: "
        f"{advice}.",
        exit_status=2,
    )


def _list(problems: Sequence[str], console: Console) -> str:
    """Print problems line by line and say how many there are."""
    for text in problems:
        console.print(f"- {text}", style="red", soft_wrap=True, markup=False, highlight=False)
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
