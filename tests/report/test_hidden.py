from __future__ import annotations

import shutil

import numpy as np
import pytest
from intervened import falls, intervene
from run_files import change
from synthetic import write_run

from xbench.geometry.hiding import Hiding, dilated
from xbench.report.cases import choose_in_turns
from xbench.report.hidden import CASES, _moved, hidden_cases
from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    root = tmp_path_factory.mktemp("hidden")
    intervene(write_run(root, "kad", images=200, skill=0.6), falls(1.5, 0.5, noise=0.6))
    return analyze(collect([root]))


def test_cases_are_redrawn_where_the_run_hid_pixels(analysis):
    (entry,), (one,) = analysis.runs, analysis.datasets[0].interventions
    cases = [*hidden_cases(entry.run, one)]
    assert len(cases) == len({(case.image_id, case.finding) for case in cases}) == CASES
    assert len({case.reason for case in cases}) == CASES
    scores = entry.run.stored.changed | {"": entry.run.rows}
    use = {}
    for case in cases:
        kept = entry.run.cases().read(case.image_id, case.finding)
        (film, region, _), (hidden, mask, _), (other, patch, _) = case.films
        np.testing.assert_array_equal(film, kept.display)
        np.testing.assert_array_equal(region, kept.region)
        np.testing.assert_array_equal(mask, dilated(kept.region))
        assert (
            not (mask & patch).any() and (hidden[~mask] == film[~mask]).all() and (other[~patch] == film[~patch]).all()
        )
        np.testing.assert_array_equal(hidden, Hiding(film, case.image_id).fill(mask, mask, "mean"))
        for (_, _, shown), condition in zip(case.films, ("", "hide: mean", "control: mean"), strict=True):
            rows = scores[condition]
            row = [
                rows.image_ids[image] == case.image_id and rows.queries[query] == case.finding
                for image, query in zip(rows.image, rows.query, strict=True)
            ].index(True)
            assert shown == rows["probability"][row]
            use[case.reason, condition] = rows["logit"][row]
            if condition.startswith("control"):
                x, y = (np.flatnonzero(patch.any(axis)).mean() + 0.5 for axis in (0, 1))
                assert (x / 56, y / 56) == pytest.approx(
                    (rows["changed_x"][row], rows["changed_y"][row]), abs=0.51 / 56
                )
    gain = {case.reason: use[case.reason, "control: mean"] - use[case.reason, "hide: mean"] for case in cases}
    assert max(gain, key=gain.get) == "largest use" and min(gain, key=gain.get) == "lowest use"


def test_reasons_take_turns_and_no_pair_comes_twice():
    chosen: dict[int, list[str]] = {}
    choose_in_turns({"a": [1, 2, 3], "b": [1, 4], "c": []}, CASES, chosen)
    assert chosen == {1: ["a", "b"], 4: ["b"], 2: ["a"], 3: ["a"]} and [*chosen] == [1, 4, 2, 3]
    choose_in_turns({"a": [*range(9)], "b": [*range(9, 12)]}, CASES, chosen)
    assert len(chosen) == CASES


def test_a_mask_moves_to_a_place_and_never_round_the_edge():
    mask = np.zeros((20, 30), bool)
    mask[2:6, 3:9] = True
    moved = _moved(mask, 24 / 30, 10 / 20)
    np.testing.assert_array_equal(moved, np.roll(mask, (6, 18), (0, 1)))
    assert _moved(mask, 1.0, 0.2).sum() == 4 * 3


def test_the_page_shows_them_and_what_speaks_against_it(analysis, tmp_path):
    for cases in (1, 0):
        write_page(analysis, all_tables(analysis), tmp_path / "index.html", cases=cases)
        text = (tmp_path / "index.html").read_text(encoding="utf-8")
        assert text.count('<article class="viewer"><h4>') == CASES * cases
        assert ("redrawn on the stored picture" in text) == bool(cases)
        for part in ("Judged by hiding lesions.", "A hole is unlike any radiograph", "interventions_overlap", "by-two"):
            assert part in text


def test_a_run_without_interventions_never_replaces_one_with_them(tmp_path):
    before = write_run(tmp_path, "kad", images=200)
    changed = intervene(shutil.copytree(before, before.with_name("2026-01-02_00-00-00")), falls(1.5))
    change(changed, provenance__data__interventions=["mean"], provenance__data__pairs=90)
    shutil.copytree(before, before.with_name("2026-01-03_00-00-00"))
    found = collect([tmp_path])
    assert [(run.folder, run.label) for run in found.runs] == [(changed, "KAD")]
    assert [("older" in one.reason, str(changed) in one.reason) for one in found.set_aside] == [
        (True, True),
        (False, True),
    ]
    newer = shutil.copytree(changed, before.with_name("2026-01-04_00-00-00"))
    assert [run.folder for run in collect([tmp_path]).runs] == [newer]
