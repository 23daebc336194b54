"""The command `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from xbench.commands.bench.config import parse, read_bench
from xbench.commands.bench.jobs import Job, part_of, plan
from xbench.commands.bench.screen import Outcome, Screen, print_summary
from xbench.errors import UserError
from xbench.runtime.locks import folder_lock

if TYPE_CHECKING:
    from xbench.commands.bench.preflight import Planned, Problem


def bench(options: Sequence[str]) -> None:
    """Run a benchmark: every run in a fresh process, then the report.

    Args:
        options: The words after `bench`.

    Raises:
        UserError: Something is wrong with the options, or data or weights are missing; or runs failed.
    """
    given, more = parse(options)
    config = read_bench(given.config, given.models, given.datasets)
    out = Path(given.out or config.out or "runs").expanduser()
    jobs = plan(config, out, more)
    if given.part is not None:
        jobs = part_of(jobs, given.part)
    console = Console()
    if not jobs:
        console.print("There is nothing to run in this part.")
        return
    # Imported only now, for torch takes seconds and wrong words are answered at once.
    from xbench.commands.bench.worker import Interrupted, interruptible

    alone = given.part is None and given.report
    try:
        with interruptible():
            if given.check:
                _check(jobs, out, console)
            else:
                with folder_lock(out / "bench", shared=not alone):
                    _work(jobs, out, given.missing == "skip", alone, console)
    except Interrupted as error:
        raise UserError(f"Stopped by {error}. The same command goes on where it was.") from None


def _work(jobs: Sequence[Job], out: Path, leave_out: bool, alone: bool, console: Console) -> None:
    from xbench.commands.bench.preflight import look
    from xbench.commands.bench.worker import Interrupted, Worker

    with console.status("Looking at configurations, data and weights"):
        planned, problems, runs = look(jobs, out)
    _refuse(problems, len(jobs), leave_out, console)
    reasons = {job.name: problem.text for problem in problems for job in problem.jobs}
    startable = {plan.job.name: plan for plan in planned if plan.job.name not in reasons}
    outcomes: list[Outcome] = []
    worker = Worker(out, [startable[job.name] for job in jobs if job.name in startable], runs, alone)
    try:
        with Screen(console, len(jobs)) as screen:
            for job in jobs:
                if job.name in startable:
                    outcome = worker.do(startable[job.name], screen)
                else:
                    outcome = Outcome(job, "left out", reasons[job.name])
                outcomes.append(outcome)
                screen.end(outcome, worker.left())
    except Interrupted as error:
        outcomes += [_not_reached(job, startable, job.name in worker.begun) for job in jobs[len(outcomes) :]]
        print_summary(console, outcomes)
        done = sum(outcome.status in ("finished", "skipped") for outcome in outcomes)
        raise UserError(
            f"Stopped by {error} after {done} of {len(jobs)} runs. The same command goes on where it was."
        ) from None
    print_summary(console, outcomes)
    if alone and any(outcome.results is not None for outcome in outcomes):
        from xbench.commands.report import report

        report([str(out)])
    if failed := [outcome for outcome in outcomes if outcome.status in ("failed", "changed")]:
        names = ", ".join(outcome.job.name for outcome in failed)
        raise UserError(
            f"{len(failed)} of {len(jobs)} runs failed: {names}. Logs are in {out / 'bench' / 'logs'}; the same "
            "command tries again what failed."
        )


def _not_reached(job: Job, startable: Mapping[str, Planned], begun: bool) -> Outcome:
    plan = startable.get(job.name)
    if plan is None or plan.finished is None or not plan.done:
        return Outcome(job, "stopped" if begun else "not begun")
    return Outcome(job, "skipped", str(plan.finished.folder), None, plan.finished.results)


def _check(jobs: Sequence[Job], out: Path, console: Console) -> None:
    """Look at everything and run nothing."""
    from xbench.commands.bench.preflight import check_all, look

    planned, problems, _ = look(jobs, out)
    texts = dict.fromkeys([*(problem.text for problem in problems), *check_all(planned, console)])
    for text in texts:
        console.print(f"- {text}", style="red", soft_wrap=True, markup=False, highlight=False)
    if texts:
        count = "1 problem" if len(texts) == 1 else f"{len(texts)} problems"
        raise UserError(f"{count} in a benchmark of {len(jobs)} runs; they stand above.")
    done = sum(plan.done for plan in planned)
    console.print(f"Nothing is wrong. Of {len(jobs)} runs {done} are finished and unchanged.", highlight=False)


def _refuse(problems: Sequence[Problem], total: int, leave_out: bool, console: Console) -> None:
    """Stop before anything runs if something is wrong that may not be left out.

    Raises:
        UserError: There is such a problem; all of them are printed.
    """
    if not problems or (leave_out and all(problem.kind == "missing" for problem in problems)):
        return
    for problem in problems:
        names = [job.name for job in problem.jobs]
        of = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        console.print(f"- {of}: {problem.text}", style="red", soft_wrap=True, markup=False, highlight=False)
    hindered = len({job.name for problem in problems for job in problem.jobs})
    advice = "correct this, choose others with --models and --datasets" + (
        ", or leave those runs out with --missing skip"
        if all(problem.kind == "missing" for problem in problems)
        else ""
    )
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise UserError(
        f"{hindered} of {total} runs cannot be done ({count}, listed above), so none was begun: {advice}.",
        exit_status=2,
    )
