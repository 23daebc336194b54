"""LightningDataModules: one per dataset, each reading the official download as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbench.lazy import lazy_attributes

if TYPE_CHECKING:
    from xbench.data.base import ChestXrayDataModule, Radiograph, Record
    from xbench.data.chestxdet10 import ChestXDet10
    from xbench.data.chestxray14 import ChestXray14
    from xbench.data.chexlocalize import CheXlocalize
    from xbench.data.covid import COVID19Rural
    from xbench.data.phantom import PhantomCXR
    from xbench.data.rsna import RSNAPneumonia
    from xbench.data.siim import SIIMPneumothorax
    from xbench.data.vindr import VinDrCXR

__all__ = [
    "COVID19Rural",
    "CheXlocalize",
    "ChestXDet10",
    "ChestXray14",
    "ChestXrayDataModule",
    "PhantomCXR",
    "RSNAPneumonia",
    "Radiograph",
    "Record",
    "SIIMPneumothorax",
    "VinDrCXR",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "COVID19Rural": "covid",
        "CheXlocalize": "chexlocalize",
        "ChestXDet10": "chestxdet10",
        "ChestXray14": "chestxray14",
        "ChestXrayDataModule": "base",
        "PhantomCXR": "phantom",
        "RSNAPneumonia": "rsna",
        "Radiograph": "base",
        "Record": "base",
        "SIIMPneumothorax": "siim",
        "VinDrCXR": "vindr",
    },
)
