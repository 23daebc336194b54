"""The command `bench`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from xbench.commands.bench.config import Job, parse, part_of, plan, read_bench
from xbench.commands.configs import compose
from xbench.commands.look import check_options, constructor
from xbench.runtime.errors import UserError
from xbench.runtime.locks import folder_lock

if TYPE_CHECKING:
    from xbench.commands.bench.preflight import Problem


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

    alone = given.part is None and given.report == "true"
    try:
        with interruptible():
            if given.dry_run == "true":
                _dry_run(jobs, out, console)
            elif given.check == "true":
                _check(jobs, out, console)
            else:
                with folder_lock(out / "bench", shared=not alone):
                    _work(jobs, out, given.missing == "skip", alone, console)
    except Interrupted as error:
        raise UserError(f"Stopped by {error}. The same command goes on where it was.") from None


def _work(jobs: Sequence[Job], out: Path, leave_out: bool, alone: bool, console: Console) -> None:
    from xbench.commands.bench.preflight import look
    from xbench.commands.bench.worker import Interrupted, Outcome, Worker, print_summary, skipped

    with console.status("Looking at configurations, data and weights"):
        planned, problems, runs = look(jobs, out)
    if problems and not (leave_out and all(problem.kind == "missing" for problem in problems)):
        _refuse(problems, len(jobs), console)
    reasons = {job.name: problem.text for problem in problems for job in problem.jobs}
    startable = {plan.job.name: plan for plan in planned if plan.job.name not in reasons}
    outcomes: list[Outcome] = []
    stopped = ""
    status = console.status("")
    worker = Worker(out, runs, startable.values(), len(jobs), alone, status)
    try:
        with status:
            for job in jobs:
                left_out = Outcome(job, "left out", reasons.get(job.name, ""))
                outcomes.append(worker.do(startable[job.name]) if job.name in startable else left_out)
                worker.show(outcomes[-1])
    except Interrupted as error:
        stopped = f"Stopped by {error}"
        for job in jobs[len(outcomes) :]:
            finished = startable[job.name].finished if job.name in startable else None
            if finished is not None and finished.done:
                outcomes.append(skipped(job, finished))
            else:
                outcomes.append(Outcome(job, "stopped" if job.name == worker.begun else "not begun"))
    print_summary(console, outcomes)
    if stopped:
        done = sum(outcome.status in ("finished", "skipped") for outcome in outcomes)
        raise UserError(f"{stopped} after {done} of {len(jobs)} runs. The same command goes on where it was.")
    if alone and any(outcome.results is not None for outcome in outcomes):
        from xbench.commands.report import report

        report([str(out)])
    if all(outcome.status == "busy" for outcome in outcomes):
        raise UserError("Nothing was done: other benchmarks are at work on all of these runs. Wait for them to end.")
    if failed := [outcome.job.name for outcome in outcomes if outcome.status in ("failed", "changed")]:
        raise UserError(
            f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}. Logs are in {out / 'bench' / 'logs'}; the "
            "same command tries again what failed."
        )


def _dry_run(jobs: Sequence[Job], out: Path, console: Console) -> None:
    """Print each run with its command, or why it would not be done."""
    from xbench.commands.bench.preflight import look

    with console.status("Looking at configurations, data and weights"):
        planned, problems, _ = look(jobs, out)
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

    planned, problems, _ = look(jobs, out)
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
