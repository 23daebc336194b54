"""PhantomCXR: procedurally drawn chest radiographs whose lesions are known to the pixel."""

from xbench.data.phantom.draw import Phantom as Phantom
from xbench.data.phantom.draw import draw_phantom as draw_phantom
from xbench.data.phantom.lesions import FINDINGS as FINDINGS
