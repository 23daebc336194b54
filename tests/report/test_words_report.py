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
from xbench.report.statistics.analyse import analyse
from xbench.report.tables.contents import all_tables
from xbench.runs.finished import FinishedRun
from xbench.runs.protocols import read_protocol, read_protocol_pairs, write_protocol
from xbench.scoring.protocols.words import Words, outcome

FINDINGS = ("Nodule", "Pneumothorax")
IMAGES = 24  # two of each patient
TRUE = ["left", "right", "right", "left right"] * 6
PRIOR = {name: {"sides": "right", "zones": "upper"} for name in FINDINGS}


def speak(root, model, words, maps=None, tuned=PRIOR):
    """Write a run whose words, or whose maps, state these sides on the images in turns, of both findings alike."""
    folder = write_run(root, model, images=IMAGES, findings=FINDINGS, with_cases=False)
    ids, table = FinishedRun.open(folder).rows.image_ids, {}
    stated = {"": words or maps, "own_": words or maps, "map_": (words and maps) or [""]}
    for prefix, sides in stated.items():
        sides = [sides[image % len(sides)] for image in range(IMAGES)]
        status = ["asserted" if side else "" for side in sides]
        table |= {f"{prefix}sides": sides * 2, f"{prefix}zones": [""] * 48, f"{prefix}status": status * 2}
    about = {"true_sides": TRUE * 2, "allowed_zones": ["upper"] * 48, "correct_zones": ["upper"] * 48}
    source = " ".join(["words"] * bool(words) + ["maps"] * bool(maps))
    table |= about | {"image_id": [*ids] * 2, "column": [0] * 24 + [1] * 24, "label": [1] * 48, "source": [source] * 48}
    table |= {"probability": [0.5] * 48, "chance": [0.1] * 48, "index": [*range(24)] * 2}
    arrays = {name: np.array(values) for name, values in table.items()}
    write_protocol(folder, "words", Words().results(arrays, FINDINGS, False, tuned), arrays)
    return folder


RIGHT = TRUE[:4]
SOME = ["left", "", "left", "left right", "left", "right", "right"]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    root = tmp_path_factory.mktemp("spoken")
    folder = speak(root, "kad", SOME, RIGHT)
    speak(root, "mavl", None, ["right", "left"])
    return folder, analyse(collect([root])).datasets[0]


def patients(folder):
    rows = FinishedRun.open(folder).rows
    return dict(zip(rows.image_ids, rows.patient_ids, strict=True))


def weighed(pairs, weights):
    """Gain and excess of (stated, true) with pairs counted by weights: a loop over every text with every truth."""
    stated = [(text, weight) for (text, _), weight in zip(pairs, weights, strict=True) if text]
    right = sum(weight for (text, true), weight in zip(pairs, weights, strict=True) if text == true)
    prior = sum(w for (text, true), w in zip(pairs, weights, strict=True) if text and true == "right")
    total, spoken = sum(weights), sum(weight for _, weight in stated)
    chance = sum(a * b * (text == true) for text, a in stated for (_, true), b in zip(pairs, weights, strict=True))
    chance /= spoken * total
    return {"gain": (right - prior) / spoken, "excess": (right / spoken - chance) / (1 - chance)}


@pytest.mark.parametrize("name", ["gain", "excess"])
def test_students_intervals_add_up_what_each_patient_changes(spoken, name):
    folder, dataset = spoken
    (entry,) = [one for one in dataset.runs if one.run.label == "KAD"]
    pairs, names = [(SOME[at % 7], TRUE[at]) for at in range(IMAGES)], [*patients(folder).values()]
    value, influence = weighed(pairs, [1] * IMAGES)[name], []
    for patient in sorted({*names}):
        more, less = (weighed(pairs, [1 + step * (one == patient) for one in names])[name] for step in (1e-5, -1e-5))
        influence.append((more - less) / 2e-5)
    reach = student.ppf(0.975, 11) * np.sqrt(12 / 11 * np.square(influence).sum())
    for finding in ("macro", *FINDINGS):
        # Both findings say the same on the same patients, so their mean is as uncertain as each.
        found = entry.words[0].numbers[finding][f"side_{name}"]
        assert (found.value, found.low, found.high) == pytest.approx((value, value - reach, value + reach), abs=1e-7)


def test_shares_have_the_interval_of_the_pointing_game(spoken):
    folder, dataset = spoken
    (entry,) = [one for one in dataset.runs if one.run.label == "KAD"]
    names = np.unique([*patients(folder).values()], return_inverse=True)[1]
    own, beside = entry.words
    assert (own.label, own.kind, beside.label, beside.kind) == ("KAD", "words", "KAD, maps", "maps")
    for one, says in ((own, SOME), (beside, RIGHT)):
        outcomes = [outcome(says[at % len(says)], TRUE[at], TRUE[at]) for at in range(IMAGES)]
        stated = np.array([of != "unstated" for of in outcomes])
        for name, among in (("joint", stated | True), ("opposite", stated), ("coverage", stated | True)):
            hits = {"joint": "correct", "opposite": "opposite"}.get(name)
            hit = stated if hits is None else np.array([of == hits for of in outcomes])
            spread = intervals.share(hit[among].astype(float), names[among], 12)
            found = one.numbers["Nodule"][f"side_{name}"]
            assert found.value == hit[among].mean() and (found.low, found.high) == spread.interval()
        asserted = np.array([bool(says[at % len(says)]) for at in range(IMAGES)])
        f1 = one.numbers["Nodule"].get("mention_f1")
        assert f1 is None if one is beside else f1.value == 2 * asserted.sum() / (asserted.sum() + IMAGES)
    assert own.counts == dict.fromkeys(FINDINGS, IMAGES)
    stored = read_protocol(folder, "words")["numbers"]
    assert {name: one.value for name, one in own.numbers["macro"].items() if name in stored} == {
        name: number["value"] for name, number in stored.items() if name in own.numbers["macro"]
    }


def test_p_counts_every_exchange_of_patients_and_is_corrected_for_all_tests(spoken):
    folder, dataset = spoken
    says = {"KAD": SOME, "KAD, maps": RIGHT, "MAVL": ["right", "left"]}
    names, expected = np.array([*patients(folder).values()]), {}
    tests = [one for one in dataset.comparisons if one.number.startswith("side_")]
    for one in tests:
        hits = np.array(
            [
                [outcome(says[label][at % len(says[label])], TRUE[at], TRUE[at]) for at in range(IMAGES)]
                for label in (one.first, one.second)
            ]
        )
        among = (hits != "unstated").all(axis=0) if one.number == "side_opposite" else np.ones(IMAGES, bool)
        wanted = {"side_joint": "correct", "side_opposite": "opposite"}[one.number]
        apart = (hits[0] == wanted).astype(float) - (hits[1] == wanted)
        parts = np.array([apart[among & (names == name)].sum() for name in sorted({*names[among]})])
        signs = np.array(list(product((-1, 1), repeat=len(parts))))
        expected[one] = float(np.mean(abs(signs @ parts) >= abs(parts.sum()) - 1e-9))
        assert one.p == pytest.approx(expected[one]) and one.images == among.sum()
        assert one.difference.value == pytest.approx(apart[among].mean())
    assert len(tests) == 6
    ranked, least = sorted(expected.values()), 0.0
    for place, p in enumerate(ranked):
        least = max(least, min(1.0, p * (6 - place)))
        assert least in [pytest.approx(one.p_adjusted) for one in tests if expected[one] == p]


CASES = {
    "silence": ({"kad": ([""],)}, "Silent: its words name", "0% of lesions on average over two findings (0 of 48)"),
    "a prior": (
        {"kad": (["right"],)},
        "No better than the commonest side: its words",
        "commonest side would be right in 50%",
    ),
    "no prior": ({"kad": (["right"], None, None)}, "No better than texts of other films:", "opposite in 25%; texts of"),
    "all right": (
        {"kad": (RIGHT,)},
        "Does KAD say where the lesion is?",
        "Mostly right: its words name",
        "100% of lesions",
    ),
    "half": ({"kad": (["left", "right", "right", ""],)}, "Mostly right", "75%"),
    "maps alone": ({"kad": (None, RIGHT)}, "Does KAD look at the right side?", "Mostly right: its map peaks on"),
    "two models": ({"kad": (RIGHT,), "mavl": (SOME,)}, "Do two models say", "the words of KAD name the right"),
    "its own map": (
        {"kad": (SOME, RIGHT)},
        "Do words or maps",
        "Maps do better: the words of KAD",
        "the map of KAD peaks on it for 100% (p = 0.002)",
    ),
    "another's map": (
        {"kad": (RIGHT,), "mavl": (None, SOME)},
        "Words do better: ",
        "100% of lesions, and the map of MAVL",
    ),
    "the same": ({"kad": (RIGHT,), "mavl": (None, RIGHT)}, "No significant difference: ", "(p = 1.00)"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_on_sides(case, tmp_path):
    runs, *expected = CASES[case]
    for model, (words, *more) in runs.items():
        maps, tuned = (*more, *(None, PRIOR)[len(more) :])
        speak(tmp_path, model, words, maps, tuned)
    reply = said(facts_of(analyse(collect([tmp_path]))))
    text = " ".join([reply.question, *reply.texts])
    assert not [one for one in expected if one not in text], text
    assert ("commonest" in text) == (case not in ("silence", "no prior"))


def phantoms(folder, *words):
    data = ["images=20", "size=64", "num_workers=0", "cache=false"]
    options = [f"--data.{one}" for one in data] + ["--trainer.logger=false", f"--trainer.default_root_dir={folder}"]
    assert main([*words, *options]) == 0
    return max(folder.glob("*/*/results.json"), key=lambda path: path.stat().st_mtime_ns).parent


@pytest.fixture(scope="module")
def phantom_runs(tmp_path_factory):
    """Runs of instruments, of a file of reports with every second one swapped, of maps, and of words around boxes."""
    root = tmp_path_factory.mktemp("phantoms")
    words = {name: ["--config", f"words_{name}_phantom", "--model.ask=report"] for name in ("oracle", "silent")}
    runs = {name: phantoms(root / name, "test", *given) for name, given in words.items()}
    texts = [(row.image_id, row.raw) for row in FinishedRun.open(runs["oracle"]).texts]
    turned = {"left": "right", "right": "left"}
    lines = [
        json.dumps(
            {"image": image, "text": re.sub("left|right", lambda side: turned[side[0]], text) if at % 2 else text}
        )
        for at, (image, text) in enumerate(texts)
    ]
    (root / "half.jsonl").write_text("\n".join(lines))
    given = ["score", "--config", "phantom", "--predictions", f"{root / 'half.jsonl'}", "--name", "half"]
    runs["half"] = phantoms(root / "half", *given, "--family", "report")
    runs["maps"] = phantoms(root / "maps", "test", "--config", "demo_phantom")
    scores, findings = FinishedRun.open(runs["maps"]).image_scores, FinishedRun.open(runs["maps"]).results.findings
    pairs = [(scores.image_ids[row], findings[at]) for row, at in np.argwhere(scores.labels == 1).tolist()]
    said = "In the left lung at [0.1, 0.1, 0.3, 0.3]."
    lines = [json.dumps({"image": image, "finding": finding, "answer": said}) for image, finding in pairs]
    (root / "boxes.jsonl").write_text("\n".join(lines))
    given = ["score", "--config", "phantom", "--predictions", f"{root / 'boxes.jsonl'}", "--name", "both"]
    runs["both"] = phantoms(root / "both", *given, "--family", "radvlm")
    for name, option in (("maps", ["--words-of-maps"]), ("both", [])):
        assert main(["rescore", str(runs[name]), "--protocol", "words", "--workers", "0", *option]) == 0
    return runs


def written(folders, path):
    analysis = analyse(collect(folders))
    tables = all_tables(analysis)
    write_page(analysis, tables, path, cases=2)
    return analysis, {table.name: table for table in tables}, path.read_text(encoding="utf-8")


def test_a_page_of_words_alone(phantom_runs, tmp_path):
    folders = [phantom_runs[name] for name in ("half", "oracle", "silent")]
    analysis, tables, page = written(folders, tmp_path / "index.html")
    assert {*tables} == {"words_phantom", "checklist"} and "AUROC" not in page.partition('id="method"')[0]
    assert answer(facts_of(analysis)).answer in page and "says left, is right" in page
    half, silent, oracle = tables["words_phantom"].rows
    assert [row.kind for row in (half, silent, oracle)] == ["model", "floor", "ceiling"]
    assert [cell.value for cell in oracle.cells[1:5]] == [1, 1, 1, 0] and silent.cells[1].value == 0
    assert all(any(name in note for note in tables["words_phantom"].notes) for name in ("ide joint", "alse mention"))
    shown = analysis.runs[0].words[0].numbers["Nodule"]
    bar = re.search(r'aria-label="Nodule: a side is stated for (\d+)%, right for (\d+)%, opposite for (\d+)%', page)
    parts = [1, shown["side_joint"].value, shown["side_opposite"].value]
    assert [int(one) for one in bar.groups()] == [round(100 * part) for part in parts]
    films = [*opposite_sides([one.run for one in analysis.runs], 10)]
    table = read_protocol_pairs(phantom_runs["half"], "words")
    found = {(table["image_id"][row], table["column"][row]) for row in np.flatnonzero(table["side"] == "opposite")}
    findings = analysis.runs[0].run.results.findings
    assert len(films) == min(10, len(found)) and len({film[2].finding for film in films[:3]}) == 3
    for _, sides, pair, (_, mention, *_) in films:
        assert (pair.image_id, findings.index(pair.finding)) in found and mention.lower() in pair.finding.lower()
        assert sides in ("says left, is right", "says right, is left")


def test_pages_of_maps_and_of_both(phantom_runs, tmp_path):
    analysis, tables, page = written([phantom_runs["maps"], phantom_runs["both"]], tmp_path / "index.html")
    assert "look at the lesion" in answer(facts_of(analysis)).question
    assert "Do words or boxes place the lesion better?" in page and "Not tested" not in page
    rows = {row.cells[0].text: row.cells[3].value for row in tables["words_phantom"].rows}
    maps, both = (read_protocol(phantom_runs[name], "words")["numbers"] for name in ("maps", "both"))
    assert rows["Demo"] == maps["side_joint"]["value"] and rows["both"] == both["side_joint"]["value"]
    assert rows["both, boxes"] == both["map_side_joint"]["value"] and "they were scored for recognition" not in page
