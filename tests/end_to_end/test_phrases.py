from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from phrases import MIRRORED, QUERIES, Phrases
from run_files import QUIET, callbacks, check_gone_on, check_rescored, run_in
from toys import Brightness

from xbench.cli import main
from xbench.data.records import Record
from xbench.findings.queries import PHRASES
from xbench.models import CenterBox, UniformRandom
from xbench.predictions.answer import Box
from xbench.predictions.asking import Question
from xbench.runs.finished import FinishedRun
from xbench.runtime.errors import UserError
from xbench.types import Batch, Query

DATA = ("--data", "phrases.Phrases", "--data.images", "22", "--data.batch_size", "4", "--data.num_workers", "0")
BRIGHTNESS, SHOWN, TOLD = ("toys.Brightness",), ("oracles.Shown", "maps"), ("oracles.Told", "boxes")


@pytest.mark.usefixtures("unsaved_figures")
@pytest.mark.parametrize(("model", "mirrored"), [(BRIGHTNESS, True), (SHOWN, False), (TOLD, True)])
def test_phrases_go_all_the_way(model, mirrored, tmp_path):
    config = callbacks(tmp_path / "callbacks.yaml", "phrases.Mirrored" if mirrored else "phrases.Tires")
    kind = () if len(model) == 1 else ("--model.what", model[1])
    options = ("--model", model[0], *kind, *DATA, *QUIET, "--config", str(config))

    def run(root: Path, *more: str, status: int = 0) -> Path:
        assert main(["test", *options, "--trainer.default_root_dir", str(root), *more]) == status
        return root if status else run_in(root)

    whole = run(tmp_path / "whole")
    check_gone_on(run, whole, tmp_path / "parts")
    check_rescored(whole, tmp_path / "again")
    assert main(["report", str(tmp_path / "whole"), "--out", str(tmp_path / "report")]) == 0

    results, table = FinishedRun.open(whole).results, pq.read_table(whole / "pairs.parquet")
    rows = [row for row in table.to_pylist() if not row["condition"]]
    assert len(table) == len(rows) + mirrored * sum(row["index"] % 8 in MIRRORED for row in rows)
    # Image 0 has two phrases, image 1 no query, image 2 an absent phrase, image 3 a finding and a phrase.
    of_images = [[(row["query"], row["label"]) for row in rows if row["index"] == index] for index in range(4)]
    assert of_images == [[("dark-1", 1), ("bright-1", 0)], [], [("dark-2", 0)], [("Square", 1), ("dark-1", 1)]]
    stored = FinishedRun.open(whole)
    assert [stored.queries[row["image_id"]] for row in rows] == [[*QUERIES[row["index"] % 4]] for row in rows]
    told = {(row["query"], row["text"], row["language"]) for row in rows}
    assert told == {(name, text, language) for of_image in QUERIES for name, _, text, language in of_image}
    assert results.findings == ("Square", PHRASES)
    for finding, group in (("Square", "Square"), (PHRASES, None)):
        own = [row for row in rows if row["finding"] == group]
        scores, counts = results.grounding.per_class[finding], results.counts.per_finding[finding]
        assert scores.count == sum(row["scored"] for row in own) > 1
        hits = [row["pointing_hit"] for row in own if row["scored"]]
        assert scores.pointing_game == pytest.approx(np.mean(hits), abs=1e-12)
        assert (counts.positives, counts.negatives) == tuple(sum(row["label"] == x for row in own) for x in (1, 0))
    # A phrase says nothing about whether its finding is there.
    recognized = results.classification.per_class
    assert recognized["Square"].positives == sum(row["query"] == "Square" and row["label"] == 1 for row in rows)
    assert recognized[PHRASES].auroc is None and recognized[PHRASES].positives == 0
    assert results.counts.images == len({row["index"] for row in rows}) == 16
    assert len(pq.read_table(whole / "images.parquet")) == 22
    if model == SHOWN:
        assert results.grounding.macro["pointing_game"] == results.grounding.macro["dice_fixed"] == 1
    if model == BRIGHTNESS:
        maps = pq.read_table(whole / "predictions.parquet").to_pylist()
        first = {row["condition"]: np.reshape(row["map"], row["map_shape"]) for row in maps if not row["index"]}
        assert not np.array_equal(first[""], first["mirrored"])
        assert np.array_equal(first[""], first["mirrored"][:, ::-1])


class Compared(Brightness):
    def forward(self, images, queries):
        output = super().forward(images, queries)
        return replace(output, logits=output.logits + len(queries), saliency=output.saliency + len(queries))


def test_a_batch_is_scored_with_each_of_its_texts_once(monkeypatch):
    data, model = Phrases(images=8, num_workers=0), Compared()
    data.setup("test")
    model.findings, model.queries = data.findings, model.encode_prompts([["a bright Square"], ["a dark Hole"]])
    model.findings = ("Square", "Hole")
    samples = data.samples(model.preprocessing)
    batch = Batch.collate([samples[place] for place in (0, 1, 3)])
    output = model.predict(batch)
    # The words of a phrase are encoded once in a run. A finding is scored beside the findings, never beside a phrase.
    assert model.times_encoded == 3
    assert [query.name for query in batch.truth.queries] == ["dark-1", "bright-1", "Square", "dark-1"]
    texts, findings = model.encode_prompts([["dark"], ["bright"]]), model.queries
    phrases, beside = model(batch.images, texts), model(batch.images, findings)
    for name, values in (("logits", output.logits), ("saliency", output.shown.values)):
        of_phrases, of_findings = getattr(phrases, name), getattr(beside, name)
        expected = (of_phrases[0, 0], of_phrases[0, 1], of_findings[2, 0], of_phrases[2, 0])
        assert torch.equal(values, torch.stack(expected))
    assert torch.equal(model.predict(batch.only([2])).logits[0], output.logits[2]) and model.times_encoded == 4
    # Those of the last batch are kept in any case, and others while there is room.
    assert model._encode([("dark",), ("bright",)]).tolist() == [-1, 1] and model.times_encoded == 6
    monkeypatch.setattr("xbench.models.base._KEPT_BYTES", 8)
    for texts in (["a", "b", "c"], ["c", "a", "d"], ["d"], ["c", "d"]):
        model._encode([(text,) for text in texts])
        assert {*texts} <= {text for (text,) in model._encoded}
    assert model.times_encoded == 11 and [*model._encoded] == [("c",), ("d",)]
    text_free = UniformRandom()
    text_free.findings = data.findings
    assert len(text_free.predict(batch).logits) == 4


class Layered(NamedTuple):
    sentence: torch.Tensor
    memory: list[tuple[torch.Tensor, ...]]


def test_what_is_encoded_for_one_phrase_each_is_joined_where_it_fits():
    model = Brightness()
    model.encode_prompts = lambda prompts: Layered(torch.ones(len(prompts), 2), [(torch.ones(len(prompts), 3, 4),)] * 2)
    joined = model._encode([("a",), ("b",)])
    assert joined.sentence.shape == (2, 2) and [part.shape for (part,) in joined.memory] == [(2, 3, 4)] * 2
    model.encode_prompts = lambda prompts: [torch.ones(len(prompt)) for (prompt,) in prompts]
    assert [len(part) for part in model._encode([("long",), ("longer",)])] == [4, 6]


@pytest.mark.parametrize(("kind", "dark", "more"), [("Phrases", 6, ()), ("PhrasesAlone", 12, ("--missing", "skip"))])
def test_predictions_of_phrases_are_scored_from_their_files(kind, dark, more, tmp_path):
    """Of phrases alone, predictions do not name the finding, which is not left out for that."""
    config = tmp_path / "phrases.yaml"
    config.write_text(f"data: {{class_path: phrases.{kind}, init_args: {{images: 12, num_workers: 0}}}}")
    options = ("--config", str(config), *QUIET, "--trainer.default_root_dir", str(tmp_path))
    assert main(["test", "--model", "toys.Brightness", *options]) == 0
    assert main(["predict", "--model", "toys.Brightness", "--overlays", "dark-1", *options]) == 0
    (tested,) = (path.parent for path in tmp_path.glob("brightness_*/*/results.json"))
    (predicted,) = (path.parent for path in tmp_path.glob("**/predictions.parquet") if path.parent != tested)
    assert len([*predicted.glob("overlays/*/dark-1.png")]) == dark
    assert main(["score", "--predictions", str(predicted), "--name", "again", *more, *options]) == 0
    (scored,) = tmp_path.glob("again_*/*/pairs.parquet")
    assert pq.read_table(scored).equals(pq.read_table(tested / "pairs.parquet"))


@pytest.mark.parametrize(
    "words", [("test", "--model", *TOLD[:1], "--model.what", "boxes"), ("predict", "--model", *BRIGHTNESS)]
)
def test_a_batch_without_a_query_is_no_obstacle(words, tmp_path):
    options = ("--data.images", "3", "--data.batch_size", "1", "--trainer.default_root_dir", str(tmp_path))
    assert main([*words, *DATA[:2], "--data.num_workers", "0", *QUIET, *options]) == 0
    (table,) = tmp_path.glob("*/*/predictions.parquet")
    assert {*pq.read_table(table)["index"].to_pylist()} == {0, 2}


def test_boxes_elsewhere_are_those_of_the_finding_of_a_phrase():
    model, (box,) = CenterBox(), [Box(0.25, 0.25, 0.75, 0.5)]
    model._boxes_elsewhere = {"Square": (box,)}
    batch = SimpleNamespace(truth=SimpleNamespace(queries=[Query("bright-1", "Square", "a bright patch")]))
    (found,) = model._boxes(batch, Question("locate", 0, 0, "bright-1"))
    assert (found.x1 - found.x0, found.y1 - found.y0) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("findings", "query", "problem"),
    [
        (("Square",), Query(PHRASES, None, "a dark hole"), PHRASES),
        ((PHRASES,), Query("a", None, "a dark hole"), PHRASES),
        (("Square",), Query("a", None, "two\nlines"), "printable"),
        (("Square",), Query("a", None, "dark", "\n"), "language"),
        (("Square",), Query("Square", "Square", "dark"), "neither"),
    ],
)
def test_names_and_texts_of_phrases_that_are_refused(findings, query, problem):
    data = Phrases(images=4, num_workers=0)
    data.findings = findings
    data.read_records = lambda annotated: [Record("a", {query.name: 1}, queries=(query,))]
    with pytest.raises(UserError, match=problem):
        data.setup("test")
