"""The answer of a report, over the combinations of models, settings and datasets that it can be about."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from markupsafe import escape

from xbench.report import charts
from xbench.report.answer import (
    answer,
    best_finding,
    differences_finding,
    failures_finding,
    in_a_line,
    recognition_finding,
    thresholds_finding,
)
from xbench.report.names import model_title
from xbench.report.page.write import write_page
from xbench.report.schema import Comparison, Correlation, Estimate, Reference
from xbench.report.standings import over_datasets, standings


def label_of(label):
    """The label of a run of `MODEL` or `MODEL/prompts`."""
    model, _, prompts = label.partition("/")
    return f"{model_title(model)} ({prompts} prompts)" if prompts else model_title(model)


@pytest.fixture
def report(three_analysed):
    """Make a report: by label `MODEL` or `MODEL/prompts`, the scores on each dataset, all with one floor."""
    (base,) = three_analysed.datasets

    def made(scores, floor=0.13, tied=(), p=None, auroc=0.8, titles=("vindr", "rsna"), width=0.04):
        count = len(next(iter(scores.values())))
        models = {label_of(label): label.partition("/")[0] for label in scores}
        scores, tied, datasets = (
            {label_of(label): of for label, of in scores.items()},
            [label_of(one) for one in tied],
            [],
        )
        for place in range(count):
            entries = []
            for label, values in scores.items():
                template = base.runs[0]
                told_by = {"prompts": label.partition("(")[2].removesuffix(" prompts)") or "official"}
                run = replace(template.run, label=label, told_by=told_by, settings=told_by | {"image_size": "224"})
                named = replace(run.results, model=models[label], dataset=titles[place])
                run = replace(run, results=named)
                value = values[place]
                ends = (None, None, None) if value is None else (value, max(0, value - width), min(1, value + width))
                macro = template.macro | {
                    "pointing_game": Estimate(*ends),
                    "auroc": Estimate(auroc, auroc - 0.02, auroc + 0.02),
                }
                findings = {
                    name: numbers | ({} if value is not None else {"pointing_game": Estimate(None)})
                    for name, numbers in template.findings.items()
                }
                entries.append(replace(template, run=run, macro=macro, findings=findings))
            floors = (Reference("Centre prior", "floor", {"pointing_game": Estimate(floor)}, {}),)
            labels = list(scores)
            pairs = tuple(
                Comparison("pointing_game", one, other, 100, Estimate(0.1, 0.0, 0.2), p, p)
                for at, one in enumerate(labels)
                for other in labels[at + 1 :]
                if p is not None
            )
            best = max(labels, key=lambda label: scores[label][place] or 0)
            datasets.append(
                replace(
                    base,
                    dataset=titles[place],
                    runs=tuple(entries),
                    references=floors,
                    comparisons=pairs,
                    notes=(),
                    tied_with_best={"pointing_game": frozenset({best, *tied})},
                )
            )
        return replace(three_analysed, datasets=tuple(datasets), correlations=())

    return made


CASES = {
    "one model": (
        {"scores": {"kad": [0.79]}},
        "Does KAD look at the lesion, or only guess the label?",
        "Mostly at the lesion: its map points at 79% on average over three findings; 43.6 of 63 lesions.",
        ["so the rate could be anywhere from 75% to 83% (95% interval)", "every film would score 13%, perfection 100%"],
    ),
    "half": ({"scores": {"kad": [0.52]}}, "KAD", "About half the time: its map points at 52% on average over", []),
    "rarely": ({"scores": {"kad": [0.30]}}, "KAD", "Less than half the time: its map points at 30% on average", []),
    "nearly always": ({"scores": {"kad": [0.96]}}, "KAD", "Nearly always at the lesion: its map points at 96%", []),
    "one guesses": (
        {"scores": {"kad": [0.15]}},
        "KAD",
        "43.6 of 63 lesions. That is not significantly more often than the middle of the film does (13%).",
        [],
    ),
    "a setting matters": (
        {"scores": {"kad": [0.79], "kad/name": [0.5]}, "p": 0.001},
        "Does KAD look",
        "Mostly at the lesion: its map points at 79% on average",
        ["One setting changes where it points: with name prompts it falls to 50%."],
    ),
    "no setting matters": (
        {"scores": {"kad": [0.79], "kad/name": [0.78], "kad/other": [0.8]}, "p": 0.6, "tied": ("kad", "kad/name")},
        "Does KAD look",
        "points at 79% on average",
        ["None of the two other settings makes a significant difference to where it points (78% to 80%)."],
    ),
    "one other setting": (
        {"scores": {"kad": [0.79], "kad/name": [0.78]}, "p": 0.6, "tied": ("kad/name",)},
        "Does KAD look",
        "points at 79% on average",
        ["The other setting makes no significant difference to where it points (78%)."],
    ),
    "several models": (
        {"scores": {"kad": [0.79], "mavl": [0.5]}, "p": 0.001},
        "Do two models look at the lesion, or only guess the label?",
        "Mostly at the lesion: the best, KAD, points at 79% on average over three findings; 43.6 of 63 lesions.",
        ["the rate of KAD could be anywhere from 75% to 83%"],
    ),
    "a tie": (
        {"scores": {"kad": [0.79], "mavl": [0.78], "clip": [0.3]}, "p": 0.2, "tied": ("mavl",)},
        "Do three models",
        "MAVL share first place with 79% and 78% of lesions on average over three findings (43.6 of 63), not",
        [],
    ),
    "all tied": (
        {"scores": {"kad": [0.79], "mavl": [0.75]}, "p": 0.2, "tied": ("mavl",)},
        "Do two models",
        "the two models point at 75% to 79% of lesions on average over three findings (43.6 of 63), and no",
        [],
    ),
    "one at the floor": (
        {"scores": {"kad": [0.79], "mavl": [0.1]}, "p": 0.001},
        "Do two models",
        "the best, KAD,",
        [
            "One is at the floor: MAVL points at lesions not significantly more",
            "although it recognises better than chance",
        ],
    ),
    "all at the floor": (
        {"scores": {"kad": [0.12], "mavl": [0.1]}, "p": 0.001},
        "Do two models",
        "They guess: no map points at lesions significantly more often than the middle of the film does (13%).",
        [],
    ),
    "one model on two datasets": (
        {"scores": {"kad": [0.8, 0.4]}},
        "Does KAD",
        "60% on average over two datasets and their findings, from 40% (RSNA Pneumonia) to 80% (VinDr-CXR); 87.2",
        ["Over two datasets, each counting the same, the rate could be anywhere from 57% to 63%", "Lowest on RSNA"],
    ),
    "two models on two datasets": (
        {"scores": {"kad": [0.8, 0.4], "mavl": [0.3, 0.5]}},
        "Do two models",
        "the best, KAD, points at 60% on average over two datasets and their findings; 87.2 of 126",
        ["KAD is ahead on 1 of 2 datasets, and lowest on RSNA Pneumonia (40%)."],
    ),
    "a run is missing": (
        {"scores": {"kad": [0.8, 0.4], "mavl": [0.3, None]}, "p": 0.001},
        "Do two models",
        "the best, KAD, points at 80% on average",
        ["Only on VinDr-CXR: not everything was scored on the other datasets."],
    ),
    "never tested": (
        {"scores": {"kad": [0.79], "mavl": [0.5]}},
        "Do two models",
        "the highest score is that of KAD, 79% on average over three findings; 43.6 of 63 lesions.",
        ["No ranking: MAVL could not be tested against KAD."],
    ),
    "labels only": (
        {"scores": {"kad": [None]}},
        "Does KAD recognise findings?",
        "These runs have no annotated regions or no maps, so they cannot show where the model looks.",
        ["AUROC is 80 (78 to 82, 95% interval); a coin flip has 50."],
    ),
}


@pytest.mark.parametrize("case", CASES, ids=[name.replace(" ", "-") for name in CASES])
def test_the_answer_is_true(report, case):
    made, question, said, more = CASES[case]
    analysis = report(**made)
    found = answer(analysis)
    assert question in found.question and said in found.answer.text
    for text in more:
        assert any(text in other for other in found.texts[1:]), found.texts
    for one in (found.answer, *found.more):
        assert one.strong in one.text and "".join(one.parts) == one.text
        assert one.text.endswith(".") and "  " not in one.text and "None" not in one.text.replace("None of", "")
    if len(analysis.datasets) == 1:
        assert "averaged over" not in " ".join(found.texts) and "datasets" not in " ".join(found.texts)
    if standings(analysis).rows:
        whose = "" if "Does" in question or question == "KAD" else " of KAD"
        said = re.escape(found.answer.text.removesuffix("."))
        assert re.fullmatch(rf"{said}; 95% interval{whose} \d+% to \d+%\.", in_a_line(analysis))
        for of in (best_finding, failures_finding, thresholds_finding, differences_finding):
            text = of(analysis).answer.text
            assert (text.endswith(".") and text[0].isupper()) or text[0].isdigit()
        assert charts.matrix(analysis, standings(analysis))[0]


def line(r_squared, slope, xs=(0.6, 0.7, 0.9), ys=(0.2, 0.4, 0.9), p=0.01, scope="models"):
    points = tuple((name, x, y) for name, x, y in zip("abc", xs, ys, strict=False))
    return Correlation(scope, None, points, slope, 0.0, r_squared, p)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (line(0.67, 1.0), "Largely. Between three models, AUROC explains 67% of the variation"),
        (line(0.4, 1.0), "In part. Between"),
        (
            line(0.4, 1.0, p=0.3),
            "40% of the variation in the pointing game (R\u00b2\u00a00.40, p\u00a0=\u00a00.300), which so few",
        ),
        (line(0.1, 1.0), "Hardly."),
        (line(0.7, -1.0), "The other way round"),
        (line(0.001, 0.1, xs=(0.97, 0.98, 1.0)), "Not here. Every model is recognised"),
        (line(None, None, xs=(0.6,), ys=(0.2,), scope="findings"), "1 point cannot tell"),
        (None, "There are too few points to tell."),
    ],
)
def test_whether_recognition_predicts_grounding(three_analysed, drawn, said):
    analysis = replace(three_analysed, correlations=() if drawn is None else (drawn,))
    found, behind = recognition_finding(analysis)
    assert said in found.answer.text and behind == drawn


def test_means_over_datasets_recover_the_intervals():
    one = Estimate(0.5, 0.4, 0.6)
    assert over_datasets([one]) is one
    both = over_datasets([one, Estimate(0.7, 0.6, 0.8)])
    assert both.value == pytest.approx(0.6)
    assert both.high - both.value == pytest.approx((0.1**2 + 0.1**2) ** 0.5 / 2)
    assert over_datasets([one, Estimate(0.7)]) == Estimate(pytest.approx(0.6))
    assert over_datasets([one, Estimate(None)]) == Estimate(None)


def test_outcomes_sum_to_one_and_begin_with_the_pointing_game(three_analysed):
    for run in three_analysed.datasets[0].runs:
        found = charts.outcomes(three_analysed.datasets, run.run.label)
        assert found.hit == pytest.approx(run.macro["pointing_game"].value)
        assert found.hit + found.near + found.elsewhere + found.missed == pytest.approx(1)


def test_outcomes_are_those_counted_from_the_maps_and_regions_pixel_by_pixel(three_analysed):
    for entry in three_analysed.datasets[0].runs:
        run, pairs, shares = entry.run, entry.run.cases(), []
        for finding, quadrants in entry.quadrants.items():
            counts = Counter()
            for image_id in (image for image, of in pairs if of == finding):
                pair = pairs.read(image_id, finding)
                # Synthetic runs are scored on maps whose cells are repeated.
                map_ = np.kron(pair.saliency, np.ones((4, 4)))
                peaks, region = np.argwhere(map_ == map_.max()), np.argwhere(pair.region)
                hit = Fraction(sum(bool(pair.region[y, x]) for y, x in peaks), len(peaks))
                height, width = map_.shape
                # In film widths and heights, squared, and compared without a root: 5 % of them.
                near = 400 * (((peaks[:, None] - region) * [width, height]) ** 2).sum(-1).min() <= (width * height) ** 2
                row, column = run.images.image_ids.index(image_id), run.results.findings.index(finding)
                recognised = run.images.probabilities[row, column] >= quadrants.threshold
                counts["hit"] += hit
                counts["missed" if not recognised else "near" if near else "elsewhere"] += 1 - hit
            shares.append(
                [float(counts[name] / sum(counts.values())) for name in ("hit", "near", "elsewhere", "missed")]
            )
        found = charts.outcomes(three_analysed.datasets, run.label)
        assert [found.hit, found.near, found.elsewhere, found.missed] == pytest.approx(np.mean(shares, axis=0))
    assert found.near > 0, "one of the runs at least comes close"


@pytest.mark.parametrize("case", ["one model", "labels only", "a run is missing", "one model on two datasets"])
def test_a_page_of_each_kind_shows_only_what_there_is(report, case, tmp_path):
    analysis = report(**CASES[case][0])
    write_page(analysis, (), tmp_path / "index.html", cases=1)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert escape(answer(analysis).question) in text
    grounded = case != "labels only"
    for section in ("failures", "thresholds", "recognition"):
        assert (f'id="{section}"' in text) == grounded == (f'href="#{section}"' in text)
    assert ("no score" in text) == (case == "a run is missing") and "not run" not in text
    assert ('class="share"' in text) == grounded
