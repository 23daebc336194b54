"""LightningModules: one per vision-language model, and the references that show what a number is worth."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xbench.models.base import VLM, SaliencyModel
    from xbench.models.biomedclip import BiomedCLIP
    from xbench.models.carzero import CARZero
    from xbench.models.clip import CLIP
    from xbench.models.demo import Demo
    from xbench.models.devide import DeViDe
    from xbench.models.kad import KAD
    from xbench.models.mavl import MAVL
    from xbench.models.medklip import MedKLIP
    from xbench.models.references import CentrePrior, Oracle, UniformRandom

__all__ = [
    "CLIP",
    "KAD",
    "MAVL",
    "VLM",
    "BiomedCLIP",
    "CARZero",
    "CentrePrior",
    "DeViDe",
    "Demo",
    "MedKLIP",
    "Oracle",
    "SaliencyModel",
    "UniformRandom",
]

# Imported on first use, so that one of them does not load the libraries of another.
_MODULES = {
    "BiomedCLIP": "biomedclip",
    "CARZero": "carzero",
    "CLIP": "clip",
    "CentrePrior": "references",
    "DeViDe": "devide",
    "Demo": "demo",
    "KAD": "kad",
    "MAVL": "mavl",
    "MedKLIP": "medklip",
    "Oracle": "references",
    "SaliencyModel": "base",
    "UniformRandom": "references",
    "VLM": "base",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
