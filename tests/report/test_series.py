"""How runs are called and look in charts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from xbench.report.series import outline, series_of


def runs(**settings: list[dict[str, str]]) -> list[SimpleNamespace]:
    """Runs of models, each with the settings that its label names."""
    made = []
    for model, of_model in settings.items():
        for told in of_model:
            said = f" ({', '.join(f'{key} {value}' for key, value in told.items())})" if told else ""
            run = {"label": model + said, "model": model, "settings": told, "told_by": told, "scored_on": {}}
            made.append(SimpleNamespace(run=SimpleNamespace(**run)))
    return made


OFFICIAL, BY_NAME = ({"prompts": prompts, "image_size": "224"} for prompts in ("official", "name"))
LARGE = {"prompts": "official", "image_size": "448"}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (runs(kad=[{}]), ["KAD"]),
        (runs(kad=[{}], mine=[{}]), ["KAD", "mine"]),
        (runs(kad=[BY_NAME, OFFICIAL, LARGE]), ["name prompts", "own settings", "448 px"]),
        (runs(kad=[OFFICIAL, LARGE], mine=[{}]), ["KAD", "KAD, 448 px", "mine"]),
        # What is no difference to one run may be all that tells two others apart.
        (runs(kad=[{}, OFFICIAL, {"ties": "share"}]), ["kad", "own settings", "ties share"]),
    ],
)
def test_names_say_only_what_differs(given, names):
    assert [series.name for series in series_of(given).values()] == names


def test_settings_of_one_model_all_look_different():
    found = series_of(runs(demo=[{"image_size": str(size)} for size in range(224, 244)]))
    looks = {(series.colour, series.shape, series.filled) for series in found.values()}
    assert len(looks) == len(found) == 20
    own = next(series for series in found.values() if series.own)
    assert (own.shape, own.colour, own.dash) == ("circle", "#2b6dff", ())
    assert [series.filled for series in found.values()].count(True) == 7


def test_models_keep_their_looks_whatever_else_there_is():
    many = series_of(runs(clip=[{}], kad=[OFFICIAL, LARGE], mine=[{}], other=[{}]))
    few = series_of(runs(clip=[{}], kad=[{}]))
    assert [many["clip"].shape, few["clip"].shape, few["kad"].shape] == ["star", "star", "plus"]
    assert len({(series.colour, series.shape) for series in many.values()}) == 4
    own, large = (series for series in many.values() if series.model == "kad")
    assert (own.colour, own.shape) == (large.colour, large.shape) == (few["kad"].colour, "plus")
    assert own.filled and not large.filled and own.dash != large.dash


def test_every_shape_has_an_outline():
    for series in series_of(runs(**{f"model{place}": [{}] for place in range(40)})).values():
        path = outline(series.shape)
        assert path.startswith("M") and path.endswith("Z") and "nan" not in path
