from __future__ import annotations

import doctest
import importlib
import inspect
import json
import re
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from pkgutil import resolve_name

import cv2
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger
from markdown.extensions.toc import slugify
from places import ROOT
from toys import quiet_trainer

from xbench.callbacks.case_keeper import CaseKeeper
from xbench.callbacks.evaluation import Evaluation
from xbench.callbacks.results_writer import ResultsWriter
from xbench.callbacks.wandb_logger import WandbLogger
from xbench.commands.arguments import COMMANDS, command_parser
from xbench.commands.bench.command import jobs_of
from xbench.commands.configs import shipped
from xbench.commands.options import RunParser, run_parser
from xbench.data import ChestXrayDataModule, Radiograph, Record
from xbench.data.phantom import draw_phantom
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models.base import SaliencyModel
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.methods import methods
from xbench.runs.files import OF_WORDS, PERTURBATIONS
from xbench.types import ModelOutput

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
# Words that stand for something of the reader's.
PLACEHOLDERS = re.compile(r"\b(?:RUNS?|MODEL|DATASET|COMMAND|CHECKPOINT|NAME|FILE|DIR)\b|\.\.\.|MODEL_DATASET")
# Options of other programs.
FOREIGN = {"--extra-index-url", "--pyargs", "--shm-size", "--signal", "--requeue", "--model", "--model-args"}
CONTAINERS = {"docker", "apptainer"}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
PROSE = {page: BLOCK.sub("", text) for page, text in PAGES.items()}
SPANS = [(page, " ".join(span.split())) for page, text in PROSE.items() for span in re.findall(r"`([^`]+)`", text)]


def blocks(language: str) -> list[tuple[str, str]]:
    return [(page, block) for page, text in PAGES.items() for name, block in BLOCK.findall(text) if name == language]


def shell() -> list[list[str]]:
    """The words of every command of every shell block, its comments left out."""
    lines = [line for _, block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def ours() -> list[list[str]]:
    """The words behind `xbench`, in shell blocks, within other commands, and in the text."""
    found = [words[index + 1 :] for words in shell() for index in _starts(words)]
    inner = [word.removeprefix("xbench ") for words in shell() for word in words if word.startswith("xbench ")]
    for _, span in SPANS:
        begun = re.match(r"(?:xbench (?=\w+ )|(?=bench --))(.+)", span)
        if begun and not PLACEHOLDERS.search(span):
            inner.append(begun[1])
    return [*found, *(shlex.split(line) for line in dict.fromkeys(inner) if line)]


def _starts(words: list[str]) -> list[int]:
    return [
        index
        for index, word in enumerate(words[:-1])
        if word == "xbench.cli" or (word == "xbench" and (index == 0 or words[0] == "srun"))
    ]


@pytest.fixture(scope="module")
def resolvers() -> dict[str, RunParser]:
    return {command: run_parser(command) for command in ("test", "predict")}


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Iterator[Path]:
    for _, block in [*blocks("python"), *blocks("yaml")]:
        if match := re.match(r"# (\S+\.(?:py|yaml))\n", block):
            (tmp_path / match[1]).write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XBENCH_DATA", "/data")
    monkeypatch.setenv("XBENCH_WEIGHTS", "/models")
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_commands_are_understood(workplace, resolvers):
    seen = set()
    # Parsing a run's options takes a while, so those of one configuration are parsed together.
    runs: dict[str, dict[tuple[str, ...], list[str]]] = {"test": {}, "predict": {}}
    for words in ours():
        if {"--help", "--help-all"} & {*words}:
            continue
        command, *options = words
        seen.add(command)
        given, more = command_parser()[0].parse_known_args(words)
        options = [option.replace("--pairs", "--data.pairs") for option in options]
        if command in ("test", "intervene", "predict", "prepare", "check"):
            with_configs_apart(options, runs.get(command, runs["test"]))
        elif command == "bench":
            _, jobs = jobs_of(given, more)
            # Those of shipped benchmarks have tests of their own.
            for job in (jobs[0], jobs[-1]) if given.config == ["bench.yaml"] else ():
                assert not job.unset, options
                with_configs_apart(job.options, runs["test"])
        else:
            assert COMMANDS[command].get("open") or not more, options
    for command, of_configs in runs.items():
        for configs, options in of_configs.items():
            resolvers[command].resolve([*(f"--config={config}" for config in configs), *options])
    assert len(runs["test"]) > 10 and seen >= {*COMMANDS} - {"convert", "completion", "score"}


def with_configs_apart(options: Sequence[str], runs: dict[tuple[str, ...], list[str]]) -> None:
    parser = ArgumentParser(allow_abbrev=False)
    parser.add_argument("--config", action="append", default=[])
    given, others = parser.parse_known_args(options)
    runs.setdefault(tuple(given.config), []).extend(others)


def test_other_programs_are_called_as_they_are():
    makefile = (ROOT / "Makefile").read_text()
    for program, *options in shell():
        if program == "make":
            # A target, or VARIABLE=value.
            starts = [f"{word.partition('=')[0]} ?=" if "=" in word else f"{word}:" for word in options]
            assert all(f"\n{start}" in makefile for start in starts), options
        elif program == "pytest":
            assert options[:3] == ["--pyargs", "xbench.conformance", "--model"], options
        else:
            assert (
                program
                in {"xbench", "python", "pip", "torchrun", "srun", "sbatch", "wandb", "source", "export", "git", "cd"}
                | CONTAINERS
            ), options


def options_of(*classes: type) -> set[str]:
    parents = [parent for cls in classes for parent in cls.__mro__ if "__init__" in vars(parent)]
    return {name for parent in parents for name in inspect.signature(parent.__init__).parameters}


def test_options_exist(resolvers):
    parsers = [*command_parser()[1].values(), *resolvers.values()]
    helps = [parser.format_help() for parser in parsers]
    known = (
        {*re.findall(r"--[\w-]+", " ".join(helps))} | FOREIGN | {"--version", "--help", "--help-all", "--print_config"}
    )
    for page, span in SPANS:
        if not span.startswith(("wandb ", "pip ", "torchrun", "mkdocs", "vllm ", "python -m sglang", "llama-server")):
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*(?![\w.-])", span):
                assert option in known, f"{page}: {option}"
    of_parts = {
        part: options_of(
            *(resolve_name(yaml.safe_load(path.read_text())["class_path"]) for path in shipped(folder).values())
        )
        for part, folder in (("model", "models"), ("data", "data"))
    }
    of_parts |= {"trainer": options_of(pl.Trainer), "trainer.logger": options_of(WandbLogger, CSVLogger)}
    found = set()
    for page, text in PAGES.items():
        for part, name in re.findall(r"--((?:model|data|trainer)(?:\.\w+)*)\.(\w+)\b", text):
            if name not in ("X", "help"):
                assert name in of_parts[part], f"{page}: --{part}.{name}"
                found.add((part, name))
    assert len(found) > 30


def test_files_and_names_exist():
    files = names = 0
    for page, span in SPANS:
        if re.fullmatch(r"(?:xbench|callbacks|configs|docs|tests|benchmarks|scripts)/[\w./-]*", span):
            assert (ROOT / span).exists(), f"{page}: {span}"
            files += 1
        elif re.fullmatch(r"xbench(?:\.\w+)+", span) and span != "xbench.cli":
            resolve_name(span)
            names += 1
    for page, block in blocks("yaml"):
        for name in re.findall(r"class_path: (xbench[\w.]+)", block):
            assert inspect.isclass(resolve_name(name)), f"{page}: {name}"
    assert files > 5 and names > 5


def test_links_lead_somewhere():
    targets = [(page, target) for page, text in PROSE.items() for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    within = [(page, *target.partition("#")[::2]) for page, target in targets if "://" not in target]
    for page, file, anchor in within:
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.is_file(), f"{page}: {file}"
        titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text()), re.M) if anchor else []
        anchors = [slugify(re.sub(r"[`*]", "", title), "-") for title in titles]
        assert not anchor or anchor in anchors, f"{page}: {anchor}"
    assert len(within) > 50


PIXELS, MAPS, PROBABILITIES = 8, {"A": (1, 5), "B": (5, 1), "C": (2, 4), "D": (4, 2)}, (0.9, 0.5, 0.6, 0.1)


class Four(ChestXrayDataModule):
    findings = ("Nodule",)

    def read_records(self, annotated):
        labels = {"A": {"Nodule": 1}, "B": {"Nodule": 1}, "C": {"Nodule": 0}, "D": {}}
        return [Record(name, labels[name], {"A": (2, 5), "B": (0, 3)}.get(name)) for name in MAPS]

    def load(self, record):
        region = np.zeros((2, PIXELS), bool)
        region[:, slice(*(record.source or (0, 0)))] = True
        return Radiograph(np.zeros((2, PIXELS), np.uint8), {"Nodule": region} if record.source else {})


class Stored(SaliencyModel):
    def __init__(self):
        super().__init__()
        self.preprocessing = Preprocessing(stretch((2, PIXELS)))

    def score(self, batch):
        p = torch.tensor(dict(zip(MAPS, PROBABILITIES, strict=True))[batch.truth.image_ids[0]], dtype=torch.float64)
        maps = torch.tensor([[[MAPS[batch.truth.image_ids[0]]]]], dtype=torch.float32)
        return ModelOutput(p.logit().reshape(1, 1), p.reshape(1, 1), maps)


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    trainer = quiet_trainer(Evaluation(), CaseKeeper(), ResultsWriter(), default_root_dir=folder)
    data = Four(batch_size=1, num_workers=0, grid=(1, 4), cache=False)
    trainer.test(Stored(), datamodule=data, verbose=False)
    return next(folder.glob("*/*/results.json")).parent


def table(page: str, heading: str) -> list[list[str]]:
    section = f"\n{PAGES[page]}".partition(f"\n{heading}\n")[2]
    section = re.split(rf"\n#{{1,{max(2, heading.index(' '))}}} ", section)[0]
    lines = re.findall(r"^\| (\[?`.+) \|$", section, re.M)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_the_worked_example_comes_out_as_the_page_says(example):
    (dataset,) = analyze(collect([example])).datasets
    (run,), (whole, *_) = dataset.runs, dataset.references
    rows = table("docs/numbers.md", "## A worked example")
    assert len(rows) == 13
    for name, said_of_run, said_of_whole in rows:
        key = name.strip("`")
        assert run.macro[key].value == pytest.approx(float(Fraction(said_of_run)), abs=1e-9), key
        assert whole.macro[key].value == pytest.approx(float(Fraction(said_of_whole)), abs=1e-9), key
    quadrants = run.quadrants["Nodule"]
    assert quadrants.threshold == 0.9
    assert (quadrants.near_miss + quadrants.elsewhere, quadrants.grounded_only) == (0.5, 0.5)
    # The peak of A lies a quarter of the film's width from the region.
    assert (quadrants.near_miss, quadrants.elsewhere) == (0, 0.5)
    # Each fold's threshold, and the best on all.
    assert sorted(run.thresholds["Nodule"]["dice"]) == [0.01, 0.26]
    results = json.loads((example / "results.json").read_text())
    assert results["grounding"]["per_class"]["Nodule"]["dice_best_threshold"] == 0.01
    by_threshold = re.findall(r"^\| ([\d. to]+) \|.*\| ([\d.]+), ([\d.]+) \|$", PAGES["docs/numbers.md"], re.M)
    assert len(by_threshold) == 4
    covered = 0
    for thresholds, dice, iou in by_threshold:
        low, _, high = thresholds.partition(" to ")
        for k in range(round(100 * float(low)), round(100 * float(high or low)) + 1):
            for curve, said in (("dice_curve", dice), ("iou_curve", iou)):
                value = results["grounding"]["per_class"]["Nodule"][curve][k]
                assert f"{value:.3f}" == said, (k, curve)
            covered += 1
    assert covered == 101


def test_the_methods_paragraph_is_that_of_a_report(example):
    said = " ".join(PAGES["docs/paper.md"].replace("\n>", " ").split())
    sentences = methods(analyze(collect([example]))).split(". ")
    found = [one for one in sentences if one.startswith(("We measured", "F1", "Intervals are", "No image"))]
    assert len(found) == 4 and all(sentence in said for sentence in found)


def test_python_sessions_of_the_pages_run():
    finder, count = doctest.DocTestParser(), 0
    for page, block in blocks("python"):
        if block.startswith(">>>"):
            test = finder.get_doctest(block, {}, page, page, 0)
            assert doctest.DocTestRunner().run(test).failed == 0
            count += len(test.examples)
    assert count > 3


def names_in(page: str, heading: str) -> set[str]:
    return {name for row in table(page, heading) for name in re.findall(r"`([\w.]+)`", row[0])}


def test_every_key_and_column_is_explained(example):
    """Those of a run that the code does not list: `scripts/reference_tables.py` writes the other tables."""
    files = "docs/files.md"
    results = json.loads((example / "results.json").read_text())
    # Runs started from Python have no fingerprint.
    assert {*results["provenance"], "fingerprint"} == names_in(files, "### provenance")
    written = {path.name for path in example.iterdir()}
    top = table(files, "# The files of a run")
    said = {name for row in top for name in re.findall(r"`([\w.]+/?)`", row[0])}
    assert written == said - {"journal/", "protocols/", PERTURBATIONS, *OF_WORDS}


FOUR_IMAGES = ("--data.images", "4", "--data.num_workers", "0", "--trainer.logger", "false")


def test_a_metric_of_ones_own_runs(workplace, command):
    run = command("test", "--config", "demo", "--config", "my_metric.yaml", *FOUR_IMAGES, status=0)
    assert 0 < float(re.findall(r"Peak distance: ([\d.]+)", run.output)[0]) < 1.5


def test_a_model_of_ones_own_that_answers_runs(workplace, command):
    words = ("--model", "my_talker.MyTalker", "--model.recognise", "true", "--data", "xbench.data.PhantomCXR")
    run = command("test", *words, *FOUR_IMAGES, status=0)
    assert run.results["answers"]["overall"]["answered"] == 1
    assert run.results["answers"]["recognition"]["decisions_only"]


def test_boxes_of_the_page_are_scored(workplace, command):
    ((_, boxes),) = [found for found in blocks("") if found[1].startswith("image,finding,x0")]
    (workplace / "boxes.csv").write_text(boxes)
    (words,) = [words for words in ours() if "boxes.csv" in words]
    run = command(*words, "--data.num_workers", "0", "--trainer.logger", "false", status=0)
    hits = {name: of["pointing_game"] for name, of in run.results["grounding"]["per_class"].items()}
    assert hits["Cardiomegaly"] > 0.5 and hits["Fracture"] == 0


@pytest.fixture
def my_data(workplace) -> Path:
    folder = workplace / "my_data"
    (folder / "images").mkdir(parents=True)
    rows = [["image", "x0", "y0", "x1", "y1"]]
    for index in range(12):
        phantom = draw_phantom(7, index)
        cv2.imwrite(str(folder / "images" / f"{index:02d}.png"), phantom.image)
        box = ["", "", "", ""]
        if "Nodule" in phantom.masks or index == 0:
            y, x = phantom.masks.get("Nodule", phantom.image > 200).nonzero()
            box = [x.min(), y.min(), x.max() + 1, y.max() + 1]
        rows.append([f"{index:02d}.png", *box])
    (folder / "boxes.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return folder


def test_model_and_dataset_outside_the_package(my_data, command):
    run = command("test", "--config", "my_pair.yaml", "--trainer.logger", "false", "--data.num_workers", "0", status=0)
    results = run.results
    assert (results["model"], results["dataset"]) == ("myvlm", "mydata")
    assert results["counts"]["images"] == 12
    positives = results["counts"]["per_finding"]["Nodule"]["positives"]
    assert results["grounding"]["per_class"]["Nodule"]["count"] == positives > 0
    assert results["provenance"]["prompts"]["Nodule"] == ["a chest radiograph showing nodule"]


def test_a_box_that_begins_outside_of_the_image_keeps_the_part_inside(my_data):
    """Of a slice that begins at -5, numpy gives nothing."""
    with (my_data / "boxes.csv").open("a") as file:
        file.write("01.png,-5,-7,20,30\n")
    data = importlib.import_module("my_data").MyData("my_data")
    record = data.read_records(annotated=True)[1]
    region = data.load(record).regions["Nodule"]
    assert region[:30, :20].all() and region.sum() >= 600
    assert data.read_records(annotated=False)[1].labels == {}


def test_use_from_python(tmp_path, monkeypatch, capsys):
    (code,) = (block for page, block in blocks("python") if page == "docs/api.md" and "trainer.test(" in block)
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace("images=50", "images=16"), "docs/api.md", "exec"), {})
    assert 0.3 < float(capsys.readouterr().out.splitlines()[-1]) <= 1
    assert list(tmp_path.glob("demo_phantom/*/results.json"))


def test_one_script_makes_every_picture_that_readme_and_docs_show():
    """The script writes them all, the first screen of a report too, and no other."""
    script = (ROOT / "scripts" / "screenshots.py").read_text(encoding="utf-8")
    made = {f"{name}.png" for name in re.findall(r'yield "([\w-]+)"', script)}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"assets/([\w-]+\.png)", page.read_text(encoding="utf-8"))}
    assert "report.png" in made and made == shown == {path.name for path in (ROOT / "docs" / "assets").glob("*.png")}
