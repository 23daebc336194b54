"""What a run keeps of its images is enough to derive every number again."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from xbench.cli import main
from xbench.geometry.coverage import Coverage
from xbench.geometry.grid import saliency_on_grid
from xbench.metrics.functional import normalise
from xbench.runs import scores as rows
from xbench.runs.files import CURVES, PER_IMAGE
from xbench.runs.maps import SavedImage, ScoredPairs, jpeg, read_saved_images, write_saved_images
from xbench.runs.scores import (
    ImageScores,
    PairCounts,
    pair_counts_writer,
    read_pair_counts,
    read_per_image,
    write_per_image,
)

FINDINGS = ("Square", "Disc")


@settings(max_examples=30, deadline=None)
@given(
    arrays.arrays(np.float64, (3, 2), elements=st.floats(0, 1)),
    arrays.arrays(np.int8, (3, 2), elements=st.sampled_from([-1, 0, 1])),
    st.lists(st.none() | st.text(st.characters(codec="utf-8")), min_size=3, max_size=3),
)
def test_rows_come_back_as_they_were_written(tmp_path_factory, values, labels, names):
    path = tmp_path_factory.mktemp("rows") / PER_IMAGE
    ids = [f"{name}-{place}" for place, name in enumerate(names)]
    # Where a pair is not scored, its scores do not exist; the first two arrays are logits and probabilities.
    scores = [np.where((labels > 0) | (k < 2), values / (k + 1), np.nan) for k in range(14)]
    digests = np.where(labels > 0, b"0123456789abcdef", b"")
    rows = ImageScores(np.arange(3), ids, names, labels, labels > 0, *scores, digests)
    write_per_image(path, rows, FINDINGS)
    again = read_per_image(path, FINDINGS)
    for field in fields(ImageScores):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(rows, field.name), field.name)
        if field.name not in ("image_ids", "patient_ids"):
            assert getattr(again, field.name).dtype == getattr(rows, field.name).dtype


def test_rows_of_other_findings_are_refused(tmp_path):
    rows = ImageScores(np.arange(1), ["a"], [None], *[np.zeros((1, 2))] * 16, np.zeros((1, 2), "S16"))
    write_per_image(tmp_path / PER_IMAGE, rows, FINDINGS)
    with pytest.raises(ValueError, match="not one row for each of Disc, Square"):
        read_per_image(tmp_path / PER_IMAGE, FINDINGS[::-1])


@pytest.mark.parametrize(
    ("place", "column", "value", "words"),
    [
        (0, "image_id", "b", "row 1 has image_id 'a' among the rows of 'b'"),
        (3, "image_id", "a", "row 3 has image_id 'a' among the rows of 'b'"),
        (3, "patient_id", "q", "row 3 has patient_id 'q' among the rows of None"),
        (0, "label", 0, "pointing_hit of Square in 'a' is 0.5, which no run writes beside label 0 and has_region 1"),
        (0, "label", 7, "label of Square in 'a' is 7.0"),
        (1, "has_region", True, "region_area of Disc in 'a' is null"),
        (0, "has_region", False, "pointing_hit of Square in 'a' is 0.5, which no run writes beside label 1"),
        (0, "dice", None, "dice of Square in 'a' is null"),
        (1, "iou", 0.5, "iou of Disc in 'a' is 0.5"),
        (0, "peak_x", 1.5, "peak_x of Square in 'a' is 1.5"),
        (0, "peak_distance", 1.5, "peak_distance of Square in 'a' is 1.5"),
        (1, "peak_distance", 0.5, "peak_distance of Disc in 'a' is 0.5"),
        (0, "minimum_hit", None, "minimum_hit of Square in 'a' is null"),
        (2, "region_y", 0.5, "region_y of Square in 'b' is 0.5"),
        (0, "reader_iou", 0.5, "reader_dice of Square in 'a' is null|reader_iou of Square in 'a' is 0.5"),
        (3, "logit", float("inf"), "logit of Disc in 'b' is inf"),
        (0, "region_digest", None, "region_digest of row 0 is None"),
        (0, "region_digest", "0123", "region_digest of row 0 is '0123'"),
        (1, "region_digest", "0123456789abcdef", "region_digest of row 1 is '0123456789abcdef'"),
    ],
)
def test_rows_that_no_run_writes_are_refused(tmp_path, place, column, value, words):
    scored = np.array([[True, False], [False, False]])
    scores = [np.full((2, 2), 0.5)] * 2 + [np.where(scored, 0.5, np.nan)] * 10 + [np.full((2, 2), np.nan)] * 2
    digests = np.where(scored, b"0123456789abcdef", b"")
    images = ImageScores(np.arange(2), ["a", "b"], [None, None], scored.astype(np.int8), scored, *scores, digests)
    path = tmp_path / PER_IMAGE
    write_per_image(path, images, FINDINGS)
    assert read_per_image(path, FINDINGS).patient_ids == [None, None]
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[place] = value
    field = table.schema.field(column)
    pq.write_table(table.set_column(table.column_names.index(column), field, pa.array(values, field.type)), path)
    with pytest.raises(ValueError, match=words) as caught:
        read_per_image(path, FINDINGS)
    assert "\n" not in str(caught.value)


def test_rows_of_before_the_distances_are_read_and_say_what_they_lack(run):
    path, findings = run.folder / PER_IMAGE, run.results["findings"]
    rows = read_per_image(path, findings)
    rows.check_complete()
    pq.write_table(pq.read_table(path).drop_columns(["peak_distance", "minimum_hit"]), path)
    before = read_per_image(path, findings)
    assert np.isnan(before.peak_distance).all() and (before.pointing_hit == rows.pointing_hit)[rows.scored].all()
    with pytest.raises(ValueError, match="rescore RUN makes a run that has them"):
        before.check_complete()
    content = run.results
    del content["grounding"]["sign_test"]
    for scores in content["grounding"]["per_class"].values():
        del scores["pointing_game_of_minimum"], scores["sign_p"]
    (run.folder / "results.json").write_text(json.dumps(content))
    assert main(["rescore", str(run.folder), "--out", str(run.folder.parent / "now"), "--workers", "0"]) == 0
    again = read_per_image(run.folder.parent / "now" / PER_IMAGE, findings)
    np.testing.assert_array_equal(again.peak_distance, rows.peak_distance)
    np.testing.assert_array_equal(again.minimum_hit, rows.minimum_hit)


@pytest.mark.parametrize("at_a_time", [1, 3, 1024])
def test_counts_come_back_as_they_were_written(tmp_path, monkeypatch, at_a_time):
    monkeypatch.setattr(rows, "_PAIRS_AT_A_TIME", at_a_time)
    mask = np.arange(12, dtype=np.int32).reshape(4, 3)
    overlap = np.minimum(mask // 2, np.arange(1, 5)[:, None]).astype(np.int32)
    counts = PairCounts(
        *(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 0]), ["a", "a", "b", "c"]),
        *(np.full(4, 49), np.arange(1, 5), mask, overlap),
    )
    shuffled = [1, 3, 0, 2]
    parts = [
        PairCounts(
            *(counts.index[[k]], counts.column[[k]], [counts.image_ids[k]], counts.grid[[k]], counts.region[[k]]),
            *(mask[[k]], overlap[[k]]),
        )
        for k in shuffled
    ]
    with pair_counts_writer(tmp_path / CURVES, FINDINGS, 3) as add:
        add(PairCounts.concatenate(parts[::2]))
        add(PairCounts.concatenate(parts[1::2]))
    again = read_pair_counts(tmp_path / CURVES, FINDINGS, ["a", "b", "c"])
    for field in fields(PairCounts):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(counts, field.name), field.name)
    with pytest.raises(ValueError, match="'c', which is not in"):
        read_pair_counts(tmp_path / CURVES, FINDINGS, ["a", "b"])
    with pytest.raises(ValueError, match="several images of the run have one name"):
        read_pair_counts(tmp_path / CURVES, FINDINGS, ["a", "b", "c", "a"])


def test_a_case_comes_back_as_it_was_written(tmp_path):
    draw = np.random.default_rng(0)
    region = draw.random((20, 30)) < 0.5
    film = np.outer(np.arange(20), np.ones(30)).astype(np.uint8) * 10
    classes = len(FINDINGS)
    images = [
        SavedImage(
            *(index, f"image/{index} ä", f"{index:064x}", (0.1, 0, 1, 1)),
            saliency=draw.normal(size=(classes, 3, 5)).astype(np.float32),
            # Some have none, some one that is not scored.
            regions={c: Coverage.of(region, (20, 30)) for c in range(index % (classes + 1))},
            scored=tuple(range(index % (classes + 1) - index % 2)) if index % (classes + 1) else (),
            picture=jpeg(film) if index % 3 else None,
        )
        for index in range(70)
    ]
    images = [replace(image, picture=jpeg(film)) if image.scored else image for image in images]
    write_saved_images(tmp_path, FINDINGS, 0.5, {"model": "x"}, images)

    for one, other in zip(images, read_saved_images(tmp_path), strict=True):
        np.testing.assert_array_equal(one.saliency, other.saliency)
        assert replace(one, saliency=None) == replace(other, saliency=None)

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
        # JPEG keeps grey levels to within a few.
        assert np.abs(again.display.astype(int) - film).max() <= 6


@pytest.fixture
def run(command):
    return command(
        "test", "--config", "random_phantom", "--data.images", "12", "--data.size", "64", "--data.grid", "56"
    )


def test_every_number_of_a_run_follows_from_its_rows(run):
    """Plain arithmetic on the tables gives what the metrics gave."""
    results = json.loads((run.folder / "results.json").read_text())
    findings = results["findings"]
    rows = read_per_image(run.folder / PER_IMAGE, findings)
    counts = read_pair_counts(run.folder / CURVES, findings, rows.image_ids)
    assert (np.argwhere(rows.scored) == np.stack([counts.index, counts.column], 1)).all()
    for c, finding in enumerate(findings):
        scores, mine = results["grounding"]["per_class"][finding], counts.column == c
        if not mine.any():
            assert scores["count"] == 0
            continue
        hits = rows.pointing_hit[rows.scored[:, c], c]
        # Sums of the metrics are multiples of 2**-40.
        assert scores["pointing_game"] == pytest.approx(hits.mean(), abs=1e-12)
        np.testing.assert_allclose(scores["dice_curve"], counts.dice()[mine].mean(0), atol=1e-12)
        np.testing.assert_allclose(scores["iou_curve"], counts.iou()[mine].mean(0), atol=1e-12)
        np.testing.assert_array_equal(rows.dice[rows.scored[:, c], c], counts.dice()[mine, 50])
        np.testing.assert_array_equal(rows.region_area[rows.scored[:, c], c], (counts.region / counts.grid)[mine])


def test_cases_of_a_run_give_its_scores_again(run):
    results = json.loads((run.folder / "results.json").read_text())
    findings = results["findings"]
    rows = read_per_image(run.folder / PER_IMAGE, findings)
    counts = read_pair_counts(run.folder / CURVES, findings, rows.image_ids)
    cases = ScoredPairs(run.folder)
    pairs = [(rows.image_ids[i], findings[c]) for i, c in zip(counts.index, counts.column, strict=True)]
    assert list(cases) == pairs and len(pairs) > 8
    for place, pair in enumerate(pairs):
        case = cases.read(*pair)
        on_grid = saliency_on_grid(torch.from_numpy(case.saliency)[None], [case.view], (56, 56))
        mask = normalise(on_grid)[0].numpy() >= 0.5
        assert mask.sum() == counts.mask[place, 50]
        assert (mask & case.region).sum() == counts.overlap[place, 50]
        image, column = counts.index[place], counts.column[place]
        for axis, peak, centre in ((0, rows.peak_y, rows.region_y), (1, rows.peak_x, rows.region_x)):
            tied = (on_grid[0] == on_grid.max()).numpy().nonzero()[axis]
            assert peak[image, column] == pytest.approx((tied + 0.5).mean() / 56, abs=1e-12)
            assert centre[image, column] == pytest.approx((case.region.nonzero()[axis] + 0.5).mean() / 56, abs=1e-12)
        assert case.display.shape == (56, 56) and cv2.meanStdDev(case.display)[1] > 10
