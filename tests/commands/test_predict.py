from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from official.dicom import write_dicom
from PIL import Image

from xbench.data.phantom import FINDINGS, draw_phantom
from xbench.report.tiles import SIDE, file_names, map_tile

PLACES = ("a.png", "scan/IM1", "ward 3/a: b.png", "ward 3/a? b.dcm")
QUIET = ("--data.num_workers", "0", "--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu")


@pytest.fixture
def films(tmp_path):
    root = tmp_path / "films"
    for number, place in enumerate(PLACES):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        image = draw_phantom(0, number, 80, 64).image
        if place.endswith(".png"):
            Image.fromarray(image).save(root / place)
        else:
            write_dicom(root / place, image)
    return root


def files(folder, pattern="*.png"):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(pattern))


def test_a_folder_gives_the_arrays_of_the_same_images_as_a_dataset_and_pictures(command, films):
    (films / "read me.txt").write_text("x")
    ours = command("predict", "--config", "demo_folder", "--data.root", films, *QUIET, status=0)
    phantoms = ("--config", "demo", "--data.images", "4", "--data.size", "[80, 64]", "--overlays", "false")
    theirs = command("predict", *phantoms, *QUIET, status=0)
    assert not files(theirs.folder)
    tables = [pq.read_table(run.folder / "predictions.parquet") for run in (ours, theirs)]
    for column in ("finding", "logit", "probability", "map_shape", "map"):
        assert tables[0][column].equals(tables[1][column])
    assert tables[0]["image_id"].to_pylist()[:: len(FINDINGS)] == [*PLACES]
    images = [pq.read_table(run.folder / "images.parquet") for run in (ours, theirs)]
    for column in ("crop", "height", "width", "sha256"):
        assert images[0][column].equals(images[1][column])

    names = ["a", "scan/IM1", "ward_3/a_b", "ward_3/a_b_000003"]
    overlays = [f"overlays/{name}/{finding.replace(' ', '_')}.png" for name in names for finding in FINDINGS]
    assert files(ours.folder) == sorted([*overlays, *(f"sheets/{name}.png" for name in names)])
    shown = Image.open(ours.folder / "overlays/ward_3/a_b_000003/Pleural_Effusion.png")
    assert shown.size[0] == round(0.8 * SIDE) and shown.size[1] > SIDE
    assert "A file that is not PNG, JPEG or DICOM, left out: 1 (first: read me.txt)." in ours.output
    assert ours.output.splitlines()[-1].startswith(f"4 images. Look at {ours.folder}/sheets;")
    assert theirs.output.splitlines()[-1] == f"4 images. Predictions: {theirs.folder}"


def test_chosen_findings_and_chosen_pictures(command, films):
    (films / "cut off.png").write_bytes((films / "a.png").read_bytes()[:90])
    words = ("predict", "--config", "demo_folder", "--data.root", films, *QUIET)
    refused = command(*words)
    assert refused.status == 1 and "cut off.png cannot be read" in refused.errors
    words = (*words, "--data.on_error", "skip", "--data.findings", "effusion, Mass, NODULE")
    run = command(*words, "--overlays", "nodule", "--data.grid", "224", status=0)
    assert "Skipped cut off.png: " in run.output and "4 images. Look" in run.output
    assert files(run.folder / "overlays/a") == ["Nodule.png"]
    assert Image.open(run.folder / "overlays/a/Nodule.png").size[0] == SIDE, "the grid is square"
    table = pq.read_table(run.folder / "predictions.parquet").to_pydict()
    assert table["finding"][:3] == ["Pleural Effusion", "Mass", "Nodule"]
    failures = pq.read_table(run.folder / "images.parquet")["failure"].to_pylist()
    assert sum(failure is not None for failure in failures) == 1
    refused = command(*words, "--overlays", "Fracture")
    assert refused.status == 2 and "--overlays: Fracture is not predicted" in refused.errors


@pytest.mark.parametrize("name", ["test", "check"])
def test_other_commands_on_a_folder(command, films, name):
    run = command(name, "--config", "demo_folder", "--data.root", films, *QUIET, "--trainer.logger", "false")
    if name == "check":
        assert run.status == 0 and "No problems found" in run.output, run.errors
    else:
        assert run.status == 2 and "use `predict`" in run.errors
        assert not [*films.parent.glob("runs/*")]


def test_an_output_that_is_not_finite_is_refused(command, toy_config):
    run = command("predict", "--config", toy_config, "--model.fault", "nan")
    assert run.status == 1 and "NaN, infinity" in run.errors


def test_a_folder_given_to_the_phantoms(command, films):
    run = command("predict", "--config", "demo", "--data.root", films)
    assert run.status == 2 and "--config demo_folder" in run.errors


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x.dcm", "x.png", "X"], ["x", "x_000001", "X_000002"]),
        (["../../etc/x", "/x", "a//b", "..."], ["_/_/etc/x", "_/x", "a/_/b", "_"]),
        (["CON:|?*\u200b.png", "\u80f8 \u90e8.JPG", ".dcm"], ["CON_", "\u80f8_\u90e8", "dcm"]),
        (["a.png.dcm", "a/a.png/b"], ["a_png", "a/a_png/b"]),
        (["x" * 300, "x" * 301], ["x" * 60, "x" * 60 + "_000001"]),
    ],
)
def test_names_of_pictures_are_safe_and_differ(names, expected):
    assert file_names(names) == expected


def test_the_cross_lies_at_the_peak_and_a_flat_map_has_none():
    film, saliency = np.full((448, 300), 90, np.uint8), np.zeros((448, 300), np.float32)
    flat = np.asarray(map_tile(film, saliency, "Nodule", 0.5))[:448]
    assert (flat == 90).all()
    # Two places tie: their mean, as the scores have it.
    saliency[100, 40] = saliency[100, 60] = 1
    marked = np.asarray(map_tile(film, saliency, "Nodule", 0.5))[:448]
    rows, columns = (marked == 255).all(axis=2).nonzero()
    assert (rows.mean().round(), columns.mean().round()) == (100, 50)
