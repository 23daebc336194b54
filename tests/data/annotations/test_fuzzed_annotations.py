"""Every annotation file, damaged at random: it is read, or refused with one paragraph, and soon."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from downloads import ANNOTATION_FILES, AnnotationFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xbench.errors import UserError


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
        height, width = record.source.frame or (40, 30)
        # Another frame than the image's is refused before anything is drawn.
        height, width = (height, width) if height * width < 2**21 else (40, 30)
        for annotation in record.source.annotations[:3]:
            annotation.shape.leaves(height, width)
            try:
                mask = annotation.shape.draw(height, width)
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
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(TOKENS)),
    min_size=1,
    max_size=4,
)
FUZZ = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("file", ANNOTATION_FILES, ids=str)
def test_mutated_bytes(downloads, tmp_path, file):
    path = downloads.copy_with(file, tmp_path / "copy")
    content = path.read_bytes()

    @FUZZ
    @given(EDITS)
    def fuzz(edits):
        mutated = content
        for place, length, token in edits:
            at = int(place * len(mutated))
            mutated = mutated[:at] + token + mutated[at + length :]
        path.write_bytes(mutated)
        read(file, tmp_path / "copy")

    fuzz()


JUNK = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1.5, 10**400, -(10**400), 1e308, float("nan"), float("inf")]),
    st.sampled_from(["", "../x", "Mass", [], {}]),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.sampled_from(["size", "counts", "img_size", "label", "points"]), st.integers(), max_size=2),
)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [(tree, key) for key in keys] + [place for key in keys for place in _places(tree[key])]


@pytest.mark.parametrize("file", [file for file in ANNOTATION_FILES if file.path.endswith(".json")], ids=str)
def test_values_of_other_kinds_in_json(downloads, tmp_path, file):
    path = downloads.copy_with(file, tmp_path / "copy")
    tree = json.loads(path.read_text())
    # Large, and read by nobody.
    if file.dataset == "covid":
        del tree["imageData"]
    content = json.dumps(tree)

    @settings(FUZZ, max_examples=60)
    @given(st.lists(st.tuples(st.integers(0, 10**6), JUNK, st.booleans()), min_size=1, max_size=2))
    def fuzz(changes):
        tree = json.loads(content)
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
        path.write_text(json.dumps(tree))
        read(file, tmp_path / "copy")

    fuzz()


CELLS = ["", " ", "-1", "0", "1", "2", "1.0", "nan", "inf", "1e3", "1e9", "9" * 400, "x", "../x", "1 2", "4 -1"]
CELLS += ["No finding"]


@pytest.mark.parametrize("file", [file for file in ANNOTATION_FILES if file.path.endswith(".csv")], ids=str)
def test_other_cells_in_tables(downloads, tmp_path, file):
    path = downloads.copy_with(file, tmp_path / "copy")
    table = [line.split(",") for line in path.read_text().splitlines()]

    @FUZZ
    @given(
        st.lists(
            st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(CELLS)), min_size=1, max_size=3
        )
    )
    def fuzz(changes):
        other = [list(row) for row in table]
        for row, column, cell in changes:
            cells = other[row % len(other)]
            cells[column % len(cells)] = cell
        path.write_text("".join(",".join(cells) + "\n" for cells in other))
        read(file, tmp_path / "copy")

    fuzz()
