"""Sex, age and projection of a radiograph: spellings in annotation files, and values that a run keeps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from xbench.runtime.strict import decimal

_SEXES = {"f": "F", "female": "F", "m": "M", "male": "M"}
_PROJECTIONS = {"pa": "PA", "ap": "AP", "ap_horizontal": "AP", **dict.fromkeys(("lateral", "l", "ll", "rl"), "lateral")}
_OLDEST = 120
_ODD = {
    "sex": "a sex that is neither F nor M counts as unknown",
    "age": f"an age that is not a number of years from 0 to {_OLDEST} counts as unknown",
    "projection": "a projection other than PA, AP and lateral counts as unknown",
}
ATTRIBUTES = tuple(_ODD)


def known_attributes(stated: Mapping[str, object]) -> tuple[dict[str, str | float], list[str]]:
    """Return valid sex, age and projection as a run keeps them, and a note for each invalid value that is not empty."""
    texts = {name: "" if stated.get(name) is None else str(stated[name]).strip().casefold() for name in ATTRIBUTES}
    known = {"sex": _SEXES.get(texts["sex"]), "projection": _PROJECTIONS.get(texts["projection"])}
    found: dict[str, str | float] = {name: value for name, value in known.items() if value is not None}
    with suppress(ValueError):
        # DICOM writes `058Y`.
        if 0 <= (years := decimal(texts["age"].removesuffix("y"))) <= _OLDEST:
            found["age"] = years
    return found, [note for name, note in _ODD.items() if texts[name] and name not in found]
