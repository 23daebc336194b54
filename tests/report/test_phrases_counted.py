"""A report counts the phrases of findings as a run does, though they stand in none of its tables by finding."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from xbench.report.charts import _outcomes
from xbench.report.facts import Standing
from xbench.report.schema import Estimate
from xbench.report.statistics.sample import Sample, common_samples
from xbench.report.wandb.log_run import _pairs_table
from xbench.runs.by_finding import Images
from xbench.runs.files import PAIRS
from xbench.runs.finished import FinishedRun
from xbench.scoring.rows import SCHEMA, Rows, in_order


def run_of(table, results):
    rows = Rows.of(table, results.findings)
    return SimpleNamespace(results=results, rows=rows, images=Images.of(rows))


def with_columns(table, **values):
    for name, value in values.items():
        column = pa.array(value if isinstance(value, list) else [value] * len(table), SCHEMA.field(name).type)
        table = table.set_column(SCHEMA.get_field_index(name), name, column)
    return table


def test_regions_of_phrases_count_as_those_of_their_findings(phantom_run):
    results, table = FinishedRun.open(phantom_run).results, pq.read_table(phantom_run / PAIRS)
    drawn = table.filter(table["scored"])
    moved = with_columns(drawn, query=[f"the {name}" for name in drawn["query"].to_pylist()])
    bare = with_columns(table, scored=False, has_region=False, pointing_hit=None, dice=None)
    plain, phrased = run_of(table, results), run_of(in_order([bare, moved]), results)
    assert [len(run.images.pointing_hit[run.images.scored]) for run in (plain, phrased)] == [len(drawn), 0]
    for finding in {*drawn["finding"].to_pylist()}:
        np.testing.assert_array_equal(_outcomes(phrased, finding, 0.5), _outcomes(plain, finding, 0.5))
    standings = [Standing("", "", True, Estimate(None), (SimpleNamespace(run=run),), 1) for run in (plain, phrased)]
    assert [(one.lesions, one.hits) for one in standings] == 2 * [(len(drawn), sum(drawn["pointing_hit"].to_pylist()))]
    logged = [sorted(row[3:] for row in _pairs_table(run).data) for run in (plain, phrased)]
    assert logged[0] == logged[1] and len(logged[0]) == len(drawn)


def test_phrases_of_one_image_pair_only_where_all_have_the_same_regions(phantom_run):
    results, table = FinishedRun.open(phantom_run).results, pq.read_table(phantom_run / PAIRS)
    drawn = table.filter(table["scored"])
    parts = [with_columns(drawn, query=[f"{word} {name}" for name in drawn["query"].to_pylist()]) for word in "ab"]
    others = [digest[::-1] for digest in drawn["region_digest"].to_pylist()]
    first = Sample.of(run_of(in_order([with_columns(parts[0], region_digest=others), parts[1]]), results))
    turned = Sample.of(run_of(in_order([parts[1], with_columns(parts[0], region_digest=others)]), results))
    second = Sample.of(run_of(in_order(parts), results))
    assert len(first.hit) == len(second.hit) == 2 * len(drawn)
    assert all(len(one.hit) == 2 * len(drawn) for one in common_samples(first, turned))
    assert all(len(one.hit) == 0 for one in common_samples(first, second))
