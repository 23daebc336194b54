"""What `score` does: `test`, with predictions that were made elsewhere in the place of a model."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence

from xbench.commands.run import run_test


def score(given: Namespace, more: Sequence[str]) -> None:
    """Score predictions and write the results as a run; `more` are options of `test`."""
    run_test(words_of_test(given, more))


def words_of_test(given: Namespace, more: Sequence[str]) -> list[str]:
    """Return the words of the `test` that a `score` stands for."""
    # An option that is not given stays away, so that the defaults have one home: the class.
    about = {
        name: value
        for name, value in vars(given).items()
        if name not in ("command", "config", "name") and value is not None
    }
    model = {"class_path": "xbench.models.external.External", "init_args": {"label": given.name, **about}}
    words = ["--config", json.dumps({"model": model})]
    words += [word for name in given.config for word in ("--config", name)]
    if given.sizes == "any":
        words += ["--data.batch_size", "1"]
    return [*words, "--trainer.accelerator", "cpu", *more]
