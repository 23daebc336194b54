"""An unfinished run is gone on with only by an attempt that would have given the same numbers."""

from __future__ import annotations

import json

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import HalfPrecision
from toys import Brightness, Squares

from xbench.runs.provenance import annotation_digests, numbers_depend_on, options_that_count


@pytest.fixture
def depends_on(tmp_path):
    data = Squares(num_workers=0)
    data.setup("test")
    (tmp_path / "encoder" / "deep").mkdir(parents=True)
    config = {"model": {"class_path": "x.Y", "init_args": {"text_encoder": str(tmp_path / "encoder")}}}

    def describe(trainer_config=(), **options):
        trainer = Trainer(logger=False, enable_checkpointing=False, barebones=False, **options)
        return numbers_depend_on(trainer, Brightness(), data, config | {"trainer": dict(trainer_config)})

    return describe


def test_precision_and_accelerator_are_what_options_come_to(depends_on):
    usual = depends_on(accelerator="cpu")
    # `auto` of a machine without an accelerator, and with one.
    assert depends_on({"accelerator": "auto"}, accelerator="cpu") == usual
    assert usual["settings"]["trainer"]["accelerator"] == "cpu"
    by_plugin = depends_on(accelerator="cpu", plugins=[HalfPrecision("bf16-true")])
    assert by_plugin["settings"]["trainer"]["precision"] == "bf16-true" != usual["settings"]["trainer"]["precision"]
    assert depends_on({"plugins": ["some.Plugin"]}, accelerator="cpu") != usual


def test_a_strategy_that_leaves_the_model_as_it_is_moves_no_number(depends_on):
    usual = depends_on({"strategy": "auto"}, accelerator="cpu")
    for strategy in ("ddp", "ddp_find_unused_parameters_true", "single_device"):
        assert depends_on({"strategy": strategy}, accelerator="cpu") == usual
    assert depends_on({"strategy": "fsdp"}, accelerator="cpu") != usual


@pytest.mark.parametrize("name", ["config.json", "deep/weights.bin"])
def test_files_in_a_folder_that_an_option_names(depends_on, tmp_path, name):
    file = tmp_path / "encoder" / name
    empty = depends_on(accelerator="cpu")
    file.write_text("one")
    one = depends_on(accelerator="cpu")
    file.write_text("three")
    three = depends_on(accelerator="cpu")
    assert empty != one != three
    assert one["files"].keys() == {f"model.text_encoder/{name}"}


def test_options_that_count_are_those_that_no_class_calls_neutral():
    config = {
        "config": ["a.yaml"],
        "resume": True,
        "seed_everything": 0,
        "threads": 1,
        "trainer": {"logger": False, "devices": 2, "default_root_dir": "a", "deterministic": "warn"},
        "model": {"class_path": "m", "init_args": {"loud": True, "prompts": "name"}},
        "data": {"class_path": "d", "init_args": {"cache": True, "num_workers": 3, "timeout": 9.0, "gamma": 0.5}},
    }

    class Loud(Brightness):
        neutral_options = frozenset({"loud"})

    assert options_that_count(config, Loud, Squares) == {
        "seed_everything": 0,
        "threads": 1,
        "trainer": {"deterministic": "warn"},
        "model": {"class": "m", "prompts": "name"},
        "data": {"class": "d", "gamma": 0.5},
    }


@pytest.mark.parametrize("from_configuration", [False, True])
def test_options_of_a_dataset_are_plain_and_name_no_place(tmp_path, from_configuration):
    given = {"images": 3, "widths": (64, 90), "num_workers": 0, "gamma": 0.25, "split": "test"}
    strange = {"least": float("inf"), "draw": print, "name": {"a": (1, None)}}
    strange |= {"root": tmp_path, "files": [str(tmp_path)]}
    data = Squares(**given)
    options = data.options(given | strange if from_configuration else None)
    json.dumps(options, allow_nan=False)
    assert options.items() >= {"images": 3, "widths": [64, 90], "gamma": 0.25, "split": "test"}.items()
    assert not options.keys() & {"num_workers", "cache", "timeout", "root", "files"}
    if from_configuration:
        shown = {"least": "inf", "draw": "builtins.builtin_function_or_method", "name": {"a": [1, None]}}
        assert options.items() >= shown.items()


def test_annotation_files_of_one_name_are_told_apart(tmp_path):
    files = [tmp_path / "nod/1.png", tmp_path / "eff/1.png", tmp_path / "labels.csv"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(str(file))
    assert list(annotation_digests(files)) == ["nod/1.png", "eff/1.png", "labels.csv"]
    assert list(annotation_digests(files[1:])) == ["1.png", "labels.csv"]
    assert len({*annotation_digests(files).values()}) == 3
