"""What each of the models costs on a CPU: images per second, memory, and the time to encode prompts.

The networks have their released sizes and drawn weights, whose values do not change what a step costs. Each model runs
in a process of its own, in one thread, eight images of 224 x 224 pixels at a time against the prompts of 21 findings
(of MedKLIP and MAVL with everything else in their book, as always). Time is that of the processor, the median of
several rounds after a warm-up; `both` is half precision with the channels last. Memory is the peak resident size of a
process that has loaded the checkpoint, encoded the prompts and scored a batch in float32, Python and its packages
included. All of them take about a quarter of an hour. `xrv`, a DenseNet-121, reads no prompts, and takes the gradient
of each finding that it has a class for.

    python benchmarks/models.py              all of them
    python benchmarks/models.py carzero kad  these

`make bench` leaves them out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import numpy as np
import torch
import yaml
from measuring import alone, peak, processor
from torch import Tensor

# Writers of checkpoints that the tests have already.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from classifiers import write_classifier
from deterministic_checkpoints import MODELS, write_checkpoint

from xbench.commands.configs import shipped
from xbench.findings.names import FINDINGS
from xbench.models.base import VLM
from xbench.models.maps.classifier import SupervisedModel

BATCH, ROUNDS, PATIENCE = 8, 3, 30
LAYOUTS = ("float32", "bf16", "channels_last", "both")


@dataclass
class Costs:
    """What a model costs.

    Attributes:
        parameters: Of the image side and whatever else stands in the checkpoint.
        prompts: Seconds to encode them.
        memory: Peak, in GB.
        images: Per second, by layout.
    """

    parameters: int
    prompts: float
    memory: float
    images: dict[str, float]


def main() -> None:
    chosen = sys.argv[1:] or (*MODELS, "xrv")
    print(f"{processor()}, one thread; batches of {BATCH}, prompts of {len(FINDINGS['vindr'])} findings\n")
    print(f"{'':12}{'parameters':>11}{'prompts':>10}{'memory':>10}" + "".join(f"{name:>15}" for name in LAYOUTS))
    for model in chosen:
        with tempfile.TemporaryDirectory() as folder:
            # The one that draws the weights holds them all, so that its peak would not be the model's.
            write = write_classifier if model == "xrv" else partial(write_checkpoint, full=True)
            arguments = alone(write, model, Path(folder))
            costs = alone(measure, model, arguments)
        speeds = "".join(f"{costs.images[name]:11.2f} /s " for name in LAYOUTS)
        print(
            f"{model:12}{costs.parameters / 1e6:9.0f} M{costs.prompts:8.1f} s{costs.memory:7.2f} GB{speeds}", flush=True
        )


def measure(model: str, arguments: dict[str, str]) -> Costs:
    """Load a model and time it. Runs in a process of its own."""
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    path = yaml.safe_load(shipped("models")[model].read_text())["class_path"]
    network: VLM | SupervisedModel = resolve_name(":".join(path.rsplit(".", 1)))(**arguments)
    findings = [one for one in FINDINGS["vindr"] if isinstance(network, VLM) or not network.problems([one])]
    # As the trainer does before a run.
    network._trainer = SimpleNamespace(datamodule=SimpleNamespace(findings=findings))  # type: ignore[assignment]
    network.setup("test")
    images = torch.randn(BATCH, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        start = time.process_time()
        queries = network.encode_prompts(network.asked()) if isinstance(network, VLM) else None
        prompts = time.process_time() - start
        run(network, images, queries, bf16=False)
        memory = peak() / 1e9
        seconds = {}
        for layout in LAYOUTS:
            if layout == "channels_last":
                network.to(memory_format=torch.channels_last)
                images = images.contiguous(memory_format=torch.channels_last)
            seconds[layout] = median(partial(run, network, images, queries, bf16=layout in ("bf16", "both")))
    parameters = sum(tensor.numel() for tensor in network.weights().values())
    return Costs(parameters, prompts, memory, {name: BATCH / value for name, value in seconds.items()})


def run(network: VLM | SupervisedModel, images: Tensor, queries: object, bf16: bool) -> None:
    """Score a batch, in half precision as `--trainer.precision bf16-mixed` does."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        if isinstance(network, VLM):
            network(images, queries)
        else:
            network.score(SimpleNamespace(images=images))  # type: ignore[arg-type]


def median(method: Callable[[], None]) -> float:
    """Processor seconds of a round, after a warm-up; of one round alone where it tries one's patience."""
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) <= ROUNDS and sum(seconds) < PATIENCE):
        start = time.process_time()
        method()
        seconds.append(time.process_time() - start)
    return float(np.median(seconds[1:]))


if __name__ == "__main__":
    main()
