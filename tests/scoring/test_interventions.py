from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.findings.conditions import LEAST
from xbench.scoring.interventions import ANY, LACKING, OF_ANY, OF_FILL, Intervened, intervened, intervention_numbers
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


def digest(name: str) -> bytes:
    return sha256(name.encode()).digest()


def whose(row: Row) -> str:
    return str(row["image_id"] if row["patient_id"] is None else row["patient_id"])


def plain(table: list[Row]) -> dict[tuple[str, str, str], dict[str, float]]:
    """By fill, image and finding the values of a pair, by loops; what does not exist is left out."""
    base = [row for row in table if not row.get("condition")]
    under = {(row["condition"], row["image_id"], row["query"]): row for row in table if row.get("condition")}
    answers, asked = any(row.get("answer_status") for row in base), any(row.get("asked", True) for row in base)
    logits = any(row.get("logit") is not None for row in base)
    deal = sorted({whose(row) for row in base}, key=digest)

    def score(row: Row | None) -> float:
        if row is None or (answers and (row["probability"] is None if asked else row["answer_status"] == "unparsable")):
            return math.nan
        if answers:
            return float(row["probability"] >= 0.5 if asked else row["boxes"] + row["points"] > 0)
        p = row["probability"]
        return row["logit"] if logits else math.inf * (2 * p - 1) if p in (0, 1) else math.log(p) - math.log1p(-p)

    def threshold(row: Row) -> float:
        fold = deal.index(whose(row)) % 5
        others = [
            (score(other), other["label"])
            for other in base
            if other["query"] == row["query"] and deal.index(whose(other)) % 5 != fold and other["label"] >= 0
        ]
        positive, negative = ([value for value, label in others if label == of] for of in (1, 0))
        best, found, below = 0.0, math.nan, -math.inf
        for candidate in sorted({value for value, _ in others}) if positive and negative else ():
            true, false = (sum(value >= candidate for value in of) for of in (positive, negative))
            youden = true * len(negative) + (len(negative) - false) * len(positive)
            if youden > best:
                best, found = youden, candidate if math.isinf(below) else (below + candidate) / 2
            below = candidate
        return 0.5 if answers else found

    def decision(row: Row | None, of: Row) -> float:
        value, limit = score(row), threshold(of)
        return math.nan if math.isnan(value) or math.isnan(limit) else float(value >= limit)

    def swap(row: Row, label: int) -> float:
        pool = [other for other in base if other["query"] == row["query"] and other["label"] == label]
        names = [digest(other["image_id"]) for other in pool if whose(other) != whose(row)]
        after = [name for name in names if name > digest(row["image_id"])] or names
        return next((decision(one, one) for one in pool if after and digest(one["image_id"]) == min(after)), math.nan)

    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in base:
        key, own = (row["image_id"], row["query"]), decision(row, row)
        if not any((name, *key) in under for name in CHANGES[:-1]):
            continue
        finite = [value for one in base if one["query"] == row["query"] and math.isfinite(value := score(one))]
        mean = math.fsum(finite) / len(finite)
        unit = math.nan if answers else math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / len(finite))
        for fill in ("mean", "black"):
            hide, control = (under.get((f"{kind}: {fill}", *key)) for kind in ("hide", "control"))
            drops = [(score(row) - score(one)) / unit for one in (hide, control)]
            flips = [abs(own - decision(one, row)) for one in (hide, control)]
            values = {}
            if math.isfinite(sum(drops)):
                values |= {"drop": drops[0], "control_drop": drops[1], "use": drops[0] - drops[1]}
            if math.isfinite(sum(flips)):
                values |= {"flip_rate": flips[0], "control_flip_rate": flips[1], "premium": flips[0] - flips[1]}
            if row["pointing_hit"] >= 0.5 and hide is not None:
                values["map_moves"] = float(hide["pointing_hit"] < 0.5)
            found[fill, *key] = values
        values = {"no_image_yes": decision(under.get(("no image", *key)), row)}
        values |= {"sufficiency": decision(under.get(("keep", *key)), row) if own == 1 else math.nan}
        values |= {"swap_same_agreement": 1 - abs(own - swap(row, 1)), "swap_opposite_change": abs(own - swap(row, 0))}
        found[ANY, *key] = {name: value for name, value in values.items() if not math.isnan(value)}
    return found


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
    numbers, pairs = numbers_of(table), pairs_of(table)
    assert numbers == numbers_of([table[place] for place in np.random.RandomState(seed).permutation(len(table))])
    assert (numbers["reason"] is not None) == answers and numbers["pairs"] == len(pairs.row)
    for which, kept in (("all_pairs", pairs.decision > -1), ("correct_only", pairs.decision == 1)):
        for fill, columns in pairs.columns.items():
            groups = OF_ANY if fill == ANY else OF_FILL
            of_pairs, existing = numbers[which][fill], {name: [] for name in columns}
            for place, finding in enumerate(FINDINGS):
                own = (pairs.finding == place) & (kept | (which == "all_pairs"))
                for count, name in [(count, name) for count, names in groups.items() for name in names]:
                    values = [value for value in columns[name][own].tolist() if not math.isnan(value)]
                    expected = math.fsum(values) / len(values) if len(values) >= LEAST else None
                    found = of_pairs["per_class"][finding]
                    assert (found[count], found[name]) == (len(values), expected)
                    existing[name] += [] if expected is None else [expected]
            means = {name: sum(values) / len(values) if values else None for name, values in existing.items()}
            assert of_pairs["macro"] == means


def mass(table: list[Row], fill: str = "mean") -> dict[str, Any]:
    return numbers_of(table, ("Mass",))["all_pairs"][fill]["per_class"]["Mass"]


MODELS: Mapping[str, Any] = {
    # By model, of a draw: the score of a present and of an absent finding, and of the present one, s, when the region,
    # an equal patch elsewhere, and all but the region is hidden.
    "oracle": lambda draw: (s := 1 + draw(), 0, 0, s, s),
    "shortcut": lambda draw: (1, 0, 1, 1, 0),
    "prior": lambda draw: (1, 1, 1, 1, 1),
    "noise": lambda draw: (draw(), draw(), draw(), draw(), draw()),
    "fragile": lambda draw: (1 + draw(), 0, 0, 0, 0),
}


def planted(name: str, seed: int = 0) -> list[Row]:
    """Rows of a model for which it is known what it looks at: 200 patients with two images each."""
    draw, table = np.random.RandomState(seed), list[Row]()
    for image in range(400):
        label = image // 2 % 2
        about: Row = {"image_id": f"{seed} {image}", "patient_id": f"{seed} {image // 2}", "query": "Mass"}
        about |= {"label": label, "pointing_hit": 1.0 if label else None}
        present, absent, *after = map(float, MODELS[name](draw.rand))
        table.append(about | {"logit": present if label else absent})
        for condition, score in zip(("hide: mean", "control: mean", "keep"), after, strict=True):
            table += [about | {"condition": condition, "logit": score}] if label else []
    return table


@pytest.mark.parametrize(
    ("name", "flip", "control", "same", "opposite", "sufficiency"),
    [("oracle", 1, 0, 1, 1, 1), ("shortcut", 0, 0, 1, 1, 0), ("prior", 0, 0, 1, 0, 1), ("fragile", 1, 1, 1, 1, 0)],
)
def test_models_with_known_evidence(
    name: str, flip: int, control: int, same: int, opposite: int, sufficiency: int
) -> None:
    of_fill, of_any = mass(planted(name)), mass(planted(name), ANY)
    assert (of_fill["flip_rate"], of_fill["control_flip_rate"], of_fill["premium"]) == (flip, control, flip - control)
    assert (of_any["swap_same_agreement"], of_any["swap_opposite_change"]) == (same, opposite)
    assert of_any["sufficiency"] == sufficiency and of_fill["map_moves"] == 0
    assert of_fill["pairs"] == of_fill["scored"] == of_fill["decided"] == of_fill["pointed"] == 200
    assert (of_fill["drop"] > 1, of_fill["control_drop"] > 1) == (flip, control)
    assert of_fill["use"] > 1 if name == "oracle" else of_fill["use"] == 0


def test_noise_uses_the_region_no_more_than_an_equal_patch() -> None:
    numbers = [mass(planted("noise", seed)) for seed in range(20)]
    means = {name: np.mean([one[name] for one in numbers]) for name in ("use", "premium", "control_flip_rate")}
    assert abs(means["use"]) < 0.1 and abs(means["premium"]) < 0.05
    # Where Youden's threshold lies is chance, and with it the share of decisions that change.
    assert 0.2 < means["control_flip_rate"] < 0.5


AFTER = {"hide: mean": 1.0, "control: mean": 1.5, "hide: blur": -1.0, "control: blur": 2.0}


def by_hand(changed: tuple[str, str] | None = None, **change: Any) -> list[Row]:
    """Thirty present pairs with logit 2, thirty absent ones with -2, so the SD is 2; a row of an image is changed."""
    table: list[Row] = []
    for place in range(60):
        about: Row = {"image_id": f"{place:02d}", "query": "Mass", "label": int(place < 30), "condition": ""}
        table.append(about | {"logit": 2.0 if place < 30 else -2.0, "pointing_hit": 1.0 if place < 30 else None})
        for name, logit in AFTER.items() if place < 30 else ():
            table.append(about | {"condition": name, "logit": logit, "pointing_hit": 0.0})
    return [row | (change if (row["image_id"], row["condition"]) == changed else {}) for row in table]


def test_numbers_of_a_tiny_run_by_hand() -> None:
    numbers, mean, blur = numbers_of(by_hand(), ("Mass",)), mass(by_hand()), mass(by_hand(), "blur")
    assert (mean["drop"], mean["control_drop"], mean["use"]) == (0.5, 0.25, 0.25)
    assert (blur["drop"], blur["control_drop"], blur["use"]) == (1.5, 0, 1.5)
    # The threshold lies halfway, at 0, and the map left the region each time.
    assert (mean["flip_rate"], blur["flip_rate"], blur["premium"], mean["map_moves"]) == (0, 1, 1, 1)
    assert numbers["sign_over_fills"] is True and numbers["reason"] is None
    assert numbers["correct_only"] == numbers["all_pairs"]


@pytest.mark.parametrize(
    ("changed", "lacking", "scored"),
    [
        (by_hand(("07", "control: mean"), condition="wording: x"), (1, 0, 0), 29),
        (by_hand(("07", "control: mean"), logit=None), (0, 0, 1), 29),
        (by_hand(("50", ""), label=-1), (0, 0, 0), 30),
    ],
)
def test_a_number_needs_thirty_pairs_and_what_lacks_is_counted(changed: Any, lacking: Any, scored: int) -> None:
    mean = mass(changed)
    assert tuple(mean[name] for name in LACKING) == lacking
    assert (mean["pairs"], mean["pointed"], mean["scored"], mean["decided"]) == (30, 30, scored, scored)
    assert {mean[name] is None for name in (*OF_FILL["scored"], *OF_FILL["decided"])} == {scored < LEAST}
    assert mean["map_moves"] == 1


def test_equal_scores_have_a_unit_of_exactly_0() -> None:
    table = [row | ({} if row["condition"] else {"logit": 0.1}) for row in by_hand() if int(row["image_id"]) < 53]
    # Rounding makes another number of their mean.
    assert math.fsum([0.1] * 53) / 53 != 0.1
    assert (mass(table)["scored"], mass(table)["use"], mass(table)["decided"]) == (0, None, 30)


def test_probabilities_of_0_and_1_decide_and_do_not_drop() -> None:
    table = [
        row | {"probability": 1 / (1 + math.exp(-row["logit"])), "logit": None} for row in by_hand(("03", ""), logit=40)
    ]
    mean = mass(table)
    assert (mean["saturated"], mean["scored"], mean["decided"], mean["use"], mean["premium"]) == (1, 29, 30, None, 0)


def test_without_both_labels_in_the_other_folds_nothing_is_decided() -> None:
    table = [row for row in by_hand() if row["label"] or row["image_id"] == "50"]
    deal = sorted({row["image_id"] for row in table}, key=digest)
    own = [deal.index(f"{place:02d}") % 5 == deal.index("50") % 5 for place in range(30)]
    assert any(own) and np.isnan(pairs_of(table, ("Mass",)).decision).tolist() == own
    assert (mass(table)["without_decision"], mass(table)["scored"], mass(table)["premium"]) == (sum(own), 30, None)


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


def test_a_model_that_answers_has_flips_and_a_reason_and_no_swap_with_the_same_patient() -> None:
    table = [row | {"patient_id": "one" if row["label"] else row["image_id"], "points": 0} for row in by_hand()]
    table = [row | {"answer_status": "answered", "asked": False, "logit": None} for row in table]
    table = [row | {"boxes": int(row["condition"] in ("", "control: mean"))} for row in table]
    mean, of_any, numbers = mass(table), mass(table, ANY), numbers_of(table, ("Mass",))
    assert (mean["use"], mean["scored"], mean["flip_rate"], mean["premium"]) == (None, 0, 1, 1)
    assert mass(table, "blur")["premium"] == 0
    assert "answers" in numbers["reason"] and numbers["sign_over_fills"] is None
    assert (of_any["swapped_same"], of_any["swapped_opposite"], of_any["swap_opposite_change"]) == (0, 30, 0)


def test_phrases_have_no_swap() -> None:
    table = [row | {"query": "1", "finding": "Mass", "text": "a mass"} for row in by_hand()]
    of_any = mass(table, ANY)
    assert (of_any["swapped_same"], of_any["swapped_opposite"], mass(table)["use"]) == (0, 0, 0.25)


def test_rows_of_unknown_pairs_are_refused_and_other_conditions_are_left_out() -> None:
    rows = rows_of(by_hand(), ("Mass",))[""]
    assert intervened(rows, {}) is None and intervened(rows, {"wording: x": rows}) is None
    alone = rows_of([row for row in by_hand() if row["image_id"] != "05" or row["condition"]], ("Mass",))
    with pytest.raises(ValueError, match="'Mass' on '05' has a row under a condition"):
        intervened(alone[""], alone)
