"""Protocols: named ways in which the field scores predictions, one file each, described in docs/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping

from xbench.scoring.protocols.aep import Aep
from xbench.scoring.protocols.alarms import FalsePositives
from xbench.scoring.protocols.base import Protocol
from xbench.scoring.protocols.biovil import BioViL
from xbench.scoring.protocols.calibration import Calibration
from xbench.scoring.protocols.chex import CheX
from xbench.scoring.protocols.chexlocalize import CheXlocalize
from xbench.scoring.protocols.detections import Detections
from xbench.scoring.protocols.g2g import G2G
from xbench.scoring.protocols.lesions import Lesions
from xbench.scoring.protocols.medground import MedGround
from xbench.scoring.protocols.radfact import RadFact
from xbench.scoring.protocols.radvlm import RadVLM
from xbench.scoring.protocols.radzero import RadZero
from xbench.scoring.protocols.words import Words
from xbench.scoring.protocols.xbench import XBench

_ALL: tuple[Protocol, ...] = (
    *(XBench(), Aep(), BioViL(), CheXlocalize(), RadZero(), CheX(), RadVLM(), MedGround(), G2G(), RadFact()),
    *(Lesions(), FalsePositives(), Detections(), Calibration(), Words()),
)
PROTOCOLS: Mapping[str, Protocol] = {protocol.name: protocol for protocol in _ALL}
"""All protocols by name, in the order in which they are shown."""
