"""The published numbers: none is changed, and what is said about them follows from them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml

from xbench import data
from xbench.findings import published
from xbench.findings.names import FINDINGS
from xbench.findings.published import (
    inconsistencies,
    published_datasets,
    published_dice_gaps,
    published_grounding,
    published_pointing_game,
    published_positives,
    published_protocol,
    published_r_squared,
    published_split,
    remark,
)

DATASETS = ("rsna", "siim", "covid", "chestxdet10", "chexlocalize", "chestxray14", "vindr")
MODELS = ("clip", "biomedclip", "medklip", "kad", "mavl", "carzero", "devide")
WITH_POINTING_GAMES = ("chestxdet10", "chexlocalize", "chestxray14", "vindr")
FILE = Path(published.__file__).with_name("published.yaml")
# Of the numbers of the file, which were compared with the paper's tables one by one.
AS_PRINTED = "42c2b44eb86f2534b3f2fbc3790a0c9e16f1c7090e89abd6bfa0243857497a84"


def test_published_numbers_belong_to_the_default_split():
    classes = [getattr(data, name) for name in data.__all__]
    splits = {cls.name: cls.splits[0] for cls in classes if getattr(cls, "name", None) in DATASETS}
    assert splits == {dataset: published_split(dataset) for dataset in published_datasets()}


def test_no_number_of_the_paper_was_changed():
    content = yaml.safe_load(FILE.read_text())
    parts = ("positives", "grounding", "pointing_game", "dice_gap", "r_squared", "protocol")
    numbers = json.dumps({part: content[part] for part in parts}, sort_keys=True)
    assert hashlib.sha256(numbers.encode()).hexdigest() == AS_PRINTED


def test_what_is_printed_in_per_cent_is_given_as_fractions():
    content = yaml.safe_load(FILE.read_text())
    for dataset in DATASETS:
        table = published_grounding(dataset)
        assert tuple(table) == MODELS
        for model, ours in table.items():
            printed = content["grounding"][model][dataset]
            assert percentages([ours.pointing_game, ours.dice_best, ours.iou_best]) == pytest.approx(printed, abs=1e-9)
    for dataset in WITH_POINTING_GAMES:
        table = published_pointing_game(dataset)
        assert tuple(table) == MODELS
        for model, ours in table.items():
            row = content["pointing_game"][dataset][model]
            assert percentages([ours.mean, *ours.findings.values()]) == pytest.approx([row["mean"], *row["findings"]])
            assert tuple(ours.findings) == FINDINGS[dataset]
    gaps = published_dice_gaps()
    assert percentages(gaps[model] for model in MODELS) == pytest.approx([content["dice_gap"][m] for m in MODELS])
    assert published_r_squared() == 0.92
    assert (published_protocol().images, published_protocol().findings) == (12_601, 36)


@pytest.mark.parametrize("dataset", WITH_POINTING_GAMES)
def test_printed_pointing_games_are_fractions_of_the_counts(dataset):
    """A pointing game over n positives is k / n: of each column some published count explains each printed number."""
    columns = list(zip(*(counts.counts.values() for counts in published_positives(dataset)), strict=True))
    assert len(columns) == len(FINDINGS[dataset])
    unexplained = set()
    for model, row in published_pointing_game(dataset).items():
        for number, counts in zip(row.findings.values(), columns, strict=True):
            known = [count for count in counts if count is not None]
            explained = any(abs(k / n - number) < 0.51e-4 for n in known for k in range(n + 1))
            if len(known) == len(counts) and not explained:
                unexplained.add(model)
    # CARZero was scored on another part of ChestX-Det10.
    assert unexplained <= {"carzero"}


def percentages(numbers) -> list[float]:
    return [100 * number for number in numbers]


@pytest.mark.parametrize("dataset", WITH_POINTING_GAMES)
def test_table_1_is_the_mean_of_the_findings_and_two_printed_means_are_not(dataset):
    grounding, table = published_grounding(dataset), published_pointing_game(dataset)
    for model in MODELS:
        assert table[model].mean_of_findings == pytest.approx(grounding[model].pointing_game, abs=1.01e-4)
    agree = all(abs(row.mean - row.mean_of_findings) < 1.01e-4 for row in table.values())
    assert agree == (dataset in ("chestxray14", "vindr"))
    assert agree != any("Tables 4 and 5" in text for text in inconsistencies(dataset, "pointing_game"))


def test_what_the_paper_does_not_have():
    assert published_split("phantom") is None
    assert published_positives("phantom") == []
    assert remark("phantom") == ""
    assert published_datasets() == DATASETS
    assert all(inconsistencies(dataset, "grounding") for dataset in DATASETS)
    assert inconsistencies("phantom", "grounding") == inconsistencies("chestxray14", "pointing_game") == ()
    assert published_grounding("phantom") == published_pointing_game("rsna") == {}
