from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from importlib.resources import files

import cv2
import html5lib
import numpy as np
import pytest
import torch
from on_grid import saliency_on_grid
from synthetic import write_run

from xbench.metrics import normalise
from xbench.report import charts
from xbench.report.cases import map_on_grid
from xbench.report.names import p_words, whole
from xbench.report.page.write import outline_of, write_page
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables
from xbench.runs.images import ScoredPair


class Page:
    """What a page holds: its elements, tables by their id as rows of texts, scripts, links and ids."""

    def __init__(self, text):
        # Scripts hold no element, and are long.
        self.plain_scripts = re.findall(r"(?s)<script>(.*?)</script>", text)
        parser = html5lib.HTMLParser(namespaceHTMLElements=False)
        self.elements = [*parser.parse(re.sub(r"(?s)<script>.*?</script>", "", text)).iter()]
        self.errors = parser.errors
        self.data = {e.get("id"): json.loads(e.text) for e in self.elements if e.tag == "script"}
        self.links = [(name, value) for e in self.elements for name, value in e.items() if name in LOADING]
        self.ids = [e.get("id") for e in self.elements if e.get("id")]
        self.tables = {
            block.get("id"): [[shown(cell) for cell in row if cell.tag in ("td", "th")] for row in block.iter("tr")]
            for block in self.elements
            if block.tag == "div" and "table-block" in block.get("class", "")
        }


def shown(cell):
    parts = [(child.text if child.tag != "span" else "") or "" for child in cell]
    return ((cell.text or "") + "".join(parts)).strip()


TEMPLATES = files("xbench.report.page").joinpath("templates")
LOADING = {"src", "href", "srcset", "poster", "action", "formaction", "data", "background", "ping", "xlink:href"}


def built(root, path, **options):
    collection = collect([root])
    analysis = analyze(collection)
    write_page(analysis, all_tables(analysis), path, **options)
    return collection, path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(three_runs, tmp_path_factory):
    return built(three_runs, tmp_path_factory.mktemp("page") / "index.html")


@pytest.fixture(scope="module")
def page(made):
    return Page(made[1])


def test_charts_draw_what_results_json_says(made, three_analyzed, page):
    (panel,) = charts.curves(three_analyzed)
    drawn = {line.label: [point.value for _, point in line.points] for line in panel.lines}
    ladder = next(e for e in page.elements if e.tag == "figure" and "ladder" in e.get("class", ""))
    rows = {
        "".join(row.find("th").itertext()).strip(): row.find("td/b").text
        for row in ladder.iter("tr")
        if row.find("td/b") is not None
    }
    for run in made[0].runs:
        results = json.loads((run.folder / "results.json").read_text())["grounding"]
        expected = [scores["dice_curve"] for scores in results["per_class"].values()]
        np.testing.assert_allclose(drawn[run.label], np.mean(expected, axis=0), atol=1e-6)
        assert rows[run.label] == whole(results["macro"]["pointing_game"])
    assert [int(value) for value in rows.values()] == sorted(map(int, rows.values()), reverse=True)


def test_nothing_is_loaded_from_anywhere(made, page):
    assert page.links
    for name, value in page.links:
        assert value.startswith(("#", "data:")), f'{name}="{value}"'
    assert "content=\"default-src 'none'; script-src 'unsafe-inline'; style-src" in made[1].replace("&#39;", "'")
    for text in (file.read_text(encoding="utf-8") for file in TEMPLATES.iterdir()):
        assert not re.search(r"@import|\bfetch\(|XMLHttpRequest|sendBeacon|WebSocket|\bimport\s*[({\"']", text)
        assert not re.search(r"url\(\s*['\"]?(?!data:)", text)
        assert not [url for url in re.findall(r"https?://[^\s\"']+", text) if "w3.org" not in url]


def test_it_is_valid_html_with_inline_scripts_that_nothing_ends_early(page):
    assert page.errors == []
    assert [*page.data] == ["case-data", "color-data"]
    assert len(page.plain_scripts) == 5
    assert len(page.ids) == len(set(page.ids))
    for attribute in ("for", "aria-labelledby", "aria-describedby", "form"):
        for element in page.elements:
            assert element.get(attribute) is None or element.get(attribute) in page.ids
    for name, value in page.links:
        if name == "href" and value.startswith("#"):
            assert value[1:] in page.ids


def test_every_table_is_shown_once(made, page, three_analyzed):
    tables = all_tables(three_analyzed)
    assert {*page.tables} == {f"table-{table.name}" for table in tables}
    for table in tables:
        assert made[1].count(f'id="table-{table.name}"') == 1
        rows = [row for row in page.tables[f"table-{table.name}"] if len(row) == len(table.columns)]
        assert rows[-len(table.rows) :] == [[cell.text for cell in row.cells] for row in table.rows]


def test_radiographs_maps_and_regions_are_those_of_the_runs(made, page):
    data = page.data["case-data"]
    runs = {run.label: run for run in made[0].runs}
    assert len(data["cases"]) == 24
    assert {*data["pictures"]} == {case["picture"] for case in data["cases"]}
    for case in data["cases"]:
        assert {panel["model"] for panel in case["panels"]} == {*runs}
        for panel in case["panels"]:
            run = runs[panel["model"]]
            kept = run.cases().read(case["image"], case["finding"])
            shown = decoded(panel["map"]) / 255
            np.testing.assert_allclose(shown, map_on_grid(run, kept), atol=0.5 / 85 + 1e-6)
            place = run.images.image_ids.index(case["image"]), run.results.findings.index(case["finding"])
            assert panel["dice"] == pytest.approx(run.images.dice[place], abs=1e-4)
            assert panel["hit"] == pytest.approx(run.images.pointing_hit[place], abs=1e-4)
            assert panel["probability"] == pytest.approx(run.images.probabilities[place], rel=1e-3)
        radiograph = decoded(data["pictures"][case["picture"]])
        assert np.abs(radiograph.astype(int) - kept.display).mean() < 4
        assert overlap(filled(case["region"], case["size"]), kept.region) > 0.97


def decoded(text):
    return cv2.imdecode(np.frombuffer(base64.b64decode(text), np.uint8), cv2.IMREAD_GRAYSCALE)


def filled(path, size):
    """Fill an SVG path, at sixteen times the size, and bring it back."""
    parts = [np.array([pair.split(" ") for pair in part.split("L")], float) for part in path[1:-1].split("ZM")]
    large = np.zeros((16 * size[1], 16 * size[0]), np.uint8)
    cv2.fillPoly(large, [np.round(part * 16).astype(np.int32) for part in parts], 1)
    return large


def overlap(drawn, region):
    true = region.repeat(16, axis=0).repeat(16, axis=1)
    return 2 * (true & (drawn > 0)).sum() / (true.sum() + (drawn > 0).sum())


def test_outlines_of_odd_regions():
    region = np.zeros((40, 60), bool)
    region[5:30, 8:40] = True
    region[12:20, 15:25] = False
    region[35:38, 50:58] = True
    assert outline_of(region).count("M") == 3
    assert overlap(filled(outline_of(region), (60, 40)), region) > 0.95
    assert outline_of(np.zeros((4, 4), bool)) == ""


@pytest.mark.parametrize("view", [(0.0, 0.0, 1.0, 1.0), (0.1, 0.0, 0.8, 0.9)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "corners"])
def test_maps_are_normalised_as_the_metrics_do(three_runs, view, mode):
    run = collect([three_runs]).runs[0]
    provenance = {**run.results.provenance, "model": {"saliency_upsample": mode}}
    run = replace(run, results=replace(run.results, provenance=provenance))
    draw = np.random.default_rng(0)
    for raw in (draw.normal(size=(7, 5)), np.full((7, 5), 3.0), draw.normal(size=(64, 48)) * 1e-30):
        raw = raw.astype(np.float32)
        case = ScoredPair(0, "a", "b", raw, view, np.zeros((64, 48), bool), np.zeros((64, 48), np.uint8))
        expected = normalise(saliency_on_grid(torch.tensor(raw)[None], [view], (64, 48), mode))
        np.testing.assert_array_equal(map_on_grid(run, case), expected[0].numpy())


def test_p_values_are_never_zero():
    words = {None: "not tested", 0.00005: "p < 0.001", 0.049: "p = 0.049", 0.3: "p = 0.30", 1.0: "p = 1.00"}
    assert {p: p_words(p) for p in words} == words


def test_it_does_with_one_run_and_without_maps(tmp_path):
    write_run(tmp_path, "kad", images=30, with_cases=False)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text("")
    _, text = built(tmp_path, tmp_path / "index.html")
    assert Page(text).data["case-data"] == {"pictures": {}, "cases": [], "models": [], "opened": ""}
    assert "No map was saved" in text and "unfinished" in text and 'id="differences"' not in text


def test_a_page_is_the_same_every_time(made, three_runs, tmp_path):
    assert built(three_runs, tmp_path / "index.html")[1] == made[1]
