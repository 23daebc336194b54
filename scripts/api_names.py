"""List the public names of a package in the API reference: `mkdocs.yml` names this file as a hook.

On a page, `::: xbench.models.*` stands for every public name of the package that the page does not name itself.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def public_names(package: str) -> list[str]:
    """Return the names that the `__init__.py` of a package imports for others, without importing it."""
    source = (ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    listed = re.search(r"^__all__ = (\[.*?\])", source, re.M | re.S)
    return ast.literal_eval(listed[1]) if listed else re.findall(r" as (\w+)$", source, re.M)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with a directive for each public name of the packages that it names with an asterisk."""

    def directives(match: re.Match[str]) -> str:
        names = (f"::: {match[1]}.{name}" for name in public_names(match[1]))
        return "\n".join(name for name in names if f"{name}\n" not in markdown)

    return re.sub(r"^::: ([\w.]+)\.\*$", directives, markdown, flags=re.M)
