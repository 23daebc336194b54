"""A client for OpenAI-compatible chat completions (vLLM, SGLang, ollama, llama.cpp and hosted services).

Images leave the machine only for a host that the user names: redirects are not followed, and environment proxies are
off by default. The key is read from the environment for each request and appears in no message.
"""

from __future__ import annotations

import asyncio
import difflib
import ipaddress
import json
import math
import os
import random
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from xbench.models.base import check_at_least_one
from xbench.predictions.asking import Reply
from xbench.runtime.errors import UsageError, UserError

_CONNECT = 10.0  # seconds
_LONGEST_WAIT = 60.0  # seconds between attempts, unless the server asks for more
_PATIENCE = 900.0  # most seconds to wait at a server's request; a daily quota would take longer
_MOST_BYTES = 2**25  # of a response
_MOST_TOKENS = 2**53  # larger counts are invalid

_Result = TypeVar("_Result")


class NoAnswer(Exception):
    """A request returned nothing; `after` is the number of seconds that the server asks to wait."""

    def __init__(self, problem: str, after: float | None = None) -> None:
        super().__init__(problem)
        self.after = after


def read_reply(response: Any) -> Reply:
    """Return the reply in the JSON of a response; raise a ValueError if there is none."""
    if not isinstance(response, dict):
        raise ValueError("JSON that is not an object")
    if response.get("error"):
        raise ValueError(f"an error in place of an answer: {_brief(response['error'])}")
    try:
        choice = response["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        content = message["content"]
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
            content = "".join(part for part in parts if isinstance(part, str))
        content = (message.get("refusal") or "") if content is None else content
    except (LookupError, TypeError, AttributeError):
        raise ValueError("a response without a choice that has a message") from None
    if not isinstance(content, str):
        raise ValueError("a message that is not text")
    if not content and finish == "content_filter":
        raise ValueError("an empty refusal by its content filter")
    usage = response.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return Reply(
        content,
        finish if finish in ("stop", "length") else None,
        tokens_in=_count(counts.get("prompt_tokens")),
        tokens_out=_count(counts.get("completion_tokens")),
        top=_first_tokens(choice.get("logprobs")),
        reasoning=_whole_text(reasoning) if isinstance(reasoning, str) else None,
    )


def served_by(response: Mapping[str, Any]) -> str:
    """Return the names of the model and of the server's state in a response."""
    names = [response.get(name) for name in ("model", "system_fingerprint")]
    return _whole_text(" ".join(name for name in names if isinstance(name, str)))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else None


def _whole_text(text: str) -> str:
    """Return a text that UTF-8 can encode: JSON may contain half surrogate pairs, which are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _first_tokens(logprobs: Any) -> tuple[tuple[str, float], ...] | None:
    try:
        pairs = [(entry["token"], entry["logprob"]) for entry in logprobs["content"][0]["top_logprobs"]]
    except (LookupError, TypeError):
        return None
    # vLLM gives -9999 for probability 0; values above 0 may not be floats at all.
    sound = [(token, float(min(log, 0))) for token, log in pairs if type(log) in (int, float) and log > -9999]
    return tuple((token, log) for token, log in sound if isinstance(token, str) and math.isfinite(log)) or None


@dataclass(eq=False)
class ChatClient:
    """Client of one server; the arguments are options of `xbench.models.Endpoint`."""

    base_url: str
    model: str
    send_images_to: str | None = None
    key_variable: str = "OPENAI_API_KEY"
    environment_proxies: bool = False
    timeout: float = 120
    attempts: int = 6
    back_off: float = 1.0

    def __post_init__(self) -> None:
        check_at_least_one(attempts=self.attempts)
        url = _checked_url(self.base_url)
        _check_allowed(url, self.model, self.send_images_to)
        self.host, self.base_url = url.host, str(url).rstrip("/")
        self.environment_proxies = self.environment_proxies and not _is_loopback(url.host)
        self.spent = (0, 0)  # tokens of requests and of answers
        self._not_before = 0.0
        self._warned = False
        self._http: httpx.AsyncClient

    def run(self, requests: Coroutine[Any, Any, _Result]) -> _Result:
        """Make requests over new connections, which processes that load images must not inherit."""

        async def connected() -> _Result:
            certificates = httpx.create_ssl_context(trust_env=False)
            certificates.load_default_certs()
            async with httpx.AsyncClient(
                timeout=httpx.Timeout(None, connect=min(_CONNECT, self.timeout)),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                verify=certificates,
                trust_env=self.environment_proxies,
                follow_redirects=False,
                # Runs before httpx follows a redirect, which can raise errors of any kind.
                event_hooks={"response": [self._refuse_head]},
            ) as self._http:
                return await requests

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(connected())
        with ThreadPoolExecutor(1) as pool:  # a notebook already runs a loop
            return pool.submit(asyncio.run, connected()).result()

    async def complete(self, body: Mapping[str, Any]) -> tuple[Reply, dict[str, Any]]:
        """Return the reply and the whole response; NoAnswer if all attempts fail, UserError if the server refuses."""
        content = json.dumps(body).encode()

        async def ask() -> tuple[Reply, dict[str, Any]]:
            response = await self._json("POST", "chat/completions", content)
            return read_reply(response), response

        reply, response = await self._patiently(ask)
        asked, answered = self.spent
        self.spent = asked + (reply.tokens_in or 0), answered + (reply.tokens_out or 0)
        return reply, response

    async def weights(self) -> str:
        """Return the server's description of the model's weights as JSON; empty if it has none.

        Servers may change the weights behind a name: vLLM names them (`root`), llama.cpp counts them (`meta`). Raises
        NoAnswer if the server cannot be reached.
        """
        try:
            models = (await self._patiently(lambda: self._json("GET", "models")))["data"]
            (entry,) = [entry for entry in models if entry["id"] == self.model]
            about = {name: entry[name] for name in ("root", "meta") if name in entry}
            return json.dumps(about, sort_keys=True)[:2000] if about else ""
        except (UserError, KeyError, TypeError, ValueError, RecursionError):
            return ""

    async def models(self) -> list[str]:
        try:
            listed = (await self._json("GET", "models"))["data"]
            return sorted(entry["id"] for entry in listed if isinstance(entry["id"], str))
        except (NoAnswer, ValueError) as error:
            raise NoAnswer(self.without_key(str(error), 4)) from None
        except (KeyError, TypeError):
            raise NoAnswer("something other than a list of models") from None

    async def _patiently(self, make: Callable[[], Awaitable[_Result]]) -> _Result:
        for attempt in range(self.attempts):
            # A wait that the server asked for applies to all requests.
            while (left := self._not_before - time.monotonic()) > 0:
                await asyncio.sleep(left)
            try:
                return await make()
            except (NoAnswer, ValueError) as error:
                problem = self.without_key(str(error), 4)
                after = getattr(error, "after", None)
            if attempt + 1 == self.attempts:
                break
            if not self._warned:  # a silent wait looks like a run that hangs
                self._warned = True
                again = f"Such failures are retried, up to {self.attempts} attempts in all."
                warnings.warn(f"{self.host}: {problem}. {again}", stacklevel=2)
            if after is not None:
                if after > _PATIENCE:
                    longer = f"more than the {_PATIENCE:.0f} s that a run waits."
                    raise UserError(f"{self.host} asks to wait for {after:,.0f} s, {longer}")
                self._not_before = max(self._not_before, time.monotonic() + after)
            # Random, so that requests and processes do not come back together.
            await asyncio.sleep(random.uniform(0, min(_LONGEST_WAIT, self.back_off * 2**attempt)))
        raise NoAnswer(problem)

    async def _json(self, method: str, path: str, content: bytes | None = None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        key = os.environ.get(self.key_variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise UserError(f"The key in the environment variable {self.key_variable} has invalid characters.")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        body, url = bytearray(), f"{self.base_url}/{path}"
        try:
            # httpx restarts its timeouts with each byte and each `100 Continue`.
            async with (
                asyncio.timeout(self.timeout),
                self._http.stream(method, url, content=content, headers=headers) as response,
            ):
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > _MOST_BYTES:
                        raise NoAnswer(f"more than {_MOST_BYTES >> 20} MiB")
        except (TimeoutError, httpx.TimeoutException) as error:
            waited = min(_CONNECT, self.timeout) if isinstance(error, httpx.ConnectTimeout) else self.timeout
            raise NoAnswer(f"no answer within {waited:g} s") from None
        except httpx.HTTPError as error:
            raise NoAnswer(str(error) or type(error).__name__) from None
        if not response.is_success:
            readable = b"" if "content-encoding" in response.headers else bytes(body)
            message = _message(readable, lambda value: self.without_key(value, 4))
            await self._refuse(response, message, method, content)
        kind = self.without_key(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
        if not kind.endswith("json"):
            raise NoAnswer(f"{kind[:60] or 'text without a type'} instead of JSON")
        try:
            return self.without_key(json.loads(bytes(body)))
        except (ValueError, RecursionError):
            raise NoAnswer("JSON that is cut off or malformed") from None

    def without_key(self, value: Any, shortest: int = 8) -> Any:
        """Remove the key from a server's text or JSON; shorter ones, such as `none`, may be a word of an answer."""
        key = os.environ.get(self.key_variable, "").strip()
        if len(key) < shortest:
            return value
        if isinstance(value, str):
            return value.replace(key, "***")
        if isinstance(value, list):
            return [self.without_key(part, shortest) for part in value]
        if isinstance(value, dict):
            return {self.without_key(name, shortest): self.without_key(part, shortest) for name, part in value.items()}
        return value

    async def _refuse_head(self, response: httpx.Response) -> None:
        """Refuse a redirect, and a compressed response, because a few bytes can unpack to gigabytes."""
        status, encoding = response.status_code, self.without_key(response.headers.get("content-encoding", "").strip())
        if 300 <= status < 400:
            target = self.without_key(response.headers.get("location", ""), 4)
            raise UserError(
                f"{self.host} answers {status}: it redirects to {target[:200] or 'another address'}, and redirects are "
                "not followed. If that is the server, give its address as --model.base_url."
            )
        if response.is_success and encoding.lower() not in ("", "identity"):
            raise UserError(
                f"{self.host} sends compressed answers ({encoding[:60]}), which are not unpacked. Turn compression off "
                "in the server, or in the proxy in front of it."
            )

    async def _refuse(self, response: httpx.Response, message: str, method: str, content: bytes | None) -> None:
        status, says = response.status_code, f" and says: {message}" if message else ""
        again = status in (408, 409, 429) or status >= 500
        if again and "insufficient_quota" not in message:
            raise NoAnswer(f"status {status}{says}", _seconds(response.headers.get("retry-after", "")))
        key = f"The key in the environment variable {self.key_variable} (--model.key_variable)"
        if again:
            hint = "The account has nothing left to spend."
        elif content is not None and (status == 413 or ("image" in message.lower() and "size" in message.lower())):
            hint = f"The request has {len(content):,} bytes: give --model.longest_side, or --model.image_format jpeg."
        elif "max_completion_tokens" in message:
            hint = "Give --model.max_tokens_name max_completion_tokens."
        elif "logprobs" in message:
            hint = "Give --model.top_logprobs 0, or as many as the server allows."
        elif status == 401:
            hint = f"{key} {'is not accepted' if os.environ.get(self.key_variable, '').strip() else 'is not set'}."
        elif status == 403:
            hint = f"{key} does not permit this."
        else:
            offered = ""
            if method != "GET" and status in (400, 404):
                with suppress(NoAnswer, UserError):
                    if self.model not in (names := await self.models()):
                        offered = f"; it serves {near_names(self.model, names)}"
            places = {404: "--model.base_url, which usually ends in /v1, and --model.model"}
            hint = f"Check {places.get(status, 'the options of --model')}{offered}."
        raise UserError(f"{self.host} answers {status}{says}. {hint}")


def near_names(name: str, names: list[str]) -> str:
    """Return the names most like `name`, or the first ones."""
    near = difflib.get_close_matches(name, names, n=3) or names[:8]
    return ", ".join(near) + (f" and {len(names) - len(near)} more" if len(near) < len(names) else "") or "none"


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text.strip())
        sound = url.scheme in ("http", "https") and url.host
    except httpx.InvalidURL:
        sound = False
    if not sound:
        raise UsageError("--model.base_url must be an address like http://localhost:8000/v1.")
    if url.userinfo or url.query or url.fragment:
        raise UsageError(
            f"--model.base_url on {url.host} contains a user, a query or a fragment, and results record it. Put a key "
            "into the environment variable that --model.key_variable names."
        )
    return url


def _check_allowed(url: httpx.URL, model: str, send_images_to: str | None) -> None:
    """Raise a UserError for a server on another machine unless the user names its host."""
    if (send_images_to or "").strip().rstrip(".").lower() == url.host.rstrip(".").lower():
        return
    if not _is_loopback(url.host):
        reason = f"--model.base_url is on {url.host}"
    elif "cloud" in model.lower():
        reason = f"--model.model {model}: servers on this machine, such as ollama, forward cloud models"
    else:
        return
    given = f" (now {send_images_to})" if send_images_to else ""
    raise UsageError(
        f"{reason}, so radiographs would leave this machine. If they may, add --model.send_images_to {url.host}{given}"
        ". Agreements on credentialed data (MIMIC, VinDr, PadChest, CheXpert and others) forbid most third parties, "
        "PhysioNet's by name. Only pixels are sent, including any text burnt into them."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _seconds(text: str) -> float | None:
    with suppress(ValueError):
        return max(0.0, number) if math.isfinite(number := float(text)) else None
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return None


def _message(body: bytes, without_key: Callable[[Any], Any]) -> str:
    """Return the message of an error response in one line, shortened only after the key is removed."""
    try:
        message = without_key(json.loads(body))
    except (ValueError, RecursionError):
        message = without_key(body.decode("utf-8", "replace"))[:2000]
    while isinstance(message, dict):
        code = message.get("code")
        inner = next((message[name] for name in ("error", "message", "detail") if message.get(name)), None)
        if isinstance(inner, str) and isinstance(code, str) and code not in inner:
            inner = f"{inner} ({code})"
        message = inner
    return _brief(message) if message else ""


def _brief(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        text = "deeply nested JSON"
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(text.split())[:300].rstrip(".")
