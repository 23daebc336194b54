"""The written downloads, read again with plain code: what the fixtures promise is in the files."""

from __future__ import annotations

import base64
import io
import itertools
import json
import tarfile
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from official.base import Official
from official.chestxdet10 import write_chestxdet10
from official.chestxray14 import write_chestxray14
from official.chexlocalize import LABELS, WITHOUT_MASKS, lengthen_rle, write_chexlocalize
from official.covid import write_covid, write_mavl_lists
from official.reread import have_neighbours, same_masks, show, table
from official.rsna import write_rsna
from official.siim import write_mavl_list, write_siim
from official.vindr import write_vindr
from official.wrong import add_stray_image, copy_of, pack, remove_image, truncate_image
from PIL import Image, ImageDraw
from pycocotools import mask as coco
from pydicom import dcmread

WRITERS: dict[str, Callable[..., Official]] = {
    "siim": write_siim,
    "rsna": write_rsna,
    "covid": write_covid,
    "chestxdet10": write_chestxdet10,
    "chexlocalize": write_chexlocalize,
    "chestxray14": write_chestxray14,
    "vindr": write_vindr,
}


@pytest.fixture(scope="module")
def downloads(tmp_path_factory) -> dict[str, Official]:
    return {name: write(tmp_path_factory.mktemp(name) / "download") for name, write in WRITERS.items()}


@pytest.fixture(params=WRITERS)
def official(request, downloads) -> Official:
    return downloads[request.param]


# All of them


def test_what_is_promised_is_consistent(official):
    assert official.images.keys() == official.files.keys() >= official.labels.keys() == official.masks.keys()
    assert len({image.tobytes() for image in official.images.values()}) == len(official.images)
    for image_id, masks in official.masks.items():
        for finding, mask in masks.items():
            assert official.labels[image_id][finding] == 1
            assert mask.dtype == bool
            assert mask.shape == official.images[image_id].shape
            assert mask.any()
    assert not official.outside


def test_files_show_the_images(official):
    for image_id, path in official.files.items():
        image = official.images[image_id]
        assert image.dtype == np.uint8
        assert np.abs(show(path) - image).max() <= official.tolerance


def test_the_default_split_has_positives_with_and_without_region_and_negatives(downloads):
    for name, official in downloads.items():
        ids = [image_id for image_id in next(iter(official.splits.values())) if image_id in official.labels]
        if name == "siim":
            ids = list(official.labels)
        scored = [
            finding
            for finding in official.labels[ids[0]]
            if len({official.labels[image_id][finding] for image_id in ids}) == 2
            and any(finding in official.masks[image_id] for image_id in ids)
        ]
        assert len(scored) == {"chestxdet10": 10, "chexlocalize": 10, "chestxray14": 8, "vindr": 19}.get(name, 1)


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "siim"])
def test_annotations_beyond_the_frame(tmp_path, name):
    official = WRITERS[name](tmp_path, outside=True)
    ((image_id, finding),) = official.outside
    mask = official.masks[image_id][finding]
    assert mask[:, 0].any() or mask[:, -1].any()


# Those with masks


def test_siim(downloads):
    official = downloads["siim"]
    lines = (official.root / "train-rle.csv").read_text().splitlines()
    assert lines[0] == "ImageId, EncodedPixels"
    rows = [line.split(",") for line in lines[1:]]
    assert not have_neighbours([name for name, _ in rows])
    assert rows[0] == rows[-1]
    drawn: dict[str, dict[str, np.ndarray]] = {name: {} for name, _ in rows}
    overlap = False
    for name, code in rows[:-1]:
        if code == "-1":
            continue
        flat = np.zeros(1024 * 1024, bool)
        position = 0
        numbers = iter(code.split())
        for offset, length in zip(numbers, numbers, strict=True):
            position += int(offset)
            flat[position : position + int(length)] = True
            position += int(length)
        mask = flat.reshape(1024, 1024).T
        overlap |= (mask & drawn[name].get("Pneumothorax", False)).any()
        drawn[name]["Pneumothorax"] = mask | drawn[name].get("Pneumothorax", False)
    assert overlap
    same_masks(official, drawn)
    for path in official.files.values():
        assert path.parts[-4] in ("dicom-images-train", "dicom-images-test")
        assert dcmread(path, stop_before_pixels=True).SOPInstanceUID == path.stem


def test_lists_of_siim(downloads, tmp_path):
    official = downloads["siim"]
    images = write_mavl_list(official, tmp_path / "test.csv")
    lines = (tmp_path / "test.csv").read_text().splitlines()
    assert lines[0] == "ImageId,EncodedPixels"
    assert all(line.split(",")[1].startswith(" ") for line in lines[1:])
    assert len(images) == len(set(images)) < len(lines) - 1
    assert {official.labels[image]["Pneumothorax"] for image in images} == {0, 1}
    assert set(images) < set(official.images)


def test_covid(downloads):
    official = downloads["covid"]
    base = official.root / "covid_rural_annot"
    drawn: dict[str, dict[str, np.ndarray]] = {}
    labels = set()
    for path in sorted((base / "jpgs" / "jsons").glob("*.json")):
        entry = json.loads(path.read_text())
        image_id = path.stem
        height, width = entry["imageHeight"], entry["imageWidth"]
        assert Image.open(io.BytesIO(base64.b64decode(entry["imageData"]))).size == (width, height)
        assert Image.open(official.files[image_id]).mode == "RGB"
        canvas = Image.fromarray(np.zeros((height, width), np.uint8))
        for shape in entry["shapes"]:
            labels.add(shape["label"])
            if not shape["label"].endswith("_lung"):
                ImageDraw.Draw(canvas).polygon([tuple(point) for point in shape["points"]], outline=1, fill=1)
        mask = np.array(canvas) > 0
        drawn[image_id] = {"COVID-19": mask} if mask.any() else {}
        assert official.labels[image_id]["COVID-19"] == int(mask.any())
        file = base / "pngs_masks" / f"{image_id}.png"
        if file.exists():
            np.testing.assert_array_equal(np.array(Image.open(file)), mask)
    same_masks(official, drawn)
    assert {"left_lung", "right_lung", "subtle_hazy", "consolidation", "groud_glass_opacity"} < labels
    with_mask = {path.stem for path in (base / "pngs_masks").iterdir()}
    for label in (0, 1):
        having = [image_id in with_mask for image_id, known in official.labels.items() if known["COVID-19"] == label]
        assert set(having) == {True, False}
    guesses = base / "manual_segmentations_model_predictions"
    assert {path.name for path in guesses.iterdir()} == {f"{image_id}.jpg.png" for image_id in official.images}
    assert len({image.shape for image in official.images.values()}) == len(official.images)


def test_other_masks_of_covid(tmp_path):
    official = write_covid(tmp_path, lungs_in_masks=True)
    for path in (tmp_path / "covid_rural_annot" / "pngs_masks").iterdir():
        pixels = np.array(Image.open(path))
        assert (pixels == 1).any()
        opacity = official.masks[path.stem].get("COVID-19", np.zeros(pixels.shape, bool))
        np.testing.assert_array_equal(pixels == 2, opacity)


def test_lists_of_covid(downloads, tmp_path):
    official = downloads["covid"]
    lists = write_mavl_lists(official, tmp_path)
    for name, images in lists.items():
        assert (tmp_path / f"{name}.csv").read_text().split() == ["filepath", *images]
    assert sorted(itertools.chain(*lists.values())) == sorted(official.splits["all"])
    assert {image[12:20] for image in lists["train"]} & {image[12:20] for image in lists["test"]}


def test_chexlocalize(downloads):
    official = downloads["chexlocalize"]
    drawn: dict[str, dict[str, np.ndarray]] = {image_id: {} for image_id in official.labels}
    empty = 0
    for split in ("test", "val"):
        segmentations = json.loads((official.root / "CheXlocalize" / f"gt_segmentations_{split}.json").read_text())
        annotations = json.loads((official.root / "CheXlocalize" / f"gt_annotations_{split}.json").read_text())
        assert segmentations.keys() == annotations.keys() < set(official.splits[split])
        for key, findings in segmentations.items():
            assert len(findings) == 10
            height, width = annotations[key].pop("img_size")
            assert official.images[key].shape == (height, width)
            for name, rle in findings.items():
                mask = coco.decode(rle).astype(bool)
                canvas = Image.new("1", (width, height))
                for contour in annotations[key].get(name, []):
                    ImageDraw.Draw(canvas).polygon([tuple(point) for point in contour], outline=1, fill=1)
                np.testing.assert_array_equal(mask, np.array(canvas))
                assert (name in annotations[key]) == mask.any()
                empty += rle["counts"] == coco.encode(np.zeros((height, width), np.uint8, "F"))["counts"].decode()
                if mask.any():
                    drawn[key]["Lung Opacity" if name == "Airspace Opacity" else name] = mask
        prefix = {"test": "test/", "val": "CheXpert-v1.0/valid/"}[split]
        for row in table(official.root / "CheXpert" / f"{split}_labels.csv"):
            path = official.root / "CheXpert" / split / row["Path"].removeprefix(prefix)
            key = "_".join(path.with_suffix("").parts[-3:])
            assert path == official.files[key]
            assert {name: int(float(row[name])) for name in LABELS} == official.labels[key]
            assert int(float(row["No Finding"])) == int("1.0" not in [row[name] for name in LABELS])
    assert empty
    same_masks(official, drawn)
    laterals = [key for key in official.splits["test"] if key.endswith("lateral")]
    assert any(sum(official.labels[key].values()) > len(official.masks[key]) for key in laterals)
    assert not (official.root / "unpickled").exists()
    assert list((official.root / "CheXlocalize" / "gradcam_maps_val").glob("*.pkl"))


def test_chexlocalize_with_masks_of_every_finding(tmp_path):
    official = write_chexlocalize(tmp_path, masks_for_all=True)
    drawn = {finding for masks in official.masks.values() for finding in masks}
    assert drawn == set(LABELS)
    segmentations = json.loads((tmp_path / "CheXlocalize" / "gt_segmentations_test.json").read_text())
    assert all(set(WITHOUT_MASKS) < findings.keys() for findings in segmentations.values())
    key = next(iter(segmentations))
    path = lengthen_rle(official, key, "Lung Opacity")
    rle = json.loads(path.read_text())[key]["Airspace Opacity"]
    height, width = official.images[key].shape
    assert rle["size"] == [height, width]
    assert coco.area({"size": [height, width + 40], "counts": rle["counts"]}) == height * (width + 40)


# What goes wrong


def test_spoiled_downloads(downloads, tmp_path):
    official = copy_of(downloads["chestxdet10"], tmp_path / "copy")
    first, second, third, *_ = official.splits["test"]
    assert not remove_image(official, first).exists()
    assert downloads["chestxdet10"].files[first].exists()
    size = official.files[second].stat().st_size
    assert truncate_image(official, second, 0.25).stat().st_size == size // 4
    stray = add_stray_image(official, third, "99999")
    assert stray == official.files[third].with_name("99999.png")
    assert stray.read_bytes() == official.files[third].read_bytes()


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_packed_folders(tmp_path, suffix):
    for name in ("test_data/a.png", "test_data/deep/b.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    archive = pack(tmp_path / "test_data", suffix)
    assert [path.name for path in tmp_path.iterdir()] == [f"test_data{suffix}"]
    if suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            names = packed.namelist()
    else:
        with tarfile.open(archive) as tape:
            names = tape.getnames()
    assert sorted(names) == ["test_data/a.png", "test_data/deep/b.png"]
