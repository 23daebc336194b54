"""How far `--trainer.precision bf16-mixed`, `--model.compile true` and `--model.channels_last true` move the numbers.

Every model is built at its released size with the weights of its golden vectors and gets their images and queries; its
logits, probabilities and maps are compared with those that the authors' code gave in float32: largest absolute
difference over all golden cases. Of DeViDe there is no authors' code, so its numbers are compared with our own in
float32. Prompts are encoded in float32 in every column, as in a run. Each model is measured in a process of its own, on
the CPU.

    python benchmarks/precision.py VECTORS              all of them
    python benchmarks/precision.py VECTORS carzero kad  these

VECTORS is the folder that holds `carzero/golden.npz`, `kad/golden.npz` and so on. Compiling takes minutes for each.
"""

from __future__ import annotations

import json
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
from deterministic import images_of, weight
from deterministic_checkpoints import MODELS, write_checkpoint

from xbench.models import CLIP, KAD, MAVL, VLM, BiomedCLIP, CARZero, DeViDe, MedKLIP
from xbench.models.carzero import WordPieces
from xbench.types import ModelOutput

WAYS: dict[str, dict[str, bool]] = {
    "float32": {},
    "bf16-mixed": {},
    "compile": {"compile": True},
    "channels_last": {"channels_last": True},
}
VECTORS = ("carzero", "kad", "mavl", "medklip", "openclip")
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
    if len(sys.argv) < 2:
        print(__doc__)
        return
    vectors, chosen = Path(sys.argv[1]), sys.argv[2:] or MODELS
    if missing := [name for name in VECTORS if not (vectors / name / "golden.npz").is_file()]:
        sys.exit(f"{vectors} lacks the golden vectors of {', '.join(missing)}.")
    print(f"Largest difference from the authors' numbers; {processor()}, torch {torch.__version__}.\n")
    print(f"| model | output | range | {' | '.join(WAYS)} |")
    print("| --- " * (3 + len(WAYS)) + "|")
    for model in chosen:
        for number, (output, values) in enumerate(alone(measure, model, vectors).items()):
            cells = " | ".join(f"{value:.2g}" for value in values)
            print(f"| {'' if number else NAMES[model]} | {output} | {cells} |", flush=True)


def measure(model: str, vectors: Path) -> dict[str, list[float]]:
    """Return by output the range of its numbers and by how much each way is off. Runs in a process of its own.

    The range is that of the logits or probabilities of an image, or of a map: the median of all there are.
    """
    torch.set_num_threads(1)
    ranges: dict[str, list[float]] = {output: [] for output in OUTPUTS}
    largest = {output: dict.fromkeys(WAYS, 0.0) for output in OUTPUTS}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES[model](vectors, Path(folder)):
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


def of_clip(vectors: Path, folder: Path) -> Iterator[Case]:
    file = folder / "clip.safetensors"
    shapes = open_clip.create_model("ViT-B-32").state_dict()
    save_file({name: weight(name, tuple(tensor.shape)) for name, tensor in shapes.items()}, file)
    yield of_open_clip(vectors, "a", partial(CLIP, "ViT-B-32", checkpoint=str(file)))
    yield of_open_clip(vectors, "q", partial(CLIP, "ViT-B-32-quickgelu", checkpoint=str(file)))


def of_biomedclip(vectors: Path, folder: Path) -> Iterator[Case]:
    arguments = checkpoint_of("biomedclip", folder)
    yield of_open_clip(vectors, "b", partial(BiomedCLIP, **arguments))


def of_open_clip(vectors: Path, case: str, build: Callable[..., VLM]) -> Case:
    about, golden = read(vectors / "openclip" / "golden", case)
    text = torch.nn.functional.normalize(torch.from_numpy(golden["text_features"]), dim=-1)
    expected = {output: golden[output] for output in OUTPUTS}
    return Case(build, images_of(about["seed"], about["images"]), lambda network: text, expected)


def of_medklip(vectors: Path, folder: Path) -> Iterator[Case]:
    arguments = checkpoint_of("medklip", folder)
    for case in ("case0", "case1"):
        about, golden = read(vectors / "medklip" / "golden", case)
        queries = torch.from_numpy(golden["query_embeddings"])[:, None]
        yield of_two_columns(partial(MedKLIP, **arguments), about["inputs"]["image"], queries, golden, "probabilities")


def of_mavl(vectors: Path, folder: Path) -> Iterator[Case]:
    arguments = checkpoint_of("mavl", folder)
    for case in ("case0", "case1"):
        about, golden = read(vectors / "mavl" / "golden", case)
        queries = torch.from_numpy(golden["query_embeddings"])
        yield of_two_columns(
            partial(MAVL, **arguments),
            about["inputs"]["image"],
            queries,
            golden,
            "probabilities_feature",
        )


def of_kad(vectors: Path, folder: Path) -> Iterator[Case]:
    arguments = checkpoint_of("kad", folder)
    for case in ("square224", "square512"):
        about, golden = read(vectors / "kad" / "golden", case)
        queries = torch.from_numpy(golden["text_features"])
        build = partial(KAD, **arguments, image_size=about["image"]["height"])
        yield of_two_columns(build, about["image"], queries, golden, "probability")


def of_two_columns(
    build: Callable[..., VLM], image: dict[str, Any], queries: Tensor, golden: dict[str, np.ndarray], probabilities: str
) -> Case:
    """Return a case whose golden logits are those of absent and present."""
    expected = {
        "logits": golden["logits"][..., 1] - golden["logits"][..., 0],
        "probabilities": golden[probabilities],
        "maps": golden["maps"],
    }
    images = images_of(image["seed"], image["batch"], image["height"])
    return Case(build, images, lambda network: queries, expected)


def of_carzero(vectors: Path, folder: Path) -> Iterator[Case]:
    arguments = checkpoint_of("carzero", folder)
    for case in ("a", "b"):
        about, golden = read(vectors / "carzero" / "golden", case)
        tokens = [torch.from_numpy(golden[name]) for name in ("input_ids", "attention_mask")]

        def queries(network: CARZero, tokens: list[Tensor] = tokens) -> Any:
            # The vocabulary that the golden vectors were made with.
            ids = torch.arange(network.text_encoder.model.config.vocab_size)
            network.word_pieces = WordPieces((ids >= 1000) & (ids % 4 == 0), separator=102)
            return network.encode_tokens(*tokens)

        logits, maps = golden["logits"], golden["attention_maps"]
        expected = {"logits": logits, "probabilities": 1 / (1 + np.exp(-logits)), "maps": maps}
        yield Case(partial(CARZero, **arguments), images_of(about["image_seed"], about["images"]), queries, expected)


def of_devide(vectors: Path, folder: Path) -> Iterator[Case]:
    # Its text encoder is KAD's, and so are its queries.
    golden = read(vectors / "kad" / "golden", "square224")[1]
    queries = torch.from_numpy(golden["text_features"])
    arguments = checkpoint_of("devide", folder)
    yield Case(partial(DeViDe, **arguments), images_of("devide", 2), lambda network: queries)


def checkpoint_of(model: str, folder: Path) -> dict[str, Any]:
    """Write a checkpoint and return the arguments that name it."""
    return {**write_checkpoint(model, folder, full=True)}


def read(file: Path, case: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what a case of golden vectors was made from, and its arrays by name."""
    cases = json.loads(file.with_suffix(".json").read_text())["cases"]
    about = cases[case] if isinstance(cases, dict) else next(one for one in cases if one["name"] == case)
    arrays = np.load(file.with_suffix(".npz"))
    return about, {name.partition("/")[2]: arrays[name] for name in arrays if name.startswith(f"{case}/")}


CASES: dict[str, Callable[[Path, Path], Iterator[Case]]] = {
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
