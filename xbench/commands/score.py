"""What `score` does: `test`, with predictions that were made elsewhere in the place of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence

from xbench.commands.arguments import score_parser
from xbench.commands.run import run_test


def score(arguments: Sequence[str]) -> None:
    """Score predictions and write the results as a run; options that are not `score`'s own are those of `test`."""
    run_test(words_of_test(arguments))


def words_of_test(arguments: Sequence[str]) -> list[str]:
    """Return the words of the `test` that a `score` stands for."""
    given, others = score_parser().parse_known_args(arguments)
    # An option that is not given stays away, so that the defaults have one home: the class.
    about = {name: value for name, value in vars(given).items() if name not in ("config", "name") and value is not None}
    model = {"class_path": "xbench.models.external.External", "init_args": {"label": given.name, **about}}
    words = ["--config", json.dumps({"model": model})]
    words += [word for name in given.config for word in ("--config", name)]
    if given.sizes == "any":
        words += ["--data.batch_size", "1"]
    return [*words, "--trainer.accelerator", "cpu", *others]
