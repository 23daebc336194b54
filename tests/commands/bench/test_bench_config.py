"""What a benchmark consists of, and everything that can be wrong with what says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from xbench.commands.bench.arguments import parse
from xbench.commands.bench.config import read_bench
from xbench.commands.bench.jobs import part_of, plan
from xbench.commands.configs import CONFIGS, shipped, summary
from xbench.errors import UserError

MODELS = ("clip", "biomedclip", "medklip", "kad", "mavl", "carzero", "devide")
DATASETS = ("rsna", "siim", "covid", "chestxdet10", "chexlocalize", "chestxray14", "vindr")
PAIRS = {f"{model}_{dataset}" for model in MODELS for dataset in DATASETS}


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XBENCH_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def options_of(job) -> dict[str, str]:
    """The options of a job by name, as the command line has them: the last one counts."""
    assert job.options[0] == "--config"
    return dict(word.removeprefix("--").split("=", 1) for word in job.options[2:])


def test_without_a_configuration_it_is_the_paper(places):
    jobs = plan(read_bench(), places / "runs")
    assert [job.name for job in jobs[:8]] == [*(f"{model}_rsna" for model in MODELS), "clip_siim"]
    assert len(jobs) == 49
    assert {job.name for job in jobs} == PAIRS
    last = jobs[-2]
    assert (last.name, last.options[1]) == ("carzero_vindr", "carzero_vindr")
    assert options_of(last)["data.root"] == str(places / "data" / "vindr")
    assert options_of(last)["model.checkpoint"] == str(places / "weights" / "carzero.safetensors")
    assert options_of(last)["trainer.default_root_dir"] == str(places / "runs")


def test_what_is_listed_is_what_runs(places):
    path = written(places, "models: {kad: {checkpoint: kad.pt}, clip: {}}\ndatasets: [siim]\ndata: {root: /data}\n")
    jobs = plan(read_bench([path]), places)
    assert [job.name for job in jobs] == ["kad_siim", "clip_siim"]
    assert options_of(jobs[0])["model.checkpoint"] == "kad.pt"
    assert options_of(jobs[1])["data.root"] == "/data"


def test_names_on_the_command_line_choose_in_their_order(places):
    assert [*read_bench([], ["kad", "oracle"], ["vindr"]).models] == ["kad", "oracle"]
    config = read_bench([], ["oracle"], ["phantom", "vindr"])
    assert [job.name for job in plan(config, places)] == ["oracle_phantom", "oracle_vindr"]


def test_the_later_configuration_wins_and_adds(places):
    first = written(
        places, "models: {clip: {saliency: gem, image_size: 224}}\ndatasets: {siim: {root: a}}\nout: x\n", "1"
    )
    second = written(
        places, "models: {clip: {saliency: vv}, kad: }\nvariants: {big: {model: {image_size: 448}}}\n", "2"
    )
    config = read_bench([first, second])
    assert config.models == {"clip": {"saliency": "vv", "image_size": 224}, "kad": {}}
    assert config.out == "x"
    assert [job.name for job in plan(config, places)] == ["clip_siim", "kad_siim", "clip_siim+big", "kad_siim+big"]


def test_the_nearest_option_counts(places):
    path = written(
        places,
        "models: {clip: {prompts: name}, kad: {}}\ndatasets: {siim: {root: r, limit: 7}}\n"
        "model: {prompts: phrase}\ndata: {limit: 9, batch_size: 4}\n"
        "trainer: {precision: bf16-mixed, logger: false, limit: null, plugins: [a, 1]}\n"
        "variants:\n"
        "  other: {models: [kad], model: {prompts: description}, data: {limit: 1}, trainer: {logger: true}}\n",
    )
    jobs = plan(read_bench([path]), places, ["--data.limit", "3"])
    _, kad, other = jobs
    told = [" ".join(job.options) for job in jobs]
    assert "--model.prompts=name" in told[0] and "--model.prompts=phrase" in told[1]
    assert "--data.limit=7" in told[1] and "--data.batch_size=4" in told[1]
    assert "--model.prompts=description" in told[2] and "--data.limit=1 " in told[2]
    assert "--trainer.logger=true" in told[2] and "--trainer.logger=false" in told[1]
    assert '--trainer.plugins=["a", 1]' in told[0] and "--trainer.limit=null" in told[0]
    # What the command line says comes after all of it, and where runs go last.
    assert kad.options[-3:] == ("--data.limit", "3", f"--trainer.default_root_dir={places}")
    assert other.name == "kad_siim+other"


def test_places_are_expanded(places, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    path = written(places, 'models: {kad: {checkpoint: "~/kad.pt"}}\ndatasets: {siim: {root: "${XBENCH_DATA}/a"}}\n')
    (job,) = plan(read_bench([path]), places)
    assert options_of(job)["model.checkpoint"] == "/home/me/kad.pt"
    assert options_of(job)["data.root"] == f"{places}/data/a"
    assert not job.unset


def test_variables_that_are_not_set(tmp_path, monkeypatch):
    for name in ("XBENCH_DATA", "XBENCH_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    jobs = plan(read_bench(), tmp_path)
    assert {text for job in jobs for text in job.unset} == {
        "The environment variable XBENCH_DATA, which root of datasets needs, is not set.",
        "The environment variable XBENCH_WEIGHTS, which checkpoint of models needs, is not set.",
    }


def test_classes_of_ones_own(tmp_path):
    path = written(
        tmp_path,
        "models: {mine: {class_path: toys.Brightness, init_args: {gain: 3}}, oracle: {}}\n"
        "datasets: {squares: {class_path: toys.Squares, images: 4}, phantom: {}}\n",
    )
    jobs = plan(read_bench([path]), tmp_path / "runs")
    assert [job.name for job in jobs] == ["mine_squares", "oracle_squares", "mine_phantom", "oracle_phantom"]
    config = yaml.safe_load(Path(jobs[1].options[1]).read_text())
    assert config["data"] == {"class_path": "toys.Squares"}
    assert config["model"].endswith("models/oracle.yaml")
    assert {"--model.gain=3", "--data.images=4"} <= {*jobs[0].options}
    assert jobs[3].options[1] == "oracle_phantom"


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("modles: {clip: {}}", ["modles is not known; did you mean models"]),
        ("models: {carzro: {}}", ["models.carzro is not known; did you mean carzero", "class_path"]),
        ("datasets: {vndr: {root: x}}", ["datasets.vndr", "did you mean vindr"]),
        ("datasets: {vindr: /data/vindr}", ["datasets.vindr must be a mapping of options", "'/data/vindr'"]),
        ("models: 3", ["models must be a mapping from names to options"]),
        ("trainer: {default_root_dir: x}", ["default_root_dir", "out"]),
        ("out: [1]", ["out must be the path"]),
        ("variants: {a: {modle: {x: 1}}}", ["variants.a.modle is not known; did you mean"]),
        ("variants: {a: {models: [clip]}}", ["variants.a changes nothing"]),
        ("variants: {a: {models: [klip], model: {x: 1}}}", ["variants.a.models: klip is not known; did you mean clip"]),
        ("variants: {a: {models: clip, model: {x: 1}}}", ["variants.a.models must be a list"]),
        ("variants: {a b: {model: {x: 1}}}", ["variants.a b: a name is of letters"]),
        ("models: {a/b: {class_path: x.Y}}", ["models.a/b: a name is of letters"]),
        ("models: {klip: {}, clib: {}}\nvariants: {a: {}}", ["models.klip", "models.clib", "variants.a"]),
        ("models: [", ["mine.yaml"]),
        ("- 1", ["write a mapping of out, models"]),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path, text, fragments):
    with pytest.raises(UserError) as caught:
        read_bench([written(tmp_path, text)])
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["--config", "papr"], "Did you mean paper"),
        (["--models", "klip"], "--models klip is not known; did you mean clip"),
        (["--datasets", "vndr"], "did you mean vindr"),
        (["--part", "3"], "K/N"),
        (["--part", "50/49"], "K/N"),
        (["--modles", "clip"], "--modles is no option"),
        (["--trainer.default_root_dir", "x"], "--trainer.default_root_dir is no option"),
        (["--missing", "ignore"], "--missing"),
        (["--report", "yes"], "yes is neither true nor false"),
        (["clip"], "clip does not belong to an option"),
    ],
)
def test_wrong_words(command, words, fragment):
    run = command("bench", *words)
    assert run.status == 2
    assert fragment in run.errors
    assert len(run.errors.splitlines()) == 1


def test_words():
    given, more = parse(["--models", "clip,kad", "mavl", "--data.limit", "8", "--out", "x", "--threads=2"])
    assert given.models == ["clip", "kad", "mavl"]
    assert more == ["--data.limit", "8", "--threads=2"]


@pytest.mark.parametrize("count", [1, 3, 7, 49, 60])
def test_parts_are_the_whole(places, count):
    jobs = plan(read_bench(["prompt_wording"]), places)
    shares = [part_of(jobs, f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(job.name for share in shares for job in share) == sorted(job.name for job in jobs)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shipped_benchmarks_are_listed(command):
    listed = command("list", "benches").output
    assert {"demo", "paper", "prompt_wording", "resolution", "thresholds", "best_and_worst"} == {*shipped("bench")}
    for name, path in shipped("bench").items():
        assert name in listed
        assert len(summary(path)) > 20
    assert re.search(r"prompt_wording\s+Study", command("list").output)


def test_configurations_of_clusters_are_no_runs():
    assert not {"sweep", "bench"} & {*shipped("runs")}
    assert (CONFIGS / "wandb" / "sweep.yaml").is_file()
