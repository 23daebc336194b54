"""`verify` finds every number that was changed; `reproduce` finds what differs, and why."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import Python
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xbench.cli import main
from xbench.errors import UserError
from xbench.reproduce import drifts, first_cause
from xbench.results import read_results
from xbench.verify import disagreements

SIZE = ("--data.images", "14", "--data.size", "48", "--data.grid", "40", "--trainer.logger", "false")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run."""
    root = tmp_path_factory.mktemp("finished")
    assert main(["test", "--config", "random_phantom", *SIZE, "--trainer.default_root_dir", str(root)]) == 0
    (path,) = root.glob("*/*/results.json")
    return path.parent


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def forks(monkeypatch):
    """Lets `reproduce` begin its run by a fork."""
    monkeypatch.setattr(subprocess, "Popen", Python)


def edited(folder, copy, change):
    shutil.copytree(folder, copy)
    path = copy / "results.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return copy


def numbers(value, place=()):
    """Every number of a nested mapping with its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*place, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield from numbers(inner, (*place, key))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place


def test_a_run_follows_from_its_rows(run, command):
    assert disagreements(run) == []
    said = command("verify", str(run))
    assert said.status == 0 and "follow from per_image.parquet and curves.parquet" in said.output


def test_any_changed_number_is_found(run, tmp_path):
    content = json.loads((run / "results.json").read_text())
    places = [("grounding", *place) for place in numbers(content["grounding"]) if place[0] != "thresholds"]
    places += [("classification", *place) for place in numbers(content["classification"])]
    places += [("counts", "per_finding", *place) for place in numbers(content["counts"]["per_finding"])]
    assert len(places) > 800
    # One number of every kind, each in some finding.
    kinds = {tuple(key for key in place if key not in content["findings"]): place for place in places}
    assert len(kinds) > 200
    for number, place in enumerate(list(kinds.values())[:: len(kinds) // 60]):

        def change(content, place=place):
            for key in place[:-1]:
                content = content[key]
            content[place[-1]] += 1 if isinstance(content[place[-1]], int) else 1e-9

        copy = edited(run, tmp_path / f"copy{number}", change)
        assert disagreements(copy), place
        shutil.rmtree(copy)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_changed_row_is_found(run, tmp_path_factory, data):
    copy = tmp_path_factory.mktemp("rows") / "run"
    shutil.copytree(run, copy)
    name, columns = data.draw(
        st.sampled_from(
            [
                ("per_image.parquet", ("label", "pointing_hit", "dice", "region_area")),
                ("curves.parquet", ("region_pixels",)),
            ]
        )
    )
    table = pq.read_table(copy / name)
    column = data.draw(st.sampled_from(columns))
    values = table[column].to_pylist()
    row = data.draw(st.sampled_from([k for k, value in enumerate(values) if value not in (None, 0)]))
    values[row] = {"label": 0}.get(column, values[row] / 2 if isinstance(values[row], float) else values[row] + 1)
    place = table.column_names.index(column)
    changed = pa.array(values, table.schema.field(column).type)
    pq.write_table(table.set_column(place, column, changed), copy / name)
    assert disagreements(copy)


def test_a_changed_spreadsheet_is_found(run, command, tmp_path):
    path = run / "per_class.csv"
    lines = list(csv.reader(io.StringIO(path.read_text())))
    lines[1][2] = "0.123"
    path.write_text("\n".join(",".join(line) for line in lines) + "\n")
    said = command("verify", str(run))
    assert said.status == 1
    assert "per_class.csv" in said.output and "0.123" in said.output
    assert "1 of" in said.errors and "run the command again" in said.errors.replace("\n", " ")


@pytest.mark.parametrize("missing", ["results.json", "per_image.parquet", "curves.parquet", "per_class.csv"])
def test_a_run_that_lacks_a_file_is_named(run, missing):
    (run / missing).unlink()
    with pytest.raises(UserError, match=missing):
        disagreements(run)


def test_a_torn_table_is_named(run):
    path = run / "curves.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be read"):
        disagreements(run)


def test_reproduce_gives_the_same_numbers(run, command, forks, tmp_path):
    said = command("reproduce", str(run), "--out", str(tmp_path / "again"))
    assert said.status == 0, said.errors
    assert "to the last bit" in said.output and "Nothing that is on record differs" in said.output
    (again,) = (tmp_path / "again").glob("*/*")
    assert (again / "per_class.csv").read_bytes() == (run / "per_class.csv").read_bytes()


def test_reproduce_says_what_drifted_and_why(run, command, forks):
    said = command("reproduce", str(run), "--model.seed", "5", "--data.gamma", "0.9")
    assert said.status == 0, said.errors
    assert (
        "numbers differ" in said.output
        and "First difference: the data's settings: gamma was 0.5 and is 0.9" in said.output
    )


def test_drifts_are_sorted_and_complete(run):
    stored = read_results(run / "results.json")
    again = read_results(run / "results.json")
    finding = stored.findings[0]
    again.classification_macro["auroc"] += 1e-9
    again.grounding[finding].dice_curve[3] += 0.25
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
    ("words", "message"),
    [
        (["verify"], "takes the folder"),
        (["verify", "nowhere"], "not the folder of a finished run"),
        (["reproduce"], "required: RUN"),
        (["reproduce", "nowhere"], "not the folder of a finished run"),
    ],
)
def test_wrong_words(command, words, message):
    said = command(*words)
    assert said.status in (1, 2) and message in said.errors and "Traceback" not in said.errors
