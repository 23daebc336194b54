from __future__ import annotations

import pytest
from huggingface_hub import ModelCard
from synthetic import write_run

from xbench.report.card import write_cards
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    root = tmp_path_factory.mktemp("cards")
    write_run(root, "kad", images=30, with_cases=False)
    write_run(root, "kad", images=30, with_cases=False, image_size_of="x", stamp="2026-01-02_00-00-00")
    write_run(root, "kad", "siim", images=30, findings=("Pneumothorax",), with_cases=False)
    write_run(root, "a: $x$ & b_c", images=30, with_cases=False)
    write_run(root, "centre", images=30, with_cases=False)
    return analyze(collect([root]))


def test_a_hub_reads_every_number_with_its_interval_and_what_it_was_scored_on(analysis, tmp_path):
    paths = write_cards(analysis, tmp_path / "cards")
    assert sorted(path.name for path in paths) == ["a_x_b_c.md", "kad.md"]
    kad = ModelCard.load(tmp_path / "cards" / "kad.md")
    assert kad.data.model_name == "KAD"
    # One value of a metric on a dataset, that of the model's own settings.
    named = {(one.dataset_type, one.metric_name): one for one in kad.data.eval_results}
    assert len(named) == len(kad.data.eval_results) == 10
    (own,) = (run for run in analysis.datasets[1].runs if run.run.model == "kad")
    for key, name in {"pointing_game": "Pointing game", "auroc": "AUROC"}.items():
        one, estimate = named["siim", f"{name}, mean over findings"], own.macro[key]
        assert one.metric_value == pytest.approx(estimate.value, abs=1e-4)
        assert one.metric_args["interval_95"] == pytest.approx([estimate.low, estimate.high], abs=1e-4)
        assert (one.dataset_name, one.dataset_split) == ("SIIM-ACR Pneumothorax", analysis.datasets[1].split)
        assert one.dataset_args["findings"] == ["Pneumothorax"] and one.dataset_args["images"] == 30
        assert one.dataset_args["settings"]["prompts"] == "official"
    other = ModelCard.load(tmp_path / "cards" / "a_x_b_c.md").data
    assert other.model_name == "a: $x$ & b_c" and len(other.eval_results) == 5
    # The text has every run of the model, and the floor of each dataset.
    rows = [line for line in kad.content.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[1] for row in rows[2:]].count("*floor*") == 2
    assert len(rows) == 2 + 3 + 2 and {row.count(" | ") for row in rows} == {7}
