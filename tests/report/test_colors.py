from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from xbench.report.colors import colored, outline, series_of, tinted
from xbench.report.sentences import own_in_words


def runs(**settings: list[dict[str, str]]) -> list[SimpleNamespace]:
    made = []
    for model, of_model in settings.items():
        for told in of_model:
            label = ", ".join([model, *map(str, told.values())])
            results = SimpleNamespace(counts=SimpleNamespace(images=1), scored_on={})
            run = {"label": label, "model": model, "settings": told, "told_by": told, "place": len(made)}
            made.append(SimpleNamespace(run=SimpleNamespace(**run, results=results)))
    return made


OFFICIAL, LARGE = ({"prompts": "official", "image_size": size} for size in ("224", "448"))


def test_series_are_called_as_their_runs_and_what_labels_leave_out_is_told():
    given = runs(kad=[OFFICIAL, LARGE], mine=[{}])
    assert [*series_of(given)] == [entry.run.label for entry in given]
    assert own_in_words(given) == "kad, official, 224: official prompts, 224 px"


def test_settings_of_one_model_all_look_different():
    found = series_of(runs(demo=[{"image_size": str(size)} for size in range(224, 244)]))
    looks = {(series.color, series.shape, series.filled) for series in found.values()}
    assert len(looks) == len(found) == 20
    own = next(series for series in found.values() if series.own)
    assert (own.shape, own.color, own.dash) == ("circle", "#2b6dff", ())
    assert [series.filled for series in found.values()].count(True) == 7


def test_models_keep_their_looks_whatever_else_there_is():
    many = series_of(runs(clip=[{}], kad=[OFFICIAL, LARGE], mine=[{}], other=[{}]))
    few = series_of(runs(clip=[{}], kad=[{}]))
    assert [many["clip"].shape, few["clip"].shape, few["kad"].shape] == ["star", "star", "plus"]
    assert len({(series.color, series.shape) for series in many.values()}) == 4
    own, large = (series for series in many.values() if series.model == "kad")
    assert (own.color, own.shape) == (large.color, large.shape) == (few["kad"].color, "plus")
    assert own.filled and not large.filled and own.dash != large.dash


def test_every_shape_has_an_outline():
    for series in series_of(runs(**{f"model{place}": [{}] for place in range(40)})).values():
        path = outline(series.shape)
        assert path.startswith("M") and path.endswith("Z") and "nan" not in path


def test_the_higher_a_map_the_less_of_the_film_is_seen_and_the_brighter_it_is():
    colors = colored(np.linspace(0, 1, 101, dtype=np.float32)[None])[0].astype(int)
    assert (colors[:18, 3] == 0).all() and colors[-1, 3] == 200
    assert colors[-1, 0] > 240 > colors[-1, 2], "the highest value is yellow"
    assert (np.diff(colors[:, 3]) >= 0).all() and (np.diff(colors[:, :2].sum(axis=1)) >= 0).all()
    film = np.arange(101, dtype=np.uint8)[None]
    expected = [
        [round(gray + (level - gray) * opacity / 255) for level in rgb] for gray, (*rgb, opacity) in enumerate(colors)
    ]
    assert np.abs(tinted(film, np.linspace(0, 1, 101, dtype=np.float32)[None])[0] - np.array(expected)).max() <= 1
