from __future__ import annotations

import json

import pytest
from toys import Brightness, Squares

from xbench.runs.fingerprint import annotation_digests, changes, fingerprint, of_results


@pytest.fixture
def depends_on(tmp_path):
    data = Squares(num_workers=0)
    data.setup("test")
    (tmp_path / "encoder" / "deep").mkdir(parents=True)
    config = {"model": {"class_path": "x.Y", "init_args": {"text_encoder": str(tmp_path / "encoder")}}}

    def describe(**trainer):
        return fingerprint(config | {"trainer": trainer}, Brightness, data)

    return describe


def test_the_accelerator_is_what_options_come_to_and_none_of_results(depends_on, monkeypatch):
    usual = depends_on(accelerator="auto")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    on_gpu = depends_on(accelerator="auto")
    assert on_gpu["accelerator"] == "cuda" == depends_on(accelerator="gpu")["accelerator"] != usual["accelerator"]
    assert of_results(on_gpu) == of_results(usual)
    assert depends_on(plugins=["some.Plugin"])["settings"] != depends_on()["settings"]


def test_a_strategy_that_leaves_the_model_as_it_is_moves_no_number(depends_on):
    usual = depends_on(strategy="auto")
    for strategy in ("ddp", "ddp_find_unused_parameters_true", "single_device"):
        assert depends_on(strategy=strategy) == usual
    assert depends_on(strategy="fsdp") != usual


@pytest.mark.parametrize("name", ["config.json", "deep/weights.bin"])
def test_files_in_a_folder_that_an_option_names(depends_on, tmp_path, name):
    file = tmp_path / "encoder" / name
    empty = depends_on()
    file.write_text("one")
    one = depends_on()
    file.write_text("three")
    three = depends_on()
    assert empty != one != three
    assert changes(of_results(one), of_results(three)) == ["model.text_encoder"]
    json.dumps(three, allow_nan=False)


def test_settings_are_the_options_that_no_class_calls_neutral():
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

    data = Squares(num_workers=0)
    data.setup("test")
    assert fingerprint(config, Loud, data)["settings"] == {
        "seed_everything": 0,
        "threads": 1,
        "trainer": {"deterministic": "warn"},
        "model": {"class": "m", "prompts": "name"},
        "data": {"class": "d", "gamma": 0.5},
    }


def test_annotation_files_of_one_name_are_told_apart(tmp_path):
    files = [tmp_path / "nod/1.png", tmp_path / "eff/1.png", tmp_path / "labels.csv"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(str(file))
    assert list(annotation_digests(files)) == ["nod/1.png", "eff/1.png", "labels.csv"]
    assert list(annotation_digests(files[1:])) == ["1.png", "labels.csv"]
    assert len({*annotation_digests(files).values()}) == 3
