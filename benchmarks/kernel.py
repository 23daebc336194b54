"""What the metrics' kernel takes of a GPU, found by compiling it for several, without a device.

python benchmarks/kernel.py
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from figures import table


def compiled(architecture: int, thresholds: int) -> tuple[str, dict[str, int]]:
    """Compile the kernel ahead of time; return its PTX, and registers, bytes spilled and bytes of shared memory.

    Triton's own ptxas is asked, with the options that Triton gives it where nothing may be fused.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from xbench.metrics.kernel import BLOCK, OPTIONS, bins, measure_kernel
    from xbench.metrics.measures import MEASURES

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


def main() -> None:
    """Print what each architecture needs."""
    rows = []
    for architecture in (80, 90, 100):
        for thresholds in (101, 1001, 2001):
            ptx, found = compiled(architecture, thresholds)
            fused = len(re.findall(r"\bfma\.|\.ftz|div\.(?:full|approx)", ptx))
            rows.append([f"sm_{architecture}", thresholds, *found.values(), fused])
    head = "architecture", "thresholds", "registers a thread", "bytes spilled", "bytes of shared memory"
    print(table([*head, "fused or approximate"], rows))


if __name__ == "__main__":
    main()
