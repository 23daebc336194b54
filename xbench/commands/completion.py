"""Completion for bash and zsh: commands, shipped configurations, options, and values that have names.

A shell asks `xbench completion --words ...` at each Tab, so nothing here may import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xbench.commands.arguments import OPTIONS, PARSERS, PURPOSES, convertible
from xbench.commands.configs import Kind, shipped
from xbench.runtime.errors import UserError

_BASH = """# In ~/.bashrc: eval "$(xbench completion bash)"
_xbench() {
    local IFS=$'\\n'
    COMPREPLY=($(xbench completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _xbench xbench"""

_ZSH = """# In ~/.zshrc, after compinit: eval "$(xbench completion zsh)"
_xbench() {
    local -a found
    found=("${(@f)$(xbench completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if (( ${#found} )) && [[ -n ${found[1]} ]]; then compadd -a found; else _files; fi
}
compdef _xbench xbench"""


_USE = 'In ~/.bashrc: eval "$(xbench completion bash)"; in ~/.zshrc the same with zsh, after compinit.'

_SHIPPED: Mapping[str, Kind] = {"--models": "models", "--datasets": "data", "--config": "bench"}


def completion(arguments: Sequence[str]) -> None:
    """Print the lines that a shell evaluates, or what the last of the words after `--words` could become."""
    match arguments:
        case ["-h" | "--help"]:
            print(f"usage: xbench completion bash|zsh\n\nPrints what a shell needs for the Tab key.\n\n{_USE}")
        case ["bash"]:
            print(_BASH)
        case ["zsh"]:
            print(_ZSH)
        case ["--words", *words]:
            print("\n".join(completions(words)))
        case _:
            raise UserError(f"completion takes bash or zsh. {_USE}", 2)


def completions(words: Sequence[str]) -> list[str]:
    """Return what the last word, which may be empty or begun, could become; none where it may be any file."""
    # bash takes --option=value apart at the sign, zsh does not.
    *before, begun = [word for word in words[:-1] if word != "="] + [words[-1].removeprefix("=") if words else ""]
    option, sign, value = begun.partition("=")
    if sign and option.startswith("--"):
        return [f"{option}={one}" for one in completions([*before, option, value])]
    if not before:
        found: Iterable[str] = [*PURPOSES, *PARSERS, "convert", "completion", "--help", "--version"]
    elif before[0] in PURPOSES:
        found = _of_a_run(before[0], before[-1])
    elif before[0] == "convert":
        found = convertible() if len(before) == 1 else []
    elif before[0] == "completion":
        found = ["bash", "zsh"]
    else:
        found = _of_a_parser(before[0], before[1:])
    return [word for word in found if word.startswith(begun)]


def _of_a_run(command: str, before: str) -> Iterable[str]:
    options = [option for group in OPTIONS.values() for option in group if command in option.commands.split()]
    if before in ("-c", "--config"):
        return [*shipped("runs"), *(f"{model}_{data}" for model in shipped("models") for data in shipped("data"))]
    for option in options:
        if before == f"--{option.name}":
            return option.choices.split() or [word for word in option.value.split("|") if word.islower()]
    return [*(f"--{option.name}" for option in options), "--help", "--help-all"]


def _of_a_parser(command: str, before: Sequence[str]) -> Iterable[str]:
    if command not in PARSERS:
        return []
    actions = PARSERS[command]()._actions
    value_of = next((one for one in actions if before and before[-1] in one.option_strings and one.nargs != 0), None)
    if value_of is not None:
        if command == "bench" and before[-1] in _SHIPPED:
            return [*shipped(_SHIPPED[before[-1]])]
        return [*map(str, value_of.choices or ())]
    free = [str(choice) for one in actions if not one.option_strings for choice in one.choices or ()]
    return [*free, *(option for one in actions for option in one.option_strings if option.startswith("--"))]
