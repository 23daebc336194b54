"""Every annotation file, damaged at random: it is read, or refused with one paragraph, and soon."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from downloads import ANNOTATION_FILES, AnnotationFile
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.data.annotations.items import one_item
from xbench.runtime.errors import UserError


def read(file: AnnotationFile, root: Path) -> None:
    """Read and draw everything: a `UserError` of one paragraph, and soon, or masks of the frame."""
    start = time.perf_counter()
    try:
        records = file.open(root).read_records(annotated=True)
    except UserError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 2500
        records = []
    for record in records:
        assert {*record.labels.values()} <= {0, 1}
        height, width = record.source.size or (40, 30)
        # Another frame than the image's is refused before anything is drawn.
        height, width = (height, width) if height * width < 2**21 else (40, 30)
        for annotation in record.source.annotations[:3]:
            try:
                mask = one_item(annotation.parts(height, width)).draw()
            except UserError as error:
                assert "\n" not in str(error)
            else:
                assert (mask.shape, mask.dtype) == ((height, width), np.bool_)
    assert time.perf_counter() - start < 10


TOKENS = [
    b"", b'"', b"'", b",", b"\n", b"\r", b"\x00", b"\xff", b"\xef\xbb\xbf", b"{", b"}", b"[", b"]", b":", b"-", b"-1",
    b"0", b"1e999", b"9" * 400, b"NaN", b"Infinity", b"null", b"true", b";", b"|", b"../", b"\\", b" ", b"\t", b"1_0",
    "\u0661".encode(), b"=cmd()", b"img_size", b'"size": [1,1]', b"No finding", b".5", b"1e3", b"99999999",
]  # fmt: skip
CELLS = [
    "", " ", "-1", "0", "1", "2", "1.0", "nan", "inf", "1e3", "1e9", "9" * 400, "x", "../x", "1 2", "4 -1", "No finding"
]  # fmt: skip
JUNK = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1.5, 10**400, -(10**400), 1e308, float("nan"), float("inf")]),
    st.sampled_from(["", "../x", "Mass", [], {}]),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.sampled_from(["size", "counts", "img_size", "label", "points"]), st.integers(), max_size=2),
)
PLACES = st.integers(0, 10**6)


def change_bytes(content: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for place, length, token in edits:
        at = int(place * len(content))
        content = content[:at] + token + content[at + length :]
    return content


def _places(tree: Any) -> list[tuple[Any, Any]]:
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [(tree, key) for key in keys] + [place for key in keys for place in _places(tree[key])]


def change_values(content: bytes, changes: list[tuple[int, Any, bool]]) -> bytes:
    tree = json.loads(content)
    # Large, and read by nobody.
    if "imageData" in tree:
        del tree["imageData"]
    for place, junk, remove in changes:
        places = _places(tree)
        # Deep places outnumber the others by far.
        container, key = places[place % min(len(places), 40 if place % 2 else 10**6)]
        if remove and isinstance(container, dict):
            del container[key]
        else:
            container[key] = junk
        if not _places(tree):
            break
    return json.dumps(tree).encode()


def change_cells(content: bytes, changes: list[tuple[int, int, str]]) -> bytes:
    table = [line.split(",") for line in content.decode().splitlines()]
    for row, column, cell in changes:
        cells = table[row % len(table)]
        cells[column % len(cells)] = cell
    return "".join(",".join(cells) + "\n" for cells in table).encode()


# What changes a file of this ending, by how much, and in how many examples.
CHANGES = (
    ("", change_bytes, st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(TOKENS)), 4, 25),
    (".json", change_values, st.tuples(PLACES, JUNK, st.booleans()), 2, 60),
    (".csv", change_cells, st.tuples(PLACES, PLACES, st.sampled_from(CELLS)), 3, 25),
)


@pytest.mark.parametrize(
    ("file", "change", "one", "most", "examples"),
    [
        pytest.param(file, *how, id=f"{file}-{how[0].__name__}")
        for ending, *how in CHANGES
        for file in ANNOTATION_FILES
        if file.path.endswith(ending)
    ],
)
def test_any_change_of_a_file(downloads, tmp_path, file, change, one, most, examples):
    path = downloads.copy_with(file, tmp_path / "copy")
    content = path.read_bytes()

    @settings(max_examples=examples if settings.default.derandomize else settings.default.max_examples)
    @given(st.lists(one, min_size=1, max_size=most))
    def fuzz(changes):
        path.write_bytes(change(content, changes))
        read(file, tmp_path / "copy")

    fuzz()
