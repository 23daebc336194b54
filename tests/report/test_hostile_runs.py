"""A run's folder from a stranger: `report`, `verify` and `reproduce` read it, refuse it, and run nothing of it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import change, disagreements
from synthetic import write_run

from xbench.cli import main
from xbench.commands.report import write_report
from xbench.commands.reproduce import drifts
from xbench.report.runs import collect
from xbench.runs.results import Results, read_results
from xbench.runtime.errors import UserError

HOSTILE = "=cmd|'/C calc'!A0 <script>alert(1)</script> \\input{/etc/passwd} [/red] ../../x"


class Evil:
    """Executes itself when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("sound"), "kad", images=12, with_cases=False)


@pytest.fixture
def run(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "runs" / sound.parent.name / sound.name))


def refused(folder: Path) -> str:
    """What `report` says of a folder; `verify` refuses it as well."""
    with pytest.raises(UserError):
        disagreements(folder)
    with pytest.raises(UserError) as caught:
        collect([folder])
    message = str(caught.value)
    assert "\n" not in message and len(message) < 3000
    return message


@pytest.fixture(scope="module")
def fuzzed(sound, tmp_path_factory):
    """Makes a sound copy, in one folder for all examples, which is quicker than a new one each."""
    folder = tmp_path_factory.mktemp("fuzzed") / "kad_chestxray14" / "a"
    return lambda: Path(shutil.copytree(sound, folder, dirs_exist_ok=True))


def read_or_refused(folder: Path) -> Results | None:
    """Results of the run; None after an error for users of one line."""
    try:
        disagreements(folder)
        return collect([folder]).runs[0].results
    except UserError as error:
        assert "\n" not in str(error)
        return None


def places(tree) -> list:
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [(tree, key) for key in keys] + [place for key in keys for place in places(tree[key])]


JUNK = st.sampled_from(
    [
        *(None, True, -1, 0, 1.5, 10**400, 1e308, float("nan"), float("inf")),
        *("", "x", "[/red]", "a\nb", HOSTILE),
        *([], {}, [[]], [None], ["Nodule"], {"a": 1}),
    ]
)


@settings(max_examples=120)
@given(st.integers(0, 10**6), JUNK, st.booleans(), st.booleans())
def test_values_of_other_kinds(sound, fuzzed, place, junk, remove, shallow):
    folder = fuzzed()
    content = json.loads((sound / "results.json").read_text())
    found = places(content)
    # Values in curves outnumber the others by far.
    container, key = found[place % (60 if shallow else len(found))]
    if remove and isinstance(container, dict):
        del container[key]
    else:
        container[key] = junk
    (folder / "results.json").write_text(json.dumps(content))
    if (results := read_or_refused(folder)) is not None:
        assert drifts(results, read_results(sound / "results.json")) is not None


@settings(max_examples=40)
@given(st.integers(0, 99), st.integers(0, 9))
def test_columns_of_other_kinds(sound, fuzzed, which, how):
    folder = fuzzed()
    table = pq.read_table(sound / "pairs.parquet")
    place = which % table.num_columns
    column, rows = table.column_names[place], table.num_rows
    others = [
        *(pa.nulls(rows), pa.array(["x"] * rows), pa.array([-1] * rows), pa.array([float("nan")] * rows)),
        *(pa.array([[1]] * rows), pa.array([[1] * 101] * rows, pa.list_(pa.int32(), 101)), pa.array([2**62] * rows)),
        *(pa.array([True] * rows), pa.array([b"\xff"] * rows)),
    ]
    changed = table.drop_columns(column) if how == 9 else table.set_column(place, column, others[how])
    pq.write_table(changed, folder / "pairs.parquet")
    read_or_refused(folder)


@settings(max_examples=40)
@given(st.data())
def test_mutated_bytes(fuzzed, data):
    folder = fuzzed()
    path = folder / data.draw(st.sampled_from(["results.json", "pairs.parquet"]))
    content = bytearray(path.read_bytes())
    changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=5)
    for place, value in data.draw(changes):
        content[int(place * len(content))] = value
    path.write_bytes(content[: data.draw(st.none() | st.integers(0, len(content)))])
    read_or_refused(folder)


def test_what_is_too_much(run, monkeypatch):
    results = run / "results.json"
    content = results.read_text()
    results.write_text("[" * 100_000)
    assert "recursion limit exceeded" in refused(run)
    os.truncate(results, 3 << 30)
    assert "bytes" in refused(run)
    results.unlink()
    results.write_text(content)
    # A table of no bytes to speak of that claims many rows.
    table = pq.read_table(run / "pairs.parquet")
    monkeypatch.setattr("xbench.runs.tables._MAX_ROWS", 10**5)
    many = pa.table([pa.nulls(10**5 + 1, field.type) for field in table.schema], table.schema)
    pq.write_table(many, run / "pairs.parquet", row_group_size=10**6)
    assert (run / "pairs.parquet").stat().st_size < 10**6
    assert "100001 rows" in refused(run)


def test_a_pickle_in_a_table_is_not_executed(run, tmp_path):
    """Older versions of Arrow could keep the type of a column as a pickle."""
    path, sign = run / "pairs.parquet", tmp_path / "sign"
    table = pq.read_table(path)
    about = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Evil(sign))}
    pq.write_table(table.cast(pa.schema([field.with_metadata(about) for field in table.schema])), path)
    change(run, tables={"pairs.parquet": sha256(path.read_bytes()).hexdigest()})
    assert disagreements(run) == [] and len(collect([run]).runs) == 1
    path.write_bytes(pickle.dumps(Evil(sign)))
    refused(run)
    (run / "results.json").write_bytes(pickle.dumps(Evil(sign)))
    refused(run)
    assert not sign.exists()


@pytest.mark.parametrize("name", [HOSTILE, "-1+1", "@SUM(A1)", "a\nb", "", "x" * 300])
def test_names_that_no_run_gives(run, name):
    content = json.loads((run / "results.json").read_text())
    for key in ("model", "dataset", "split"):
        (run / "results.json").write_text(json.dumps(content | {key: name}))
        assert "is not the name of" in refused(run)


def test_a_table_that_no_run_has(run):
    content = json.loads((run / "results.json").read_text())
    change(run, tables=content["tables"] | {"/dev/null": "0" * 64})
    refused(run)


def test_a_report_of_odd_names_stays_in_its_folder(tmp_path, capsys):
    """Names that are allowed, however odd, execute nothing: not on the page, in LaTeX, or in the names of files."""
    odd, runs = "x</script><img src=x onerror=alert(1)>", tmp_path / "runs"
    tex = r"\input{/etc/passwd} $x$ %& [/red] ../../y"
    for model, dataset in (("$x$..%&", "up..and..away"), ("../../etc/x", "../../up/and\\away")):
        folder = write_run(runs, "kad", f"d{len(model)}", images=24, with_cases=False, findings=("Nodule", tex))
        content = json.loads((folder / "results.json").read_text())
        content |= {"model": model, "dataset": dataset, "split": odd}
        content["provenance"]["command"] = [odd, "\x1b[2J", 5, None]
        content["provenance"]["model"]["book"] = {odd: [odd]}
        (folder / "results.json").write_text(json.dumps(content))
    before, out = {*tmp_path.rglob("*")}, tmp_path / "report"
    write_report([runs], out)
    assert all(path.is_relative_to(out) for path in {*tmp_path.rglob("*")} - before)
    # A path is no name of a model or a dataset: that run is left out.
    assert "'../../etc/x' is not the name" in capsys.readouterr().out
    page = (out / "index.html").read_text()
    assert "<img src=x" not in page and "x</script>" not in page
    for path in (out / "tables").glob("*.tex"):
        assert r"\input" not in path.read_text().replace(r"\textbackslash{}input", "")
    for path in (out / "tables").glob("*.csv"):
        for line in path.read_text().splitlines():
            assert not any(cell.strip('"').startswith(("=", "@")) for cell in line.split(","))


def test_markup_in_names_is_printed_as_it_is(tmp_path, capsys):
    folder = write_run(tmp_path, "kad", images=24, with_cases=False, findings=("Nodule", "[/red] [link=x]"))
    content = json.loads((folder / "results.json").read_text())
    content["counts"]["per_finding"]["[/red] [link=x]"]["negatives"] += 1
    (folder / "results.json").write_text(json.dumps(content))
    assert main(["verify", str(folder)]) == 1
    assert "[/red]" in capsys.readouterr().out


def test_reproduce_runs_no_class_that_is_no_model(run, tmp_path, capsys, monkeypatch):
    """A stored configuration can name classes, but none that is not a model, a dataset or a part of the trainer."""
    sign = tmp_path / "sign"
    (run / "config.yaml").write_text(
        f"model: {{class_path: os.system, init_args: {{command: touch {sign}}}}}\n"
        "data: {class_path: xbench.data.PhantomCXR}\n"
    )
    # In this process, which has done its imports.
    here = lambda words: SimpleNamespace(returncode=main(words[3:]))  # noqa: E731
    monkeypatch.setattr("xbench.commands.reproduce.subprocess.run", here)
    assert main(["reproduce", str(run)]) != 0
    assert "os.system" in capsys.readouterr().err
    assert not sign.exists()
