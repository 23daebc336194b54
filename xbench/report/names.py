"""How models and datasets are called in tables and figures: as their authors spell them."""

from __future__ import annotations

_MODELS = {
    "clip": "CLIP",
    "biomedclip": "BiomedCLIP",
    "medklip": "MedKLIP",
    "kad": "KAD",
    "mavl": "MAVL",
    "carzero": "CARZero",
    "devide": "DeViDe (re-implementation)",
    "demo": "Demo",
    "oracle": "Oracle",
    "centre": "Centre prior",
    "random": "Random",
    "answer_oracle": "Oracle in words",
    "outline_boxes": "Boxes around outlines",
    "whole_image": "Whole image as a box",
    "centre_box": "Centre box",
    "random_box": "Random box",
    "prior_box": "Prior box",
    "human": "Human benchmark",
}
SERVED = "endpoint/"
"""Prefix of the names of models behind a server."""
# The last is what people drew: `score --name human`.
CEILINGS = frozenset({"oracle", "answer_oracle", "outline_boxes", "human"})
FLOORS = frozenset({"centre", "random", "whole_image", "centre_box", "random_box", "prior_box"})
"""Models that show what a number is worth."""
_DATASETS = {
    "rsna": "RSNA Pneumonia",
    "siim": "SIIM-ACR Pneumothorax",
    "covid": "COVID-19 Rural",
    "chestxdet10": "ChestX-Det10",
    "chexdet": "ChestX-Det",
    "chexlocalize": "CheXlocalize",
    "chestxray14": "ChestX-ray14",
    "vindr": "VinDr-CXR",
    "phantom": "PhantomCXR",
}


def model_title(name: str) -> str:
    """Return a model's title by its name in a report; for others' and served models the name that they were given."""
    return _MODELS.get(name, name.removeprefix(SERVED))


def dataset_title(name: str) -> str:
    """Return a dataset's title by its name in results.json; the name itself for others' datasets."""
    return _DATASETS.get(name, name)
