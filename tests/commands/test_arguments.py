"""Help on one screen, and suggestions for what is misspelt."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest
import yaml
from jsonargparse._parameter_resolvers import get_signature_parameters
from lightning.pytorch import Trainer

from xbench.cli import COMMANDS, main
from xbench.commands.arguments import OPTIONS, PURPOSES, bench_parser, report_parser, rescore_parser
from xbench.commands.completion import completions
from xbench.commands.configs import TOP, resolve_class, shipped
from xbench.commands.look import TRAINER, constructor, look, needs_of
from xbench.commands.options import build, run_parser
from xbench.findings.prompts import STYLES
from xbench.runtime.errors import UserError
from xbench.types import TieRule


@pytest.mark.parametrize("command", PURPOSES)
def test_every_option_of_the_short_help_exists(command):
    shown = {option.name for options in OPTIONS.values() for option in options if command in option.commands.split()}
    parser = run_parser(command)
    options = parser.read(["--config", "clip_siim", "--data.root", "/data"])
    known = {key.replace(".init_args.", ".") for key in vars(options.as_flat())}
    assert shown <= known | {"config", "trainer.logger"}


def test_help_and_a_misspelt_configuration_are_answered_without_torch():
    script = (
        "import sys\nfrom xbench.cli import main\n"
        "assert main(['test', '--help']) == 0 and main(['test', '--config', 'dmeo']) == 2\n"
        "wrong = [['test'], ['convert', 'clpi'], ['verify'], ['report', 'runs', '--caes', '3'], ['list', 'model']]\n"
        "assert [main(words) for words in wrong] == [2] * len(wrong)\n"
        "assert not {'torch', 'lightning', 'numpy'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--data.limit" in done.stdout
    near = [
        "Did you mean demo?",
        "such as --config demo;",
        "Did you mean clip?",
        "required: RUN",
        "--cases",
        "mean models?",
    ]
    for line, told in zip(done.stderr.splitlines(), near, strict=True):
        assert told in line


_FILES = {
    "mine.py": "from xbench.models import CentrePrior\n\n\nclass Mine(CentrePrior):\n"
    "    def __init__(self, scale: float = 1, bright: bool = False):\n        super().__init__()\n",
    "mymodel.yaml": "model: {class_path: mine.Mine, init_args: {scale: 2}}\n",
    "list.yaml": "- a\n- b\n",
    "broken.yaml": "model: {class_path: mine.Mine\n",
    "key.yaml": "modell: {class_path: mine.Mine}\n",
    "scalar.yaml": "trainer: 3\n",
    "number.yaml": "data: 3\n",
    "nested.yaml": "data: {limit: {a: 1}}\n",
    "nowhere.yaml": "model: {class_path: no.such.Model}\ndata: phantom\n",
    "own.yaml": "data: {root: ., annotations: mine.json, findings: [Nodule]}\n",
    "absent.yaml": "model: {class_path: mine.Mien}\ndata: phantom\n",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("demo --data.limit abc", "--data.limit: 'abc' is not a whole number."),
        ("demo --data.limit 1.5", "--data.limit: '1.5' is not a whole number."),
        ("demo --data.gamma half", "--data.gamma: 'half' is not a number."),
        ("demo --data.on_error skp", "--data.on_error: 'skp' is not stop or skip. Did you mean skip?"),
        (
            "demo --data.grid natve",
            "--data.grid: 'natve' is not a whole number, two whole numbers ([448, 224]) or",
        ),
        ("demo --model.compile maybe", "--model.compile: 'maybe' is not true or false."),
        ("demo --resume maybe", "--resume: 'maybe' is not true or false."),
        ("demo --threads x", "--threads: 'x' is not a whole number"),
        ("demo --threads 0", "--threads: 0 is not above 0"),
        ("demo --seed_everything x", "--seed_everything: 'x' is not true or false or a whole number."),
        ("demo --model.prompts [a,b]", "--model.prompts: "),
        ("demo --trainer.max_epochs x", "--trainer.max_epochs: 'x' is not a whole number."),
        ("demo --trainer.logger nope", "--trainer.logger: 'nope' is not "),
        (
            "oracle_coco --data.root . --data.annotations own.yaml --data.findings 3",
            "--data.findings: '3' is not a mapping or a list of texts.",
        ),
        ("demo --data.limit.deeper 3", "--data.limit"),
        ("demo --data.limit", "--data.limit needs a value"),
        ("demo --model", "--model needs a value"),
        ("demo stray", "stray"),
        ("demo --modle.prompts x", "Did you mean --model.prompts"),
        ("demo --data.rot x", "no option --data.rot."),
        ("mymodel.yaml --config phantom --model.sacle 3", "no option --model.sacle. Did you mean --model.scale?"),
        ("mymodel.yaml --config phantom --model.scale high", "--model.scale: 'high' is not a number."),
        ("mymodel.yaml --data.limit 3", "No data was chosen"),
        ("list.yaml", "list.yaml"),
        ("broken.yaml", "broken.yaml"),
        ("key.yaml", "key.yaml: there is no part modell. Did you mean model?"),
        ("demo --config scalar.yaml", "scalar.yaml: trainer"),
        ("demo --config number.yaml", "number.yaml: data"),
        ("demo --config nested.yaml", "--data.limit: "),
        ("nowhere.yaml", "no.such.Model"),
        ("absent.yaml", "Did you mean mine.Mine?"),
        ("phantom --model xbench.models.Dmeo", "xbench.models has no Dmeo. Did you mean xbench.models.Demo?"),
        ("phantom --model demo", "the name of a shipped model or dataset, after --config: "),
        (
            "phantom --model models/clip.yaml",
            "Give a file, or the name of a shipped model or dataset, after --config: ",
        ),
        ("demo --trainer.accelerator cup", "cup'. Did you mean cpu?"),
        ("demo --trainer.strategy dpp", "--trainer.strategy expects one of auto, ddp, "),
        ("demo --trainer.precision bf61", "--trainer.precision: 'bf61' is not 64, 32, 16, "),
        ("demo --model.prompts offical", "neither a style (name, phrase, description, aspects) nor a file"),
        ("demo --data.limt 3", "no option --data.limt. Did you mean --data.limit"),
        ("demo --model.compile --data.limt 3", "--data.limt. Did you mean --data.limit"),
    ],
)
def test_mistakes_are_told_in_the_words_of_who_made_them(command, files, words, told):
    run = command("test", "--trainer.logger", "false", "--config", *words.split())
    assert run.status == 2 and run.folder is None
    (line,) = run.errors.strip().splitlines()
    assert told in line
    for internal in (
        "Traceback",
        "NestedArg",
        "class_path",
        "init_args",
        "xbench.data.",
        "xbench.models.d",
        "NoneType",
    ):
        assert internal not in line


def test_what_is_wrong_is_said_without_torch(files):
    """Every line names all that is missing, and the page that tells where it is to be had."""
    (files / "films").mkdir()
    cases = {
        "test --config carzero_vindr.yaml": "--data.root docs/datasets.md#vindr-cxr --model.checkpoint docs/models.md",
        "test --config carzero_vindr --data.root /gone --model.checkpoint /gone.ckpt": "/gone /gone.ckpt",
        "test --config clip_siim --data.root films --data.image_list no.csv": "--data.image_list no.csv",
        "test --config demo --model.promts x": "--model.promts --model.prompts",
        "predict --config clip_siim --data.root films --data.rot films": "--data.rot",
        "test --config demo --trainer.devcies 2": "--trainer.devices",
        "check --config demo --modle.prompts x": "--model.prompts",
        "prepare --config key.yaml": "modell",
        "test --config mymodel.yaml --config siim": "--data.root docs/datasets.md#siim-acr-pneumothorax",
        "test --config mymodel.yaml": "No data",
        "test --config own.yaml": "No model was",
        "test --config qwen3vl_coco": "--model.checkpoint docs/multimodal.md); --data.findings docs/own-data.md#coco",
        "test --config siim": "No model",
        "score --config siim --predictions maps --name mine": "--data.root docs/datasets.md#siim",
        "score --config siim --predictions maps --name mine --data.rot films": "--data.rot",
        "score --config clip_siim --predictions maps --name mine": "instead of a model: --config siim",
        "test --config demo --model xbench.models.CLIP": "the model Demo, and then CLIP was asked for",
        "score --config phantom --predictions maps --name mine --model.x 1": "instead of a model --model.x",
        "score --config phantom --predictions maps --name mine --names {": "--names {:",
        "test --config clip_siim --data.root films": "train-rle.csv or stage_2_train.csv films docs/datasets.md#siim",
        "score --config vindr --predictions maps --name mine --data.root films": "annotations_test.csv #vindr-cxr",
        "test --config carzero_chexlocalize --data.root films --data.split val": "--model.checkpoint docs/models.md "
        "gt_segmentations_val.json or gt_annotations_val.json --data.annotations val_labels.csv or valid.csv "
        "docs/datasets.md#chexlocalize",
        "prepare --config clip_covid --data.root films": "jsons/*.json docs/datasets.md#covid-19-rural",
        "test --config demo --data.batch_size abc": "--data.batch_size: 'abc' is not a whole number.",
        "test --config demo --data.batch_size 1.5": "--data.batch_size: '1.5' is not a whole number.",
        "test --config clip_phantom --model.image_size x": "--model.image_size: 'x' is not a whole number.",
        "test --config demo --model.compile maybe": "--model.compile: 'maybe' is not true or false.",
        "test --config demo --data.on_error skp": "--data.on_error: 'skp' is not stop or skip. mean skip?",
        "test --config demo --trainer.max_epochs x": "--trainer.max_epochs: 'x' is not a whole number.",
        "bench --data.limti 3 --dry-run": "--data.limti. Did you mean --data.limit",
        "bench --config demo --model.promts x": "--model.promts. Did you mean --model.prompts",
        "bench --config demo --data.limit x --dry-run": "--data.limit: 'x' is not a whole number.",
    }
    script = (
        "import sys\nfrom xbench.cli import main\nsys.path.insert(0, '')\n"
        "assert [main(line.split()) for line in sys.stdin.read().splitlines()] == [2] * int(sys.argv[1])\n"
        "assert not {'torch', 'lightning', 'transformers', 'mine'} & {*sys.modules}"
    )
    words = [sys.executable, "-c", script, str(len(cases))]
    done = subprocess.run(words, input="\n".join(cases), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for line, (words, told) in zip(done.stderr.splitlines(), cases.items(), strict=True):
        assert all(one in line for one in told.split()), (words, line)
        # Models share classes: no message may name the first of those that do.
        assert "AG-KD" not in line


@pytest.mark.parametrize(
    "words",
    [
        ["-cdemo", "--data.limit", "3"],
        ["--config", "demo", "--data", '{"limit": 3}'],
        ["--data", '{"init_args": {"limit": 3}}', "--config", "demo"],
        ["--config", "demo", "--data", '{"class_path": "xbench.data.PhantomCXR", "init_args": {"limit": 3}}'],
        ["--config", "demo", "--data.init_args", '{"limit": 3}', "--resume", "--resume", "false"],
        ["--config", "demo", "--data.init_args.limit", "3"],
    ],
)
def test_options_are_the_same_in_every_spelling(words):
    look("test", words)
    options = run_parser("test").read(words)
    assert options.data.init_args.limit == 3 and options.data.class_path.endswith("PhantomCXR")
    assert options.model.class_path == "xbench.models.demo.Demo" and options.resume is False


def test_an_option_given_within_init_args_is_not_missing(tmp_path):
    (tmp_path / "train-rle.csv").touch()
    (tmp_path / "annotations.json").touch()
    for words in (["--data.init_args.root", str(tmp_path)], [f'--data={{"init_args": {{"root": "{tmp_path}"}}}}']):
        look("test", ["--config", "clip_siim", *words])
    look("test", ["--config=oracle_coco", "--data.root", str(tmp_path), "--data.findings.eff=Pleural Effusion"])
    with pytest.raises(UserError, match=r"Did you mean --data\.root"):
        look("test", ["--config", "clip_siim", "--data", '{"rot": "films"}'])


def test_a_dataset_of_ones_own_needs_no_class_on_the_command_line(tmp_path):
    own = ["--data.root", str(tmp_path), "--data.annotations=a.json", "--data.findings", "[Nodule]"]
    options = run_parser("test").read(["--config=oracle", *own]).data
    assert options.class_path.endswith("CocoDataset") and options.init_args.findings == ["Nodule"]


@pytest.mark.parametrize(("word", "told"), [("--help-all", "--model.help"), ("--data.help", "--data.limit")])
def test_help_about_a_configuration_is_given(capsys, word, told):
    with pytest.raises(SystemExit) as ended:
        main(["test", "--config", "demo", word])
    assert ended.value.code == 0 and told in capsys.readouterr().out


def test_arguments_are_read_from_source_as_jsonargparse_reads_them(files):
    files = [file for kind in ("models", "data") for file in shipped(kind).values()]
    found = {path: constructor(path) for path in (yaml.safe_load(file.read_text())["class_path"] for file in files)}
    for path, arguments in found.items():
        assert arguments is not None, path
        theirs = {parameter.name for parameter in get_signature_parameters(resolve_class(path), "__init__")}
        assert theirs <= {*arguments}, path
        owners = resolve_class(path).__mro__
        assert {*arguments} <= {name for owner in owners for name in inspect.signature(owner).parameters}, path
    assert constructor("xbench.models.CLIP") == found["xbench.models.maps.clip.CLIP"]
    assert constructor("mine.Mine") is None
    trainer = constructor(TRAINER)
    assert trainer is not None and {*trainer} == {*inspect.signature(Trainer).parameters}


@pytest.mark.parametrize(("name", "missing"), [("coco", "annotations"), ("csv", "annotations labels")])
def test_annotation_files_of_ones_own_are_looked_for_at_the_first_look(tmp_path, name, missing):
    words = ["--config", f"oracle_{name}", "--data.root", str(tmp_path), "--data.findings", "[Nodule]"]
    cls = resolve_class(yaml.safe_load(shipped("data")[name].read_text())["class_path"])
    with pytest.raises(UserError) as caught:
        look("test", words)
    for option in missing.split():
        assert f"{cls.files[option][0]} in --data.root {tmp_path} (or --data.{option})" in str(caught.value)
        # The loader looks for the same file.
        data = cls(str(tmp_path), ["Nodule"])
        with pytest.raises(UserError, match=cls.files["labels" if "labels" in missing else option][0]):
            data.read_records(annotated=True)
    (tmp_path / "elsewhere.json").touch()
    for option in missing.split():
        words += [f"--data.{option}", "elsewhere.json"]
    look("test", words)


@pytest.mark.parametrize(
    "option",
    [
        *("data.limit=null", "data.limit=0x10", "data.gamma=1", "data.gamma=1e-1", "data.grid=native"),
        *("data.grid=[448, 224]", "data.on_error=skip", "model.compile=yes", "trainer.limit_test_batches=0.5"),
        *("trainer.devices=auto", "trainer.precision=bf16-mixed", "data.cache=here", "trainer.max_epochs=null"),
    ],
)
def test_a_value_that_is_taken_is_not_refused_at_the_first_look(option):
    look("test", ["--config", "demo", f"--{option}"])
    run_parser("test").read(["--config", "demo", f"--{option}"])


def test_the_parts_of_a_configuration_are_those_of_the_parser():
    defaults = run_parser("predict").get_defaults(skip_validation=True).as_dict()
    assert {*defaults} - {"config", "__default_config__"} == {*TOP}


def test_shipped_configurations_name_what_they_need_and_a_page_that_exists():
    for kind in ("models", "data"):
        for name, path in shipped(kind).items():
            needs, page = needs_of(path)
            options = constructor(yaml.safe_load(path.read_text())["class_path"])
            assert options is not None and {*needs} <= {*options}, name
            file, _, anchor = page.partition("#")
            text = (Path(__file__).parents[2] / file).read_text()
            slugs = [re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in text.splitlines()]
            assert file and (not anchor or anchor in slugs), name
            if needs:
                with suppress(TypeError):
                    assert isinstance(build(yaml.safe_load(path.read_text())), UserError), name


@pytest.mark.parametrize("spelling", [["--resume"], ["--resume", "true"], ["--resume=true"]])
@pytest.mark.parametrize("last", [True, False])
def test_a_switch_is_spelled_either_way(files, spelling, last):
    rest = ["--model.bright", *spelling] if last else [*spelling, "--model.bright"]
    options = run_parser("test").read(["--config", "mymodel.yaml", "--config", "phantom", "--trainer.benchmark", *rest])
    assert options.resume is True and options.model.init_args.bright is True and options.trainer.benchmark is True
    options = run_parser("test").read(["--config", "demo", "--resume=false", "--oversubscribe", "false"])
    assert options.resume is False and options.oversubscribe is False


def test_switches_of_other_commands_are_spelled_either_way():
    for parser, words, option in (
        (report_parser(), ["runs"], "card"),
        (bench_parser(), [], "check"),
        (bench_parser(), [], "report"),
        (bench_parser(), [], "dry-run"),
    ):
        spelled = {"true": [[f"--{option}"], [f"--{option}=true"], [f"--{option}", "true"]]}
        spelled["false"] = [[f"--{option}=false"]]
        for value, ways in spelled.items():
            for way in ways:
                given = vars(parser.parse_known_args([*way, *words])[0])
                assert given[option.replace("-", "_")] == value
    assert report_parser().parse_args(["--card", "runs"]).card == "true"
    assert rescore_parser().parse_args(["run", "--ties", "any"]).ties == "any"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_on_one_screen(command, name):
    run = command(name, "--help")
    assert run.status == 0 and len(run.output.splitlines()) <= 45


def test_names_of_commands_and_values_are_those_of_their_homes():
    assert {*completions([""])} - {"--help", "--version"} == {*COMMANDS}
    (ties,) = (action for action in rescore_parser()._actions if action.dest == "ties")
    assert tuple(ties.choices or ()) == get_args(TieRule)
    (prompts,) = (option for option in OPTIONS["What to run"] if option.name == "model.prompts")
    assert {*prompts.choices.split()} == {*STYLES}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["te"], ["test"]),
        (["test", "--config", "clip_s"], ["clip_siim"]),
        (["test", "--config", "=", "clip_s"], ["clip_siim"]),
        (["test", "--config=clip_s"], ["--config=clip_siim"]),
        (["test", "--model.prompts", "="], ["name", "phrase", "description", "aspects"]),
        (["test", "--model.prompts", ""], ["name", "phrase", "description", "aspects"]),
        (["test", "--config", "demo", "--data.li"], ["--data.limit"]),
        (["predict", "--data.gamma"], []),
        (["rescore", "runs", "--ties", ""], ["share", "any", "first"]),
        (["bench", "--models", "car"], ["carzero"]),
        (["bench", "--config", "res"], ["resolution"]),
        (["list", "f"], ["findings"]),
        (["convert", "kad"], ["kad"]),
        (["convert", "kad", "x"], []),
        (["report", "--out", ""], []),
        (["nonsense", ""], []),
    ],
)
def test_completion(words, found):
    assert completions(words) == found


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes(shell, tmp_path, command):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    (tmp_path / "xbench").write_text(f'#!/bin/sh\nexec {sys.executable} -m xbench "$@"\n')
    (tmp_path / "xbench").chmod(0o755)
    ask = {
        "bash": 'COMP_WORDS=(xbench test --config clip_si); COMP_CWORD=3; _xbench; echo "${COMPREPLY[@]}"',
        "zsh": "compadd() { shift; echo ${(P)1}; }; words=(xbench test --config clip_si); CURRENT=4; _xbench",
    }[shell]
    script = f"{'compdef() {{ :; }}' if shell == 'zsh' else ''}\n{command('completion', shell).output}\n{ask}"
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", script], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert done.stdout.strip() == "clip_siim", done.stderr


def test_a_single_film_is_a_root_to_predict_on(tmp_path):
    (film := tmp_path / "film.png").touch()
    look("predict", ["--config", "demo_folder", "--data.root", str(film)])
    with pytest.raises(UserError, match=r"film\.png, which is no folder"):
        look("test", ["--config", "oracle_siim", "--data.root", str(film)])
