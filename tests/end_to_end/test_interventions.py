from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import hidden
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import run_ranks, start
from run_files import QUIET, check_rescored, disagreements, files_of, run_in
from toys import Brightness

from xbench.callbacks.interventions import other_words, plan, rounds, with_patches
from xbench.cli import main
from xbench.data.changes import _share_in_view
from xbench.data.datamodule import drawn_pairs
from xbench.data.records import PreparedImage, Record
from xbench.data.samples import Samples
from xbench.findings.conditions import PROMPTS, SENTENCE, USUAL, draw
from xbench.geometry.hiding import Hiding, control_of, dilated, image_digest
from xbench.geometry.transforms import Preprocessing, TensorResize
from xbench.runs.files import SCHEMAS
from xbench.scoring.rows import CHANGED
from xbench.types import Batch, Query, Truth

IMAGES, UNREADABLE, SIZE = 19, (5, 8), 4
PAIRS, BESIDE_OTHERS = 23, 15  # all pairs of a readable image and what is present in it; those beside other ones
DATA = ("--data", "hidden.Regions", "--data.images", str(IMAGES), "--data.num_workers", "0", "--data.on_error", "skip")
DATA += ("--data.unreadable", str([*UNREADABLE]), "--data.batch_size", str(SIZE))
MAPS, ANSWERS = ("--model", "mortal.Mortal"), ("--model", "hidden.Seer")


def words(root: Path, *options: str, command: str = "intervene") -> list[str]:
    return [command, *DATA, *QUIET, "--trainer.default_root_dir", str(root), *options]


def run(root: Path, *options: str, command: str = "intervene", status: int = 0) -> Path:
    assert main(words(root, *options, command=command)) == status
    return next((path.parent for path in root.glob("*/*/results.json")), root)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    kinds = {"maps": MAPS, "answers": ANSWERS, "cropped": (*MAPS, "--model.crop", "true"), "native": MAPS}
    options = {"native": ("--data.grid", "native", "--data.widths", "[64, 48, 90]", "--data.batch_size", "1")}
    return {
        f"{command} {kind}": run(root / command / kind, *model, *options.get(kind, ()), command=command)
        for kind, model in kinds.items()
        for command in (("intervene", "test") if kind in ("maps", "answers") else ("intervene",))
    }


def table(folder: Path, name: str = "pairs.parquet", condition: str | None = None) -> pa.Table:
    found = pq.read_table(folder / name).replace_schema_metadata(None)
    return found if condition is None else found.filter(pc.equal(found["condition"], condition)).combine_chunks()


def dataset(**options: object) -> hidden.Regions:
    usual = {"images": IMAGES, "num_workers": 0, "unreadable": UNREADABLE, "on_error": "skip"}
    data = hidden.Regions(**{**usual, **options})
    data.setup("test")
    return data


@pytest.mark.parametrize("kind", ["maps", "answers"])
def test_the_run_itself_stays_as_it_is_to_the_bit(runs: dict[str, Path], kind: str) -> None:
    changed, plain = runs[f"intervene {kind}"], runs[f"test {kind}"]
    for name in SCHEMAS.keys() - {"perturbations.parquet"}:
        own = "" if name in ("pairs.parquet", "predictions.parquet") else None
        assert table(changed, name, own).equals(table(plain, name)), name
    of_run, of_plain = (json.loads((folder / "results.json").read_text()) for folder in (changed, plain))
    assert of_run.keys() - of_plain.keys() == {"interventions"}
    assert all(of_run[name] == of_plain[name] for name in of_plain.keys() - {"provenance", "tables"})


@pytest.mark.parametrize("kind", ["maps", "cropped"])
def test_every_changed_row_is_what_the_model_says_of_that_image_in_its_batch(runs: dict[str, Path], kind: str) -> None:
    """Each changed image by itself among the original ones, from the radiograph, by plain loops."""
    data, model = dataset(), Brightness(fault="unnormalized", crop=kind == "cropped")
    queries = model.encode_prompts([model.default_prompts(name) for name in data.findings])
    preprocessing, inputs, expected = model.preprocessing, {}, {}
    for record in data.records:
        if record.source not in UNREADABLE:
            inputs[record.source] = preprocessing(data.load(record).image)[0]
    for i in inputs:
        batch = [j for j in inputs if j // SIZE == i // SIZE]
        for (name, condition), image, facts in plain_changes(data, i, preprocessing):
            images = torch.stack([preprocessing(image)[0] if j == i else inputs[j] for j in batch])
            output = model(images, queries)
            logit = output.logits[batch.index(i), data.findings.index(name)].item()
            expected[str(i), name, condition] = (logit, *facts)
    rows = [row for row in table(runs[f"intervene {kind}"]).to_pylist() if row["changed_digest"]]
    keys = [tuple(row[name] for name in ("image_id", "query", "condition")) for row in rows]
    found = dict(zip(keys, (tuple(row[name] for name in ("logit", *CHANGED)) for row in rows), strict=True))
    assert found.keys() == expected.keys() and len(found) == len(rows)
    for key, (logit, digest, *places) in found.items():
        assert (logit, digest) == expected[key][:2]
        assert places == pytest.approx(expected[key][2:], abs=1e-12)


def plain_changes(data: hidden.Regions, i: int, preprocessing: Preprocessing):
    """Yield a pair and a condition, the changed radiograph, and the facts that its row must hold."""
    film = data.load(data.records[i])
    name, (height, width) = data.records[i].image_id, film.image.shape
    annotated = np.any([*film.regions.values(), np.zeros(film.image.shape, bool)], axis=0)
    view, hiding = preprocessing.pixels(film.image)[1], Hiding(film.image, name)
    for finding, region in film.regions.items():
        mask = dilated(region)
        control = control_of(mask, annotated, name)
        versions = {"keep": (~mask, hiding.keep(mask)), "no image": (mask | ~mask, hiding.no_image())}
        for fill in ("mean", "blur", "inpaint"):
            versions[f"hide: {fill}"] = mask, hiding.fill(mask, mask, fill)
            if control is not None:
                versions[f"control: {fill}"] = control, hiding.fill(control, mask, fill)
        for condition, (where, image) in versions.items():
            pixels = [((y + 0.5) / height, (x + 0.5) / width) for y, x in np.argwhere(where)]
            inside = [view[1] <= y <= view[3] and view[0] <= x <= view[2] for y, x in pixels]
            center = np.mean(pixels, axis=0)
            facts = (image_digest(image), len(pixels) / image.size, center[1], center[0], np.mean(inside))
            yield (finding, condition), image, facts


def test_what_a_crop_does_not_show_changes_nothing_but_is_told(runs: dict[str, Path]) -> None:
    rows = table(runs["intervene cropped"]).to_pylist()
    own = {(row["image_id"], row["query"]): row for row in rows if row["condition"] == ""}
    unseen = [row for row in rows if row["changed_seen"] == 0]
    assert {row["query"] for row in unseen} == {"Edge"} and len(unseen) >= 3 * 4
    for row, name in ((row, name) for row in unseen for name in ("logit", "peak_x", "dice")):
        assert row[name] == own[row["image_id"], row["query"]][name]
    assert all(row["changed_seen"] in (None, 1) for row in table(runs["intervene maps"]).to_pylist())


def test_a_pixel_is_seen_if_its_center_is() -> None:
    views = {0.375: 3, 0.375 + 2**-20: 2, 0.375 - 2**-20: 3, 0.125: 4}
    for edge, seen in views.items():
        for view in ((edge, 0, 1, 1), (0, edge, 1, 1), (0, 0, 1 - edge, 1), (0, 0, 1, 1 - edge)):
            assert _share_in_view(np.ones((4, 4), bool), view) == seen / 4


def test_answers_about_hidden_regions(runs: dict[str, Path]) -> None:
    rows = table(runs["intervene answers"]).to_pylist()
    conditions = Counter(row["condition"] for row in rows if row["condition"])
    assert conditions["hide: mean"] == conditions["control: blur"] == conditions["no image"] == PAIRS
    assert conditions["prompt: absent"] == PAIRS and conditions["prompt: present"] == BESIDE_OTHERS
    for row in rows:
        drawn = row["boxes"] == 1
        match row["condition"]:
            case "control: mean" | "control: inpaint" | "keep":
                assert drawn and row["box_iou"] > 0.9 and row["probability"] == 1
            case "hide: mean" | "hide: inpaint" | "no image":
                assert not drawn and row["probability"] == 0
            case "prompt: absent":
                assert row["text"] not in hidden.PRESENT[int(row["image_id"]) % 4] and row["probability"] is None
    asked = table(runs["intervene answers"], "predictions.parquet", "no image")
    assert Counter(asked["asked"].to_pylist()) == {"locate": PAIRS, "recognise": PAIRS}


def test_other_words_are_columns_of_other_findings_or_a_sentence(runs: dict[str, Path]) -> None:
    rows = table(runs["intervene maps"]).to_pylist()
    own = {(row["image_id"], row["query"]): row for row in rows if row["condition"] == ""}
    for row in (row for row in rows if row["condition"].startswith("prompt: ")):
        image, condition = row["image_id"], row["condition"]
        if condition == PROMPTS[2]:
            assert (row["text"], row["language"]) == (SENTENCE, "en")
            # The model looks for bright places unless it reads of dark ones.
            assert row["logit"] == own[image, "Square"]["logit"]
            continue
        label = int(condition == PROMPTS[1])
        others = [name for (of, name), one in own.items() if of == image and one["label"] == label]
        others = sorted((draw(image, name), name) for name in others if name != row["query"])
        assert row["text"] == others[0][1]
        assert row["logit"] == own[image, row["text"]]["logit"]
        assert row["region_digest"] == own[image, row["query"]]["region_digest"]
    count = Counter(row["condition"] for row in rows)
    assert [count[name] for name in PROMPTS] == [PAIRS, BESIDE_OTHERS, PAIRS]


@pytest.mark.parametrize("kind", ["maps", "answers", "cropped", "native"])
def test_rows_are_verified_and_scored_again(runs: dict[str, Path], kind: str, tmp_path: Path) -> None:
    folder = runs[f"intervene {kind}"]
    check_rescored(folder, tmp_path / "again")
    assert len(table(folder)["condition"].unique()) == 1 + 6 + 2 + 3


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("kind", ["maps", "answers"])
def test_any_number_of_processes_and_workers_gives_the_same_bytes(runs, kind, processes, tmp_path) -> None:
    model = MAPS if kind == "maps" else ANSWERS
    more = ("--trainer.devices", str(processes), "--oversubscribe", "true", "--data.num_workers", str(processes - 2))
    statuses, said = run_ranks(processes, words(tmp_path / "runs", *model, *more), tmp_path)
    assert statuses == [0] * processes, said
    assert files_of(run_in(tmp_path / "runs")) == files_of(runs[f"intervene {kind}"])


def test_a_killed_run_goes_on(runs: dict[str, Path], tmp_path: Path) -> None:
    # In the middle of the second batch: the first takes the run itself, 24 changes, and a sentence.
    first = start(words(tmp_path / "runs", *MAPS), tmp_path, MORTAL_DIES="SIGKILL 30 0")
    assert first.wait() == -9, first.said
    assert len([*tmp_path.glob("runs/*/*/journal/*.arrow")]) == 1
    assert files_of(run(tmp_path / "runs", *MAPS, "--resume", "true")) == files_of(runs["intervene maps"])


def test_the_plan_says_what_it_takes(tmp_path: Path, capsys) -> None:
    run(tmp_path / "maps", *MAPS, "--pairs", "6")
    said = capsys.readouterr().out
    data = dataset(interventions=[*USUAL], pairs=6)
    assert sum(map(len, data.chosen.values())) == 6
    drawn = [len(data.chosen.get(record.image_id, ())) for record in data.records]
    passes = sum(
        7 * max(drawn[start : start + SIZE]) + 2 for start in range(0, IMAGES, SIZE) if any(drawn[start : start + SIZE])
    )
    assert f"6 positive pairs on {len(data.chosen)} of 19 images" in said
    assert f"; at most {passes} passes" in said
    assert "no finding can reach them" in said and re.search(r"about \d+ images like these would do", said)
    many = dataset(interventions=[*USUAL], images=120, pairs=6)
    (enough,) = map(int, re.findall(r"give --data.pairs (\d+)", plan(many, Brightness())))
    assert "no finding" not in plan(dataset(interventions=[*USUAL], images=120, pairs=enough), Brightness())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--pairs", "0"), "--data.pairs 0 leaves nothing to change"),
        (("--data.pairs", "three"), "is not a whole number"),
        (("--data.interventions", "[men]"), "is not a list of mean, blur, inpaint"),
        (("--data.interventions", "mean"), "Did you mean [mean]?"),
        (("--data.interventions", "[]", "--pairs", "5"), "--data.pairs 5 has no effect without interventions"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, capsys, options: tuple[str, ...], reason: str) -> None:
    run(tmp_path, *MAPS, *options, status=2)
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "option", "kind"), [("hidden.Regions", "interventions", "mean"), ("phrases.Pairs", "wordings", "other")]
)
def test_predictions_without_a_model_cannot_be_asked_again(runs, tmp_path, capsys, data, option, kind) -> None:
    config, options = tmp_path / "asked.yaml", {"num_workers": 0, "images": IMAGES, option: [kind]}
    config.write_text(json.dumps({"data": {"class_path": data, "init_args": options}}))
    given = ("--config", str(config), "--predictions", str(runs["test maps"]), "--name", "again", "--missing", "skip")
    assert main(["score", *given, *QUIET, "--trainer.default_root_dir", str(tmp_path)]) == 2
    assert f"--data.{option} runs the model" in capsys.readouterr().err


def samples(preprocessing: Preprocessing, **options: object) -> Samples:
    data = dataset(interventions=[*USUAL], **options)
    how = (80, 64), 0.5, None, 9, data.interventions, data.chosen
    return Samples(data.records, data.load, data.findings, preprocessing, *how)


@pytest.mark.parametrize("whole", [True, False], ids=["bytes", "floats"])
def test_patches_make_the_changed_input_to_the_bit(whole: bool) -> None:
    model = Brightness()
    model.preprocessing = Preprocessing([TensorResize(50, "bicubic", whole=whole)], (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    made, chosen = samples(model.preprocessing), (0, 1, 2, 3, 6)
    plain = [(i, *one) for i in chosen for one in plain_changes(dataset(), i, model.preprocessing)]
    expected = {(str(i), name, condition): image for i, (name, condition), image, _ in plain}
    # As a worker hands it over.
    batch = Samples.collate([made[i] for i in chosen])
    batch = ForkingPickler.loads(ForkingPickler.dumps(batch)).to("cpu")
    before = batch.images.clone()
    for changes in rounds(batch):
        patched = with_patches(batch, changes, model)
        rows = [int(batch.truth.image[change.pairs[0]]) for change in changes]
        assert len(rows) == len({*rows})
        for row, change in zip(rows, changes, strict=True):
            names = [batch.truth.queries[pair].name for pair in change.pairs]
            images = [expected.pop((batch.truth.image_ids[row], name, change.condition)) for name in names]
            assert torch.equal(patched.images[row], model.preprocessing(images[0])[0])
            height, width = change.pixels.shape
            differs = (patched.images[row] != before[row]).any(0)
            # The patch is the smallest box of what differs.
            box = differs[change.corner[0] :, change.corner[1] :][:height, :width]
            assert box.sum() == differs.sum() and box[0].any() and box[-1].any()
            assert box[:, 0].any() and box[:, -1].any()
        others = [row for row in range(5) if row not in rows]
        assert torch.equal(patched.images[others], before[others])
    assert torch.equal(batch.images, before) and not expected


def test_changes_follow_their_pairs() -> None:
    made = samples(Brightness().preprocessing)
    batch = Samples.collate([made[i] for i in (1, 2, 3)])

    def of(part: Batch) -> list[tuple]:
        pairs = zip(part.truth.image, part.truth.queries, strict=True)
        names = [(part.truth.image_ids[image], query.name) for image, query in pairs]
        return [(one.facts["changed_digest"], *(names[pair] for pair in one.pairs)) for one in part.changes]

    whole = of(batch)
    assert of(batch.only([2, 1])) == [one for one in whole if one[1][0] in "23"]
    wanted = np.array([query.name == "Twin" for query in batch.truth.queries])
    assert of(batch.only([1], wanted)) == [(one[0], ("2", "Twin")) for one in whole if ("2", "Twin") in one]


@given(st.lists(st.sets(st.sampled_from("abcd"), max_size=4), max_size=12), st.integers(1, 30))
def test_pairs_are_drawn_in_equal_shares(present: list[set[str]], most: int) -> None:
    records = [Record(f"{i}", {name: int(name in names) for name in "abcd"}) for i, names in enumerate(present)]
    pairs = [(i, name) for i, names in drawn_pairs(records, "abcd", most).items() for name in names]
    counts = {name: sum(name in names for names in present) for name in "abcd"}
    taken = Counter(name for _, name in pairs)
    assert all(name in present[int(i)] for i, name in pairs)
    assert len(pairs) == min(most, sum(counts.values()))
    assert drawn_pairs(records[::-1], "abcd", most) == drawn_pairs(records, "abcd", most)
    # One at a time to whoever has the fewest: no finding gets two more than another that has more to give.
    for name, other in ((name, other) for name in "abcd" for other in "abcd"):
        assert taken[name] <= taken[other] + 1 or taken[other] == counts[other]
        order = sorted(draw(f"{i}", name) for i, names in enumerate(present) if name in names)
        assert sorted(draw(i, one) for i, one in pairs if one == name) == order[: taken[name]]


def test_phrases_get_the_words_of_findings_that_their_image_has_or_lacks() -> None:
    queries = (Query("1", "Edema", "mild edema"), Query("2", "Nodule", "a nodule"), Query("3", None, "a line"))
    queries += (Query("4", "Mass", "no mass"), Query("5", "Nodule", "no other nodule"))
    truth = Truth.of_image(0, "x", None, (0, 0, 1, 1), None, queries, [1, 1, 1, 0, 0], [None] * 5, 0.5)
    absent, present, sentence = ([other_words(truth, pair, name) for pair in range(3)] for name in PROMPTS)
    assert [query.text for query, _ in absent] == ["mass"] * 3
    assert [query.text for query, _ in present[:2]] == ["nodule", "edema"]
    assert {query.text for query, _ in sentence} == {SENTENCE}
    assert {other for words in (absent, present, sentence) for _, other in words} == {None}
    assert other_words(truth.only([0], truth.labels == 1), 0, PROMPTS[0]) is None


@pytest.mark.parametrize("name", ["Pairs", "Phrases"])
def test_phrases_are_hidden_and_verified(name: str, tmp_path: Path) -> None:
    options = ("--data", f"phrases.{name}", "--data.images", "14", "--data.batch_size", "4", "--data.num_workers", "0")
    place = ("--trainer.default_root_dir", str(tmp_path))
    assert main(["intervene", "--model", "phrases.Attentive", *options, *QUIET, *place]) == 0
    folder = run_in(tmp_path)
    assert disagreements(folder, deep=True) == []
    count = Counter(table(folder)["condition"].to_pylist())
    scored = sum(table(folder, condition="")["scored"].to_pylist())
    assert count["keep"] == count["no image"] == count["hide: blur"] == count["prompt: sentence"] == scored > 4
    assert count["prompt: present"] + count["prompt: absent"] > 0


def test_images_that_stay_come_from_the_store() -> None:
    made, data = samples(Brightness().preprocessing), dataset(interventions=[*USUAL])

    class Store:
        def read(self, record: Record) -> PreparedImage | None:
            stored.append(record.image_id)
            return None if record.source in UNREADABLE else made._decode(record)[0]

    stored: list[str] = []
    with_store = replace(made, store=Store())
    first, second = (Samples.collate([part[i] for i in range(IMAGES)]) for part in (made, with_store))
    assert stored == [record.image_id for record in data.records if record.image_id not in data.chosen]
    assert torch.equal(first.images, second.images) and len(first.changes) == len(second.changes) == PAIRS * 7 + 13
    prompts_alone = replace(with_store, interventions=["prompts"])
    assert not prompts_alone[1].changes and stored[-1] == "1"


def test_an_image_that_crashes_its_decoder_is_left_out(runs: dict[str, Path], tmp_path: Path) -> None:
    crashing = ("--data.unreadable", "[]", "--data.crashing", str([*UNREADABLE]), "--data.num_workers", "1")
    folder = run(tmp_path, *MAPS, *crashing)
    assert (folder / "pairs.parquet").read_bytes() == (runs["intervene maps"] / "pairs.parquet").read_bytes()


def test_a_run_without_regions_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="so --data.interventions hid nothing"):
        run(tmp_path, *MAPS, "--data.images", "1", "--data.unreadable", "[]")
