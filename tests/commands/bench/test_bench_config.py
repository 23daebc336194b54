from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from xbench.commands.arguments import command_parser
from xbench.commands.bench.command import jobs_of
from xbench.commands.bench.config import plan, read_bench
from xbench.commands.configs import CONFIGS, shipped
from xbench.commands.options import run_parser
from xbench.findings.prompts import STYLES
from xbench.runtime.errors import UsageError

MODELS = ("clip", "biomedclip", "medklip", "kad", "mavl", "carzero", "devide")
DATASETS = ("rsna", "siim", "covid", "chestxdet10", "chexlocalize", "chestxray14", "vindr")
PAIRS = {f"{model}_{dataset}" for model in MODELS for dataset in DATASETS}


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XBENCH_WEIGHTS", str(tmp_path / "weights"))
    (tmp_path / "bench.yaml").write_text((CONFIGS / "bench" / "paper.yaml").read_text())
    return tmp_path


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def jobs(*words: str):
    return jobs_of(*command_parser()[0].parse_known_args(["bench", *words]))[1]


def options_of(job) -> dict[str, str]:
    assert job.options[0] == "--config"
    return dict(word.removeprefix("--").split("=", 1) for word in job.options[2:])


def test_without_a_configuration_it_is_the_paper(places):
    jobs = plan(read_bench(), places / "runs")
    assert [job.name for job in jobs] == [f"{model}_{dataset}" for dataset in DATASETS for model in MODELS]
    last = jobs[-2]
    assert (last.name, last.options[1]) == ("carzero_vindr", "carzero_vindr")
    assert options_of(last)["data.root"] == str(places / "data" / "vindr")
    assert options_of(last)["model.checkpoint"] == str(places / "weights" / "carzero.safetensors")
    assert options_of(last)["trainer.default_root_dir"] == str(places / "runs")


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
    path = written(
        places, 'models: {kad: {checkpoint: "~/kad.pt"}}\ndatasets: [siim]\ndata: {root: "${XBENCH_DATA}/a"}\n'
    )
    (job,) = plan(read_bench([path]), places)
    assert options_of(job)["model.checkpoint"] == "/home/me/kad.pt"
    assert options_of(job)["data.root"] == f"{places}/data/a"
    assert not job.unset


def test_variables_that_are_not_set(tmp_path, monkeypatch):
    for name in ("XBENCH_DATA", "XBENCH_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    jobs = plan(read_bench(), tmp_path)
    assert {text for job in jobs for text in job.unset} == {
        "The environment variable XBENCH_DATA, which data.root needs, is not set.",
        "The environment variable XBENCH_WEIGHTS, which model.checkpoint needs, is not set.",
    }


def test_classes_of_ones_own(tmp_path):
    path = written(
        tmp_path,
        "models: {mine: {class_path: toys.Brightness, init_args: {gain: 3}}, oracle: {}}\n"
        "datasets: {squares: {class_path: toys.Squares, images: 4}, phantom: {}}\n",
    )
    jobs = plan(read_bench([path]), tmp_path / "runs")
    assert [job.name for job in jobs] == ["mine_squares", "oracle_squares", "mine_phantom", "oracle_phantom"]
    config = yaml.safe_load(jobs[1].options[1])
    assert config["data"] == {"class_path": "toys.Squares"}
    assert config["model"].endswith("models/oracle.yaml")
    assert {"--model.gain=3", "--data.images=4"} <= {*jobs[0].options}
    assert jobs[3].options[1] == "oracle_phantom"


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("modles: {clip: {}}", ["modles is unknown; choose from model, data, trainer, models"]),
        ("models: {carzro: {}}", ["models.carzro is unknown; choose from afloc, agkd, answer_oracle, ", "class_path"]),
        ("datasets: {vndr: {root: x}}", ["datasets.vndr is unknown", "vindr"]),
        ("datasets: {vindr: /data/vindr}", ["datasets.vindr: ", "not '/data/vindr'"]),
        ("trainer: {default_root_dir: x}", ["default_root_dir", "out"]),
        ("out: [1]", ["out: Input should be a valid string, not [1]"]),
        ("variants: {a: {modle: {x: 1}}}", ["variants.a.modle is unknown; choose from model, data"]),
        ("variants: {a: {models: [clip]}}", ["variants.a changes nothing"]),
        ("variants: {a: {models: [klip], model: {x: 1}}}", ["variants.a.models: klip is unknown"]),
        ("variants: {a: {models: clip, model: {x: 1}}}", ["variants.a.models: ", "'clip'"]),
        ("variants: {a b: {model: {x: 1}}}", ["variants.a b: "]),
        ("models: {../x: {class_path: x.Y}}", ["models.../x: "]),
        ("models: {klip: {}, clib: {}}\nvariants: {a: {}}", ["models.klip", "models.clib", "variants.a"]),
        ("- 1", ["expected a mapping of model, data"]),
        ("false", ["expected a mapping of model, data"]),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path, text, fragments):
    with pytest.raises(UsageError) as caught:
        read_bench([written(tmp_path, text)])
    assert "\n" not in str(caught.value)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["--config", "papr"], "Shipped are demo, paper"),
        (["--models", "klip"], "--models klip is unknown"),
        (["--datasets", "vndr"], "--datasets vndr is unknown"),
        (["--part", "3"], "K/N"),
        (["--part", "50/49"], "K/N"),
        (["--modles", "clip"], "unknown option --modles"),
        (["--trainer.default_root_dir", "x"], "unknown option --trainer.default_root_dir"),
        (["--report", "yes"], "unknown option yes"),
        (["clip"], "unknown option clip"),
    ],
)
def test_wrong_words(command, words, fragment):
    run = command("bench", *words, status=2)
    assert fragment in run.errors
    assert len(run.errors.splitlines()) == 1


def test_names_with_commas_and_options_of_every_run(places):
    (first, *_, last) = jobs("--models", "clip,kad", "mavl", "--data.limit", "8", "--out", "x", "--threads=2")
    assert (first.model, last.model) == ("clip", "mavl")
    assert last.options[-4:] == ("--data.limit", "8", "--threads=2", "--trainer.default_root_dir=x")


@pytest.mark.parametrize("count", [3, 49])
def test_parts_are_the_whole(places, count):
    whole = jobs("--config", "prompt_wording")
    shares = [jobs("--config", "prompt_wording", "--part", f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(job.name for share in shares for job in share) == sorted(job.name for job in whole)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shipped_benchmarks_are_listed(command):
    listed = command("list", "benches").output
    assert {"demo", "paper", "prompt_wording", "resolution"} == {*shipped("bench")}
    assert all(name in listed for name in shipped("bench"))
    assert re.search(r"prompt_wording\s+Study", command("list").output)


def sweep() -> dict:
    return yaml.safe_load((CONFIGS / "wandb" / "sweep.yaml").read_text())


def test_the_sweep_has_every_pair_once(places):
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    config = sweep()
    assert config["method"] == "grid"
    names = [*config["parameters"]]
    assert all([*parameter] == ["values"] for parameter in config["parameters"].values())
    started: Counter[str] = Counter()
    for values in itertools.product(*(config["parameters"][name]["values"] for name in names)):
        # As the agent of W&B fills in a command.
        args = {name: {"value": value} for name, value in zip(names, values, strict=True)}
        filled = utils.create_sweep_command_args({"args": args}) | {
            "env": ["/usr/bin/env"],
            "interpreter": ["python"],
            "program": [config["program"]],
        }
        words = []
        for word in utils.create_sweep_command([*config["command"]]):
            words += filled[word[2:-1]] if word.startswith("${") else [word]
        assert words[:5] == ["/usr/bin/env", "python", "-m", "xbench.cli", "bench"]
        assert "--report=false" in words or words[words.index("--report") + 1] == "false"
        started.update(job.name for job in jobs(*words[5:]))
    assert started == Counter(PAIRS)


def test_the_array_has_every_pair_once(places):
    script = CONFIGS / "slurm" / "bench.sbatch"
    text = script.read_text()
    first, last = map(int, re.search(r"#SBATCH --array=(\d+)-(\d+)", text).groups())
    stub = places / "bin" / "srun"
    stub.parent.mkdir()
    stub.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    started: Counter[str] = Counter()
    for task in range(first, last + 1):
        environment = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": str(task)}
        run = subprocess.run(
            ["bash", str(script), "--trainer.precision", "bf16 mixed"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        words = run.stdout.splitlines()
        assert words[:4] == ["python", "-m", "xbench.cli", "bench"]
        assert words[-2:] == ["--trainer.precision", "bf16 mixed"]
        started.update(job.name for job in jobs(*words[4:]))
    assert started == Counter(PAIRS)


@pytest.mark.parametrize("study", ["demo", "paper", "prompt_wording", "resolution"])
def test_every_option_of_a_study_is_one_of_its_model(places, study):
    resolver = run_parser("test")
    # Options of the model do not depend on the dataset, which would only be read again.
    dataset = "phantom" if study == "demo" else "vindr"
    seen = {}
    for job in jobs("--config", study):
        if job.dataset == dataset and (job.variant or study == "paper"):
            seen[job.model, job.variant] = resolver.resolve(job.options)["model"]["init_args"]
    if study == "prompt_wording":
        assert {f"by_{style}" for style in STYLES} == {variant for _, variant in seen}
        assert {model for model, _ in seen} == {*MODELS}
        # These take one text alone.
        assert {model for model, variant in seen if variant == "by_aspects"} == {*MODELS} - {"medklip", "carzero"}
        assert all(variant == f"by_{options['prompts']}" for (_, variant), options in seen.items())
    if study == "resolution":
        assert {(model, options["image_size"]) for (model, _), options in seen.items()} == {(m, 448) for m in MODELS}
    assert seen
