"""What the sweep and the pointing game would cost on a GPU: an estimate from shapes, which no GPU has ever confirmed.

The metrics' own updates run on the meta device, where tensors have shapes but no values, under a mode that adds up
what every operation would read and write. So the estimate follows the code, and a step that is added shows.

    python benchmarks/run.py roofline
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from figures import Figure, Measured, table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xbench.metrics import PointingGame, ThresholdSweep

IMAGES, FINDINGS, GRID, SMALL, THRESHOLDS = 12_601, 10, 224, 14, 101
BATCH = 8


@dataclass(frozen=True)
class Accelerator:
    """What is assumed of a GPU.

    Attributes:
        name: Of the GPU.
        bandwidth: Of its memory, bytes a second, from the data sheet.
        additions: Atomic additions to scattered places a second, least and most. No data sheet has it; neighbouring
            pixels often meet in one bin and then wait for each other, hence the low numbers.
        flops: Operations a second in bfloat16 without sparsity, from the data sheet.
        efficiency: Share of those that a forward pass reaches.
        launch: Seconds in which PyTorch hands over one operation, on the host and beside the work of the GPU.
    """

    name: str
    bandwidth: float
    additions: tuple[float, float]
    flops: float
    efficiency: float
    launch: float


H200 = Accelerator("H200", 4.8e12, (2e10, 6e10), 989e12, 0.4, 6e-6)
VIT_B_16 = 2 * 17.6e9
"""Operations of one forward pass at 224 x 224: 17.6e9 multiply-adds (Dosovitskiy et al., "An Image is Worth 16x16
Words", ICLR 2021; counted by torchvision), two operations each."""

FIGURES = (
    Figure("estimate, never run, H200: sweep and pointing game as they are, least", "ms"),
    Figure("estimate, never run, H200: sweep and pointing game as they are, most", "ms"),
    Figure("estimate, never run, H200: roofline of a fused sweep of maps on the grid", "ms"),
    Figure("estimate, never run, H200: the most over the forward passes of ViT-B/16"),
)


class Traffic(TorchDispatchMode):
    """Bytes that operations read and write, every tensor from and to the memory of the GPU, and atomic additions."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.additions = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or func is torch.ops.aten._unsafe_view.default:
            return result
        name = func.overloadpacket.__name__.strip("_")
        inputs = tree_leaves(args)
        self.read[name] += sum(_bytes(part) for part in inputs if isinstance(part, Tensor))
        self.written[name] += sum(_bytes(part) for part in tree_leaves(result) if isinstance(part, Tensor))
        self.calls[name] += 1
        if name == "scatter_add":
            self.additions += inputs[2].numel()
        return result

    @property
    def bytes(self) -> int:
        return self.read.total() + self.written.total()


def _bytes(tensor: Tensor) -> int:
    """Size of what a tensor holds, an expanded dimension counted once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size]
    return torch.Size(sizes).numel() * tensor.element_size()


def traffic() -> dict[str, Traffic]:
    """What the updates with one batch of raw maps read and write."""
    saliency = torch.empty(BATCH, FINDINGS, SMALL, SMALL, device="meta")
    regions = torch.empty(BATCH, FINDINGS, GRID, GRID, dtype=torch.bool, device="meta")
    valid = torch.empty(BATCH, FINDINGS, dtype=torch.bool, device="meta")
    found = {}
    for metric in (ThresholdSweep(FINDINGS, THRESHOLDS).to("meta"), PointingGame(FINDINGS).to("meta")):
        with Traffic() as found[type(metric).__name__]:
            metric.update(saliency, regions, valid)
    return found


def estimate(gpu: Accelerator = H200, images: int = IMAGES) -> dict[str, float]:
    """Seconds for all images, every pair scored; keys say what of."""
    batches = images / BATCH
    pixels = images * FINDINGS * GRID**2
    found = traffic().values()
    moving = batches * sum(part.bytes for part in found) / gpu.bandwidth
    least, most = (batches * sum(part.additions for part in found) / rate for rate in reversed(gpu.additions))
    return {
        "moving": moving,
        "adding, least": least,
        "adding, most": most,
        "launching": batches * sum(part.calls.total() for part in found) * gpu.launch,
        "fused, maps on the grid": pixels * 5 / gpu.bandwidth,
        "fused, raw maps": pixels * (1 + 4 * SMALL**2 / GRID**2) / gpu.bandwidth,
        "forward": images * VIT_B_16 / (gpu.flops * gpu.efficiency),
    }


def measure(quick: bool = False) -> Measured:
    seconds = estimate()
    least, most = (seconds["moving"] + seconds[f"adding, {end}"] for end in ("least", "most"))
    values = (least * 1e3, most * 1e3, seconds["fused, maps on the grid"] * 1e3, most / seconds["forward"])
    pixels = BATCH * FINDINGS * GRID**2
    found = traffic()
    lines = [
        (name, step, part.calls[step], part.read[step] / pixels, part.written[step] / pixels)
        for name, part in found.items()
        for step in part.calls
        if part.read[step] + part.written[step] > 0.05 * pixels
    ]
    sums = [
        (name, "all", part.calls.total(), part.read.total() / pixels, part.written.total() / pixels)
        for name, part in found.items()
    ]
    text = (
        f"**An estimate, never run on a GPU.** {H200.name}, {IMAGES:,} images x {FINDINGS} findings, all pairs valid, "
        f"maps of {SMALL} x {SMALL} on {GRID} x {GRID} pixels, {THRESHOLDS} thresholds, batches of {BATCH}. The "
        "updates ran on tensors without values, and what each operation would read and write was added up, as if every "
        f"intermediate went to memory, at {H200.bandwidth / 1e12:.1f} TB/s (data sheet); the cache of the GPU, which "
        "holds a good part of a chunk, is left out. Assumed besides: "
        f"{H200.additions[0] / 1e9:.0f} to {H200.additions[1] / 1e9:.0f} thousand million atomic additions a second, "
        f"one for each pixel; {VIT_B_16 / 1e9:.1f} thousand million operations a forward pass of ViT-B/16, at "
        f"{H200.efficiency:.0%} of {H200.flops / 1e12:.0f} TFLOP/s in bfloat16; {H200.launch * 1e6:.0f} us of the host "
        "for each operation.\n\n"
        + table(("estimate", "ms"), [(name, value * 1e3) for name, value in seconds.items()])
        + "\n`moving` is reading and writing, `adding` the additions to the histograms; one follows the other. "
        "`launching` is the host's work: nothing in the updates waits, so it goes on beside the GPU's, but in batches "
        "this small it is the longer of the two, and larger batches or a CUDA graph would cut it. `fused` is the "
        "roofline of one kernel that reads regions and maps, on the grid or raw, once.\n\n"
        "Bytes a pixel of the operations that move more than 0.05:\n\n"
        + table(("metric", "operation", "calls", "read", "written"), [*lines, *sums])
    )
    return Measured({figure.name: value for figure, value in zip(FIGURES, values, strict=True)}, text)
