"""What a run keeps of its images is enough to derive every number again, and to tell what it was scored on."""

from __future__ import annotations

import hashlib
import json
import shutil
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
from run_files import change, image_scores

from xbench.cli import main
from xbench.commands.verify import disagreements
from xbench.geometry.coverage import Coverage, region_digest
from xbench.geometry.grid import saliency_on_grid
from xbench.geometry.shapes import Shape
from xbench.runs import scores as rows
from xbench.runs.files import CURVES, PER_IMAGE
from xbench.runs.finished import FinishedRun
from xbench.runs.maps import (
    SavedImage,
    ScoredPairs,
    jpeg,
    read_saved_images,
    saved_instances,
    saved_sizes,
    write_saved_images,
)
from xbench.runs.scores import (
    ImageScores,
    PairCounts,
    pair_counts_writer,
    read_pair_counts,
    read_per_image,
    scored_on,
    write_per_image,
)
from xbench.scoring.functional import normalise

FINDINGS = ("Square", "Disc")
FLOATS = [field.name for field in fields(ImageScores) if "float64" in str(field.type)]


@settings(max_examples=30, deadline=None)
@given(
    arrays.arrays(np.float64, (3, 2), elements=st.floats(0, 1)),
    arrays.arrays(np.int8, (3, 2), elements=st.sampled_from([-1, 0, 1])),
    st.lists(st.none() | st.text(st.characters(codec="utf-8")), min_size=3, max_size=3),
)
def test_rows_come_back_as_they_were_written(tmp_path_factory, values, labels, names):
    path = tmp_path_factory.mktemp("rows") / PER_IMAGE
    ids = [f"{name}-{place}" for place, name in enumerate(names)]
    # Where a pair is not scored, its scores do not exist; the first two are logits and probabilities.
    scores = {name: np.where((labels > 0) | (k < 2), values / (k + 1), np.nan) for k, name in enumerate(FLOATS)}
    rows = image_scores(labels, image_ids=ids, patient_ids=names, **scores)
    write_per_image(path, rows, FINDINGS)
    again = read_per_image(path, FINDINGS)
    for field in fields(ImageScores):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(rows, field.name), field.name)
        if field.name not in ("image_ids", "patient_ids"):
            assert getattr(again, field.name).dtype == getattr(rows, field.name).dtype


def test_rows_of_other_findings_are_refused(tmp_path):
    write_per_image(tmp_path / PER_IMAGE, image_scores(np.zeros((1, 2), np.int8)), FINDINGS)
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
    columns = dict.fromkeys(FLOATS[2:-2], np.array([[0.5, np.nan], [np.nan, np.nan]]))
    images = image_scores(np.array([[1, 0], [0, 0]], np.int8), image_ids=["a", "b"], **columns)
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


def test_rows_of_before_the_distances_are_read_and_say_what_they_lack(phantom_run, tmp_path):
    run = shutil.copytree(phantom_run, tmp_path / "run")
    path, findings = run / PER_IMAGE, json.loads((run / "results.json").read_text())["findings"]
    rows = read_per_image(path, findings)
    rows.check_complete()
    pq.write_table(pq.read_table(path).drop_columns(["peak_distance", "minimum_hit"]), path)
    before = read_per_image(path, findings)
    assert np.isnan(before.peak_distance).all() and (before.pointing_hit == rows.pointing_hit)[rows.scored].all()
    with pytest.raises(ValueError, match="rescore RUN makes a run that has them"):
        before.check_complete()
    content = json.loads((run / "results.json").read_text())
    del content["grounding"]["sign_test"]
    for scores in content["grounding"]["per_class"].values():
        del scores["pointing_game_of_minimum"], scores["sign_p"]
    (run / "results.json").write_text(json.dumps(content))
    assert main(["rescore", str(run), "--out", str(tmp_path / "now"), "--workers", "0"]) == 0
    again = read_per_image(tmp_path / "now" / PER_IMAGE, findings)
    np.testing.assert_array_equal(again.peak_distance, rows.peak_distance)
    np.testing.assert_array_equal(again.minimum_hit, rows.minimum_hit)


@pytest.mark.parametrize("at_a_time", [1, 3, 1024])
def test_counts_come_back_as_they_were_written(tmp_path, monkeypatch, at_a_time):
    monkeypatch.setattr(rows, "_PAIRS_AT_A_TIME", at_a_time)
    mask = np.arange(12, dtype=np.int32).reshape(4, 3)
    overlap = np.minimum(mask // 2, np.arange(1, 5)[:, None]).astype(np.int32)
    index, column, ids = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 0]), ["a", "a", "b", "c"]
    counts = PairCounts(index, column, ids, np.full(4, 49), np.arange(1, 5), mask, overlap)

    def pair(k):
        sizes = counts.grid[[k]], counts.region[[k]], mask[[k]], overlap[[k]]
        return PairCounts(index[[k]], column[[k]], [ids[k]], *sizes)

    with pair_counts_writer(tmp_path / CURVES, FINDINGS, 3) as add:
        add(PairCounts.concatenate([pair(1), pair(0)]))
        add(PairCounts.concatenate([pair(3), pair(2)]))
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
    box = Shape("box", (20, 30), np.array([-1.0, 2, 40, 5]), "R1")
    outline = Shape("polygon", (20, 30), np.array([0.5, 1, 7, 8, 2, 9.25]), outline=False)
    images = [
        SavedImage(
            *(index, f"image/{index} ä", f"{index:064x}", (0.1, 0, 1, 1)),
            saliency=draw.normal(size=(classes, 3, 5)).astype(np.float32),
            # Some have none, some one that is not scored.
            regions={c: Coverage.of(region, (20, 30)) for c in range(index % (classes + 1))},
            scored=tuple(range(index % (classes + 1) - index % 2)) if index % (classes + 1) else (),
            picture=jpeg(film) if index % 3 else None,
            image_size=(2000 + index, 30) if index % 5 else None,
            # Of one finding nothing but its region is known.
            instances={c: (box, outline)[: 1 + index % 2] for c in range(1, index % (classes + 1))},
        )
        for index in range(70)
    ]
    images = [replace(image, picture=jpeg(film)) if image.scored else image for image in images]
    write_saved_images(tmp_path, FINDINGS, 0.5, {"model": "x"}, images)

    for one, other in zip(images, read_saved_images(tmp_path), strict=True):
        np.testing.assert_array_equal(one.saliency, other.saliency)
        assert replace(one, saliency=None) == replace(other, saliency=None)

    items = {(image.image_id, FINDINGS[c]): of_pair for image in images for c, of_pair in image.instances.items()}
    assert dict(saved_instances(tmp_path, FINDINGS)) == items
    assert dict(saved_sizes(tmp_path)) == {image.image_id: image.image_size for image in images}

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


def test_every_number_of_a_run_follows_from_its_rows(phantom_run):
    """Plain arithmetic on the tables gives what the metrics gave."""
    run = FinishedRun.open(phantom_run)
    rows, counts = run.image_scores, run.pair_counts
    assert (np.argwhere(rows.scored) == np.stack([counts.index, counts.column], 1)).all()
    for c, finding in enumerate(run.results.findings):
        scores, mine = run.results.grounding.per_class[finding], counts.column == c
        if not mine.any():
            assert scores.count == 0
            continue
        hits = rows.pointing_hit[rows.scored[:, c], c]
        # Sums of the metrics are multiples of 2**-40.
        assert scores.pointing_game == pytest.approx(hits.mean(), abs=1e-12)
        np.testing.assert_allclose(scores.dice_curve, counts.dice()[mine].mean(0), atol=1e-12)
        np.testing.assert_allclose(scores.iou_curve, counts.iou()[mine].mean(0), atol=1e-12)
        np.testing.assert_array_equal(rows.dice[rows.scored[:, c], c], counts.dice()[mine, 50])
        np.testing.assert_array_equal(rows.region_area[rows.scored[:, c], c], (counts.region / counts.grid)[mine])


def test_cases_of_a_run_give_its_scores_again(phantom_run):
    run = FinishedRun.open(phantom_run)
    rows, counts, cases = run.image_scores, run.pair_counts, run.scored_pairs
    findings = run.results.findings
    pairs = [(rows.image_ids[i], findings[c]) for i, c in zip(counts.index, counts.column, strict=True)]
    assert list(cases) == pairs and len(pairs) > 8
    for place, pair in enumerate(pairs):
        case = cases.read(*pair)
        on_grid = saliency_on_grid(torch.from_numpy(case.saliency)[None], [case.view], (40, 40))
        mask = normalise(on_grid)[0].numpy() >= 0.5
        assert mask.sum() == counts.mask[place, 50]
        assert (mask & case.region).sum() == counts.overlap[place, 50]
        image, column = counts.index[place], counts.column[place]
        for axis, peak, centre in ((0, rows.peak_y, rows.region_y), (1, rows.peak_x, rows.region_x)):
            tied = (on_grid[0] == on_grid.max()).numpy().nonzero()[axis]
            assert peak[image, column] == pytest.approx((tied + 0.5).mean() / 40, abs=1e-12)
            assert centre[image, column] == pytest.approx((case.region.nonzero()[axis] + 0.5).mean() / 40, abs=1e-12)
        assert case.display.shape == (40, 40) and cv2.meanStdDev(case.display)[1] > 10


@given(arrays.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_a_region_is_digested_as_documented(region):
    text, bits = f"{region.shape[0]} {region.shape[1]}\n", "".join(str(int(pixel)) for pixel in region.ravel())
    packed = bytes(int(bits[k : k + 8].ljust(8, "0"), 2) for k in range(0, len(bits), 8))
    assert region_digest(region) == hashlib.sha256(text.encode() + packed).hexdigest()[:16]


@given(st.data(), st.permutations(range(4)))
def test_digests_are_equal_just_where_labels_and_regions_are(data, order):
    """By comparing what is digested itself."""

    def digests_of(labels, regions, names):
        drawn = regions.any(2)
        digests = np.zeros(labels.shape, "S16")
        for place in np.argwhere(drawn).tolist():
            digests[tuple(place)] = region_digest(regions[tuple(place)][None])
        scores = image_scores(labels, has_region=drawn, region_digests=digests, image_ids=names)
        return scored_on(scores, FINDINGS)

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
        # An empty region is none.
        scored = [
            [tuple(region) if label == 1 and region.any() else None for label, region in zip(*truth, strict=True)]
            for truth in ((labels[:, c], regions[:, c]) for labels, regions in (one, other))
        ]
        assert (digests[0][finding].labels == digests[1][finding].labels) == (labels[0] == labels[1])
        assert (digests[0][finding].regions == digests[1][finding].regions) == (scored[0] == scored[1])


def test_a_run_keeps_digests_that_verify_derives_again(phantom_run, tmp_path):
    run = shutil.copytree(phantom_run, tmp_path / "run")
    stored = json.loads((run / "results.json").read_text())["scored_on"]
    table = pq.read_table(run / PER_IMAGE).to_pylist()
    for finding in stored:
        mine = sorted((row for row in table if row["finding"] == finding), key=lambda row: row["image_id"])
        labels = [[row["image_id"], row["label"]] for row in mine if row["label"] >= 0]
        scored = [[row["image_id"], row["region_digest"]] for row in mine if row["label"] == 1 and row["has_region"]]
        for name, values in (("labels", labels), ("regions", scored)):
            assert stored[finding][name] == hashlib.sha256(json.dumps(values).encode()).hexdigest()
    kept = FinishedRun.open(run).region_digests
    assert kept.astype("U16").ravel().tolist() == [row["region_digest"] or "" for row in table]
    assert disagreements(run) == []
    other = {"labels": "0" * 64, "regions": "0" * 64}
    for changed in (None, stored | {[*stored][1]: other}):
        change(run, scored_on=changed)
        assert disagreements(run)[0].place.startswith("results.json / scored_on")
