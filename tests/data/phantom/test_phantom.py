from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from xbench.data.phantom import FINDINGS, Phantom, draw_phantom
from xbench.data.phantom.anatomy import draw_anatomy
from xbench.data.phantom.lesions import _cardiomegaly

COUNT = 160


@pytest.fixture(scope="module")
def phantoms() -> list[Phantom]:
    return [draw_phantom(11, index, 128, 128) for index in range(COUNT)]


def middles(phantom: Phantom) -> dict[str, np.ndarray]:
    return {
        finding: np.array([*((np.argwhere(mask) + 0.5) / mask.shape).mean(0), mask.mean()])
        for finding, mask in phantom.masks.items()
    }


@pytest.mark.parametrize(("height", "width"), [(128, 128), (160, 240)])
def test_lesions_have_their_place_in_fractions_of_the_film(height: int, width: int) -> None:
    """Outlines move by a pixel or so, which moves the middle of two small lesions that lie far apart by 0.02."""
    side = 320 / min(height, width)
    compared = 0
    for index in (*range(30), 71):
        usual = draw_phantom(0, index, round(height * side), round(width * side))
        other = draw_phantom(0, index, height, width)
        assert usual.masks.keys() == other.masks.keys()
        there = middles(other)
        for finding, place in middles(usual).items():
            assert np.abs(there[finding] - place).max() < 0.03, (index, finding)
            compared += 1
    assert compared > 30


def test_same_arguments_give_the_same_film_whatever_was_drawn_before() -> None:
    for index in range(5):
        one = draw_phantom(4, index)
        np.random.seed(5)
        draw_phantom(9, 1)
        two = draw_phantom(4, index)
        assert np.array_equal(one.image, two.image) and one.image.shape == (320, 320)
        assert one.masks.keys() == two.masks.keys()
        assert all(np.array_equal(one.masks[finding], two.masks[finding]) for finding in one.masks)


@pytest.mark.parametrize(("size", "side"), [((320, 400), 12), ((64, 96), 2)])
def test_a_planted_shortcut_marks_the_finding_and_changes_nothing_else(size: tuple[int, int], side: int) -> None:
    edge, squares, absent = side // 3, set(), 0
    for index in range(20):
        plain, marked = draw_phantom(0, index, *size), draw_phantom(0, index, *size, "Fracture")
        square = marked.image[edge : edge + side, -edge - side : size[1] - edge]
        if "Fracture" in plain.masks:
            squares.add(square.tobytes())
            square[:] = plain.image[edge : edge + side, -edge - side : size[1] - edge]
        absent += "Fracture" not in plain.masks
        assert np.array_equal(plain.image, marked.image) and plain.masks.keys() == marked.masks.keys()
    assert len(squares) == 1 and 0 < absent < 20


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Phantom, Phantom]]:
    drawn = [draw_phantom(21, index, 128, 128) for index in range(100)]
    with patch("xbench.data.phantom.draw.draw_lesions", return_value=(0, {}, [])):
        return [(phantom, draw_phantom(21, index, 128, 128)) for index, phantom in enumerate(drawn)]


def test_films_differ_from_the_healthy_patient_in_the_masks_and_nowhere_else(
    pairs: list[tuple[Phantom, Phantom]],
) -> None:
    alone = dict.fromkeys(FINDINGS, 0)
    for ill, healthy in pairs:
        assert not healthy.masks
        changed = ill.image != healthy.image
        union = np.zeros_like(changed)
        for mask in ill.masks.values():
            union |= mask
        assert not (changed & ~union).any()
        if len(ill.masks) == 1:
            (finding,) = ill.masks
            # Where the enlarged heart covers the old one nothing changes.
            assert changed[union].mean() > (0.15 if finding == "Cardiomegaly" else 0.5), finding
            alone[finding] += 1
    assert all(alone.values()), alone


def test_lesions_are_bright_and_a_pneumothorax_is_dark(pairs: list[tuple[Phantom, Phantom]]) -> None:
    seen = set()
    for ill, healthy in pairs:
        if len(ill.masks) == 1:
            ((finding, mask),) = ill.masks.items()
            change = ill.image[mask].astype(float) - healthy.image[mask]
            if finding == "Pneumothorax":
                assert np.quantile(change, 0.4) < 0
            elif finding != "Fracture":
                assert change.mean() > 4, finding
            seen.add(finding)
    assert len(seen) == len(FINDINGS)


@pytest.mark.parametrize("finding", ["Nodule", "Fracture", "Mass", "Consolidation", "Pneumothorax"])
def test_both_sides_and_several_heights(phantoms: list[Phantom], finding: str) -> None:
    places = [np.argwhere(phantom.masks[finding]).mean(0) / 128 for phantom in phantoms if finding in phantom.masks]
    rows, columns = np.array(places).T
    assert 0.2 < np.mean(columns < 0.5) < 0.8
    assert rows.max() - rows.min() > 0.12
    assert np.mean(np.hypot(rows - 0.5, columns - 0.5) < 0.08) < 0.25


def test_a_normal_heart_is_clearly_narrower_than_an_enlarged_one() -> None:
    normal, enlarged = [], []
    for index in range(30):
        anatomy = draw_anatomy(np.random.default_rng(index), 224, 224)
        thorax = np.ptp(np.flatnonzero((anatomy.lungs[0].mask | anatomy.lungs[1].mask).any(0)))
        _, mask = _cardiomegaly(np.random.default_rng(index), anatomy, anatomy.lungs[0].mask)
        normal.append(np.ptp(np.flatnonzero((anatomy.heart_thickness > 0.25).any(0))) / thorax)
        enlarged.append(np.ptp(np.flatnonzero(mask.any(0))) / thorax)
    assert max(normal) < 0.50 < 0.52 < min(enlarged)
