from __future__ import annotations

import re
from dataclasses import replace

import mixed
import pytest

from xbench.report import charts
from xbench.report.facts import facts_of, standings
from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.schema import Analysis
from xbench.report.sentences import answer, in_a_line, recognition, thresholds
from xbench.report.statistics.analyze import analyze
from xbench.report.statistics.correlation import correlations
from xbench.report.statistics.sample import Sample
from xbench.report.tables.contents import all_tables


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixed")
    analysis = analyze(collect([mixed.write_runs(root, images=16)]))
    tables = all_tables(analysis)
    write_page(analysis, tables, root / "index.html", cases=2)
    return analysis, tables, (root / "index.html").read_text(encoding="utf-8")


def test_every_run_has_one_name_and_served_models_are_models_of_their_own(report):
    analysis, *_ = report
    own, phantom = analysis.datasets
    labels = {"Demo", "Demo (320 px)", "atlas", "truth", "truth-large", "table"}
    assert {entry.run.label for entry in phantom.runs} == labels
    assert {entry.run.label for entry in own.runs} == {"Demo", "detector", "table"}
    assert own.runs[0].evidence == "6 patients" and phantom.runs[0].evidence == "16 images, patients not known"
    assert {"endpoint/truth", "endpoint/truth-large"} < {entry.run.model for entry in phantom.runs}
    pairs = [{one.first, one.second} for one in phantom.comparisons if one.number == "pointing_game" and one.p]
    assert {"truth", "truth-large"} in pairs


def test_rows_have_one_order_on_the_whole_page(report):
    analysis, tables, page = report
    ladder = re.search(r'<figure class="ladder.*?</figure>', page, re.S).group()
    order = re.findall(r'<th class="n" scope="row"><span><svg.*?</svg>\s*(.*?)</span>', ladder, re.S)
    assert len(order) == 5
    for block in re.findall(r"<tbody>.*?</tbody>|<ul class=\"(?:names|keys)\".*?</ul>", page, re.S):
        # Symbols are numbered in the order of the report.
        keys = [int(key) for key in dict.fromkeys(re.findall(r'href="#k-(\d+)"', block))]
        assert keys == sorted(keys)
    places = {entry.run.label: entry.run.place for entry in analysis.runs}
    assert sorted(order, key=places.__getitem__) == order
    for table in tables:
        titles = [column.title for column in table.columns]
        if "Model" in titles and not table.name.startswith("studies"):
            groups = {}
            for row in table.rows:
                cells = [cell.text for cell in row.cells]
                if cells[titles.index("Model")] in places:
                    where = cells[titles.index("Dataset")] if "Dataset" in titles else ""
                    groups.setdefault(where, []).append(places[cells[titles.index("Model")]])
            assert all(group == sorted(group) for group in groups.values()), table.name
    *_, models = re.findall(r'"models":(\[.*?\])', page)
    shown = [label for label in places if f'"{label}"' in models]
    assert re.findall(r'"([^"]+)"', models) == sorted(shown, key=places.__getitem__)


def of(analysis: Analysis, *labels: str, datasets: int = 2) -> Analysis:
    """The report with these runs alone, on the last of the datasets."""
    kept = [
        replace(dataset, runs=tuple(entry for entry in dataset.runs if entry.run.label in labels))
        for dataset in analysis.datasets[-datasets:]
    ]
    return replace(analysis, datasets=tuple(kept), correlations=correlations(kept)[0])


def test_the_rate_is_a_mean_over_findings_with_the_lesions_beside_it(report):
    analysis, *_ = report
    (_, phantom) = analysis.datasets
    demo = next(entry for entry in phantom.runs if entry.run.label == "Demo")
    images, value = demo.run.images, demo.macro["pointing_game"].value
    hits, lesions = images.pointing_hit[images.scored].sum(), images.scored.sum()
    assert abs(hits / lesions - value) > 0.02, "the two are not the same"
    said = f"its map points at {100 * value:.0f}% of lesions on average over eight findings ({hits:.0f} of {lesions})"
    alone = of(analysis, "Demo", datasets=1)
    assert said in answer(facts_of(alone)).answer and said in in_a_line(facts_of(alone))
    assert charts.outcomes(alone.datasets, "Demo").over == "eight findings"
    # Of one finding the mean is the share.
    one = {"Mass": demo.findings["Mass"]}
    single = replace(alone, datasets=(replace(phantom, runs=(replace(demo, findings=one, quadrants={}),)),))
    text = answer(facts_of(single)).answer
    assert "average" not in text and f"{hits:.0f} of {lesions} lesions (" in text


def test_the_question_counts_models_that_show_something_and_speaks_of_the_others_apart(report):
    analysis, _, page = report
    found = answer(facts_of(analysis))
    assert found.question.startswith("Do four models look") and found.question in page
    assert "Only on PhantomCXR: detector was not scored there." in found.texts
    assert "Nothing shows where table looks: it was scored for recognition only." in found.texts
    several = answer(facts_of(of(analysis, "Demo", "atlas", "detector", datasets=1)))
    assert not any("Only on" in text or "Nothing shows" in text for text in several.texts)
    assert answer(facts_of(of(analysis, "Demo", "table"))).question.startswith("Does Demo look")
    assert answer(facts_of(of(analysis, "table"))).question.startswith("Does table recognize")


def test_hits_of_boxes_alone_are_shares_of_area(report):
    runs = [entry.run for dataset in report[0].datasets for entry in dataset.runs]
    assert {run.label for run in runs if Sample.of(run).boxes} == {"detector", "truth", "truth-large"}


def test_boxes_have_one_mask_and_were_run(report):
    analysis, *_ = report
    own, phantom = charts.gaps(analysis)
    assert [entry.label for entry in own.entries] == [entry.label for entry in phantom.entries]
    why = {entry.label: entry.none for entry in own.entries if entry.score.value is None}
    assert why["detector"] == "one mask" and why["truth"] == why["atlas"] == "not run"
    assert ": the Dice of Demo" in thresholds(facts_of(analysis)).answer
    boxes = replace(of(analysis, "detector", "truth"), studies=())
    assert thresholds(facts_of(boxes)) is None and not charts.gaps(boxes)
    grounding, *more = all_tables(boxes)
    assert [column.title for column in grounding.columns][1:4] == ["Pointing game", "Dice", "IoU"]
    assert "grounding_honest" not in {table.name for table in more}
    assert "perfect" not in answer(facts_of(boxes)).texts[1]
    (band,) = charts.matrix(analysis, standings(analysis))
    assert {entry.none for column in band for entry in column.entries if entry.score.value is None} == {"not run"}


def test_no_correlation_is_claimed_of_few_models_or_of_what_is_so_by_construction(report):
    analysis, *_ = report
    text = recognition(facts_of(analysis)).answer
    assert "Too few models to tell." in text and "11 pairs" in text and "p\u00a0" not in text
    assert not any(point[0].startswith("atlas") for line in analysis.correlations for point in line.points)
    on_one = recognition(facts_of(of(analysis, "Demo", datasets=1))).texts
    assert any("Every finding but Fracture is recognized about equally well" in text for text in on_one)
