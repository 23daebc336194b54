from __future__ import annotations

import io
import json
import pickle
import tarfile
import time
import zipfile
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from xbench.geometry.transforms import CenterCrop, PillowResize, Preprocessing
from xbench.predictions.chexlocalize import read_points, read_tuned
from xbench.predictions.declared import contradictions, preprocessing_of, shape_problem
from xbench.predictions.files import Files, as_map, named, read_npy, read_npz, read_picture
from xbench.predictions.json_grammar import without_boxes
from xbench.predictions.source import MapFiles, Names
from xbench.predictions.tables import read_answered, read_scores
from xbench.runtime.errors import UserError
from xbench.runtime.files import IMAGE_SUFFIXES

MAPS = arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(-9, 9, width=32))


def saved(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@given(MAPS, st.sampled_from([np.float16, np.float32, np.float64, np.int16, np.uint8, np.bool_]))
def test_arrays_come_back(values, dtype):
    made = np.abs(values).astype(dtype)
    assert np.array_equal(as_map(read_npy(saved(made[None]))), made.astype(np.float32))
    file = io.BytesIO()
    np.savez_compressed(file, one=made)
    assert np.array_equal(as_map(read_npz(file.getvalue())["one"]), made.astype(np.float32))


@given(MAPS, st.data())
def test_cut_off_and_changed_files_are_refused_or_read(values, data):
    whole = saved(values)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(UserError, match=r"here/it\.npy"), named("here", "it.npy"):
        read_npy(cut)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    try:
        with named("here", "it.npy"):
            as_map(read_npy(changed))
    except UserError as error:
        assert "\n" not in str(error)


@given(st.binary(max_size=300))
def test_noise_is_refused(content):
    for read in (read_npy, read_npz, read_picture):
        with pytest.raises(UserError), named("here", "it"):
            assert not read(content)
            raise ValueError


class Bomb:
    def __reduce__(self):
        return print, ("a stranger's code ran",)


def test_objects_are_never_loaded(capsys):
    for content in (saved(np.array([Bomb()], object), allow_pickle=True), pickle.dumps(Bomb())):
        with pytest.raises(UserError), named("here", "it"):
            read_npy(content)
    assert not capsys.readouterr().out


def test_what_is_no_map():
    shapes = np.zeros((2, 3, 3)), np.zeros(3), np.zeros((0, 3))
    for array in (*shapes, np.array([["a"]]), np.ones((2, 2), complex), np.full((2, 2), 1e39)):
        with pytest.raises(ValueError, match=r"shape|values"):
            as_map(array)


def test_a_header_that_claims_much_takes_no_memory():
    content = saved(np.zeros((2, 2))).replace(b"(2, 2)", b"(9**9)")
    claims = saved(np.zeros((2, 2))).replace(b"(2, 2), }    ", b"(99999, 9999)")
    for one in (content, claims):
        with pytest.raises(UserError), named("here", "it"):
            read_npy(one)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_pictures(dtype):
    values = np.arange(12).reshape(3, 4).astype(dtype)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF" if dtype == np.float32 else "PNG")
    assert np.array_equal(read_picture(file.getvalue()), values)
    Image.new("RGB", (3, 3)).save(file := io.BytesIO(), "PNG")
    with pytest.raises(ValueError, match="no colors"):
        read_picture(file.getvalue())


def test_damaged_archives(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"a\.tar cannot be read"):
        Files(tmp_path / "a.tar")


@given(st.integers(224, 600), st.integers(224, 600))
def test_a_frame_is_that_of_the_same_preprocessing(height, width):
    image = np.zeros((height, width), np.uint8)
    theirs = Preprocessing([PillowResize(512), CenterCrop(480)])(image)[1]
    assert preprocessing_of("shortest:512,crop:480")(image)[1] == theirs
    left, top, right, bottom = preprocessing_of("longest:64,pad:64")(image)[1]
    assert min(left, top) <= 0 and max(right, bottom) >= 1


@pytest.mark.parametrize(
    "frame", ["", "half", "crop:9", "shortest:9", "shortest:8,crop:9", "shortest:8,pad:8", "pad:9"]
)
def test_no_frames(frame):
    with pytest.raises(UserError, match="give whole"):
        preprocessing_of(frame)


ROW = "image,finding,probability"
CORNERS = "image,finding,x0,y0,x1,y1"
BOX = {"image": "a", "finding": "b", "boxes": [[0.1, 0.2, 0.3, 0.4]]}
RESULT = {"image_id": "a", "category_id": "b", "bbox": [1, 2, 3, 4], "score": 0.5}


def results(**change):
    return json.dumps([RESULT, RESULT | change])


def lines(**change):
    return f"{json.dumps(BOX)}\n{json.dumps(BOX | change)}\n"


def tuned(path):
    return read_tuned([path], ["Nodule"], ["0.5"], lambda _: ())


@pytest.mark.parametrize(
    ("read", "name", "text", "said"),
    [
        (read_scores, "it.csv", f"{ROW}\na,b,1.5\n", ["not a probability"]),
        (read_scores, "it.csv", f"{ROW}\na,b,x\n", ["not a probability"]),
        (read_scores, "it.csv", f"{ROW}\na,b,inf\n", ["not a probability"]),
        (read_scores, "it.csv", f"{ROW}\na,b,1\na,b,0\n", ["two scores"]),
        (read_scores, "it.csv", "a,b\n1,2\n", ["must be called image"]),
        (read_scores, "it.csv", "image,a,a\n1,0,1\n", ["twice"]),
        (read_scores, "it.csv", f"{ROW}\na,b,0.5\nc,b,1_0\n", ["image c, finding b"]),
        (read_scores, "it.csv", "image,Nodule\na,0.5\nb\n", ["cannot be read"]),
        (read_answered, "it.csv", f"{CORNERS}\na,b,1,2,3,4\na,b,5,2,3,4\n", ["row 3", "width and height"]),
        (read_answered, "it.csv", f"{CORNERS}\na,b,0,0,0,0\n", ["row 2", "without corners"]),
        (read_answered, "it.csv", f"{CORNERS},x1\na,b,1,2,3,4,5\n", ["x1", "twice"]),
        (read_answered, "it.csv", f"{CORNERS}\na,b,1,2,3,4,5\n", ["row 2", "7 values for the 6 columns"]),
        (read_answered, "it.csv", f"{CORNERS}\na,b,1,2,3,4\na,b,1,2,3", ["row 3", "5 values", "cut off"]),
        (read_answered, "it.csv", f"{CORNERS}\na,b,1_0,2,30,4\n", ["row 2", "'1_0'"]),
        (read_answered, "it.csv", f"{CORNERS}\na,b,1,2,\u0663,4\n", ["row 2", "not a number"]),
        (read_answered, "it.csv", f"{CORNERS},score\na,b,1,2,3,4,0_1\n", ["row 2", "'0_1'"]),
        (read_answered, "it.csv", f'{CORNERS}\na,"b,1,2,3,4\n', ["cannot be read"]),
        (read_answered, "it.csv", "image,finding,x0,y0,x1\n", ["lacks", "y1"]),
        (read_answered, "it.jsonl", '{"image": "a", "text": ""}', ["lacks finding", "--family report"]),
        (read_answered, "it.json", results(bbox=[1, 2, -3, 4]), ["entry 2", "corners"]),
        (read_answered, "it.json", results(bbox=[1, 2, "3", 4]), ["entry 2", "'3'"]),
        (read_answered, "it.json", results(bbox=[True, 2, 3, 4]), ["entry 2", "True"]),
        (read_answered, "it.json", results(bbox=[1, 2, 10**400, 4]), ["entry 2"]),
        (read_answered, "it.json", results(score="0.5"), ["entry 2", "score"]),
        (read_answered, "it.json", results(image_id=None), ["entry 2", "None"]),
        (read_answered, "it.json", f'[{json.dumps(RESULT)[:-1]}, "bbox": [1, 2, 30, 40]}}]', ["'bbox' occurs twice"]),
        (read_answered, "it.jsonl", lines(boxes=[[0.3, 0.2, 0.1, 0.4]]), ["line 2", "width and height"]),
        (read_answered, "it.jsonl", lines(boxes=[["0.1", 0.2, 0.3, 0.4]]), ["line 2", "'0.1'"]),
        (read_answered, "it.jsonl", lines(scores=[]), ["line 2", "lists of the same length"]),
        (read_answered, "it.jsonl", lines(boxes=7), ["line 2", "lists of the same length"]),
        (read_answered, "it.jsonl", lines(boxes=[1, 2, 3, 4]), ["line 2", "1 is not a box of four numbers"]),
        (read_answered, "it.jsonl", lines()[:-9], ["line 2"]),
        (
            read_answered,
            "it.jsonl",
            '{"image": "a", "finding": "b", "answer": "", "finish": "end"}',
            ["finish", "'end'"],
        ),
        (read_answered, "it.jsonl", '{"image": "a", "boxes": [], "boxes": []}', ["line 1", "'boxes' occurs twice"]),
        (read_points, "it.json", '{"a": {"b": [[1, 2]]}, "a": {"b": [[3, 4]]}}', ["'a' occurs twice"]),
        (read_points, "it.json", '{"a": {"b": [[1, 2, 3, 4]]}}', ["image a, finding b"]),
        (read_points, "it.json", '{"a": {"b": ["12"]}}', ["image a, finding b"]),
        (read_points, "it.json", '{"a": {"b": [["1_0", "2"]]}}', ["image a, finding b"]),
        (read_points, "it.json", '{"a": {"b": [[1, null]]}}', ["image a, finding b"]),
        (tuned, "it.csv", "threshold,task,task\n0.5,Nodule,Mass\n", ["task"]),
    ],
)
def test_files_that_are_refused(tmp_path, read, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as caught:
        read(tmp_path / name)
    assert all(part in str(caught.value) for part in (name, *said)) and "\n" not in str(caught.value), caught.value


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("image,Nodule,Mass\n007,0.25,\n008,1,0.5\n", {"007 Nodule": 0.25, "008 Nodule": 1, "008 Mass": 0.5}),
        (f'{ROW}\na,b," 0.5"\nc,b,\n', {"a b": 0.5}),
    ],
)
def test_tables_of_scores(tmp_path, text, scores):
    (tmp_path / "it.csv").write_text(text)
    assert read_scores(tmp_path / "it.csv") == {(*pair.split(),): (value,) * 2 for pair, value in scores.items()}


@given(st.lists(st.tuples(*[st.sampled_from([-1.0, -0.0, 0.0, 0.25, 0.5, 1.0])] * 2), max_size=12))
def test_contradictions_are_pairs_in_another_order(scores):
    unlike = compared = 0
    for (logit, score), (other, another) in combinations(scores, 2):
        compared += logit != other and score != another
        unlike += (logit - other) * (score - another) < 0
    found = contradictions({(str(image), "Mass"): both for image, both in enumerate(scores)}, ["Mass", "Nodule"])
    assert [image for _, image in found] == [str(image) for image in range(len(scores) * (unlike > 0.01 * compared))]
    assert all(f" {unlike / compared:.0%} of" in text for text, _ in found)


def test_results_go_by_the_numbers_of_the_annotation_file(tmp_path):
    results = [{"image_id": 1, "category_id": category, "bbox": [1, 2, 3, 4]} for category in (3, 4)]
    results += [RESULT, RESULT | {"image_id": 2}]
    (tmp_path / "it.json").write_text(json.dumps(results))
    found = read_answered(tmp_path / "it.json", ({1: "film", 7: "2"}, {3: "Nodule", 4: "Nodule"}))[1]
    # The image called 2 has another number there.
    assert {*found} == {("film", "Nodule"), ("a", "b"), ("id 2", "b")}
    assert len(json.loads(found["film", "Nodule"].text)["boxes"]) == 2


IDS = st.builds(
    "{}{}".format,
    st.sampled_from(["a", "b/a", "c/b/a", "1.2.3"]),
    st.sampled_from(["", ".png", ".PNG", ".dcm", ".jpg", ".4"]),
)


@given(st.lists(IDS, min_size=1, unique=True), IDS)
def test_a_row_reaches_the_image_of_its_name_or_the_only_one_that_it_may_mean(images, name):
    """A whole name wins, then one without ending, then the last parts of a path; several are refused."""

    def bare(one):
        stem, dot, ending = one.rpartition(".")
        return stem if (dot + ending).lower() in IMAGE_SUFFIXES else one

    meant = [name] if name in images else [image for image in images if bare(image) == bare(name)]
    meant = meant or [image for image in images if bare(image).endswith(f"/{bare(name)}")]
    if len(meant) > 1:
        with pytest.raises(UserError) as error:
            Names(images, ["Nodule"]).match({(name, "Nodule"): name}, "--scores")
        assert all(repr(one) in str(error.value) for one in (name, *meant))
        return
    found, unknown = Names(images, ["Nodule"]).match({(name, "Nodule"): name}, "--scores")
    assert found == {(image, "Nodule"): name for image in meant}
    assert unknown == [] if meant else [(name, "Nodule")]


def written(root, *names, value=1.0):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(root / name, np.full((2, 2), value))
    return root


@pytest.mark.parametrize(
    ("pattern", "place"),
    [("{image}/{finding}", "{}/Nodule.npy"), ("{finding}_{image}_map", "nodule_{}_map.npy"), ("{image}", "{}.npz")],
)
@pytest.mark.parametrize("ours", ["a/film00", "a/film00.png", "a/film00.dcm"])
@pytest.mark.parametrize("theirs", ["a/film00", "a/film00.png", "a/film00.PNG", "a/film00.jpeg"])
def test_map_files_go_by_the_image_with_or_without_an_ending(tmp_path, pattern, place, ours, theirs):
    path = tmp_path / place.format(theirs)
    path.parent.mkdir(parents=True)
    np.save(path, np.ones((2, 2))) if path.suffix == ".npy" else np.savez(path, Nodule=np.ones((2, 2)))
    source = MapFiles(tmp_path, Names([ours, "b/other"], ["Nodule"]), pattern)
    assert [*source.maps] == [(ours, "Nodule")] and not source.unknown
    assert source.read(ours)["Nodule"].shape == (2, 2)


def test_map_files_of_one_of_several_images_are_refused_by_name(tmp_path):
    written(tmp_path, "a/Nodule.npy")
    with pytest.raises(UserError, match=r"a/Nodule\.npy.*a\.png.*a\.dcm"):
        MapFiles(tmp_path, Names(["a.png", "a.dcm"], ["Nodule"]))
    # A whole name is nobody else's.
    source = MapFiles(tmp_path, Names(["a.png", "a"], ["Nodule"]))
    assert [*source.maps] == [("a", "Nodule")]
    written(tmp_path, "a.png/Nodule.npy")
    assert len(MapFiles(tmp_path, Names(["a.png", "a"], ["Nodule"])).maps) == 2
    with pytest.raises(UserError, match=r"a\.png/Nodule\.npy and a/Nodule\.npy"):
        MapFiles(tmp_path, Names(["a.png"], ["Nodule"]))


@pytest.mark.parametrize("second", ["./a/Nodule.npy", "a//Nodule.npy", "b/../a/Nodule.npy", "/a/Nodule.npy"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_one_file_under_two_names_of_an_archive_is_refused(tmp_path, kind, second):
    path = tmp_path / f"it.{kind}"
    with zipfile.ZipFile(path, "w") if kind == "zip" else tarfile.open(path, "w") as archive:
        for name, value in (("a/Nodule.npy", 0.0), (second, 1.0)):
            content = saved(np.full((2, 2), value))
            if kind == "zip":
                archive.writestr(name, content)
            else:
                (entry := tarfile.TarInfo(name)).size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    with pytest.raises(UserError) as error:
        Files(path)
    assert f"a/Nodule.npy and {second}" in str(error.value)


def test_arrays_of_one_finding_under_two_names_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", Nodule=np.zeros((2, 2)), nodule=np.ones((2, 2)))
    with pytest.raises(UserError, match=r"a\.npz.*Nodule.*nodule"):
        MapFiles(tmp_path, Names(["a"], ["Nodule"]), "{image}")


def test_twenty_thousand_names_take_seconds(tmp_path):
    names = [f"{number:06}.png/Nodule.npy" for number in range(20_000)]
    with zipfile.ZipFile(tmp_path / "it.zip", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for name in (*names, names[-1]):
            archive.writestr(name, b"")
    began = time.process_time()
    with pytest.raises(UserError, match=r"019999\.png/Nodule\.npy twice"):
        Files(tmp_path / "it.zip")
    with tarfile.open(tmp_path / "it.tar", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    source = MapFiles(tmp_path / "it.tar", Names([name.partition("/")[0] for name in names], ["Nodule"]))
    assert len(source.maps) == len(names) and time.process_time() - began < 10


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_logits_contradict_probabilities_where_more_than_one_pair_of_a_hundred_does(both):
    pairs = [(a, b) for a, b in combinations(both, 2) if a[0] != b[0] and a[1] != b[1]]
    other = sum((a[0] < b[0]) != (a[1] < b[1]) for a, b in pairs)
    doubts = contradictions({(f"image{place}", "Nodule"): one for place, one in enumerate(both)}, ["Nodule"])
    assert len(doubts) == (len(both) if other > 0.01 * len(pairs) else 0)
    assert all(f"{other / len(pairs):.0%}" in text for text, _ in doubts)


@pytest.mark.parametrize(
    ("shape", "frame", "said"),
    [
        *(((80, 64), "whole", "exchanged"), ((40, 80), "whole", "neither"), ((45, 40), "longest:64,pad:64", "neither")),
        *(((64, 80), "whole", None), ((32, 40), "whole", None), ((14, 14), "whole", None), ((14, 14), "pad:64", None)),
    ],
)
def test_shapes_that_look_wrong(shape, frame, said):
    found = shape_problem(shape, (64, 80), frame)
    assert found is None if said is None else said in found


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("<unused94>right? <unused95>Left effusion.<end_of_turn>", "Left effusion."),
        ("<|ref|>Left mass<|/ref|><|box|>(12,34),(56,78)<|/box|>", "Left mass ,"),
        ("<obj>A mass <box><x1><y2><x3><y4></box></obj>", "A mass"),
        ("A nodule <5 mm, effusion >2 cm (3.5 cm) at [0.1, 0.2]<loc_7>", "A nodule <5 mm, effusion >2 cm (3.5 cm) at"),
    ],
)
def test_words_are_left_without_tags_thoughts_and_boxes(raw, words):
    assert " ".join(without_boxes(raw).split()) == words
