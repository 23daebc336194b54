"""LightningDataModules: one per dataset, each reading the official download as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbench.lazy import lazy_attributes

if TYPE_CHECKING:
    from xbench.data.base import ChestXrayDataModule, Radiograph, Record
    from xbench.data.phantom import PhantomCXR
    from xbench.data.siim import SIIMPneumothorax

__all__ = ["ChestXrayDataModule", "PhantomCXR", "Radiograph", "Record", "SIIMPneumothorax"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "ChestXrayDataModule": "base",
        "PhantomCXR": "phantom",
        "Radiograph": "base",
        "Record": "base",
        "SIIMPneumothorax": "siim",
    },
)
