"""Command `bench`."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from xbench.commands.bench.config import Job, part_of, plan, read_bench
from xbench.commands.configs import compose
from xbench.commands.look import check_options, constructor
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.locks import folder_lock
from xbench.runtime.processes import usable_cores

if TYPE_CHECKING:
    from xbench.commands.bench.worker import Planned

_EVERY_RUN = re.compile(r"--(model\.|data\.|trainer\.(?!default_root_dir)|threads|seed_everything|oversubscribe)")


def bench(given: Namespace, more: Sequence[str]) -> None:
    """Run a benchmark, each run in its own process, then the report; `more` are options of every run."""
    out, jobs = jobs_of(given, more)
    for job in jobs:
        check_options("bench", compose(job.options), constructor)
    console = Console(markup=False, highlight=False)
    if not jobs:
        console.print("This part has no runs.")
        return
    # Imported late because torch takes seconds.
    from xbench.commands.bench.worker import Interrupted, interruptible, look

    try:
        with interruptible():
            with console.status("Checking configurations, data and weights"):
                planned, problems, missing = look(jobs, out)
            reasons = {job.name: text for text, hindered in problems.items() for job in hindered}
            if given.dry_run == "true":
                _dry_run(jobs, planned, reasons, console)
            elif given.check == "true":
                _check(jobs, planned, problems, console)
            elif problems and not (missing and given.missing == "skip"):
                _refuse(jobs, problems, missing, console)
            else:
                with folder_lock(out / "bench", shared=given.part is not None or given.report == "false"):
                    _work(jobs, planned, reasons, out, given)
    except Interrupted as error:
        raise UserError(f"Stopped by {error}. Repeat the command to continue.") from None


def jobs_of(given: Namespace, more: Sequence[str]) -> tuple[Path, list[Job]]:
    """Return the folder and the runs of a command."""
    wrong = [word for word in more if word.startswith("-") and not _EVERY_RUN.match(word)]
    if wrong := wrong[:1] or [word for word in more[:1] if not word.startswith("-")]:
        raise UsageError(f"bench: unknown option {wrong[0]}. See xbench bench --help.")
    if given.jobs == 0:
        raise UsageError("bench --jobs 0: give at least 1.")
    models, datasets = (
        [*dict.fromkeys(filter(None, ",".join(names).split(",")))] for names in (given.models, given.datasets)
    )
    config = read_bench(given.config, models, datasets)
    out = Path(given.out or config.out or "runs").expanduser()
    jobs = plan(config, out, more)
    return out, jobs if given.part is None else part_of(jobs, given.part)


def _work(jobs: Sequence[Job], planned: Sequence[Planned], why: Mapping[str, str], out: Path, given: Namespace) -> None:
    from xbench.commands.bench.worker import Interrupted, Outcome, Worker, print_summary, shares_of_machine

    console, wanted, stopped = Console(markup=False, highlight=False), given.jobs or 1, ""
    shares, status = shares_of_machine(wanted), console.status("")
    if len(shares) < wanted:
        console.print(f"--jobs {wanted}: there are {usable_cores()} cores, so {len(shares)} at once.")
    worker = Worker(out, len(jobs), shares, status)
    try:
        with status:
            for job in [job for job in jobs if job.name in why]:
                worker.note(Outcome(job, "left out", why[job.name]))
            # Finished runs first, so that the summary always lists them.
            worker.do(sorted((one for one in planned if one.job.name not in why), key=lambda one: not one.done))
    except Interrupted as error:
        stopped = f"Stopped by {error}"
    outcomes = [worker.outcomes.get(job.name, Outcome(job, "not begun")) for job in jobs]
    print_summary(console, outcomes)
    names = defaultdict(list)
    for outcome in outcomes:
        names[outcome.status].append(outcome.job.name)
    if stopped:
        done = len(names["finished"] + names["skipped"])
        raise UserError(f"{stopped} after {done} of {len(jobs)} runs. Repeat the command to continue.")
    alone = given.part is None and given.report != "false"
    if alone and any(outcome.results is not None for outcome in outcomes):
        from xbench.commands.report import write_report

        write_report([out], out / "report")
    if (busy := names["busy"]) and (alone or len(busy) == len(jobs)):
        raise UserError(f"Other processes are running {', '.join(busy)}: wait for them to end.")
    if failed := names["failed"] + names["changed"]:
        raise UserError(
            f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}. Logs are in {out / 'bench' / 'logs'}. "
            "Repeat the command to retry."
        )


def _dry_run(jobs: Sequence[Job], planned: Sequence[Planned], reasons: Mapping[str, str], console: Console) -> None:
    finished = {one.job.name for one in planned if one.done} - {*reasons}
    for job in jobs:
        text = "finished and unchanged, would be skipped" if job.name in finished else ""
        text = text or f"would run: xbench test {shlex.join(job.options)}"
        text = f"cannot run: {reasons[job.name]}" if job.name in reasons else text
        console.print(f"{job.name}: {text}", soft_wrap=True)
    console.print(
        f"Of {len(jobs)} runs {len(jobs) - len(finished) - len(reasons)} would run, {len(finished)} are finished, "
        f"{len(reasons)} cannot run. Nothing was run."
    )


def _check(jobs: Sequence[Job], planned: Sequence[Planned], problems: Iterable[str], console: Console) -> None:
    from xbench.commands.bench.worker import check_all

    texts = [*dict.fromkeys([*problems, *check_all(planned, console)])]
    if texts:
        console.print(*(f"- {text}" for text in texts), sep="\n", style="red", soft_wrap=True)
        raise UserError(f"{len(texts)} problems, listed above, in a benchmark of {len(jobs)} runs.")
    done = sum(one.done for one in planned)
    console.print(f"No problems found. {done} of {len(jobs)} runs are finished and unchanged.")


def _refuse(jobs: Sequence[Job], problems: Mapping[str, Sequence[Job]], missing: bool, console: Console) -> None:
    texts = []
    for text, hindered in problems.items():
        more = f" and {len(hindered) - 3} more" if len(hindered) > 3 else ""
        texts.append(f"{', '.join(job.name for job in hindered[:3])}{more}: {text}")
    console.print(*(f"- {text}" for text in texts), sep="\n", style="red", soft_wrap=True)
    count = len({job.name for hindered in problems.values() for job in hindered})
    more = ", or skip those runs with --missing skip" if missing else ""
    raise UsageError(
        f"{count} of {len(jobs)} runs cannot start (problems: {len(texts)}, listed above), so none was started: "
        f"fix this, choose others with --models and --datasets{more}."
    )
