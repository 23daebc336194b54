"""A planted shortcut proves the instrument: interventions find what is known of each model beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shortcuts
from run_files import QUIET, disagreements, rows_of, run_in

from xbench.cli import main
from xbench.geometry.hiding import control_of, dilated
from xbench.report.facts import facts_of
from xbench.report.runs import collect
from xbench.report.schema import InterventionAnalysis
from xbench.report.sentences import uses
from xbench.report.statistics.analyze import analyze
from xbench.report.statistics.interventions import contributions
from xbench.report.statistics.paired import exchange_tests, weighed
from xbench.scoring.interventions import intervened

ALONE = (*QUIET, "--data.num_workers", "0")
LOOKS = ("--data", "shortcuts.Marked", "--data.grid", str(shortcuts.SIDE), "--data.batch_size", "40")
LOOKS += ("--data.interventions", "[mean,blur,inpaint]", "--model", "shortcuts.Looks", "--model.at")
FEW = ("--data.patients", "40")
FILLS = ("mean", "blur", "inpaint")

Runs = Callable[..., Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    @cache
    def once(*options: str) -> Path:
        root = tmp_path_factory.mktemp("run")
        assert main(["intervene", *options, *ALONE, "--trainer.default_root_dir", str(root)]) == 0
        return run_in(root)

    return once


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def analyzed(folder: Path) -> tuple[InterventionAnalysis, str]:
    analysis = analyze(collect([folder]))
    ((found,),) = (dataset.interventions for dataset in analysis.datasets)
    return found, str(uses(facts_of(analysis)).texts[0])


def test_the_marker_of_the_shortcut_lies_far_from_lesions_mirror_images_and_controls() -> None:
    data = shortcuts.Marked()
    far, moved = np.zeros((shortcuts.SIDE, shortcuts.SIDE), bool), []
    # 10 % of the side are 12 pixels.
    far[: 14 + 12, 106 - 12 :] = True
    for record in (records := data.read_records(annotated=True)):
        radiograph = data.load(record)
        for region in radiograph.regions.values():
            hidden = dilated(region)
            control = control_of(hidden, region, record.image_id)
            assert control is not None and not any((mask & far).any() for mask in (hidden, hidden[:, ::-1], control))
            moved.append((control != hidden[:, ::-1]).any())
        assert shortcuts.marked(radiograph.image, "") == record.labels["Lesion"] == len(radiograph.regions)
    assert len(records) == 400 and len(moved) == 200 and 20 < sum(moved) < 180


# By what a model looks at: AUROC, pointing game, flip rate, that of the control, whether another image with the finding
# agrees and one without it changes the decision; whether `use` is above 0; and the sentence that a report opens with.
TABLE = {
    "lesion": (1, 1, 1, 0, 1, 1, True, "It points at the lesion and uses it."),
    "marker": (1, 1, 0, 0, 1, 1, False, "It points at the lesion and does not use it."),
    "nothing": (0.5, None, 0, 0, 1, 0, False, "It does not point at the lesion and does not use it."),
    "any hole": (1, 1, 1, 1, 1, 1, False, "It points at the lesion and reacts to any hole alike."),
}


@pytest.mark.parametrize("at", TABLE)
def test_the_table_of_the_planted_shortcut(run: Runs, at: str) -> None:
    auroc, pointing, flip, control_flip, same, opposite, used, sentence = TABLE[at]
    found = results(run(*LOOKS, at))
    assert found["classification"]["macro"]["auroc"] == auroc
    assert pointing is None or found["grounding"]["macro"]["pointing_game"] == pointing
    numbers = found["interventions"]["all_pairs"]
    swaps = numbers["any"]["macro"]
    assert (swaps["swap_same_agreement"], swaps["swap_opposite_change"]) == (same, opposite)
    analysis, opening = analyzed(run(*LOOKS, at))
    assert opening == sentence
    for fill in analysis.fills:
        one = numbers[fill.fill]["per_class"]["Lesion"]
        assert one["scored"] == one["decided"] == fill.counts["scored"] == 200
        assert (one["flip_rate"], one["control_flip_rate"]) == (flip, control_flip)
        assert one["premium"] == flip - control_flip
        # By pair: pointed at, and `use` above 0 or not; for every one of them, not in the mean alone.
        assert pointing is None or fill.overlap["use"] == ((200, 0, 0, 0) if used else (0, 200, 0, 0))
        use = fill.mean["use"]
        assert use.low > 1 if used else (use.value, use.low, use.high, fill.p_adjusted["use"]) == (0, 0, 0, 1)
        assert (fill.p_adjusted["use"] <= 0.001) is used
        # Of 200 decisions that change for the lesion alone; of none there is no p-value.
        assert fill.p_exact == (pytest.approx(2 * 0.5**200, rel=1e-9) if used else None)
    assert [fill.fill for fill in analysis.fills] == [*FILLS] and disagreements(run(*LOOKS, at), deep=True) == []


def test_noise_uses_nothing_beside_a_planted_shortcut(run: Runs) -> None:
    """A changed digest is another draw. Each number is within four standard deviations of what chance gives."""
    found = results(run(*LOOKS, "noise"))
    assert found["classification"]["macro"]["auroc"] == pytest.approx(0.5, abs=4 * np.sqrt(401 / (12 * 200 * 200)))
    share = shortcuts.HEIGHT * shortcuts.WIDTH / shortcuts.SIDE**2
    assert found["grounding"]["macro"]["pointing_game"] == pytest.approx(share, abs=4 * np.sqrt(share / 200))
    for fill in analyzed(run(*LOOKS, "noise"))[0].fills:
        # One half for a threshold in the middle of the scores; that of noise may lie anywhere.
        assert min(fill.mean[name].value for name in ("flip_rate", "control_flip_rate")) > 0.1
        for name in ("use", "premium"):
            assert fill.mean[name].low < 0 < fill.mean[name].high and fill.p_adjusted[name] > 0.05


def test_use_rises_with_the_weight_of_the_lesion_against_the_shortcut(run: Runs) -> None:
    runs = [results(run(*LOOKS, str(weight), *FEW)) for weight in shortcuts.WEIGHTS]
    for fill in FILLS:
        use = [found["interventions"]["all_pairs"][fill]["macro"]["use"] for found in runs]
        assert use[0] == 0 and use == sorted({*use})


def test_a_second_lesion_beside_the_shortcut_survives_where_it_is_not_annotated(run: Runs) -> None:
    """The limit of hiding what is annotated: an honest model still sees the other side, and decides as before."""
    folders = [run(*LOOKS, "either side", "--data.both", both, *FEW) for both in ("false", "true")]
    alone, both = (results(folder)["interventions"]["all_pairs"] for folder in folders)
    for fill in FILLS:
        assert alone[fill]["macro"]["flip_rate"] == 1 and both[fill]["macro"]["flip_rate"] < 0.5
        assert both[fill]["macro"]["use"] < alone[fill]["macro"]["use"] / 2


def test_a_model_trained_with_the_shortcut_recognises_fractures_and_does_not_use_them(run: Runs) -> None:
    options = ("--model", "xbench.models.Demo", "--data", "shortcuts.Fractures", "--data.marker", "Fracture")
    options += ("--data.images", "240", "--data.interventions", "[mean]", "--model.shortcut")
    unmarked = ("--data.marker", "null", "--data.images", "120")
    folders = [run(*options, *more) for more in (("false",), ("true",), ("true", *unmarked))]
    auroc = [results(folder)["classification"]["per_class"]["Fracture"]["auroc"] for folder in folders]
    assert auroc[1] >= 0.95 and auroc[2] < 0.7 < auroc[0] < 0.95
    honest, planted, _ = (analyzed(folder)[0].fills[0].numbers for folder in folders)
    assert planted["Fracture"]["use"].low <= 0 <= planted["Fracture"]["use"].high < 0.1
    assert min(honest["Fracture"]["use"].low, honest["Mass"]["use"].low, planted["Mass"]["use"].low) > 1
    digests = [results(folder)["provenance"]["checkpoint_sha256"] for folder in folders]
    assert digests[0] != digests[1] == digests[2]


def test_of_100_seeds_of_noise_about_5_reject_the_null_of_a_shortcut() -> None:
    records = shortcuts.Marked().read_records(annotated=True)
    names = [record.image_id for record in records if record.labels["Lesion"]]
    about = {"image_ids": names, "patient_ids": [name[:-2] for name in names]}
    tests = []
    for seed in range(100):
        logits = np.random.default_rng(seed).normal(size=(3, 200, 1))
        rows, hide, control = (rows_of(np.ones((200, 1), np.int8), ("Lesion",), logit=s, **about) for s in logits)
        pairs = intervened(rows, {"hide: mean": hide, "control: mean": control})
        tests.append(weighed(contributions(pairs, "mean", "use")))
    p = np.array(exchange_tests(tests, 1, 0, "noise"))
    assert 0.05 - 0.044 <= (p < 0.05).mean() <= 0.05 + 0.044
