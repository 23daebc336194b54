"""Configurations and prompts from a stranger: nothing in them is called that is no model, dataset or part of a run."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from xbench.commands.bench.config import read_bench
from xbench.commands.configs import check_yaml
from xbench.errors import UserError
from xbench.protocol.prompts import read_prompts

TAGS = (
    "!!python/object/apply:os.system ['touch {sign}']",
    "!!python/object/apply:subprocess.check_output [['touch', '{sign}']]",
    "!!python/object/new:os.system ['touch {sign}']",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/object:pathlib.Path {{}}",
)
TEXTS = ("model: {tag}\n", "data: {{class_path: xbench.data.PhantomCXR, init_args: {{images: {tag}}}}}\n", "{tag}\n")


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("text", TEXTS)
def test_tags_that_call_functions(command, tmp_path, tag, text):
    sign = tmp_path / "sign"
    path = tmp_path / "stranger.yaml"
    path.write_text(text.format(tag=tag.format(sign=sign)))
    run = command("test", "--config", path)
    assert run.status == 2 and "Traceback" not in run.errors and run.folder is None
    with pytest.raises(UserError):
        read_bench([str(path)])
    with pytest.raises(UserError):
        read_prompts(path)
    assert not sign.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model.class_path", "os.system", "--model.command", "touch sign"), "os.system"),
        (("--model.class_path", "os.system"), "os.system"),
        (("--model.class_path", "subprocess.Popen", "--model.args", "touch sign"), "subprocess.Popen"),
        (("--model.class_path", "builtins.eval"), "builtins.eval"),
        (("--data.class_path", "pathlib.Path"), "pathlib.Path"),
        (("--trainer.callbacks", '{class_path: os.system, init_args: {command: "touch sign"}}'), "callbacks"),
        (("--trainer.callbacks", "{class_path: xbench.models.Oracle}"), "callbacks"),
        (("--trainer.logger", '{class_path: subprocess.Popen, init_args: {args: "touch sign"}}'), "logger"),
        (("--trainer.profiler", '{class_path: os.system, init_args: {command: "touch sign"}}'), "profiler"),
    ],
)
def test_classes_that_are_no_part_of_a_run(command, tmp_path, options, said):
    config = tmp_path / "data.yaml"
    config.write_text("data: {class_path: xbench.data.PhantomCXR}\n")
    if not options[0].startswith("--model"):
        config.write_text("model: {class_path: xbench.models.Oracle}\n" + config.read_text())
    if options[0].startswith("--data"):
        config.write_text("model: {class_path: xbench.models.Oracle}\n")
    run = command("test", "--config", config, *options)
    assert run.status == 2 and run.folder is None
    assert said in run.errors and "Traceback" not in run.errors
    assert not (tmp_path / "sign").exists()


def test_yaml_that_refers_to_itself_does_not_grow(tmp_path):
    """A billion laughs: nine levels of nine references each."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 9)]
    path = tmp_path / "laughs.yaml"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError):
        read_prompts(path)
    with pytest.raises(UserError):
        read_bench([str(path)])
    path.write_text("models: {clip: {prompts: &a [*a]}}\n")
    with pytest.raises(UserError):
        read_bench([str(path)])


LEVELS = "a0: &a0 {first}\n" + "".join(
    f"a{k}: &a{k} {{around[0]}}{', '.join([f'*a{k - 1}'] * 10)}{{around[1]}}\n" for k in range(1, 6)
)


@pytest.mark.parametrize(
    "bomb",
    [
        LEVELS.format(first="x", around=("[", "]")),
        LEVELS.format(first="{x: 1}", around=("{<<: [", "]}")),
        "a: &a [*a]\n",
        "a: " + "[" * 200 + "]" * 200,
    ],
    ids=["lists", "merged", "itself", "deep"],
)
def test_a_configuration_that_stands_for_more_than_it_could_hold(command, tmp_path, bomb):
    (tmp_path / "bomb.yaml").write_text(bomb)
    (tmp_path / "names_it.yaml").write_text("model: bomb.yaml\n")
    for words in (("test", "bomb.yaml"), ("test", "names_it.yaml"), ("bench", "bomb.yaml")):
        run = command(words[0], "--config", words[1])
        assert run.status == 2 and "more than 100,000 entries or 100 levels" in run.errors


@given(
    st.recursive(
        st.integers(0, 3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
        max_leaves=12,
    ),
    st.integers(0, 60),
)
def test_entries_are_counted_as_if_they_were_written_out(value, most):
    def entries(value):
        if isinstance(value, dict):
            return 1 + sum(1 + entries(inner) for inner in value.values())
        return 1 + sum(map(entries, value)) if isinstance(value, list) else 1

    # One object in two places is dumped as an alias.
    text, count = yaml.safe_dump([value, {"a": value}, [value]]), 4 + 3 * entries(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xbench.commands.configs._MAX_ENTRIES", most)
        with pytest.raises(yaml.YAMLError) if count > most else nullcontext():
            check_yaml(text)


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_prompts_without_end(tmp_path, name):
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(UserError) as caught:
        read_prompts(tmp_path / name)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "a\\b", ".."])
def test_names_in_a_benchmark_are_no_paths(tmp_path, name):
    (tmp_path / "bench.yaml").write_text(f"variants: {{'{name}': {{model: {{prompts: name}}}}}}\n")
    with pytest.raises(UserError):
        read_bench([str(tmp_path / "bench.yaml")])
