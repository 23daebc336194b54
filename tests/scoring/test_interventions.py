"""Numbers under interventions, against plain loops over rows as dictionaries, and by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.findings.conditions import LEAST
from xbench.scoring.interventions import ANY, Intervened, intervened, intervention_numbers
from xbench.scoring.rows import SCHEMA, Rows

FINDINGS = ("Mass", "Nodule")
CHANGES = ("hide: mean", "control: mean", "hide: black", "control: black", "keep", "no image", "wording: short")
Row = dict[str, Any]


def rows_of(table: list[Row], findings: tuple[str, ...] = FINDINGS) -> dict[str, Rows]:
    """Rows by condition; what a row does not say is null, and images are numbered by name."""
    places = {name: place for place, name in enumerate(sorted({row["image_id"] for row in table}))}
    usual = {"condition": "", "has_region": False, "scored": False, "asked": True}
    full = [
        dict.fromkeys(SCHEMA.names) | usual | {"index": places[row["image_id"]], "finding": row["query"]} | row
        for row in table
    ]
    arrow = pa.Table.from_pylist(full, schema=SCHEMA)
    return {name: Rows.of(arrow, findings, name) for name in arrow["condition"].unique().to_pylist()}


def pairs_of(table: list[Row], findings: tuple[str, ...] = FINDINGS) -> Intervened:
    by_condition = rows_of(table, findings)
    found = intervened(by_condition[""], by_condition)
    assert found is not None
    return found


def numbers_of(table: list[Row], findings: tuple[str, ...] = FINDINGS) -> dict[str, Any]:
    return intervention_numbers(pairs_of(table, findings))


def drawn(seed: int, images: int = 60, answers: bool = False) -> list[Row]:
    """Draw rows of a run: ties, unknown labels and patients, saturated scores, missing controls and answers."""
    draw = np.random.RandomState(seed)
    of_logits, patients, asked = draw.rand() < 0.5, draw.rand() < 0.7, draw.rand() < 0.5
    table: list[Row] = []

    def said() -> Row:
        if answers:
            status = str(draw.choice(["answered", "abstained", "unparsable"]))
            row: Row = {"answer_status": status, "boxes": int(status == "answered" and draw.rand() < 0.8), "points": 0}
            return row | {"asked": asked, "probability": draw.choice([0.0, 0.5, 1.0, None]) if asked else None}
        p = float(draw.choice([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, draw.rand()]))
        return {"probability": p, "logit": round(float(draw.normal()), 1) if of_logits else None}

    for image in range(images):
        for finding in FINDINGS:
            label = int(draw.choice([0, 0, 1, 1, 1, -1]))
            about: Row = {"image_id": f"image {image}", "query": finding, "label": label}
            about["patient_id"] = f"patient {image // 2}" if patients and image % 7 else None
            table.append(about | said() | {"pointing_hit": draw.choice([0.0, 0.5, 1.0]) if label == 1 else None})
            for name in CHANGES if label == 1 and draw.rand() < 0.9 else ():
                if not name.startswith("control") or draw.rand() < 0.9:
                    change = {"condition": name, "pointing_hit": draw.choice([0.0, 0.5, 1.0])}
                    table.append(about | said() | change)
    return table


def whose(row: Row) -> str:
    return str(row["image_id"] if row["patient_id"] is None else row["patient_id"])


def digest(name: str) -> bytes:
    return sha256(name.encode()).digest()


def plain(table: list[Row]) -> dict[tuple[str, str, str], dict[str, float]]:
    """By fill, image and finding the values of a pair, by loops; what does not exist is left out."""
    base = [row for row in table if row.get("condition", "") == ""]
    under = {(row["condition"], row["image_id"], row["query"]): row for row in table if row.get("condition")}
    answers = any(row.get("answer_status") for row in base)
    asked = any(row.get("asked", True) for row in base)
    logits = any(row.get("logit") is not None for row in base)
    deal = sorted({whose(row) for row in base}, key=digest)

    def score(row: Row | None) -> float | None:
        if row is None:
            return None
        if answers and asked:
            return None if row["probability"] is None else float(row["probability"] >= 0.5)
        if answers:
            return None if row["answer_status"] == "unparsable" else float(row["boxes"] + row["points"] > 0)
        if logits:
            return row["logit"]
        p = row["probability"]
        return math.inf * (2 * p - 1) if p in (0, 1) else math.log(p) - math.log1p(-p)

    def threshold(row: Row) -> float | None:
        if answers:
            return 0.5
        fold = deal.index(whose(row)) % 5
        others = [
            (value, other["label"])
            for other in base
            if other["query"] == row["query"] and deal.index(whose(other)) % 5 != fold and other["label"] >= 0
            if (value := score(other)) is not None
        ]
        positive, negative = ([value for value, label in others if label == of] for of in (1, 0))
        if not positive or not negative:
            return None
        best, found, below, last = -1, None, -math.inf, -math.inf
        for candidate in sorted({value for value, _ in others}):
            true, false = (sum(value >= candidate for value in of) for of in (positive, negative))
            youden = true * len(negative) + (len(negative) - false) * len(positive)
            if youden > best:
                best, found, below = youden, candidate, last
            last = candidate
        assert found is not None
        return found if math.isinf(below) else (below + found) / 2

    def decision(row: Row | None, of: Row) -> float | None:
        value, limit = score(row), threshold(of)
        return None if value is None or limit is None else float(value >= limit)

    def swap(row: Row, label: int) -> float | None:
        pool = [other for other in base if other["query"] == row["query"] and other["label"] == label]
        pool = [other for other in pool if whose(other) != whose(row)]
        start = digest(row["image_id"])
        pool.sort(key=lambda other: (digest(other["image_id"]) < start, digest(other["image_id"])))
        return decision(pool[0], pool[0]) if pool else None

    found: dict[tuple[str, str, str], dict[str, float | None]] = {}
    for row in base:
        key = row["image_id"], row["query"]
        if not any((name, *key) in under for name in CHANGES[:-1]):
            continue
        finite = [value for one in base if one["query"] == row["query"] and (value := score(one)) is not None]
        finite = [value for value in finite if math.isfinite(value)]
        mean = math.fsum(finite) / len(finite)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / len(finite))
        own = decision(row, row)

        def drop(after: float | None, before: float | None = score(row), spread: float = spread) -> float | None:
            if answers or after is None or before is None or not math.isfinite(after) or not math.isfinite(before):
                return None
            return 0.0 if after == before else (before - after) / spread if spread else None

        for fill in ("mean", "black"):
            hide, control = (under.get((f"{kind}: {fill}", *key)) for kind in ("hide", "control"))
            values: dict[str, float | None] = {}
            drops = drop(score(hide)), drop(score(control))
            if None not in drops:
                values = {"drop": drops[0], "control_drop": drops[1], "use": drops[0] - drops[1]}  # type: ignore[operator]
            flips = [None if None in (own, d := decision(of, row)) else float(own != d) for of in (hide, control)]
            if None not in flips:
                values |= {"flip_rate": flips[0], "control_flip_rate": flips[1], "premium": flips[0] - flips[1]}  # type: ignore[operator]
            if row["pointing_hit"] >= 0.5 and hide is not None:
                values["map_moves"] = float(hide["pointing_hit"] < 0.5)
            found[fill, *key] = values
        kept, blank = (decision(under.get((name, *key)), row) for name in ("keep", "no image"))
        same, opposite = (swap(row, label) for label in (1, 0))
        found[ANY, *key] = {
            "sufficiency": kept if own == 1 else None,
            "no_image_yes": blank,
            "swap_same_agreement": None if None in (own, same) else float(own == same),
            "swap_opposite_change": None if None in (own, opposite) else float(own != opposite),
        }
    return {key: {name: value for name, value in values.items() if value is not None} for key, values in found.items()}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_values_of_pairs_are_those_of_plain_loops(seed: int, answers: bool) -> None:
    table = drawn(seed, 30, answers)
    pairs = pairs_of(table)
    rows, expected = pairs.rows, plain(table)
    keys = [(rows.image_ids[rows.image[row]], rows.queries[rows.query[row]]) for row in pairs.row.tolist()]
    assert {key[1:] for key in expected} == {*keys} and len(keys) == len({*keys})
    for fill, columns in pairs.columns.items():
        for place, key in enumerate(keys):
            values = {name: column[place] for name, column in columns.items() if not np.isnan(column[place])}
            assert values == pytest.approx(expected[fill, *key], rel=1e-12, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_numbers_are_means_of_values_whatever_the_order_of_rows(seed: int, answers: bool) -> None:
    table = drawn(seed, 80, answers)
    numbers, expected = numbers_of(table), plain(table)
    assert numbers == numbers_of([table[place] for place in np.random.RandomState(seed).permutation(len(table))])
    assert (numbers["reason"] is not None) == answers and numbers["pairs"] == len(expected) / 3
    for fill, of_pairs in numbers["all_pairs"].items():
        for name, mean in of_pairs["macro"].items():
            existing = []
            for finding in FINDINGS:
                values = [of[name] for key, of in expected.items() if key[::2] == (fill, finding) and name in of]
                value = of_pairs["per_class"][finding][name]
                assert len(values) in of_pairs["per_class"][finding].values() and (value is None) == (
                    len(values) < LEAST
                )
                existing += [] if value is None else [value]
                assert value is None or value == pytest.approx(math.fsum(values) / len(values), rel=1e-12, abs=1e-12)
            assert mean == (pytest.approx(sum(existing) / len(existing)) if existing else None)
    for fill, of_pairs in numbers["correct_only"].items():
        kept = {key[1:]: of["sufficiency"] for key, of in expected.items() if key[0] == ANY and "sufficiency" in of}
        values = [
            of["premium"]
            for key, of in expected.items()
            if key[::2] == (fill, "Mass") and key[1:] in kept and "premium" in of
        ]
        assert (
            fill == ANY
            or len(values) <= of_pairs["per_class"]["Mass"]["decided"] <= of_pairs["per_class"]["Mass"]["pairs"]
        )


MODELS: Mapping[str, Any] = {
    # By model: the score of a present and of an absent finding, and of the present one when the region, an equal patch
    # elsewhere, all but the region, and everything is hidden.
    "oracle": (lambda draw: 1 + draw, lambda draw: 0, lambda s, _: 0, lambda s, _: s, lambda s: s),
    "shortcut": (lambda draw: 1, lambda draw: 0, lambda s, _: s, lambda s, _: s, lambda s: 0),
    "prior": (lambda draw: 1, lambda draw: 1, lambda s, _: s, lambda s, _: s, lambda s: s),
    "noise": (lambda draw: draw, lambda draw: draw, lambda s, draw: draw, lambda s, draw: draw, lambda s: s),
    "fragile": (lambda draw: 1 + draw, lambda draw: 0, lambda s, _: 0, lambda s, _: 0, lambda s: 0),
}


def planted(name: str, seed: int = 0) -> dict[str, Any]:
    """Numbers of one of the models for which it is known what they look at, on 200 patients with two images each."""
    draw = np.random.RandomState(seed)
    present, absent, hidden, other, kept = MODELS[name]
    table: list[Row] = []
    for image in range(400):
        label = image // 2 % 2
        about: Row = {
            "image_id": f"{seed} {image}",
            "patient_id": f"{seed} {image // 2}",
            "query": "Mass",
            "label": label,
        }
        score = float((present if label else absent)(draw.rand()))
        table.append(about | {"logit": score, "pointing_hit": 1.0 if label else None})
        after = {
            "hide: mean": hidden(score, draw.rand()),
            "control: mean": other(score, draw.rand()),
            "keep": kept(score),
        }
        for condition, value in after.items() if label else ():
            table.append(about | {"condition": condition, "logit": float(value), "pointing_hit": 1.0})
    return numbers_of(table, ("Mass",))["all_pairs"]


@pytest.mark.parametrize(
    ("name", "flip", "control", "same", "opposite", "sufficiency"),
    [("oracle", 1, 0, 1, 1, 1), ("shortcut", 0, 0, 1, 1, 0), ("prior", 0, 0, 1, 0, 1), ("fragile", 1, 1, 1, 1, 0)],
)
def test_models_with_known_evidence_get_the_numbers_of_it(
    name: str, flip: int, control: int, same: int, opposite: int, sufficiency: int
) -> None:
    numbers = planted(name)
    of_fill, of_any = (numbers[fill]["per_class"]["Mass"] for fill in ("mean", ANY))
    assert (of_fill["flip_rate"], of_fill["control_flip_rate"], of_fill["premium"]) == (flip, control, flip - control)
    assert (of_any["swap_same_agreement"], of_any["swap_opposite_change"]) == (same, opposite)
    assert of_any["sufficiency"] == sufficiency and of_fill["map_moves"] == 0
    assert of_fill["pairs"] == of_fill["scored"] == of_fill["decided"] == of_fill["pointed"] == 200
    assert of_fill["use"] > 1 if name == "oracle" else of_fill["use"] == 0
    assert (of_fill["drop"] > 1) == (of_fill["control_drop"] > 1) == (name == "fragile") or name == "oracle"


def test_noise_uses_the_region_no_more_than_an_equal_patch() -> None:
    uses = [planted("noise", seed)["mean"]["macro"] for seed in range(20)]
    assert abs(np.mean([one["use"] for one in uses])) < 0.05 and np.std([one["use"] for one in uses]) < 0.2
    assert abs(np.mean([one["premium"] for one in uses])) < 0.05
    # Where Youden's threshold lies is chance, and with it the share of decisions that change.
    assert 0.2 < np.mean([one["control_flip_rate"] for one in uses]) < 0.5


def by_hand(**changes: Row) -> list[Row]:
    """Thirty present pairs with logit 2, thirty absent ones with -2, so the SD is 2; hidden 1, at the control 1.5."""
    table: list[Row] = []
    for place in range(60):
        about: Row = {"image_id": f"{place:02d}", "query": "Mass", "label": int(place < 30)}
        table.append(about | {"logit": 2.0 if place < 30 else -2.0, "pointing_hit": 1.0 if place < 30 else None})
        for condition, logit in (
            ("hide: mean", 1.0),
            ("control: mean", 1.5),
            ("hide: blur", -1.0),
            ("control: blur", 2.0),
        ):
            table += [about | {"condition": condition, "logit": logit, "pointing_hit": 0.0}] if place < 30 else []
    return [row | changes.get(f"{row.get('condition', '')} {row['image_id']}".replace(": ", "_"), {}) for row in table]


def test_numbers_of_a_tiny_run_by_hand() -> None:
    numbers = numbers_of(by_hand(), ("Mass",))
    mean, blur = (numbers["all_pairs"][fill]["per_class"]["Mass"] for fill in ("mean", "blur"))
    assert (mean["drop"], mean["control_drop"], mean["use"]) == (0.5, 0.25, 0.25)
    assert (blur["drop"], blur["control_drop"], blur["use"]) == (1.5, 0, 1.5)
    # The threshold lies halfway, at 0, and the map left the region each time.
    assert (mean["flip_rate"], blur["flip_rate"], blur["premium"], mean["map_moves"]) == (0, 1, 1, 1)
    assert numbers["sign_over_fills"] == {"Mass": True, "macro": True} and numbers["reason"] is None
    assert numbers["correct_only"] == numbers["all_pairs"]


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({"control_mean 07": {"condition": "dropped"}}, {"without_control": 1, "scored": 29, "decided": 29}),
        (
            {"control_mean 07": {"logit": None}},
            {"without_control": 0, "without_decision": 1, "scored": 29, "decided": 29},
        ),
        ({" 50": {"label": -1}}, {"scored": 30, "decided": 30}),
    ],
)
def test_a_number_needs_thirty_pairs_and_what_lacks_is_counted(changed: Any, counts: dict[str, int]) -> None:
    mean = numbers_of(by_hand(**changed), ("Mass",))["all_pairs"]["mean"]["per_class"]["Mass"]
    assert {name: mean[name] for name in counts} == counts and mean["pairs"] == mean["pointed"] == 30
    for name in ("drop", "control_drop", "use", "flip_rate", "control_flip_rate", "premium"):
        assert (mean[name] is None) == (counts["scored"] < LEAST), name
    assert mean["map_moves"] == 1


def test_probabilities_of_0_and_1_decide_and_do_not_drop() -> None:
    table = [row | {"probability": 1 / (1 + math.exp(-row["logit"])), "logit": None} for row in by_hand()]
    table = [
        row | ({"probability": 1.0} if row["image_id"] == "03" and "condition" not in row else {}) for row in table
    ]
    mean = numbers_of(table, ("Mass",))["all_pairs"]["mean"]["per_class"]["Mass"]
    assert (mean["saturated"], mean["scored"], mean["decided"], mean["use"], mean["premium"]) == (1, 29, 30, None, 0)


def test_without_both_labels_in_the_other_folds_nothing_is_decided() -> None:
    one = [row for row in by_hand() if row["label"] or row["image_id"] == "50"]
    pairs = pairs_of(one, ("Mass",))
    fold = sorted({row["image_id"] for row in one}, key=digest).index("50") % 5
    own = [sorted({row["image_id"] for row in one}, key=digest).index(f"{place:02d}") % 5 for place in range(30)]
    assert np.isnan(pairs.decision).tolist() == [part == fold for part in own] and fold in own
    mean = intervention_numbers(pairs)["all_pairs"]["mean"]["per_class"]["Mass"]
    assert mean["without_decision"] == own.count(fold) and mean["scored"] == 30 and mean["flip_rate"] is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_patient_moves_the_thresholds_of_its_own_images(seed: int) -> None:
    draw = np.random.RandomState(seed)
    table = [row | {"logit": float(draw.normal()), "patient_id": row["image_id"][:1]} for row in by_hand()]
    patient = str(draw.randint(3))
    other = [row | ({"label": 1 - row["label"]} if row["patient_id"] == patient else {}) for row in table]
    first, second = pairs_of(table, ("Mass",)), pairs_of(other, ("Mass",))
    own = [name == patient for name in first.patients]
    assert any(own) and np.array_equal(first.decision[own], second.decision[own])


def test_swaps_are_never_with_the_same_patient() -> None:
    table = [row | {"patient_id": "one" if row["label"] else row["image_id"], "boxes": 1} for row in by_hand()]
    table = [row | {"answer_status": "answered", "asked": False} for row in table]
    of_any = numbers_of(table, ("Mass",))["all_pairs"][ANY]["per_class"]["Mass"]
    assert (of_any["swapped_same"], of_any["swapped_opposite"], of_any["swap_opposite_change"]) == (0, 30, 0)


def test_a_model_that_answers_has_flips_and_a_reason() -> None:
    table = [row | {"answer_status": "answered", "asked": False, "logit": None} for row in by_hand()]
    seen = {"": 1, "control: mean": 1, "control: blur": 0}
    table = [row | {"boxes": seen.get(row.get("condition", ""), 0), "points": 0} for row in table]
    numbers = numbers_of(table, ("Mass",))
    mean = numbers["all_pairs"]["mean"]["per_class"]["Mass"]
    assert (mean["use"], mean["scored"], mean["flip_rate"], mean["premium"]) == (None, 0, 1, 1)
    assert numbers["all_pairs"]["blur"]["macro"]["premium"] == 0 and "answers" in numbers["reason"]
    assert numbers["sign_over_fills"] == {"Mass": None, "macro": None}


def test_rows_of_unknown_pairs_are_refused_and_no_condition_is_no_intervention() -> None:
    by_condition = rows_of(by_hand(), ("Mass",))
    assert (
        intervened(by_condition[""], {}) is None
        and intervened(by_condition[""], {"wording: x": by_condition[""]}) is None
    )
    alone = rows_of([row for row in by_hand() if row["image_id"] != "05" or "condition" in row], ("Mass",))
    with pytest.raises(ValueError, match="'Mass' on '05' has a row under a condition"):
        intervened(alone[""], alone)


def test_numbers_need_no_torch() -> None:
    code = "import sys, xbench.scoring.interventions; assert not {'torch', 'lightning', 'pandas'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
