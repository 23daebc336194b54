"""Summary of a run in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lightning.pytorch import Callback, LightningModule, Trainer
from rich import box
from rich.console import Console
from rich.table import Table

from xbench.findings.conditions import LEAST
from xbench.findings.names import MACRO
from xbench.report.statistics.below_half import auroc_warning
from xbench.runs.results import Answers, Interventions, OwnScale, Results
from xbench.scoring.interventions import ANY, OF_FILL
from xbench.scoring.numbers import STATUSES

from .evaluation import Evaluation, find
from .results_writer import ResultsWriter
from .wandb_logger import WandbLogger


class ConsoleSummary(Callback):
    """Prints the numbers by finding, warnings, and the paths of the results."""

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        results = Evaluation.of(trainer).results
        if results is None:
            return
        if trainer.progress_bar_callback is not None:
            # A live bar would cover the table.
            trainer.progress_bar_callback.teardown(trainer, pl_module, "test")
        console = Console(markup=False, highlight=False)
        if not results.in_words:
            console.print(_table(results))
        console.print(_times(results.provenance["seconds"]), style="dim")
        if results.answers:
            console.print(_rates(results.answers, results.box_file), style="dim")
        if results.own_scale:
            console.print(_own_scale(results.own_scale), style="dim")
        if results.interventions:
            console.print(_interventions(results.interventions))
        rows = Evaluation.of(trainer).rows
        for line in (*_remarks(results), *filter(None, [rows and auroc_warning(results, rows)])):
            console.print(line, style="yellow")
        # soft_wrap: a wrapped path cannot be copied.
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger) and logger.offline_run is not None:
                console.print(f"Logged offline. To upload: wandb sync {logger.offline_run}", soft_wrap=True)
        if (writer := find(trainer, ResultsWriter)) is not None:
            console.print(f"Results: {writer.folder / 'results.json'}", soft_wrap=True)


_COLUMNS = {
    "pointing_game": "Point.",
    "dice_fixed": "Dice\n@0.5",
    "dice_best": "Dice\nbest",
    "iou_fixed": "IoU\n@0.5",
    "iou_best": "IoU\nbest",
    "auroc": "AUROC",
    "average_precision": "AP",
    "f1": "F1",
    "accuracy": "Acc.",
}
_OF_BOXES = {
    "pointing_game": "Point.",
    "dice_fixed": "Dice",
    "iou_fixed": "IoU",
    "box_iou": "Box\nIoU",
    "acc_50": "IoU\n>0.5",
}
_OF_LESIONS = {"recall_50": "Rec.\n@0.5", "precision_50": "Prec.\n@0.5"}


def _table(results: Results) -> Table:
    answers, columns, recognition = results.answers, _COLUMNS, results.classification.macro
    legend = " Best: at the threshold that gives the finding its highest mean on these images."
    if answers:
        # Fit 80 characters.
        asked = {name: title for name, title in _COLUMNS.items() if name in recognition}
        columns = _OF_BOXES | (asked if answers.recognition else _OF_LESIONS)
        legend = " Dice and IoU: against regions, on the grid. Box IoU and later: against boxes, or boxes around "
        legend += "outlines, without a grid. No box counts as a miss."
        legend += "" if answers.recognition else " Rec. and Prec.: boxes pooled over images with the finding only."
    title = f"{results.model} on {results.dataset} ({results.split}), images: {results.counts.images}"
    caption = f"n: images with the finding and a region. Point.: pointing game.{legend} Macro: mean over findings."
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 0), collapse_padding=True)
    table.add_column("Finding", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True, min_width=5)
    for name, heading in columns.items():
        style = "cyan" if name in recognition else None
        table.add_column(heading, justify="right", no_wrap=True, min_width=5, style=style)

    def shown(numbers: Mapping[str, float | None]) -> list[str]:
        return [_shown(numbers[name]) for name in columns]

    for finding in results.findings:
        numbers = {**vars(results.classification.per_class[finding]), **vars(results.grounding.per_class[finding])}
        numbers |= results.box_numbers.get(finding, {})
        table.add_row(finding, str(numbers["count"]), *shown(numbers))
    table.add_section()
    macro = {**results.macro, **results.box_numbers.get(MACRO, {})}
    table.add_row("Macro", "", *shown(macro), style="bold")
    return table


def _rates(answers: Answers, box_file: bool) -> str:
    shares = {name: value or 0.0 for name, value in answers.overall.items()}
    if box_file:
        found, pairs = round(shares["pairs"] * shares["answered"]), round(shares["pairs"])
        return f"{pairs} pairs with the finding and a region: {answers.kind} for {found}, none for {pairs - found}."
    kinds = ", ".join(f"{100 * shares[name]:.1f}% {name}" for name in STATUSES)
    one_step = answers.recognition is not None and answers.recognition.decisions_only
    recognized = " Recognition from yes or no alone: the ROC curve has one step." if one_step else ""
    spent = answers.tokens
    tokens = "" if spent is None else f" Tokens: {spent.sent:,} sent, {spent.received:,} received."
    again = "" if answers.repeats is None else f" {answers.repeats.in_words()}"
    return (
        f"{shares['pairs']:.0f} answers about present findings with a region ({answers.family}, {answers.frame}): "
        f"{kinds}; {shares['boxes']:.2f} boxes per answer.{tokens}{recognized}{again}"
    )


def _own_scale(own: OwnScale) -> str:
    numbers = (f"{own.macro[name] or 0:.3f}" for name in ("dice_fixed", "dice_best", "iou_fixed", "iou_best"))
    shown = "Dice at 0.5 {}, best {}, IoU at 0.5 {}, best {}".format(*numbers)
    return f"On the maps' own scale ({own.scale}), without normalization: {shown}."


def _interventions(found: Interventions) -> Table:
    others = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in found.all_pairs[ANY].macro.items()]
    about = "" if found.sign_over_fills is not False else " Its sign depends on the fill."
    means = f"{found.pairs} pairs; means over findings with {LEAST} or more. Use: drop minus control drop.{about}"
    caption = f"{found.reason or ''} {means} Defined in docs/interventions.md: {', '.join(others)}."
    if all(value is None for numbers in found.all_pairs.values() for value in numbers.macro.values()):
        caption = f"{found.reason or ''} No numbers: a finding needs {LEAST} pairs."
    title = "Interventions: the region hidden, and an equal patch elsewhere (control)"
    table = Table("Fill", title=title, caption=caption.strip(), box=box.SIMPLE_HEAD)
    columns = [name for names in OF_FILL.values() for name in names]
    for name in columns:
        table.add_column(name.replace("_", " ").capitalize(), justify="right")
    for fill, numbers in found.all_pairs.items():
        if fill != ANY:
            table.add_row(fill, *(_shown(numbers.macro[name]) for name in columns))
    return table


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _times(seconds: Mapping[str, float]) -> str:
    """Return the wall-clock time by stage, and that of decoding, which runs in parallel."""
    said = {stage: f"{stage} {value:.3f}" if value < 1 else f"{stage} {value:.1f}" for stage, value in seconds.items()}
    decode = said.pop("decode")
    return f"Seconds: {', '.join(said.values())}; in parallel: {decode}."


def _remarks(results: Results) -> Iterator[str]:
    if results.answers:
        yield from results.answers.warnings()
    if (warning := results.sign_warning()) is not None:
        yield warning
    counts = results.counts
    if skipped := counts.skipped:
        yield (
            f"Skipped {len(skipped)} unreadable images, all listed in results.json. The first: "
            f"{skipped[0].image_id}: {skipped[0].reason}"
        )
    for note in counts.notes:
        images = "1 image" if note.count == 1 else f"{note.count} images"
        yield f"{images}: {note.note} (first: {note.first[0]})."
    if constant := counts.constant_maps.count:
        pair = counts.constant_maps.first[0]
        yield (f"{constant} saliency maps have one value everywhere (first: image {pair.image_id}, {pair.finding}).")
