"""Hostile files, read in a process that may take only so much more memory."""

from __future__ import annotations

import json
import resource
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from processes import start

from xbench.runtime.errors import UserError


def assert_outcomes(
    folder: Path, expected: Mapping[str, object], read: Callable[[Path], object], room: int, seconds: float
) -> None:
    """Assert what `read` makes of each entry of a folder: a value, or a refusal with the text expected, and soon.

    Its values go through JSON. The process may take `room` bytes beyond those it has, and so many seconds an entry.
    """

    def read_all(words: Sequence[str]) -> int:
        warnings.simplefilter("ignore")
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room,) * 2)
        for path in sorted(folder.iterdir()):
            began = time.perf_counter()
            try:
                said = read(path)
            except UserError as error:
                said = str(error)
            print(json.dumps([path.name, said, time.perf_counter() - began]), flush=True)
        return 0

    process = start([], folder.parent, command=read_all)
    assert process.wait() == 0, process.said
    answers = {name: (said, took) for name, said, took in map(json.loads, process.said.splitlines())}
    assert answers.keys() == expected.keys()
    for name, (said, took) in answers.items():
        outcome = expected[name]
        if isinstance(outcome, str):
            assert outcome in str(said) and len(str(said)) < 2500 and "MemoryError" not in str(said), (name, said)
        else:
            assert said == outcome, name
        assert took <= seconds, name
