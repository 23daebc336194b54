from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xbench.findings.names import TABLE
from xbench.findings.prompts import (
    STYLES,
    Wording,
    fill_templates,
    phrase,
    prompts_in_style,
    read_prompts,
    wording,
    wordings,
)
from xbench.runtime.errors import UsageError, UserError

NAMES = [finding.name for finding in TABLE]
NORMAL = ["Normal", "Clear Lungs"]


def texts_of(words: Wording) -> list[str]:
    return [words.phrase, words.description, *words.aspects.values()]


@pytest.mark.parametrize("name", NAMES + NORMAL)
def test_form_of_a_wording(name: str) -> None:
    words = wording(name)
    assert [*words.aspects] == ["border", "fluid", "location", "opacity", "other", "patterns", "shape", "texture"]
    for statement in words.aspects.values():
        # It goes after "aspect: ", and a second colon would look like another aspect.
        assert re.fullmatch(r"[a-z][^.:;]*[^.:;,]", statement)
    # The densest of these texts make 0.34 pieces a character with the vocabulary of BERT: 60 at most.
    assert all(len(text) <= 175 for text in texts_of(words))


def test_every_finding_is_worded_and_no_text_stands_twice() -> None:
    assert (list(wordings("findings")), list(wordings("normal"))) == (NAMES, NORMAL)
    texts = [text for name in NAMES + NORMAL for text in texts_of(wording(name))]
    assert len({text.lower() for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        ("Enlarged PA", "enlarged pulmonary artery"),
        ("ILD", "interstitial lung disease"),
        ("Nodule/Mass", "nodule or mass"),
        ("Normal", "normal heart and lungs"),
        ("Hiatal  Hernia", "hiatal hernia"),
        ("Widened PA", "widened PA"),
        ("MERS-2", "MERS-2"),
    ],
)
def test_phrase(finding: str, expected: str) -> None:
    assert phrase(finding) == expected
    assert prompts_in_style("phrase", finding) == [expected]
    assert fill_templates(["There is {finding}.", "{finding}"], finding) == [f"There is {expected}.", expected]


def test_styles_of_an_unworded_finding() -> None:
    assert STYLES == ("name", "phrase", "description", "aspects")
    assert prompts_in_style("name", "Hiatal Hernia") == ["Hiatal Hernia"]
    for style in ("description", "aspects"):
        with pytest.raises(UserError, match="Hiatal Hernia"):
            prompts_in_style(style, "Hiatal Hernia")
    with pytest.raises(UserError, match="name, phrase, description, aspects"):
        prompts_in_style("haiku", "Mass")  # type: ignore[arg-type]


@pytest.mark.parametrize("templates", [["{finding} {}"], ["{other}"], ["{finding"], ["no field"], ["{finding}"] * 2])
def test_wrong_templates(templates: list[str]) -> None:
    with pytest.raises(UserError, match="template"):
        fill_templates(templates, "Mass")


def written(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("classes.json", '{"0": ["There is Edema"], "1": ["a", "b"]}', {"0": ["There is Edema"], "1": ["a", "b"]}),
        ("bare.yaml", "0: [There is Edema]\n1:\n- a\n- b\n", {"0": ["There is Edema"], "1": ["a", "b"]}),
        ("book.json", '{"normal": "z.", "clear": "a.\\n"}', {"normal": ["z."], "clear": ["a.\n"]}),
        ("book.yml", "normal: z.\n# comment\nclear: 'a: b'\n", {"normal": ["z."], "clear": ["a: b"]}),
        ("BOOK.JSON", '{"a\\tb": " kept "}', {"a\tb": [" kept "]}),
        ("json in yaml", '{"b": ["x"], "a": "y"}', {"b": ["x"], "a": ["y"]}),
        ("mark.json", b'\xef\xbb\xbf{"a": "\xc3\xb6"}', {"a": ["ö"]}),
        ("mark.yaml", b"\xef\xbb\xbfa: \xc3\xb6", {"a": ["ö"]}),
        ("alias.yaml", "a: &x one\nb: [*x, two]\n", {"a": ["one"], "b": ["one", "two"]}),
        ("folded.yaml", "a: >-\n  one\n  two\n", {"a": ["one two"]}),
    ],
)
def test_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | bytes, expected: dict[str, list[str]]
) -> None:
    found = read_prompts(written(tmp_path, name, content))
    assert list(found.items()) == list(expected.items())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_prompts(f"~/{name}") == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"b": "x", "a": "y", "b": "z"}', "key 'b' occurs twice"),
        ("a.yaml", "b: x\na: y\nb: z\n", "key 'b' occurs twice"),
        ("a.json", "{}", "not a mapping"),
        ("a.yaml", "", "not a mapping"),
        ("a.json", "{'a': 'x'}", "is not valid JSON.*line 1 column 2"),
        ("a.yaml", "a: [x", "is not valid YAML.*line 1"),
        ("a.yaml", "a: x\n---\nb: y\n", "is not valid YAML.*line 2"),
        ("a.json", b'{"a": "\xff"}', "is not valid JSON"),
        ("a.yaml", b"a: \xff", "is not valid YAML"),
        ("a.json", "[" * 100_000, "is not valid JSON"),
        ("a.yaml", "[" * 2_000, "is not valid YAML"),
        ("a.json", '{"a": %s}' % ("9" * 5_000), "is not valid JSON"),
        ("a.json", '{"a": ""}', "has no text for 'a'"),
        ("a.json", '{"a": ["x", ""]}', "has no text for 'a'"),
        ("a.json", '{"a": "\\ud800"}', "has no text for 'a'"),
        ("a.json", '{"": "x"}', "has no text for ''"),
        ("a.yaml", "a: 1", "has no text for 'a'"),
        ("a.yaml", "a:\n- border: sharp\n", "colon"),
        ("a.yaml", "? [a]\n: x", "has no text for ''"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_prompts(written(tmp_path, name, content))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["missing.json", "missing.yaml", "", "~nobody-of-this-name/a.yaml"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(name if name.startswith("~") else tmp_path / name)


@pytest.mark.parametrize(
    "content", ["!!python/object/apply:pathlib.Path.touch [{}]", "? !!python/object/apply:os.system ['touch {}']\n: x"]
)
def test_nothing_in_a_file_is_executed(tmp_path: Path, content: str) -> None:
    touched = tmp_path / "touched"
    with pytest.raises(UserError):
        read_prompts(written(tmp_path, "a.yaml", content.format(touched)))
    assert not touched.exists()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
PROMPTS = st.dictionaries(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prompts")


@settings(deadline=None)
@given(prompts=PROMPTS, bare=st.booleans(), wide=st.booleans())
def test_what_was_written_is_read(folder: Path, prompts: dict[str, list[str]], bare: bool, wide: bool) -> None:
    content = {name: texts[0] if bare and len(texts) == 1 else texts for name, texts in prompts.items()}
    as_json, as_yaml = json.dumps(content, ensure_ascii=not wide), yaml.safe_dump(content, sort_keys=False)
    for name, text in (("written.json", as_json), ("written.yaml", as_yaml)):
        found = read_prompts(written(folder, name, text))
        assert list(found.items()) == list(prompts.items())


YAML_PIECES = st.sampled_from(
    [
        *"a0\n\t\x85\u2028\ufeff{}[]!%#~@`'\"",
        *("b: ", "- ", "  ", ", ", ": ", "? ", "&x ", "*x", "<<: ", "!!", "!<", ">-", "|2", "\\x", "\\U00110000"),
        *("---\n", "...\n", "%YAML 1.", "%TAG ! ", "!!int ", "!!python/name:os", "2001-99-99"),
    ]
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
CONTENTS = (
    st.binary(max_size=60)
    | st.text(max_size=60).map(str.encode)
    | st.lists(YAML_PIECES, max_size=25).map(lambda pieces: "".join(pieces).encode())
    | JSON_VALUES.map(lambda value: json.dumps(value).encode())
)


@settings(deadline=None, max_examples=150)
@given(content=CONTENTS)
@example(content=b"%YAML 1." + b"9" * 5_000 + b"\n--- a")
@example(content=b"!%ff%fe a: b")
@example(content=b"a: !!int")
@example(content=b"a: !!timestamp x")
@example(content=b"\xff\xfea\x00:\x00 \x00b\x00")
def test_whatever_the_file_holds_only_user_errors_come_out(folder: Path, content: bytes) -> None:
    for name in ("any.json", "any.yaml"):
        try:
            prompts = read_prompts(written(folder, name, content))
        except UserError as error:
            message = str(error)
            assert "\n" not in message
            message.encode()
            continue
        assert prompts
        for key, texts in prompts.items():
            assert texts and all(text.strip() and text.encode() for text in (key, *texts))
