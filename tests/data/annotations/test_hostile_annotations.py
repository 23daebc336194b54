"""Annotation files made to exhaust the memory or to lead elsewhere: refused, in a process that may take 3 GB more."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from bounded import assert_outcomes
from downloads import ANNOTATION_FILES, CLASSES, records_of, refusal

from xbench.data.annotations.items import one_item
from xbench.geometry.preprocessing import Preprocessing, stretch

ROOM = 3_000_000_000


def read(root: Path) -> int:
    """Read the download, and draw its first annotation; return how many images it has."""
    dataset, _, split = root.name.split("~")
    records = CLASSES[dataset](str(root), split=split or None).checked_records(annotated=True)
    for record in records[:1]:
        for annotation in record.source.annotations[:1]:
            one_item(annotation.parts(*(record.source.size or (64, 64)))).draw()
    return len(records)


def test_what_is_too_much(tmp_path):
    folder = tmp_path / "roots"
    expected: dict[str, str | int] = {}

    def put(dataset: str, what: str, name: str, content: Any, outcome: str | int, split: str = "") -> Path:
        root = folder / f"{dataset}~{what}~{split}"
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        expected[root.name] = outcome
        return path

    det10 = "test.json"
    box = {"file_name": "1.png", "syms": ["Mass"], "boxes": [[0, 0, 5, 5]]}
    labelme = {"imageHeight": 64, "imageWidth": 64, "shapes": [{"label": "a", "shape_type": "polygon"}]}

    def numbered(number: str) -> bytes:
        return json.dumps([box]).replace("5", number).encode()

    def drawn(*points: list[float]) -> dict[str, Any]:
        return labelme | {"shapes": [labelme["shapes"][0] | {"points": points}]}

    for what, content, outcome in (
        ("deep", b"[" * 100_000 + b"]" * 100_000, "cannot be read"),
        ("huge-number", numbered("9" * 5000), "cannot be read"),
        ("large-number", numbered("9" * 4000), "not a pixel"),
        ("numbers", numbered("1e12"), "not a pixel"),
        ("many-boxes", [box | {"syms": ["Mass"] * 20_000, "boxes": [[0] * 4] * 20_000}], 1),
        ("long-name", [box | {"file_name": "x" * 10**7 + ".png"}], "the image name"),
        ("long-label", [box | {"syms": ["x" * 10**7]}], "is not one of the findings"),
    ):
        put("chestxdet10", what, det10, content, outcome)
    for what, content, outcome in (
        ("vertices", drawn(*([k % 64, k * k % 64] for k in range(100_000))), 1),
        ("frame", labelme | {"imageHeight": 10**9, "imageWidth": 10**9}, "is not possible"),
        ("far", drawn([0, 0], [1e300, 1]), "a pixel"),
    ):
        put("covid", what, "jpgs/jsons/a.json", content, outcome)
    findings = CLASSES["chexlocalize"].findings
    for what, change, outcome in (
        ("counts", {}, "do not add up"),
        ("frame", {"size": [10**6, 10**6]}, "not possible"),
        ("overflow", {"counts": "o" * 40 + "0"}, "do not add up"),
        ("trillion", {"counts": "ooooooo0"}, "do not add up"),
    ):
        entry = {"patient_b_c": {"Edema": {"size": [64, 64], "counts": "0" * 10**6} | change}}
        path = put("chexlocalize", what, "CheXlocalize/gt_segmentations_test.json", entry, outcome)
        table = f"Path,{','.join(findings)}\ntest/patient/b/c.jpg{',1' * len(findings)}\n"
        (path.parent / "test_labels.csv").write_text(table)
    siim = b"ImageId, EncodedPixels\na, "
    for what, content, outcome in (
        ("trillion", siim + b"1 1000000000000\n", "runs to pixel"),
        ("long-line", siim + b"1 " * 10_000_000 + b"\n", "cannot be read"),
        ("many-columns", b"ab," * 5_000_000 + b"\n", "lacks ImageId"),
        ("quoted", siim.rstrip() + b'"' + b"1\n" * 10**5, "cannot be read"),
        ("many-rows", siim + b"1 1\n" + b"a, 1 1\n" * 10**5, 1),
    ):
        put("siim", what, "train-rle.csv", content, outcome)
    for dataset, name, split in (
        ("siim", "train-rle.csv", ""),
        ("chestxdet10", det10, ""),
        ("chestxray14", "test_list.txt", "test"),
    ):
        path = put(dataset, "sparse", name, b"", f"{3 << 30} bytes", split)
        os.truncate(path, 3 << 30)
        put(dataset, "zeros", name, None, "a device or a pipe", split).symlink_to("/dev/zero")
        os.mkfifo(put(dataset, "pipe", name, None, "a device or a pipe", split))
        for what in ("sparse", "zeros", "pipe") if split else ():
            (folder / f"{dataset}~{what}~{split}" / "BBox_List_2017.csv").write_text(
                "Image Index,Finding Label,Bbox [x,y,w,h],,,\n1.png,Mass,1,1,1,1,,,\n"
            )

    assert_outcomes(folder, expected, read, ROOM, 30)


NAMES = {
    "a line break": "a\nb",
    "NUL": "a\x00b",
    "an escape sequence": "a\x1b[2Jb",
    "right to left": "a\u202eb",
    "half a character": "a\ud800b",
    "very long": "x" * 300,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_none(tmp_path, name):
    """Names go into tables, messages and pages."""
    entry = {"file_name": f"{NAMES[name]}.png", "syms": [], "boxes": []}
    (tmp_path / "test.json").write_text(json.dumps([entry]))
    message = refusal("chestxdet10", tmp_path)
    assert message.isprintable() and "the image name" in message
    with (tmp_path / "train-rle.csv").open("w", newline="", errors="surrogatepass") as file:
        csv.writer(file).writerows([["ImageId", "EncodedPixels"], [NAMES[name], "-1"]])
    message = refusal("siim", tmp_path)
    assert message.isprintable()


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0", "<script>alert(1)</script>", "\\input{x}", "/etc/passwd", "..\\x"]
)
def test_a_printable_name_is_accepted_as_text(tmp_path, name):
    """Images may be called so in any download: the name is part of no path, and what shows it writes it out as text."""
    (tmp_path / "train-rle.csv").write_text(f'ImageId,EncodedPixels\n"{name}",-1\n')
    (tmp_path / "stage_2_train_labels.csv").write_text(f'patientId,x,y,width,height,Target\n"{name}",,,,,0\n')
    for dataset in ("siim", "rsna"):
        (record,) = records_of(CLASSES[dataset](str(tmp_path), on_error="skip")).values()
        assert (record.image_id, record.missing, record.source.path, record.files) == (name, True, None, None)


def test_links_are_followed_and_hidden_files_are_not(tmp_path, downloads):
    """Parts of a download often lie on another disk: whoever links to a file lets it be read as what it is called."""
    root = tmp_path / "root"
    official = downloads.copy("rsna", root)
    image, path = min((name, path) for name, path in official.files.items())
    outside = tmp_path / "elsewhere.dcm"
    path.rename(outside)
    path.symlink_to(outside)
    assert records_of(CLASSES["rsna"](str(root)))[image].source.path == path
    # What is no image is named, and shown to nobody.
    path.unlink()
    path.symlink_to("/etc/passwd")
    data = CLASSES["rsna"](str(root))
    place = [*records_of(data)].index(image)
    failure = data.samples(Preprocessing(stretch((8, 8))))[place]
    assert "not a DICOM" in failure.reason and "root:" not in failure.reason
    table = root / next(file.path for file in ANNOTATION_FILES if file.dataset == "rsna")
    table.unlink()
    table.symlink_to("/etc/passwd")
    message = refusal("rsna", root)
    assert str(table) in message and len(message) < 800
