"""A first look at the options, folders and files of a run, which imports neither torch nor a class of the user's."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from xbench.commands.configs import FOLDERS, TOP, Composed, compose, did_you_mean, shipped
from xbench.runtime.errors import UserError
from xbench.runtime.paths import expand

TRAINER = "lightning.pytorch.trainer.trainer.Trainer"

_SWITCHES = ("resume", "oversubscribe", "overlays", "seed_everything")
# Options that name a folder or a file whatever they end in; `checkpoint` may be a name on the hub.
_PLACES = {"root", "annotations", "image_list", "labels"}
_FILE = re.compile(r"\.(json|ya?ml|csv|txt|ckpt|pth?|bin|safetensors)$")


@cache
def constructor(path: str) -> Mapping[str, str] | None:
    """Return the annotations of a class's constructor arguments by name, read from its source.

    Those of the classes that it hands `**kwargs` on to are among them. None for a class whose source is not followed:
    only those of xbench and of Lightning are.
    """
    module, _, name = path.rpartition(".")
    top, *parts = module.split(".")
    spec = find_spec(top) if top in ("xbench", "lightning") else None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for file in (Path(place, *parts).with_suffix(".py"), Path(place, *parts, "__init__.py")):
            if parts and file.is_file():
                return _arguments(ast.parse(file.read_text(encoding="utf-8")), name)
    return None


def _arguments(tree: ast.Module, name: str) -> Mapping[str, str] | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return constructor(f"{node.module}.{name}")
        if isinstance(node, ast.ClassDef) and node.name == name:
            made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
            given = [one for init in made for one in (*init.args.args[1:], *init.args.kwonlyargs)]
            found = {one.arg: ast.unparse(one.annotation or ast.Constant("")) for one in given}
            if not made or made[0].args.kwarg:
                for base in node.bases:
                    found = {**((isinstance(base, ast.Name) and _arguments(tree, base.id)) or {}), **found}
            return found
    return None


def look(command: str, words: Sequence[str], parts: Sequence[str] = ("model", "data")) -> None:
    """Refuse options that do not exist, and name all folders and files that are missing.

    Raises:
        UserError: Something is wrong; it names the page of the documentation that tells where to get what is missing.
    """
    composed = compose(words, parts)
    if command == "score" and any("model" in config for config in composed.configs):
        raise UserError("score takes predictions instead of a model: give a dataset alone, such as --config siim.", 2)
    spelled = check_options(command, composed, constructor)
    # `check` lists what is missing beside all else that is wrong.
    ready = command == "check" or any(word.startswith("--print_config") for word in spelled)
    if not ready and (missing := [text for part in composed.classes for text in _missing(part, composed)]):
        raise UserError(f"{command} cannot begin. Missing: {'; '.join(missing)}.", exit_status=2)


def check_options(
    command: str, composed: Composed, arguments_of: Callable[[str], Mapping[str, str] | None]
) -> list[str]:
    """Refuse the first option that does not exist or has no value; return the words, with `true` for bare switches.

    `arguments_of` gives the annotations of the arguments of a class by name, None if it cannot tell.
    """
    known = {part: arguments_of(name) for part, name in [*composed.classes.items(), ("trainer", TRAINER)]}
    bare = set()
    for place, name, value in composed.options:
        part, option, *_ = [*name.rstrip("+").split("."), ""]
        arguments = known.get(part)
        if not any(one.startswith(part) for one in (*TOP, "config", "print_config")):
            near = did_you_mean(name, [*TOP, *(f"{part}.{one}" for part in known for one in known[part] or ())], "--")
            raise UserError(f"{command}: there is no option --{name}.{near} See xbench {command} -h.", exit_status=2)
        if arguments is not None and option not in ("", "class_path", "init_args", "dict_kwargs", *arguments):
            owner = composed.classes.get(part, TRAINER).rpartition(".")[2]
            near = did_you_mean(option, arguments, f"--{part}.")
            if (owner, option) == ("PhantomCXR", "root"):
                near = " Phantoms are drawn: for films of your own, take a dataset, or --config demo_folder to predict."
            raise UserError(f"{owner} has no option --{part}.{option}.{near}", exit_status=2)
        if place >= 0 and value is None and part in TOP and (not option or arguments is not None):
            if name not in _SWITCHES and not re.search(r"\bbool\b", (arguments or {}).get(option, "")):
                raise UserError(f"{command}: --{name} needs a value.", exit_status=2)
            bare.add(place)
    return [f"{word}=true" if place in bare else word for place, word in enumerate(composed.words)]


def _missing(part: str, composed: Composed) -> Iterator[str]:
    """Say what a shipped model or dataset needs and nobody gave, and which of its folders and files are not there."""
    given = {name.split(".")[1]: value for _, name, value in composed.options if name.startswith(f"{part}.")}
    names = composed.classes[part].split(".")
    shown = re.compile(rf"^class_path: {re.escape(names[0])}\.\S+\.{re.escape(names[-1])}$", re.M)
    for file in [file for file in shipped(FOLDERS[part]).values() if shown.search(file.read_text("utf-8"))][:1]:
        needs, page = needs_of(file)
        missing = [f"--{part}.{option}" for option in needs if given.get(option) is None]
        for option, value in given.items():
            if isinstance(value, str) and (option in _PLACES or _FILE.search(value)) and "://" not in value:
                folder = option == "root" and file.stem != "folder"  # which takes a single film too
                exists, what = (os.path.isdir, "is no folder") if folder else (os.path.exists, "is not there")
                place = expand(value.removeprefix("local-dir:"))
                # Files of one's own may be named by their place in the root.
                if not exists(place) and not exists(expand(str(given.get("root") or "")) / place):
                    missing.append(f"--{part}.{option} {value}, which {what}")
        if missing:
            yield f"{' and '.join(missing)} (see {page})"


def needs_of(file: Path) -> tuple[list[str], str]:
    """Return what a shipped configuration needs, as its first line says, and the page about it, as its second does."""
    first, second, *_ = file.read_text(encoding="utf-8").splitlines()
    return re.findall(r"--(?:model|data)\.(\w+)", first.partition("needs ")[2]), second.removeprefix("# See ")
