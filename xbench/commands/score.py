"""What `score` does: `test`, with predictions that were made elsewhere in the place of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from xbench.commands.arguments import score_parser
from xbench.commands.run import run_test
from xbench.predictions.answered import SUFFIXES
from xbench.predictions.segmentations import drawn_in
from xbench.runtime.errors import UserError

_OPTIONS = {
    "boxes and answers": {"predictions", "frame", "family", "names", "extra"},
    "a table of probabilities": {"predictions", "names", "missing", "extra"},
}
_CLASSES = {"boxes and answers": "OutsideAnswers", "a table of probabilities": "OutsideScores", "maps": "Outside"}


def score(arguments: Sequence[str]) -> None:
    """Score predictions and write the results as a run; options that are not `score`'s own are those of `test`."""
    run_test(words_of_test(arguments))


def words_of_test(arguments: Sequence[str]) -> list[str]:
    """Return the words of the `test` that a `score` stands for."""
    given, others = score_parser().parse_known_args(arguments)
    # An option that is not given stays away, so that the defaults have one home: the class.
    about = {name: value for name, value in vars(given).items() if name not in ("config", "name") and value is not None}
    path = Path(given.predictions).expanduser()
    kind = _kind(path)
    if not path.exists() and "scores" in about:
        kind = "maps"  # of what is not there the class speaks
    if strays := sorted(about.keys() - _OPTIONS.get(kind, about.keys() - {"family"})):
        option = strays[0].replace("_", "-")
        raise UserError(f"score: --{option} says nothing about {kind}: leave it out.", exit_status=2)
    model = {"class_path": f"xbench.models.outside.{_CLASSES[kind]}", "init_args": {"label": given.name, **about}}
    words = ["--config", json.dumps({"model": model})]
    words += [word for name in given.config for word in ("--config", name)]
    if given.sizes == "any":
        words += ["--data.batch_size", "1"]
    return [*words, "--trainer.accelerator", "cpu", *others]


def _kind(path: Path) -> str:
    """Return what a file of predictions holds, by its ending; a CSV file by its first line, JSON by what it holds."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return "a table of probabilities"
    if suffix == ".csv" and path.is_file():
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            head = file.readline(2**16).replace('"', "").strip().split(",")
        return "boxes and answers" if "x0" in head else "a table of probabilities"
    if suffix == ".json" and path.is_file() and drawn_in(path) == "masks":
        return "maps"
    return "boxes and answers" if suffix in SUFFIXES else "maps"
