"""PhantomCXR: procedurally drawn chest radiographs whose lesions are known to the pixel."""

from __future__ import annotations

from xbench.data.phantom.draw import Phantom, draw_phantom
from xbench.data.phantom.lesions import FINDINGS

__all__ = ["FINDINGS", "Phantom", "draw_phantom"]
