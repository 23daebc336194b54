"""What figures hold, without writing their files."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from synthetic import write_run

from xbench.report.cases import tinted
from xbench.report.figures import write as figures
from xbench.report.figures.style import styles
from xbench.report.runs import collect
from xbench.report.schema import in_order
from xbench.report.statistics.analyse import analyse


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> dict[str, Figure]:
    """Every figure of a report with a dataset that only an instrument was run on, a single finding, and odd names."""
    root = tmp_path_factory.mktemp("figures")
    write_run(root, "oracle", "chestxdet10", images=20, with_cases=False)
    single = {"dataset": "siim", "images": 30, "findings": ("Enlarged Cardiomediastinum",)}
    write_run(root, "kad", **single, prompt_source="name")
    write_run(root, "kad", **single, stamp="2026-01-02_00-00-00")
    write_run(root, "a $x$ & b_c", **single, skill=0.2)
    write_run(root, "a $x$ & b_c", "chestxray14", images=30)
    found: dict[str, Figure] = {}
    analysis = analyse(collect([root]))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # Of a layout that does not fit, of a letter that the font lacks.
        warnings.simplefilter("error")

        def keep(figure: Figure, path: Path) -> None:
            figure.draw_without_rendering()
            found[path.name] = figure

        patch.setattr(figures, "save", keep)
        names = [entry.name for entry in figures.write_figures(analysis, root, cases=1)]
    assert names == list(found)
    assert len(names) <= figures.count_figures(analysis)
    return found


def titles(figure: Figure) -> list[str]:
    return [axis.get_title().split("\n")[0] for axis in figure.axes]


def test_datasets_without_a_model_are_left_out(drawn):
    assert titles(drawn["intervals_pointing_game"]) == ["ChestX-ray14", "SIIM-ACR Pneumothorax"]
    assert titles(drawn["auroc_pointing_game_models"]) == ["All datasets", "ChestX-ray14", "SIIM-ACR Pneumothorax"]
    assert {name for name in drawn if name.startswith("quadrants")} == {"quadrants_chestxray14", "quadrants_siim"}
    assert "overlays_siim" in drawn and "overlays_chestxdet10" not in drawn


def test_every_run_has_a_row_and_every_label_is_within_the_figure(drawn):
    labels = ["KAD (prompts name)", "KAD (prompts official)", "a $x$ & b_c"]
    figure = drawn["intervals_pointing_game"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == labels
    for name, figure in drawn.items():
        # Of everything that is drawn, in inches.
        box = figure.get_tightbbox()
        assert box.x0 > -0.01 and box.x1 < figure.get_figwidth() + 0.01, name
        assert box.y0 > -0.01 and box.y1 < figure.get_figheight() + 0.01, name
        # A column or a page wide.
        if not name.startswith("overlays"):
            assert figure.get_figwidth() in (3.4, 7.0), name
            assert figure.get_figheight() < 9.5, name


def test_colours_belong_to_models_and_marks_to_runs(three_analysed):
    runs = three_analysed.datasets[0].runs
    every = styles(in_order(runs))
    fewer = styles(in_order(entry for entry in runs if entry.run.label != "CLIP"))
    assert all(every[label].colour == fewer[label].colour for label in ("KAD", "CARZero"))
    assert len({style.colour for style in every.values()}) == len({style.marker for style in every.values()}) == 3


def test_an_overlay_leaves_the_radiograph_alone_where_the_map_is_zero():
    display = np.array([[0, 100, 255]], np.uint8)
    picture = tinted(display, np.array([[0, 0, 1]], np.float32))
    assert picture[0, :2].tolist() == [[0, 0, 0], [100, 100, 100]]
    # Inferno ends in a bright yellow.
    assert picture[0, 2, 0] > 240 > picture[0, 2, 2]
