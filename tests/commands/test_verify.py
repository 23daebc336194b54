from __future__ import annotations

import json
import shutil
from collections import Counter
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_files import change, disagreements, rules, run_in

from xbench.cli import main
from xbench.commands.reproduce import drift, drifts, first_cause
from xbench.runs.files import SCHEMAS
from xbench.runs.results import read_results
from xbench.runtime.errors import UserError


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    root = tmp_path_factory.mktemp("answered")
    config = (
        '{"model": {"class_path": "talkers.Talker", "init_args": {"recognise": true, "ask_negatives": true}},'
        '"data": {"class_path": "xbench.data.PhantomCXR", "init_args": {"images": 12, "size": 64, "num_workers": 0}}}'
    )
    assert main(["test", "--config", config, "--trainer.logger", "false", "--trainer.default_root_dir", str(root)]) == 0
    return run_in(root)


@pytest.fixture
def run(phantom_run, tmp_path):
    return shutil.copytree(phantom_run, tmp_path / "run")


@pytest.fixture
def answers(answered, tmp_path):
    return shutil.copytree(answered, tmp_path / "answers")


@pytest.fixture
def toy(command, toy_config, tmp_path):
    path = rules(tmp_path / "rules.yaml", 7)

    def run(*options):
        odd = ("--data.unreadable", "[5]", "--data.on_error", "skip", "--data.odd", "[3, 4]")
        return command("test", "--config", toy_config, "--config", path, *odd, *options).folder

    return run


def found(folder, deep=False) -> bool:
    try:
        wrong = disagreements(folder, deep)
    except UserError as error:
        assert "\n" not in str(error)
        return True
    assert all("\n" not in str(one) and one.place for one in wrong)
    return bool(wrong)


def other_cell(cell, kind):
    match cell:
        case bool():
            return not cell
        case int():
            return cell + 1
        case float():
            return cell * 0.999 if cell else 0.5
        case str():
            return cell + "x"
        case bytes():
            return bytes([cell[0] ^ 1, *cell[1:]])
        case dict():
            return cell | {"reader": cell["reader"] + "x"}
        case [*first, last]:
            return [*first, other_cell(last, kind.value_type)]
    return [other_cell(None, kind.value_type)] if pa.types.is_list(kind) else pa.scalar(1).cast(kind).as_py()


def with_other_cell(table, column, row):
    place, cells = table.column_names.index(column), table[column].to_pylist()
    cells[row] = other_cell(cells[row], table.schema.field(place).type)
    return table.set_column(place, table.schema.field(place), pa.array(cells, table.schema.field(place).type))


def replace_table(folder, name, table):
    pq.write_table(table, folder / name, write_page_checksum=True)
    content = json.loads((folder / "results.json").read_text())
    content["tables"][name] = sha256((folder / name).read_bytes()).hexdigest()
    (folder / "results.json").write_text(json.dumps(content))


@pytest.mark.parametrize("folder", ["run", "answers"])
def test_a_run_follows_from_its_tables(folder, request, command):
    folder = request.getfixturevalue(folder)
    for deep in ((), ("--deep",)):
        said = command("verify", str(folder), *deep)
        assert said.status == 0 and "follow from its tables" in said.output, said.errors
    (folder / "pictures.parquet").unlink()
    said = command("verify", str(folder), str(folder.parent))
    assert said.status == 0 and said.output.count("pictures.parquet was deleted") == 2


def test_pictures_are_not_needed_to_measure_again(run):
    (run / "pictures.parquet").unlink()
    assert disagreements(run, deep=True) == []


# Those of every run; tests/end_to_end/test_perturbations.py has the other.
USUAL = [name for name in SCHEMAS if name != "perturbations.parquet"]
TABLES = [("run", name) for name in USUAL if name != "predictions.parquet"] + [("answers", "predictions.parquet")]


@pytest.mark.parametrize(
    ("folder", "name", "column"), [(*one, column) for one in TABLES for column in SCHEMAS[one[1]].names], ids=str
)
def test_any_changed_column_is_found(folder, name, column, request):
    folder = request.getfixturevalue(folder)
    table = pq.read_table(folder / name)
    filled = [row for row, cell in enumerate(table[column].to_pylist()) if cell is not None]
    pq.write_table(with_other_cell(table, column, (filled or [0])[0]), folder / name)
    assert found(folder)


# What the model and the annotations said, and no other file says; as long as no order, no tie and no decision changes.
UNSEEN = {
    "pairs.parquet": {"patient_id", "logit", "probability", "reader_dice", "reader_iou"},
    "predictions.parquet": {
        *("prompt_sha256", "tokens_in", "tokens_out", "from_cache", "reasoning", "answer_confidence"),
        *("frame", "raw"),  # of a query whether a finding is there
    },
}


@pytest.mark.parametrize(
    ("folder", "name"), [("run", "pairs.parquet"), ("answers", "pairs.parquet"), ("answers", "predictions.parquet")]
)
def test_a_forged_column_is_not_what_the_predictions_give(folder, name, request):
    folder = request.getfixturevalue(folder)
    table = pq.read_table(folder / name)
    draw, missed = np.random.default_rng(0), set()
    for column in table.column_names:
        empty = table[column].is_null().to_numpy()
        for rows in (np.flatnonzero(empty), np.flatnonzero(~empty)):
            for row in draw.permutation(rows)[:1].tolist():
                replace_table(folder, name, with_other_cell(table, column, row))
                if not found(folder, deep=True):
                    missed.add(column)
    assert missed <= UNSEEN[name]
    rows = list(range(table.num_rows))
    for order in (rows[:-1], rows[1:], [*rows, rows[-1]], [rows[-1], *rows[1:-1], rows[0]], []):
        replace_table(folder, name, table.take(pa.array(order, pa.int64())))
        assert found(folder, deep=True), order


def test_scores_of_the_rows_are_those_of_the_predictions(run):
    table = pq.read_table(run / "pairs.parquet")
    for column in ("logit", "probability"):
        place = table.schema.get_field_index(column)
        forged = table.set_column(place, table.schema.field(column), pa.array(np.full(len(table), 0.25)))
        replace_table(run, "pairs.parquet", forged)
        assert any(one.place.startswith(f"pairs.parquet / {column}") for one in disagreements(run, deep=True))


def places(tree, place=()):
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        here = (*place, "#" if isinstance(tree, list) or place[-1:] in (("per_class",), ("per_finding",)) else key)
        yield tree, key, " / ".join(here)
        if isinstance(tree[key], (dict, list)):
            yield from places(tree[key], here)


def other_values(value):
    match value:
        case int():
            return [value + 1, None]
        case float():
            return [value + 1e-9, None]
        case str():
            return [value + "x", None]
        case None:
            return [0, 0.5]
        case list():
            return [value[:-1], value[::-1], None]
        case dict():
            return [dict([*value.items()][1:]), value | {"unheard-of": 0.5}, None]


UNSEEN_IN_RESULTS = {
    *("model", "dataset", "split"),
    *("counts / skipped", "counts / skipped / # / image_id", "counts / skipped / # / reason"),
    *("counts / skipped / #", "counts / notes", "counts / notes / #"),
    *("counts / notes / # / note", "counts / notes / # / count", "counts / notes / # / first"),
    "counts / notes / # / first / #",
}


@pytest.mark.parametrize("kind", ["maps", "constant maps", "answers"])
def test_any_changed_value_of_the_results_is_found(toy, answers, kind):
    options = ("--model.fault", "constant") if kind == "constant maps" else ()
    folder = answers if kind == "answers" else toy(*options)
    path = folder / "results.json"
    content = json.loads(path.read_text())
    assert disagreements(folder) == []
    provenance = content.pop("provenance")
    missed, tried = set(), 0
    part = {"maps": content, "constant maps": content["counts"], "answers": content.get("answers")}[kind]
    seen = Counter()
    for holder, key, place in list(places(part, ("counts",) if kind == "constant maps" else ())):
        value = holder[key]
        seen[place] += 1
        if seen[place] > (1 if kind == "answers" else 3):
            continue
        for other in other_values(value):
            holder[key] = other
            path.write_text(json.dumps(content | {"provenance": provenance}))
            tried += other != value
            if other != value and not found(folder):
                missed.add(place)
        holder[key] = value
    assert tried > 60 and missed <= UNSEEN_IN_RESULTS, (tried, missed)


@pytest.mark.parametrize("thresholds", [5, None, "7"])
def test_thresholds_on_record_are_those_of_the_tables(toy, thresholds):
    folder = toy()
    change(folder, provenance__evaluation__thresholds=thresholds)
    (wrong,) = disagreements(folder)
    assert wrong.place == "results.json / provenance / evaluation / thresholds" and wrong.derived == 7


@pytest.mark.parametrize("name", ["results.json", *USUAL])
def test_a_file_that_is_missing_or_torn_is_named(answers, name):
    path = answers / name
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    assert found(answers)
    path.unlink()
    if name != "pictures.parquet":
        with pytest.raises(UserError, match=name):
            disagreements(answers)


@pytest.mark.parametrize("name", USUAL)
def test_a_table_whose_digest_was_taken_out_is_found(answers, name):
    content = json.loads((answers / "results.json").read_text())
    del content["tables"][name]
    (answers / "results.json").write_text(json.dumps(content))
    assert found(answers)


def test_reproduce_gives_the_same_numbers(run, command, tmp_path):
    said = command("reproduce", str(run), "--out", str(tmp_path / "again"), status=0)
    assert "to the last bit" in said.output and "The provenance of the two runs does not differ" in said.output
    (again,) = (tmp_path / "again").glob("*/*")
    assert (again / "pairs.parquet").read_bytes() == (run / "pairs.parquet").read_bytes()


def test_reproduce_says_what_drifted_and_why(run, command, monkeypatch):
    # In this process, which has done its imports.
    here = SimpleNamespace(run=lambda words: SimpleNamespace(returncode=main(words[3:])))
    monkeypatch.setattr("xbench.commands.reproduce.subprocess", here)
    said = command("reproduce", str(run), "--model.seed", "5", "--data.gamma", "0.9", status=0)
    assert "numbers differ" in said.output and "First difference: model.seed is 5 and was 0" in said.output


def test_drifts_are_sorted_and_complete(run):
    stored = read_results(run / "results.json")
    again = read_results(run / "results.json")
    finding = stored.findings[0]
    again.classification.macro["auroc"] += 1e-9
    again.grounding.per_class[finding].dice_curve[3] += 0.25
    found = drifts(stored, again)
    assert [number.place for number in found] == [
        f"grounding / per_class / {finding} / dice_curve / 3",
        "classification / macro / auroc",
    ]
    assert drift(found[0]) == pytest.approx(0.25) and np.isclose(drift(found[1]), 1e-9)
    assert first_cause({"seed": 1, "versions": {"a": "1"}}, {"seed": 1, "versions": {"a": "2"}}) == (
        'First difference: versions.a is "2" and was "1".'
    )
