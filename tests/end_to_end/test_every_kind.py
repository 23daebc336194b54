from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from run_files import QUIET, check_gone_on, check_rescored, run_in

from xbench.cli import main
from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
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
DATA += ("--data.num_workers", "0", "--data.cache", "false")


def run(root: Path, kind: str, *options: str, status: int = 0) -> Path:
    model = ("--model", f"oracles.{KINDS[kind][0]}", "--model.what", kind)
    assert main(["test", *model, *DATA, *QUIET, "--trainer.default_root_dir", str(root), *options]) == status
    return root if status else run_in(root)


@pytest.fixture(scope="module")
def wholes(tmp_path_factory) -> dict[str, Path]:
    return {kind: run(tmp_path_factory.mktemp("wholes"), kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_an_oracle_goes_all_the_way(kind, wholes, tmp_path):
    whole = wholes[kind]
    check_gone_on(run, whole, tmp_path / "parts", kind)
    check_rescored(whole, tmp_path / "again")

    results = FinishedRun.open(whole).results
    _, pointing, dice, auroc = KINDS[kind]
    found = {**results.grounding.macro, **results.classification.macro}
    for name, least in (("pointing_game", pointing), ("dice_fixed", dice), ("auroc", auroc)):
        assert (found[name] is None) if least is None else found[name] >= least, (name, found[name])
    own = results.own_scale
    assert (own is not None) == kind.startswith("maps")
    if own is not None:
        # Maps of 0 and 1 are the same when they are stretched.
        assert {name: results.grounding.macro[name] for name in own.macro} == own.macro
    table = pq.read_table(whole / "pairs.parquet")
    annotated = pc.and_(pc.equal(table["label"], 1), table["has_region"])
    assert pc.sum(table["scored"]).as_py() == (0 if pointing is None else pc.sum(annotated).as_py())


@pytest.mark.parametrize("kinds", [["nothing"], ["points"], KINDS])
def test_a_report_shows_them(kinds, wholes, tmp_path):
    folders = [wholes[kind] for kind in kinds]
    page = tmp_path / "index.html"
    collection = collect(folders)
    assert all(run.pictured for run in collection.runs)
    analysis = analyze(collection)
    write_page(analysis, all_tables(analysis), page)
    assert page.stat().st_size > 10_000
