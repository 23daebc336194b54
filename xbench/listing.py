"""What there is: models, datasets, findings and configurations."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from xbench.errors import UserError
from xbench.findings import FINDINGS
from xbench.shipped import shipped, summary

__all__ = ["print_list"]

_KINDS = ("models", "datasets", "findings", "configs")


def print_list(arguments: Sequence[str]) -> None:
    """Print one kind of thing, or all of them.

    Raises:
        UserError: There is no such kind.
    """
    if len(arguments) > 1 or (arguments and arguments[0] not in _KINDS):
        raise UserError(f"list {' '.join(arguments)}: give one of {', '.join(_KINDS)}, or nothing.", exit_status=2)
    for kind in arguments or _KINDS:
        table = Table(title=kind, title_justify="left", box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for name, description in _rows(kind):
            table.add_row(name, description)
        Console().print(table, "")


def _rows(kind: str) -> list[tuple[str, str]]:
    if kind == "findings":
        names = dict.fromkeys(finding for findings in FINDINGS.values() for finding in findings)
        return [(name, ", ".join(d for d, findings in FINDINGS.items() if name in findings)) for name in sorted(names)]
    if kind == "models":
        return [(name, summary(path)) for name, path in shipped("models").items()]
    if kind == "datasets":
        return [(name, summary(path)) for name, path in shipped("data").items()]
    return [(name, summary(path)) for name, path in shipped("runs").items()] + [
        ("MODEL_DATASET", "every pair of a model and a dataset, such as clip_siim")
    ]
