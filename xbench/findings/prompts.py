"""From the name of a finding to the words of a prompt: our own wording, templates, and files of the user's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args

import yaml

from xbench.runtime.errors import UserError
from xbench.runtime.yaml_files import check_yaml

ASPECTS = ("border", "fluid", "location", "opacity", "other", "patterns", "shape", "texture")
"""What is said of every finding beside its description, in the order of the prompts."""

Style = Literal["name", "phrase", "description", "aspects"]
"""The canonical name as it is, the phrase, the description, or the eight aspects, each with its name in front."""

STYLES: tuple[Style, ...] = get_args(Style)


@dataclass(frozen=True)
class Wording:
    """What the package says of a finding, in words for a text encoder.

    The finding as it stands inside a sentence, one sentence on what is seen on a frontal chest radiograph, and a short
    statement on each of `ASPECTS`, in that order.
    """

    phrase: str
    description: str
    aspects: Mapping[str, str]


@cache
def wordings(kind: Literal["findings", "normal"]) -> Mapping[str, Wording]:
    """Return the wording of every finding, or of a normal radiograph and of clear lungs, by name."""
    with Path(__file__).with_name("prompts.yaml").open(encoding="utf-8") as stream:
        return {name: Wording(**entry) for name, entry in yaml.safe_load(stream)[kind].items()}


def wording(finding: str) -> Wording:
    """Return the wording of a finding, of `Normal` or of `Clear Lungs`; a UserError if there is none."""
    found = _find(finding)
    if found is None:
        raise UserError(
            f"The package has no wording for the finding {_short(finding)}, so it cannot be described to the model. "
            "Give prompts of your own for it, in a file of prompts or as a template, or use a canonical name: "
            "`xbench list findings` prints them.",
            exit_status=2,
        )
    return found


def phrase(finding: str) -> str:
    """Write a finding as it stands inside a sentence: as worded, or else in lower case, acronyms kept.

    >>> phrase("Pleural Effusion"), phrase("Enlarged PA"), phrase("Deep Sulcus Sign on CT")
    ('pleural effusion', 'enlarged pulmonary artery', 'deep sulcus sign on CT')
    """
    if worded := _find(finding):
        return worded.phrase
    return " ".join(word if word.isupper() else word.lower() for word in finding.split())


def prompts_in_style(style: Style, finding: str) -> list[str]:
    """Return the prompts of a finding: eight for `aspects`, one for any other style.

    >>> prompts_in_style("phrase", "ILD"), prompts_in_style("aspects", "Nodule")[6]
    (['interstitial lung disease'], 'shape: small round or oval spot, like a coin')
    """
    match style:
        case "name":
            return [finding]
        case "phrase":
            return [phrase(finding)]
        case "description":
            return [wording(finding).description]
        case "aspects":
            return [f"{aspect}: {statement}" for aspect, statement in wording(finding).aspects.items()]
    raise UserError(f"There is no style of prompts {style!r}: give one of {', '.join(STYLES)}.", exit_status=2)


def fill_templates(templates: Sequence[str], finding: str) -> list[str]:
    """Fill the phrase of a finding into templates that each hold `{finding}` and no other field."""
    try:
        prompts = [template.format(finding=phrase(finding)) for template in templates]
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"A prompt template of {list(templates)} cannot be filled ({error!r}): write {{finding}} where the name of "
            "the finding belongs and no other braces.",
            exit_status=2,
        ) from error
    if len({*prompts}) < len(prompts) or any("{finding}" not in template for template in templates):
        raise UserError(
            f"The prompt templates {list(templates)} must differ, and each must hold {{finding}}, which is replaced by "
            "the name of the finding.",
            exit_status=2,
        )
    return prompts


def read_prompts(path: str | Path) -> dict[str, list[str]]:
    """Read a file of prompts, such as one that belongs to a model and may not be redistributed.

    A mapping from names to a text or a list of texts, as JSON (`.json`) or YAML (any other name). Nothing in the file
    is executed, and every text is left as it stands.

    Returns:
        The prompts by name, in the order of the file, by which some models know their classes.
    """
    file = Path(os.path.expanduser(path))
    try:
        with file.open(encoding="utf-8-sig") as stream:
            entries = _json_entries(stream) if file.suffix.lower() == ".json" else _yaml_entries(stream)
    except OSError as error:
        raise _problem(file, f"cannot be read ({error.strerror}): give the path of a JSON or YAML file.") from error
    # Beside broken syntax: bytes that are not UTF-8, numbers and escapes beyond all bounds, nesting without end.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        kind = "JSON" if file.suffix.lower() == ".json" else "YAML"
        reason = " ".join(str(error).split())
        raise _problem(
            file,
            f"is not valid {kind} in UTF-8 ({reason}): fix it there. A file whose name ends in .json is read as JSON, "
            "any other as YAML.",
        ) from error
    if not entries:
        raise _problem(
            file,
            "is not a mapping with at least one entry: write the name of each finding with its prompt or list of "
            "prompts.",
        )
    prompts: dict[str, list[str]] = {}
    for name, value in entries:
        if not _is_text(name):
            raise _problem(file, f"has an entry named {_short(name)}: the name of every entry must be a text.")
        if name in prompts:
            raise _problem(file, f"has the name {_short(name)} twice, and only one can count: remove the other.")
        values = value if isinstance(value, list) else [value]
        texts = [text for text in values if _is_text(text)]
        if not texts or len(texts) < len(values):
            raise _problem(
                file,
                f"gives {_short(name)} something other than a text or a list of texts, none of them empty: write "
                "those. In YAML a text that holds a colon, or could be read as a number, needs quotes.",
            )
        prompts[name] = texts
    return prompts


def _find(name: str) -> Wording | None:
    return wordings("findings").get(name) or wordings("normal").get(name)


# The entries of a file stay pairs, so that a name given twice shows; there are none in what is no mapping.
_Entries = Sequence[tuple[object, object]]


def _json_entries(stream: Any) -> _Entries:
    # Objects alone become tuples: arrays are lists.
    content = json.load(stream, object_pairs_hook=tuple)
    return content if isinstance(content, tuple) else ()


_TEXT, _NUMBER = ("scalar", "tag:yaml.org,2002:str"), ("scalar", "tag:yaml.org,2002:int")
_LIST, _MAPPING = ("sequence", "tag:yaml.org,2002:seq"), ("mapping", "tag:yaml.org,2002:map")


def _yaml_entries(stream: Any) -> _Entries:
    # The nodes, not what safe_load makes of them: it drops repeated names as json does, and a name may be a bare 0.
    text = stream.read()
    check_yaml(text)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if _kind(root) != _MAPPING:
        return ()
    return [(key.value if _kind(key) in (_TEXT, _NUMBER) else None, _from_node(value)) for key, value in root.value]


def _from_node(node: Any) -> object:
    if _kind(node) == _LIST:
        return [child.value if _kind(child) == _TEXT else None for child in node.value]
    return node.value if _kind(node) == _TEXT else None


def _kind(node: Any) -> tuple[str, str] | None:
    return node and (node.id, node.tag)


def _is_text(value: object) -> TypeGuard[str]:
    # JSON can spell half a surrogate pair, which no tokeniser and no file takes.
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= c <= "\udfff" for c in value)


def _problem(file: Path, what: str) -> UserError:
    return UserError(f"The file of prompts {file} {what}", exit_status=2)


def _short(value: object) -> str:
    written = repr(value)
    return written if len(written) <= 80 else f"{written[:77]}..."
