from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from run_files import disagreements, files_of

from xbench.cli import main
from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.statistics.analyse import analyse
from xbench.report.tables.contents import all_tables
from xbench.runs.finished import FinishedRun

# By kind the class, and what its pointing game, Dice and AUROC must be; None where there is none.
KINDS = {
    "maps": ("Shown", 1.0, 1.0, 1.0),
    "maps without scores": ("Shown", 1.0, 1.0, None),
    "scores": ("Shown", None, None, 1.0),
    "nothing": ("Shown", None, None, None),
    "boxes": ("Told", 0.6, 0.5, 1.0),
    "points": ("Told", 0.3, None, 1.0),
    "words": ("Told", 0.0, 0.0, 1.0),
}
DATA = ("--data", "xbench.data.PhantomCXR", "--data.images", "12", "--data.size", "64", "--data.batch_size", "4")
QUIET = (
    *("--data.num_workers", "0", "--data.cache", "false"),
    *("--trainer.logger", "false", "--trainer.accelerator", "cpu"),
)


def words(kind: str, root: Path, *options: str) -> list[str]:
    model = ("--model", f"oracles.{KINDS[kind][0]}", "--model.what", kind)
    return ["test", *model, *DATA, *QUIET, "--trainer.default_root_dir", str(root), *options]


@pytest.fixture(scope="module")
def wholes(tmp_path_factory) -> dict[str, Path]:
    found = {}
    for kind in KINDS:
        root = tmp_path_factory.mktemp("wholes", numbered=True)
        assert main(words(kind, root)) == 0
        (found[kind],) = (path.parent for path in root.glob("*/*/results.json"))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_oracle_goes_all_the_way(kind, wholes, tmp_path, monkeypatch):
    whole = wholes[kind]
    monkeypatch.setenv("ORACLE_TIRES", "1")
    assert main(words(kind, tmp_path / "parts")) == 1
    monkeypatch.delenv("ORACLE_TIRES")
    assert main(words(kind, tmp_path / "parts", "--resume", "true")) == 0
    (parts,) = (path.parent for path in tmp_path.glob("parts/*/*/results.json"))
    assert files_of(parts) == files_of(whole)

    assert main(["rescore", str(whole), "--out", str(tmp_path / "again"), "--workers", "0"]) == 0
    assert files_of(tmp_path / "again") == files_of(whole)
    assert disagreements(whole, deep=True) == []

    run = FinishedRun.open(whole)
    _, pointing, dice, auroc = KINDS[kind]
    found = {**run.results.grounding.macro, **run.results.classification.macro}
    for name, least in (("pointing_game", pointing), ("dice_fixed", dice), ("auroc", auroc)):
        assert (found[name] is None) if least is None else found[name] >= least, (name, found[name])
    own = run.results.own_scale
    assert (own is not None) == kind.startswith("maps")
    if own is not None:
        # Maps of 0 and 1 are the same when they are stretched.
        assert {name: run.results.grounding.macro[name] for name in own.macro} == own.macro
    table = pq.read_table(whole / "pairs.parquet")
    annotated = pc.and_(pc.equal(table["label"], 1), table["has_region"])
    assert pc.sum(table["scored"]).as_py() == (0 if pointing is None else pc.sum(annotated).as_py())


@pytest.mark.parametrize("kinds", [["nothing"], ["points"], KINDS])
def test_a_report_shows_them(kinds, wholes, tmp_path):
    folders = [wholes[kind] for kind in kinds]
    page = tmp_path / "index.html"
    collection = collect(folders)
    assert all(run.pictured for run in collection.runs)
    analysis = analyse(collection)
    write_page(analysis, all_tables(analysis), page)
    assert page.stat().st_size > 10_000
