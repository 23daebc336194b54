"""How far `--trainer.precision bf16-mixed`, `--model.compile true` and `--model.channels_last true` move the numbers.

Each of the seven models is built at its released size with the weights of its golden vectors and gets their inputs; its
logits, probabilities and maps are compared with those that the authors' code gave in float32: largest absolute
difference over all golden cases. Of DeViDe there is no authors' code, so its numbers are compared with our own in
float32. Prompts are encoded in float32 in every column, as in a run. Each model is measured in a process of its own, on
the CPU.

    python benchmarks/precision.py              all of them
    python benchmarks/precision.py carzero kad  these

Compiling takes minutes for each.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import torch
from measuring import alone, processor
from safetensors.torch import save_file
from torch import Tensor

# The weights and inputs of the golden vectors, as the tests draw them.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from deterministic import images_of, tokens_of, weight
from deterministic_checkpoints import write_checkpoint
from golden import Case as Golden
from golden import case_of

from xbench.models import CLIP, KAD, MAVL, VLM, BiomedCLIP, CARZero, DeViDe, MedKLIP
from xbench.models.networks.report_text import WordPieces
from xbench.types import ModelOutput

WAYS: dict[str, dict[str, bool]] = {
    "float32": {},
    "bf16-mixed": {},
    "compile": {"compile": True},
    "channels_last": {"channels_last": True},
}
OUTPUTS = {"logits": "logits", "probabilities": "probabilities", "maps": "saliency"}


@dataclass
class Case:
    """What a model is given, and what it should make of it.

    Attributes:
        build: Makes the model from options.
        images: (B, 3, h, w).
        queries: Makes the queries; from the model, as some need its weights.
        expected: Numbers of the authors' code by name of the output; without any, the model's own in float32.
    """

    build: Callable[..., VLM]
    images: Tensor
    queries: Callable[[Any], Any]
    expected: dict[str, np.ndarray] = field(default_factory=dict)


def main() -> None:
    chosen = sys.argv[1:] or [*CASES]
    print(f"Largest difference from the authors' numbers; {processor()}, torch {torch.__version__}.\n")
    print(f"| model | output | range | {' | '.join(WAYS)} |")
    print("| --- " * (3 + len(WAYS)) + "|")
    for model in chosen:
        for number, (output, values) in enumerate(alone(measure, model).items()):
            cells = " | ".join(f"{value:.2g}" for value in values)
            print(f"| {'' if number else NAMES[model]} | {output} | {cells} |", flush=True)


def measure(model: str) -> dict[str, list[float]]:
    """Return by output the range of its numbers and by how much each way is off. Runs in a process of its own.

    The range is that of the logits or probabilities of an image, or of a map: the median of all there are.
    """
    torch.set_num_threads(1)
    ranges: dict[str, list[float]] = {output: [] for output in OUTPUTS}
    largest = {output: dict.fromkeys(WAYS, 0.0) for output in OUTPUTS}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES[model](Path(folder)):
            expected = case.expected or outcome(case, "float32")
            for output, numbers in expected.items():
                axes = (-2, -1) if output == "maps" else -1
                ranges[output] += np.ptp(numbers, axis=axes).ravel().tolist()
            for way in WAYS:
                for output, numbers in outcome(case, way).items():
                    difference = float(np.abs(numbers - expected[output]).max())
                    largest[output][way] = max(largest[output][way], difference)
    return {output: [float(np.median(ranges[output])), *largest[output].values()] for output in OUTPUTS}


def outcome(case: Case, way: str) -> dict[str, np.ndarray]:
    """Score the images of a case in one way, as a run does."""
    # A network that was compiled for another case would be compiled for any size now, which no run does.
    torch.compiler.reset()
    network = case.build(**WAYS[way])
    with torch.inference_mode():
        queries = case.queries(network)
        network.asked = lambda: ()  # type: ignore[method-assign]
        network.encoded = lambda prompts: queries  # type: ignore[method-assign]
        network.on_test_start()
        # What the trainer does for bf16-mixed. Not the book's own `score`, which picks findings of a dataset.
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "bf16-mixed", cache_enabled=False):
            scored: ModelOutput = VLM.score(network, SimpleNamespace(images=case.images))  # type: ignore[arg-type]
    return {output: getattr(scored, attribute).numpy() for output, attribute in OUTPUTS.items()}


# The golden cases


def of_clip(folder: Path) -> Iterator[Case]:
    file = folder / "clip.safetensors"
    shapes = open_clip.create_model("ViT-B-32").state_dict()
    save_file({name: weight(name, tuple(tensor.shape)) for name, tensor in shapes.items()}, file)
    tokens = {"length": 77, "vocabulary": 49406, "start": 49406, "end": 49407}
    yield of_open_clip("a", partial(CLIP, "ViT-B-32", checkpoint=str(file)), **tokens)
    yield of_open_clip("q", partial(CLIP, "ViT-B-32-quickgelu", checkpoint=str(file)), **tokens)


def of_biomedclip(folder: Path) -> Iterator[Case]:
    build = partial(BiomedCLIP, **write_checkpoint("biomedclip", folder, full=True))
    yield of_open_clip("b", build, length=256, vocabulary=30522)


def of_open_clip(name: str, build: Callable[..., VLM], **tokens: int) -> Case:
    golden = case_of("openclip", name)
    ids, _ = tokens_of(**golden.about["tokens"], **tokens)
    expected = {output: golden.arrays[output] for output in OUTPUTS}
    return Case(build, golden.images, lambda network: network.encode_tokens(ids), expected)


def of_medklip(folder: Path) -> Iterator[Case]:
    build = partial(MedKLIP, **write_checkpoint("medklip", folder, full=True))
    for golden in (case_of("medklip", "case0"), case_of("medklip", "case1")):
        queries = torch.from_numpy(golden.arrays["query_embeddings"])[:, None]
        yield of_two_columns(build, golden, lambda network, queries=queries: queries, "probabilities")


def of_mavl(folder: Path) -> Iterator[Case]:
    build = partial(MAVL, **write_checkpoint("mavl", folder, full=True))
    for golden in (case_of("mavl", "case0"), case_of("mavl", "case1")):
        queries = torch.from_numpy(golden.arrays["query_embeddings"])
        yield of_two_columns(build, golden, lambda network, queries=queries: queries, "probabilities_feature")


def of_kad(folder: Path) -> Iterator[Case]:
    arguments = write_checkpoint("kad", folder, full=True)
    for golden in (case_of("kad", "square224"), case_of("kad", "square512")):
        build = partial(KAD, **arguments, image_size=golden.about["images"]["size"])
        yield of_two_columns(build, golden, partial(encode, tokens=golden.tokens), "probability")


def of_two_columns(
    build: Callable[..., VLM], golden: Golden, queries: Callable[[Any], Any], probabilities: str
) -> Case:
    """Return a case whose golden logits are those of absent and present."""
    logits = golden.arrays["logits"]
    expected = {
        "logits": logits[..., 1] - logits[..., 0],
        "probabilities": golden.arrays[probabilities],
        "maps": golden.arrays["maps"],
    }
    return Case(build, golden.images, queries, expected)


def encode(network: Any, tokens: tuple[Tensor, Tensor]) -> Any:
    return network.encode_tokens(*tokens)


def of_carzero(folder: Path) -> Iterator[Case]:
    build = partial(CARZero, **write_checkpoint("carzero", folder, full=True))
    for golden in (case_of("carzero", "a"), case_of("carzero", "b")):

        def queries(network: CARZero, tokens: tuple[Tensor, Tensor] = golden.tokens) -> Any:
            # The vocabulary that the golden vectors were made with.
            ids = torch.arange(network.text_encoder.model.config.vocab_size)
            network.text_encoder.word_pieces = WordPieces((ids >= 1000) & (ids % 4 == 0), separator=102)
            return network.encode_tokens(*tokens)

        logits, maps = golden.arrays["logits"], golden.arrays["attention_maps"]
        expected = {"logits": logits, "probabilities": 1 / (1 + np.exp(-logits)), "maps": maps}
        yield Case(build, golden.images, queries, expected)


def of_devide(folder: Path) -> Iterator[Case]:
    build = partial(DeViDe, **write_checkpoint("devide", folder, full=True))
    tokens = case_of("kad", "square224").tokens
    yield Case(build, images_of("devide", 2), partial(encode, tokens=tokens))


CASES: dict[str, Callable[[Path], Iterator[Case]]] = {
    "carzero": of_carzero,
    "clip": of_clip,
    "biomedclip": of_biomedclip,
    "medklip": of_medklip,
    "kad": of_kad,
    "mavl": of_mavl,
    "devide": of_devide,
}
NAMES = {
    "carzero": "CARZero",
    "clip": "CLIP (ViT-B/32)",
    "biomedclip": "BiomedCLIP",
    "medklip": "MedKLIP",
    "kad": "KAD (224 and 512 pixels)",
    "mavl": "MAVL",
    "devide": "DeViDe (against our own float32)",
}

if __name__ == "__main__":
    main()
