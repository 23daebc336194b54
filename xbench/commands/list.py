"""Command `list`: models, datasets, findings, configurations and benchmarks."""

from __future__ import annotations

from argparse import Namespace

from rich.console import Console
from rich.table import Table

from xbench.commands.configs import Kind, shipped, summary
from xbench.findings.names import FINDINGS, TABLE, spellings
from xbench.findings.published import paper

_FOLDERS: dict[str, Kind] = {"models": "models", "datasets": "data", "configs": "runs", "benches": "bench"}


def print_list(given: Namespace) -> None:
    """Print one kind of thing, or all."""
    console = Console()
    for kind in [given.kind] if given.kind else ("models", "datasets", "findings", "configs", "benches"):
        if kind == "findings":
            console.print(_findings(), "")
            console.print(_count(), "")
            continue
        table = Table(title=kind, title_justify="left", box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for name, path in shipped(_FOLDERS[kind]).items():
            table.add_row(name, summary(path))
        if kind == "configs":
            table.add_row("MODEL_DATASET", "every pair of a model and a dataset, such as clip_siim")
        console.print(table, "")


def _findings() -> Table:
    table = Table(title="findings", title_justify="left", box=None, pad_edge=False, header_style="dim")
    for heading in ("finding", "group", "size"):
        table.add_column(heading, no_wrap=True, style="bold" if heading == "finding" else None)
    table.add_column("datasets (with their spelling if it differs)")
    for finding in TABLE:
        spelled = {name: text for name, text in finding.spelled.items() if name in FINDINGS}
        datasets = [name if text == finding.name else f'{name} "{text}"' for name, text in spelled.items()]
        table.add_row(finding.name, finding.group, finding.size, ", ".join(datasets))
    return table


def _count() -> str:
    datasets = tuple(paper()["splits"])
    classes = [finding for dataset in datasets for finding in FINDINGS[dataset]]
    spelled = {name for dataset in datasets for name in spellings(dataset).values()}
    return (
        f"The {len(datasets)} datasets of the paper have {len(classes)} classes under "
        f"{len(spelled)} different spellings, the likeliest origin of the paper's 36 findings; "
        f"{len({*classes})} are distinct."
    )
