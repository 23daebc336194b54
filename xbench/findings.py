"""The findings of each dataset, in the order of its results."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["FINDINGS"]

FINDINGS = MappingProxyType(
    {
        "phantom": (
            "Atelectasis",
            "Cardiomegaly",
            "Consolidation",
            "Fracture",
            "Mass",
            "Nodule",
            "Pleural Effusion",
            "Pneumothorax",
        ),
        "siim": ("Pneumothorax",),
    }
)
"""Names of the findings by name of the dataset."""
