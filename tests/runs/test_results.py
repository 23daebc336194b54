from __future__ import annotations

import json
import pkgutil
import warnings
from io import StringIO
from types import SimpleNamespace

import pytest
from intervened import intervene
from lightning.pytorch import Trainer
from rich.console import Console
from run_files import disagreements
from synthetic import write_run
from toys import Brightness, Squares

import xbench.data.datamodule
import xbench.data.samples
import xbench.runtime.stopwatch
from xbench.callbacks.console_summary import _interventions
from xbench.callbacks.evaluation import Evaluation
from xbench.callbacks.experiment_logging import _scalars
from xbench.callbacks.results_writer import ResultsWriter
from xbench.findings.names import findings_problem
from xbench.runs.results import read_results
from xbench.runtime.errors import UserError
from xbench.runtime.files import atomic_writer
from xbench.runtime.notes import INPUT_NOTE

SKIP = ("--data.on_error", "skip")


def test_an_interrupted_write_leaves_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), atomic_writer(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_results_json_is_strict_json(command, toy_config):
    run = command("test", "--config", toy_config, "--data.limit", "1")

    def refuse(constant):
        raise AssertionError(constant)

    results = json.loads((run.folder / "results.json").read_text(), parse_constant=refuse)
    assert results["schema"] == 2
    assert results["grounding"]["per_class"]["Square"]["pointing_game"] is None
    assert results["classification"]["per_class"]["Square"]["auroc"] is None
    assert results["classification"]["macro"]["auroc"] is None
    assert results["classification"]["per_class"]["Square"]["accuracy"] == 1.0


def test_every_moment_counts_towards_the_stage_that_took_it(command, toy_config, monkeypatch):
    """On a clock that advances in some functions alone, in each by another time, so that every sum tells its parts."""
    stages = {
        "toys.Brightness.setup": {"setup"},
        "toys.Brightness.on_test_start": {"text"},
        # Without workers, an image is waited for while it is decoded.
        "toys.Squares.load": {"loading", "decode"},
        "toys.Squares.transfer_batch_to_device": {"transfer"},
        "toys.Brightness.score": {"forward"},
        "xbench.callbacks.evaluation.check_values": {"metrics"},
        "xbench.scoring.map_measures.measure_on_host": {"saliency"},
        "xbench.scoring.metrics.ScoredRows.update": {"metrics"},
        "xbench.data.samples.jpeg": {"loading", "decode"},
        "xbench.callbacks.results_writer.append_records": {"logging"},
        "xbench.callbacks.results_writer.write_tables": {"writing"},
        "xbench.callbacks.evaluation.summarize": {"writing"},
    }
    took = dict.fromkeys(stages, 0)
    for module in (xbench.runtime.stopwatch, xbench.data.datamodule, xbench.data.samples):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(sum(took.values()))))

    def slow_down(place, seconds):
        owner, _, name = place.rpartition(".")
        function = getattr(pkgutil.resolve_name(owner), name)

        def slow(*arguments, **named):
            took[place] += seconds
            return function(*arguments, **named)

        monkeypatch.setattr(pkgutil.resolve_name(owner), name, slow)

    for power, place in enumerate(stages):
        slow_down(place, 10**power)
    seconds = command("test", "--config", toy_config, "--data.limit", "6").results["provenance"]["seconds"]
    assert all(took.values())
    for stage, spent in seconds.items():
        assert spent == sum(time for place, time in took.items() if stage in stages[place]), stage


@pytest.mark.parametrize(
    "model", ["toys.Brightness", "wrong_models.MeanOf255", "wrong_models.TimesThe255th", "wrong_models.DividesTwice"]
)
def test_wrong_normalisation_is_noted_once(command, toy_config, tmp_path, model):
    toy_config.write_text(toy_config.read_text().replace("toys.Brightness", model))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = command("test", "--config", toy_config, "--data.images", "9", "--data.unreadable", "[0]", *SKIP)
    assert run.status == 0
    early = [str(one.message) for one in caught if INPUT_NOTE in str(one.message)]
    notes = run.results["counts"]["notes"]
    assert run.output.count(INPUT_NOTE) == len(early) == len(notes) == model.startswith("wrong")
    for note in notes:
        assert note["note"].startswith(INPUT_NOTE)
        assert (note["count"], note["first"]) == (3, ["square-001", "square-002", "square-003"])
        assert f"3 images: {INPUT_NOTE}" in run.output
        assert not disagreements(run.folder)


def test_an_image_without_a_row_ends_the_run(command, toy_config, monkeypatch):
    step = Brightness.test_step
    silent = lambda self, batch, batch_idx: None if batch_idx == 1 else step(self, batch, batch_idx)  # noqa: E731
    monkeypatch.setattr(Brightness, "test_step", silent)
    with pytest.raises(RuntimeError, match="processed once"):
        command("test", "--config", toy_config)


def test_a_first_batch_that_cannot_be_read_leaves_a_note(command, toy_config):
    toy_config.write_text(toy_config.read_text().replace("toys.Brightness", "wrong_models.MeanOf255"))
    run = command(
        "test", "--config", toy_config, "--data.images", "9", "--data.unreadable", "[0, 1, 2, 3]", *SKIP, status=0
    )
    (note,) = run.results["counts"]["notes"]
    assert note["note"].startswith("the input of the network is unchecked") and note["count"] == 4


@pytest.mark.parametrize("name", ["../outside", ""])
def test_a_model_whose_name_is_no_part_of_a_folder_is_refused(tmp_path, name):
    model = Brightness()
    model.name = name
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"accelerator": "cpu", "use_distributed_sampler": False, "default_root_dir": tmp_path / "runs"}
    trainer = Trainer(**quiet, callbacks=[Evaluation(), ResultsWriter()])
    with pytest.raises(UserError, match="of the model cannot be part of a folder"):
        trainer.test(model, datamodule=Squares(images=2, num_workers=0, cache=False), verbose=False)
    assert not [*tmp_path.rglob("*")]


@pytest.mark.parametrize(
    ("findings", "fine"),
    [
        (("Nodule", "Nodule/Mass", "macroscopic"), True),
        ((), False),
        (("Nodule", "Nodule"), False),
        (("macro",), False),
        (("No\ndule",), False),
        (("x" * 201,), False),
        (("@Nodule",), False),
        ((3,), False),
    ],
)
def test_names_of_findings(findings, fine):
    assert (findings_problem(findings) is None) == fine


@pytest.fixture
def path(tmp_path):
    return write_run(tmp_path, "kad", images=12, with_cases=False, findings=("Square", "Hole")) / "results.json"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", "../demo", "not the name of a model"),
        ("dataset", "a/b", "not the name of a dataset"),
        ("split", "a\nb", "not the name of a split"),
        ("findings", ["Square", "macro"], "macro"),
    ],
)
def test_what_no_run_is_called_is_not_read(path, key, value, words):
    read_results(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=f"damaged or was not written by a run: .*{words}"):
        read_results(path)


def test_a_key_that_no_run_writes_is_not_read(path):
    content = json.loads(path.read_text())
    classes = [content[part]["per_class"]["Hole"] for part in ("grounding", "classification")]
    of_counts = [content["counts"], content["counts"]["constant_maps"], content["counts"]["per_finding"]["Hole"]]
    sign_test, scored_on = content["grounding"]["sign_test"], content["scored_on"]["Hole"]
    for part in (content, *classes, *of_counts, content["grounding"], content["classification"], sign_test, scored_on):
        part["auroc_of_mine"] = 0.9
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="auroc_of_mine"):
            read_results(path)
        del part["auroc_of_mine"]


@pytest.fixture
def intervened(tmp_path):
    """A finished run with three findings, one logit less without the region, or one more with another fill."""
    costs = {"hide: mean": 1.0, "hide: noise": -1.0}

    def effect(row, condition, random):
        return row["logit"] - costs.get(condition, 0.0)

    return intervene(write_run(tmp_path, "model", images=240), effect, ("mean", "noise"), words=False)


def rewrite(folder, path, value):
    content = json.loads((folder / "results.json").read_text())
    *parents, last = path
    part = content
    for name in parents:
        part = part[name]
    del part[last]
    part |= {} if value is None else {last: value}
    (folder / "results.json").write_text(json.dumps(content))


def test_interventions_are_read_back_verified_and_shown(intervened):
    assert disagreements(intervened) == []
    results = read_results(intervened / "results.json")
    found = results.interventions
    assert [*found.all_pairs] == ["mean", "noise", "any"] and found.reason is None
    use = found.all_pairs["mean"].macro["use"]
    assert use > 0 and found.all_pairs["noise"].macro["use"] == pytest.approx(-use) and found.sign_over_fills is False
    scalars = _scalars(results)
    assert scalars["interventions/use_mean"] == use and "interventions/swap_same_agreement" in scalars
    console = Console(width=100, record=True, file=StringIO())
    console.print(_interventions(found))
    shown = " ".join(console.export_text().split())
    assert f"{use:.3f}" in shown and "depends on the fill" in shown and f"{found.pairs} pairs" in shown


def test_the_console_says_why_there_is_no_number_under_interventions(tmp_path):
    folder = intervene(write_run(tmp_path, "model", images=20), lambda row, *_: row["logit"], ("mean",), words=False)
    found = read_results(folder / "results.json").interventions
    console = Console(width=200, record=True, file=StringIO())
    console.print(_interventions(found))
    assert "No numbers: a finding needs 30 pairs." in console.export_text()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pairs",), 7),
        (("all_pairs", "mean", "macro", "use"), 7),
        (("correct_only", "any", "per_class", "Nodule", "pairs"), 7),
        ((), None),
    ],
)
def test_changed_numbers_of_interventions_are_found(intervened, path, value):
    path = ("interventions", *path)
    rewrite(intervened, path, value)
    assert [one.place for one in disagreements(intervened)] == [" / ".join(("results.json", *path))]


@pytest.mark.parametrize(
    ("name", "value"), [("scored", 29), ("use", None), ("use", "0.1"), ("pointed", None), ("pairs", -1), ("pairs", 1.5)]
)
def test_numbers_of_interventions_that_no_run_writes_are_refused(intervened, name, value):
    rewrite(intervened, ("interventions", "all_pairs", "mean", "per_class", "Nodule", name), value)
    with pytest.raises(ValueError, match="damaged or was not written by a run"):
        read_results(intervened / "results.json")
