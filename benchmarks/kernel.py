"""What the metrics' kernel takes of a GPU, found by compiling it for several, without a device.

python benchmarks/kernel.py
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from figures import Figure, Measured, at_most, table

FIGURES = (
    Figure(
        "registers spilled at 101 thresholds",
        "bytes",
        at_most(0),
        note="A program holds more values than a thread has registers: let it have more threads.",
    ),
    Figure(
        "fused or approximate instructions",
        "instructions",
        at_most(0),
        note="The results would not be those of the host to the bit.",
    ),
)


def compiled(architecture: int, thresholds: int) -> tuple[str, dict[str, int]]:
    """Compile the kernel ahead of time; return its PTX, and registers, bytes spilled and bytes of shared memory.

    Triton's own ptxas is asked, with the options that Triton gives it where nothing may be fused.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from xbench.scoring.kernel import BLOCK, OPTIONS, bins, measure_kernel
    from xbench.scoring.map_measures import MEASURES

    types = {
        "raw_of": "*fp32", "logit_of": "*fp32", "probability_of": "*fp32", "regions": "*u8", "cells": "*i32",
        "shares": "*fp32", "layout_of": "*i64", "thresholds": "*fp32", "table_of": "*i64", "h": "i32", "w": "i32",
        "table_width": "i32", "T": "i32", "FIRST": "constexpr", "BINS": "constexpr", "BLOCK": "constexpr",
    }  # fmt: skip
    values = {"FIRST": MEASURES, "BINS": bins(thresholds), "BLOCK": BLOCK}
    source = ASTSource(measure_kernel, signature=types, constexprs=values)
    kernel = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=OPTIONS)
    ptx = kernel.asm["ptx"]
    blackwell = "-blackwell" if architecture >= 100 else ""
    ptxas = Path(triton.__file__).parent / f"backends/nvidia/bin/ptxas{blackwell}"
    arch = re.search(r"\.target (\w+)", ptx)
    assert arch is not None
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder, "kernel.ptx")).write_text(ptx)
        words = [ptxas, "-v", "--fmad=false", f"--gpu-name={arch[1]}", path, "-o", f"{folder}/kernel.cubin"]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stderr
    found = {
        name: int(re.search(rf"(\d+) {words}", said)[1])  # type: ignore[index]
        for name, words in (("registers", "registers"), ("spilled", "bytes spill stores"))
    }
    return ptx, found | {"shared": kernel.metadata.shared}


def measure(quick: bool = False) -> Measured:
    """What each architecture needs."""
    rows, most = [], {}
    for architecture in (90,) if quick else (80, 90, 100):
        for thresholds in (101,) if quick else (101, 1001):
            ptx, found = compiled(architecture, thresholds)
            fused = len(re.findall(r"\bfma\.|\.ftz|div\.(?:full|approx)", ptx))
            rows.append([f"sm_{architecture}", f"{thresholds:,}", *found.values(), fused])
            if thresholds == 101:
                most = {name: max(value, most.get(name, 0)) for name, value in found.items()} | {
                    "fused": fused + most.get("fused", 0)
                }
    head = "architecture", "thresholds", "registers a thread", "bytes spilled", "bytes of shared memory"
    text = (
        "One program of 256 threads measures a pair, in one launch for all pairs of a batch. Compiled ahead of time by "
        "Triton for three generations of GPUs (A100, H100 and H200, B200), without a device: what it costs in time was "
        "not measured here.\n\n" + table([*head, "fused or approximate instructions"], rows)
    )
    return Measured({FIGURES[0].name: float(most["spilled"]), FIGURES[1].name: float(most["fused"])}, text)
