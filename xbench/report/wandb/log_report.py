"""Log a report as one Weights & Biases run: tables, figures, the page, and all its files as an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb

from xbench.report.facts import facts_of
from xbench.report.notes import warnings
from xbench.report.schema import Analysis
from xbench.report.sentences import answer, in_short
from xbench.report.tables.table import Table, to_rows
from xbench.report.wandb.log_run import scatter
from xbench.report.wandb.session import begin_run, offline_folder
from xbench.runtime.errors import UserError

_SCOPES = {"auroc_pointing_game": "models", "auroc_pointing_game_findings": "findings"}
_LARGEST_PAGE = 25_000_000
"""Largest page in bytes that a dashboard shows well; larger ones are only in the artifact."""


def log_report(analysis: Analysis, tables: Sequence[Table], out_folder: Path, pictures: bool = False) -> Path | None:
    """Log a written report as a run of its own in the project `xbench`, online if the user is logged in.

    Its notes have the findings. Only with `pictures` it gets patients' images: figures of overlays, and the page.
    Files go to `<out_folder>/wandb`. Return the folder of an offline run, for `wandb sync`; None if online or disabled.
    """
    runs, facts = [entry.run for entry in analysis.runs], facts_of(analysis)
    models = list(dict.fromkeys(run.model for run in runs))
    datasets = list(dict.fromkeys(dataset.dataset for dataset in analysis.datasets))
    described = [
        {"label": run.label, "dataset": run.dataset, "settings": dict(run.settings)}
        | {"images": run.results.counts.images, "git_commit": run.results.provenance.get("git_commit")}
        for run in runs
    ]
    options = {
        "project": "xbench",
        **dict.fromkeys(("name", "group", "job_type"), "report"),
        "tags": [tag[:64] for tag in ("report", *datasets, *models)],
        "notes": "\n\n".join((*warnings(analysis.runs), *answer(facts).texts, *in_short(facts))),
        "config": {"models": models, "datasets": datasets, "folds": analysis.folds, "runs": described},
    }
    target = begin_run(out_folder, options)
    try:
        target.log({**_numbers(analysis, tables), **_pictures(out_folder, pictures)})
        artifact = wandb.Artifact("report", type="report", metadata={"models": models, "datasets": datasets})
        # By name, because the folder may have other files, such as runs with patients' images.
        for pattern in ("index.html", "report.md", "analysis.json", "tables/*", "figures/*"):
            for path in _shown(out_folder, pattern, pictures):
                artifact.add_file(str(path), path.relative_to(out_folder).as_posix())
        target.log_artifact(artifact)
        folder = offline_folder(target)
        target.finish()
    except (wandb.errors.Error, OSError) as error:
        raise UserError(
            f"The report is complete in {out_folder}, but Weights & Biases failed to log it: {error}. Leave out "
            "--wandb true to do without."
        ) from error
    return folder


def _shown(folder: Path, pattern: str, pictures: bool) -> list[Path]:
    paths = sorted(folder.glob(pattern))
    return [path for path in paths if pictures or not path.name.startswith(("index.html", "overlays_"))]


def _numbers(analysis: Analysis, tables: Sequence[Table]) -> dict[str, Any]:
    """Return tables with fractions in full precision and intervals in separate columns, and charts."""
    logged: dict[str, Any] = {}
    for table in tables:
        names, *rows = to_rows(table)
        logged[f"tables/{table.name}"] = wandb.Table(columns=names, data=rows)
    for key, scope in _SCOPES.items():
        lines = [line for line in analysis.correlations if line.scope == scope and line.dataset is not None]
        if points := [[line.dataset, *point] for line in lines for point in line.points]:
            names = ["dataset", scope.removesuffix("s")]
            logged[key] = scatter(names, points, f"Pointing game by AUROC over {scope}")
    return logged


def _pictures(folder: Path, pictures: bool) -> dict[str, Any]:
    figures = _shown(folder, "figures/*.png", pictures)
    shown: dict[str, Any] = {f"figures/{path.stem}": wandb.Image(str(path)) for path in figures}
    for page in _shown(folder, "index.html", pictures):
        if page.stat().st_size <= _LARGEST_PAGE:
            shown["report"] = wandb.Html(str(page), inject=False)
    return shown
