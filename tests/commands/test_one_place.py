from __future__ import annotations

import shutil

import pytest

from xbench.scoring import numbers

QUIET = ("--data.images", "4", "--data.num_workers", "0", "--trainer.logger", "false", "--trainer.accelerator", "cpu")
WORDS = {
    "test": ("test", "--config", "random_phantom", *QUIET),
    "score": ("score", "--config", "phantom", "--predictions", "RUN", "--name", "x", "--extra", "ignore", *QUIET),
    "rescore": ("rescore", "RUN", "--workers", "0"),
    "verify": ("verify", "RUN"),
}
OVERLAPS = {"report": ("report", "RUN")} | {
    protocol: ("rescore", "RUN", "--protocol", protocol, "--workers", "0")
    for protocol in ("xbench", "aep", "chexlocalize", "chex", "g2g", "detections", "lesions")
}


class Asked(Exception):
    """The place was asked."""


def ask(*_, **__):
    raise Asked


@pytest.mark.parametrize(
    ("place", "words"),
    [("_ratio", words) for words in (WORDS | OVERLAPS).values()]
    + [("recognition_numbers", words) for words in WORDS.values()],
    ids=[*(f"overlap-{name}" for name in WORDS | OVERLAPS), *(f"ranking-{name}" for name in WORDS)],
)
def test_no_command_computes_them_by_itself(command, phantom_run, tmp_path, monkeypatch, place, words):
    run = shutil.copytree(phantom_run, tmp_path / "run")
    monkeypatch.setattr(numbers, place, ask)
    with pytest.raises(Asked):
        command(*(run if word == "RUN" else word for word in words))
