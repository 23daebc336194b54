"""The versions that an installation gets by default."""

from __future__ import annotations

import configparser

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def requirements() -> list[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return lines(config["options"]["install_requires"]) + lines(config["options.extras_require"]["dev"])


PINS = [Requirement(line) for line in lines((ROOT / "constraints.txt").read_text())]


@pytest.mark.parametrize("requirement", requirements())
def test_every_requirement_is_pinned_within_its_range(requirement: str) -> None:
    wanted = Requirement(requirement)
    (pin,) = (pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(wanted.name))
    ((operator, version),) = ((part.operator, part.version) for part in pin.specifier)
    assert operator == "==" and pin.marker is None and pin.url is None
    assert wanted.specifier.contains(version)


@pytest.mark.parametrize("place", ["Makefile", "Dockerfile", "README.md", "docs/first-run.md"])
def test_every_way_to_install_uses_the_pins(place: str) -> None:
    assert "constraints.txt" in (ROOT / place).read_text()
