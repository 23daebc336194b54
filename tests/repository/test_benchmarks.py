from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest
import torch
from places import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import interval_coverage
import plain_loop
import run as benchmark
import whole_path
import workload
from figures import summary

from xbench.report.schema import NUMBERS
from xbench.report.statistics import paired

PAGE = benchmark.PAGE


def test_page_of_the_repository_has_every_figure():
    text = PAGE.read_text()
    section = text.partition("## Figures and targets\n")[2].partition("\n#")[0]
    found = re.findall(r"^\| ([^*].*) \| ([^|]*) \| ([^|]*) \|$", section, re.M)
    rows = {name: cells for name, *cells in found}
    declared = [figure for part in benchmark.PARTS for figure in benchmark.declared(part)]
    assert sorted(rows.keys() - {"figure", "---"}) == sorted(figure.name for figure in declared)
    for figure in declared:
        # Whoever sets a target may miss it on another machine, and then owes a reason.
        assert figure.target is None or figure.note, figure.name
        value, target = rows[figure.name]
        # A part may have failed, and the page then says so.
        same = replace(figure, value=float(value.split()[0].replace(",", "")) if value else None)
        assert f"| {figure.name} | {value} | {target} |\n" in summary({"": [same]})
        assert (f"- **{figure.name}**: " in text) == ("missed" in target)


def test_the_plain_loop_scores_as_a_run_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = workload.write_radiographs(tmp_path / "radiographs", 10, 3, 96)
    findings = tuple(f"Finding {number + 1}" for number in range(3))
    network = workload.build(workload.tiny(), findings)
    options = {"root": str(folder), "number": 3, "num_workers": 0, "cache": False}
    timing = workload.evaluate(workload.tiny(), {"class_path": "workload.Drawn", "init_args": options})
    films = folder, findings, workload.MEAN, workload.STD
    numbers, seconds = plain_loop.evaluate(network, network.queries, *films, workers=0)
    assert len(numbers) == 6 and seconds["thresholds"] > 0
    whole_path.agree(numbers, timing.results)
    for name in numbers:
        with pytest.raises(ValueError, match=name):
            whole_path.agree(numbers | {name: numbers[name] + 0.001}, timing.results)
    assert {*workload.STAGES} <= {*timing.stages}
    assert 0 < timing.start_up < timing.moments["end"]
    assert torch.get_num_threads() == 1


def test_the_page_shows_what_was_measured_and_marks_what_does_not_keep_its_promise():
    """The lowest and highest figure of each group of datasets, and the tests as they were printed."""
    ranges: dict[str, list[str]] = {}
    text = (PAGE.parent / "docs/intervals.md").read_text()
    shown, words = set(re.findall(r"^\| `.*\|$", text, re.M)), " ".join(text.split())
    _, *tables = re.split(r"\n\n(?=[a-z])", (PAGE.parent / "benchmarks/interval_coverage.txt").read_text())
    names = [table.partition("\n")[0] for table in tables]
    assert names == [*interval_coverage.WORLDS, interval_coverage.TESTS]
    for name, table in zip(names, tables, strict=True):
        of_tests = name == interval_coverage.TESTS
        low, high = (3, 7) if of_tests else (93, 97)
        for row in re.findall(r"^\| `.*\|$", table, re.M):
            number, *cells = (cell.strip() for cell in row.strip("|").split("|"))
            scope = "" if of_tests else cells.pop(0)
            figures = [float(cell.strip("*")) for cell in cells]
            assert cells == [interval_coverage.marked(figure, low, high) for figure in figures], row
            ends = [interval_coverage.marked(figure, low, high) for figure in (min(figures), max(figures))]
            if of_tests:
                assert row in shown
            elif name == "boxes":
                assert f"{scope} {'-'.join(ends)}" in words
            else:
                ranges.setdefault(f"| {number} | {scope} |", []).append("-".join(ends))
    rows = {f"{number} {' | '.join(cells)} |" for number, cells in ranges.items()}
    assert len(rows) == 29 and rows < shown


def test_coverage_of_intervals_is_measured_for_every_number(monkeypatch):
    """A few datasets through the script behind `docs/intervals.md`, which has a row for each number."""
    monkeypatch.setattr(paired, "_EXCHANGES", 399)
    rows = list(interval_coverage.coverage([interval_coverage.World(60)], 4, 0))
    page = (PAGE.parent / "docs" / "intervals.md").read_text()
    for row in rows[2:]:
        number, scope, share = (cell.strip() for cell in row.strip("|").split("|"))
        assert f"| {number} | {scope} | " in page and 0 <= float(share.strip("*")) <= 100
    covered = {row.split("`")[1] for row in rows[2:]}
    assert covered == {*NUMBERS} - {"dice_optimism"}
    sizes = list(interval_coverage.sizes([interval_coverage.World(30)], 2, 0))
    assert [row.split("`")[1] for row in sizes[2:]] == list(paired.TESTED)
