"""LightningDataModules, one per dataset; each reads the official download without conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbench.runtime.start_up import lazy_names

if TYPE_CHECKING:
    from xbench.data.datamodule import ChestXrayDataModule as ChestXrayDataModule
    from xbench.data.datasets.chestxdet10 import ChestXDet as ChestXDet
    from xbench.data.datasets.chestxdet10 import ChestXDet10 as ChestXDet10
    from xbench.data.datasets.chestxray14 import ChestXray14 as ChestXray14
    from xbench.data.datasets.chexlocalize import CheXlocalize as CheXlocalize
    from xbench.data.datasets.covid import COVID19Rural as COVID19Rural
    from xbench.data.datasets.folder import ImageFolder as ImageFolder
    from xbench.data.datasets.mscxr import MSCXR as MSCXR
    from xbench.data.datasets.own_coco import CocoDataset as CocoDataset
    from xbench.data.datasets.own_csv import CsvDataset as CsvDataset
    from xbench.data.datasets.own_masks import MaskFolderDataset as MaskFolderDataset
    from xbench.data.datasets.padchestgr import PadChestGR as PadChestGR
    from xbench.data.datasets.phantom import PhantomCXR as PhantomCXR
    from xbench.data.datasets.rsna import RSNAPneumonia as RSNAPneumonia
    from xbench.data.datasets.siim import SIIMPneumothorax as SIIMPneumothorax
    from xbench.data.datasets.tbx11k import TBX11K as TBX11K
    from xbench.data.datasets.vindr import VinDrCXR as VinDrCXR
    from xbench.data.records import Radiograph as Radiograph
    from xbench.data.records import Record as Record

__getattr__ = lazy_names(__name__, __file__)
