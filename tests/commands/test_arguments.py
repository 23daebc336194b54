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

from xbench.cli import main
from xbench.commands.arguments import command_parser
from xbench.commands.configs import TOP, shipped
from xbench.commands.look import TRAINER, constructor, look, needs_of
from xbench.commands.options import build, class_arguments, resolve_class, run_parser
from xbench.findings.prompts import STYLES
from xbench.runtime.errors import UserError
from xbench.scoring.protocols import PROTOCOLS
from xbench.types import TieRule


def action_of(command: str, option: str):
    return command_parser()[1][command]._option_string_actions[option]


@pytest.mark.parametrize("command", ["test", "predict", "prepare", "check"])
def test_every_option_of_the_short_help_exists(command):
    options = run_parser(command).read(["--config", "clip_siim", "--data.root", "/data"])
    known = {f"--{key}".replace(".init_args.", ".") for key in vars(options.as_flat())}
    shown = command_parser()[1][command]._option_string_actions
    assert {*shown} <= known | {"--config", "-c", "-h", "--help", "--help-all", "--trainer.logger"}


def test_values_of_options_are_those_of_their_homes():
    assert tuple(action_of("rescore", "--ties").choices) == get_args(TieRule)
    assert {*action_of("rescore", "--protocol").choices} == {*PROTOCOLS, "all"}
    assert {*action_of("test", "--model.prompts").completer()} == {*STYLES}
    assert {*action_of("test", "--config").completer()} >= {"demo", "clip_siim", "oracle_phantom"}
    assert {*action_of("bench", "--config").completer()} == {*shipped("bench")}


_FILES = {
    "mine.py": "from xbench.models import CenterPrior\n\n\nclass Mine(CenterPrior):\n"
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
    (tmp_path / "films").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("mine", None)


# The words of a command, and what its one line of errors names.
AT_ONCE = {
    "test": "No model --config demo",
    "tset": "test",
    "list model": "models",
    "verify": "RUN",
    "verify nowhere": "nowhere",
    "rescore nowhere --ties any": "nowhere",
    "rescore films --ties som": "--ties",
    "report runs --caes 3": "--cases",
    "report runs --seed -1": "--seed",
    "report runs --cases x": "--cases 'x'",
    "report": "RUNS",
    "convert clpi a b": "mean clip",
    "test --config dmeo": "mean demo",
    "test --config carzero_vindr.yaml": "--data.root docs/datasets.md#vindr-cxr --model.checkpoint docs/models.md",
    "test --config carzero_vindr --data.root /gone --model.checkpoint /gone.ckpt": "/gone /gone.ckpt",
    "test --config clip_siim --data.root films --data.image_list no.csv": "--data.image_list no.csv",
    "test --config demo --model.promts x": "--model.promts --model.prompts",
    "predict --config clip_siim --data.root films --data.rot films": "--data.rot",
    "test --config demo --trainer.devcies 2": "--trainer.devices",
    "check --config demo --modle.prompts x": "--model.prompts",
    "prepare --config key.yaml": "modell mean model",
    "test --config list.yaml": "list.yaml",
    "test --config broken.yaml": "broken.yaml",
    "test --config demo --config scalar.yaml": "scalar.yaml trainer",
    "test --config demo --config number.yaml": "number.yaml data",
    "test --config demo --config nested.yaml": "--data.limit",
    "test --config mymodel.yaml --config siim": "--data.root docs/datasets.md#siim-acr-pneumothorax",
    "test --config mymodel.yaml": "No data",
    "test --config own.yaml": "No model was",
    "test --config qwen3vl_coco": "--model.checkpoint docs/multimodal.md); --data.findings docs/own-data.md#coco",
    "test --config demo --model xbench.models.CLIP": "the model Demo, and then CLIP was requested",
    "test --config clip_siim --data.root films": "train-rle.csv or stage_2_train.csv films docs/datasets.md#siim",
    "test --config carzero_chexlocalize --data.root films --data.split val": "--model.checkpoint docs/models.md "
    "gt_segmentations_val.json or gt_annotations_val.json --data.annotations val_labels.csv or valid.csv "
    "docs/datasets.md#chexlocalize",
    "prepare --config clip_covid --data.root films": "jsons/*.json docs/datasets.md#covid-19-rural",
    "test --config demo --data.batch_size abc --data.rot x --resume maybe": "--data.batch_size 'abc' whole --data.rot "
    "--resume: 'maybe' true or false",
    "test --config demo --data.limit 1.5 --data.gamma half": "--data.limit: '1.5' --data.gamma: 'half' a number",
    "test --config clip_phantom --model.image_size x": "--model.image_size: 'x' is not a whole number",
    "test --config demo --data.on_error skp": "--data.on_error 'skp' mean skip",
    "test --config demo --data.grid natve": "--data.grid 'natve' mean native",
    "test --config demo --data.limit.deeper 3": "--data.limit",
    "test --config demo --data.limit": "--data.limit",
    "test --config demo --model": "--model needs a value",
    "test --config demo --trainer.max_epochs x": "--trainer.max_epochs: 'x' is not a whole number",
    "test --config oracle_coco --data.root . --data.annotations own.yaml --data.findings 3": "--data.findings '3' list",
    "test --config demo --model.compile --data.limt 3": "--data.limt. Did you mean --data.limit",
    "score --config siim": "--predictions --name",
    "score --config siim --predictions maps --name mine": "--data.root docs/datasets.md#siim",
    "score --config siim --predictions maps --name mine --data.rot films": "--data.rot",
    "score --config clip_siim --predictions maps --name mine": "needs no model: give only a dataset",
    "score --config phantom --predictions maps --name mine --model.x 1": "needs no model and has no option --model.x",
    "score --config phantom --predictions maps --name mine --names {": "--names {",
    "score --config vindr --predictions maps --name mine --data.root films": "annotations_test.csv #vindr-cxr",
    "bench --data.limti 3 --dry-run": "--data.limti. Did you mean --data.limit",
    "bench --config demo --model.promts x": "--model.promts. Did you mean --model.prompts",
    "bench --config demo --data.limit x --dry-run": "--data.limit: 'x' is not a whole number",
    "bench --models klip": "--models klip",
}


def test_what_is_wrong_is_said_without_torch(files):
    """Every line names everything that is missing, and the page that says where to get it."""
    script = (
        "import sys\nfrom xbench.cli import main\nsys.path.insert(0, '')\n"
        "assert main([]) == main(['--help']) == main(['test', '--help']) == main(['--version']) == 0\n"
        "wrong = [line for line in sys.stdin.read().splitlines() if main(line.split()) != 2]\nassert not wrong, wrong\n"
        "assert not {'torch', 'lightning', 'transformers', 'mine', 'pandas'} & {*sys.modules}"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, input="\n".join(AT_ONCE), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--data.limit" in done.stdout
    for line, (words, named) in zip(done.stderr.splitlines(), AT_ONCE.items(), strict=True):
        assert all(one in line for one in named.split()), (words, line)
        # Models share classes: no message may name the first of those that do.
        assert "AG-KD" not in line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("demo --threads 0", "0 >0"),
        ("demo --seed_everything x", "--seed_everything: 'x'"),
        ("demo --model.prompts [a,b]", "--model.prompts"),
        ("demo --trainer.logger nope", "--trainer.logger 'nope'"),
        ("demo stray", "stray"),
        ("mymodel.yaml --config phantom --model.sacle 3", "--model.sacle. Did you mean --model.scale?"),
        ("mymodel.yaml --config phantom --model.prompts phrase", "Mine has no option --model.prompts."),
        ("mymodel.yaml --config phantom --model.scale high", "--model.scale: 'high' is not a number."),
        ("nowhere.yaml", "no.such.Model"),
        ("absent.yaml", "mean mine.Mine?"),
        ("phantom --model xbench.models.Dmeo", "xbench.models has no Dmeo. Did you mean xbench.models.Demo?"),
        ("phantom --model demo", "xbench.models.CLIP --config clip_siim"),
        ("phantom --model models/clip.yaml", "xbench.models.CLIP --config clip_siim"),
        ("demo --trainer.accelerator cup", "'cup'. Did you mean cpu?"),
        ("demo --trainer.strategy dpp", "--trainer.strategy ddp"),
        ("demo --trainer.precision bf61", "--trainer.precision: 'bf61' bf16-mixed"),
        ("demo --model.prompts offical", "name, phrase, description, aspects"),
    ],
)
def test_mistakes_are_told_in_the_words_of_who_made_them(command, files, words, named):
    run = command("test", "--trainer.logger", "false", "--config", *words.split())
    assert run.status == 2 and run.folder is None
    (line,) = run.errors.strip().splitlines()
    assert all(one in line for one in named.split()), line
    for internal in ("Traceback", "NestedArg", "class_path", "init_args", "xbench.data.datamodule", "NoneType"):
        assert internal not in line


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
        assert theirs <= {*arguments} == {*class_arguments(path)}, path
        owners = resolve_class(path).__mro__
        assert {*arguments} <= {name for owner in owners for name in inspect.signature(owner).parameters}, path
    assert constructor("xbench.models.CLIP") == found["xbench.models.maps.clip.CLIP"]
    assert constructor("mine.Mine") is None
    assert {*constructor(TRAINER)} == {*inspect.signature(Trainer).parameters}


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


def test_values_that_are_taken_are_not_refused_at_the_first_look():
    parser = run_parser("test")
    for option in (
        *("data.limit=null", "data.limit=0x10", "data.gamma=1", "data.gamma=1e-1", "data.grid=native"),
        *("data.grid=[448, 224]", "data.on_error=skip", "model.compile=yes", "trainer.val_check_interval=0.5"),
        *("trainer.devices=auto", "trainer.precision=bf16-mixed", "data.cache=here", "trainer.max_epochs=null"),
    ):
        look("test", ["--config", "demo", f"--{option}"])
        parser.read(["--config", "demo", f"--{option}"])


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
    parse = command_parser()[0].parse_args
    for given in (["--card", "runs"], ["--card=true", "runs"], ["--card", "true", "runs"]):
        assert parse(["report", *given]).card == "true"
    # Whatever may be true or false may stand alone.
    parse(["test", "--data.cache", "--trainer.logger", "--resume"])
    assert parse(["report", "runs"]).card is None and parse(["bench", "--report", "false"]).report == "false"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("te", "test"),
        ("test --config clip_s", "clip_siim"),
        ("test --config=clip_s", "--config=clip_siim"),
        ("test --model.prompts ", "name phrase description aspects"),
        ("test --config mine.yaml --data.li", "--data.limit"),
        ("rescore runs --ties ", "share any first"),
        ("bench --models car", "carzero"),
        ("bench --config res", "resolution"),
        ("list f", "findings"),
        ("convert kad", "kad"),
    ],
)
def test_completion(line, found, tmp_path):
    pytest.importorskip("argcomplete")
    out = tmp_path / "found"
    about = {"COMP_LINE": f"xbench {line}", "COMP_POINT": str(len(line) + 7), "_ARGCOMPLETE": "1"}
    about |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(out), "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    script = "import sys; sys.modules['torch'] = sys.modules['pyarrow'] = None; from xbench.cli import main; main()"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **about}, capture_output=True)
    assert {*out.read_text().split()} >= {*found.split()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_takes_the_lines_of_completion(shell, command):
    pytest.importorskip("argcomplete")
    said = command("completion", shell).output
    assert "xbench" in said
    if path := shutil.which(shell):
        subprocess.run([path, "-n", "-c", said], check=True)


def test_a_single_film_is_a_root_to_predict_on(tmp_path):
    (film := tmp_path / "film.png").touch()
    look("predict", ["--config", "demo_folder", "--data.root", str(film)])
    with pytest.raises(UserError, match=r"film\.png, which is not a folder"):
        look("test", ["--config", "oracle_siim", "--data.root", str(film)])
