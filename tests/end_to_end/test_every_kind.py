"""The oracle of every kind of prediction goes through run, resume, rescore, verify and report."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from run_files import files_of

from xbench.cli import main
from xbench.commands.verify import disagreements
from xbench.report.runs import collect
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
DATA = ("--data", "xbench.data.PhantomCXR", "--data.images", "20", "--data.size", "64", "--data.batch_size", "4")
QUIET = (
    *("--data.num_workers", "0", "--data.cache", "false"),
    *("--trainer.logger", "false", "--trainer.accelerator", "cpu"),
)


def words(kind: str, root: Path, *options: str) -> list[str]:
    model = ("--model", f"oracles.{KINDS[kind][0]}", "--model.what", kind)
    return ["test", *model, *DATA, *QUIET, "--trainer.default_root_dir", str(root), *options]


@pytest.mark.parametrize("kind", KINDS)
def test_an_oracle_goes_all_the_way(kind, tmp_path, monkeypatch):
    assert main(words(kind, tmp_path / "whole")) == 0
    (whole,) = (path.parent for path in tmp_path.glob("whole/*/*/results.json"))

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
    table = pq.read_table(whole / "pairs.parquet")
    annotated = pc.and_(pc.equal(table["label"], 1), table["has_region"])
    assert pc.sum(table["scored"]).as_py() == (0 if pointing is None else pc.sum(annotated).as_py())

    assert main(["report", str(tmp_path / "whole"), "--out", str(tmp_path / "report"), "--cases", "1"]) == 0
    assert (tmp_path / "report" / "index.html").stat().st_size > 10_000
    assert [run.pictured for run in collect([tmp_path / "whole"]).runs] == [True]
