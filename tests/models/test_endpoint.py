from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from functools import partial
from itertools import count
from unittest.mock import AsyncMock

import numpy as np
import pytest
import torch
from chat_server import log
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from xbench.models.answers.client import ChatClient, NoAnswer, _seconds, read_reply, served_by
from xbench.models.answers.endpoint import Endpoint, _Picture
from xbench.predictions.asking import Question, Reply
from xbench.runtime.errors import UserError
from xbench.types import Batch, Truth

KEY = "sk-very-secret"
tags = count()
pytestmark = pytest.mark.filterwarnings("ignore:.*are retried")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def scripted(steps: str) -> str:
    return f"{next(tags)}:{steps}"


def client(address: str, script: str, **options) -> ChatClient:
    options = {"timeout": 5, "back_off": 0.01} | options
    return ChatClient(f"{address}/{script}/v1", "truth", **options)


BODY = {"model": "truth", "messages": []}


def complete(client: ChatClient) -> Reply:
    return client.run(client.complete(BODY))[0]


def batch_of(*images: np.ndarray) -> Batch:
    truth = Truth.concatenate([])
    truth.image_ids = [f"image-{place}" for place in range(len(images))]
    radiographs = [torch.from_numpy(image) for image in images]
    return Batch(torch.empty(len(images), 0), [], [], truth, radiographs=radiographs)


GRAY = np.arange(60 * 40, dtype=np.uint8).reshape(60, 40)


def endpoint(address: str, script: str, tmp_path, **options) -> Endpoint:
    options = {"cache": str(tmp_path / "cache"), "timeout": 5, "back_off": 0.01} | options
    return Endpoint(f"{address}/{script}/v1", "truth", **options)


def queries(*columns: int, kind: str = "locate") -> list[Question]:
    return [Question(kind, 0, column, f"Finding {column}", f"Where is {column}?") for column in columns]


AGAIN = ["500", "503", "502", "504", "408", "409", "429=0", "drop", "cut", "html", "plain", "nonsense", "latin", "deep"]


ENDLESS = ["hang", "drip", "trickle", "continue"]


@pytest.mark.parametrize("steps", [*AGAIN, "huge", "empty", "error", "filter", *ENDLESS])
def test_what_brought_nothing_back_is_asked_again(address, steps):
    script, started = scripted(f"{steps},says=None."), time.monotonic()
    reply = complete(client(address, script, timeout=0.4 if steps in ENDLESS else 5))
    assert time.monotonic() - started < (3 if steps in ENDLESS else 10)
    assert reply.text == "None." and len(log(address, script)) == 2
    assert (reply.tokens_in, reply.tokens_out) == (100, 10)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (
            "401",
            r"answers 401 and says: step 401 of Bearer \*\*\*\. The key in the environment variable OPENAI_API_KEY",
        ),
        ("403", "does not permit this"),
        ("404", "--model.base_url, which usually ends in /v1"),
        ("400", r"step 400 of Bearer \*\*\*\. Check the options"),
        ("400=max_completion_tokens", "--model.max_tokens_name max_completion_tokens"),
        ("400=logprobs", "--model.top_logprobs 0"),
        ("413", r"request has 34 bytes: give --model\.longest_side"),
        ("redirect", "redirects to http://elsewhere.example/v1/chat/completions, and redirects are not"),
        ("redirect=mailto:a", "redirects to mailto:a, and redirects"),
        ("redirect=x:y", "redirects to x:y, and redirects"),
        (f"redirect=x{KEY}", r"redirects to x\*\*\*, and redirects"),
        ("gzip", "compressed.*gzip"),
        ("gzip=br", "compressed.*br"),
        ("long", "answers 400"),
        ("429=86400", "asks to wait for 86,400 s"),
    ],
)
def test_what_is_refused_is_asked_once(address, steps, said):
    script = scripted(steps)
    with pytest.raises(UserError, match=said) as caught:
        complete(client(address, script))
    assert len(log(address, script)) == 1 and KEY[:10] not in str(caught.value)


def test_a_missing_key_and_a_model_that_is_not_served(address, monkeypatch):
    asked = ChatClient(f"{address}/{scripted('404')}/v1", "trutx")
    with pytest.raises(UserError, match="it serves truth and 2 more"):
        complete(asked)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match=r"OPENAI_API_KEY.*is not set"):
        complete(client(address, scripted("401")))
    monkeypatch.setenv("OPENAI_API_KEY", "sk\nInjected: 1")
    with pytest.raises(UserError, match="invalid characters") as caught:
        complete(client(address, scripted("ok")))
    assert "Injected" not in str(caught.value)


def test_a_loop_that_runs_already_is_left_alone(address):
    """As in a notebook."""

    async def cell() -> str:
        return complete(client(address, scripted("says=None."))).text

    assert asyncio.run(cell()) == "None."


def test_retry_after_holds_for_all_requests(address):
    script = scripted("429=0.5,says=None.")
    asked = client(address, script, back_off=0)

    async def ask() -> None:
        first = asyncio.create_task(asked.complete(BODY))
        while not asked._not_before:
            await asyncio.sleep(0.01)
        await asyncio.gather(first, asked.complete(BODY), asked.complete(BODY))

    asked.run(ask())
    first, *others = [request["time"] for request in log(address, script)]
    assert len(others) == 3 and min(others) - first >= 0.45


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3), ("-1", 0), ("Mon, 01 Jan 2001 00:00:00 GMT", 0), ("soon", None), ("", None), ("nan", None)],
)
def test_retry_after(text, seconds):
    assert _seconds(text) == seconds


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "https://api.example.com/v1"},
        {"base_url": "https://api.example.com/v1", "send_images_to": "example.com"},
        {"base_url": "http://127.0.0.1.example.com/v1"},
        {"base_url": "http://localhost.example.com/v1"},
        {"base_url": "http://10.0.0.1:8000/v1"},
        {"base_url": "http://localhost:11434/v1", "model": "qwen3-vl:235b-cloud"},
    ],
)
def test_images_stay_unless_their_host_is_named(options):
    with pytest.raises(UserError, match="leave this machine") as caught:
        Endpoint(**{"model": "m"} | options)
    named = str(caught.value).split("add --model.send_images_to ")[1].split()[0].rstrip(".")
    assert Endpoint(**{"model": "m"} | options | {"send_images_to": named.upper()}).client.host == named


def test_this_machine_needs_no_permission():
    for url in ("http://localhost:1/v1", "http://127.9.9.9/v1", "http://[::1]:8000/v1/"):
        assert ChatClient(url, "m").base_url == url.rstrip("/")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "http://me:pw1@localhost/v1", "x y"])
def test_addresses_that_are_none_or_hold_a_secret(url):
    with pytest.raises(UserError, match=r"--model\.base_url") as caught:
        ChatClient(url, "m")
    assert "pw1" not in str(caught.value)


def test_proxies_of_the_environment_are_not_used(address, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for allowed in (False, True):  # never to this machine itself
        script = scripted("says=None.")
        assert complete(client(address, script, environment_proxies=allowed)).text == "None."
    away = ChatClient("http://a.invalid/v1", "m", "a.invalid", environment_proxies=True, attempts=1)
    assert away.environment_proxies and not ChatClient("http://a.invalid/v1", "m", "a.invalid").environment_proxies
    with pytest.raises(NoAnswer, match="connection"):  # to the proxy, where no server is
        complete(away)


def test_what_is_sent_is_pixels_and_a_question(address, tmp_path):
    script = scripted("says=None.")
    model = endpoint(address, script, tmp_path, extra_body={"top_k": 1}, seed=None)
    (reply,) = model.ask(batch_of(GRAY), queries(0))
    (request,) = log(address, script)
    ((turn,),) = [request["body"].pop("messages")]
    image, text = turn["content"]
    assert text == {"type": "text", "text": "Where is 0?"} and turn["role"] == "user"
    assert request["body"] == {"model": "truth", "temperature": 0, "max_tokens": 1024, "top_k": 1}
    assert request["key"] == f"Bearer {KEY}"
    sent = Image.open(io.BytesIO(base64.b64decode(image["image_url"]["url"].removeprefix("data:image/png;base64,"))))
    assert not sent.info and (np.asarray(sent) == GRAY).all()
    assert (reply.text, reply.finish, reply.tokens_in, reply.tokens_out) == ("None.", "stop", 100, 10)
    assert reply.frame is None and not reply.from_cache and len(reply.prompt_sha256) == 64
    assert model._served_by == {"truth fp_1"}


@pytest.mark.parametrize(
    ("options", "size", "frame"),
    [
        ({"longest_side": 30}, (20, 30), None),
        ({"longest_side": 60}, (40, 60), None),
        ({"longest_side": 30, "frame": "pixels_sent"}, (20, 30), "pixels_sent@20x30"),
        ({"longest_side": 30, "frame": "pixels_resized"}, (20, 30), "pixels_resized@56x84"),
        ({"frame": "thousand_padded_yx"}, (60, 60), None),
        ({"image_format": "jpeg"}, (40, 60), None),
    ],
)
def test_images_are_reduced_or_padded_if_asked(address, tmp_path, options, size, frame):
    model = endpoint(address, "none", tmp_path, **options)
    picture = model._picture(batch_of(GRAY), 0)
    sent = Image.open(io.BytesIO(base64.b64decode(picture.url.partition("base64,")[2])))
    assert sent.size == size and picture.frame == frame
    if "frame" in options and size == (60, 60):
        assert (np.asarray(sent)[:, 10:50] == GRAY).all() and not np.asarray(sent)[:, :10].any()


def test_nothing_is_asked_twice(address, tmp_path):
    script = scripted("says=None.")
    model = endpoint(address, script, tmp_path)
    first = model.ask(batch_of(GRAY), queries(0, 1))
    again = endpoint(address, script, tmp_path, concurrency=1).ask(batch_of(GRAY), queries(1, 0, 2))
    assert len(log(address, script)) == 3
    assert [reply.from_cache for reply in again] == [True, True, False] and again[1].text == first[0].text
    (folder,) = {path.parent.parent for path in tmp_path.rglob("*.json")}
    kept = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    assert len(kept) == 3 and not any("base64" in json.dumps(one) or KEY in json.dumps(one) for one in kept)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o700"}


CHANGES = [{"temperature": 0.5}, {"seed": 1}, {"max_tokens": 9}, {"extra_body": {"a": 1}}, {"revision": "2"}]
CHANGES += [{"text_first": True}, {"image_format": "jpeg"}, {"longest_side": 30}]


def test_another_image_question_setting_or_weights_are_asked_about_again(address, tmp_path, monkeypatch):
    script, other = scripted("says=None."), GRAY.copy()
    other[3, 3] ^= 1
    make = partial(endpoint, address, script, tmp_path)
    for image in (GRAY, other, GRAY.reshape(40, 60)):
        make().ask(batch_of(image), queries(0))
    make(recognise=True).ask(batch_of(GRAY), queries(0, kind="recognise"))
    make().ask(batch_of(GRAY), [Question("locate", 0, 0, "Finding 0", "Where is 0?", "Be brief.")])
    for change in CHANGES:
        make(**change).ask(batch_of(GRAY), queries(0))
    for name, weights in {"truth": '{"root": "weights/truth"}', "nobody": ""}.items():
        asked = ChatClient(f"{address}/{script}/v1", name)
        assert asked.run(asked.weights()) == weights
    monkeypatch.setattr(ChatClient, "weights", AsyncMock(return_value="others"))
    make().ask(batch_of(GRAY), queries(0))
    assert len(log(address, script)) == 5 + len(CHANGES) + 1


def test_texts_that_no_file_can_hold_are_spelled_out():
    message = {"content": "\ud800", "reasoning_content": "\udfff"}
    response = {"choices": [{"message": message}], "model": "\ud83d"}
    read = read_reply(response)
    assert (read.text, read.reasoning, served_by(response)) == ("\ud800", "\\udfff", "\\ud83d")
    logprobs = {"content": [{"top_logprobs": [{"token": "a", "logprob": 10**400}, {"token": "b", "logprob": True}]}]}
    assert read_reply({"choices": [{"message": message, "logprobs": logprobs}]}).top == (("a", 0.0),)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"request": 1, "response": 2}', b"\xff\xfe\x00"])
def test_a_damaged_answer_is_asked_again(address, tmp_path, content):
    script = scripted("says=None.")
    for number in (1, 2):
        endpoint(address, script, tmp_path).ask(batch_of(GRAY), queries(0))
        (path,) = tmp_path.rglob("*.json")
        if number == 1:
            path.write_bytes(content)
    assert len(log(address, script)) == 2 and json.loads(path.read_text())["response"]["choices"]


def test_answers_come_in_the_order_of_the_questions(address, tmp_path):
    script = scripted("500,says=None.")
    model = endpoint(address, script, tmp_path, back_off=0.3)
    replies = model.ask(batch_of(GRAY), queries(*range(20)))
    assert len(replies) == 20 and len(log(address, script)) == 21
    sent = {request["body"]["messages"][0]["content"][1]["text"] for request in log(address, script)}
    assert sent == {f"Where is {place}?" for place in range(20)}


def test_slow_encoding_keeps_no_connection_waiting(address, tmp_path, monkeypatch):
    monkeypatch.setattr(_Picture, "url", property(lambda self: time.sleep(0.25) or "data:image/png;base64,"))
    model = endpoint(address, scripted("says=None."), tmp_path, timeout=1, attempts=1)
    asked = [Question("locate", row, row, "Edema", "Where?") for row in range(8)]
    assert [reply.text for reply in model.ask(batch_of(*[GRAY] * 8), asked)] == ["None."] * 8


def test_an_unanswered_request_ends_the_run_and_keeps_the_others(address, tmp_path):
    script = scripted("says=None.,says=None.,500")
    model = endpoint(address, script, tmp_path, concurrency=1, attempts=2)
    with pytest.raises(UserError, match=r"2 of 4 requests unanswered.*image-0 \(Finding 2\).*--resume true"):
        model.ask(batch_of(GRAY), queries(0, 1, 2, 3))
    assert len(log(address, script)) == 6 and len([*tmp_path.rglob("*.json")]) == 2


def test_a_refusal_stops_the_other_requests(address, tmp_path):
    script = scripted("says=None.,401")
    model = endpoint(address, script, tmp_path, concurrency=1)
    with pytest.raises(UserError, match="answers 401"):
        model.ask(batch_of(GRAY), queries(*range(9)))
    assert len(log(address, script)) == 2


def test_a_limit_of_tokens(address, tmp_path):
    script = scripted("says=None.")
    model = endpoint(address, script, tmp_path, concurrency=1, limit_tokens=220)
    with pytest.raises(UserError, match="limit_tokens 220: 220 is spent"):
        model.ask(batch_of(GRAY), queries(*range(9)))
    assert len(log(address, script)) == 2
    assert model.client.spent == (200, 20)
    # What is kept costs nothing.
    assert len(endpoint(address, script, tmp_path, limit_tokens=1).ask(batch_of(GRAY), queries(0, 1))) == 2


def test_a_limit_of_money(address, tmp_path):
    model = endpoint(address, scripted("says=None."), tmp_path, concurrency=1, prices=(5.0, 25.0), limit_cost=0.002)
    with pytest.raises(UserError, match=r"limit_cost 0\.002: 0\.00225 is spent"):
        model.ask(batch_of(GRAY), queries(*range(9)))
    assert model.cost == pytest.approx((300 * 5 + 30 * 25) / 1e6)
    with pytest.raises(UserError, match=r"needs --model\.prices"):
        Endpoint("http://localhost/v1", "m", limit_cost=1)


@pytest.mark.parametrize(
    ("steps", "text", "finish", "reasoning"),
    [
        ("refusal", "I cannot help with that.", "stop", None),
        ("parts", "None.", "stop", None),
        ("thinks", "None.", "stop", "hm [1, 2, 3, 4]"),
        ("says", "", "stop", None),
        ("filter=As an AI", "As an AI", None, None),
    ],
)
def test_what_counts_as_an_answer(address, tmp_path, steps, text, finish, reasoning):
    (reply,) = endpoint(address, scripted(steps), tmp_path).ask(batch_of(GRAY), queries(0))
    assert (reply.text, reply.finish, reply.reasoning) == (text, finish, reasoning)


@pytest.mark.parametrize(
    ("said", "tokens", "way", "bounded"),
    [("Yes", 20, "first token", False), ("No.", 20, "first token", True), ("No.", 0, "decision", False)],
)
def test_yes_or_no_from_the_listed_tokens_or_from_words(address, tmp_path, said, tokens, way, bounded):
    script = scripted(f"says={said}")
    model = endpoint(address, script, tmp_path, top_logprobs=tokens)
    (reply,) = model.ask(batch_of(GRAY), queries(0, kind="recognise"))
    assert log(address, script)[0]["body"].get("top_logprobs", 0) == tokens
    found = reply.recognition()
    assert (found.way, found.bounded, found.probability > 0.5) == (way, bounded, said == "Yes")


def test_check_asks_which_models_there_are(address, tmp_path, monkeypatch):
    assert endpoint(address, "fine", tmp_path).problems(["Nodule"]) == []
    wrong = Endpoint(f"{address}/v1", "trut", cache=False)
    assert wrong.problems(["Nodule"]) == ["--model.model trut: 127.0.0.1 serves truth and 2 more."]
    down = Endpoint("http://127.0.0.1:9/v1", "truth", cache=False, attempts=2, back_off=0)
    (problem,) = down.problems(["Nodule"])
    assert problem.startswith("127.0.0.1 cannot be asked: http://127.0.0.1:9/v1/models gave")
    with pytest.raises(UserError, match=r"127.0.0.1:9/v1/models gave .*\. The run is unfinished"):
        down.ask(batch_of(GRAY), queries(0, 1))
    monkeypatch.delenv("OPENAI_API_KEY")
    (problem,) = endpoint(address, "secret", tmp_path).problems(["Nodule"])
    assert "OPENAI_API_KEY (--model.key_variable) is not set" in problem


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"attempts": 0}, {"extra_body": {"messages": []}}])
def test_wrong_options(options):
    with pytest.raises(UserError, match=f"--model.{next(iter(options))}"):
        Endpoint("http://localhost/v1", "m", **options)


def test_the_key_is_blotted_out_of_what_a_server_says(address, tmp_path):
    script = scripted("echo,fine")
    model, again = (endpoint(address, script, tmp_path) for _ in range(2))
    model.questions = again.questions = None
    (reply,) = model.ask(batch_of(GRAY), queries(0, kind="recognise"))
    (kept,) = (tmp_path / "cache").rglob("*.json")
    assert (reply.text, reply.reasoning) == ("None. Bearer ***", "Bearer ***, hm")
    assert KEY not in f"{reply} {json.dumps(model.provenance())} {kept.read_text()}"
    # A cache of an earlier version holds it.
    kept.write_text(kept.read_text().replace("***", KEY))
    (known,) = again.ask(batch_of(GRAY), queries(0, kind="recognise"))
    assert known.from_cache and KEY not in f"{known} {json.dumps(again.provenance())}"
    with pytest.raises(NoAnswer, match="instead of JSON") as caught:
        complete(client(address, scripted("type"), attempts=1))
    assert KEY[:5] not in str(caught.value).lower()


def test_a_placeholder_for_a_key_changes_no_answer(address, monkeypatch):
    """Servers on this machine take anything, and people write such words."""
    monkeypatch.setenv("OPENAI_API_KEY", "None")
    assert complete(client(address, scripted("says=None."))).text == "None."
    monkeypatch.setenv("OPENAI_API_KEY", "token123")
    answer = {"token123": ["\token123", 1]}
    assert client(address, "ok").without_key(answer) == {"***": ["\token123", 1]}
    monkeypatch.setenv("OPENAI_API_KEY", "12345678")
    assert client(address, "ok").without_key([12345678]) == [12345678]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "refusal", "finish_reason", "usage", "logprobs", "error"])
            | st.sampled_from(["top_logprobs", "token", "logprob", "prompt_tokens", "type", "text", "model"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_read_or_refused(value):
    sound = {"choices": [{"message": value, "logprobs": value, "finish_reason": value}], "usage": value, "model": value}
    sounder = {"choices": [{"message": {"content": "x"}, "logprobs": {"content": [{"top_logprobs": value}]}}]}
    for response in (value, {"choices": value}, sound, sounder | {"usage": value}):
        try:
            read = read_reply(response)
        except ValueError:
            continue
        assert isinstance(read.text, str) and (read.top is None or all(log <= 0 for _, log in read.top))
