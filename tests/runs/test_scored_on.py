"""What a run was scored on is digested, kept, and the same for whoever scored the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from xbench.cli import main
from xbench.commands.verify import disagreements
from xbench.geometry.coverage import region_digest
from xbench.runs.finished import FinishedRun
from xbench.runs.scores import ImageScores, scored_on

FINDINGS = ("Square", "Hole")


def rows_of(labels: np.ndarray, regions: np.ndarray, names: list[str]) -> ImageScores:
    """Rows with labels (N, C) and small regions (N, C, H, W), of which the empty ones are none."""
    drawn = regions.any(axis=(2, 3))
    digests = np.zeros(labels.shape, "S16")
    for place in np.argwhere(drawn).tolist():
        digests[tuple(place)] = region_digest(regions[tuple(place)])
    places = {field.name: np.full(labels.shape, np.nan) for field in fields(ImageScores)}
    known = {"labels": labels, "has_region": drawn, "region_digests": digests, "image_ids": names}
    return ImageScores(**(places | known | {"index": np.arange(len(labels)), "patient_ids": [None] * len(labels)}))


@given(arrays.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_a_region_is_digested_as_documented(region):
    text, bits = f"{region.shape[0]} {region.shape[1]}\n", "".join(str(int(pixel)) for pixel in region.ravel())
    packed = bytes(int(bits[k : k + 8].ljust(8, "0"), 2) for k in range(0, len(bits), 8))
    assert region_digest(region) == hashlib.sha256(text.encode() + packed).hexdigest()[:16]


@given(st.data(), st.permutations(range(4)))
def test_digests_are_equal_just_where_labels_and_regions_are(data, order):
    """By comparing what is digested itself."""
    kinds = [(np.int8, (4, 2), st.sampled_from([-1, 0, 1])), (np.bool_, (4, 2, 1, 2), st.booleans())]
    names = [f"image ä {place}" for place in range(4)]
    one, other = ([data.draw(arrays.arrays(kind, shape, elements=of)) for kind, shape, of in kinds] for _ in range(2))
    if data.draw(st.booleans()):
        other = [one[0].copy(), one[1].copy()]
        other[0][data.draw(st.integers(0, 3)), 0] = data.draw(st.sampled_from([-1, 0, 1]))
    digests = [scored_on(rows_of(*truth, names), FINDINGS) for truth in (one, other)]
    shuffled = rows_of(*(part[list(order)] for part in one), [names[place] for place in order])
    assert scored_on(shuffled, FINDINGS) == digests[0]
    for c, finding in enumerate(FINDINGS):
        labels = [truth[0][:, c].tolist() for truth in (one, other)]
        scored = [
            [
                tuple(region.ravel()) if label == 1 and region.any() else None
                for label, region in zip(*both, strict=True)
            ]
            for both in ((truth[0][:, c], truth[1][:, c]) for truth in (one, other))
        ]
        assert (digests[0][finding].labels == digests[1][finding].labels) == (labels[0] == labels[1])
        assert (digests[0][finding].regions == digests[1][finding].regions) == (scored[0] == scored[1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "toys.yaml").write_text(
        "model: {class_path: toys.Brightness}\n"
        "data: {class_path: toys.Squares, init_args: {num_workers: 0, batch_size: 4, images: 8}}\n"
        "trainer: {logger: false, accelerator: cpu, enable_progress_bar: false}\n"
    )
    words = ["test", "--config", str(folder / "toys.yaml"), "--trainer.default_root_dir", str(folder / "runs")]
    assert main(words) == 0
    (results,) = folder.glob("runs/*/*/results.json")
    return results.parent


def test_a_run_keeps_digests_that_verify_derives_again(finished):
    stored = json.loads((finished / "results.json").read_text())["scored_on"]
    table = pq.read_table(finished / "per_image.parquet").to_pylist()
    assert [*stored] == ["Square", "Hole", "Ghost"]
    for finding in stored:
        mine = sorted((row for row in table if row["finding"] == finding), key=lambda row: row["image_id"])
        labels = [[row["image_id"], row["label"]] for row in mine if row["label"] >= 0]
        scored = [[row["image_id"], row["region_digest"]] for row in mine if row["label"] == 1 and row["has_region"]]
        for name, values in (("labels", labels), ("regions", scored)):
            assert stored[finding][name] == hashlib.sha256(json.dumps(values).encode()).hexdigest()
    kept = FinishedRun.open(finished).region_digests
    assert kept.astype("U16").ravel().tolist() == [row["region_digest"] or "" for row in table]
    assert disagreements(finished) == []
    other = {"labels": "0" * 64, "regions": "0" * 64}
    path = finished / "results.json"
    text = path.read_text()
    try:
        for changed in (None, stored | {"Hole": other}):
            path.write_text(json.dumps(json.loads(text) | {"scored_on": changed}))
            assert disagreements(finished)[0].place.startswith("results.json / scored_on")
    finally:
        path.write_text(text)
