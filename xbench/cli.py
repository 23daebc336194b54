"""The command line: `xbench COMMAND ...`, or `python -m xbench.cli COMMAND ...`."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name

from xbench.commands.arguments import COMMANDS, command_parser
from xbench.commands.look import look
from xbench.runtime.errors import UsageError, UserError, explain_machine_error
from xbench.runtime.output import forgive_output, refused_output
from xbench.runtime.start_up import import_lean_torchmetrics


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0 done, 2 wrong arguments, 130 stopped by Ctrl-C, 1 other errors."""
    words = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    forgive_output()
    import_lean_torchmetrics()
    try:
        status = _run(words)
    finally:
        refused = refused_output()
        if refused is not None:
            print(
                f"warning: standard output cannot be written ({refused.strerror}), so the text there is incomplete; "
                "files and exit status are not affected.",
                file=sys.stderr,
            )
    return status or int(refused is not None and words[0] in ("list", "completion", "-h", "--help", "--version"))


def _run(words: Sequence[str]) -> int:
    try:
        _check_text(words)
        parser, parsers = command_parser()
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(parser, always_complete_options="long")
        try:
            given, more = parser.parse_known_args(words)
        except SystemExit:  # after help
            return 0
        command, run = COMMANDS[given.command], getattr(given, "run", None)
        # Find wrong arguments and missing files before importing torch, which takes seconds.
        if builds := command["function"].startswith("run:run_"):
            more = ["--help" if word == "--help-all" else word for word in words[1:]]
            if given.command == "intervene":
                more = [re.sub("^--pairs(?=$|=)", "--data.pairs", word) for word in more]
            look(given.command, more)
        elif given.command == "score":
            look("score", [*(f"--config={name}" for name in given.config), *more], ["data"])
        elif more and not command.get("open"):
            parsers[given.command].error(f"unrecognized arguments: {' '.join(more)}")
        if isinstance(run, Path):
            from xbench.runs.files import RESULTS, reading

            with reading(run.expanduser()):
                (run.expanduser() / RESULTS).stat()
        # Objects of imported libraries live on, and scanning them for garbage takes a quarter of a short run.
        gc.disable()
        try:
            function = resolve_name(f"xbench.commands.{command['function']}")
        finally:
            gc.enable()
        if not gc.get_freeze_count():
            gc.freeze()
            gc.set_threshold(10_000, 10, 10)
            atexit.register(gc.freeze)  # skips the collection at exit
        function(*([] if builds else [given]), *([more] if command.get("open") else []))
        return 0
    except KeyboardInterrupt:
        # commands/run.py, prepare.py and bench explain how to resume; this is for all other commands.
        explained = UserError("Stopped by Ctrl-C.", exit_status=130)
    except Exception as error:
        found = error if isinstance(error, UserError) else explain_machine_error(error)
        if found is None:
            raise
        explained = found
    print(f"error: {explained}", file=sys.stderr)
    return explained.exit_status


def _check_text(words: Sequence[str]) -> None:
    for word in words:
        # Python decodes an invalid byte as a lone surrogate; the files of a run are UTF-8.
        if re.search("[\ud800-\udfff]", word):
            shown = ascii(word).replace("\\udc", "\\x")
            raise UsageError(
                f"The argument {shown} holds bytes that are not text in {sys.getfilesystemencoding()}, and the files "
                "of a run are UTF-8: rename the file or folder, or use a link with another name."
            )


if __name__ == "__main__":
    sys.exit(main())
