"""`verify` finds every number that was changed; `reproduce` finds what differs, and why."""

from __future__ import annotations

import csv
import io
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_files import change

from xbench.cli import main
from xbench.commands.reproduce import drifts, first_cause
from xbench.commands.verify import disagreements
from xbench.runs.results import read_results, write_per_class
from xbench.runtime.errors import UserError


@pytest.fixture
def run(phantom_run, tmp_path):
    """A copy of a finished run, to be changed."""
    return shutil.copytree(phantom_run, tmp_path / "run")


@pytest.fixture
def toy(command, toy_config, tmp_path):
    """A run with every part of `results.json`: images left out, notes, unknown labels; only a few thresholds."""
    path = tmp_path / "rules.yaml"
    path.write_text(
        "trainer: {callbacks: [{class_path: xbench.callbacks.evaluation.Evaluation, init_args: {thresholds: 7}}, "
        "{class_path: xbench.callbacks.results_writer.ResultsWriter}]}"
    )

    def run(*options):
        odd = ("--data.unreadable", "[5]", "--data.on_error", "skip", "--data.odd", "[3, 4]")
        return command("test", "--config", toy_config, "--config", path, *odd, *options)

    return run


def found(folder) -> bool:
    """Whether `verify` says that something is wrong, in one line."""
    try:
        wrong = disagreements(folder)
    except UserError as error:
        assert "\n" not in str(error)
        return True
    assert all("\n" not in str(one) and one.place for one in wrong)
    return bool(wrong)


def places(tree, place=()):
    """Every value in nested mappings and lists, with what holds it, its key, and its place without names."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        here = (*place, "#" if isinstance(tree, list) or place[-1:] in (("per_class",), ("per_finding",)) else key)
        yield tree, key, " / ".join(here)
        if isinstance(tree[key], (dict, list)):
            yield from places(tree[key], here)


def other_values(value):
    """Values of the same kind, and one of another."""
    match value:
        case int():
            return [value + 1, None]
        case float():
            return [value + 1e-9, value / 2 if value else 0.5, None]
        case str():
            return [value + "x", value[:-1], None]
        case None:
            return [0, 0.5]
        case list():
            return [value[:-1], value[::-1], [*value, *value[-1:]], None]
        case dict():
            return [dict([*value.items()][1:]), value | {"unheard-of": 0.5}, None]


def other_cells(cell):
    """Values of a cell of a table."""
    match cell:
        case bool():
            return [not cell]
        case int():
            return [cell + 1, cell - 1]
        case float():
            return [cell * 0.999 if cell else 0.5, None]
        case str():
            return [cell + "x"]
        case None:
            return [0.5, "x"]
        case list():
            return [[*cell[:k], cell[k] + step, *cell[k + 1 :]] for k in range(len(cell)) for step in (1, -1)]


def changed_cells(table):
    """Copies of a table with one cell changed: name of the column, number of the row, the new value, the copy."""
    draw = np.random.default_rng(0)
    for place, field in enumerate(table.schema):
        cells = table[field.name].to_pylist()
        empty = [row for row, cell in enumerate(cells) if cell is None]
        filled = [row for row, cell in enumerate(cells) if cell is not None]
        for row in (*draw.permutation(empty)[:6].tolist(), *draw.permutation(filled)[:6].tolist()):
            for other in other_cells(cells[row]):
                if pa.types.is_string(field.type) == (isinstance(other, str)) or other is None:
                    changed = pa.array([*cells[:row], other, *cells[row + 1 :]], field.type)
                    yield field.name, row, other, table.set_column(place, field, changed)


def test_a_run_follows_from_its_rows(run, command):
    assert disagreements(run) == []
    said = command("verify", str(run))
    assert said.status == 0 and "follow from per_image.parquet and curves.parquet" in said.output


# What no other file and no other number says.
UNSEEN_IN_RESULTS = {
    *("model", "dataset", "split"),
    *("counts / skipped", "counts / skipped / # / image_id", "counts / skipped / # / reason"),
    *("counts / skipped / #", "counts / notes", "counts / notes / #"),
    *("counts / notes / # / note", "counts / notes / # / first / #"),
}


@pytest.mark.parametrize("fault", ["none", "constant"])
def test_any_changed_value_of_the_results_is_found(toy, fault):
    run = toy("--model.fault", fault)
    path = run.folder / "results.json"
    content = json.loads(path.read_text())
    assert disagreements(run.folder) == []
    assert bool(content["counts"]["constant_maps"]["count"]) == (fault == "constant")
    provenance = content.pop("provenance")
    missed, tried = set(), 0
    parts = places(content) if fault == "none" else places(content["counts"], ("counts",))
    for holder, key, place in list(parts):
        value = holder[key]
        for other in other_values(value):
            holder[key] = other
            path.write_text(json.dumps(content | {"provenance": provenance}))
            tried += other != value
            if other != value and not found(run.folder):
                missed.add(place)
        holder[key] = value
    assert tried > (300 if fault == "none" else 90) and missed <= UNSEEN_IN_RESULTS, (tried, missed)
    assert {"counts / skipped / # / reason", "counts / notes / # / note"} <= missed


@pytest.mark.parametrize("thresholds", [5, None, "7"])
def test_thresholds_on_record_are_those_of_the_tables(toy, thresholds):
    run = toy()
    change(run.folder, provenance__evaluation__thresholds=thresholds)
    (wrong,) = disagreements(run.folder)
    assert wrong.place == "results.json / provenance / evaluation / thresholds" and wrong.derived == 7


def test_halved_thresholds_are_found(toy, command):
    """Even if every number that depends on them and the spreadsheet agree."""
    run = toy()
    grounding = run.results["grounding"]
    halved = [value / 2 for value in grounding["thresholds"]]
    best = {
        f"grounding__per_class__{finding}__{name}": scores[name] and scores[name] / 2
        for finding, scores in grounding["per_class"].items()
        for name in ("dice_best_threshold", "iou_best_threshold")
    }
    change(run.folder, grounding__thresholds=halved, **best)
    write_per_class(run.folder / "per_class.csv", read_results(run.folder / "results.json"))
    said = command("verify", str(run.folder))
    assert said.status == 1
    assert f"results.json / grounding / thresholds / 1: stored {halved[1]}, derived {halved[1] * 2}" in said.output
    assert "run the command again" in said.errors.replace("\n", " ")


# Other values that are as possible; logits and probabilities as long as no order, no tie and no decision changes.
UNSEEN_IN_PER_IMAGE = {
    *("logit", "probability", "region_x", "region_y", "peak_x", "peak_y", "peak_distance", "reader_dice", "reader_iou"),
}


def test_any_changed_cell_of_the_images_is_found(toy):
    run = toy()
    path = run.folder / "per_image.parquet"
    table = pq.read_table(path)
    # As if two readers had drawn every region.
    for name in ("reader_dice", "reader_iou"):
        values = pa.array([0.5 if drawn else None for drawn in table["has_region"].to_pylist()], pa.float64())
        table = table.set_column(table.column_names.index(name), table.schema.field(name), values)
    pq.write_table(table, path)
    assert disagreements(run.folder) == []
    missed = []
    for column, row, other, changed in changed_cells(table):
        pq.write_table(changed, path)
        if not found(run.folder):
            missed.append((column, table[column][row].as_py(), other))
    assert {column for column, *_ in missed} <= UNSEEN_IN_PER_IMAGE, missed
    # Not even of those any becomes or ceases to be null.
    assert not [one for one in missed if None in one], missed


def test_any_changed_cell_of_the_curves_is_found(toy):
    run = toy()
    path = run.folder / "curves.parquet"
    table = pq.read_table(path)
    for column, row, other, changed in changed_cells(table):
        pq.write_table(changed, path)
        if not found(run.folder):
            # A mask that misses the region has Dice and IoU 0 however large it is.
            stored = table[column][row].as_py()
            (k,) = np.flatnonzero(np.array(stored) != other)
            assert column == "mask_pixels" and k > 0 and table["overlap_pixels"][row].as_py()[k] == 0


@pytest.mark.parametrize("name", ["per_image.parquet", "curves.parquet"])
def test_rows_that_are_missing_or_too_many_are_found(toy, name):
    run = toy()
    path = run.folder / name
    table = pq.read_table(path)
    rows = list(range(table.num_rows))
    for order in (rows[:-1], rows[1:], rows[:4] + rows[5:], [*rows, rows[-1]], [rows[0], *rows], [1, 0, *rows[2:]], []):
        pq.write_table(table.take(pa.array(order, pa.int64())), path)
        assert found(run.folder), order
    for column in table.column_names:
        pq.write_table(table.drop_columns(column), path)
        assert found(run.folder), column


def test_any_changed_cell_of_the_spreadsheet_is_found(toy):
    run = toy()
    path = run.folder / "per_class.csv"
    lines = list(csv.reader(io.StringIO(path.read_text())))
    wide = range(len(lines[0]))
    swapped = [1, 0, *wide[2:]]
    others = [
        *([line for k, line in enumerate(lines) if k != row] for row in range(len(lines))),
        *([*lines[: row + 1], *lines[row:]] for row in range(len(lines))),
        *([[cell for k, cell in enumerate(line) if k != column] for line in lines] for column in wide),
        *([[*line, line[column]] for line in lines] for column in wide),
        *([lines[k] for k in order] for order in ([0, 2, 1, *range(3, len(lines))], [1, 0, *range(2, len(lines))])),
        [[line[k] for k in swapped] for line in lines],
        [*lines[:2], lines[2][:-1], *lines[3:]],
        [*lines[:2], [*lines[2], "9"], *lines[3:]],
    ]
    for row, line in enumerate(lines):
        for column, cell in enumerate(line):
            for other in (cell + "1", "0" if cell != "0" else ""):
                others.append([*lines[:row], [*line[:column], other, *line[column + 1 :]], *lines[row + 1 :]])
    assert len(others) > 150
    for other in others:
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(other)
        assert found(run.folder), other


@pytest.mark.parametrize("name", ["results.json", "per_image.parquet", "curves.parquet", "per_class.csv"])
def test_a_file_that_is_missing_or_torn_is_named(run, name):
    path = run / name
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(UserError, match=name):
        disagreements(run)
    path.write_bytes(content[:-100])
    assert found(run)


def test_reproduce_gives_the_same_numbers(run, command, tmp_path):
    said = command("reproduce", str(run), "--out", str(tmp_path / "again"))
    assert said.status == 0, said.errors
    assert "to the last bit" in said.output and "Nothing that is on record differs" in said.output
    (again,) = (tmp_path / "again").glob("*/*")
    assert (again / "per_class.csv").read_bytes() == (run / "per_class.csv").read_bytes()


def test_reproduce_says_what_drifted_and_why(run, command, monkeypatch):
    # In this process, which has done its imports.
    here = SimpleNamespace(run=lambda words: SimpleNamespace(returncode=main(words[3:])))
    monkeypatch.setattr("xbench.commands.reproduce.subprocess", here)
    said = command("reproduce", str(run), "--model.seed", "5", "--data.gamma", "0.9")
    assert said.status == 0, said.errors
    assert (
        "numbers differ" in said.output and "First difference: the model's settings: seed was 0 and is 5" in said.output
    )


def test_drifts_are_sorted_and_complete(run):
    stored = read_results(run / "results.json")
    again = read_results(run / "results.json")
    finding = stored.findings[0]
    again.classification.macro["auroc"] += 1e-9
    again.grounding.per_class[finding].dice_curve[3] += 0.25
    found = drifts(stored, again)
    assert [drift.place for drift in found] == [
        f"grounding / {finding} / dice_curve at 0.03",
        "classification / macro / auroc",
    ]
    assert found[0].size == pytest.approx(0.25) and np.isclose(found[1].size, 1e-9)
    assert first_cause({"seed": 1, "versions": {"a": "1"}}, {"seed": 1, "versions": {"a": "2"}}) == (
        "First difference: the versions of packages: a was 1 and is 2."
    )


@pytest.mark.parametrize(
    ("stored", "again", "words"),
    [
        ({"limit": None}, {}, "limit was nothing and is not on record"),
        ({}, {"limit": None}, "limit was not on record and is nothing"),
        ({"limit": 3, "grid": None}, {"limit": 3}, "grid was nothing and is not on record"),
    ],
)
def test_a_setting_of_none_differs_from_none_on_record(stored, again, words):
    said = first_cause({"data": stored}, {"data": again})
    assert said == f"First difference: the data's settings: {words}."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify"], "required: RUN"),
        (["verify", "nowhere"], "not the folder of a finished run"),
        (["reproduce"], "required: RUN"),
        (["reproduce", "nowhere"], "not the folder of a finished run"),
    ],
)
def test_wrong_words(command, words, message):
    said = command(*words)
    assert said.status in (1, 2) and message in said.errors and "Traceback" not in said.errors
