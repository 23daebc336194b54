from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_files import QUIET, callbacks, check_gone_on, check_rescored

from xbench.callbacks.wordings import in_other_words
from xbench.cli import main
from xbench.findings.phrases import LENGTHS, Wording, denies, length_group, reworded, words_of
from xbench.geometry.regions import Coverage
from xbench.report.facts import facts_of
from xbench.report.runs import collect
from xbench.report.sentences import follows_words
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables
from xbench.report.tables.table import to_rows
from xbench.runs.finished import FinishedRun
from xbench.types import Batch, Query, Sample, Truth

WORDINGS: tuple[Wording, ...] = get_args(Wording)
DATA = ("--data", "phrases.Pairs", "--data.batch_size", "4", "--data.num_workers", "0")
# Pointing game of the phrases as they stand, and in each wording. `Hole` alone does not say dark.
EXPECTED = {
    "attentive": (1.0, {"name": 0.5, "phrase": 0.5, "negation": 0.0, "other": 0.0}),
    "deaf": (0.5, dict.fromkeys(WORDINGS, 0.5)),
}


def run(root: Path, model: str, *more: str, images: int = 20, status: int = 0) -> Path:
    words = ("--data.wordings", json.dumps(WORDINGS), "--data.images", str(images))
    options = (*DATA, *words, *QUIET, "--trainer.default_root_dir", str(root), *more)
    assert main(["test", "--model", f"phrases.{model}", *options]) == status
    return next((path.parent for path in root.glob("*/*/results.json")), root)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("wordings")
    return {model: run(root / model, model.capitalize()) for model in EXPECTED}


@pytest.mark.parametrize("model", EXPECTED)
def test_a_model_that_follows_is_told_from_one_that_does_not(runs: dict[str, Path], model: str) -> None:
    own, others = EXPECTED[model]
    analysis = analyze(collect([runs[model]]))
    (dataset,) = analysis.datasets
    rows = {(row.wording, row.number): row for row in dataset.rewordings}
    assert {wording for wording, _ in rows} == {*WORDINGS}
    for wording, value in others.items():
        row = rows[wording, "pointing_game"]
        assert (row.own.value, row.other.value, row.difference.value) == (own, value, value - own)
        assert (row.pairs, row.clusters) == (40, 10)
        changed = wording in ("negation", "other") and model == "attentive"
        assert row.p_adjusted == 1 if model == "deaf" else (row.p_adjusted <= 0.05) == (changed or value < own)
    reply = follows_words(facts_of(analysis))
    assert reply.question == "Does the model follow the words?" and len(reply.texts) == 4
    told = {
        "attentive": ("It follows them: ", "Negation matters: "),
        "deaf": ("It does not follow", "Negation changes no"),
    }
    for text, begin in zip(reply.texts, told[model], strict=False):
        assert text.startswith(begin)
    assert f"{100 * others['other']:.0f}% of these 40 regions" in reply.answer
    assert FinishedRun.open(runs[model]).results.grounding.macro["pointing_game"] == own


def test_of_several_models_each_is_named(runs: dict[str, Path]) -> None:
    *texts, others = follows_words(facts_of(analyze(collect([*runs.values()])))).texts
    assert len(texts) == 4 and others == "deaf does not leave a region significantly."


def test_of_few_phrases_nothing_is_said(tmp_path: Path) -> None:
    """Four patients cannot differ significantly, whatever the maps do."""
    facts = facts_of(analyze(collect([run(tmp_path, "Attentive", images=8)])))
    assert [text.partition(":")[0] for text in follows_words(facts).texts] == ["Too few phrases to tell"] * 4


def test_conditions_go_through_resume_rescore_and_verify(runs, tmp_path, unsaved_figures) -> None:
    whole = runs["attentive"]
    table = pq.read_table(whole / "pairs.parquet").to_pylist()
    texts = {(row["query"], row["condition"]): (row["text"], row["language"]) for row in table}
    assert len(table) == 5 * 40
    assert {key: texts[key] for key in texts if key[0] == "1"} == {
        ("1", ""): ("A bright patch.", "en"),
        ("1", "wording: name"): ("Square", "en"),
        ("1", "wording: phrase"): ("square", "en"),
        ("1", "wording: negation"): ("no a bright patch", "en"),
        ("1", "wording: other"): ("dark hole in the left lung", None),
    }
    config = callbacks(tmp_path / "callbacks.yaml", "xbench.callbacks.wordings.Wordings", "phrases.Tires")
    check_gone_on(run, whole, tmp_path / "parts", "Attentive", "--config", str(config))
    check_rescored(whole, tmp_path / "again")
    assert main(["report", str(whole), "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "It follows them" in page and "Phrases in other words on" in page


def test_groups_of_phrases_are_means_over_their_rows(runs: dict[str, Path]) -> None:
    run_, analysis = FinishedRun.open(runs["deaf"]), analyze(collect([runs["deaf"]]))
    (table,) = (to_rows(table) for table in all_tables(analysis) if table.name.startswith("phrases"))
    names, *lines = table
    table = {line[names.index("Phrases")]: dict(zip(names, line, strict=True)) for line in lines}
    rows, queries = run_.rows, {"Square": "1", "Hole": "2", "1 to 3 words": "1", "4 to 7 words": "2"}
    for group, query in {**queries, "all phrases": None, "without a denial": None}.items():
        own = np.array([query in (None, rows.queries[place]) for place in rows.query])
        found = table[group]
        assert (found["Number"], found["Scored"], found["Absent"]) == (own.sum(), own.sum(), 0)
        assert found["Pointing game"] == rows["pointing_hit"][own].mean()
        assert found["Dice at 0.5"] == pytest.approx(rows["dice"][own].mean(), abs=1e-12)
        assert found["IoU at 0.5"] == pytest.approx(rows["iou"][own].mean(), abs=1e-12)
    assert "with a denial" not in table


def test_false_alarms_are_boxes_about_absent_phrases(tmp_path: Path) -> None:
    options = ("--data", "phrases.Phrases", "--data.images", "22", "--data.num_workers", "0", *QUIET)
    place = ("--trainer.default_root_dir", str(tmp_path))
    assert main(["test", "--model", "phrases.Alarmed", "--model.what", "boxes", *options, *place]) == 0
    (run_,) = analyze(collect([tmp_path])).runs
    # See the docstring of phrases.py: a dark square is there if 3 divides i, and a bright one, asked about if 4 divides
    # i, if i is odd. Where i % 4 is 2, the phrase about the dark one is absent.
    dark = [i for i in range(22) if (i % 4 == 2 or i % 3) and i % 4 != 1]
    bright = [i for i in range(0, 22, 4)]
    expected = {"Square": bright, "Phrases": dark, "all phrases": dark + bright}
    groups = {group.name: group for group in run_.phrases}
    for name, images in expected.items():
        assert groups[name].absent == len(images)
        assert groups[name].false_alarms.value == pytest.approx(np.mean([i % 3 == 0 for i in images]), abs=1e-12)
        assert 0 < groups[name].false_alarms.value < 1


def test_every_phrase_becomes_the_next_one_of_another_region() -> None:
    images = [[("one", 1, 0), ("two", 1, 1), ("four", 0, None), ("three", 1, 0), ("one", 1, 2)], [("five", 1, 3)]]
    samples = []
    for number, phrases in enumerate(images):
        queries = [Query(f"{place}", None, text) for place, (text, *_) in enumerate(phrases)]
        drawn = [
            None if region is None else Coverage.of(np.eye(4, dtype=bool)[[region] * 4], (4, 4))
            for *_, region in phrases
        ]
        labels = [label for _, label, _ in phrases]
        truth = Truth.of_image(number, f"{number}", None, (0, 0, 1, 1), None, queries, labels, drawn, 0.5)
        samples.append(Sample(torch.zeros(3, 4, 4), torch.zeros(4, 4), "", truth))
    changed = in_other_words(Batch.collate(samples), "other")
    assert [(query.name, query.text) for query in changed.truth.queries] == [
        ("0", "two"),
        ("1", "three"),
        ("3", "one"),
        ("4", "two"),
    ]
    assert changed.truth.image_ids == ["0"] and len(changed) == 1 and changed.truth.labels.tolist() == [1] * 4
    # Regions stay where they were.
    assert [int(region.int().argmax(1)[0]) for region in changed.truth.regions] == [0, 1, 0, 2]
    assert in_other_words(Batch.collate(samples[1:]), "other") is None


@pytest.mark.parametrize(
    ("text", "language", "denied"),
    [
        ("No pleural effusion.", "en", True),
        ("lungs are free of consolidation", None, True),
        ("Nodule in the left upper lobe", "en", False),
        ("normal", "en", False),
        ("Sin derrame pleural", "es", True),
        ("no se observan consolidaciones", "es", True),
        ("Aumento de densidad", "es", False),
        ("a sin of omission", "en", False),
        ("sin derrame", None, True),
        ("pas d'épanchement", "fr", False),
    ],
)
def test_denials(text: str, language: str | None, denied: bool) -> None:
    assert denies(text, language or "") is denied
    negated = reworded(Query("1", None, text, language), [], "negation")
    assert (negated is None) is denied and (denied or denies(negated.text, language or ""))


@given(st.text(max_size=200))
def test_every_text_has_one_length(text: str) -> None:
    count, group = len(words_of(text)), length_group(text)
    least, _, most = group.removesuffix(" words").removesuffix(" words or more").partition(" to ")
    assert group in LENGTHS and count <= (int(most) if most else count)
    assert count >= int(least) or count == 0


def test_other_words_are_left_out_where_there_are_none() -> None:
    phrase, finding = Query("1", None, "dark hole"), Query("Square", "Square")
    assert all(
        reworded(phrase, [Query("2", None, "dark hole")], wording) is None for wording in ("name", "phrase", "other")
    )
    assert all(reworded(finding, [phrase], wording) is None for wording in WORDINGS)
    assert reworded(Query("1", None, "PICC in place"), [], "negation").text == "no PICC in place"
    assert reworded(Query("1", None, "Un nódulo.", "es"), [], "negation").text == "sin un nódulo"
