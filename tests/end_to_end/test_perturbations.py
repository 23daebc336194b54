from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from processes import run_ranks
from run_files import QUIET, callbacks, check_gone_on, check_rescored, disagreements, files_of, run_in
from toys import Squares

from xbench.cli import main
from xbench.data.datamodule import drawn_pairs
from xbench.geometry.grid import FULL_VIEW, maps_on_grid
from xbench.models import Demo
from xbench.models.redrawing import layers_of, redrawn
from xbench.report.runs import collect
from xbench.report.statistics import perturbations as perturbed
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables
from xbench.scoring.perturbations import STEPS, changed, ranking, region_in_view, similarities

SIZE, SIDE, PAIRS, IMAGES = 3, 24, 4, 14
DATA = ("--data", "toys.Squares", "--data.images", str(IMAGES), "--data.num_workers", "0", "--data.grid", "40")
DATA += ("--data.batch_size", str(SIZE), "--data.unreadable", "[4]", "--data.on_error", "skip")
MODEL = ("--model", "xbench.models.Demo", "--model.image_size", str(SIDE))
KINDS = (*STEPS, "randomisation")
ASKED = ("--data.interventions", json.dumps(KINDS), "--data.curve_pairs", str(PAIRS))


def words(root: Path, *options: str) -> list[str]:
    return ["test", *DATA, *MODEL, *QUIET, "--oversubscribe", "true", "--trainer.default_root_dir", str(root), *options]


def run(root: Path, *options: str, status: int = 0) -> Path:
    assert main(words(root, *options)) == status
    return next((path.parent for path in root.glob("*/*/results.json")), root)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("whole"), *ASKED)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "perturbations.parquet").to_pylist()


def by(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def test_the_rows_are_those_of_the_model_by_hand(whole: Path) -> None:
    """Every curve of one pair, and its maps under a layer alone and under all layers of a tower."""
    rows, data = rows_of(whole), Squares(images=IMAGES, grid=40)
    data.setup("test")
    drawn = drawn_pairs(data.records, data.findings, PAIRS)
    pairs = {(name, query) for name, queries in drawn.items() for query in queries if name != "square-004"}
    assert {(row["image_id"], row["query"]) for row in rows} == pairs and len(pairs) >= 3
    assert [row["index"] for row in rows] == sorted(row["index"] for row in rows)
    (name, query) = min(pairs)
    own = [row for row in rows if (row["image_id"], row["query"]) == (name, query)]
    model = Demo(image_size=SIDE).eval()
    model.prompts = []
    prompts = model.encode_prompts([model.default_prompts(finding) for finding in data.findings])
    films = {record.image_id: data.load(record) for record in data.records}
    column, number = data.findings.index(query), int(name[-3:])
    images = {key: model.preprocessing(film.image)[0] for key, film in films.items()}
    batch = [key for key in images if int(key[-3:]) // SIZE == number // SIZE and key != "square-004"]

    @torch.no_grad()
    def maps(queries: torch.Tensor) -> np.ndarray:
        raw = model(torch.stack([images[key] for key in batch]), queries).saliency[:, column].numpy()
        return maps_on_grid(raw, FULL_VIEW, (SIDE, SIDE))

    before = maps(prompts)
    place = batch.index(name)
    truth = data.samples(model.preprocessing)[number].truth
    seen = region_in_view(truth.regions[column].numpy(), truth.views[0], (SIDE, SIDE))
    assert 0 < seen.sum() < SIDE**2
    beginnings = {"map": before[place], "random": np.zeros((SIDE, SIDE)), "region": seen}
    curves = by([row for row in own if row["kind"] in STEPS], "kind", "of")
    assert {*curves} == {(kind, of) for kind in STEPS for of in beginnings}
    for (kind, of), steps in curves.items():
        assert tuple(row["step"] for row in steps) == STEPS[kind] and {row["layer"] for row in steps} == {None}
        order = ranking(beginnings[of], name)
        versions = [torch.from_numpy(one) for _, one in changed(kind, images[name].numpy(), order, name)]
        for first in range(0, len(versions), SIZE):
            some = versions[first : first + SIZE]
            with torch.no_grad():
                given = model(torch.stack(some + [some[-1]] * (SIZE - len(some))).float(), prompts).probabilities
            assert [row["value"] for row in steps[first : first + SIZE]] == given[: len(some), column].tolist()
    others = {row["of"]: row["value"] for row in own if row["kind"] == "other images"}
    alike = [similarities(before[place], before[other]) for other in range(len(batch)) if other != place]
    for measure in alike[0]:
        assert others[measure] == math.fsum(one[measure] for one in alike) / len(alike)
    random = by([row for row in own if row["layer"]], "kind")
    names = [layer.name for layer in layers_of(model)]
    towers = {"text": [one for one in names if "text" in one], "image": [one for one in names if "image" in one]}
    for tower, layers in towers.items():
        for how in ("independent", "cascading"):
            steps = random[(f"{how}: {tower}",)]
            assert [row["layer"] for row in steps[::3]] == layers
            assert [row["of"] for row in steps[:3]] == [*others]
    values = {(row["kind"], row["layer"], row["of"]): row["value"] for row in own if row["layer"]}
    last = towers["image"][0]
    assert values["independent: image", last, "spearman"] == values["cascading: image", last, "spearman"]
    (layer,) = (one for one in layers_of(model) if one.name == last)
    with redrawn(model, [layer]) as drawing:
        next(drawing)
        again = maps(prompts)
    for measure, value in similarities(before[place], again[place]).items():
        assert values["independent: image", last, measure] == value


def test_nothing_else_of_the_run_moves(whole: Path, tmp_path: Path) -> None:
    plain, changed_ = files_of(run(tmp_path)), files_of(whole)
    assert {*changed_} - {*plain} == {"perturbations.parquet"}
    for name in plain.keys() - {"results.json"}:
        assert changed_[name] == plain[name], name
    first, second = (json.loads(files["results.json"]) for files in (plain, changed_))
    assert second["tables"].keys() - first["tables"].keys() == {"perturbations.parquet"}
    assert {**first, "tables": None} == {**second, "tables": None}


def test_a_run_goes_on_and_is_scored_again_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    config = callbacks(tmp_path / "callbacks.yaml", "xbench.callbacks.perturbations.Perturbations", "phrases.Tires")
    check_gone_on(run, whole, tmp_path / "parts", *ASKED, "--config", str(config))
    check_rescored(whole, tmp_path / "again")
    parts = run_in(tmp_path / "parts")
    table = pq.read_table(parts / "perturbations.parquet")
    pq.write_table(table.slice(1), parts / "perturbations.parquet")
    assert [one.place for one in disagreements(parts)] == ["perturbations.parquet / SHA-256"]
    (parts / "perturbations.parquet").unlink()
    with pytest.raises(Exception, match=r"perturbations\.parquet"):
        disagreements(parts)


def test_two_processes_give_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    statuses, said = run_ranks(2, [*words(tmp_path / "runs", *ASKED), "--trainer.devices", "2"], tmp_path)
    assert statuses == [0, 0], said
    (path,) = tmp_path.glob("runs/*/*/results.json")
    assert files_of(path.parent) == files_of(whole)


def test_the_report_has_means_over_pairs(whole: Path, tmp_path: Path, unsaved_figures) -> None:
    analysis, rows = analyze(collect([whole])), rows_of(whole)
    (dataset,) = analysis.datasets
    found = {(one.part, one.layer): one.numbers for one in dataset.perturbations}
    curves = by([row for row in rows if row["kind"] in STEPS], "of", "kind", "image_id", "query")
    for of in ("map", "random", "region"):
        areas: dict[str, dict[Any, float]] = {}
        for kind in ("deletion", "insertion"):
            own = {key[2:]: [row["value"] for row in curves[key]] for key in curves if key[:2] == (of, kind)}
            areas[kind] = {pair: np.trapezoid(values, dx=0.01) for pair, values in own.items()}
            assert found[of, ""][kind].value == pytest.approx(np.mean([*areas[kind].values()]), rel=1e-12)
        differences = [areas["insertion"][pair] - area for pair, area in areas["deletion"].items()]
        assert found[of, ""]["difference"].value == pytest.approx(np.mean(differences), rel=1e-9)
        for place, percent in enumerate(STEPS["road"]):
            values = [steps[place]["value"] for key, steps in curves.items() if key[:2] == (of, "road")]
            assert found[of, ""][f"probability {percent}"].value == pytest.approx(np.mean(values), rel=1e-12)
    of_layers = by([row for row in rows if row["kind"] not in STEPS], "kind", "layer", "of")
    for (kind, layer, measure), of_pairs in of_layers.items():
        values = [row["value"] for row in of_pairs if row["value"] is not None]
        expected = pytest.approx(np.mean(values), rel=1e-9, abs=1e-12) if values else None
        own = found[kind, layer or ""][measure]
        assert own.value == expected
        # An image is one piece of evidence, and an interval stays where the number can lie.
        assert own.value is None or -1 <= own.low <= own.value <= own.high <= 1
    tables = {table.name: table for table in all_tables(analysis)}
    assert [len(tables[f"perturbations_{name}_squares"].rows) for name in ("curves", "road")] == [3, 3]
    assert len(tables["perturbations_layers_squares"].rows) == 2 * len(layers_of(Demo(image_size=SIDE))) + 1
    assert main(["report", str(whole), "--out", str(tmp_path / "report")]) == 0
    assert "new random weights: no verdict" in (tmp_path / "report" / "index.html").read_text()


def test_recognized_is_of_what_was_recognized(whole: Path, monkeypatch) -> None:
    """With a threshold between its probabilities, of two pairs one counts."""
    run, rows = collect([whole]).runs[0], rows_of(whole)
    keys = sorted({(row["image_id"], row["query"]) for row in rows})
    own = {
        (run.rows.image_ids[image], run.rows.queries[query]): value
        for image, query, value in zip(run.rows.image, run.rows.query, run.rows["probability"], strict=True)
    }
    limit = np.median([own[key] for key in keys])
    monkeypatch.setattr(perturbed, "thresholds", lambda of, scores: np.full(len(scores), limit))
    (entry,) = analyze(collect([whole])).runs
    found = {one.part: one.numbers for one in perturbed.perturbations([entry])}
    steps = by([row for row in rows if row["kind"] == "road"], "of", "step")
    counted = [key for key in keys if own[key] >= limit]
    assert 0 < len(counted) < len(keys)
    for (of, percent), of_pairs in steps.items():
        values = [row["value"] >= limit for row in of_pairs if (row["image_id"], row["query"]) in counted]
        assert found[of][f"recognized {percent}"].value == np.mean(values)


def test_models_without_maps_are_left_alone(tmp_path: Path, capsys) -> None:
    options = ("test", "--data", "toys.Squares", "--data.images", "4", "--data.num_workers", "0", *QUIET, *ASKED)
    place = ("--trainer.default_root_dir", str(tmp_path))
    with pytest.warns(UserWarning, match="answers without maps"):
        assert main([*options, *place, "--model", "hidden.Seer"]) == 0
    (path,) = tmp_path.glob("*/*/results.json")
    assert not (path.parent / "perturbations.parquet").exists()
    capsys.readouterr()
    assert main([*options, *place, "--model", "xbench.models.Demo", "--data.curve_pairs", "0"]) == 2
    assert "--data.curve_pairs 0" in capsys.readouterr().err
