"""Annotation files made to exhaust the memory or to lead elsewhere: refused, in a process that may take 3 GB more."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from downloads import ANNOTATION_FILES, CLASSES, records_of, refusal
from places import SUPPORT

from xbench.geometry.preprocessing import Preprocessing, stretch

ROOM = 3_000_000_000

CHILD = """
import json, resource, sys, time
from pathlib import Path
from downloads import CLASSES
from xbench.errors import UserError
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[2]),) * 2)
for root in sorted(Path(sys.argv[1]).iterdir()):
    dataset, _, split = root.name.split("~")
    start, peak = time.perf_counter(), 0
    try:
        records = CLASSES[dataset](str(root), split=split or None).read_records(annotated=True)
        said = len(records)
        for record in records[:1]:
            for annotation in record.source.annotations[:1]:
                annotation.shape.draw(*(record.source.frame or (64, 64)))
    except UserError as error:
        said = str(error)
    print(json.dumps([root.name, said, time.perf_counter() - start]), flush=True)
"""


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

    det10, covid, localize = "test.json", "jpgs/jsons/a.json", "CheXlocalize/gt_{}_test.json"
    boxes = [{"file_name": "1.png", "syms": ["Mass"], "boxes": [[0, 0, 5, 5]]}]
    put("chestxdet10", "deep", det10, b"[" * 100_000 + b"]" * 100_000, "cannot be read")
    put("chestxdet10", "huge-number", det10, json.dumps(boxes).replace("5", "9" * 5000).encode(), "cannot be read")
    put("chestxdet10", "large-number", det10, json.dumps(boxes).replace("5", "9" * 4000).encode(), "not a pixel")
    put("chestxdet10", "numbers", det10, json.dumps(boxes).replace("5", "1e12").encode(), "not a pixel")
    put("chestxdet10", "many-boxes", det10, [boxes[0] | {"syms": ["Mass"] * 20_000, "boxes": [[0] * 4] * 20_000}], 1)
    put("chestxdet10", "long-name", det10, [boxes[0] | {"file_name": "x" * 10**7 + ".png"}], "no name of an image")
    put("chestxdet10", "long-label", det10, [boxes[0] | {"syms": ["x" * 10**7]}], "is not one of the ten findings")
    labelme = {"imageHeight": 64, "imageWidth": 64, "shapes": [{"label": "a", "shape_type": "polygon"}]}
    corners = [[k % 64, k * k % 64] for k in range(100_000)]
    put("covid", "vertices", covid, labelme | {"shapes": [labelme["shapes"][0] | {"points": corners}]}, 1)
    put("covid", "frame", covid, labelme | {"imageHeight": 10**9, "imageWidth": 10**9}, "is not possible")
    put(
        "covid",
        "far",
        covid,
        labelme | {"shapes": [labelme["shapes"][0] | {"points": [[0, 0], [1e300, 1]]}]},
        "a pixel",
    )
    mask = {"a_b_c": {"Edema": {"size": [64, 64], "counts": "0" * 10**6}}}
    table = (
        "Path,"
        + ",".join(CLASSES["chexlocalize"].findings)
        + "\n"
        + "test/a/b/c.jpg"
        + ",1" * len(CLASSES["chexlocalize"].findings)
        + "\n"
    ).encode()
    for what, change, outcome in (
        ("counts", {}, "do not add up"),
        ("frame", {"size": [10**6, 10**6]}, "not possible"),
        ("overflow", {"counts": "o" * 40 + "0"}, "do not add up"),
        ("trillion", {"counts": "ooooooo0"}, "do not add up"),
    ):
        entry = {"patient_b_c": {"Edema": mask["a_b_c"]["Edema"] | change}}
        path = put("chexlocalize", what, localize.format("segmentations"), entry, outcome)
        (path.parent / "test_labels.csv").write_bytes(table.replace(b"test/a", b"test/patient"))
    siim = b"ImageId, EncodedPixels\na, "
    put("siim", "trillion", "train-rle.csv", siim + b"1 1000000000000\n", "runs to pixel")
    put("siim", "long-line", "train-rle.csv", siim + b"1 " * 10_000_000 + b"\n", "cannot be read")
    put("siim", "many-columns", "train-rle.csv", b"ab," * 5_000_000 + b"\n", "lacks ImageId")
    put("siim", "quoted", "train-rle.csv", siim.rstrip() + b'"' + b"1\n" * 10**5, "cannot be read")
    put("siim", "many-rows", "train-rle.csv", siim + b"1 1\n" + b"a, 1 1\n" * 10**5, 1)
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

    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", CHILD, str(folder), str(ROOM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    said = {name: (outcome, seconds) for name, outcome, seconds in map(json.loads, done.stdout.splitlines())}
    assert said.keys() == expected.keys()
    for name, outcome in expected.items():
        if isinstance(outcome, str):
            assert outcome in str(said[name][0]), name
            assert len(said[name][0]) < 2500, name
        else:
            assert said[name][0] == outcome, name
        assert said[name][1] < 30, name


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
    assert message.isprintable() and "no name of an image" in message
    with (tmp_path / "train-rle.csv").open("w", newline="", errors="surrogatepass") as file:
        csv.writer(file).writerows([["ImageId", "EncodedPixels"], [NAMES[name], "-1"]])
    message = refusal("siim", tmp_path)
    assert message.isprintable()


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
    # A file of annotations that leads elsewhere is one of another content.
    table = root / next(file.path for file in ANNOTATION_FILES if file.dataset == "rsna")
    table.unlink()
    table.symlink_to("/etc/passwd")
    message = refusal("rsna", root)
    assert str(table) in message and len(message) < 800
