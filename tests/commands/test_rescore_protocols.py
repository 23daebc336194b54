from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from on_grid import saliency_on_grid
from run_files import disagreements
from slow_protocols import slow_columns, slow_numbers
from synthetic import FINDINGS, write_run

from xbench.cli import main
from xbench.geometry.regions import Coverage
from xbench.runs.finished import FinishedRun
from xbench.runs.protocols import read_protocol, read_protocol_pairs, stored_protocols, write_protocol
from xbench.runtime.errors import UserError
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.common import components

SETTINGS = {"saliency_upsample": "nearest", "map_scale": "probability"}
# Of maps that are no cosines, and of a run that shows no boxes.
FITTING = [name for name, protocol in PROTOCOLS.items() if protocol.takes & {"map", "score"} and name != "biovil"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return write_run(root, "one", images=30, **SETTINGS), write_run(root, "two", images=30, skill=0.3, **SETTINGS)


@pytest.fixture
def run(stored, tmp_path):
    shutil.copytree(stored[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def scored(stored, tmp_path_factory):
    folder = shutil.copytree(stored[0], tmp_path_factory.mktemp("scored") / "run")
    assert main(["rescore", str(folder), "--protocol", "all", "--workers", "0"]) == 0
    return folder


@pytest.fixture
def done(scored, tmp_path):
    return shutil.copytree(scored, tmp_path / "done")


def files(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "protocols").iterdir())}


def agrees_with_the_slow_form(run, name):
    content, pairs = read_protocol(run, name), read_protocol_pairs(run, name)
    for key, values in slow_columns(content, pairs, FINDINGS).items():
        np.testing.assert_allclose(pairs[key].astype(float), values, rtol=0, atol=1e-12)
    expected = slow_numbers(content, pairs, FINDINGS)
    assert {*expected} == {*content["numbers"]}
    for number, entry in content["numbers"].items():
        for key, value in entry.items():
            same = value == expected[number][key] or value == pytest.approx(expected[number][key], abs=1e-12)
            assert same, (name, number, key)


def test_any_number_of_processes_writes_the_same_bytes(run, command):
    found = []
    before = {path.name for path in run.iterdir()}
    for workers in (0, 1, 3):
        done = command("rescore", run, "--protocol", "all", "--workers", workers, status=0)
        found.append(files(run))
        shutil.rmtree(run / "protocols")
    assert found[0] == found[1] == found[2]
    assert {path.name for path in run.iterdir()} == before
    assert {name.removesuffix(".json") for name in found[0] if name.endswith(".json")} == {*FITTING}
    assert "'probability'" in done.output and "biovil" in done.output


def test_every_number_follows_from_the_pairs(scored):
    run = scored
    assert disagreements(run) == []
    own = FinishedRun.open(run)
    specificity = read_protocol(run, "radzero")["numbers"]["specificity"]
    assert specificity["undefined"] == 0 and specificity["strict"] == specificity["value"]
    numbers = read_protocol(run, "xbench")["numbers"]
    assert numbers["dice"]["value"] == pytest.approx(own.results.macro["dice_fixed"], abs=1e-12)
    assert numbers["pointing"]["value"] == pytest.approx(own.results.macro["pointing_game"], abs=1e-12)
    pairs = int(own.image_scores.scored.sum())
    known = int(((own.image_scores.labels >= 0) | own.image_scores.scored).sum())
    for name in stored_protocols(run):
        content = read_protocol(run, name)
        always = PROTOCOLS[name].in_setting == "always"
        assert content["title"] == (name if always else f"{name} (our frame)")
        # Items are known one by one only where a region is.
        labels = own.image_scores.labels
        expected = known - int(((labels == 1) & ~own.image_scores.scored).sum()) if name == "detections" else known
        assert content["pairs"] == (expected if PROTOCOLS[name].negatives else pairs)
        assert content["headline"] in content["numbers"] and content["flaw"] and content["citation"]
        agrees_with_the_slow_form(run, name)


@pytest.mark.parametrize("name", FITTING)
def test_what_was_changed_is_found(done, name):
    run = done
    content, pairs = read_protocol(run, name), read_protocol_pairs(run, name)
    headline = content["headline"]
    path = run / "protocols" / f"{name}.json"
    path.write_text(json.dumps(content | {"table_sha256": "0" * 64}))
    assert [one.place for one in disagreements(run)] == [f"protocols/{name}.parquet / SHA-256"]
    for change in ("value", "finding", "pair"):
        numbers, table = json.loads(json.dumps(content)), {key: part.copy() for key, part in pairs.items()}
        if change == "value":
            numbers["numbers"][headline]["value"] += 1e-6
        elif change == "finding":
            numbers["numbers"][headline]["per_finding"][FINDINGS[0]] += 1e-6
        else:
            key = {"chex": "overlap", "lesions": "found", "detections": "lesions"}
            key = (key | {"calibration": "probability"}).get(name, headline)
            row = int(np.flatnonzero(~np.isnan(table[key].reshape(len(table[key]), -1)[:, 0]))[0])
            table[key][row] += 1
        write_protocol(run, name, numbers, table)
        assert disagreements(run), change


def test_thresholds_are_tuned_on_another_run(run, stored, tmp_path, command):
    tuning = write_run(tmp_path / "other", "one", images=24, seed=5, **SETTINGS)
    shared = command("rescore", run, "--protocol", "chexlocalize", "--tune", stored[1], "--workers", 0)
    assert shared.status == 2 and "tuned on scored images" in shared.errors
    lost = command("rescore", run, "--protocol", "aep", "--tune", stored[1])
    assert lost.status == 2 and "--tune needs --protocol chexlocalize" in lost.errors
    renamed = rename_images(tuning)
    command("rescore", run, "--protocol", "chexlocalize", "--tune", renamed, "--workers", 0, status=0)
    assert disagreements(run) == []
    agrees_with_the_slow_form(run, "chexlocalize")


def tuning_files(folder, *rows):
    (folder / "tuning.csv").write_text("threshold,task\n" + "".join(f"{t},{name}\n" for t, name in rows))
    each = [f"{k / 10},{0.5 if k in (4, 6) else 0.1},{name}\n" for _, name in rows for k in range(9)]
    (folder / "cutoffs.csv").write_text("prob_threshold,mIoU,task\n" + "".join(each))
    return folder / "tuning.csv", folder / "cutoffs.csv"


def test_thresholds_are_taken_from_the_authors_files(run, tmp_path, command):
    paths = tuning_files(tmp_path, *((0.3 + k / 10, finding) for k, finding in enumerate(FINDINGS[:-1])))
    for given in (paths, paths[::-1]):
        command("rescore", run, "--protocol", "chexlocalize", "--tune", *given, "--workers", 0, status=0)
        content = read_protocol(run, "chexlocalize")
        assert disagreements(run) == []
        for k, finding in enumerate(FINDINGS[:-1]):
            assert content["tuned"][finding] == {"threshold": f"{0.3 + k / 10:.1f}", "cutoff": 0.4}
        # Of which the files say nothing.
        assert content["tuned"][FINDINGS[-1]] == {"threshold": None, "cutoff": None}
        assert content["numbers"]["iou_tuned"]["per_finding"][FINDINGS[-1]] is None
        assert content["numbers"]["iou_tuned_cutoff"]["per_finding"][FINDINGS[0]] is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n", "tuning_results.csv"),
        ("threshold,task\n0.4,Gout\n", "no row of"),
        (f"threshold,task\n0.9,{FINDINGS[0]}\n", "the threshold 0.9"),
        (f"threshold,task\n0.44,{FINDINGS[0]}\n", "the threshold 0.44"),
        (f"threshold,task\n0.4,{FINDINGS[0]}\n0.5,{FINDINGS[0]}\n", "once"),
        (f"threshold,task\nhigh,{FINDINGS[0]}\n", "'high' is not a number"),
        ("", "tuning.csv"),
    ],
)
def test_refuses_files_that_the_authors_do_not_write(run, tmp_path, command, text, problem):
    (path := tmp_path / "tuning.csv").write_text(text)
    done = command("rescore", run, "--protocol", "chexlocalize", "--tune", path)
    assert done.status != 0 and problem in done.errors and "Traceback" not in done.errors


def test_each_file_is_given_once_and_for_chexlocalize_alone(run, tmp_path, command):
    thresholds, _ = tuning_files(tmp_path, (0.4, FINDINGS[0]))
    for words, problem in (
        (["chexlocalize", "--tune", thresholds, thresholds], "another file"),
        (["alarms", "--tune", thresholds], "not CSV files"),
        (["chexlocalize", "--tune", run, run], "takes one run"),
    ):
        done = command("rescore", run, "--protocol", *words)
        assert done.status == 2 and problem in done.errors


def test_lesions_are_those_of_a_count_by_hand(scored):
    own, numbers = FinishedRun.open(scored), read_protocol(scored, "lesions")["numbers"]
    found, lesions, false, images = np.zeros((4, len(FINDINGS)))
    sizes = {"small": [0, 0], "medium": [0, 0], "large": [0, 0]}
    for image in own.saved_images():
        for column in image.scored:
            height, width = own.rules.grid
            cells = torch.from_numpy(image.saliency[column])[None]
            saliency = saliency_on_grid(cells, [image.view], (height, width), own.rules.upsampling)[0].numpy()
            mask = (saliency - saliency.min()) / np.float32(max(np.ptp(saliency), 1e-30)) >= 0.5
            items = [Coverage.of(item.draw(), (height, width)).at(own.rules.gamma) for item in image.instances[column]]
            images[column] += 1
            parts = components(mask)
            false[column] += sum(not any((part & item).any() for item in items) for part in parts)
            lesions[column] += len(items)
            for item in items:
                size = "small" if item.mean() < 0.01 else "medium" if item.mean() < 0.05 else "large"
                hit = any((part & item).sum() >= 0.5 * item.sum() for part in parts)
                found[column] += hit
                sizes[size][0] += hit
                sizes[size][1] += 1
    assert lesions.sum() > 20
    for ours, expected in (("lesion_recall", found / lesions), ("false_parts", false / images)):
        per = [numbers[ours]["per_finding"][finding] for finding in FINDINGS]
        np.testing.assert_allclose(np.array(per, float), expected, atol=1e-12)
        assert numbers[ours]["value"] == pytest.approx(np.nanmean(np.array(per, float)), abs=1e-12)
    pairs = read_protocol_pairs(scored, "lesions")
    for size, (hits, count) in sizes.items():
        assert (pairs[f"found_{size}"].sum(), pairs[f"lesions_{size}"].sum()) == (hits, count)


@pytest.mark.parametrize("tuned", [False, True])
def test_alarms_are_those_of_a_count_by_hand(run, tmp_path, command, tuned):
    other = rename_images(write_run(tmp_path / "other", "one", images=24, seed=5, **SETTINGS))
    words = ["--tune", other] if tuned else []
    assert command("rescore", run, "--protocol", "alarms", *words, "--workers", 0).status == 0
    assert disagreements(run) == []
    agrees_with_the_slow_form(run, "alarms")
    content, own = read_protocol(run, "alarms"), FinishedRun.open(run)
    places = [content["tuned"][finding]["threshold"] if tuned else 50 for finding in FINDINGS]
    assert not tuned or len({*places}) > 1
    labels, lit = own.image_scores.labels, [[] for _ in FINDINGS]
    for image in own.saved_images():
        for column in range(len(FINDINGS)):
            if labels[own.row_of[image.image_id], column] == 0:
                cells = torch.from_numpy(image.saliency[column])[None]
                on_grid = saliency_on_grid(cells, [image.view], own.rules.grid, "bilinear")[0].numpy()
                lit[column].append((on_grid > np.float32(places[column] / 100)).mean())
    alarms = [np.mean(np.array(one) > 0) for one in lit]
    for ours, expected in (("false_alarm", alarms), ("area_lit", [np.mean(one) for one in lit])):
        per = [content["numbers"][ours]["per_finding"][finding] for finding in FINDINGS]
        np.testing.assert_allclose(np.array(per, float), expected, atol=1e-12)


def rename_images(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        if "image_id" in table.column_names:
            place = table.schema.get_field_index("image_id")
            renamed = pa.array([f"other-{image_id}" for image_id in table["image_id"].to_pylist()])
            field = table.schema.field(place)
            table = table.set_column(place, field, renamed.cast(field.type))
            pq.write_table(table, path)
    return folder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--protocol", "nobody"], "nobody"),
        (["--protocol", "biovil"], "biovil"),
        (["--protocol", "medground"], "scores boxes"),
        (["--protocol", "aep", "--tune", "nowhere"], "--tune needs"),
    ],
)
def test_what_cannot_be_is_refused(run, command, options, said):
    refused = command("rescore", run, *options, "--workers", 0)
    assert refused.status == 2 and said in refused.errors
    assert not (run / "protocols").exists()


def test_other_rules_make_a_new_run(run, tmp_path, command):
    command("rescore", run, "--protocol", "g2g", "--gamma", "0.1", "--out", tmp_path / "new", status=0)
    assert stored_protocols(run) == [] and stored_protocols(tmp_path / "new") == ["g2g"]
    assert disagreements(tmp_path / "new") == []


def test_a_damaged_file_is_named(done):
    (done / "protocols" / "aep.json").write_text("[]")
    with pytest.raises(UserError, match=r"protocols/aep\.json"):
        disagreements(done)


@pytest.mark.parametrize("model", ["whole", "crop"])
def test_on_native_grids_maps_are_in_the_authors_frame(command, toy_config, model):
    crop = str(model == "crop").lower()
    options = ("--data.widths", "[64, 90, 48]", "--data.grid", "native", "--model.crop", crop)
    native = command("test", "--config", toy_config, *options)
    assert command("rescore", native.folder, "--protocol", "chexlocalize", "--workers", 0).status == 0
    content, pairs = read_protocol(native.folder, "chexlocalize"), read_protocol_pairs(native.folder, "chexlocalize")
    assert content["title"] == "chexlocalize" and content["frame"].startswith("the image's own pixels")
    assert len({*pairs["pixels"].tolist()}) == 3 and (pairs["region"] == 0).any()
    assert disagreements(native.folder) == []
    # Scored again, and as a new run with the same rules, it is the same to the byte.
    command("rescore", native.folder, "--protocol", "chexlocalize", "--out", native.folder.parent / "new", status=0)
    assert files(native.folder) == files(native.folder.parent / "new")
