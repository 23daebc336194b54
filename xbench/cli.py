"""The command line: `python -m xbench.cli COMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import NamedTuple

import xbench
from xbench.errors import UserError, explain_machine_error
from xbench.runtime.output import forgive_output, refused_output


class Command(NamedTuple):
    """A command.

    Attributes:
        summary: What it does, in a few words.
        examples: Words that show it.
        function: `module:name` of what is called with the words after the command. Imported only then, for torch and
            Lightning take seconds.
    """

    summary: str
    examples: tuple[str, ...]
    function: str

    def load(self) -> Callable[[Sequence[str]], None]:
        """Import the function."""
        function: Callable[[Sequence[str]], None] = resolve_name(self.function)
        return function


COMMANDS = {
    "test": Command(
        "evaluate a model on a dataset",
        ("test --config demo.yaml", "test --config clip_siim --data.root /data/siim"),
        "xbench.commands.run:run_test",
    ),
    "predict": Command(
        "write logits and saliency maps",
        ("predict --config clip_siim --data.root /data/siim",),
        "xbench.commands.run:run_predict",
    ),
    "check": Command(
        "look at data and weights first",
        ("check --config clip_siim --data.root /data/siim",),
        "xbench.commands.run:run_check",
    ),
    "prepare": Command(
        "decode a dataset once, for later",
        ("prepare --config clip_siim --data.root /data/siim",),
        "xbench.commands.run:run_prepare",
    ),
    "report": Command("tables, figures, one page of runs", ("report runs",), "xbench.commands.report:report"),
    "bench": Command("many pairs, then the report", ("bench --config demo",), "xbench.commands.bench.command:bench"),
    "convert": Command(
        "an official checkpoint, made clean",
        ("convert carzero CARZero_best_model.ckpt carzero.safetensors",),
        "xbench.commands.convert:convert",
    ),
    "verify": Command(
        "every number from the rows again", ("verify runs/clip_siim/TIME",), "xbench.commands.verify:verify"
    ),
    "rescore": Command(
        "other rules, without the model",
        ("rescore runs/clip_siim/TIME --ties any --gamma 0.25",),
        "xbench.commands.rescore:rescore",
    ),
    "reproduce": Command(
        "the same run again, and the drift", ("reproduce runs/clip_siim/TIME",), "xbench.commands.reproduce:reproduce"
    ),
    "list": Command("models, datasets, findings, configs", ("list models",), "xbench.commands.list:print_list"),
}
"""All commands by name, in the order of the usage."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The words after `python -m xbench.cli`; those of the process if None.

    Returns:
        The exit status: 0 done, 2 wrong arguments or configuration, 130 stopped by Ctrl-C, 1 anything else.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    command, options = (words[0], words[1:]) if words else ("--help", [])
    forgive_output()
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
        for word in (command, *options):
            _refuse_no_text(word)
        if command in ("-h", "--help"):
            print(_usage(), end="")
        elif command == "--version":
            print(f"xbench {xbench.__version__}")
        elif command in COMMANDS:
            COMMANDS[command].load()(options)
        else:
            raise UserError(f"{command} is not a command. See python -m xbench.cli --help.", exit_status=2)
        return 0
    except KeyboardInterrupt:
        explained = UserError("Stopped by Ctrl-C.", exit_status=130)
    except Exception as error:
        found = error if isinstance(error, UserError) else explain_machine_error(error)
        if found is None:
            raise
        explained = found
    print(f"error: {explained}", file=sys.stderr)
    return explained.exit_status


def _usage() -> str:
    lines = ["usage: python -m xbench.cli COMMAND [options]", ""]
    for name, command in COMMANDS.items():
        labels = (f"{name:<10} {command.summary}", *[""] * (len(command.examples) - 1))
        lines += [f"  {label:<47} {words}" for label, words in zip(labels, command.examples, strict=True)]
    lines += [
        "",
        "COMMAND --help shows the options of a command. Names, first steps and what each number means: README.md.",
    ]
    return "\n".join(lines) + "\n"


def _refuse_no_text(word: str) -> None:
    """Refuse an argument that no results could name, before any time is spent."""
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        # Python keeps a byte that it cannot decode as a surrogate of its own.
        shown = ascii(word).replace("\\udc", "\\x")
        raise UserError(
            f"The argument {shown} holds bytes that are not text in {sys.getfilesystemencoding()}, but the files of a "
            "run are UTF-8 and name their command: rename the file or folder, or give a link to it with another name.",
            exit_status=2,
        ) from None


if __name__ == "__main__":
    sys.exit(main())
