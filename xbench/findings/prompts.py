"""Prompts for findings: the package's wording, templates, and users' files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeGuard, get_args

import yaml

from xbench.runtime.errors import UsageError
from xbench.runtime.strict import check_yaml, load_yaml, read_json, unique_keys

Style = Literal["name", "phrase", "description", "aspects"]
"""The canonical name, the phrase, the description, or the eight aspects, each prefixed with its name."""

STYLES: tuple[Style, ...] = get_args(Style)


@dataclass(frozen=True)
class Wording:
    """A finding as part of a sentence, a sentence on its look on a frontal radiograph, and a statement by aspect."""

    phrase: str
    description: str
    aspects: Mapping[str, str]


@cache
def wordings(kind: Literal["findings", "normal"]) -> Mapping[str, Wording]:
    """Return the wording of every finding, or of a normal radiograph and clear lungs, by name."""
    return {name: Wording(**entry) for name, entry in load_yaml(Path(__file__).with_name("prompts.yaml"))[kind].items()}


def wording(finding: str) -> Wording:
    """Return the wording of a finding, of `Normal` or of `Clear Lungs`; UserError if there is none."""
    found = _find(finding)
    if found is None:
        raise UsageError(
            f"The package has no wording for the finding {finding!r:.80}, so it cannot be described to the model. "
            "Give your own prompts for it, in a file of prompts or as a template, or use a canonical name: "
            "`xbench list findings` prints them."
        )
    return found


def phrase(finding: str) -> str:
    """Return a finding as part of a sentence: as worded, or else in lower case except acronyms.

    >>> phrase("Pleural Effusion"), phrase("Enlarged PA"), phrase("Deep Sulcus Sign on CT")
    ('pleural effusion', 'enlarged pulmonary artery', 'deep sulcus sign on CT')
    """
    if worded := _find(finding):
        return worded.phrase
    return " ".join(word if word.isupper() else word.lower() for word in finding.split())


def prompts_in_style(style: Style, finding: str) -> list[str]:
    """Return the prompts of a finding: eight for `aspects`, one for other styles.

    >>> prompts_in_style("phrase", "ILD"), prompts_in_style("aspects", "Nodule")[6]
    (['interstitial lung disease'], 'shape: small round or oval spot, like a coin')
    """
    if style == "aspects":
        return [f"{aspect}: {statement}" for aspect, statement in wording(finding).aspects.items()]
    if style == "description":
        return [wording(finding).description]
    if style in ("name", "phrase"):
        return [finding if style == "name" else phrase(finding)]
    raise UsageError(f"Unknown style of prompts {style!r}: give one of {', '.join(STYLES)}.")


def fill_templates(templates: Sequence[str], finding: str, worded: bool = True) -> list[str]:
    """Fill the phrase of a finding, or its name, into templates with `{finding}` as their only field."""
    try:
        prompts = [template.format(finding=phrase(finding) if worded else finding) for template in templates]
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError(
            f"A prompt template of {list(templates)} cannot be filled ({error!r}): write {{finding}} in place of the "
            "finding and no other braces."
        ) from error
    if len({*prompts}) < len(prompts) or any("{finding}" not in template for template in templates):
        needed = "must differ, and each needs {finding} in place of the finding"
        raise UsageError(f"The prompt templates {list(templates)} {needed}.")
    return prompts


def read_prompts(path: str | Path) -> dict[str, list[str]]:
    """Read a file of prompts, by name and in file order, by which some models number their classes.

    A mapping from names to a text or a list of texts, as JSON (`.json`) or YAML (any other ending). Nothing in it is
    executed, and texts are not changed.
    """
    file = Path(os.path.expanduser(path))
    named = f"The file of prompts {file}"
    kind = "JSON" if file.suffix.lower() == ".json" else "YAML"
    try:
        entries = read_json(file, 2**27) if kind == "JSON" else _from_yaml(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{named} cannot be read ({reason}): give the path of a JSON or YAML file.") from error
    # Also invalid UTF-8, values that do not fit their tags, and endless nesting.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"{named} is not valid {kind} in UTF-8 ({reason}): fix it there. A file whose name ends in .json is read "
            "as JSON, any other as YAML."
        ) from error
    if not isinstance(entries, dict) or not entries:
        raise UsageError(
            f"{named} is not a mapping with at least one entry: write the name of each finding with its prompt or list "
            "of prompts."
        )
    prompts: dict[str, list[str]] = {}
    for name, value in entries.items():
        texts = value if isinstance(value, list) else [value]
        if not _is_text(name) or not texts or not all(map(_is_text, texts)):
            raise UsageError(
                f"{named} has no text for {name!r:.80}: write a text or a list of texts, none empty. In YAML, quote "
                "texts that contain a colon or could be read as a number."
            )
        prompts[name] = texts
    return prompts


def _find(name: str) -> Wording | None:
    return wordings("findings").get(name) or wordings("normal").get(name)


def _from_yaml(text: str) -> object:
    check_yaml(text)
    root, constructor = yaml.compose(text, Loader=yaml.SafeLoader), yaml.constructor.SafeConstructor()
    if not isinstance(root, yaml.MappingNode):
        return None
    # Pair by pair, because safe_load drops repeated names and turns the name 0 into a number.
    names = [key.value if isinstance(key, yaml.ScalarNode) else "" for key, _ in root.value]
    values = [constructor.construct_object(value, deep=True) for _, value in root.value]
    return unique_keys([*zip(names, values, strict=True)])


def _is_text(value: object) -> TypeGuard[str]:
    # JSON can contain half a surrogate pair, which tokenizers and files reject.
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= c <= "\udfff" for c in value)
