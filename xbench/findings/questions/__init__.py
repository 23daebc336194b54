"""The questions that models which answer are asked: a file for each family, and files of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from xbench.findings.prompts import phrase
from xbench.runtime.digests import digest
from xbench.runtime.errors import UsageError
from xbench.runtime.yaml_files import load_yaml

_FIELDS = ("finding", "phrase", "name", "definition")
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class Questions:
    """How findings are asked for.

    A question holds `{finding}`, the finding as it stands inside a sentence, `{phrase}`, the same with a capital
    letter, or `{name}`, the name of the finding in lower case; it may hold `{definition}`, a sentence of the file on
    the finding. Braces that are meant are doubled.

    Attributes:
        source: Who says that a model is asked like this.
        locate: The question where a finding is.
        recognise: The question whether it is there; None if there is none.
        report: The question for a report of the whole image, without any of the above; None if there is none.
        where: The question where a finding is that words answer; None if there is none.
        system: What comes before either as the system's turn; None for the model's own, or none.
        names: What findings are called, by their names in the dataset, where that is not the package's phrase.
        definitions: A sentence on each finding.
        file: Where it stands, for messages.
    """

    source: str
    locate: str
    recognise: str | None = None
    report: str | None = None
    where: str | None = None
    system: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    file: str = ""

    @classmethod
    def of(cls, name: str) -> Questions:
        """Read the questions of a family of the package, or of a YAML file of the user's.

        Raises:
            UserError: There are none, or the file holds something else.
        """
        own = {one.stem: one for one in sorted(Path(__file__).parent.glob("*.yaml"))}
        path = own.get(name) or Path(name).expanduser()
        if not path.is_file():
            raise UsageError(
                f"--model.prompts {name} is no file, nor a family whose questions the package has ({', '.join(own)})."
            )
        try:
            with path.open("rb") as file:
                content: Any = load_yaml(file.read(_MAX_BYTES).decode())
            return cls._checked(content, str(path))
        except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
            raise UsageError(f"The questions of {path} cannot be used: {error}") from None

    @classmethod
    def _checked(cls, content: Any, file: str) -> Questions:
        keys: dict[str, type] = dict.fromkeys(("source", "locate", "recognise", "report", "where", "system"), str)
        keys |= {"names": dict, "definitions": dict}
        if not isinstance(content, dict) or not {"source", "locate"} <= {*content} <= {*keys}:
            raise ValueError(f"it needs the keys source and locate, and may have {', '.join([*keys][2:])}.")
        for key, value in content.items():
            texts = [*value.items()] if isinstance(value, dict) else [(key, value)]
            if not isinstance(value, keys[key]) or not all(isinstance(text, str) for pair in texts for text in pair):
                raise ValueError(f"{key} must be {'a mapping of texts' if keys[key] is dict else 'a text'}.")
        for key in ("locate", "recognise", "where"):
            names = [name for _, name, *_ in Formatter().parse(content.get(key) or "{finding}") if name is not None]
            if unknown := {*names} - {*_FIELDS}:
                raise ValueError(f"{key} has {{{min(unknown)}}}; a question may hold {{{'}, {'.join(_FIELDS)}}}.")
            if not {*names} & {"finding", "phrase", "name"}:
                raise ValueError(f"{key} lacks {{finding}}, {{name}} or {{phrase}}: all findings would be asked alike.")
        return cls(**content, file=file)

    def text(self, kind: str, finding: str) -> str:
        """Return the question of a kind about a finding; a UserError without such a question, or a definition."""
        template = getattr(self, kind)
        if template is None:
            raise UsageError(f"{self.file} has no question under {kind}: add one, or leave --model.ask out.")
        if kind == "report":
            return str(template)
        name = self.names.get(finding) or phrase(finding)
        if "{definition}" in template and finding not in self.definitions:
            raise UsageError(
                f"{self.file} has no definition of {finding}, which its question holds: add one under definitions."
            )
        definition = self.definitions.get(finding, "")
        plain = (self.names.get(finding) or finding).lower()
        return str(template).format(finding=name, phrase=name[:1].upper() + name[1:], name=plain, definition=definition)

    @property
    def sha256(self) -> str:
        """Digest of all that is in it."""
        return digest(asdict(self) | {"file": None})
