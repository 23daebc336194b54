"""Callback that writes predictions without ground truth: scores, maps and pictures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image
from rich.console import Console

from xbench.data.datamodule import ChestXrayDataModule
from xbench.findings.names import chosen
from xbench.geometry.grid import maps_on_grid
from xbench.metrics import normalise
from xbench.models.base import SaliencyModel
from xbench.report.tiles import file_names, film_tile, map_tile, sheet, shown
from xbench.runs.files import IMAGES, PARTS, PREDICTIONS
from xbench.runs.folder import open_run_folder
from xbench.runs.journal import BatchRecord, all_batches, append_records
from xbench.runs.provenance import collect_outputs
from xbench.runs.tables import about_tables, write_tables
from xbench.runtime.errors import UsageError
from xbench.runtime.files import writing
from xbench.types import Batch, Failure, Maps, Prediction

from .case_keeper import images_of, predictions_of
from .checks import check_no_limit, check_output


class PredictionWriter(Callback):
    """Writes scores, maps and pictures.

    `predictions.parquet` and `images.parquet` are those of a run. `overlays/<image>/<finding>.png` shows the film under
    a map, which is colored from its lowest to its highest value, with a cross at its peak; `sheets/<image>.png` shows
    the film beside its overlays. Both are patients' images.

    Args:
        overlays: Findings to draw, as a list or separated by commas; true for all, false for no pictures.
    """

    def __init__(self, overlays: bool | list[str] | str = True) -> None:
        super().__init__()
        self.overlays = overlays

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "predict":
            return
        check_no_limit(trainer, "predict")
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        queries = [query for record in data.records for query in record.looked_for(data.findings)]
        names = [*dict.fromkeys([*data.findings, *(query.name for query in queries)])]
        self._drawn = _to_draw(self.overlays, names)
        self._pictures = file_names(record.image_id for record in data.records) if self._drawn else []
        self._file_of = dict(zip(names, file_names(one.replace("/", "_") for one in names), strict=True))
        self.folder = open_run_folder(trainer, pl_module.name, data.name)  # type: ignore[arg-type]
        self._parts = self.folder / PARTS
        self._parts.mkdir(exist_ok=True)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Prediction | None, batch: Batch, *place: int
    ) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        if outputs is not None:
            check_output(outputs, batch.truth, str(pl_module.name))
        number, kept = batch.first // data.batch_size, {IMAGES: images_of(batch)}
        kept |= {} if outputs is None else predictions_of(outputs, batch)
        with self._writing():
            record = BatchRecord(number, kept, batch.failures, batch.notes)
            append_records(self._parts / f"{trainer.global_rank}.arrow", record)
            if outputs is not None and self._drawn:
                self._draw(outputs, batch, pl_module)  # type: ignore[arg-type]

    def _writing(self) -> AbstractContextManager[None]:
        hint = "Make room, omit the pictures with --overlays false, or give another folder with "
        return writing(f"The prediction cannot be written to {self.folder}", f"{hint}--trainer.default_root_dir.")

    def _draw(self, outputs: Prediction, batch: Batch, model: SaliencyModel) -> None:
        assert isinstance(outputs.shown, Maps)  # models that answer refuse `predict`
        saliency, truth = outputs.shown.values.float().cpu(), batch.truth
        probabilities = outputs.scores(len(truth.queries))[1].double().tolist()
        foot = (
            f"{model.name}. The number is the probability of the finding. Colors range from each map's lowest to "
            "its highest value; + marks the peak."
        )
        for row, (index, image_id) in enumerate(zip(truth.index.tolist(), truth.image_ids, strict=True)):
            queries = zip(truth.image, truth.queries, strict=True)
            drawn = [pair for pair, (image, query) in enumerate(queries) if image == row and query.name in self._drawn]
            if not drawn:
                continue
            film, name = shown(batch.display[row].cpu().numpy()), self._pictures[index]
            maps = maps_on_grid(saliency[drawn].numpy(), truth.views[row], film.shape, model.saliency_upsample)
            tiles = [film_tile(film, image_id.rpartition("/")[2])]
            for pair, one in zip(drawn, normalise(torch.from_numpy(maps)).numpy(), strict=True):
                finding = truth.queries[pair].name
                tiles.append(map_tile(film, one, finding, probabilities[pair]))
                _save(tiles[-1], self.folder / "overlays" / name / f"{self._file_of[finding]}.png")
            _save(sheet(tiles, foot), self.folder / "sheets" / f"{name}.png")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.strategy.barrier()
        if not trainer.is_global_zero:
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        skipped: list[Failure] = []
        notes = {*data.notes}

        def tables() -> Iterator[Mapping[str, pa.Table]]:
            for record in all_batches(self._parts, -(-len(data.records) // data.batch_size)):
                skipped.extend(record.failures)
                notes.update(record.notes)
                yield record.tables

        about = about_tables(data.findings, data.gamma, collect_outputs(trainer, pl_module))  # type: ignore[arg-type]
        with self._writing():
            write_tables(self.folder, tables(), (IMAGES, PREDICTIONS), about)
        shutil.rmtree(self._parts, ignore_errors=True)
        if trainer.progress_bar_callback is not None:
            trainer.progress_bar_callback.teardown(trainer, pl_module, "predict")
        console = Console(markup=False, highlight=False)
        for failure in skipped:
            console.print(f"Skipped {failure.image_id}: {failure.reason}", style="yellow", soft_wrap=True)
        odd: dict[str, list[str]] = {}
        for note in sorted(notes):
            odd.setdefault(note.text, []).append(note.image_id)
        for text, names in odd.items():
            console.print(f"{text[0].upper()}{text[1:]}: {len(names)} (first: {names[0]}).", style="yellow")
        count = len(data.records) - len(skipped)
        where = f"Predictions: {self.folder}"
        if self._drawn and count:
            where = f"Look at {self.folder / 'sheets'}; overlays, maps and scores are beside it."
        console.print(f"{count} image{'' if count == 1 else 's'}. {where}", soft_wrap=True)


def _to_draw(overlays: bool | list[str] | str, findings: Sequence[str]) -> list[str]:
    if isinstance(overlays, bool):
        return [*findings] if overlays else []
    wanted = chosen(overlays)
    if unknown := [finding for finding in wanted if finding not in findings]:
        raise UsageError(
            f"--overlays: {', '.join(unknown)} is not predicted. Choose from "
            f"{', '.join(findings)}, or give false for no pictures."
        )
    return [finding for finding in findings if finding in wanted]


def _save(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # More compression takes several times as long and saves only a tenth.
    picture.save(path, compress_level=1)
