"""The command line: `xbench COMMAND ...`, or `python -m xbench.cli COMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import NamedTuple

import xbench
from xbench.commands.arguments import answer_at_once
from xbench.commands.configs import did_you_mean
from xbench.runtime.errors import UserError, explain_machine_error
from xbench.runtime.output import forgive_output, refused_output
from xbench.runtime.start_up import import_lean_torchmetrics


class Command(NamedTuple):
    """A command: what it does in a few words, and words that show it."""

    summary: str
    # `module:name` below `xbench.commands`; imported only when it is called, for torch and Lightning take seconds.
    function: str
    examples: tuple[str, ...]


_SIIM = "--config clip_siim --data.root /data/siim"

COMMANDS = {
    "test": Command("evaluate a model on a dataset", "run:run_test", ("test --config demo.yaml", f"test {_SIIM}")),
    "predict": Command(
        "scores, maps, pictures of any folder", "run:run_predict", ("predict --config clip_folder --data.root films",)
    ),
    "score": Command(
        "maps made elsewhere, without a model",
        "score:score",
        ("score --config siim --predictions maps --name mine --frame whole --scores scores.csv",),
    ),
    "check": Command("look at data and weights first", "run:run_check", (f"check {_SIIM}",)),
    "prepare": Command("decode a dataset once, for later", "run:run_prepare", (f"prepare {_SIIM}",)),
    "report": Command("tables, figures, one page of runs", "report:report", ("report runs",)),
    "bench": Command("many pairs, then the report", "bench.command:bench", ("bench --config demo",)),
    "convert": Command(
        "an official checkpoint, made clean", "convert:convert", ("convert carzero official.ckpt carzero.safetensors",)
    ),
    "verify": Command("every number from the rows again", "verify:verify", ("verify runs/clip_siim/TIME",)),
    "rescore": Command(
        "other rules, without the model", "rescore:rescore", ("rescore runs/clip_siim/TIME --ties any --gamma 0.25",)
    ),
    "reproduce": Command(
        "the same run again, and the drift", "reproduce:reproduce", ("reproduce runs/clip_siim/TIME",)
    ),
    "list": Command("models, datasets, findings, configs", "list:print_list", ("list models",)),
    "completion": Command("for the Tab key of bash or zsh", "completion:completion", ("completion bash",)),
}
"""All commands by name, in the order of the usage."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of the words after `xbench`, by default those of the process.

    Returns:
        The exit status: 0 done, 2 wrong arguments or configuration, 130 stopped by Ctrl-C, 1 anything else.
    """
    command, *options = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    forgive_output()
    import_lean_torchmetrics()
    try:
        status = _run(command, options)
    finally:
        refused = refused_output()
        if refused is not None:
            print(
                f"warning: standard output cannot be written ({refused.strerror}), so what stands there is incomplete; "
                "files and exit status are not affected.",
                file=sys.stderr,
            )
    # These do nothing but print.
    return status or int(refused is not None and command in ("list", "-h", "--help", "--version"))


def _run(command: str, options: Sequence[str]) -> int:
    try:
        _check_text((command, *options))
        if command in ("-h", "--help"):
            print(_usage(), end="")
        elif command == "--version":
            print(f"xbench {xbench.__version__}")
        elif command not in COMMANDS:
            near = did_you_mean(command, COMMANDS)
            raise UserError(f"{command} is not a command.{near} See xbench --help.", exit_status=2)
        elif (words := answer_at_once(command, options)) is not None:
            resolve_name(f"xbench.commands.{COMMANDS[command].function}")(words)
        return 0
    except KeyboardInterrupt:
        # commands/run.py, prepare.py and bench say what is kept, and how to go on; this is for all others.
        explained = UserError("Stopped by Ctrl-C.", exit_status=130)
    except Exception as error:
        found = error if isinstance(error, UserError) else explain_machine_error(error)
        if found is None:
            raise
        explained = found
    print(f"error: {explained}", file=sys.stderr)
    return explained.exit_status


def _usage() -> str:
    lines = ["usage: xbench COMMAND [options]", ""]
    for name, command in COMMANDS.items():
        labels = (f"{name:<10} {command.summary}", *[""] * (len(command.examples) - 1))
        lines += [f"  {label:<48} {words}" for label, words in zip(labels, command.examples, strict=True)]
    end = "COMMAND --help shows the options of a command. First steps, and what each number means: README.md."
    return "\n".join([*lines, "", end, ""])


def _check_text(words: Sequence[str]) -> None:
    """Refuse an argument that no results could name, before any time is spent."""
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            # Python keeps a byte that it cannot decode as a surrogate of its own.
            shown = ascii(word).replace("\\udc", "\\x")
            raise UserError(
                f"The argument {shown} holds bytes that are not text in {sys.getfilesystemencoding()}, but the files "
                "of a run are UTF-8 and name their command: rename the file or folder, or give a link to it with "
                "another name.",
                exit_status=2,
            ) from None


if __name__ == "__main__":
    sys.exit(main())
