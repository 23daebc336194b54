"""Questions for models that answer: a file per family, and users' files."""

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
from xbench.runtime.strict import load_yaml

_FIELDS = ("finding", "phrase", "name", "definition")
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class Questions:
    """Questions about findings.

    A question contains `{finding}` (the finding as part of a sentence), `{phrase}` (the same, capitalized) or `{name}`
    (the finding's name in lower case), and optionally `{definition}`. Double all other braces.

    Attributes:
        source: Reference for the questions.
        locate: Asks where a finding is.
        recognise: Asks whether a finding is present.
        report: Asks for a report of the whole image, without any field.
        where: Asks where a finding is, to be answered in words.
        system: The system's turn; None for the model's own, if any.
        names: Names of findings in questions, by name in the dataset, where they differ from the package's phrase.
        definitions: A sentence on each finding.
        file: The source file, for messages.
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
        """Read the questions of a family of the package, or of a YAML file; UserError if missing or invalid."""
        own = {one.stem: one for one in sorted(Path(__file__).parent.glob("*.yaml"))}
        path = own.get(name) or Path(name).expanduser()
        if not path.is_file():
            known = ", ".join(own)
            raise UsageError(f"--model.prompts {name} is neither a file nor a family with questions ({known}).")
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
        """Return the question of a kind about a finding; UserError if it, or a definition, is missing."""
        template = getattr(self, kind)
        if template is None:
            raise UsageError(f"{self.file} has no question under {kind}: add one, or leave --model.ask out.")
        if kind == "report":
            return str(template)
        name = self.names.get(finding) or phrase(finding)
        if "{definition}" in template and finding not in self.definitions:
            advice = "which its question uses: add one under definitions"
            raise UsageError(f"{self.file} has no definition of {finding}, {advice}.")
        definition = self.definitions.get(finding, "")
        plain = (self.names.get(finding) or finding).lower()
        return str(template).format(finding=name, phrase=name[:1].upper() + name[1:], name=plain, definition=definition)

    @property
    def sha256(self) -> str:
        """Digest of the contents."""
        return digest(asdict(self) | {"file": None})
