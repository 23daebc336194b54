"""Models behind an OpenAI-compatible server, asked in words where a finding is."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from xbench.models.answering import AnsweringModel, pad_to_square
from xbench.models.answers.client import ChatClient, NoAnswer, near_names, read_reply, served_by
from xbench.models.base import check_at_least_one
from xbench.predictions.answer import Size
from xbench.predictions.asking import Question, Reply
from xbench.predictions.conventions import smart_resize
from xbench.runtime.digests import digest
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.files import cache_folder, expand, write_whole, writing
from xbench.types import Batch

_RESUME = "The run is unfinished and its answers are kept. Run the same command with --resume true to continue."
_OWN = ("model", "messages", "stream", "n")  # `extra_body` must not replace these


@dataclass(frozen=True)
class _Picture:
    """A radiograph to send; `frame` is the frame of its numbers if the sent size decides it."""

    image: Image.Image
    format: Literal["png", "jpeg"]
    frame: str | None
    encoding: asyncio.Lock = field(default_factory=asyncio.Lock)

    @cached_property
    def digest(self) -> str:
        content = f"{self.format} {self.image.size}".encode() + self.image.tobytes()
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    @cached_property
    def url(self) -> str:
        """The data URL, which contains only pixels."""
        encoded = io.BytesIO()
        options = {"quality": 95} if self.format == "jpeg" else {"compress_level": 4}
        self.image.save(encoded, self.format.upper(), **options)
        return f"data:image/{self.format};base64,{base64.b64encode(encoded.getvalue()).decode()}"


class _AnswerCache:
    """A private file per request, named by its digest and written whole: answers can reveal findings of patients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, request: Mapping[str, Any]) -> Any:
        try:
            kept = json.loads(self._file(request).read_bytes())
            return kept["response"] if kept["request"] == request else None
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    def put(self, request: Mapping[str, Any], response: Any, seconds: float) -> None:
        """Store the response to a request, which took `seconds`; raise a UserError if that fails."""
        path, kept = self._file(request), {"request": request, "response": response}
        # Deep nesting can be readable and not writable; such a response is requested again if needed.
        with suppress(RecursionError), writing(f"The answer cannot be stored in {path}", "Give another --model.cache."):
            self.folder.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            about = {"seconds": round(seconds, 3), "time": round(time.time())}
            write_whole(path, json.dumps({**kept, **about}), shared=True)

    def _file(self, request: Mapping[str, Any]) -> Path:
        name = digest(request)
        return self.folder / name[:2] / f"{name}.json"


class Endpoint(AnsweringModel):
    """A model behind a server with OpenAI's chat completions: vLLM, SGLang, ollama, llama.cpp, or hosted.

    Requests contain only the pixels of the radiograph and the question. Images leave the machine only with
    `send_images_to`. The key comes from the environment and is never written. For the frame `thousand_padded` the image
    is padded to a square.

    Args:
        base_url: Address of the server's API, such as http://localhost:8000/v1.
        model: The server's name for the model.
        send_images_to: The host of `base_url`, to allow sending radiographs there; not needed for this machine.
        key_variable: Environment variable that holds the key, if the server needs one.
        family: Format of the answers: `endpoint` for the package's own, or the family of the model.
        text_first: Whether the question precedes the image.
        longest_side: Reduce the longer side to this many pixels before sending; None sends the full size.
        image_format: PNG, or JPEG of quality 95, which is smaller and lossy.
        temperature: Sampling temperature, 0 for the likeliest answer; null leaves it to the server.
        seed: Seed of the sampling; null omits it.
        max_tokens: Most tokens of an answer.
        max_tokens_name: The server's name for `max_tokens`; newer OpenAI models want max_completion_tokens.
        repeats: How often to ask where a finding is, to measure agreement; the first answer is scored.
        top_logprobs: How many first tokens to list when asking whether a finding is present; 0 reads the words.
        extra_body: Further entries of the request that only this server knows.
        revision: Your name for the model that is served; answers cached under another name are not used.
        concurrency: Simultaneous requests in each process.
        timeout: Most seconds for an answer.
        attempts: Most attempts per request.
        back_off: Most seconds before the second attempt, doubled for each further one.
        cache: Folder of the answer cache; true for `answers` in xbench's cache, false for no cache.
        limit_tokens: Stop once this process has spent this many tokens.
        prices: Prices of a million tokens of requests and of answers, in any currency.
        limit_cost: Stop once this much is spent, by these prices.
        environment_proxies: Whether to use the environment's proxies for other machines.
    """

    neutral_options = frozenset(
        {"send_images_to", "key_variable", "concurrency", "timeout", "attempts", "back_off", "cache", "limit_tokens"}
        | {"environment_proxies", "prices", "limit_cost"}
    )

    def __init__(
        self,
        base_url: str,
        model: str,
        send_images_to: str | None = None,
        key_variable: str = "OPENAI_API_KEY",
        family: str = "endpoint",
        text_first: bool = False,
        longest_side: int | None = None,
        image_format: Literal["png", "jpeg"] = "png",
        temperature: float | None = 0.0,
        seed: int | None = 0,
        max_tokens: int = 1024,
        max_tokens_name: str = "max_tokens",
        repeats: int = 1,
        top_logprobs: int = 20,
        extra_body: dict[str, Any] | None = None,
        revision: str | None = None,
        concurrency: int = 8,
        timeout: float = 120,
        attempts: int = 6,
        back_off: float = 1.0,
        cache: bool | str = True,
        limit_tokens: int | None = None,
        prices: tuple[float, float] | None = None,
        limit_cost: float | None = None,
        environment_proxies: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(family, **options)
        patience = timeout, attempts, back_off
        self.client = ChatClient(base_url, model, send_images_to, key_variable, environment_proxies, *patience)
        check_at_least_one(longest_side=longest_side, max_tokens=max_tokens, repeats=repeats)
        check_at_least_one(concurrency=concurrency, limit_tokens=limit_tokens)
        if reserved := [name for name in _OWN if name in (extra_body or {})]:
            raise UsageError(f"--model.extra_body has {reserved[0]}, which xbench sets itself.")
        if limit_cost is not None and prices is None:
            raise UsageError("--model.limit_cost needs --model.prices.")
        self.served_model, self.revision, self.repeats = model, revision, repeats
        sampling = {"temperature": temperature, "seed": seed, max_tokens_name: max_tokens}
        self._settings = {name: value for name, value in sampling.items() if value is not None} | (extra_body or {})
        self._text_first, self._longest_side, self._image_format = text_first, longest_side, image_format
        self._top_logprobs, self._concurrency = top_logprobs, concurrency
        self._limit_tokens, self._prices, self._limit_cost = limit_tokens, prices, limit_cost
        folder = cache_folder() / "answers" if cache is True else expand(cache or "")
        self._cache = None if cache is False else _AnswerCache(Path(folder))
        self._weights: str | None = None  # as the server describes them
        self._served_by: set[str] = set()
        self._counts = [0, 0]  # answers requested, answers from the cache

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        images = {row: self._picture(batch, row) for row in {query.row for query in queries}}
        replies: dict[int, Reply] = {}
        failures: dict[int, str] = {}
        waiting = iter(range(len(queries)))

        async def work() -> None:
            for place in waiting:
                try:
                    replies[place] = await self._reply(queries[place], images[queries[place].row])
                except NoAnswer as error:
                    failures[place] = str(error)

        async def work_together() -> None:
            if self._weights is None:
                self._weights = await self.client.weights()
            # The first error that does not concern a single request ends all others.
            await asyncio.gather(*(work() for _ in range(self._concurrency)))

        try:
            self.client.run(work_together())
        except NoAnswer as error:
            address = f"{self.client.base_url}/models"
            raise UserError(f"{self.client.host} cannot be asked: {address} gave {error}. {_RESUME}") from None
        except UserError as error:
            raise UserError(f"{error} {_RESUME}") from error
        if failures:
            places, names = sorted(failures), batch.truth.image_ids
            named = [f"{names[queries[place].row]} ({queries[place].finding})" for place in places[:3]]
            more = f" and {len(failures) - 3} more" if len(failures) > 3 else ""
            raise UserError(
                f"{self.client.host} left {len(failures)} of {len(queries)} requests unanswered after all attempts: "
                f"{', '.join(named)}{more}. The first failed with {failures[places[0]]}. {_RESUME}"
            )
        return [replies[place] for place in range(len(queries))]

    def _body(self, query: Question, image: str) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": query.text}]
        system = [] if query.system is None else [{"role": "system", "content": query.system}]
        user = {"role": "user", "content": parts[::-1] if self._text_first else parts}
        body = {"model": self.served_model, "messages": [*system, user], **self._settings}
        if query.kind == "recognise" and self._top_logprobs:
            body |= {"logprobs": True, "top_logprobs": self._top_logprobs}
        return body

    async def _reply(self, query: Question, picture: _Picture) -> Reply:
        body = self._body(query, picture.digest)
        server = {"server": self.client.base_url, "revision": self.revision, "weights": self._weights}
        request = server | {"body": body} | ({"turn": query.turn} if query.turn else {})
        try:
            response = self.client.without_key(None if self._cache is None else self._cache.get(request))
            reply, from_cache = read_reply(response), True
        except (ValueError, RecursionError):
            from_cache = False
            limits = {"tokens": (self._limit_tokens, sum(self.client.spent)), "cost": (self._limit_cost, self.cost)}
            for name, (limit, spent) in limits.items():
                if limit is not None and spent is not None and spent >= limit:
                    problem = f"--model.limit_{name} {limit}: {spent:,} is spent. Raise the limit to continue."
                    raise UserError(problem) from None
            async with picture.encoding:  # once, in a thread, because connections would time out during the encoding
                url = await asyncio.to_thread(lambda: picture.url)
            started = time.monotonic()
            reply, response = await self.client.complete(self._body(query, url))
            if self._cache is not None:
                self._cache.put(request, response, time.monotonic() - started)
            if reply.tokens_in is None and (self._limit_tokens, self._limit_cost) != (None, None):
                raise UserError(f"No limit can be kept, because {self.client.host} does not count tokens.") from None
        self._served_by.add(served_by(response))
        self._counts[from_cache] += 1
        top = reply.top if query.kind == "recognise" else None
        prompt = digest(self._body(query, "")["messages"])
        return replace(reply, frame=picture.frame, prompt_sha256=prompt, top=top, from_cache=from_cache)

    @property
    def cost(self) -> float | None:
        if self._prices is None:
            return None
        tokens_in, tokens_out = self.client.spent
        return (tokens_in * self._prices[0] + tokens_out * self._prices[1]) / 1e6

    def on_test_end(self) -> None:
        asked, kept = self._counts
        spent = "{:,} tokens of requests and {:,} of answers".format(*self.client.spent)
        money = "" if self.cost is None else f", which cost {self.cost:,.2f}"
        where = f" (process 0 of {self.trainer.world_size})" if self.trainer.world_size > 1 else ""
        if self.trainer.is_global_zero:
            print(f"Asked {self.client.host} {asked:,} times{where}, with {spent}{money}; {kept:,} answers were known.")

    def _picture(self, batch: Batch, row: int) -> _Picture:
        picture, frame = Image.fromarray(batch.radiographs[row].numpy()), None
        base = self.convention.base
        if base == "thousand_padded":
            picture = pad_to_square(picture, max(picture.size))
        if self._longest_side is not None and max(picture.size) > self._longest_side:
            scale = self._longest_side / max(picture.size)
            width, height = (max(1, round(side * scale)) for side in picture.size)
            picture = picture.resize((width, height), Image.Resampling.LANCZOS)
            if self.convention.name.startswith("pixels_") and "@" not in self.convention.name:
                size = Size(width, height) if base == "pixels_sent" else smart_resize(Size(width, height))
                frame = self.convention.shown(*size).name
        return _Picture(picture, self._image_format, frame)

    def problems(self, findings: Sequence[str]) -> list[str]:
        problems = super().problems(findings)
        try:
            names = self.client.run(self.client.models())
        except NoAnswer as error:
            return [*problems, f"{self.client.host} cannot be asked: {self.client.base_url}/models gave {error}."]
        except UserError as error:
            return [*problems, str(error)]
        # ollama's names end in a tag, which defaults to latest.
        if not {self.served_model, f"{self.served_model}:latest"} & {*names}:
            offered = near_names(self.served_model, names)
            problems.append(f"--model.model {self.served_model}: {self.client.host} serves {offered}.")
        return problems

    def provenance(self) -> dict[str, Any]:
        return {
            **super().provenance(),
            "host": self.client.host,
            "served_model": self.served_model,
            "served_by": sorted(self._served_by),
            "weights": self._weights,
            "request": self._settings,
            "image": {"format": self._image_format, "longest_side": self._longest_side},
        }
