from __future__ import annotations

import json
import re
from itertools import product

import numpy as np
import pytest
from scipy.stats import t as student
from synthetic import write_run

from xbench.cli import main
from xbench.report.cases import opposite_sides
from xbench.report.facts import facts_of
from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.sentences import answer, said
from xbench.report.statistics import intervals
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables
from xbench.runs.finished import FinishedRun
from xbench.runs.protocols import read_protocol, read_protocol_pairs, write_protocol
from xbench.scoring.protocols.words import Words, outcome

FINDINGS, IMAGES = ("Nodule", "Pneumothorax"), 24  # two of each patient
PATIENTS = np.arange(IMAGES) // 2
TRUE = ["left", "right", "right", "left right"] * 6
PRIOR = {name: {"sides": "right", "zones": "upper"} for name in FINDINGS}
ALL, SOME, TURNS = TRUE[:4], ["left", "", "left", "left right", "left", "right", "right"], ["right", "left"]
SAYS = {"KAD": SOME, "KAD, maps": ALL, "MAVL": TURNS}


def speak(root, model, words, maps=None, tuned=PRIOR):
    """Write a run whose words, and whose maps, state these sides image by image in turns, of both findings alike."""
    folder = write_run(root, model, images=IMAGES, findings=FINDINGS, with_cases=False)
    table = {"true_sides": TRUE, "allowed_zones": ["upper"], "correct_zones": ["upper"], "label": [1], "chance": [0.1]}
    table |= {"source": [" ".join(["words"] * bool(words) + ["maps"] * bool(maps))], "probability": [0.5]}
    for prefix, sides in {"": words or maps, "own_": words or maps, "map_": (words and maps) or [""]}.items():
        status = ["asserted" if side else "" for side in sides]
        table |= {f"{prefix}sides": sides, f"{prefix}zones": [""], f"{prefix}status": status}
    turns = {name: [values[at % len(values)] for at in range(IMAGES)] * 2 for name, values in table.items()}
    turns |= {"image_id": [*FinishedRun.open(folder).rows.image_ids] * 2, "column": [0] * IMAGES + [1] * IMAGES}
    arrays = {name: np.array(values) for name, values in (turns | {"index": [*range(IMAGES)] * 2}).items()}
    write_protocol(folder, "words", Words().results(arrays, FINDINGS, False, tuned), arrays)


def counted(says, name):
    outcomes = np.array([outcome(says[at % len(says)], TRUE[at], TRUE[at]) for at in range(IMAGES)])
    hits = {"joint": outcomes == "correct", "opposite": outcomes == "opposite", "coverage": outcomes != "unstated"}
    return hits[name].astype(float), hits["coverage"] | (name != "opposite")


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    root = tmp_path_factory.mktemp("spoken")
    speak(root, "kad", SOME, ALL)
    speak(root, "mavl", None, TURNS)
    dataset = analyze(collect([root])).datasets[0]
    found = {one.label: one for entry in dataset.runs for one in entry.words}
    assert [found[label].kind for label in SAYS] == ["words", "maps", "maps"]
    return found, [one for one in dataset.comparisons if one.number.startswith("side_")]


def weighed(weights):
    says = [SOME[at % 7] for at in range(IMAGES)]
    told = [(weight, text, true) for weight, text, true in zip(weights, says, TRUE, strict=True) if text]
    right, prior = sum(w * (text == true) for w, text, true in told), sum(w * (true == "right") for w, _, true in told)
    every, stated = product(told, zip(weights, TRUE, strict=True)), sum(weight for weight, *_ in told)
    chance = sum(a * b * (text == true) for (a, text, _), (b, true) in every) / stated / sum(weights)
    return {"gain": (right - prior) / stated, "chance": chance, "excess": (right / stated - chance) / (1 - chance)}


@pytest.mark.parametrize("name", ["gain", "chance", "excess"])
def test_students_intervals_add_up_what_each_patient_changes(spoken, name):
    steps = [[weighed(1 + step * (one == PATIENTS))[name] for step in (1e-5, -1e-5)] for one in range(12)]
    influence = np.array([(more - less) / 2e-5 for more, less in steps])
    value, reach = weighed(np.ones(IMAGES))[name], student.ppf(0.975, 11) * np.sqrt(12 / 11 * (influence**2).sum())
    for finding in ("macro", *FINDINGS):
        # Both findings say the same on the same patients, so their mean is as uncertain as each.
        found = spoken[0]["KAD"].numbers[finding][f"side_{name}"]
        assert (found.value, found.low, found.high) == pytest.approx((value, value - reach, value + reach), abs=1e-7)


@pytest.mark.parametrize(("label", "name"), product(SAYS, ("joint", "opposite", "coverage")))
def test_shares_have_the_interval_of_the_pointing_game(spoken, label, name):
    hits, among = counted(SAYS[label], name)
    spread, found = intervals.share(hits[among], PATIENTS[among], 12), spoken[0][label].numbers["Nodule"]
    assert found[f"side_{name}"].value == hits[among].mean() and spoken[0][label].counts["Nodule"] == IMAGES
    assert (found[f"side_{name}"].low, found[f"side_{name}"].high) == spread.interval()
    if (label, name) == ("KAD", "coverage"):
        f1, limits = found["mention_f1"], intervals.f1(among, hits == 1, PATIENTS, 12).interval()
        assert (f1.value, f1.low, f1.high) == pytest.approx((2 * hits.sum() / (hits.sum() + IMAGES), *limits))


def test_p_counts_every_exchange_of_patients_and_is_corrected_for_all_tests(spoken):
    expected = []
    for one in spoken[1]:
        of = [counted(SAYS[label], one.number.removeprefix("side_")) for label in (one.first, one.second)]
        apart, among = of[0][0] - of[1][0], of[0][1] & of[1][1]
        parts = [apart[among & (patient == PATIENTS)].sum() for patient in {*PATIENTS[among]}]
        differences = np.array([*product((-1, 1), repeat=len(parts))]) @ parts
        expected.append(float(np.mean(abs(differences) >= abs(sum(parts)) - 1e-9)))
        assert (one.p, one.difference.value) == pytest.approx((expected[-1], apart[among].mean()))
        assert one.images == among.sum() and one.difference.low <= one.difference.value <= one.difference.high
    ranked = np.argsort(expected)
    holm = np.minimum(1, np.maximum.accumulate(np.array(expected)[ranked] * np.arange(6, 0, -1)))
    assert [spoken[1][place].p_adjusted for place in ranked] == pytest.approx(holm)


CASES = [
    ({"kad": [[""]]}, "say where|Silent: its words name|0% of lesions on average over two findings (0 of 48)"),
    ({"kad": [["right"]]}, "No better than the most common side: its words|most common side would be correct in 50%"),
    ({"kad": [["right"], None, None]}, "No better than texts of other images:|opposite in 25%; texts of"),
    ({"kad": [ALL]}, "Does KAD say where the lesion is?|Mostly correct: its words name|100% of lesions|(48 of 48)"),
    ({"kad": [["left", "right", "", ""]]}, "About half the time: |for 50% of lesions: correct in 100%"),
    ({"kad": [None, ALL]}, "Does KAD look at the correct side?|Mostly correct: its map peaks on"),
    ({"kad": [ALL], "mavl": [SOME]}, "Do two models say|the words of KAD name the correct"),
    (
        {"kad": [SOME, ALL]},
        "Do words or maps|Maps do better: the words|the map of KAD peaks on it for 100% (p = 0.002)",
    ),
    ({"kad": [ALL], "mavl": [None, SOME]}, "Words do better: |100% of lesions, and the map of MAVL peaks"),
    ({"kad": [ALL], "mavl": [None, ALL]}, "No significant difference: |(p = 1.00)"),
]


@pytest.mark.parametrize(("runs", "expected"), CASES)
def test_the_sentence_on_sides(runs, expected, tmp_path):
    for model, given in runs.items():
        speak(tmp_path, model, *given)
    reply = said(facts_of(analyze(collect([tmp_path]))))
    assert not [one for one in expected.split("|") if one not in " ".join([reply.question, *reply.texts])]


def phantoms(folder, *given):
    data = [f"--data.{one}" for one in ("images=20", "size=64", "num_workers=0", "cache=false")]
    assert main([*map(str, given), *data, "--trainer.logger=false", f"--trainer.default_root_dir={folder}"]) == 0
    return next(folder.glob("*/*/results.json")).parent


@pytest.fixture(scope="module")
def phantom_runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("phantoms")
    words = {name: ["--config", f"words_{name}_phantom", "--model.ask=report"] for name in ("oracle", "silent")}
    runs = {name: phantoms(root / name, "test", *given) for name, given in words.items()}
    runs["maps"] = phantoms(root / "maps", "test", "--config", "demo_phantom")
    turned, texts = {"left": "right", "right": "left"}, FinishedRun.open(runs["oracle"]).texts
    swapped = [re.sub("left|right", lambda side: turned[side[0]], row.raw) for row in texts]
    said = [{"image": row.image_id, "text": (row.raw, swapped[at])[at % 2]} for at, row in enumerate(texts)]
    pairs, answer = FinishedRun.open(runs["maps"]).scored_pairs, {"answer": "Left. [0.1, 0.1, 0.3, 0.3]"}
    boxes = [{"image": image, "finding": finding} | answer for image, finding in pairs]
    for name, family, lines in (("half", "report", said), ("both", "radvlm", boxes)):
        (root / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
        given = ("--config", "phantom", "--predictions", root / f"{name}.jsonl", "--name", name, "--family", family)
        runs[name] = phantoms(root / name, "score", *given)
    for name, option in (("maps", ["--words-of-maps"]), ("both", [])):
        assert main(["rescore", str(runs[name]), "--protocol", "words", "--workers", "0", *option]) == 0
    return runs


def written(runs, path, *names):
    analysis = analyze(collect([runs[name] for name in names]))
    write_page(analysis, tables := all_tables(analysis), path / "index.html", cases=2)
    return analysis, {table.name: table for table in tables}, (path / "index.html").read_text(encoding="utf-8")


def test_a_page_of_words_alone(phantom_runs, tmp_path):
    analysis, tables, page = written(phantom_runs, tmp_path, "half", "oracle", "silent")
    assert {*tables} == {"words_phantom", "checklist"} and not re.search("AUROC", page)
    assert answer(facts_of(analysis)).answer in page and "says left, is right" in page
    _, silent, oracle = tables["words_phantom"].rows
    assert (silent.kind, oracle.kind, silent.cells[1].value) == ("floor", "ceiling", 0)
    assert [cell.value for cell in oracle.cells[1:5]] == [1, 1, 1, 0]
    assert all(any(name in note for note in tables["words_phantom"].notes) for name in ("ide joint", "alse mention"))
    numbers = analysis.runs[0].words[0].numbers["Nodule"]
    right, opposite = (int(100 * numbers[f"side_{name}"].value + 0.5) for name in ("joint", "opposite"))
    assert f"Nodule: a side is stated for 100%, correctly for {right}%, opposite for {opposite}%" in page
    table, films = read_protocol_pairs(phantom_runs["half"], "words"), [*opposite_sides([analysis.runs[0].run], 10)]
    opposite = {(table["image_id"][row], table["column"][row]) for row in np.flatnonzero(table["side"] == "opposite")}
    assert len(films) == min(10, len(opposite)) and len({film[2].finding for film in films[:3]}) == 3
    for _, sides, pair, (_, mention, *_) in films:
        assert (pair.image_id, analysis.runs[0].run.results.findings.index(pair.finding)) in opposite
        assert sides in ("says left, is right", "says right, is left") and mention.lower() in pair.finding.lower()


def test_pages_of_maps_and_of_both(phantom_runs, tmp_path):
    analysis, tables, page = written(phantom_runs, tmp_path, "maps", "both")
    assert "look at the lesion" in answer(facts_of(analysis)).question and "recognition only" not in page
    assert "Do words or boxes place the lesion better?" in page and "Not tested" not in page
    rows = {row.cells[0].text: row.cells[3].value for row in tables["words_phantom"].rows}
    maps, both = (read_protocol(phantom_runs[name], "words")["numbers"] for name in ("maps", "both"))
    joints = maps["side_joint"], both["side_joint"], both["map_side_joint"]
    assert [rows[name] for name in ("Demo", "both", "both, boxes")] == [number["value"] for number in joints]


def test_runs_of_words_beside_it_leave_the_floors_of_a_run_of_maps_as_they_are(phantom_runs):
    alone, beside = (
        {one.title: (one.kind, one.macro["pointing_game"].value) for one in dataset.references}
        for names in (["maps"], ["half", "silent", "maps"])
        for dataset in analyze(collect([phantom_runs[name] for name in names])).datasets
    )
    assert len(alone) == 2 and all(value is not None for _, value in alone.values())
    assert alone == {title: reference for title, reference in beside.items() if title in alone}
