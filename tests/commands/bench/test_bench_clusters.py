"""The same benchmark on clusters, by W&B or by SLURM, has each pair exactly once; and the shipped studies fit."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from xbench.commands.bench.arguments import parse
from xbench.commands.bench.config import read_bench
from xbench.commands.bench.jobs import Job, part_of, plan
from xbench.commands.configs import CONFIGS
from xbench.protocol.prompts import STYLES

MODELS = ("clip", "biomedclip", "medklip", "kad", "mavl", "carzero", "devide")
DATASETS = ("rsna", "siim", "covid", "chestxdet10", "chexlocalize", "chestxray14", "vindr")
PAIRS = {f"{model}_{dataset}" for model in MODELS for dataset in DATASETS}


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working directory with bench.yaml and with folders and files for everything, all empty."""
    monkeypatch.chdir(tmp_path)
    for name in DATASETS:
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "weights").mkdir()
    for name in MODELS:
        (tmp_path / "weights" / f"{name}.safetensors").touch()
    monkeypatch.setenv("XBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XBENCH_WEIGHTS", str(tmp_path / "weights"))
    (tmp_path / "bench.yaml").write_text((CONFIGS / "bench" / "paper.yaml").read_text())
    return tmp_path


def jobs_of(words: list[str]) -> list[Job]:
    """The runs that a command starts."""
    given, more = parse(words)
    jobs = plan(read_bench(given.config, given.models, given.datasets), Path(given.out or "runs"), more)
    return jobs if given.part is None else part_of(jobs, given.part)


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
        given, more = parse(words[5:])
        assert (given.report, given.config, more) == (False, ["bench.yaml"], [])
        started.update(job.name for job in jobs_of(words[5:]))
    assert started == Counter(PAIRS)


def test_the_sweep_fits_the_schema_of_wandb():
    sweeps = pytest.importorskip("sweeps")
    assert list(sweeps.schema_violations_from_proposed_config(sweep())) == []


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
        # Options go through as they are.
        assert words[-2:] == ["--trainer.precision", "bf16 mixed"]
        started.update(job.name for job in jobs_of(words[4:]))
    assert started == Counter(PAIRS)


def test_a_task_of_the_array_for_real(tmp_path):
    """One part as SLURM would start it, up to what is missing here."""
    stub = tmp_path / "srun"
    stub.write_text(f'#!/bin/bash\nshift\nexec {sys.executable} "$@"\n')
    stub.chmod(0o755)
    (tmp_path / "bench.yaml").write_text("models: [oracle, klip]\n")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "3"}
    run = subprocess.run(
        ["bash", str(CONFIGS / "slurm" / "bench.sbatch")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "models.klip is not known; did you mean clip" in run.stderr


@pytest.mark.parametrize("study", ["demo", "paper", "prompt_wording", "resolution", "thresholds", "best_and_worst"])
def test_every_option_of_a_study_is_one_of_its_model(places, study):
    from xbench.commands.run import Resolver

    jobs = jobs_of(["--config", study])
    resolver = Resolver()
    # Options of the model do not depend on the dataset, which would only be read again.
    dataset = "phantom" if study == "demo" else "vindr"
    seen = {}
    for job in jobs:
        if job.dataset == dataset and (job.variant or study == "paper"):
            seen[job.model, job.variant] = resolver.resolve(job.options).config["model"]["init_args"]
    if study == "prompt_wording":
        assert {f"by_{style}" for style in STYLES} == {variant for _, variant in seen}
        assert {model for model, _ in seen} == {*MODELS}
        assert all(variant == f"by_{options['prompts']}" for (_, variant), options in seen.items())
    if study == "resolution":
        assert {(model, options["image_size"]) for (model, _), options in seen.items()} == {(m, 448) for m in MODELS}
    if study in ("thresholds", "best_and_worst"):
        assert {job.name for job in jobs} == PAIRS
    else:
        assert seen


def test_aspects_go_to_the_models_that_take_several_texts(places):
    aspects = {job.model for job in jobs_of(["--config", "prompt_wording"]) if job.variant == "by_aspects"}
    assert aspects == {*MODELS} - {"medklip", "carzero"}


def test_a_study_goes_with_a_configuration_of_ones_own(places):
    (places / "mine.yaml").write_text("models: {kad: {checkpoint: k.pt}}\ndatasets: {siim: {root: data/siim}}\n")
    names = [job.name for job in jobs_of(["--config", "mine.yaml", "--config", "resolution"])]
    assert names == ["kad_siim", "kad_siim+at_448"]
