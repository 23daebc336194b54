"""A report of maps, boxes, probabilities and models behind a server, on two datasets: every sentence holds."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import mixed
import pytest

from xbench.report import charts
from xbench.report.facts import facts_of, standings
from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.schema import Analysis
from xbench.report.sentences import answer, failures, in_a_line, in_short, recognition, thresholds
from xbench.report.statistics.analyse import analyse
from xbench.report.statistics.correlation import correlations
from xbench.report.tables.contents import all_tables
from xbench.report.tables.table import Table


@dataclass(frozen=True)
class Report:
    analysis: Analysis
    tables: tuple[Table, ...]
    page: str

    @property
    def text(self) -> str:
        """What the page shows, without its pictures and scripts."""
        text = re.sub(r"<(script|style)\b.*?</\1>", "", self.page, flags=re.S)
        return " ".join(re.sub(r"<[^>]+>", " ", text).split())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixed")
    analysis = analyse(collect([mixed.write_runs(root)]))
    tables = all_tables(analysis)
    write_page(analysis, tables, root / "index.html", cases=2)
    return Report(analysis, tables, (root / "index.html").read_text(encoding="utf-8"))


def test_cases_are_shown_beside_runs_without_a_picture(report):
    data = json.loads(re.search(r'id="case-data">(.*?)</script>', report.page, re.S).group(1))
    assert {case["dataset"] for case in data["cases"]} == {"PhantomCXR", "my_hospital"}
    assert "Demo" in data["models"] and "table" not in data["models"]


def test_what_is_marked_in_the_answer_is_a_few_numbers(report):
    # The page keeps it on one line, and a longer text would cover the chart beside it.
    several = (("Demo",), ("atlas",), ("Demo", "atlas"), ("Demo", "detector"), ("Demo (320 px)", "truth"))
    for analysis in (report.analysis, *(of(report.analysis, *labels) for labels in several)):
        _, marked, _ = answer(facts_of(analysis)).answer.parts
        assert re.fullmatch(r"\d+%((, | and | to )\d+%)*", marked), marked


def test_every_run_has_one_name(report):
    on_phantom = {"Demo", "Demo (320 px)", "atlas", "truth", "truth-large", "table"}
    own, phantom = report.analysis.datasets
    assert {entry.run.label for entry in phantom.runs} == on_phantom
    assert {entry.run.label for entry in own.runs} == {"Demo", "detector", "table"}
    names = [cell.text for table in report.tables for row in table.rows for cell in row.cells]
    assert not any("own settings" in name for name in names)
    for other in ("(image size", "endpoint,", ", boxes", "served by"):
        shown = report.text.partition("Every finding counts the same, and")[0]
        assert other not in shown and not any(other in name for name in names), other


def test_served_models_are_models_of_their_own(report):
    phantom = report.analysis.datasets[1]
    assert {"endpoint/truth", "endpoint/truth-large"} < {entry.run.model for entry in phantom.runs}
    pairs = [{one.first, one.second} for one in phantom.comparisons if one.number == "pointing_game" and one.p]
    assert {"truth", "truth-large"} in pairs


def test_rows_have_one_order_on_the_whole_page(report):
    ladder = re.search(r'<figure class="ladder.*?</figure>', report.page, re.S).group()
    order = re.findall(r'<th class="n" scope="row"><span><svg.*?</svg>\s*(.*?)</span>', ladder, re.S)
    assert len(order) == 5
    for block in re.findall(r"<tbody>.*?</tbody>|<ul class=\"(?:names|keys)\".*?</ul>", report.page, re.S):
        # Symbols are numbered in the order of the report.
        keys = [int(key) for key in dict.fromkeys(re.findall(r'href="#k-(\d+)"', block))]
        assert keys == sorted(keys)
    places = {entry.run.label: entry.run.place for entry in report.analysis.runs}
    assert sorted(order, key=places.__getitem__) == order
    for table in report.tables:
        titles = [column.title for column in table.columns]
        if "Model" in titles and not table.name.startswith("studies"):
            groups = {}
            for row in table.rows:
                cells = [cell.text for cell in row.cells]
                if cells[titles.index("Model")] in places:
                    where = cells[titles.index("Dataset")] if "Dataset" in titles else ""
                    groups.setdefault(where, []).append(places[cells[titles.index("Model")]])
            assert all(group == sorted(group) for group in groups.values()), table.name
    *_, models = re.findall(r'"models":(\[.*?\])', report.page)
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
    (_, phantom) = report.analysis.datasets
    demo = next(entry for entry in phantom.runs if entry.run.label == "Demo")
    images, value = demo.run.images, demo.macro["pointing_game"].value
    hits, lesions = images.pointing_hit[images.scored].sum(), images.scored.sum()
    assert abs(hits / lesions - value) > 0.02, "the two are not the same"
    said = f"its map points at {100 * value:.0f}% on average over eight findings; {hits:.0f} of {lesions} lesions"
    alone = of(report.analysis, "Demo", datasets=1)
    assert said in answer(facts_of(alone)).answer and in_a_line(facts_of(alone)).startswith(
        f"Mostly at the lesion: {said}; 95% interval"
    )
    assert "mean over eight findings" in report.text and "of 100 lesions" not in report.text
    assert charts.outcomes(alone.datasets, "Demo").over == "eight findings"
    # Of one finding the mean is the share.
    one = {"Mass": demo.findings["Mass"]}
    single = replace(alone, datasets=(replace(phantom, runs=(replace(demo, findings=one, quadrants={}),)),))
    assert (
        "average" not in answer(facts_of(single)).answer
        and f"{hits:.0f} of {lesions} lesions (" in answer(facts_of(single)).answer
    )


def test_the_question_counts_models_that_show_something_and_speaks_of_the_others_apart(report):
    found = answer(facts_of(report.analysis))
    assert found.question.startswith("Do four models look") and report.text.startswith("Do four models look")
    assert "Only on PhantomCXR: detector was not scored there." in found.texts
    assert "Nothing shows where table looks: it was scored for recognition alone." in found.texts
    several = answer(facts_of(of(report.analysis, "Demo", "atlas", "detector", datasets=1)))
    assert not any("Only on" in text or "Nothing shows" in text for text in several.texts)
    assert answer(facts_of(of(report.analysis, "Demo", "table"))).question.startswith("Does Demo look")
    assert answer(facts_of(of(report.analysis, "table"))).question.startswith("Does table recognise")


def test_small_lesions_are_those_of_the_run_that_the_report_is_about(report):
    for analysis in (report.analysis, of(report.analysis, "Demo", datasets=1)):
        facts = facts_of(analysis)
        (run,) = facts.pointing.head.runs
        text = failures(facts).answer
        assert f"of the {run.areas[0].count} smallest lesions" in text
        assert facts.pointing.head.label in text and ("on PhantomCXR" in text) == (len(analysis.datasets) > 1)
    assert "smallest" not in failures(facts_of(of(report.analysis, "detector"))).answer


def test_boxes_have_one_mask_and_were_run(report):
    own, phantom = charts.gaps(report.analysis)
    assert [entry.label for entry in own.entries] == [entry.label for entry in phantom.entries]
    why = {entry.label: entry.none for entry in own.entries if entry.score.value is None}
    assert why["detector"] == "one mask" and why["truth"] == why["atlas"] == "not run"
    assert thresholds(facts_of(report.analysis)).answer.startswith("Not 0.5: there Demo loses")
    assert "boxes are one mask" in thresholds(facts_of(of(report.analysis, "detector", "truth"))).answer
    (band,) = charts.matrix(report.analysis, standings(report.analysis))
    assert {entry.none for column in band for entry in column.entries if entry.score.value is None} == {"not run"}


def test_no_correlation_is_claimed_of_few_models_or_of_what_is_so_by_construction(report):
    text = recognition(facts_of(report.analysis)).answer
    assert (
        text.startswith("Too few models to tell.")
        and "11 pairs" in text
        and "one model" in text
        and "p\u00a0" not in text
    )
    assert not any(point[0].startswith("atlas") for line in report.analysis.correlations for point in line.points)
    assert all("Too few models" in text for text in in_short(facts_of(report.analysis)) if "AUROC explains" in text)
    on_one = recognition(facts_of(of(report.analysis, "Demo", datasets=1))).texts
    assert any("eight findings, AUROC explains" in text and "p\u00a0=" in text for text in on_one)


def test_what_counts_as_independent_is_said(report):
    own, phantom = report.analysis.datasets
    assert own.runs[0].evidence == "6 patients" and phantom.runs[0].evidence == "32 images, patients not known"
    assert replace(own.runs[0], clusters=12).evidence == "12 patients, one image each"
    assert "Resampled" not in report.text and "Counted as independent" in report.text
