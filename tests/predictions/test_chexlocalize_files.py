"""Files of CheXlocalize: numbers in pickles are read, and nothing in them runs; masks are those of pycocotools."""

from __future__ import annotations

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from bounded import assert_outcomes
from hypothesis import given
from hypothesis import strategies as st

from xbench.predictions.chexlocalize import decoded, read_pickle
from xbench.predictions.files import as_map, named
from xbench.runtime.errors import UserError

VALUES = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6) / 7
CONTENT = {
    "map": torch.from_numpy(VALUES),
    "prob": np.float32(0.25),
    "task": "Edema",
    "gt": np.zeros(1),
    "cxr_img": torch.zeros(3, 4, 6),
    "cxr_dims": (6, 4),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "one",
    [
        torch.from_numpy(VALUES),
        torch.from_numpy(VALUES.transpose(0, 1, 3, 2).copy()).transpose(2, 3),
        torch.from_numpy(np.pad(VALUES, ((0, 0), (0, 0), (2, 1), (1, 1))))[:, :, 2:-1, 1:-1],
        torch.from_numpy(VALUES).requires_grad_(),
        VALUES,
        np.asfortranarray(VALUES[0, 0]),
        VALUES.astype(">f4"),
    ],
    ids=["tensor", "transposed", "view", "gradient", "array", "fortran", "big-endian"],
)
@pytest.mark.parametrize("probability", [0.25, np.float32(0.25), np.float64(0.25), torch.tensor([0.25])])
def test_numbers_come_back(one, probability, protocol):
    saliency, read = read_pickle(pickle.dumps({**CONTENT, "map": one, "prob": probability}, protocol))
    assert np.array_equal(as_map(saliency), VALUES[0, 0])
    assert read == 0.25


def test_arrays_of_python_2_come_back():
    written = pickle.dumps({"map": VALUES[0, 0]}, 3).replace(b"C\x60", b"U\x60")  # Python 2 pickled bytes as texts
    assert np.array_equal(as_map(read_pickle(written)[0]), VALUES[0, 0])


class Calls:
    def __init__(self, function, *given):
        self.how = function, given

    def __reduce__(self):
        return self.how


def refused(content):
    with pytest.raises(UserError) as error, named("here", "it.pkl"):
        read_pickle(content)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("key", ["map", "cxr_img", "anything"])
def test_a_hostile_pickle_is_refused_by_name(key, tmp_path):
    told = refused(pickle.dumps({**CONTENT, key: Calls(os.system, f"touch {tmp_path / 'ran'}")}))
    assert f"{os.system.__module__}.system" in told
    assert not [*tmp_path.iterdir()]


def test_a_pickle_in_a_storage_runs_nothing(tmp_path):
    inner = pickle.dumps(Calls(os.system, f"touch {tmp_path / 'ran'}"), 2)
    rebuilt = Calls(torch._utils._rebuild_tensor_v2, Calls(torch.storage._load_from_bytes, inner), 0, (2, 2), (2, 1))
    refused(pickle.dumps({"map": rebuilt}))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("size", [(9, 9), (1 << 40, 1), (-1, 4), (4, 7)])
def test_a_tensor_larger_than_its_values_is_refused(size):
    storage = torch.zeros(24).reshape(4, 6)._typed_storage()
    refused(pickle.dumps({"map": Calls(torch._utils._rebuild_tensor_v2, storage, 0, size, (6, 1))}))


@pytest.mark.parametrize("content", [{}, [], {"map": "text"}, {"map": np.array([None])}, {"map": None}])
def test_what_is_no_map_is_refused(content):
    refused(pickle.dumps(content))


@given(st.data())
def test_damaged_files_are_refused_or_read(data):
    whole = pickle.dumps(CONTENT)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    for content in (whole[:place], changed):
        try:
            with named("here", "it.pkl"):
                as_map(read_pickle(content)[0])
        except UserError as error:
            assert "\n" not in str(error)


def write_bombs(folder):
    """Write files of which a few bytes ask for minutes or gigabytes, in a pickle or in a storage of PyTorch in it."""
    sound = pickle.dumps(CONTENT, 4)[:-1]  # without its end

    def storage(content):
        rebuilt = Calls(torch._utils._rebuild_tensor_v2, Calls(torch.storage._load_from_bytes, content), 0, (2,), (1,))
        return pickle.dumps({"map": rebuilt})

    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}))
        archive.writestr("a/data/0", bytes(2**28))
    legacy = io.BytesIO()
    torch.save(torch.zeros(2)._typed_storage(), legacy, _use_new_zipfile_serialization=False)
    claims = legacy.getvalue()[:-16] + (2**36).to_bytes(8, "little") + bytes(8)
    doubled = b")" + b"2\x86" * 64
    shared = b")\x94" + b"".join(b"h%ch%c\x86\x94" % (at, at) for at in range(60))
    bombs = {
        "key": b"}" + shared + b"N" + b"s0" + sound[2:],
        "doubled": doubled + b"0" + sound[2:],
        "memo": b"Nr\xff\xff\xff\x7f0" + sound[2:],
        "steps": b"N0" * 10**7 + sound[2:],
        "bytes": b"\x8e" + (2**40).to_bytes(8, "little"),
        "bytearray": b"\x96" + (2**36).to_bytes(8, "little"),
        "long": b"\x8b" + (2**30).to_bytes(4, "little") + bytes(9),
        "marks": b"(" * 10**7,
        "nested": b"]" * 9000 + b"a" * 8999 + b".",
        "encoded": b"c_codecs\nencode\n\x94X" + (2**24).to_bytes(4, "little") + b"x" * 2**24
        + b"\x94h\x00h\x01X\x06\x00\x00\x00latin1\x86R" * 2000 + b".",
        "called": b"cnumpy\ndtype\n\x94X" + (2**24).to_bytes(4, "little") + b"x" * 2**24 + b"\x94"
        + b"h\x00h\x01R" * 2000 + b".",
        "elsewhere": b"X" + (2**24).to_bytes(4, "little") + b"x" * 2**24 + b"\x94" + b"h\x00Q" * 2000 + b".",
        "names": b"cbuiltins\nbytearray\n\x8a\x05" + (2**36).to_bytes(5, "little") + b"\x85R.",
    }  # fmt: skip
    made = {name: b"\x80\x04" + content for name, content in bombs.items()}
    inner = b"\x80\x02" + bombs["names"]
    made |= {"zip": storage(zipped.getvalue()), "claims": storage(claims), "inner": storage(inner)}
    huge = Calls(torch._utils._rebuild_tensor_v2, torch.zeros(2)._typed_storage(), 0, (1 << 10**6,) * 9, (1,) * 9)
    made["sizes"] = pickle.dumps({"map": huge})
    text = Calls(torch._utils._rebuild_tensor_v2, torch.zeros(2)._typed_storage(), 0, "x" * 2**25, (1,))
    made["letters"] = pickle.dumps({"map": text})
    for name, content in made.items():
        (folder / f"{name}.pkl").write_bytes(content)
    return [*made]


def test_bombs_are_refused_within_a_second(tmp_path):
    (folder := tmp_path / "bombs").mkdir()

    def read(path):
        with named(path.parent, path.name):
            return as_map(read_pickle(path.read_bytes())[0]).shape

    assert_outcomes(
        folder, dict.fromkeys((f"{name}.pkl" for name in write_bombs(folder)), "cannot be read"), read, 2**28, 1
    )


@pytest.mark.parametrize("counts", ["", "zz", "o", "0", "1" * 40, "P" * 9, 7, None])
def test_masks_that_are_none_are_refused(counts):
    with pytest.raises(ValueError):
        decoded({"size": [3, 4], "counts": counts})
