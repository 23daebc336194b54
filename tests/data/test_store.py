from __future__ import annotations

import importlib.metadata
import inspect
import json
import multiprocessing
import os
import pickle
import re
import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import pytest
from downloads import CLASSES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from plugin.pictures import Pictures, write_pictures

from xbench.commands.prepare import prepare
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.datasets.downloaded import DownloadedDataset
from xbench.data.datasets.phantom import PhantomCXR
from xbench.data.records import PreparedImage, Record
from xbench.data.store import PreparedStore, describe, pack, record_key, unpack
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape
from xbench.geometry.transforms import CenterCrop, PillowResize
from xbench.runtime import digests
from xbench.runtime.digests import digest
from xbench.runtime.errors import UserError

GEOMETRY = Preprocessing(stretch((32, 32)))


def same(one: PreparedImage | None, other: PreparedImage | None) -> bool:
    if one is None or other is None:
        return one is other
    arrays = [[(a.dtype, a.shape, a.tobytes()) for a in (image.pixels, image.display)] for image in (one, other)]
    told = [
        (i.view, i.findings, i.notes, i.coverage, i.reader_agreement, i.image_size, i.instances) for i in (one, other)
    ]
    return told[0] == told[1] and arrays[0] == arrays[1]


def pictures(tmp_path: Path, count: int = 6, **options) -> Pictures:
    root = tmp_path / "pictures"
    if not root.exists():
        write_pictures(root, count)
    return Pictures(str(root), cache=str(tmp_path / "cache"), **{"num_workers": 0, **options})


def decoded(data: ChestXrayDataModule, preprocessing: Preprocessing = GEOMETRY) -> list[PreparedImage]:
    samples = replace(data.samples(preprocessing), store=None)
    return [samples.read(record)[0] for record in data.records]


def stored(data: ChestXrayDataModule, preprocessing: Preprocessing = GEOMETRY) -> list[PreparedImage | None]:
    data.setup("test")
    store = data.store_for(preprocessing)
    return [store.read(record) for record in data.records]


def instances() -> st.SearchStrategy[Shape]:
    numbers = hnp.arrays(np.float64, st.integers(0, 5), elements=st.floats(-1e6, 1e6))
    kinds, sides = st.sampled_from(["box", "polygon", "mask"]), st.tuples(st.integers(1, 9), st.integers(1, 9))
    return st.builds(Shape, kinds, sides, numbers, st.text(max_size=4), st.booleans())


@st.composite
def prepared_images(draw) -> PreparedImage:
    findings = tuple(draw(st.lists(st.text(max_size=8), max_size=4, unique=True)))
    sides = st.tuples(st.integers(1, 9), st.integers(1, 9))
    size = draw(sides)
    pixels = hnp.array_shapes(min_dims=2, max_dims=2, max_side=9).flatmap(
        lambda shape: st.sampled_from([np.uint8, np.float32]).flatmap(lambda dtype: hnp.arrays(dtype, shape))
    )
    return PreparedImage(
        draw(pixels),
        draw(st.tuples(*[st.floats(-3, 3)] * 4)),
        draw(hnp.arrays(np.uint8, size)),
        findings,
        tuple(Coverage.of(draw(hnp.arrays(np.bool_, draw(sides))), size) for _ in findings),
        tuple(draw(st.lists(st.text(max_size=8), max_size=2))),
        draw(st.dictionaries(st.sampled_from(findings), st.tuples(*[st.floats(0, 1)] * 2))) if findings else {},
        draw(st.none() | sides),
        draw(st.dictionaries(st.sampled_from(findings), st.lists(instances(), min_size=1).map(tuple)))
        if findings
        else {},
    )


@given(prepared_images())
def test_a_file_gives_the_image_back(image):
    assert same(unpack(pack(image)), image)


@pytest.mark.parametrize("grid", [24, (20, 30), "native"], ids=str)
@pytest.mark.parametrize(
    "geometry",
    [stretch((32, 32)), [PillowResize(28), CenterCrop(28)], [A.Resize(9, 7), A.ToFloat(255)]],
    ids=["stretch", "crop", "float"],
)
def test_images_are_the_same_with_and_without(tmp_path, grid, geometry):
    preprocessing = Preprocessing(geometry, (0.4,) * 3, (0.2,) * 3)
    data = pictures(tmp_path, grid=grid)
    prepare(data, preprocessing, progress=False)
    assert all(map(same, stored(data, preprocessing), decoded(data, preprocessing)))


class _Color(Enum):
    RED = 1


@dataclass(frozen=True)
class _Part:
    x: object
    y: object = None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    path.write_bytes(b"0123456789")
    return path


SOURCES = [
    None, True, 1, 1.0, "1", b"1", 0.0, -0.0, float("nan"), (), {}, set(), (1, 2), (1, (2,)), ((1,), 2), ("a", "b"),
    ("a,b",), ("a', 'b",), {"a": 1, "b": 2}, {1, 2}, Path("a"), Path("b"), "a", _Part(1), _Part("1"), _Part(1, 2),
    _Part((1, 2)), _Part(_Part(1)), (1, None), np.zeros(2), np.zeros((1, 2)), np.zeros(2, np.uint8), np.float32(0),
    np.ones(2), {"a": {"b": [_Part(np.ones(3))]}},
]  # fmt: skip


def test_sources_that_differ_have_keys_that_differ(file):
    keys = [record_key(Record("image", {}, source, files=(file,))) for source in SOURCES]
    assert None not in keys
    assert len(set(keys)) == len(SOURCES)
    again = [record_key(Record("image", {"Any": 1}, pickle.loads(pickle.dumps(s)), files=(file,))) for s in SOURCES]
    assert again == keys


HOLDS_ITSELF: list[object] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)
OTHERS = [lambda: 0, object(), _Color.RED, np.array([object()]), [{"a": iter("b")}], HOLDS_ITSELF]


@pytest.mark.parametrize("source", OTHERS)
def test_a_source_of_other_things_cannot_be_prepared(source, file):
    assert record_key(Record("image", {}, source, files=(file,))) is None


def test_the_key_notices_every_change_of_a_file(file):
    record = Record("image", {}, 1, files=(file,))
    keys = {record_key(record), record_key(replace(record, image_id="other")), record_key(replace(record, files=()))}
    before = file.stat()
    file.write_bytes(b"012345678X")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    keys.add(record_key(record))
    os.utime(file, ns=(1, 1))
    keys.add(record_key(record))
    file.write_bytes(b"0123456789-")
    keys.add(record_key(record))
    link = file.with_name("link")
    link.symlink_to(file)
    keys.add(record_key(replace(record, files=(link,))))
    file.with_name("moved").hardlink_to(file)
    keys.add(record_key(replace(record, files=(file.with_name("moved"),))))
    assert len(keys) == 8
    assert None not in keys


def digest_of(data: ChestXrayDataModule, preprocessing: Preprocessing = GEOMETRY) -> str:
    return digest(describe(data, preprocessing))[:16]


def test_options_change_the_digest_if_they_change_pixels(tmp_path):
    data = pictures(tmp_path)
    expected = digest_of(data)
    others = pictures(tmp_path, limit=3, batch_size=5, num_workers=2, on_error="skip", gamma=0.4)
    others.cache = str(tmp_path / "elsewhere")
    others.setup("test")
    others.samples(GEOMETRY)
    assert digest_of(others) == expected
    assert digest_of(data, Preprocessing(stretch((32, 32)), (0.5,) * 3, (0.1,) * 3)) == expected
    for options in ({"grid": 100}, {"grid": (224, 225)}, {"grid": "native"}, {"inverted": True}):
        assert digest_of(pictures(tmp_path, **options)) != expected, options


class _Shifted(PillowResize):
    def apply(self, img, **params):
        return super().apply(img, **params) ^ 1


class _Softened(Preprocessing):
    def __init__(self, strength: float) -> None:
        super().__init__(stretch((32, 32)))
        self.strength = strength


def test_every_geometry_has_a_digest_of_its_own(tmp_path):
    data = pictures(tmp_path)
    geometries = [
        stretch((32, 32)),
        stretch((32, 33)),
        [A.Resize(32, 32, interpolation=cv2.INTER_LINEAR)],
        [PillowResize(32, "both")],
        [PillowResize(32, "both", "bilinear")],
        [_Shifted(32, "both")],
        [PillowResize(32), CenterCrop(32)],
        [A.CLAHE(p=1), *stretch((32, 32))],
        [A.Sequential([A.CLAHE(p=1), *stretch((32, 32))], p=1)],
    ]
    digests = {digest_of(data, Preprocessing(geometry)) for geometry in geometries}
    digests |= {digest_of(data, _Softened(strength)) for strength in (0.5, 0.6)}
    assert len(digests) == len(geometries) + 2


def test_every_version_of_a_library_and_line_of_code_has_a_digest_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "my_data.py").write_text("from plugin.pictures import Pictures\nclass Mine(Pictures): pass\n")
    (tmp_path / "my_filter.py").write_text("def turned(image, **_):\n    return image ^ 1\n")
    (tmp_path / ".#my_data.py").symlink_to(tmp_path / "nowhere")
    package = tmp_path / "xbench"
    for name in ("data/decoding.py", "geometry/shapes.py", "report/names.py"):
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text("a")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(digests, "_PACKAGE", package)
    monkeypatch.setattr(digests, "_own", digests._own.__wrapped__)
    import my_data
    import my_filter

    own, theirs = pictures(tmp_path), my_data.Mine(str(tmp_path / "pictures"))
    geometry = Preprocessing([A.Lambda(image=my_filter.turned, name="turned"), *stretch((32, 32))])

    def now() -> list[str]:
        return [digest_of(own), digest_of(theirs), digest_of(own, geometry)]

    def moved() -> list[bool]:
        return [new != old for new, old in zip(now(), before, strict=True)]

    before = now()

    for path, changes in (
        (package / "data/decoding.py", [True, True, True]),
        (package / "geometry/shapes.py", [True, True, True]),
        (package / "report/names.py", [False, False, False]),
        (tmp_path / "my_filter.py", [False, True, True]),
    ):
        text = path.read_text()
        path.write_text(f"{text}# b\n")
        assert moved() == changes, path
        path.write_text(text)
    version = importlib.metadata.version
    for library in ("opencv-python-headless", "pillow", "pydicom", "albumentations", "pycocotools"):
        with monkeypatch.context() as patched:
            patched.setattr(
                importlib.metadata, "version", lambda name, other=library: "0.0" if name == other else version(name)
            )
            assert moved() == [True] * 3, library
    del sys.modules["my_data"], sys.modules["my_filter"]


def test_a_data_module_that_cannot_be_described_is_decoded_as_usual(tmp_path):
    data = pictures(tmp_path)
    prepare(data, GEOMETRY, progress=False)
    data.table = {"a": [object()]}
    with pytest.raises(UserError, match="'table'"):
        prepare(data, GEOMETRY, progress=False)
    assert data.samples(GEOMETRY).store is None


def test_what_has_no_file_or_no_name_cannot_be_described(tmp_path):
    kind = type("Typed", (Pictures,), {"__module__": "nowhere"})
    with pytest.raises(UserError, match="nowhere"):
        describe(kind(str(tmp_path)), GEOMETRY)
    with pytest.raises(UserError, match="cannot be serialized"):
        describe(pictures(tmp_path), Preprocessing([A.Lambda(image=lambda image, **_: image)]))


def test_the_datasets_of_the_package_load_an_image_from_its_record_alone():
    """Their options are no part of the digest; their class is, and messages may name the root and the files read."""

    def used(method):
        return {*re.findall(r"self\.(\w+)", inspect.getsource(method))}

    for cls in (DownloadedDataset, *CLASSES.values(), PhantomCXR):
        called = {name for name in used(cls.load) if inspect.isfunction(getattr(cls, name, None))}
        for method in (cls.load, *(getattr(cls, name) for name in called)):
            assert used(method) <= {"root", "_files_read", "name", "percentiles", "states_sizes", *called}, cls


def test_an_image_that_changes_while_it_is_read_is_not_kept(tmp_path, monkeypatch, capsys):
    data = pictures(tmp_path)
    load = Pictures.load

    def meddle(self, record):
        radiograph = load(self, record)
        if record.image_id == "picture-001":
            os.utime(record.files[0])
        return radiograph

    monkeypatch.setattr(Pictures, "load", meddle)
    prepare(data, GEOMETRY, progress=False)
    assert [image is None for image in stored(data)] == [False, True, False, False, False, False]
    assert "changed" in capsys.readouterr().out


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Record, bytes, PreparedImage]:
    data = pictures(tmp_path_factory.mktemp("whole"), count=1, grid=12)
    prepare(data, GEOMETRY, progress=False)
    (file,) = data.store_for(GEOMETRY).folder.glob("*.image")
    return data.records[0], file.read_bytes(), decoded(data)[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_counts_as_absent(tmp_path, whole, data):
    record, content, expected = whole
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.none() | st.integers(0, len(content)))] + data.draw(st.binary(max_size=200))
    (tmp_path / f"{record_key(record)}.image").write_bytes(damaged)
    assert same(PreparedStore(tmp_path).read(record), expected if damaged == content else None)


@pytest.mark.parametrize("damage", ["flipped", "gone", "killed while it was written"])
def test_prepare_replaces_what_is_damaged(tmp_path, damage, capsys):
    data = pictures(tmp_path)
    prepare(data, GEOMETRY, progress=False)
    folder = data.store_for(GEOMETRY).folder
    path = sorted(folder.glob("*.image"))[3]
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "flipped":
        content[-7] ^= 4
        path.write_bytes(content)
    else:
        path.rename(path.with_suffix(".partial"))
    assert sum(image is None for image in stored(data)) == 1
    capsys.readouterr()
    prepare(data, GEOMETRY, progress=False)
    assert "already there: 5, prepared: 1" in capsys.readouterr().out
    assert all(map(same, stored(data), decoded(data)))
    assert {path.suffix for path in folder.iterdir()} == {"", ".image", ".json"}
    assert folder.name == f"pictures-{digest(json.loads((folder / 'about.json').read_text()))[:16]}"
    prepare(data, GEOMETRY, progress=False)
    assert "already there: 6" in capsys.readouterr().out


def test_a_second_writer_is_turned_away(tmp_path):
    data = pictures(tmp_path)
    data.setup("test")

    def be_turned_away():
        with pytest.raises(UserError, match="Another process"):
            prepare(data, GEOMETRY, progress=False)

    process = multiprocessing.get_context("fork").Process(target=be_turned_away)
    with data.store_for(GEOMETRY).writing():
        process.start()
        process.join(30)
    assert process.exitcode == 0
    prepare(data, GEOMETRY, progress=False)
    assert None not in stored(data)


def test_the_folder(tmp_path, monkeypatch):
    data = pictures(tmp_path)
    data.cache = True
    for name in ("XBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    name = f"pictures-{digest_of(data)}"
    assert data.store_for(GEOMETRY).folder == tmp_path / "home" / ".cache" / "xbench" / name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data.store_for(GEOMETRY).folder == tmp_path / "xdg" / "xbench" / name
    monkeypatch.setenv("XBENCH_CACHE", "$HOME/mine")
    assert data.store_for(GEOMETRY).folder == tmp_path / "home" / "mine" / name
    data.cache = "~/given"
    assert data.store_for(GEOMETRY).folder == tmp_path / "home" / "given" / name
    data.cache = False
    with pytest.raises(UserError, match=r"--data\.cache false"):
        data.store_for(GEOMETRY)
    assert data.find_store(GEOMETRY) is None
