"""Help on one screen, and suggestions for what is misspelt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import get_args

import pytest

from xbench.cli import COMMANDS
from xbench.commands.arguments import OPTIONS, PURPOSES, rescore_parser, short_help
from xbench.commands.completion import completions
from xbench.commands.options import run_parser
from xbench.protocol.prompts import STYLES
from xbench.types import TieRule


@pytest.mark.parametrize("command", PURPOSES)
def test_every_option_of_the_short_help_exists(command):
    shown = {option.name for options in OPTIONS.values() for option in options if command in option.commands.split()}
    parser = run_parser(command)
    options = parser.read(["--config", "clip_siim", "--data.root", "/data"])
    known = {key.replace(".init_args.", ".") for key in vars(options.as_flat())}
    assert shown <= known | {"config", "trainer.logger"}
    text = short_help(command).splitlines()
    assert len(text) <= 45
    assert max(map(len, text)) <= 100


def test_help_and_a_misspelt_configuration_are_answered_without_torch():
    script = (
        "import sys\nfrom xbench.cli import main\n"
        "assert main(['test', '--help']) == 0 and main(['test', '--config', 'dmeo']) == 2\n"
        "wrong = [['test'], ['convert', 'clpi'], ['rescore'], ['report', 'runs', '--caes', '3'], ['list', 'model']]\n"
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--data.limt", "3"), "no option --data.limt. Did you mean --data.limit"),
        (("--model.promts", "name"), "Did you mean --model.prompts?"),
        (("--modle.prompts", "name"), "Did you mean --model.prompts"),
        (("--model", "xbench.models.Dmeo"), "xbench.models has no Dmeo. Did you mean xbench.models.Demo?"),
        (("--model", "demo"), "shipped models and datasets go by the name of the pair: --config MODEL_DATASET"),
        (("--threads", "0"), "--threads 0: it must be above 0"),
        (("--trainer.accelerator", "cup"), "cup'. Did you mean cpu?"),
        (("--trainer.strategy", "dpp"), "--trainer.strategy expects one of auto, ddp, "),
        (("--data.grid", "natve"), "expects int, tuple[int, int] or native, not 'natve'. Did you mean native?"),
        (("--data.limit", "x"), "expects int, not 'x'"),
        (("--trainer.devcies", "2"), "Did you mean --trainer.devices?"),
        (("--trainer.precision", "bf61"), "one of 64, 32, 16, "),
        (("--data.on_error", "skp"), "one of stop, skip, not 'skp'. Did you mean skip?"),
        (("--model.prompts", "offical"), "neither a style (name, phrase, description, aspects) nor a file"),
    ],
)
def test_what_is_misspelt(command, words, told):
    run = command("test", "--config", "demo", "--trainer.logger", "false", *words)
    assert run.status == 2
    assert told in run.errors


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_on_one_screen(command, name):
    run = command(name, "--help")
    assert run.status == 0
    lines = run.output.splitlines()
    assert lines[0].startswith(f"usage: xbench {name}")
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100


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
