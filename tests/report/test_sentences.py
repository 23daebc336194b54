from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import pytest
from synthetic import FINDINGS, write_run

from xbench.report import charts
from xbench.report.facts import facts_of, over_datasets
from xbench.report.names import beside, model_title
from xbench.report.page.write import write_page
from xbench.report.runs import collect, setting_in_words
from xbench.report.schema import Comparison, Correlation, Estimate, FillAnalysis, InterventionAnalysis, Reference
from xbench.report.sentences import (
    answer,
    best,
    chance_recognition,
    differences,
    failures,
    in_a_line,
    in_short,
    on_dataset,
    recognition,
    thresholds,
    uses,
)
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.table import cells_of, rows_of_models


@pytest.fixture
def report(three_analyzed):
    """Make a report: by `MODEL` or `MODEL/prompts` the scores on each dataset, all with one floor."""
    (base,), template = three_analyzed.datasets, three_analyzed.runs[0]

    def entry(name, dataset, value):
        model, _, prompts = name.partition("/")
        label = f"{model_title(model)} ({prompts} prompts)" if prompts else model_title(model)
        told_by = {"prompts": prompts or "official"}
        named = replace(template.run.results, model=model, dataset=dataset)
        run = replace(
            template.run, results=named, label=label, told_by=told_by, settings=told_by | {"image_size": "224"}
        )
        score = Estimate(None) if value is None else Estimate(value, max(0, value - 0.04), min(1, value + 0.04))
        macro = template.macro | {"pointing_game": score, "auroc": Estimate(0.8, 0.78, 0.82)}
        without = {"pointing_game": score} if value is None else {}
        findings = {finding: numbers | without for finding, numbers in template.findings.items()}
        return replace(template, run=run, macro=macro, findings=findings)

    def made(scores, tied=(), p=None):
        datasets = []
        for place, title in enumerate(("vindr", "rsna")[: max(map(len, scores.values()))]):
            runs = {name: entry(name, title, values[place]) for name, values in scores.items()}
            best = max(scores, key=lambda name: scores[name][place] or 0)
            pairs = combinations((run.run.label for run in runs.values()), 2) if p is not None else ()
            datasets.append(
                replace(
                    base,
                    dataset=title,
                    runs=tuple(runs.values()),
                    references=(Reference("Center prior", "floor", {"pointing_game": Estimate(0.13)}, {}),),
                    comparisons=tuple(
                        Comparison("pointing_game", *pair, 100, Estimate(0.1, 0.0, 0.2), p, p) for pair in pairs
                    ),
                    notes=(),
                    tied_with_best={"pointing_game": frozenset(runs[name].run.label for name in {best, *tied})},
                )
            )
        return replace(three_analyzed, datasets=tuple(datasets), correlations=())

    return made


def made(*found, tied=(), p=None, **scores):
    """Scores by model, whose other prompts follow a double underscore, and what the answer then contains."""
    return {"scores": {k.replace("__", "/"): v for k, v in scores.items()}, "tied": tied, "p": p}, found


CASES = {
    "one model": made(
        "Does KAD", "Mostly", "79% of lesions on average over three", "43.6 of 63", "75% to 83%", "13%", kad=[0.79]
    ),
    "half": made("About half the time", "52%", kad=[0.52]),
    "rarely": made("Less than half the time", "30%", kad=[0.30]),
    "nearly always": made("Nearly always", "96%", kad=[0.96]),
    "one guesses": made("It guesses", "the middle of the image (13%)", kad=[0.15]),
    "a setting matters": made("79%", "the score falls to 50% (name prompts)", kad=[0.79], kad__name=[0.5], p=0.001),
    "no setting matters": made(
        *("79%", "In the pointing game, the two other settings score 78% to 80%, without a"),
        **{"kad": [0.79], "kad__name": [0.78], "kad__other": [0.8], "p": 0.6, "tied": ("kad", "kad/name")},
    ),
    "several models": made("Do two models", "the best, KAD,", "79%", "75% to 83%", kad=[0.79], mavl=[0.5], p=0.001),
    "a tie": made(
        *("Do three models", "Mostly", "KAD and MAVL share first place", "79% and 70%", "(43.6 of 63)"),
        **{"kad": [0.79], "mavl": [0.70], "clip": [0.3], "p": 0.2, "tied": ("mavl",)},
    ),
    "a tie of equal scores": made(
        "with 79%, 79% and 72%", kad=[0.79], mavl=[0.79], clip=[0.72], demo=[0.3], p=0.2, tied=("mavl", "clip")
    ),
    "a tie of scores far apart": made(
        *("Too few images to tell: KAD and MAVL point at 79% and 68%", "not significantly different"),
        **{"kad": [0.79], "mavl": [0.68], "clip": [0.3], "p": 0.2, "tied": ("mavl",)},
    ),
    "all tied": made(
        "the two models", "75% to 79%", "do not differ significantly", kad=[0.79], mavl=[0.75], p=0.2, tied=("mavl",)
    ),
    "many tied and far apart": made(
        *("Do four models", "Too few images to tell: the four models point at 50% to 80%"),
        **{"kad": [0.8], "mavl": [0.7], "clip": [0.6], "demo": [0.5], "tied": ("mavl", "clip", "demo"), "p": 1},
    ),
    "one at the floor": made("the best, KAD,", "One is at the floor: MAVL", kad=[0.79], mavl=[0.1], p=0.001),
    "all at the floor": made("They guess: no score", "(13%)", kad=[0.12], mavl=[0.1], p=0.001),
    "one model on two datasets": made(
        *(
            "60% of lesions on average over two datasets",
            "40% (RSNA Pneumonia) to 80% (VinDr-CXR)",
            "87.2",
            "57% to 63%",
        ),
        kad=[0.8, 0.4],
    ),
    "two models on two datasets": made(
        *("KAD, points at 60%", "87.2 of 126", "KAD is ahead on 1 of 2 datasets, and lowest on RSNA Pneumonia (40%)"),
        **{"kad": [0.8, 0.4], "mavl": [0.3, 0.5]},
    ),
    "a run is missing": made("KAD, points at 80%", "Only on VinDr-CXR", kad=[0.8, 0.4], mavl=[0.3, None], p=0.001),
    "never tested": made(
        "KAD has the highest score and points at 79%", "MAVL could not be tested", kad=[0.79], mavl=[0.5]
    ),
    "labels only": made("Does KAD recognize", "no annotated regions", "AUROC is 80 (78 to 82", kad=[None]),
}


@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "-") for name in CASES])
def test_the_answer_names_who_is_best_with_the_rates_and_intervals(report, case):
    scores, expected = CASES[case]
    facts = facts_of(report(**scores))
    reply = answer(facts)
    said = " ".join([reply.question, *reply.texts])
    assert not [text for text in expected if text not in said], said
    for text in reply.texts:
        assert text.strong in text and "".join(text.parts) == text and text.endswith(".") and "  " not in text
    assert ("datasets" in said) == (len(facts.analysis.datasets) > 1)
    if facts.pointing.rows:
        assert re.search(r"; 95% interval( of KAD)? \d+% to \d+%\.$", in_a_line(facts))
        for finding in (best, failures, thresholds, differences):
            assert finding(facts).answer[0].isupper() or finding(facts).answer[0].isdigit()
        assert ("Too few images to tell" in best(facts).answer) == ("far apart" in case)
        assert charts.matrix(facts.analysis, facts.pointing)[0]


def hidden(model, kind, uses=(0.9, 0.8), number="use", **findings):
    """What intervening did to a model, judged so; the headline number with each fill is known to a tenth.

    `findings` have numbers of their own with each fill; None has too few pairs.
    """
    unit = 1.0 if number == "use" else 0.5
    fills = [
        FillAnalysis(
            fill,
            dict.fromkeys(("scored", "decided"), 200),
            {"macro": {number: Estimate(use, use - 0.1, use + 0.1)} | dict.fromkeys(PARTS, Estimate(unit))}
            | {
                name: {number: Estimate(of[place], of[place] - 0.1, of[place] + 0.1)} if of else {}
                for name, of in findings.items()
            },
            *({}, {number: 0.001 if use > 0.1 else 0.9}, 0.01, {}),
        )
        for place, (fill, use) in enumerate(zip(("mean", "blur", "black"), (*uses, -1.0), strict=True))
    ]
    return InterventionAnalysis(model_title(model), number, kind, tuple(fills), {})


def of_one_patient(found):
    """The same of pairs of a single patient, which have neither interval nor p."""
    name = found.number
    numbers = [{"macro": {**fill.mean, name: Estimate(fill.mean[name].value)}} for fill in found.fills]
    fills = zip(found.fills, numbers, strict=True)
    return replace(found, fills=tuple(replace(fill, numbers=of, p_adjusted={}) for fill, of in fills))


PARTS = ("drop", "control_drop", "flip_rate", "control_flip_rate")


def judged(text, *found, **scores):
    """What the answer contains, after what intervening did to runs with these scores, by default mostly right."""
    return scores or {"kad": [0.79]}, [*found], text


USED, UNUSED = hidden("kad", "depends"), hidden("kad", "unchanged", (0.0, 0.0))
BY_INTERVENTION = {
    "uses it": judged("It points at the lesion and uses it.", USED),
    "a shortcut": judged(
        "It points at the lesion and does not use it. Hiding the lesion lowers the score by 1.00 standard deviations "
        "(SD); hiding an equal patch elsewhere lowers it by 1.00. The difference, called use, is 0.00 SD (95% "
        "interval \u22120.10 to 0.10; p = 0.90) over 200 tested lesions. Of two ways to hide pixels, "
        "\u201cmean\u201d has the largest use.",
        UNUSED,
    ),
    "no sign": judged(
        "It seldom points at the lesion and shows no sign", hidden("kad", "no sign", (0.0, 0.05)), kad=[0.3]
    ),
    "one finding is a shortcut": judged(
        "It points at the lesion and uses it, with no sign of that for Nodule and Hernia. Hiding",
        hidden("kad", "depends", Nodule=(0.0, 0.1, 0), Mass=(0.0, 0.11, 0), Effusion=(0.11, 0.0, 0), Hernia=(-1, 0, 9)),
    ),
    "some findings have too few lesions": judged(
        "200 tested lesions of two of three findings, those with 30 or more. Of two ways to hide pixels",
        hidden("kad", "depends", Nodule=(0.9, 0.8, 0), Mass=(0.9, 0.8, 0), Hernia=None),
    ),
    "nothing below 0": judged("called use, is 0.00 SD", hidden("kad", "no sign", (-0.003, -0.002))),
    "a negligible use": judged("It points at the lesion and uses it. Hiding", hidden("kad", "depends", (0.1, 0.1))),
    "elsewhere": judged("It does not point at the lesion but uses it. Hiding", USED, kad=[0.12]),
    "a fill decides": judged("uses it or not, depending on how it is hidden.", hidden("kad", "fill", (0.9, 0.0))),
    "any hole": judged("points at the lesion and reacts to any hole alike.", hidden("kad", "any hole", (0.0, 0.0))),
    "too few": judged(
        "was tested on too few lesions to tell whether it uses it.", hidden("kad", "too few", (0.3, 0.3))
    ),
    "one patient": judged(
        "called use, is 0.90 SD (no interval; not tested) over 200 tested lesions",
        of_one_patient(hidden("kad", "too few")),
    ),
    "several of one patient": judged(
        "KAD 0.90 SD (no interval), MAVL 0.80 SD (0.70 to 0.90).",
        *(of_one_patient(hidden("kad", "too few")), hidden("mavl", "depends")),
        **{"kad": [0.79], "mavl": [0.7]},
    ),
    "no scores": judged(
        "Hiding the lesion changes 50% of decisions; hiding an equal patch elsewhere changes 50%. The difference, "
        "called premium, is 30 points (95% interval 20 to 40; p = 0.001) over 200 tested lesions. Of two ways",
        hidden("kad", "depends", (0.3, 0.4), "premium"),
    ),
    "several": judged(
        "MAVL uses the lesion; KAD points at the lesion and does not use it; CLIP does not use the lesion; Demo was "
        "not tested by intervention. Use (how much more the score falls for the lesion than for an equal patch "
        "elsewhere): KAD 0.00 SD "
        "(\u22120.10 to 0.10), MAVL 0.80 SD (0.70 to 0.90), CLIP 0.00 SD (\u22120.10 to 0.10).",
        *(UNUSED, hidden("mavl", "depends"), hidden("clip", "unchanged", (0.0, 0.0))),
        **{"kad": [0.79], "mavl": [0.7], "clip": [0.3], "demo": [0.6]},
    ),
    "two datasets": judged(
        "uses it on some datasets. Use (how much more the score falls for the lesion than for an equal patch "
        "elsewhere): VinDr-CXR "
        "0.80 SD (0.70 to 0.90), RSNA Pneumonia 0.90 SD (0.80 to 1.00).",
        *(USED, hidden("kad", "no sign")),
        kad=[0.79, 0.8],
    ),
}


@pytest.mark.parametrize("case", BY_INTERVENTION)
def test_the_answer_is_by_intervention_where_one_was_run(report, case, tmp_path):
    scores, found, text = BY_INTERVENTION[case]
    analysis = report(scores)
    parts = [found] if len(analysis.datasets) == 1 else [[one] for one in found]
    datasets = [replace(of, interventions=tuple(part)) for of, part in zip(analysis.datasets, parts, strict=True)]
    facts = facts_of(replace(analysis, datasets=tuple(datasets)))
    reply = answer(facts)
    assert reply.question.endswith("? Judged by hiding lesions.") and text in " ".join(reply.texts[:2])
    assert reply.texts[2:] == answer(facts_of(analysis)).texts and reply.answer.strong in reply.answer
    assert in_a_line(facts) == " ".join(reply.texts[:3])
    assert answer(facts_of(analysis)).question.endswith(", not by hiding lesions.") and uses(facts_of(analysis)) is None
    others = [
        replace(of, interventions=tuple(replace(one, label="CLIP (x)") for one in of.interventions)) for of in datasets
    ]
    assert uses(facts_of(replace(analysis, datasets=tuple(others)))) is None
    kept = [replace(of, interventions=tuple(replace(one, fills=()) for one in of.interventions)) for of in datasets]
    assert uses(facts_of(replace(analysis, datasets=tuple(kept)))) is None, "no region was hidden"


def line(r_squared, slope, xs=(0.6, 0.7, 0.9), ys=(0.2, 0.4, 0.9), p=0.01, scope="models"):
    points = tuple((name, x, y) for name, x, y in zip("abcd", xs, ys, strict=False))
    return Correlation(scope, None, points, slope, 0.0, r_squared, p)


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        (line(0.67, 1.0), "Largely. Across three models, AUROC explains 67% of the variation"),
        (line(0.4, 1.0), "In part. Across"),
        (line(0.4, 1.0, p=0.3), "(R\u00b2\u00a00.40, p\u00a0=\u00a00.300), which could be"),
        (line(0.1, 1.0), "Hardly."),
        (line(0.7, -1.0), "The other way round"),
        (line(0.001, 0.1, xs=(0.97, 0.98, 1.0)), "Not here. Every model is recognized"),
        (line(0.9, 1.0, xs=(0.97, 0.98, 0.6, 1.0), ys=(0.9, 0.8, 0.1, 0.9)), "Every model but c is recognized"),
        (
            line(None, None, xs=(0.6,), ys=(0.2,), scope="findings"),
            "Only one finding has an AUROC and a pointing game: too few to tell. For it, AUROC is 60",
        ),
        (None, "There are too few points to tell."),
    ],
)
def test_whether_recognition_predicts_grounding(three_analyzed, drawn, text):
    facts = facts_of(replace(three_analyzed, correlations=() if drawn is None else (drawn,)))
    assert text in recognition(facts).answer and facts.analysis.main_line == drawn


def test_the_findings_of_the_sections_have_the_numbers_of_the_runs(three_analyzed):
    facts = facts_of(three_analyzed)
    (run,) = facts.pointing.head.runs
    fixed, highest, optimism = (100 * run.macro[key].value for key in ("dice_fixed", "dice_best", "dice_optimism"))
    assert f"is {fixed:.1f}% at 0.5 and {highest:.1f}% at the best threshold" in thresholds(facts).answer
    assert f"{optimism:.1f} points" in thresholds(facts).more[0]
    for end, size in ((0, "smallest"), (-1, "largest")):
        value, count = 100 * run.areas[end].scores["pointing_game"].value, run.areas[end].count
        assert f"{value:.0f}% of the {count} {size}" in failures(facts).answer
    for entry in (facts.pointing.rows[0].runs[0], facts.pointing.rows[-1].runs[0]):
        counts = {
            key: sum(getattr(part, key) * part.count for part in entry.quadrants.values())
            for key in ("elsewhere", "near_miss", "both")
        }
        elsewhere, all_of = round(counts["elsewhere"]), round(sum(counts.values()))
        share = f"{elsewhere} of {all_of} ({100 * elsewhere / all_of:.1f}%) for {entry.run.label}"
        assert share in " ".join(recognition(facts).more)
    for section in (best, recognition, failures, thresholds, differences):
        assert all(any(text in point for point in in_short(facts)) for text in section(facts).texts)
    assert in_short(facts_of(replace(three_analyzed, datasets=(), correlations=()))) == ()


def test_findings_that_a_floor_points_at_as_well_are_named(tmp_path):
    write_run(tmp_path, "clip", skill=0.0, images=40)
    write_run(tmp_path, "centre", skill=1.0, images=40)
    analysis = analyze(collect([tmp_path]))
    (dataset,), (run,) = analysis.datasets, analysis.runs
    (text,) = (text for text in in_short(facts_of(analysis)) if "ignores the image" in text)
    guesses = text.partition(", a rule that ignores")[0].rpartition(". On ")[2]
    nodule = run.findings["Nodule"] | {"auroc": Estimate(0.6, 0.5, 0.7)}
    poor = replace(run, findings={**run.findings, "Nodule": nodule})
    assert not chance_recognition([run]) and " for Nodule (AUROC 60): the interval " in chance_recognition([poor])
    assert " for 1 of 6 pairs " in chance_recognition([run, poor])
    floors = [reference for reference in dataset.references if reference.kind == "floor"]
    assert len(floors) > 1
    for finding in FINDINGS:
        highest = max(floor.findings[finding]["pointing_game"].value for floor in floors)
        assert (finding in guesses) == (run.findings[finding]["pointing_game"].value <= highest)
    whole = next(floor for floor in floors if floor.title == "Whole image")
    same = replace(run, macro={**run.macro, "dice_best": Estimate(whole.macro["dice_best"].value)})
    changed = replace(analysis, datasets=(replace(dataset, runs=(same,)),))
    assert any("marking the whole image" in text and "CLIP" in text for text in in_short(facts_of(changed)))


def test_each_of_several_datasets_has_its_own_findings(report):
    analysis = report(**CASES["two models on two datasets"][0])
    for dataset, leader in zip(analysis.datasets, ("KAD", "MAVL"), strict=True):
        assert f"{leader} has the highest score" in on_dataset(analysis, dataset)[0]
        assert not on_dataset(replace(analysis, datasets=(dataset,)), dataset)


def test_a_run_that_was_never_tested_has_no_rank(three_analyzed):
    (dataset,) = three_analyzed.datasets
    labels = [run.run.label for run in dataset.runs]
    none = replace(dataset, tied_with_best={"pointing_game": frozenset(labels[:1])}, comparisons=())
    facts = facts_of(replace(three_analyzed, datasets=(none,)))
    assert {*facts.pointing.untested} == {*labels[1:]} and "scores highest" in best(facts).answer
    for ranked, of in ((True, dataset), (False, none)):
        assert of.ranked("dice_best") == of.ranked("f1") == ranked
        cells = [cell for row in rows_of_models(labels, [cells_of(of, "dice_best")]) for cell in row.cells]
        assert any(cell.mark for cell in cells) == ranked


@pytest.mark.parametrize("case", ["one model", "labels only", "a run is missing", "one model on two datasets"])
def test_a_page_of_each_kind_shows_only_what_there_is(report, case, tmp_path):
    write_page(report(**CASES[case][0]), (), tmp_path / "index.html", cases=1)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    grounded = case != "labels only"
    for section in ("failures", "thresholds", "recognition"):
        assert (f'id="{section}"' in text) == grounded == (f'href="#{section}"' in text)
    assert ("no score" in text) == (case == "a run is missing") and "not run" not in text
    assert ('class="share"' in text) == grounded


def test_means_over_datasets_recover_the_intervals():
    one = Estimate(0.5, 0.4, 0.6)
    assert over_datasets([one]) is one
    both = over_datasets([one, Estimate(0.7, 0.6, 0.8)])
    assert both.value == pytest.approx(0.6)
    assert both.high - both.value == pytest.approx((0.1**2 + 0.1**2) ** 0.5 / 2)
    assert over_datasets([one, Estimate(0.7)]) == Estimate(pytest.approx(0.6))
    assert over_datasets([one, Estimate(None)]) == Estimate(None)


@pytest.mark.parametrize(("high", "expected"), [(0.22, "It guesses"), (0.24, "Too few images to tell: its map")])
def test_a_wide_interval_that_holds_the_floor_is_not_called_a_guess(report, high, expected):
    analysis = report({"kad": [0.15]})
    (dataset,) = analysis.datasets
    wide = dataset.runs[0].macro | {"pointing_game": Estimate(0.15, 0.02, high)}
    runs = (replace(dataset.runs[0], macro=wide), *dataset.runs[1:])
    facts = facts_of(replace(analysis, datasets=(replace(dataset, runs=runs),)))
    assert answer(facts).answer.startswith(expected)
    # The interval is given once.
    assert in_a_line(facts).count(f"{100 * high:.0f}%") == 1
    both = replace(dataset, runs=(*report({"mavl": [0.5]}).runs, *runs))
    text = "There are too few images to tell KAD (15%) from the middle of the image (13%)."
    assert (text in answer(facts_of(replace(analysis, datasets=(both,)))).texts) == (high > 0.23)


def test_findings_with_the_same_best_score_are_all_best(report):
    analysis = report({"kad": [0.79]})
    (dataset,) = analysis.datasets
    run, names = dataset.runs[0], sorted(dataset.runs[0].findings)
    for tops, expected in (
        (2, f"Best: {names[0]} and {names[1]}, 90% of lesions each."),
        (1, f"Best: {names[0]}, 90% of"),
    ):
        scores = {name: Estimate(0.9 if place < tops else 0.5 - 0.1 * place) for place, name in enumerate(names)}
        findings = {name: of | {"pointing_game": scores[name]} for name, of in run.findings.items()}
        changed = replace(dataset, runs=(replace(run, findings=findings), *dataset.runs[1:]))
        said = best(facts_of(replace(analysis, datasets=(changed,)))).answer
        assert said.startswith(expected) and said.endswith(f"Weakest: {names[2]}, 30%."), said


def test_a_probability_is_told_from_its_threshold():
    assert beside(0.33916, 0.33914) == "probability 0.3392, threshold 0.3391"
    assert beside(0.36, 0.2141) == "probability 0.360, threshold 0.214"
    assert beside(0.0237, 0.0237) == "probability 0.024, just at the threshold"


def test_a_box_baseline_without_another_split_is_called_so():
    assert setting_in_words("elsewhere_sha256", "none") == "without another split"
