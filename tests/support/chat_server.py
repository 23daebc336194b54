"""A server of chat completions that knows where the findings of phantoms are, and misbehaves when told to.

`python tests/support/chat_server.py --port 8000` serves the phantoms of set 0 at http://localhost:8000/v1. What stands
in the path before that, as in http://localhost:8000/a:429,ok/v1, are the steps that the requests get one after the
other, the last one for ever; `a` only sets them apart from others. /a:429,ok/log tells what was asked.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import PIPE, Popen
from sys import executable
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

MODELS = ("truth", "truth-large", "other")
MOST = 400  # phantoms of a set that are looked through

lock = threading.Lock()
asked: dict[str, list[dict[str, Any]]] = defaultdict(list)


@cache
def drawn(index: int, height: int, width: int) -> Any:
    from xbench.data.phantom import draw_phantom

    phantom = draw_phantom(0, index, height, width)
    return phantom, hashlib.sha256(phantom.image.tobytes()).hexdigest()


def truth(image: bytes, text: str) -> str:
    """Return the boxes of the finding that the question names, as JSON; or yes or no, or words, if it asks so."""
    import numpy as np
    from PIL import Image

    from xbench.data.phantom import FINDINGS
    from xbench.findings.prompts import phrase
    from xbench.geometry.shapes import connected_parts
    from xbench.predictions import family_named
    from xbench.predictions.answer import Box

    pixels = np.asarray(Image.open(io.BytesIO(image)))
    # A sentence of another field, as under interventions, names none.
    (finding,) = [name for name in FINDINGS if f"is {phrase(name)}" in text or f"there {phrase(name)}" in text] or [""]
    wanted = hashlib.sha256(pixels.tobytes()).hexdigest()
    with lock:
        found = (drawn(index, *pixels.shape) for index in range(MOST))
        masks = next((phantom.masks for phantom, own in found if own == wanted), {})
    if "yes or no" in text:
        return "Yes" if finding in masks else "No."
    if "description" in text or "one sentence" in text:
        shown = {name: masks[name] for name in masks if not finding or name == finding}
        return " ".join(f"{name} {place(mask)}." for name, mask in shown.items()) or "No acute abnormality."
    boxes = [Box(*part.box()) for part in connected_parts(masks[finding])] if finding in masks else []
    family = family_named("endpoint")
    return family.write(boxes, finding, family.convention, pixels.shape[::-1])


def place(mask: Any) -> str:
    height, width = mask.shape
    y, x = (axis.mean() for axis in mask.nonzero())
    zone = ("upper", "middle", "lower")[int((y > height / 3) + int(y > height * 17 / 30))]
    return f"in the {'right' if x < width / 2 else 'left'} {zone} zone"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *about: object) -> None:
        pass

    def do_GET(self) -> None:
        script, _, what = unquote(self.path).strip("/").rpartition("/")
        if what == "log":
            return self.send(200, asked[script])
        if script.startswith("secret") and not self.headers.get("Authorization"):
            return self.send(401, {"error": {"message": "no key"}})
        self.send(
            200,
            {
                "object": "list",
                "data": [{"id": name, "root": f"weights/{name}", "created": time.time()} for name in MODELS],
            },
        )

    def do_POST(self) -> None:
        script = unquote(self.path).strip("/").removesuffix("v1/chat/completions").strip("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        steps = (script.partition(":")[2] or "ok").split(",")
        told = {"body": body, "key": self.headers.get("Authorization"), "time": time.monotonic(), "answered": False}
        with lock:
            step, _, value = steps[min(len(asked[script]), len(steps) - 1)].partition("=")
            asked[script].append(told)
        self.answer(script, step, value, body, told)

    def answer(self, script: str, step: str, value: str, body: dict, told: dict) -> None:
        key = self.headers.get("Authorization", "")
        canned: dict[str, tuple[Any, ...]] = {
            "html": (200, b"<html>Welcome</html>", "text/html"),
            "nonsense": (200, b"\x00{{["),
            "latin": (200, b'{"choices": "\xe9"}'),
            "deep": (200, b"[" * 100_000),
            "empty": (200, {"choices": []}),
            "error": (200, {"error": {"message": "upstream is asleep", "code": 502}}),
            "long": (400, {"error": {"message": "x" * 281 + key}}),
        }
        if step in canned:
            return self.send(*canned[step])
        if step in ("slow", "hang"):
            time.sleep(float(value or 20))
        elif step.isdigit():
            said = {"error": {"message": f"step {step} of {key}", "code": value if step == "400" else None}}
            return self.send(int(step), said, **({"Retry-After": value} if value and step != "400" else {}))
        elif step == "redirect":
            return self.send(307, {}, Location=value or "http://elsewhere.example/v1/chat/completions")
        elif step in ("trickle", "continue"):  # a response whose head never ends
            return self.endless(b"HTTP/1.1 200 OK\r\n" if step == "trickle" else b"", step)
        elif step == "drop":
            self.close_connection = True
            return None
        message: dict[str, Any] = {"role": "assistant", "content": value or None}
        if step == "refusal":
            message["refusal"] = "I cannot help with that."
        elif step == "parts":
            message["content"] = [{"type": "text", "text": "No"}, {"type": "text", "text": "ne."}]
        elif step == "echo":
            message = {"content": [{"type": "text", "text": f"None. {key}"}], "reasoning_content": f"{key}, hm"}
        elif step == "thinks":
            message |= {"content": "None.", "reasoning_content": "hm [1, 2, 3, 4]"}
        elif step in ("ok", "slow", "cut", "length"):
            parts = {part["type"]: part for part in body["messages"][-1]["content"]}
            image = base64.b64decode(parts["image_url"]["image_url"]["url"].partition("base64,")[2])
            said = truth(image, parts["text"]["text"])
            message["content"] = said[: len(said) // 2] if step == "length" else said
        finish = {"filter": "content_filter", "length": "length"}.get(step, "stop")
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
        if body.get("logprobs"):
            yes = str(message["content"]).startswith("Yes")
            listed = [(" Yes", -0.1), ("No", -2.5)] if yes else [("No", -0.1), ("Not", -9999.0)]
            if script.startswith("sure"):  # as float32 rounds them: together they are more than 1
                listed = [("Yes" if yes else "No", 0.0), ("No" if yes else "Yes", -18.5)]
            top = [{"token": word, "logprob": log} for word, log in listed]
            choice["logprobs"] = {"content": [{"top_logprobs": top}]}
        response = {"model": body["model"], "choices": [choice], "system_fingerprint": "fp_1"}
        if step == "echo":
            response |= {"model": key, "system_fingerprint": key, key: [key]}
        response["usage"] = {"prompt_tokens": 100, "completion_tokens": 10}
        content = json.dumps(response).encode()
        spoilt: dict[str, dict[str, Any]] = {
            "type": {"kind": f"{'x' * 40}{key}"},
            "plain": {"kind": "text/plain"},
            "gzip": {"content": gzip.compress(gzip.compress(bytes(2**20))), "Content-Encoding": value or step},
            "drip": {"pause": 0.01},
            "huge": {"content": content + b" " * 2**25},
            "cut": {"content": content[: len(content) // 2], "length": len(content)},
        }
        told["answered"] = step not in spoilt
        return self.send(**{"status": 200, "content": content} | spoilt.get(step, {}))

    def endless(self, first: bytes, step: str) -> None:
        try:
            self.wfile.write(first)
            while True:
                self.wfile.write(b"X" if step == "trickle" else b"HTTP/1.1 100 Continue\r\n\r\n")
                time.sleep(0.02)
        except OSError:
            self.close_connection = True

    def send(
        self,
        status: int,
        content: Any,
        kind: str = "application/json",
        length: int = 0,
        pause: float = 0,
        **headers: str,
    ) -> None:
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(length or len(content)))
            self.end_headers()
            for part in [bytes([byte]) for byte in content] if pause else [content]:
                self.wfile.write(part)
                time.sleep(pause)
        except OSError:  # who asked does not wait any more
            self.close_connection = True
        if length:
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *about: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[str]:
    """Serve in a process of its own; yields the address, without the path."""
    process = Popen([executable, __file__, "--port", "0"], stdout=PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1].removesuffix("/v1")
    finally:
        process.kill()
        process.wait()


def log(address: str, script: str) -> list[dict[str, Any]]:
    with urlopen(f"{address}/{script}/log") as response:
        return json.load(response)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    server = Server(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"Phantoms of set 0: http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()
