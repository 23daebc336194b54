from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from run_files import rows_of
from synthetic import saved_tables

from xbench.findings.queries import Query
from xbench.geometry.regions import Coverage, region_digest
from xbench.geometry.shapes import Shape
from xbench.runs.files import PAIRS, PICTURES, TRUTH, RunFileError
from xbench.runs.finished import FinishedRun
from xbench.runs.images import SavedImage, ScoredPairs, jpeg, read_saved_images
from xbench.runs.tables import read_rows, write_tables
from xbench.runtime.errors import UserError
from xbench.scoring.numbers import box_sums, pointing_sums, scored_on, sweep_sums
from xbench.scoring.rows import SCHEMA, Rows, fixed_only

FINDINGS = ("Square", "Disc")


@pytest.mark.parametrize("rows_at_a_time", [1, 5, 1000])
def test_tables_do_not_depend_on_batches(phantom_run, tmp_path, rows_at_a_time):
    table = pq.read_table(phantom_run / PAIRS).replace_schema_metadata(None)
    parts = [{PAIRS: table.slice(k, rows_at_a_time)} for k in range(0, len(table), rows_at_a_time)]
    digests = write_tables(tmp_path, parts, [PAIRS], {})
    assert pq.read_table(tmp_path / PAIRS).equals(table)
    assert digests == {PAIRS: hashlib.sha256((tmp_path / PAIRS).read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("label", 7),
        ("label", 0),
        ("has_region", False),
        ("pointing_hit", None),
        ("pointing_hit", 1.5),
        ("dice", -0.5),
        ("peak_x", 1.5),
        ("peak_distance", 1.5),
        ("region_area", None),
        ("logit", float("inf")),
        ("probability", 2.0),
        ("finding", "Ghost"),
        ("image_id", "other"),
        ("patient_id", "other"),
        ("mask_pixels", [10**6] * 101),
        ("overlap_pixels", [3]),
        ("mask_pixels", []),
        ("mask_pixels", [*range(101)]),
        ("dice", 0.123),
        ("iou", None),
        ("region_area", 0.123),
        ("answer_status", "x" * 99),
        ("answer_status", "perhaps"),
        ("boxes", 1),
        ("suspect_frame", False),
        ("region_pixels", 0),
        ("query", None),
    ],
)
def test_rows_that_no_run_writes_are_refused(phantom_run, tmp_path, column, value):
    table = pq.read_table(phantom_run / PAIRS)
    values, row = table[column].to_pylist(), table["scored"].to_pylist().index(True)
    values[row] = value
    changed = table.set_column(
        table.column_names.index(column), SCHEMA.field(column), pa.array(values, SCHEMA.field(column).type)
    )
    pq.write_table(changed, tmp_path / PAIRS)
    with pytest.raises(ValueError) as caught:
        read_rows(tmp_path / PAIRS, FinishedRun.open(phantom_run).results.findings)
    assert "\n" not in str(caught.value)


def test_a_pair_that_is_there_twice_is_refused(phantom_run):
    table = pq.read_table(phantom_run / PAIRS)
    with pytest.raises(ValueError, match="repeated"):
        Rows.of(pa.concat_tables([table, table.slice(3, 1)]), FinishedRun.open(phantom_run).results.findings)


def test_rows_of_another_condition_are_left_out(phantom_run):
    table, findings = pq.read_table(phantom_run / PAIRS), FinishedRun.open(phantom_run).results.findings
    hidden = table.set_column(table.column_names.index("condition"), "condition", pa.array(["hidden"] * len(table)))
    both = pa.concat_tables([table, hidden])
    for condition in ("", "hidden"):
        rows = Rows.of(both, findings, condition)
        assert len(rows) == len(table)
        np.testing.assert_array_equal(rows["dice"], Rows.of(table, findings)["dice"])


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(12)), st.integers(1, 11), st.data())
def test_sums_add_up_in_any_order_and_any_parts(order, cut, data):
    """To the bit, and as fractions without rounding but that of each score."""
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    labels = draw.integers(0, 2, (12, 2)).astype(np.int8)
    rows = rows_of(labels, FINDINGS, pointing_hit=np.where(labels == 1, draw.random((12, 2)), np.nan))
    parts = [
        rows_of(labels[list(some)], FINDINGS, pointing_hit=rows.matrix("pointing_hit")[list(some)])
        for some in (order[:cut], order[cut:])
    ]
    for sums_of in (pointing_sums, sweep_sums, box_sums):
        whole = sums_of(rows, rows.finding, 2)
        added = [sums_of(part, part.finding, 2) for part in parts]
        for name, total in whole.items():
            np.testing.assert_array_equal(total, sum(part[name] for part in added))
    hits = [hit for hit in rows.matrix("pointing_hit")[:, 0] if not np.isnan(hit)]
    expected = sum(round(Fraction(hit) * 2**40) for hit in hits)
    assert int(pointing_sums(rows, rows.finding, 2)["hit_sum"][0]) == expected


def test_the_middle_threshold_is_kept(phantom_run):
    table, findings = pq.read_table(phantom_run / PAIRS), FinishedRun.open(phantom_run).results.findings
    rows, fixed = Rows.of(table, findings), Rows.of(fixed_only(table), findings)
    np.testing.assert_array_equal(fixed.counts.mask[:, 0], rows.counts.mask[:, 50])
    np.testing.assert_array_equal(fixed.counts.overlap[:, 0], rows.counts.overlap[:, 50])


def test_a_case_comes_back_as_it_was_written(tmp_path):
    draw = np.random.default_rng(0)
    region = draw.random((20, 30)) < 0.5
    film = np.outer(np.arange(20), np.ones(30)).astype(np.uint8) * 10
    classes, queries = len(FINDINGS), [Query(finding, finding) for finding in FINDINGS]
    box = Shape("box", (20, 30), np.array([-1.0, 2, 40, 5]), "R1")
    outline = Shape("polygon", (20, 30), np.array([0.5, 1, 7, 8, 2, 9.25]), outline=False)
    images = [
        SavedImage(
            *(
                index,
                f"image/{index} ä",
                f"patient {index // 2}" if index % 4 else None,
                f"{index:064x}",
                (0.1, 0, 1, 1),
            ),
            queries=queries,
            saliency=draw.normal(size=(classes, 3, 5)).astype(np.float32),
            regions={c: Coverage.of(region, (20, 30)) for c in range(index % (classes + 1))},
            scored=tuple(range(index % (classes + 1) - index % 2)) if index % (classes + 1) else (),
            picture=jpeg(film) if index % 3 else None,
            image_size=(2000 + index, 30) if index % 5 else None,
            instances={c: (box, outline)[: 1 + index % 2] for c in range(1, index % (classes + 1))},
        )
        for index in range(70)
    ]
    images = [replace(image, picture=jpeg(film)) if image.scored else image for image in images]
    scores = {name: draw.random((70, classes)) for name in ("logit", "probability")}
    tables = [
        saved_tables(images[k : k + 9], {name: part[k : k + 9].ravel() for name, part in scores.items()})
        for k in range(0, 70, 9)
    ]
    write_tables(tmp_path, tables, [*tables[0]], {TRUTH: {"gamma": 0.5}})

    for one, other in zip(
        images, read_saved_images(tmp_path, {image.image_id: queries for image in images}), strict=True
    ):
        np.testing.assert_array_equal(one.saliency, other.saliency)
        assert replace(one, saliency=None) == replace(other, saliency=None)

    items = {(image.image_id, FINDINGS[c]): of_pair for image in images for c, of_pair in image.instances.items()}
    run = FinishedRun(tmp_path, None)
    assert run.instances == items
    assert run.image_sizes == {image.image_id: image.image_size for image in images}

    stored = ScoredPairs(tmp_path)
    assert list(stored) == [(image.image_id, FINDINGS[c]) for image in images for c in image.scored]
    for image in [image for image in images if image.scored][::20]:
        finding = FINDINGS[image.scored[-1]]
        again = stored.read(image.image_id, finding)
        assert (again.index, again.image_id, again.finding, again.view) == (
            *(image.index, image.image_id, finding, image.view),
        )
        np.testing.assert_array_equal(again.saliency, image.saliency[image.scored[-1]])
        np.testing.assert_array_equal(again.region, region)
        # JPEG keeps gray levels to within a few.
        assert np.abs(again.display.astype(int) - film).max() <= 6


@given(arrays.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_a_region_is_digested_as_documented(region):
    text, bits = f"{region.shape[0]} {region.shape[1]}\n", "".join(str(int(pixel)) for pixel in region.ravel())
    packed = bytes(int(bits[k : k + 8].ljust(8, "0"), 2) for k in range(0, len(bits), 8))
    assert region_digest(region) == hashlib.sha256(text.encode() + packed).hexdigest()[:16]


@given(st.data(), st.permutations(range(4)))
def test_digests_are_equal_just_where_labels_and_regions_are(data, order):
    def digests_of(labels, regions, names):
        drawn = regions.any(2)
        digests = np.zeros(labels.shape, "U16")
        for place in np.argwhere(drawn).tolist():
            digests[tuple(place)] = region_digest(regions[tuple(place)][None])
        return scored_on(rows_of(labels, FINDINGS, has_region=drawn, region_digest=digests, image_ids=names))

    kinds = [(np.int8, (4, 2), st.sampled_from([-1, 0, 1])), (np.bool_, (4, 2, 2), st.booleans())]
    names = [f"image ä {place}" for place in range(4)]
    one, other = ([data.draw(arrays.arrays(kind, shape, elements=of)) for kind, shape, of in kinds] for _ in range(2))
    if data.draw(st.booleans()):
        other = [one[0].copy(), one[1].copy()]
        other[0][data.draw(st.integers(0, 3)), 0] = data.draw(st.sampled_from([-1, 0, 1]))
    digests = [digests_of(*truth, names) for truth in (one, other)]
    assert digests_of(*(part[list(order)] for part in one), [names[place] for place in order]) == digests[0]
    for c, finding in enumerate(FINDINGS):
        labels = [truth[0][:, c].tolist() for truth in (one, other)]
        scored = [
            [tuple(region) if label == 1 and region.any() else None for label, region in zip(*truth, strict=True)]
            for truth in ((labels[:, c], regions[:, c]) for labels, regions in (one, other))
        ]
        assert (digests[0][finding]["labels"] == digests[1][finding]["labels"]) == (labels[0] == labels[1])
        assert (digests[0][finding]["regions"] == digests[1][finding]["regions"]) == (scored[0] == scored[1])


def test_a_run_says_what_it_was_scored_on(phantom_run):
    stored = json.loads((phantom_run / "results.json").read_text())["scored_on"]
    table = pq.read_table(phantom_run / PAIRS).to_pylist()
    for finding in stored:
        own = sorted((row for row in table if row["finding"] == finding), key=lambda row: row["image_id"])
        labels = [[row["image_id"], row["label"]] for row in own if row["label"] >= 0]
        scored = [[row["image_id"], row["region_digest"]] for row in own if row["label"] == 1 and row["has_region"]]
        for name, values in (("labels", labels), ("regions", scored)):
            assert stored[finding][name] == hashlib.sha256(json.dumps(values).encode()).hexdigest()


def test_a_picture_of_no_bytes_is_refused(phantom_run, tmp_path):
    run = shutil.copytree(phantom_run, tmp_path / "run")
    table = pq.read_table(run / PICTURES)
    pq.write_table(table.set_column(1, "jpeg", pa.array([b""] * len(table))), run / PICTURES)
    pairs = ScoredPairs(run)
    with pytest.raises(UserError, match="cannot be decoded"):
        pairs.read(*next(iter(pairs)))


def test_what_cannot_be_read_is_named_by_other_processes_too():
    error = pickle.loads(pickle.dumps(RunFileError("a text", 2, "a reason", Path("run"))))
    assert (str(error), error.exit_status, error.reason, error.folder) == ("a text", 2, "a reason", Path("run"))
