"""The tests that authors of a model run on it: sound models pass, and each wrong one fails the test that names why."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from classifiers import SUPERVISED, write_classifier
from deterministic_checkpoints import FIXED, MODELS, write_checkpoint
from places import ROOT
from processes import start
from small_networks import shrink

from xbench.commands.configs import shipped

README = (ROOT / "README.md").read_text()
(README_MODEL,) = re.findall(r"^xbench conform (\S+)", README, flags=re.MULTILINE)

SOUND = ["toys.Brightness", "wrong_models.Coarse", "wrong_models.Lopsided"]
SOUND += ["xbench.models.Demo", "xbench.models.Oracle", README_MODEL, *MODELS, *SUPERVISED]

SHAPES = "output_has_the_shapes_of_the_contract"
FINITE = "output_is_finite_and_probabilities_are_probabilities"
COVER = "maps_cover_the_input"
CHANGE = "the_map_changes_where_the_image_does"
BATCH = "a_batch_changes_nothing"
AGAIN = "the_same_again"
RUNS = "it_runs_in_the_harness"
INPUT = "what_goes_into_the_network_is_normalised"
LEFT = "nothing_is_left_of_training"
# The tests that fail, and what the first of them says to do.
WRONG = {
    "NormalizesOverTheBatch": ({BATCH}, "logits of image 0 differ by .* never over the first"),
    "DropoutLeftOn": ({AGAIN, BATCH}, ""),
    "DrawsItsText": ({AGAIN}, ""),
    "FlatMap": ({SHAPES, COVER, CHANGE, RUNS}, "saliency has the shape .* return \\(B, C, rows, columns\\)"),
    "MapInARow": ({COVER, CHANGE}, "1 x 49 cells"),
    "Transposed": ({CHANGE}, ""),
    "Mirrored": ({CHANGE}, ""),
    "LopsidedMirrored": ({CHANGE}, ""),
    "LyingView": ({"the_view_says_where_the_input_lies"}, "apply_to_keypoints"),
    "MeanOf255": ({INPUT}, "values range from -2 to -1.9.*127.5 and 63.75 become 0.5 and 0.25"),
    "TimesThe255th": ({INPUT}, "values range from .* Divide pixels by 255 once"),
    "ForgetsToNormalize": ({INPUT}, "neither mean nor std.* zeros and ones"),
    "NormalizesTwice": ({INPUT}, "its pixels range from -0.99.* 8-bit pixels or floats"),
    "DividesTwice": ({INPUT}, "values range from .*`forward` changes"),
    "GradientLeft": ({LEFT}, ""),
    "SwitchesToTraining": ({LEFT}, "do not call train\\(\\)"),
    # What is not a number is never the same as anything.
    "NaN": (
        {FINITE, CHANGE, BATCH, AGAIN, RUNS},
        "saliency of image 1 and Consolidation contain NaN or infinity.* division by a norm",
    ),
    "NoProbabilities": ({FINITE, RUNS}, "the probability of image 0 and .* logits.sigmoid\\(\\)"),
    "SoftmaxOverFindings": ({"probabilities_rank_as_logits_do"}, ""),
    "EmptyPrompt": ({"prompts_are_texts"}, ""),
    "Constant": ({COVER, CHANGE, RUNS}, "every map is constant"),
}

# Every assertion that is looked at has a message of its own, and rewriting them for each model takes time.
OPTIONS = ["-p", "no:cacheprovider", "-p", "no:unraisableexception", "--assert=plain"]


def run_pytest(words: list[str]) -> int:
    # What the run that these tests are part of has set stays out.
    for name in [name for name in os.environ if "PYTEST" in name]:
        del os.environ[name]
    return pytest.main([*words, *OPTIONS])


def conform(names: list[str]) -> None:
    """Test the models; those of the package are small ones, in the layouts of their authors, with maps of 4 x 4."""
    for name in names:
        path, arguments = name, {"scale": 20.0} if name.startswith("my_model") else {}
        with pytest.MonkeyPatch.context() as patch:
            if name in MODELS:
                shrink(patch)
                path = yaml.safe_load(shipped("models")[name].read_text())["class_path"]
                Path(name).mkdir()
                arguments = write_checkpoint(name, Path(name))
                if name not in FIXED:
                    coarse = dict.fromkeys(("clip", "kad", "chexzero", "cxrclip"), 128)
                    arguments["image_size"] = {**coarse, "radzero": 56}.get(name, 64)
            if name in SUPERVISED:
                path = yaml.safe_load(shipped("models")[name].read_text())["class_path"]
                Path(name).mkdir()
                arguments = write_classifier(name, Path(name))
            words = ["--model", path, "--model-args", json.dumps(arguments), f"--junitxml={name}.xml"]
            run_pytest(["--pyargs", "xbench.conformance", *words])


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str, str]]]:
    """By model its tests, what became of them (`failure`, `error`, `skipped` or nothing) and the message."""
    folder = tmp_path_factory.mktemp("conformance")
    # The README's model is found in the working directory.
    (code,) = re.findall(r"```python\n(# my_model\.py\n.*?)```", README, flags=re.DOTALL)
    (folder / "my_model.py").write_text(code)
    names = [*SOUND, *(f"wrong_models.{name}" for name in WRONG)]
    process = start(names, folder, command=conform)
    assert process.wait(500) == 0, process.said
    found = {}
    for name in names:
        assert (folder / f"{name}.xml").is_file(), process.said
        cases = [*ElementTree.parse(folder / f"{name}.xml").iter("testcase")]
        assert len({case.attrib["name"].partition("[")[0] for case in cases}) == 12
        found[name] = [
            (case.attrib["name"].partition("[")[0].removeprefix("test_"), child.tag, child.attrib["message"])
            for case in cases
            for child in case
            if child.tag in ("failure", "error", "skipped")
        ]
    return found


@pytest.mark.parametrize("name", SOUND)
def test_sound_models_pass(outcomes: dict[str, list[tuple[str, str, str]]], name: str) -> None:
    expected = {"skipped"} if name in ("xbench.models.Oracle", *SUPERVISED) else set()
    assert {kind for _, kind, _ in outcomes[name]} == expected, outcomes[name]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_models_fail_by_name_and_say_what_to_do(
    outcomes: dict[str, list[tuple[str, str, str]]], name: str
) -> None:
    failures, (tests, said) = outcomes[f"wrong_models.{name}"], WRONG[name]
    assert {test for test, _, _ in failures} == tests
    assert {kind for _, kind, _ in failures} == {"failure"}
    assert re.search(said, failures[0][2], re.DOTALL), failures[0]


def test_other_peoples_options_are_left_alone(tmp_path: Path) -> None:
    """A project of its own with a `--model` option: xbench being installed must not take the name."""
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--model', default='theirs')\n"
    )
    (tmp_path / "test_theirs.py").write_text(
        "def test_it(request):\n    assert request.config.getoption('--model') == 'mine'\n"
    )
    process = start(["--model", "mine"], tmp_path, command=run_pytest)
    assert process.wait() == 0, process.said
