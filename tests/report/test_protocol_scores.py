from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from synthetic import write_run

from xbench.report.document import document
from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables
from xbench.report.tables.table import MISSING
from xbench.runs.protocols import read_protocol, write_protocol
from xbench.scoring.protocols import PROTOCOLS

IMAGES = 12
CALIBRATION = ("ece", "ece_by_chance", "ece_adaptive", "mce", "brier")


def score(folder, name, values):
    """Store a protocol's numbers: one value an image, all of the same finding."""
    table = {
        "image_id": np.array([f"image-{image:04d}" for image in range(IMAGES)]),
        "column": np.zeros(IMAGES, np.int64),
        PROTOCOLS[name].headline: np.array(values, np.float64),
    }
    protocol = PROTOCOLS[name]
    entry = {"value": float(np.mean(values)), "average": "findings"}
    about = {"title": protocol.named(native=False), "headline": protocol.headline}
    write_protocol(folder, name, {"schema": 1, "protocol": name, "numbers": {protocol.headline: entry}} | about, table)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    values = {}
    for model, shift in (("kad", 0.0), ("mavl", 0.1), ("carzero", 0.4)):
        folder = write_run(root, model, images=IMAGES, with_cases=False)
        for name, turn in (("xbench", 1), ("aep", -1)):
            values[model, name] = 0.4 + turn * shift + 0.2 * draw.random(IMAGES)
            score(folder, name, values[model, name])
    score(write_run(root, "oracle", images=IMAGES, with_cases=False), "xbench", [0.99] * IMAGES)
    analysis = analyze(collect([root]))
    return analysis, values


def test_ranks_and_the_pairs_that_turn(report):
    analysis, values = report
    tables = {table.name: table for table in all_tables(analysis)}
    protocols = tables["protocols_chestxray14"]
    heads = [(column.group, column.title) for column in protocols.columns[1:]]
    assert heads == [("xbench", "Rank accuracy"), ("AFLoc, KAF*", "Mean IoU")]
    named = {"KAD": "kad", "MAVL": "mavl", "CARZero": "carzero"}
    *models, oracle = protocols.rows
    assert (oracle.kind, [cell.text for cell in oracle.cells[1:]]) == ("ceiling", ["99.00", MISSING])
    for place, name in enumerate(("xbench", "aep"), 1):
        means = {row.cells[0].text: values[named[row.cells[0].text], name].mean() for row in models}
        for row in models:
            mean = means[row.cells[0].text]
            rank = 1 + sum(other > mean for other in means.values())
            assert row.cells[place].text == f"{100 * mean:.2f} ({rank})"
            assert row.cells[place].mark == ("best" if rank == 1 else None)
    turned = tables["protocols_turned_chestxray14"]
    found = {(frozenset(cell.text for cell in row.cells[:2]), row.cells[2].text): row.cells for row in turned.rows}
    pair = frozenset(("KAD", "CARZero"))
    for name, ahead in (("xbench", "CARZero"), ("AFLoc, KAF*", "KAD")):
        first, second, _, who, *_ = found[pair, name]
        assert {"first": first, "second": second}[who.text].text == ahead
    difference = values["carzero", "xbench"].mean() - values["kad", "xbench"].mean()
    assert found[pair, "xbench"][4].value == pytest.approx(difference)
    text = document(analysis, list(tables.values()), [])
    assert "## Other papers' scoring rules" in text
    for name in ("xbench", "aep"):
        assert PROTOCOLS[name].flaw.rpartition(",")[2] in text


def test_p_counts_every_exchange_of_patients(report):
    analysis, values = report
    scores = analysis.datasets[0].protocols[0]
    named = {"KAD": "kad", "MAVL": "mavl", "CARZero": "carzero"}
    for first, others in scores.p.items():
        for second, p in others.items():
            difference = values[named[first], "xbench"] - values[named[second], "xbench"]
            # Two images a patient.
            of_patients = difference.reshape(-1, 2).sum(1)
            signs = np.array(list(product((-1, 1), repeat=len(of_patients))))
            assert p == np.mean(abs(signs @ of_patients) >= abs(of_patients.sum()) - 1e-9)


def test_protocols_of_two_models_stand_in_one_table_and_calibration_in_its_own(tmp_path, command):
    for model in ("kad", "mavl"):
        folder = write_run(tmp_path, model, images=IMAGES, map_scale="probability", saliency_upsample="nearest")
        assert command("rescore", folder, "--protocol", "all", "--workers", 0).status == 0
    analysis = analyze(collect([tmp_path]))
    tables = {table.name: table for table in all_tables(analysis)}
    table, calibration = tables["protocols_chestxray14"], tables["protocols_calibration_chestxray14"]
    assert len(tables["grounding_own_scale"].rows) == 2
    for row in tables["grounding_own_scale"].rows:
        results = next(run.run.results for run in analysis.runs if run.run.label == row.cells[1].text)
        macros = [results.own_scale.macro, results.grounding.macro]
        names = ("dice_fixed", "dice_best", "iou_fixed", "iou_best")
        assert [cell.value for cell in row.cells[3:]] == [macro[name] for macro in macros for name in names]
    heads = [column.title for column in table.columns[1:]]
    # Of maps that are no cosines; probabilities are no maps.
    assert len(heads) == sum("map" in one.takes for one in PROTOCOLS.values()) - 1
    assert heads[-3:] == ["Lesion recall", "Dice", "FROC"]
    assert all(cell.text != MISSING for row in table.rows for cell in row.cells)
    p = {scores.name: scores.p["KAD"]["MAVL"] for scores in analysis.datasets[0].protocols}
    # Of a curve over all images no pair has a share.
    assert [name for name, value in p.items() if value is None] == ["detections"] and 0 < p["lesions"] <= 1
    for row in calibration.rows:
        folder = next(run.run.folder for run in analysis.runs if run.run.label == row.cells[0].text)
        numbers = read_protocol(folder, "calibration")["numbers"]
        assert [cell.value for cell in row.cells[1:]] == [numbers[name]["value"] for name in CALIBRATION]
    write_page(analysis, [*tables.values()], tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    section = page.partition('<section class="s" id="calibration"')[2].partition("</section>")[0]
    best = min(calibration.rows, key=lambda row: row.cells[1].value)
    assert best.cells[0].text in section.partition("</h2>")[0] and PROTOCOLS["calibration"].flaw in section
