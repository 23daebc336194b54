"""Parser of the command line, built from `commands.yaml`.

Imports neither torch nor Lightning, so help is fast. For commands that build a model, the table lists the usual options
for help and completion; `commands/options.py` reads all options of their classes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import xbench
from xbench.commands.configs import did_you_mean, shipped
from xbench.runtime.errors import UsageError
from xbench.runtime.strict import load_yaml, unique_keys

COMMANDS: Mapping[str, Mapping[str, Any]] = load_yaml(Path(__file__).with_name("commands.yaml"))
"""Commands by name, in the order of the help."""


class CommandParser(argparse.ArgumentParser):
    """Parser of the command line or of one command; raises `UserError`s."""

    def __init__(self, **kwargs: Any) -> None:
        def layout(prog: str) -> argparse.HelpFormatter:
            return argparse.RawDescriptionHelpFormatter(prog, max_help_position=36, width=110)

        super().__init__(formatter_class=layout, allow_abbrev=False, **kwargs)

    # Untyped in argparse as well.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; a switch takes the next word only if it is `true` or `false`."""
        bare = {name for action in self._actions if action.const == "true" for name in action.option_strings}
        words = [*(args or [])]
        for place, word in enumerate(words):
            if word in bare and words[place + 1 : place + 2] not in (["true"], ["false"]):
                words[place] = f"{word}=true"
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError about the options."""
        near = ""
        if choice := re.search(r"invalid choice: '(.+?)' \(choose from (.+)\)", message):
            near = did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
        elif option := re.search(r"unrecognized arguments: (--[\w.-]+)", message):
            near = did_you_mean(option[1], self._option_string_actions)
        raise UsageError(f"{self.prog}: {message}.{near} See {self.prog} --help.")


def command_parser() -> tuple[CommandParser, Mapping[str, CommandParser]]:
    """Return the parser of the command line, and those of the commands by name."""
    end = "COMMAND --help shows the options of a command. First steps and meaning of the numbers: README.md."
    parser = CommandParser(prog="xbench", usage="xbench COMMAND [options]", epilog=end)
    parser.add_argument("--version", action="version", version=f"xbench {xbench.__version__}")
    parts = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND ...", prog="xbench", required=True)
    for name, about in COMMANDS.items():
        summary = about["summary"]
        text = f"{summary[0].upper()}{summary[1:]}."
        part = parts.add_parser(name, help=summary, description=text, epilog=about.get("notes"))
        if about["function"].startswith("run:run_"):
            part.add_argument("--help-all", action="store_true", help="show all options (long)")
        for title, options in about["options"].items():
            group = part.add_argument_group(title)
            for written, text in options.items():
                _add(group, written, text)
    return parser, parts.choices


def _add(group: argparse._ArgumentGroup, written: str, text: str) -> None:
    *names, value = written.split()
    if value.startswith("-"):
        group.add_argument(*names, value, action="store_true", help=text)
        return
    shown = value.strip("[]*+!")
    name, _, listed = shown.rpartition("=")
    known = listed.split("|")
    fixed = [word for word in known if word == word.lower() != "..."]
    closed = len(known) > 1 and fixed == known
    options: dict[str, Any] = {"help": text, "metavar": name or shown}
    if value.startswith("["):
        options |= {"nargs": "?", "const": known[0]} if names else {"nargs": "?"}
    elif value.endswith("+"):
        options |= {"nargs": "+", "default": []} if names else {"nargs": "+"}
    elif "*" in value:
        options |= {"action": "append", "default": []}
    if value.endswith("!"):
        options["required"] = True
    if closed or shown in _CHOICES:
        options["choices"] = _CHOICES[shown]() if shown in _CHOICES else known
    if not (names and "." in names[-1]):
        options["type"] = _TYPES.get(shown, str)
    action = group.add_argument(*(names or [(name or shown).partition(".")[0].lower()]), **options)
    offered = _OFFERED.get(shown, lambda: fixed)
    action.completer = lambda **_: offered()  # type: ignore[attr-defined]


def print_completion(given: argparse.Namespace) -> None:
    """Print a shell's completion script."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["xbench"], shell=given.shell))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _names(text: str) -> dict[str, str]:
    try:
        names = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise argparse.ArgumentTypeError(f"""{text:.60} is not JSON such as '{{"pl_eff": "Pleural Effusion"}}'""")
    return names


def _pairs() -> Iterable[str]:
    return [*shipped("runs"), *(f"{model}_{data}" for model in shipped("models") for data in shipped("data"))]


def _protocols() -> Iterable[str]:
    files = (Path(xbench.__file__).parent / "scoring" / "protocols").glob("*.py")
    return [*sorted(file.stem for file in files if file.stem not in ("__init__", "base", "common")), "all"]


# By placeholder in the table: type, permitted values, completions.
_PATHS = ("RUN", "RUNS", "DIR", "FILE")
_TYPES: dict[str, Callable[[str], Any]] = {"N": _count, "SHARE": float, "JSON": _names, **dict.fromkeys(_PATHS, Path)}
_CHOICES: dict[str, Callable[[], Iterable[str]]] = {"PROTOCOL": _protocols}
_OFFERED: dict[str, Callable[[], Iterable[str]]] = {
    "NAME|FILE": _pairs,
    "BENCH|FILE": lambda: shipped("bench"),
    "DATASET|FILE": lambda: shipped("data"),
    "DATASET": lambda: shipped("data"),
    "MODEL": lambda: shipped("models"),
    **_CHOICES,
}
