"""Completion for bash and zsh: commands, shipped configurations, options, and values that have names.

A shell asks `xbench completion --words ...` at each Tab, so nothing here may import torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.commands.arguments import PARSERS, PURPOSES, completion_parser, parser_of
from xbench.commands.configs import shipped

_SHELLS = {
    "bash": """_xbench() {
    local IFS=$'\\n'
    COMPREPLY=($(xbench completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _xbench xbench""",
    "zsh": """_xbench() {
    local -a found
    found=("${(@f)$(xbench completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if (( ${#found} )) && [[ -n ${found[1]} ]]; then compadd -a found; else _files; fi
}
compdef _xbench xbench""",
}


def completion(arguments: Sequence[str]) -> None:
    """Print the lines that a shell evaluates, or what the last of the words after `--words` could become."""
    if arguments[:1] == ["--words"]:
        print("\n".join(completions(arguments[1:])))
    else:
        print(_SHELLS[completion_parser().parse_args(arguments).shell])


def completions(words: Sequence[str]) -> list[str]:
    """Return what the last word, which may be empty or begun, could become; none where it may be any file."""
    # bash takes --option=value apart at the sign, zsh does not.
    *before, begun = [word for word in words[:-1] if word != "="] + [words[-1].removeprefix("=") if words else ""]
    option, sign, value = begun.partition("=")
    if sign and option.startswith("--"):
        return [f"{option}={one}" for one in completions([*before, option, value])]
    found = [*PURPOSES, *PARSERS, "--help", "--version"]
    if before:
        found = _of_a_command(before[0], before[1:]) if before[0] in found[:-2] else []
    return [word for word in found if word.startswith(begun)]


def _of_a_command(command: str, before: Sequence[str]) -> list[str]:
    if command == "bench" and before[-1:] in (["--config"], ["--models"], ["--datasets"]):
        return [*shipped({"--config": "bench", "--models": "models", "--datasets": "data"}[before[-1]])]  # type: ignore[arg-type]
    if before[-1:] in (["-c"], ["--config"]):
        return [*shipped("runs"), *(f"{model}_{data}" for model in shipped("models") for data in shipped("data"))]
    actions = parser_of(command)._actions
    value_of = [one for one in actions if before and before[-1] in one.option_strings and one.nargs != 0]
    if value_of:
        return [*map(str, value_of[0].choices or ())]
    free = [str(choice) for one in actions if not (one.option_strings or before) for choice in one.choices or ()]
    options = [option for one in actions for option in one.option_strings if option.startswith("--")]
    return [*free, *options, *(["--help", "--help-all"] if command in PURPOSES else [])]
