"""What stands beside the code names only what there is: reference, citation, workflow, containers, notebook."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import resolve_name

import pytest
from places import ROOT

REFERENCE = re.findall(r"^::: (?:callbacks|(xbench))\.(\S+)$", (ROOT / "docs/api.md").read_text(), re.M)


@pytest.mark.parametrize("name", [f"xbench.{name}" if own else f"xbench.callbacks.{name}" for own, name in REFERENCE])
def test_the_reference_names_what_there_is(name):
    assert resolve_name(name).__doc__


@pytest.mark.parametrize("package", ["models", "data", "metrics"])
def test_the_reference_has_every_public_name(package):
    source = (ROOT / f"xbench/{package}/__init__.py").read_text()
    public = re.findall(r" as (\w+)$", source, re.M) or import_module(f"xbench.{package}").__all__
    missing = {f"{package}.{name}" for name in public} - {name for _, name in REFERENCE}
    assert public and not missing, f"docs/api.md lacks {sorted(missing)}"
