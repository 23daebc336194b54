"""Golden vectors: numbers of the authors' own code, for weights and inputs that are drawn from their names.

The files in `tests/models/golden` hold no image of a patient and no annotation, only what we computed ourselves. They
are thinned: `SLICES` says what is kept of an array by its name. `cases.json` says what the inputs were drawn from,
`NAME_manifest.json.gz` has names and shapes of the tensors in the authors' checkpoints.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from deterministic import images_of, tokens_of, weight
from places import ROOT
from torch import Tensor

GOLDEN = ROOT / "tests" / "models" / "golden"

SLICES: Mapping[str, Any] = {
    "img_embedding": np.s_[:, ::16],
    "projected_patches_every4": np.s_[:, ::4, ::3, ::2],
    "map_smoothed": np.s_[:, ::2],
    "attention_per_layer_query_text": np.s_[..., ::8],
    "attention_per_layer_query_image": np.s_[..., ::8],
    "image_global": np.s_[:, ::8],
    "image_local_every64": np.s_[:, ::3, ::2, ::2],
    "text_global": np.s_[:, ::8],
    "text_local_every64": np.s_[:, ::3],
    "word_vectors_every64": np.s_[:, ::3],
    "report_vector": np.s_[:, ::8],
    "image_tokens_first8": np.s_[..., ::16],
    "image_tokens_last4": np.s_[..., ::16],
    "image_pool": np.s_[:, ::16],
    "text_features": np.s_[:, ::8],
    "text": np.s_[:, ::8],
    "layer_maps": np.s_[..., ::4, ::3],
    "overlay_heat_float": np.s_[::4, ::4],
    "maps_per_layer": np.s_[..., ::4, ::3],
    "maps_all_aspects": np.s_[..., ::4, ::3],
    "global_features": np.s_[:, ::4],
    "image_features": np.s_[..., ::7, ::14],
    "encoder_tokens_every96": np.s_[:, ::15, ::96],
    "aligned_tokens_every96": np.s_[:, ::15, ::96],
    "text_mean": np.s_[:, ::8],
}


@dataclass(frozen=True)
class Case:
    """One set of inputs (`about` what they were drawn from) and the authors' results, `arrays` by name."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def images(self) -> Tensor:
        return images_of(**self.about["images"])

    @property
    def tokens(self) -> tuple[Tensor, Tensor]:
        return tokens_of(**self.about["tokens"])

    def off(self, name: str, ours: Tensor) -> float:
        found = ours.detach()[SLICES.get(name, ...)]
        expected = torch.from_numpy(self.arrays[name])
        assert found.shape == expected.shape
        return float((found - expected).abs().max())


def case_of(model: str, case: str) -> Case:
    with np.load(GOLDEN / f"{model}.npz") as arrays:
        kept = {name.partition("/")[2]: arrays[name] for name in arrays if name.startswith(f"{case}/")}
    return Case(facts(model).get(case, {}), kept)


@cache
def facts(name: str) -> Any:
    return json.loads((GOLDEN / "cases.json").read_text())[name]


@cache
def manifest(name: str) -> dict[str, dict[str, Any]]:
    return json.loads(gzip.decompress((GOLDEN / f"{name}_manifest.json.gz").read_bytes()))


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    return {parameter: tuple(entry["shape"]) for parameter, entry in manifest(name).items()}


def weights_of(name: str, sections: Collection[str] = ("",)) -> dict[str, Tensor]:
    """Draw the weights of a manifest, or of those of its parameters whose names begin with one of the sections."""
    drawn: dict[str, Tensor] = {}
    for parameter, entry in sorted(manifest(name).items(), key=lambda item: "alias_of" in item[1]):
        if not parameter.startswith(tuple(sections)):
            continue
        if parameter.endswith("position_ids"):
            drawn[parameter] = torch.arange(512)[None]
        elif "value" in entry:
            drawn[parameter] = torch.tensor(entry["value"])
        elif entry.get("unused"):
            # May be anything.
            drawn[parameter] = torch.full(entry["shape"], torch.nan)
        else:
            alias = entry.get("alias_of")
            drawn[parameter] = drawn[alias] if alias else weight(parameter, tuple(entry["shape"]))
    return drawn
