"""Fast check of options, folders and files of a run, without torch and the user's classes."""

from __future__ import annotations

import ast
import collections.abc
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, Literal

import yaml

from xbench.commands.configs import FOLDERS, TOP, Composed, compose, did_you_mean, shipped
from xbench.data.annotations.folder import Folder, absent, names_in
from xbench.runtime.errors import UsageError
from xbench.runtime.files import expand
from xbench.runtime.strict import load_yaml

TRAINER = "lightning.pytorch.trainer.trainer.Trainer"

# Options that are paths whatever their ending; `checkpoint` may be a name on the hub.
_PLACES = {"root", "annotations", "image_list", "labels"}
_FILE = re.compile(r"\.(json|ya?ml|csv|txt|ckpt|pth?|bin|safetensors)$")
# Plain types in words; None is omitted.
_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    Any: "any",
    list: "a list",
    tuple: "{} values in a list",
    **dict.fromkeys((dict, collections.abc.Mapping), "a mapping"),
    **dict.fromkeys((type(None), None, Literal), ""),
}


@cache
def constructor(path: str) -> Mapping[str, str] | None:
    """Return the annotations of a class's arguments, with those of `**kwargs`; None unless of xbench or Lightning."""
    found: dict[str, str] | None = None
    for node in _lineage(path):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        given = [one for init in made for one in (*init.args.args[1:], *init.args.kwonlyargs)]
        found = {one.arg: ast.unparse(one.annotation or ast.Constant("")) for one in given} | (found or {})
        if made and not made[0].args.kwarg:
            break
    return found


def declared(path: str, name: str) -> Any:
    """Return a literal attribute of a class or its nearest base from the source, or None."""
    for line in [line for node in _lineage(path) for line in node.body if isinstance(line, ast.Assign | ast.AnnAssign)]:
        target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
        if line.value and isinstance(target, ast.Name) and target.id == name:
            return ast.literal_eval(line.value)
    return None


def _lineage(path: str) -> Iterator[ast.ClassDef]:
    module, _, name = path.rpartition(".")
    top, *parts = module.split(".")
    spec = find_spec(top) if top in ("xbench", "lightning") else None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for file in (Path(place, *parts).with_suffix(".py"), Path(place, *parts, "__init__.py")):
            if parts and file.is_file():
                yield from _named(ast.parse(file.read_text(encoding="utf-8")), name)
                return


def _named(tree: ast.Module, name: str) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            yield from _lineage(f"{node.module}.{name}")
            return
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield node
            for base in [base.id for base in node.bases if isinstance(base, ast.Name)]:
                yield from _named(tree, base)
            return


def look(command: str, words: Sequence[str], parts: Sequence[str] = ("model", "data")) -> None:
    """Raise a UserError for wrong options, or missing folders and files with the page that explains them."""
    composed = compose(words, parts)
    if "model" not in parts:
        strays = [f" and has no option --{name}" for _, name, _ in composed.options if re.match(r"model\b", name)]
        if strays or any("model" in config for config in composed.configs):
            wrong = f"score needs no model{''.join(strays[:1])}"
            raise UsageError(f"{wrong}: give only a dataset, such as --config siim.")
    spelled = check_options(command, composed, constructor)
    # `check` lists missing files with all other problems.
    ready = command == "check" or any(word.startswith("--print_config") for word in spelled)
    if not ready and (missing := [found for part in composed.classes for found in _missing(command, part, composed)]):
        texts, hints = zip(*missing, strict=True)
        raise UsageError(f"{command} cannot start. Missing: {'; '.join(texts)}. {''.join(hints)}".strip())


def check_options(command: str, composed: Composed, types_of: Callable[[str], Mapping[str, Any] | None]) -> list[str]:
    """Raise a UserError for unknown options and wrong values; return the words, with `true` for switches."""
    known = {part: types_of(name) for part, name in [*composed.classes.items(), ("trainer", TRAINER)]}
    problems, bare = [], set()
    for place, name, value in composed.options:
        part, option, *deeper = [*name.rstrip("+").split("."), ""]
        arguments = known.get(part)
        annotation = (arguments or {}).get(option, "") if option else TOP.get(part, "")
        if not any(one.startswith(part) for one in (*TOP, "config", "print_config")):
            near = did_you_mean(name, [*TOP, *(f"{part}.{one}" for part in known for one in known[part] or ())], "--")
            problems.append(f"{command}: there is no option --{name}.{near} See xbench {command} -h.")
        elif arguments is not None and option not in ("", "class_path", "init_args", "dict_kwargs", *arguments):
            owner = composed.classes.get(part, TRAINER).rpartition(".")[2]
            near = did_you_mean(option, arguments, f"--{part}.")
            if (owner, option) == ("PhantomCXR", "root"):
                near = " Phantoms are drawn: for your own films use a dataset, or --config demo_folder to predict."
            problems.append(f"{owner} has no option --{part}.{option}.{near}")
        elif place >= 0 and value is None and part in TOP and (not option or arguments is not None):
            bare.add(place)
            if bool not in members(annotation) and not re.search(r"\bbool\b", str(annotation)):
                problems.append(f"{command}: --{name} needs a value.")
        elif any(deeper) and {*members(annotation)} & {int, float, bool}:
            problems.append(f"--{part}.{option} has no option --{name} below it.")
        elif value is not None and not any(deeper) and not name.endswith("+"):
            problems.append(wrong_value(name, annotation, value))
    if text := " ".join(filter(None, dict.fromkeys(problems))):
        raise UsageError(text)
    return [f"{word}=true" if place in bare else word for place, word in enumerate(composed.words)]


def members(annotation: Any) -> Sequence[Any]:
    """Return the members of a union, or the type itself; empty if it is not plain. An annotation may be text."""
    with suppress(NameError, TypeError, SyntaxError):
        # Text from the source of xbench and Lightning, or types of an imported class.
        kind = eval(annotation, vars(typing) | {"Path": Path}) if isinstance(annotation, str) else annotation
        kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, UnionType) else (kind,)
        if all(map(_plain, kinds)):
            return kinds
    return ()


def _plain(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    items = typing.get_args(kind) if origin in (list, tuple) else ()
    return (origin or kind) in _WORDS and all(_plain(item) for item in items if item is not Ellipsis)


def wrong_value(option: str, annotation: Any, value: Any) -> str:
    """Return an error if a value is not of a plain type; else empty.

    >>> wrong_value("data.limit", "int | None", "three")
    "--data.limit: 'three' is not a whole number."
    >>> wrong_value("x", "Literal['stop', 'skip'] | None", "skp")
    "--x: 'skp' is not stop or skip. Did you mean skip?"
    >>> wrong_value("x", "int | tuple[int, int] | Literal['native']", "naive")
    "--x: 'naive' is not a whole number, 2 values in a list or native. Did you mean native?"
    """
    kinds, read = members(annotation), value
    with suppress(yaml.YAMLError):
        read = load_yaml(value) if isinstance(value, str) else value
    if not kinds or any(_fits(kind, value, read) for kind in kinds):
        return ""
    choices = [str(one) for kind in kinds if typing.get_origin(kind) is Literal for one in typing.get_args(kind)]
    names = [(_WORDS.get(kind) or _WORDS[typing.get_origin(kind)]).format(len(typing.get_args(kind))) for kind in kinds]
    names = [*filter(None, names), *choices]
    taken = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    items = [item for kind in kinds for item in typing.get_args(kind) if typing.get_origin(item) is Literal]
    if listed := [str(one) for item in items for one in typing.get_args(item)]:
        choices, taken = listed, f"{taken} of {', '.join(listed)}"
    # Suggest brackets for a single name.
    meant = f" Did you mean [{value}]?" if value in listed else did_you_mean(str(value), choices)
    return f"--{option}: {str(value)!r} is not {taken}.{meant}"


def _fits(kind: Any, value: Any, read: Any) -> bool:
    """Return whether a value is of a plain type; `read` is the value as YAML."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return read in inner or value in inner
    if origin in (list, tuple):
        if not isinstance(read, list | tuple):
            return False
        of = inner if origin is tuple and Ellipsis not in inner else inner[:1] * len(read)
        return len(of) == len(read) and all(map(_fits, of, read, read))
    if origin is not None:
        return isinstance(read, Mapping)
    if kind in (str, Path):
        return isinstance(value, str)
    return kind is Any or type(read) in ((int, float) if kind is float else (kind,))


def _missing(command: str, part: str, composed: Composed) -> Iterator[tuple[str, str]]:
    given = {name.split(".")[1]: value for _, name, value in composed.options if name.startswith(f"{part}.")}
    names = composed.classes[part].split(".")
    shown = re.compile(rf"^class_path: {re.escape(names[0])}\.\S+\.{re.escape(names[-1])}$", re.M)
    for file in [file for file in shipped(FOLDERS[part]).values() if shown.search(file.read_text("utf-8"))][:1]:
        needs, page = needs_of(file)
        missing = {f"--{part}.{option}": "" for option in needs if given.get(option) is None}
        for option, value in given.items():
            if isinstance(value, str) and (option in _PLACES or _FILE.search(value)) and "://" not in value:
                folder = option == "root" and file.stem != "folder"  # which accepts a single film
                exists, what = (os.path.isdir, "is not a folder") if folder else (os.path.exists, "does not exist")
                place = expand(value.removeprefix("local-dir:"))
                # Paths may be relative to the root.
                if not exists(place) and not exists(expand(str(given.get("root") or "")) / place):
                    missing[f"--{part}.{option} {value}, which {what}"] = ""
        root = expand(str(given.get("root")))
        if part == "data" and command != "predict" and root.is_dir():
            files, splits = declared(composed.classes[part], "files") or {}, declared(composed.classes[part], "splits")
            split = given["split"] if given.get("split") in splits else splits[0]
            wanted = {option: names_in(split, names) for option, names in files.items() if given.get(option) is None}
            for option, either in absent(root, wanted).items():
                elsewhere = f" (or --data.{option})" if option in (constructor(composed.classes[part]) or ()) else ""
                hint = Folder(root, lambda _: None).hint(either, (split, *splits))
                missing[f"{' or '.join(either)} in --data.root {root}{elsewhere}"] = hint
        if missing:
            yield f"{' and '.join(missing)} (see {page})", "".join(dict.fromkeys(missing.values()))


def needs_of(file: Path) -> tuple[list[str], str]:
    """Return the requirements of a shipped configuration (first line), and their page (second line)."""
    first, second, *_ = file.read_text(encoding="utf-8").splitlines()
    return re.findall(r"--(?:model|data)\.(\w+)", first.partition("needs ")[2]), second.removeprefix("# See ")
