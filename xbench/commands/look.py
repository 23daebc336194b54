"""A first look at the options, folders and files of a run, which imports neither torch nor a class of the user's."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from xbench.commands.configs import FOLDERS, TOP, Composed, compose, did_you_mean, shipped
from xbench.data.annotations.folder import Folder, absent, names_in
from xbench.runtime.errors import UserError
from xbench.runtime.paths import expand
from xbench.runtime.yaml_files import load_yaml

TRAINER = "lightning.pytorch.trainer.trainer.Trainer"

_SWITCHES = ("resume", "oversubscribe", "overlays", "seed_everything")
# Options that name a folder or a file whatever they end in; `checkpoint` may be a name on the hub.
_PLACES = {"root", "annotations", "image_list", "labels"}
_FILE = re.compile(r"\.(json|ya?ml|csv|txt|ckpt|pth?|bin|safetensors)$")
_TYPES: Mapping[str, set[type]] = {"int": {int}, "float": {int, float}, "bool": {bool}, "tuple": set()}

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list[int]": "a list of whole numbers",
    "list[str]": "a list of texts",
    "tuple[int, int]": "two whole numbers ([448, 224])",
}


@cache
def constructor(path: str) -> Mapping[str, str] | None:
    """Return the annotations of a class's constructor arguments by name, read from its source.

    Those of the classes that it hands `**kwargs` on to are among them. None for a class whose source is not followed:
    only those of xbench and of Lightning are.
    """
    found: dict[str, str] | None = None
    for node in _lineage(path):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        given = [one for init in made for one in (*init.args.args[1:], *init.args.kwonlyargs)]
        found = {one.arg: ast.unparse(one.annotation or ast.Constant("")) for one in given} | (found or {})
        if made and not made[0].args.kwarg:
            break
    return found


def declared(path: str, name: str) -> Any:
    """Return an attribute of a class or of its nearest base that has it, a literal in its source; else None."""
    for line in [line for node in _lineage(path) for line in node.body if isinstance(line, ast.Assign | ast.AnnAssign)]:
        target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
        if line.value and isinstance(target, ast.Name) and target.id == name:
            return ast.literal_eval(line.value)
    return None


def _lineage(path: str) -> Iterator[ast.ClassDef]:
    """Yield the source of a class, then of its bases."""
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
    """Refuse wrong options; name all folders and files that are missing, and the page about where to get them."""
    composed = compose(words, parts)
    strays = [f" and has no option --{name}" for _, name, _ in composed.options if re.match(r"model\b", name)]
    if command == "score" and (strays or any("model" in config for config in composed.configs)):
        told = f"score takes predictions instead of a model{''.join(strays[:1])}"
        raise UserError(f"{told}: give a dataset alone, such as --config siim.", exit_status=2)
    spelled = check_options(command, composed, constructor)
    # `check` lists what is missing beside all else that is wrong.
    ready = command == "check" or any(word.startswith("--print_config") for word in spelled)
    if not ready and (missing := [found for part in composed.classes for found in _missing(command, part, composed)]):
        texts, hints = zip(*missing, strict=True)
        raise UserError(f"{command} cannot begin. Missing: {'; '.join(texts)}. {''.join(hints)}".strip(), exit_status=2)


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
        elif value is not None and (annotation := (arguments or {}).get(option)) and name.count(".") == 1:
            _check_value(name, annotation, value)
    return [f"{word}=true" if place in bare else word for place, word in enumerate(composed.words)]


def _check_value(option: str, annotation: str, value: Any) -> None:
    """Refuse a text or a number where the type is simple and takes none; jsonargparse looks at all other values."""
    plain = (
        re.sub(r"^(?:(?:Optional|Union)\[)+(.*?)\]+$", r"\1", annotation).replace(" | None", "").replace(" | ", ", ")
    )
    choices = re.findall(r"'([^']*)'", plain)
    kinds = {*re.findall(r"\b[A-Za-z_]\w*", re.sub(r"Literal\[[^]]*\]", "", plain))}
    types = {one for kind in kinds for one in _TYPES.get(kind, ())}
    given = value
    with suppress(yaml.YAMLError):
        given = load_yaml(value) if isinstance(value, str) else value
    number = isinstance(given, int | float) and bool(types) and type(given) not in types
    if kinds <= {*_TYPES} and (number or (isinstance(given, str) and given not in choices)):
        wrong = wrong_value(option, f"Subtypes: [{plain}]. Given value: {value}")
        raise UserError(f"{wrong} `xbench test --help-all` shows all options.", exit_status=2)


def wrong_value(option: str, message: str) -> str:
    """Say in a sentence what jsonargparse's message about the value of an option does; nothing for other messages.

    >>> wrong_value("data.limit", "Expected a <class 'int'>. Got value: three")
    "--data.limit: 'three' is not a whole number."
    >>> wrong_value("x", "Subtypes: [typing.Literal['stop', 'skip'], <class 'NoneType'>]. Given value: skp")
    "--x: 'skp' is not stop or skip. Did you mean skip?"
    >>> wrong_value("x", "Subtypes: [<class 'int'>, tuple[int, int], typing.Literal['native']]. Given value: naive")
    "--x: 'naive' is not a whole number, two whole numbers ([448, 224]) or native. Did you mean native?"
    """
    types = re.search(r"Subtypes: \[(.+)\]", message) or re.search(r"Expected an? (.+?)\. Got value", message)
    value = re.search(r"(?:Got|Given) value: (.+)", message)
    if limit := re.search(r"Not of type \w+: (\S+) does not conform to restriction v(.+)", message):
        return f"--{option}: {limit[1]} is not {limit[2].replace('>', 'above ')}."
    if number := re.search(r"Not of type \w+: invalid literal .+: (.+)", message):
        return f"--{option}: {number[1].rstrip('.')} is not a whole number."
    if types is None or value is None:
        return ""
    if below := re.match(r"NestedArg\(key='(.+?)', val='(.+)'\)", value[1]):
        if below[1] == "class_path":
            return f"--{option}: {below[2]} is not a {'model' if option == 'model' else 'dataset'}."
        return f"--{option} has no option --{option}.{below[1]} below it."
    plain = re.sub(r"<class '([\w.]+)'>", r"\1", types[1])
    # Of a class the name alone; numbers with a point in them stay.
    plain = re.sub(r"\b(?:[a-z_]\w*\.)+(\w+)", r"\1", plain)
    choices = [*dict.fromkeys(re.findall(r"[\w-]+", ", ".join(re.findall(r"Literal\[([^]]*)\]", plain))))]
    # What else is taken stands before them; None, which stands for an option that is not given, is left out.
    others = re.sub(r"Literal\[[^]]*\]|\bNoneType\b", "", plain)
    kinds = [part.strip() for part in re.split(r",\s*(?![^[]*\])", others) if part.strip()]
    names = ["a mapping" if kind.startswith("dict") else _WORDS.get(kind, kind) for kind in kinds] + choices
    taken = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"--{option}: {value[1].strip()!r} is not {taken}.{did_you_mean(value[1].strip(), choices)}"


def _missing(command: str, part: str, composed: Composed) -> Iterator[tuple[str, str]]:
    """Say what a shipped model or dataset needs and nobody gave, which folders and files are not there, and hints."""
    given = {name.split(".")[1]: value for _, name, value in composed.options if name.startswith(f"{part}.")}
    names = composed.classes[part].split(".")
    shown = re.compile(rf"^class_path: {re.escape(names[0])}\.\S+\.{re.escape(names[-1])}$", re.M)
    for file in [file for file in shipped(FOLDERS[part]).values() if shown.search(file.read_text("utf-8"))][:1]:
        needs, page = needs_of(file)
        missing, hints = [f"--{part}.{option}" for option in needs if given.get(option) is None], ""
        for option, value in given.items():
            if isinstance(value, str) and (option in _PLACES or _FILE.search(value)) and "://" not in value:
                folder = option == "root" and file.stem != "folder"  # which takes a single film too
                exists, what = (os.path.isdir, "is no folder") if folder else (os.path.exists, "is not there")
                place = expand(value.removeprefix("local-dir:"))
                # Files of one's own may be named by their place in the root.
                if not exists(place) and not exists(expand(str(given.get("root") or "")) / place):
                    missing.append(f"--{part}.{option} {value}, which {what}")
        if part == "data" and command != "predict":
            files = _absent(composed.classes[part], given)
            missing, hints = [*missing, *files], "".join(dict.fromkeys(files.values()))
        if missing:
            yield f"{' and '.join(missing)} (see {page})", hints


def _absent(name: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Say which annotation files of a shipped dataset are not in its folder, and of each where it may be."""
    files, splits, root = declared(name, "files") or {}, declared(name, "splits"), expand(str(given.get("root")))
    split = given["split"] if given.get("split") in splits else splits[0]
    wanted = {option: names_in(split, names) for option, names in files.items() if given.get(option) is None}
    told = {}
    for option, names in (absent(root, wanted) if root.is_dir() else {}).items():
        elsewhere = f" (or --data.{option})" if option in (constructor(name) or ()) else ""
        text = f"{' or '.join(names)} in --data.root {root}{elsewhere}"
        told[text] = Folder(root, lambda _: None).hint(names, (split, *splits))
    return told


def needs_of(file: Path) -> tuple[list[str], str]:
    """Return what a shipped configuration needs, as its first line says, and the page about it, as its second does."""
    first, second, *_ = file.read_text(encoding="utf-8").splitlines()
    return re.findall(r"--(?:model|data)\.(\w+)", first.partition("needs ")[2]), second.removeprefix("# See ")
