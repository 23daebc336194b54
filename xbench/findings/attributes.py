"""Sex, age and projection of a radiograph: how annotation files spell them, and what a run keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real

from xbench.runtime.strict import decimal

_SEXES = {"f": "F", "female": "F", "m": "M", "male": "M"}
_PROJECTIONS = {"pa": "PA", "ap": "AP", "ap_horizontal": "AP", **dict.fromkeys(("lateral", "l", "ll", "rl"), "lateral")}
_OLDEST = 120
_IN_A_YEAR = {"Y": 1, "M": 12, "W": 52, "D": 365}  # units of DICOM, as in `058Y`
_ODD = {
    "sex": "a sex that is neither F nor M counts as unknown",
    "age": f"an age that is no number of years from 0 to {_OLDEST} counts as unknown",
    "projection": "a projection that is none of PA, AP and lateral counts as unknown",
}

ATTRIBUTES: Mapping[str, Callable[[object], bool]] = {
    "sex": lambda value: isinstance(value, str) and value in _SEXES.values(),
    "age": lambda value: isinstance(value, Real) and 0 <= float(value) <= _OLDEST,
    "projection": lambda value: isinstance(value, str) and value in _PROJECTIONS.values(),
}
"""Attributes of an image by name, each with the test of a value that it may have; ages are in years."""


def read_attributes(sex: str = "", age: str = "", projection: str = "") -> tuple[dict[str, str | float], list[str]]:
    """Return the attributes that the texts of an annotation file state, and a note for each text that states none.

    Any text is accepted. Attributes that are not known are left out; an empty text needs no note.
    """
    stated = {"sex": sex.strip().casefold(), "age": age.strip().upper(), "projection": projection.strip().casefold()}
    known = {"sex": _SEXES.get(stated["sex"]), "age": _years(stated["age"])}
    known["projection"] = _PROJECTIONS.get(stated["projection"])
    found = {name: value for name, value in known.items() if value is not None}
    return found, [_ODD[name] for name, text in stated.items() if text and name not in found]


def odd_attribute(attributes: Mapping[str, object]) -> str | None:
    """Return the name of an attribute whose value is none of those that it may have; None without one."""
    return next((name for name, fits in ATTRIBUTES.items() if name in attributes and not fits(attributes[name])), None)


def _years(age: str) -> float | None:
    unit = age[-1:] if age[-1:] in _IN_A_YEAR else ""
    try:
        years = decimal(age.removesuffix(unit)) / _IN_A_YEAR.get(unit, 1)
    except ValueError:
        return None
    return years if ATTRIBUTES["age"](years) else None
