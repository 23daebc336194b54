"""Each of the models, from a file in the layout of its authors to results on a dataset as it is downloaded."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from deterministic_checkpoints import MODELS, write_checkpoint
from downloads import Downloads
from run_files import QUIET
from small_networks import shrink

from xbench.findings.names import FINDINGS
from xbench.runs.files import IMAGES, PAIRS, PICTURES, PREDICTIONS, TRUTH

CROSS_ATTENTION = {"kind": "cross-attention", "layers": [0, 1, 2, 3], "heads": [0, 1, 2, 3]}
SALIENCY = {
    "carzero": CROSS_ATTENTION,
    "clip": "patch",
    "biomedclip": "patch",
    "medklip": CROSS_ATTENTION,
    "kad": CROSS_ATTENTION | {"layers": [3]},
    "mavl": CROSS_ATTENTION | {"aspects": [0, 6, 7, 8], "merge": "avg"},
    "devide": CROSS_ATTENTION,
    "radzero": "similarity",
    "hf": "legrad",
    "gloria": {"kind": "attention_mean"},
    "afloc": "dot",
    "chexzero": "patch",
    "biovil": "cosine",
    "biovilt": "cosine",
    "cxrclip": "dot",
}
SIZES = {"biovil": 480, "biovilt": 448}
CONVERTED = [name for name in MODELS if name not in ("clip", "mavl")]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose hundreds of megabytes go with the test."""
    with TemporaryDirectory() as name:
        yield Path(name)
    gc.collect()


def options_of(arguments: dict[str, str]) -> list[str]:
    return [word for name, value in arguments.items() for word in (f"--model.{name}", value)]


@pytest.mark.parametrize("model", MODELS)
def test_from_the_official_file_to_results(command, downloads: Downloads, folder: Path, monkeypatch, model: str):
    shrink(monkeypatch)
    arguments = write_checkpoint(model, folder)
    data = ("--data.root", downloads("vindr").root, "--data.limit", "3", "--data.num_workers", "0")
    words = ("--config", f"{model}_vindr", *data, *QUIET)
    run = command("test", *words, *options_of(arguments), status=0)
    results = run.results
    assert (results["model"], results["dataset"], results["counts"]["images"]) == (model, "vindr", 3)
    assert results["counts"]["constant_maps"]["count"] == 0
    # An image looks different from another, and a finding from another; whatever is scored is finite.
    assert len(run.rows) == 3 * 21
    assert len({row["logit"] for row in run.rows}) > 60
    assert any(row["dice"] is not None for row in run.rows)
    assert results["grounding"]["macro"]["pointing_game"] is not None

    provenance = results["provenance"]
    given = Path(arguments["checkpoint"])
    checkpoint = given / "open_clip_pytorch_model.bin" if given.is_dir() else given
    with checkpoint.open("rb") as file:
        assert provenance["checkpoint_sha256"] == hashlib.file_digest(file, "sha256").hexdigest()
    assert provenance["model"]["saliency"] == SALIENCY[model]
    assert provenance["model"]["image_size"] == SIZES.get(model, 224)
    assert (provenance["data"]["batch_size"], provenance["data"]["grid"]) == (8, [224, 224])
    assert list(provenance["prompts"]) == list(FINDINGS["vindr"])

    # What `predict` writes gives `score` the same run without the model: crops, padding and enlarging included.
    predicted = command("predict", *words, *options_of(arguments), "--overlays", "false", status=0)
    outside = ("--predictions", predicted.folder, "--name", model, "--extra", "ignore")
    scored = command("score", "--config", "vindr", *data, *outside, *QUIET, status=0)
    for name in (PAIRS, IMAGES, TRUTH, PICTURES):
        assert (scored.folder / name).read_bytes() == (run.folder / name).read_bytes(), name
    assert {**scored.results, "provenance": None, "tables": None} == {**results, "provenance": None, "tables": None}
    # Only what its file says of where it comes from differs.
    assert pq.read_table(scored.folder / PREDICTIONS).equals(pq.read_table(run.folder / PREDICTIONS))

    if model in CONVERTED:
        # In a folder, that is the name by which open_clip finds it.
        clean = folder / "open_clip_model.safetensors"
        assert command("convert", model, given, clean).status == 0
        checkpoint.unlink()
        if not given.is_dir():
            arguments["checkpoint"] = str(clean)
        again = command("test", *words, *options_of(arguments), status=0)
        assert again.folder != run.folder
        tables = [pq.read_table(one.folder / PAIRS) for one in (run, again)]
        assert tables[0].equals(tables[1])
        assert again.results["provenance"]["checkpoint_sha256"] != provenance["checkpoint_sha256"]
