"""The options of `bench`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from xbench.commands.command_parser import CommandParser
from xbench.errors import UserError

__all__ = ["parse"]

_EXAMPLES = """
examples:
  bench --config demo                           models without a download on drawn radiographs, in minutes
  bench                                         the paper: data in $XBENCH_DATA, weights in $XBENCH_WEIGHTS
  bench --config mine.yaml --models clip kad    what mine.yaml says, two models of it
  bench --config mine.yaml --config resolution  the same, and once more at 448 pixels
  bench --config mine.yaml --data.batch_size 32 --trainer.precision bf16-mixed

mine.yaml says where things lie, and what of it is to run:
  models:
    clip: {}
    carzero: {checkpoint: /models/carzero.safetensors}
  datasets:
    vindr: {root: /data/vindr}
  trainer: {precision: bf16-mixed}
  variants:
    by_name: {model: {prompts: name}}

A run is skipped if it is finished and would come out the same: same configuration but for what moves no number, same
code and versions, checkpoint, annotation files and number of images. Whatever failed is tried again.
"""


def parse(options: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of the benchmark, and those that every run gets.

    Raises:
        UserError: An option is wrong.
        SystemExit: After --help.
    """
    parser = CommandParser(
        "bench",
        description="Runs models on datasets one after another, each in a fresh process; goes on after a failure, "
        "skips what is finished and unchanged, and ends with the report.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--config",
        action="append",
        default=[],
        metavar="NAME_OR_PATH",
        help="what the benchmark consists of; may be repeated, the later over the earlier; shipped are those of "
        "`list benches`; where none names models or datasets, those of the paper count",
    )
    add("--models", nargs="+", default=[], metavar="NAME", help="these models alone")
    add("--datasets", nargs="+", default=[], metavar="NAME", help="these datasets alone")
    add("--out", metavar="DIR", help="where runs go (default: runs)")
    add("--part", metavar="K/N", help="every Nth run from the Kth on, for several processes at once; no report")
    add(
        "--report",
        type=_truth,
        default=True,
        metavar="{true,false}",
        help="end with the report (default: true); without it several benchmarks can share a folder",
    )
    add("--check", type=_truth, default=False, metavar="{true,false}", help="look at data and weights, and run nothing")
    add(
        "--missing",
        choices=("stop", "skip"),
        default="stop",
        help="stop before anything runs if data or weights are missing, or leave those runs out (default: stop)",
    )
    parser.add_argument_group("--model.X, --data.X, --trainer.X", "options of every run, as test has them")
    given, more = parser.parse_known_args(options)
    given.models, given.datasets = _names(given.models), _names(given.datasets)
    for word in more:
        known = word.startswith(
            ("--model.", "--data.", "--trainer.", "--threads", "--seed_everything", "--oversubscribe")
        )
        if word.startswith("-") and (not known or word.startswith("--trainer.default_root_dir")):
            raise UserError(f"bench: {word} is no option of it. See python -m xbench.cli bench --help.", exit_status=2)
    if more and not more[0].startswith("-"):
        raise UserError(f"bench: {more[0]} does not belong to an option.", exit_status=2)
    return given, more


def _names(words: Sequence[str]) -> list[str]:
    """Names given as several words or with commas between them, each once."""
    return [*dict.fromkeys(name for word in words for name in word.split(",") if name)]


def _truth(word: str) -> bool:
    if word not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{word} is neither true nor false")
    return word == "true"
