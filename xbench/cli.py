"""The command line: `python -m xbench.cli COMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import xbench
from xbench.errors import UserError, explain_machine_error
from xbench.runtime.output import forgive_output, refused_output

__all__ = ["main"]

_USAGE = """usage: python -m xbench.cli COMMAND [options]

  test     evaluate a model on a dataset        test --config demo.yaml
                                                test --config clip_siim --data.root /data/siim
  predict  write logits and saliency maps       predict --config clip_siim --data.root /data/siim
  check    look at data and weights first       check --config clip_siim --data.root /data/siim
  prepare  decode a dataset once, for later     prepare --config clip_siim --data.root /data/siim
  report   tables, figures, one page of runs    report runs
  bench    many pairs, then the report          bench --config demo
  convert  an official checkpoint, made clean   convert carzero CARZero_best_model.ckpt carzero.safetensors
  verify   every number from the rows again     verify runs/clip_siim/TIME
  rescore  other rules, without the model       rescore runs/clip_siim/TIME --ties any --gamma 0.25
  reproduce  the same run again, and the drift  reproduce runs/clip_siim/TIME
  list     models, datasets, findings, configs  list models

COMMAND --help shows the options of a command. Names, first steps and what each number means: README.md.
"""


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
            print(_USAGE, end="")
        elif command == "--version":
            print(f"xbench {xbench.__version__}")
        elif command == "list":
            from xbench.commands.list import print_list

            print_list(options)
        elif command == "report":
            from xbench.commands.report import report

            report(options)
        elif command == "bench":
            from xbench.commands.bench.command import bench

            bench(options)
        elif command == "convert":
            from xbench.commands.convert import convert

            convert(options)
        elif command == "verify":
            from xbench.commands.verify import verify

            verify(options)
        elif command == "rescore":
            from xbench.commands.rescore import rescore

            rescore(options)
        elif command == "reproduce":
            from xbench.commands.reproduce import reproduce

            reproduce(options)
        elif command in ("test", "predict", "prepare", "check"):
            # Imported only here: torch and Lightning take seconds.
            from xbench.commands.run import run

            run(command, options)
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


def _refuse_no_text(word: str) -> None:
    """Refuse an argument that no results could name, before any time is spent."""
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        # Python keeps a byte that it cannot decode as a surrogate of its own.
        shown = ascii(word).replace("\\udc", "\\x")
        raise UserError(
            f"The argument {shown} holds bytes that are no text in {sys.getfilesystemencoding()}, and the files of a "
            "run are UTF-8 and name their command: rename the file or folder, or give a link to it with another name.",
            exit_status=2,
        ) from None


if __name__ == "__main__":
    sys.exit(main())
