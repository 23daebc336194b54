"""Command `conform`: run the conformance tests on a model, by name, configuration or class."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from xbench.commands.configs import compose, shipped
from xbench.runtime.errors import UserError
from xbench.runtime.strict import load_yaml


def conform(given: Namespace, more: Sequence[str]) -> None:
    """Run the tests in a separate process; `more` are options of the model."""
    if find_spec("pytest") is None:
        raise UserError("conform needs pytest: pip install pytest")
    named = given.model in shipped("models") or Path(given.model).is_file()
    composed = compose(["--config" if named else "--model", given.model, *more], ["model"])
    read = {name: load_yaml(value) if isinstance(value, str) else value for _, name, value in composed.options}
    options = {name[6:]: value for name, value in read.items() if name.startswith("model.")}
    words = ["xbench.conformance", "--model", composed.classes["model"], "--model-args", json.dumps(options)]
    if subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", *words]).returncode:
        raise UserError(f"conform: {given.model} does not pass; see the messages above.")
