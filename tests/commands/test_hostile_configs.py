"""Configurations from a stranger: nothing in them is called that is no model, dataset or part of a run."""

from __future__ import annotations

import time

import pytest

from xbench.commands.bench.config import read_bench
from xbench.findings.prompts import read_prompts
from xbench.findings.questions import Questions
from xbench.runtime.errors import UserError


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system ['touch {sign}']", "!!python/object/new:os.system ['touch {sign}']"]
)
@pytest.mark.parametrize("text", ["model: {tag}\n", "data: {{class_path: xbench.data.PhantomCXR, init_args: {tag}}}\n"])
def test_tags_that_call_functions(command, tmp_path, tag, text):
    sign = tmp_path / "sign"
    path = tmp_path / "stranger.yaml"
    path.write_text(text.format(tag=tag.format(sign=sign)))
    run = command("test", "--config", path)
    assert run.status == 2 and "Traceback" not in run.errors and run.folder is None
    with pytest.raises(UserError):
        read_bench([str(path)])
    assert not sign.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model.class_path", "os.system", "--model.command", "touch sign"), "os.system"),
        (("--model.class_path", "subprocess.Popen", "--model.args", "touch sign"), "subprocess.Popen"),
        (("--data.class_path", "pathlib.Path"), "pathlib.Path"),
        (("--trainer.callbacks", '{class_path: os.system, init_args: {command: "touch sign"}}'), "callbacks"),
        (("--trainer.callbacks", "{class_path: xbench.models.Oracle}"), "callbacks"),
        (("--trainer.logger", '{class_path: subprocess.Popen, init_args: {args: "touch sign"}}'), "logger"),
    ],
)
def test_classes_that_are_no_part_of_a_run(command, tmp_path, options, said):
    parts = {
        "model": "model: {class_path: xbench.models.Oracle}\n",
        "data": "data: {class_path: xbench.data.PhantomCXR}\n",
    }
    parts.pop(options[0].split(".")[0].removeprefix("--"), None)
    (tmp_path / "rest.yaml").write_text("".join(parts.values()))
    run = command("test", "--config", tmp_path / "rest.yaml", *options)
    assert run.status == 2 and run.folder is None
    assert said in run.errors and "Traceback" not in run.errors
    assert not (tmp_path / "sign").exists()


def test_a_file_of_aliases_is_refused_at_once(command, tmp_path):
    """Ten lines that stand for 10^9 entries, wherever a file of the user's is read."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text("\n".join([*lines, "data: {findings: *a8}", "model: {prompts: *a8}", ""]))
    (tmp_path / "part.yaml").write_text("data: bomb.yaml\nmodel: centre\n")
    began = time.process_time()
    for words in (
        ("test", "--config", bomb, "--print_config"),
        ("test", "--config", "demo", "--config", tmp_path / "part.yaml"),
        ("bench", "--config", bomb, "--dry-run"),
    ):
        run = command(*words)
        assert run.status == 2 and "aliases" in run.errors and "bomb.yaml" in run.errors
        assert len(run.errors) < 1000
    for read in (read_prompts, Questions.of):
        with pytest.raises(UserError, match="aliases"):
            read(str(bomb))
    assert time.process_time() - began < 10
