"""A client of OpenAI-compatible chat completions, as vLLM, SGLang, ollama, llama.cpp and hosted services speak them.

Images leave the machine only for a host that the user names: redirects are not followed, and proxies of the environment
are not used unless allowed. The key is read from the environment when a request is made, and stands in no message.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import math
import os
import random
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from xbench.runtime.errors import UserError

_CONNECT = 10.0  # seconds
_LONGEST_WAIT = 60.0  # between attempts, unless the server says otherwise
_PATIENCE = 900.0  # seconds that a server may ask to wait; a day's quota is no reason to sleep for a day
_MOST_BYTES = 2**25  # of a response
_MOST_TOKENS = 2**53  # no server counts so far


_Result = TypeVar("_Result")


class NoAnswer(Exception):
    """A request brought nothing back, after all attempts; the text says what came instead."""


class _Again(Exception):
    """A request brought nothing back, and another attempt may; `after` are seconds that the server asks to wait."""

    def __init__(self, what: str, after: float | None = None) -> None:
        super().__init__(what)
        self.after = after


@dataclass(frozen=True)
class Completion:
    """What a server says to a request.

    Attributes:
        text: As received; a refusal's words if there are no others.
        finish: Why it ended, in the server's word.
        tokens_in: Tokens of the request; None where the server does not count.
        tokens_out: Tokens of the answer; None where the server does not count.
        top: Likeliest first tokens with their log-probabilities; None where the server lists none.
        reasoning: What it gives apart as thinking.
        served: Name of the model and of the server's state, as it gives them.
    """

    text: str
    finish: str | None
    tokens_in: int | None
    tokens_out: int | None
    top: tuple[tuple[str, float], ...] | None
    reasoning: str | None
    served: str

    @classmethod
    def read(cls, response: Any) -> Completion:
        """Read the JSON of a response; raise a ValueError where it holds no answer."""
        if not isinstance(response, dict):
            raise ValueError("JSON that is no object")
        if response.get("error"):
            raise ValueError(f"an error in place of an answer: {_brief(response['error'])}")
        choices = response.get("choices")
        if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
            raise ValueError("no choices")
        choice, message = choices[0], choices[0].get("message")
        if not isinstance(message, dict) or "content" not in message:
            raise ValueError("a choice without a message")
        content, finish = message["content"], choice.get("finish_reason")
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
            content = "".join(part for part in parts if isinstance(part, str))
        if content is None:
            content = message.get("refusal") or ""
        if not isinstance(content, str):
            raise ValueError("a message that is no text")
        if not content and finish == "content_filter":
            raise ValueError("a refusal of its content filter, without a word")
        usage = response.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        served = [response.get(name) for name in ("model", "system_fingerprint")]
        return cls(
            content,
            finish if isinstance(finish, str) else None,
            _count(counts.get("prompt_tokens")),
            _count(counts.get("completion_tokens")),
            _first_tokens(choice.get("logprobs")),
            _whole_text(reasoning) if isinstance(reasoning, str) else None,
            _whole_text(" ".join(one for one in served if isinstance(one, str))),
        )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else None


def _whole_text(text: str) -> str:
    """Return a text that files of UTF-8 can hold: half surrogate pairs, which JSON may have, are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _first_tokens(logprobs: Any) -> tuple[tuple[str, float], ...] | None:
    """Return what is listed for the first token; entries that are none are left out."""
    try:
        listed = logprobs["content"][0]["top_logprobs"]
        pairs = [(entry["token"], entry["logprob"]) for entry in listed]
    except (KeyError, IndexError, TypeError):
        return None
    # vLLM gives -9999 for what has no probability.
    sound = [
        (token, float(min(log, 0)))  # larger ones may be no float at all
        for token, log in pairs
        if isinstance(token, str) and isinstance(log, int | float) and not isinstance(log, bool) and log > -9999
    ]
    return tuple((token, log) for token, log in sound if math.isfinite(log)) or None


class ChatClient:
    """Asks one server; any number of threads may do so at once.

    Args:
        base_url: Where its API begins, as `http://localhost:8000/v1`.
        model: Name of the model that it serves.
        send_images_to: Host that images may be sent to; none is needed for this machine.
        key_variable: Environment variable that holds the key, if the server wants one.
        environment_proxies: Whether to reach another machine through the proxies that the environment names.
        timeout: Seconds that an answer may take.
        attempts: How often a request is made at most.
        back_off: Seconds before the second attempt, at most; doubled from one attempt to the next.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        send_images_to: str | None = None,
        key_variable: str = "OPENAI_API_KEY",
        environment_proxies: bool = False,
        timeout: float = 120,
        attempts: int = 6,
        back_off: float = 1.0,
    ) -> None:
        url = _checked_url(base_url)
        self.host, self.base_url = url.host, str(url).rstrip("/")
        self._allowed(url, model, send_images_to)
        self._model, self._key_variable = model, key_variable
        self._proxies = environment_proxies and not _is_loopback(url.host)
        self._timeout, self._attempts, self._back_off = timeout, attempts, back_off
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._not_before = 0.0
        self.spent = (0, 0)  # tokens of requests and of answers
        self._warned = False
        self._made: httpx.Client | None = None

    @staticmethod
    def _allowed(url: httpx.URL, model: str, send_images_to: str | None) -> None:
        """Refuse a server that is not on this machine unless its host is named."""
        named = (send_images_to or "").strip().rstrip(".").lower() == url.host.rstrip(".").lower()
        if named:
            return
        if not _is_loopback(url.host):
            given = f" (it names {send_images_to})" if send_images_to else ""
            raise UserError(
                f"--model.base_url is on {url.host}, so radiographs would leave this machine. If they may, add "
                f"--model.send_images_to {url.host}{given}. Agreements on credentialed data (MIMIC, VinDr, PadChest, "
                "CheXpert and others) forbid most third parties, PhysioNet's by name; sent are pixels alone, with "
                "whatever text is burnt into them.",
                exit_status=2,
            )
        if "cloud" in model.lower():
            raise UserError(
                f"--model.model {model}: servers on this machine pass models of a cloud on to it, as ollama does, so "
                f"radiographs would leave this machine. If they may, add --model.send_images_to {url.host}.",
                exit_status=2,
            )

    def begin(self) -> None:
        """Ask again after a stop."""
        self._stopped.clear()

    def stop(self) -> None:
        """End all waiting: requests that would be made again are not."""
        self._stopped.set()

    def complete(self, body: Mapping[str, Any]) -> tuple[Completion, dict[str, Any]]:
        """Ask; return what is said and the server's whole response.

        Raises:
            NoAnswer: Nothing came back, however often it was asked.
            UserError: The server refuses such requests, so that asking again is of no use.
        """
        content = json.dumps(body).encode()

        def ask() -> tuple[Completion, dict[str, Any]]:
            response = self._json("POST", "chat/completions", content)
            completion = Completion.read(response)
            with self._lock:
                asked, answered = self.spent
                self.spent = asked + (completion.tokens_in or 0), answered + (completion.tokens_out or 0)
            return completion, response

        return self._patiently(ask)

    def weights(self) -> str:
        """Return what the server says of the weights behind the model's name, as JSON; nothing if it does not say.

        Servers may put other weights behind the same name: vLLM says which (`root`), llama.cpp how many (`meta`).

        Raises:
            NoAnswer: It cannot be reached.
        """
        try:
            listed = self._patiently(lambda: self._json("GET", "models"))
            (entry,) = [entry for entry in listed["data"] if entry["id"] == self._model]
            said = {name: entry[name] for name in ("root", "meta") if name in entry}
            return json.dumps(said, sort_keys=True)[:2000] if said else ""
        except (UserError, KeyError, TypeError, ValueError, RecursionError):
            return ""

    def _patiently(self, make: Callable[[], _Result]) -> _Result:
        """Make a request until something comes back; NoAnswer after all attempts."""
        for attempt in range(self._attempts):
            self._wait_for_turn()
            try:
                return make()
            except (_Again, ValueError) as error:
                problem = self.without_key(str(error), 4)
                after = getattr(error, "after", None)
            if attempt + 1 < self._attempts:
                self._warn(problem)
                self._wait(after, attempt)
        raise NoAnswer(problem)

    def models(self) -> list[str]:
        """Return the names of the models that the server says it serves, sorted.

        Raises:
            NoAnswer: It cannot be reached, or gives no such list.
            UserError: It refuses to say.
        """
        try:
            listed = self._json("GET", "models")["data"]
            return sorted(entry["id"] for entry in listed if isinstance(entry["id"], str))
        except (_Again, ValueError) as error:
            raise NoAnswer(self.without_key(str(error), 4)) from None
        except (KeyError, TypeError):
            raise NoAnswer("another thing than a list of models") from None

    @property
    def _http(self) -> httpx.Client:
        """The connections, made where they are used: processes that load images must not inherit any."""
        with self._lock:
            if self._made is None:
                certificates = httpx.create_ssl_context(trust_env=False)
                certificates.load_default_certs()
                self._made = httpx.Client(
                    timeout=httpx.Timeout(self._timeout, connect=min(_CONNECT, self._timeout), pool=None),
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                    verify=certificates,
                    trust_env=self._proxies,
                    follow_redirects=False,
                    # Before httpx looks where a redirect leads, which raises errors of any kind.
                    event_hooks={"response": [self._refuse_head]},
                )
            return self._made

    def _json(self, method: str, path: str, content: bytes | None = None) -> Any:
        """Make a request and return the JSON that comes back; `_Again` or ValueError where none does."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        url = f"{self.base_url}/{path}"
        try:
            with (
                _cut_off(self._timeout) as extensions,
                self._http.stream(method, url, content=content, headers=headers, extensions=extensions) as response,
            ):
                body = bytearray()
                for part in response.iter_raw():
                    body += part
                    if len(body) > _MOST_BYTES:
                        raise _Again(f"more than {_MOST_BYTES >> 20} MiB")
        except httpx.TimeoutException as error:
            waited = _CONNECT if isinstance(error, httpx.ConnectTimeout) else self._timeout
            raise _Again(f"no answer within {min(waited, self._timeout):g} s") from None
        except httpx.HTTPError as error:
            raise _Again(str(error) or type(error).__name__) from None
        if not response.is_success:
            readable = b"" if "content-encoding" in response.headers else bytes(body)
            self._refuse(response, _message(readable, lambda said: self.without_key(said, 4)), method, content)
        kind = self.without_key(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
        if not kind.endswith("json"):
            raise _Again(f"{kind[:60] or 'text of no type'} in place of JSON")
        try:
            return self.without_key(json.loads(bytes(body)))
        except (ValueError, RecursionError):
            raise _Again("JSON that is cut off or malformed") from None

    def _key(self) -> str:
        key = os.environ.get(self._key_variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise UserError(f"The key in the environment variable {self._key_variable} has characters that no key has.")
        return key

    def without_key(self, said: Any, shortest: int = 8) -> Any:
        """Return what a server said, a text or JSON, without the key, which some servers repeat.

        Shorter keys stay: words such as `none`, given to a server that needs no key, may be part of an answer.
        """
        key = os.environ.get(self._key_variable, "").strip()
        if len(key) < shortest:
            return said
        if isinstance(said, str):
            return said.replace(key, "***")
        if isinstance(said, list):
            return [self.without_key(one, shortest) for one in said]
        if isinstance(said, dict):
            return {self.without_key(name, shortest): self.without_key(one, shortest) for name, one in said.items()}
        return said

    def _refuse_head(self, response: httpx.Response) -> None:
        """Refuse a redirect, and an answer that is compressed: a few bytes of it can unpack to gigabytes."""
        status, encoding = response.status_code, self.without_key(response.headers.get("content-encoding", "").strip())
        if 300 <= status < 400:
            target = self.without_key(response.headers.get("location", ""), 4)
            raise UserError(
                f"{self.host} answers {status}: it sends requests on to {target[:200] or 'another address'}, and "
                "redirects are not followed, for they could carry radiographs anywhere. If that is the server, give "
                "its address as --model.base_url."
            )
        if response.is_success and encoding.lower() not in ("", "identity"):
            raise UserError(
                f"{self.host} sends answers that are compressed ({encoding[:60]}), although the "
                "request allows none such, and they are not unpacked. Turn compression off in the server, or in the "
                "proxy in front of it."
            )

    def _refuse(self, response: httpx.Response, said: str, method: str, content: bytes | None) -> None:
        """Raise what a status is: worth another attempt, or not."""
        status, where = response.status_code, f"{self.host} answers {response.status_code}"
        says = f" and says: {said}" if said else ""
        if status in (408, 409, 429) or status >= 500:
            if "insufficient_quota" in said:
                raise UserError(f"{where}{says}. The account has nothing left to spend.")
            raise _Again(f"status {status}{says}", _seconds(response.headers.get("retry-after")))
        known = "is not set" if not os.environ.get(self._key_variable, "").strip() else "is not accepted"
        hints = {
            401: f"The key in the environment variable {self._key_variable} (--model.key_variable) {known}.",
            403: f"The key in the environment variable {self._key_variable} (--model.key_variable) may not do this.",
            404: f"Look at --model.base_url, which usually ends in /v1, and at --model.model{self._offered(method)}.",
        }
        hint = hints.get(status, f"Look at the options of --model{self._offered(method) if status == 400 else ''}.")
        if content is not None and (status == 413 or ("image" in said.lower() and "size" in said.lower())):
            hint = (
                f"The request has {len(content):,} bytes: give --model.longest_side, or --model.image_format jpeg, for "
                "smaller images."
            )
        elif "max_completion_tokens" in said:
            hint = "Give --model.max_tokens_name max_completion_tokens."
        elif "logprobs" in said:
            hint = "Give --model.top_logprobs 0, or as many as the server allows."
        raise UserError(f"{where}{says}. {hint}")

    def _offered(self, method: str) -> str:
        """Return which models there are, for the message that one is not."""
        if method == "GET":
            return ""
        try:
            names = self.models()
        except (NoAnswer, UserError):
            return ""
        return "" if self._model in names else f"; it serves {near_names(self._model, names)}"

    def _warn(self, problem: str) -> None:
        """Say once that requests fail: waiting in silence looks like a run that hangs."""
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            warnings.warn(
                f"{self.host}: {problem}. What fails like this is asked again, up to {self._attempts} times in all.",
                stacklevel=2,
            )

    def _wait_for_turn(self) -> None:
        """Wait as long as the server asked for, whichever request it told."""
        while not self._stopped.is_set() and (left := self._not_before - time.monotonic()) > 0:
            self._stopped.wait(left)
        if self._stopped.is_set():
            raise NoAnswer("nothing, for it was not asked any more")

    def _wait(self, after: float | None, attempt: int) -> None:
        if after is not None:
            if after > _PATIENCE:
                raise UserError(
                    f"{self.host} asks to wait for {after:,.0f} s, which is more than the {_PATIENCE:.0f} s that a run "
                    "waits."
                )
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + after)
        # Of any length up to the most, so that threads and processes do not come back together.
        self._stopped.wait(random.uniform(0, min(_LONGEST_WAIT, self._back_off * 2**attempt)))


@contextmanager
def _cut_off(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the extensions of a request whose connection is shut down after so many seconds; `_Again` if it was.

    The time-outs of httpx begin anew with each byte and with each `100 Continue`.
    """
    sockets: list[socket.socket] = []
    late = threading.Event()

    def shut_down() -> None:
        late.set()
        for one in sockets:
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)  # of its class: SSLSocket's is not for other threads

    def trace(event: str, about: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            sockets.append(about["return_value"].get_extra_info("socket"))
            if late.is_set():
                shut_down()

    timer = threading.Timer(seconds, shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield {"trace": trace}
    except httpx.HTTPError:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise _Again(f"no answer within {seconds:g} s")


def near_names(name: str, names: list[str]) -> str:
    """Return the names like this one, or the first of all."""
    near = difflib.get_close_matches(name, names, n=3) or names[:8]
    return ", ".join(near) + (f" and {len(names) - len(near)} more" if len(near) < len(names) else "") or "none"


def _checked_url(text: str) -> httpx.URL:
    """Return the address of a server; a UserError for what is none, or what holds a secret."""
    try:
        url = httpx.URL(text.strip())
        sound = url.scheme in ("http", "https") and url.host
    except httpx.InvalidURL:
        sound = False
    if not sound:
        raise UserError("--model.base_url must be an address like http://localhost:8000/v1.", exit_status=2)
    if url.userinfo or url.query or url.fragment:
        raise UserError(
            f"--model.base_url on {url.host} holds a user, a query or a fragment. It is written to the results, so a "
            "key has no place in it: put that into the environment variable that --model.key_variable names.",
            exit_status=2,
        )
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _seconds(text: str | None) -> float | None:
    """Return the seconds of a Retry-After, which is a number or a date."""
    if text is None:
        return None
    try:
        number = float(text)
        return max(0.0, number) if math.isfinite(number) else None
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _message(body: bytes, without_key: Callable[[Any], Any]) -> str:
    """Return what a response that is no answer says, in a line; the key is taken out before anything is cut off."""
    try:
        said = without_key(json.loads(body))
    except (ValueError, RecursionError):
        said = without_key(body.decode("utf-8", "replace"))[:2000]
    while isinstance(said, dict):
        code = said.get("code")
        inner = next((said[name] for name in ("error", "message", "detail") if said.get(name)), None)
        if isinstance(inner, str) and isinstance(code, str) and code not in inner:
            inner = f"{inner} ({code})"
        said = inner
    return _brief(said) if said else ""


def _brief(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        text = "something deeply nested"
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(text.split())[:300].rstrip(".")


def in_threads(count: int, tasks: list[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run tasks in so many threads at a time; they raise nothing.

    Ctrl-C calls `stop` and waits for nobody: a request under way would keep the process for minutes.
    """
    waiting, lock = iter(tasks), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                task = next(waiting, None)
            if task is None:
                return
            task()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(count, len(tasks)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        with lock:
            waiting = iter(())
        stop()
        raise
