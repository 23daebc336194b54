"""LightningModules: one per vision-language model, and the references that show what a number is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbench.runtime.start_up import lazy_names

if TYPE_CHECKING:
    from xbench.models.answering import AnsweringModel as AnsweringModel
    from xbench.models.answers.chexagent2 import CheXagent2 as CheXagent2
    from xbench.models.answers.endpoint import Endpoint as Endpoint
    from xbench.models.answers.local import Local as Local
    from xbench.models.answers.maira2 import Maira2 as Maira2
    from xbench.models.base import VLM as VLM
    from xbench.models.base import SaliencyModel as SaliencyModel
    from xbench.models.baselines import AnswerOracle as AnswerOracle
    from xbench.models.baselines import CenterBox as CenterBox
    from xbench.models.baselines import CenterPrior as CenterPrior
    from xbench.models.baselines import Oracle as Oracle
    from xbench.models.baselines import OutlineBoxes as OutlineBoxes
    from xbench.models.baselines import PriorBox as PriorBox
    from xbench.models.baselines import RandomBox as RandomBox
    from xbench.models.baselines import UniformRandom as UniformRandom
    from xbench.models.baselines import WholeImage as WholeImage
    from xbench.models.demo import Demo as Demo
    from xbench.models.external import External as External
    from xbench.models.maps.afloc import AFLoc as AFLoc
    from xbench.models.maps.biomedclip import BiomedCLIP as BiomedCLIP
    from xbench.models.maps.biovil import BioViL as BioViL
    from xbench.models.maps.biovil import BioViLT as BioViLT
    from xbench.models.maps.carzero import CARZero as CARZero
    from xbench.models.maps.chexzero import CheXzero as CheXzero
    from xbench.models.maps.classifier import Classifier as Classifier
    from xbench.models.maps.classifier import TorchXRayVision as TorchXRayVision
    from xbench.models.maps.clip import CLIP as CLIP
    from xbench.models.maps.cxrclip import CXRCLIP as CXRCLIP
    from xbench.models.maps.devide import DeViDe as DeViDe
    from xbench.models.maps.gloria import GLoRIA as GLoRIA
    from xbench.models.maps.hf_dual import HFDual as HFDual
    from xbench.models.maps.kad import KAD as KAD
    from xbench.models.maps.llavarad import LLaVARad as LLaVARad
    from xbench.models.maps.mavl import MAVL as MAVL
    from xbench.models.maps.medklip import MedKLIP as MedKLIP
    from xbench.models.maps.radzero import RadZero as RadZero

__getattr__ = lazy_names(__name__, __file__)
