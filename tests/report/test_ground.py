from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_files import change
from synthetic import write_run

from xbench.geometry.regions import region_digest
from xbench.report.cases import choose_cases
from xbench.report.charts import _outcomes
from xbench.report.document import document
from xbench.report.facts import Standing, facts_of
from xbench.report.runs import collect
from xbench.report.schema import Estimate
from xbench.report.sentences import answer
from xbench.report.statistics.analyze import analyze
from xbench.report.statistics.sample import Sample, common_samples, differences
from xbench.report.tables.contents import all_tables
from xbench.report.wandb.log_run import _pairs_table
from xbench.runs.by_finding import Images
from xbench.runs.files import PAIRS
from xbench.runs.finished import FinishedRun
from xbench.scoring.numbers import scored_on
from xbench.scoring.rows import SCHEMA, Rows, in_order

# An option of one's own, kept under another name, that moves every region and two labels.
SHIFTED = """
from dataclasses import replace

import numpy as np

from toys import Squares


class Shifted(Squares):
    def __init__(self, shift: int = 0, **kwargs) -> None:
        super().__init__(**kwargs)
        self._by = shift

    def read_records(self, annotated):
        records = super().read_records(annotated)
        if self._by:
            records[:4] = [replace(one, labels={**one.labels, "Ghost": 1}) for one in records[:4]]
        return records

    def load(self, record):
        radiograph = super().load(record)
        regions = {name: np.roll(region, self._by, axis=1) for name, region in radiograph.regions.items()}
        return replace(radiograph, regions=regions)
"""


def scored(folder: Path) -> dict[tuple[str, str], tuple[int, str | None]]:
    rows = pq.read_table(folder / "pairs.parquet").to_pylist()
    return {(row["image_id"], row["finding"]): (row["label"], row["region_digest"]) for row in rows}


@pytest.mark.parametrize(
    ("data", "init", "option", "values"),
    [
        ("xbench.data.VinDrCXR", {"root": "vindr", "split": "train"}, "min_readers", ("1", "2")),
        ("xbench.data.COVID19Rural", {"root": "covid"}, "regions", ("polygons", "masks")),
        ("xbench.data.PhantomCXR", {"images": 12}, "size", ("64", "96")),
        ("shifted.Shifted", {"images": 12}, "shift", ("0", "9")),
        ("shifted.Shifted", {"images": 12}, "gamma", ("0.5", "0.9")),
    ],
)
def test_an_option_that_moves_the_truth_tells_runs_apart(
    command, downloads, tmp_path, monkeypatch, data, init, option, values
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shifted.py").write_text(SHIFTED)
    if name := init.get("root"):
        root = downloads(name, **{"lungs_in_masks": True} if name == "covid" else {}).root
        init = init | {"root": str(root)}
    config = {
        "model": {"class_path": "toys.Brightness"},
        "data": {"class_path": data, "init_args": init | {"num_workers": 0}},
        "trainer": {"logger": False, "accelerator": "cpu", "enable_progress_bar": False},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    folders = []
    for value in values:
        run = command("test", "--config", tmp_path / "run.yaml", f"--data.{option}", value)
        assert run.status == 0, run.errors
        folders.append(run.folder)
    found = collect([tmp_path / "runs"])
    assert found.set_aside == ()
    value_of = dict(zip(folders, map(str, values), strict=True))
    assert all(run.told_by == {option: value_of[run.folder]} for run in found.runs)
    own, other = sorted(found.runs, key=lambda run: len(run.label))
    assert (
        own.label == "brightness" and other.label == f"brightness ({option.replace('_', ' ')} {value_of[other.folder]})"
    )
    one, other = (scored(folder) for folder in folders)
    truths = [(one[pair], other[pair]) for pair in one]
    alike = [a == b and a[0] == 1 and a[1] is not None for a, b in truths]
    assert alike.count(True) < sum(a[0] == 1 for a, _ in truths), "some region or label has moved"
    samples = common_samples(*map(Sample.of, found.runs))
    for sample in samples:
        assert len(sample.hit) == sum(alike)
        assert (sample.labels >= 0).sum() == sum(a[0] == b[0] >= 0 for a, b in truths)
    (dataset,) = analyze(found).datasets
    (note,) = [note for note in dataset.notes if "different labels or regions" in note]
    assert option.replace("_", " ") in note and all(value in note for value in values)
    if "shift" in option:
        assert "the labels of Ghost on 4 and the regions of Square on 6, Hole on 4 differ" in note
    if not sum(alike):
        assert {comparison.number for comparison in dataset.comparisons} <= {"auroc"}


def moved(folder: Path, count: int) -> list[int]:
    """Move a pixel in the first regions of a run; return their rows in its table of images."""
    table, digests = pq.read_table(folder / "truth.parquet"), []
    regions = table.to_pylist()
    for region in regions[:count]:
        pixels = np.unpackbits(np.frombuffer(region["whole"], np.uint8))
        pixels[[0, 1]] = ~pixels[0] & 1, pixels[0]
        region["whole"] = np.packbits(pixels).tobytes()
        digests.append(region_digest(pixels.reshape(region["shape"]) > 0))
    pq.write_table(pa.Table.from_pylist(regions, table.schema), folder / "truth.parquet")
    table = pq.read_table(folder / "pairs.parquet")
    column, place = table["region_digest"].to_pylist(), table.column_names.index("region_digest")
    rows = [row for row, digest in enumerate(column) if digest][:count]
    for row, digest in zip(rows, digests, strict=True):
        column[row] = digest
    pq.write_table(table.set_column(place, table.schema.field(place), [column]), folder / "pairs.parquet")
    change(folder, scored_on=scored_on(FinishedRun.open(folder).rows))
    return rows


def test_what_no_option_explains_is_said_by_finding(tmp_path):
    one = write_run(tmp_path, "clip", images=16)
    other = write_run(tmp_path, "clip", images=16, stamp="2026-02-02_00-00-00")
    kad = write_run(tmp_path, "kad", images=16)
    rows = moved(other, 3)
    collection = collect([tmp_path])
    labels = {run.folder: run.label for run in collection.runs}
    assert not collection.set_aside and labels[kad] == "KAD"
    assert labels[one] == "CLIP" and labels[other].startswith("CLIP (scored regions ")
    analysis = analyze(collection)
    (dataset,) = analysis.datasets
    (note,) = [note for note in dataset.notes if "different labels or regions" in note]
    assert note.startswith(
        f"{labels[other]} and CLIP, KAD were scored on different labels or regions: no recorded option"
    )
    samples = {run.folder: Sample.of(run) for run in collection.runs}
    differ = differences(samples[one], samples[other])
    assert [sum(counts) for counts in zip(*differ.values(), strict=True)] == [0, 3]
    assert all(f"{finding} on {regions}" in note for finding, (_, regions) in differ.items())
    for table in all_tables(analysis):
        if table.name.startswith(("grounding", "classification", "comparisons", "pointing_game", "quadrants", "by_")):
            assert any("different labels or regions" in text for text in table.notes), table.name
    # What is compared and pictured is what both were scored on.
    for found, sample in zip(common_samples(samples[one], samples[other]), (samples[one], samples[other]), strict=True):
        kept = [3 * i + c not in rows for i, c in zip(sample.pair_image, sample.pair_column, strict=True)]
        assert len(kept) - sum(kept) == 3
        assert np.array_equal(found.hit, sample.hit[kept]) and np.array_equal(found.dice, sample.dice[kept])
    changed = {(f"image-{row // 3:04d}", row % 3) for row in rows}
    chosen = choose_cases(dataset.runs, 1000)
    findings = collection.runs[0].results.findings
    assert chosen and not changed & {(case.image_id, findings.index(case.finding)) for case in chosen}


def test_the_same_run_twice_is_one_whatever_it_was_read_from(tmp_path):
    """Where files lie, and what to do about unreadable ones, moves no number of a run that has finished."""
    one = write_run(tmp_path, "clip", images=16)
    other = write_run(tmp_path, "clip", images=16, stamp="2026-02-02_00-00-00")
    change(other, provenance__data__on_error="skip", provenance__data__split="test")
    found = collect([tmp_path])
    assert [run.folder for run in found.runs] == [other] and [aside.folder for aside in found.set_aside] == [one]


@pytest.mark.parametrize("by", ["limit", "nine", "test"])
def test_a_run_and_its_own_subset_are_one_dataset(command, toy_config, tmp_path, by):
    """By --data.limit, which keeps the split, and by a list of images, also one that is called after the split."""
    whole = command("test", "--config", toy_config).folder
    if by == "limit":
        assert command("test", "--config", toy_config, "--data.limit", "9").status == 0
    else:
        names = [*dict.fromkeys(image for image, _ in scored(whole))]
        (tmp_path / f"{by}.txt").write_text("\n".join(names[:9]))
        assert command("rescore", whole, "--images", f"{by}.txt", "--out", whole.parent / "9").status == 0
    found = collect([tmp_path / "runs"])
    assert not found.set_aside and len({run.label for run in found.runs}) == 2
    analysis = analyze(found)
    (dataset,) = analysis.datasets
    assert dataset.split == "test" and len(dataset.runs) == 2
    assert {comparison.images for comparison in dataset.comparisons if comparison.number == "auroc"} == {9}
    assert any("9 of the 20 images" in note for note in dataset.notes)
    assert not any("different labels or regions" in note for note in dataset.notes)
    facts = facts_of(analysis)
    (row,) = facts.pointing.rows
    assert row.runs[0].run.folder == whole
    text = document(analysis, all_tables(analysis), [])
    assert not any(word in text for word in ("splits", "two datasets", "2 datasets"))
    assert "setting" not in " ".join(answer(facts).texts)


def run_of(table, results):
    rows = Rows.of(table, results.findings)
    return SimpleNamespace(results=results, rows=rows, images=Images(rows))


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
