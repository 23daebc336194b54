from __future__ import annotations

import shutil

import numpy as np
import pytest
from run_files import change
from synthetic import write_run

from xbench.report.runs import collect
from xbench.runs.files import RunFileError
from xbench.runtime.errors import UserError

LATER = "2026-02-02_00-00-00"


def written(root, *runs):
    return [write_run(root, model, images=16, with_cases=False, **settings) for model, settings in runs]


def test_runs_are_found_at_any_depth_and_once(three_runs):
    kad = three_runs / "kad_chestxray14"
    found = collect([three_runs, kad, kad / "2026-01-01_00-00-00"])
    assert [run.label for run in found.runs] == ["CARZero", "CLIP", "KAD"] and found.set_aside == ()
    run = found.runs[2]
    assert (run.model, run.dataset, run.folder) == ("kad", "chestxray14", kad / "2026-01-01_00-00-00")
    assert len(run.cases()) == len(run.rows.counts.row) == run.images.scored.sum()


@pytest.fixture(scope="module")
def with_cases(tmp_path_factory):
    root = tmp_path_factory.mktemp("with_cases")
    write_run(root, "clip", images=16)
    return write_run(root, "kad", images=16)


def shown(run):
    cases = run.cases()
    read = [cases.read(*pair) for pair in cases]
    return [(case.saliency.tobytes(), case.view, case.region.tobytes(), case.display.tobytes()) for case in read]


@pytest.mark.parametrize("name", ["predictions.parquet", "truth.parquet", "pictures.parquet"])
def test_a_turned_bit_costs_a_run_its_pictures_and_nothing_else(with_cases, name):
    root, path = with_cases.parents[1], with_cases / name
    clip, sound = collect([root]).runs
    content, draw = path.read_bytes(), np.random.default_rng(0)
    described = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    lost = 0
    for trial in range(8):
        damaged = bytearray(content)
        damaged[int(draw.integers(described if trial % 3 == 0 else 0, len(content)))] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        found = collect([root])
        other, run = found.runs
        assert other.pictured and shown(other) == shown(clip)
        assert run.results == sound.results
        assert np.array_equal(run.images.dice, sound.images.dice, equal_nan=True)
        try:
            assert shown(run) == shown(sound)
        except RunFileError as error:
            assert error.folder == with_cases and name in str(error)
            lost += 1
    path.write_bytes(content)
    assert 1 < lost < 8
    found = collect([root], {with_cases: "damaged"})
    assert [(run.pictured, run.cases() is None) for run in found.runs] == [(True, False), (False, True)]
    assert [aside.folder for aside in found.set_aside] == [with_cases]


def test_pictures_of_another_run_are_left_out(with_cases, tmp_path):
    root = shutil.copytree(with_cases.parents[1], tmp_path / "runs")
    other = write_run(tmp_path, "kad", images=16, seed=1)
    (folder,) = root.glob("kad*/*")
    for name in ("predictions.parquet", "truth.parquet", "pictures.parquet"):
        shutil.copy(other / name, folder / name)
    (pairs,) = (run.cases() for run in collect([root]).runs if run.folder == folder)
    with pytest.raises(UserError, match=r"regions of truth\.parquet are not those of pairs\.parquet"):
        for pair in pairs:
            pairs.read(*pair)


def test_of_one_configuration_the_newest_counts(tmp_path):
    old, new = written(tmp_path, ("clip", {}), ("clip", {"stamp": LATER}))
    found = collect([tmp_path])
    assert [run.folder for run in found.runs] == [new]
    assert [(aside.folder, str(new) in aside.reason) for aside in found.set_aside] == [(old, True)]


def test_labels_say_what_tells_runs_apart_and_nothing_else(tmp_path):
    written(
        tmp_path,
        ("kad", {}),
        ("kad", {"prompt_source": "name.yaml", "stamp": LATER}),
        ("kad", {"dataset": "vindr"}),
        ("clip", {"image_size": 224}),
        ("clip", {"image_size": 448, "stamp": LATER}),
        ("carzero", {}),
        ("oracle", {}),
    )
    found = collect([tmp_path]).runs
    assert [(run.dataset, run.label) for run in found] == [
        ("chestxray14", "CARZero"),
        ("chestxray14", "CLIP"),
        ("chestxray14", "CLIP (448 px)"),
        ("chestxray14", "KAD"),
        ("chestxray14", "KAD (name prompts)"),
        ("chestxray14", "Oracle"),
        ("vindr", "KAD"),
    ]
    assert [run.label for run in found if run.is_reference] == ["Oracle"]


def test_runs_that_were_asked_something_else_are_told_apart(tmp_path):
    words = {"Nodule": ["lung nodule"]}
    of = {
        "official": {"ask": "official", "asked": {**words, "Hernia": ["hernia"]}},
        "dataset": {"ask": "dataset", "asked": words},
        # One name, other words for what is asked besides the findings.
        "a/mine.yaml": {"ask": ["Nodule", "Hernia"], "asked": {**words, "Hernia": ["a hernia"]}},
        "b/mine.yaml": {"ask": ["Nodule", "Hernia"], "asked": {**words, "Hernia": ["a bulge"]}},
    }
    for day, (source, asked) in enumerate(of.items(), start=1):
        worded = {"prompt_source": source} if "/" in source else {}
        written(tmp_path, ("kad", {**asked, **worded, "stamp": f"2026-01-0{day}_00-00-00"}))
    labels = {run.label for run in collect([tmp_path]).runs}
    assert len(labels) == 4
    # Of equal ones the first label is that of the model's own settings.
    assert "KAD" in labels and sum("ask official" in label for label in labels) <= 1


def test_unfinished_and_torn_runs_are_set_aside_with_the_reason(tmp_path):
    good, unfinished, no_rows, torn, other, limited = written(
        tmp_path, *(("clip", {"stamp": f"2026-01-0{day}_00-00-00", "image_size": day}) for day in range(1, 7))
    )
    (unfinished / "results.json").unlink()
    (no_rows / "pairs.parquet").unlink()
    content = (torn / "pairs.parquet").read_bytes()
    (torn / "pairs.parquet").write_bytes(content[: len(content) // 2])
    change(other, schema=99)
    change(limited, counts__images=7)

    found = collect([tmp_path])
    assert [run.folder for run in found.runs] == [good]
    reasons = {aside.folder: aside.reason for aside in found.set_aside}
    said = "no results.json", "no pairs.parquet", "unreadable", "schema", "counts 7 images"
    for folder, words in zip((unfinished, no_rows, torn, other, limited), said, strict=True):
        assert words in reasons.pop(folder), reasons
    assert not reasons

    (good / "results.json").unlink()
    with pytest.raises(UserError, match=r"6 unfinished or unreadable.*no results\.json"):
        collect([tmp_path])


def test_a_served_model_is_never_taken_for_one_of_the_package(tmp_path):
    """Nor one of two runs of a name for another: maps are not boxes, whatever they are called."""
    for place, served in enumerate(("CLIP", "oracle", "qwen")):
        written(tmp_path, ("endpoint", {"served_model": served, "stamp": f"2026-01-0{place + 1}_00-00-00"}))
    written(tmp_path, ("clip", {}))
    runs = collect([tmp_path]).runs
    assert {run.label for run in runs} == {"clip", "endpoint/CLIP", "oracle", "qwen"}
    assert not any(run.is_reference for run in runs) and len({run.model for run in runs}) == 4


def test_predictions_and_refused_commands_are_no_unfinished_runs(tmp_path):
    """Only what scored an image and did not come to its end is unfinished."""
    good, killed = written(tmp_path, ("clip", {}), ("clip", {"stamp": LATER, "image_size": 448}))
    for name in ("results.json", "pairs.parquet"):
        (killed / name).unlink()
    (killed / "journal").mkdir()
    (killed / "journal" / "0.arrow").write_bytes(b"batch")
    predicted, refused = (tmp_path / "clip_chestxray14" / name for name in ("predicted", "refused"))
    for folder in (predicted / "overlays", refused / "journal"):
        folder.mkdir(parents=True)
        (folder.parent / "config.yaml").write_text("model: clip\n")
    (predicted / "predictions.parquet").touch()
    (refused / "journal" / "about.json").write_text("{}")
    found = collect([tmp_path])
    assert [run.folder for run in found.runs] == [good]
    assert [aside.folder for aside in found.set_aside] == [killed]
