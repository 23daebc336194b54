from __future__ import annotations

import warnings
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from synthetic import write_run

from xbench.report.charts import apart
from xbench.report.figures import write as figures
from xbench.report.figures.style import drawing, save
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze

Drawn = dict[str, Figure]
SINGLE = {"dataset": "siim", "images": 30, "findings": ("Enlarged Cardiomediastinum",)}


def odd(root: Path) -> None:
    """A dataset that only an instrument was run on, a single finding, and odd names."""
    write_run(root, "oracle", "chestxdet10", images=20, with_cases=False)
    write_run(root, "kad", **SINGLE, prompt_source="name")
    write_run(root, "kad", **SINGLE, stamp="2026-01-02_00-00-00")
    write_run(root, "a $x$ & b_c", **SINGLE, skill=0.2)
    write_run(root, "a $x$ & b_c", "chestxray14", images=30)


def one(root: Path) -> None:
    write_run(root, "devide", images=40)


def many(root: Path) -> None:
    """Nine models, one with a long name, on two datasets, but for one that was run on one of them."""
    names = ("clip", "biomedclip", "medklip", "kad", "mavl", "carzero", "devide", "mine", "one-with-a-very-long-name")
    for place, model in enumerate(names):
        for dataset in ("siim", "chestxray14")[: 1 if model == "mine" else 2]:
            write_run(root, model, dataset, images=16, skill=place / 9, with_cases=dataset == "siim" and place < 8)


@pytest.fixture(scope="module", params=[odd, one, many], ids=lambda made: made.__name__)
def drawn(request, tmp_path_factory) -> tuple[str, Drawn]:
    root = tmp_path_factory.mktemp("figures")
    request.param(root)
    found: Drawn = {}
    analysis = analyze(collect([root]))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # Of a layout that does not fit, of a letter that the font lacks.
        warnings.simplefilter("error")

        def keep(figure: Figure, path: Path) -> None:
            figure.draw_without_rendering()
            found[path.name] = figure

        patch.setattr(figures, "save", keep)
        names = [entry.name for entry in figures.write_figures(analysis, root, cases=1)]
    assert names == list(found)
    assert len(names) <= 9 + 3 * len(analysis.datasets)
    return request.param.__name__, found


def titles(figure: Figure) -> list[str]:
    return [axis.get_title(loc="left").split("\n")[0] for axis in figure.axes]


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


def test_figures_fit_a_column_or_a_page_and_nothing_is_cut(drawn):
    for name, figure in drawn[1].items():
        # Of everything that is drawn, in inches.
        box = figure.get_tightbbox()
        assert box.x0 > -0.01 and box.x1 < figure.get_figwidth() + 0.01, name
        assert box.y0 > -0.01 and box.y1 < figure.get_figheight() + 0.01, name
        assert figure.get_figwidth() in (3.4, 7.0), name
        assert figure.get_figheight() < 9.5, name
        assert {text.get_fontsize() for text in texts(figure)} == {8.0}, name
        assert not any("\u2026" in text.get_text() for text in texts(figure)), name


def test_the_plot_has_most_of_the_width_and_axes_run_from_0_to_100(drawn):
    for name, figure in drawn[1].items():
        if name.startswith(("overlays", "positions")):
            continue
        axes = [axis for axis in figure.axes if axis.axison]
        top = max(axis.get_position().y1 for axis in axes)
        width = sum(axis.get_position().width for axis in axes if axis.get_position().y1 > top - 0.01)
        assert width >= 0.45, name
        for axis in axes:
            scores = axis.get_xlim() if name.startswith(("intervals", "dice_gap", "quadrants")) else axis.get_ylim()
            assert scores == (0, 100), name


def test_no_two_names_overlap(drawn):
    for name, figure in drawn[1].items():
        # Extents have room around letters.
        boxes = [(text.get_text(), text.get_window_extent().padded(-2)) for text in texts(figure)]
        for place, (text, box) in enumerate(boxes):
            assert not [other for other, at in boxes[place + 1 :] if box.overlaps(at)], (name, text)


def test_datasets_without_a_model_and_charts_of_one_point_are_left_out(drawn):
    which, found = drawn
    names = {name for name in found if name.startswith(("auroc", "quadrants", "overlays"))}
    if which == "odd":
        assert titles(found["intervals_pointing_game"]) == ["ChestX-ray14", "SIIM-ACR"]
        assert names == {"auroc_pointing_game_findings", *(f"quadrants_{name}" for name in ("chestxray14", "siim"))} | {
            f"overlays_{name}" for name in ("chestxray14", "siim")
        }
    if which == "one":
        assert names == {"auroc_pointing_game_findings", "quadrants_chestxray14", "overlays_chestxray14"}
        assert titles(found["intervals_pointing_game"]) == [""]
        assert any("DeViDe" in text.get_text() for text in found["overlays_chestxray14"].texts)


def test_every_run_has_a_row_with_its_number(drawn):
    which, found = drawn
    axis = found["intervals_pointing_game"].axes[0]
    labels = [text.get_text() for text in axis.get_yticklabels()]
    said = [text.get_text() for text in axis.texts]
    if which == "odd":
        assert sorted(labels) == ["KAD", "KAD (name prompts)", "a $x$ & b_c"]
        assert said.count("not run") == 2
    if which == "one":
        # The name has no more than the model, the numbers no decimals.
        assert labels == ["DeViDe (re-\nimplementation)"]
        assert [text.isdecimal() for text in said if "floor" not in text and "perfect" not in text] == [True, False]


def test_files_hold_their_text_as_text(tmp_path):
    with drawing():
        figure = Figure(layout="constrained")
        axis = figure.subplots()
        axis.set_title("a $x$ & b_c")
        save(figure, tmp_path / "figure")
        assert matplotlib.rcParams["axes.spines.top"] is False
    text = "".join(ElementTree.parse(tmp_path / "figure.svg").getroot().itertext())
    assert "a $x$ & b_c" in text
    assert b"/FontFile2" in (tmp_path / "figure.pdf").read_bytes()
    assert matplotlib.rcParams["axes.spines.top"] is True


def test_things_are_moved_apart_as_little_as_needed():
    assert apart([10, 90], [20, 20], 0, 100) == [10, 90]
    assert apart([95, 99, 5], [10, 20, 10], 0, 100) == [75, 90, 5]
    found = apart([0, 0, 0], [10, 30, 10], 0, 100)
    assert found == [5, 25, 45]
