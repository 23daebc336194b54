"""The files of a prediction: scores, saliency maps and pictures of them, without ground truth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from xbench.data.datamodule import ChestXrayDataModule
from xbench.findings.names import chosen
from xbench.geometry.grid import saliency_on_grid
from xbench.metrics import normalise
from xbench.models.base import SaliencyModel
from xbench.report.tiles import file_names, film_tile, map_tile, sheet, shown
from xbench.runs.files import WRITING
from xbench.runs.folder import open_run_folder
from xbench.runtime.distributed import gather
from xbench.runtime.errors import UserError
from xbench.runtime.files import atomic_writer
from xbench.types import Batch, Maps, Note, Prediction

from .checks import check_each_once, check_no_limit, check_output


@dataclass(frozen=True)
class _Predicted:
    """What is kept of an image until the table is written: `file` has its map, the scores are (C,)."""

    index: int
    image_id: str
    file: str
    logits: NDArray[np.float64]
    probabilities: NDArray[np.float64]


class PredictionWriter(Callback):
    """Writes a prediction run's files.

    `saliency/NNNNNN_<image>.npz` holds for one image the raw maps `saliency` (C, h, w) float32 in the frame of the
    model input, the part of the radiograph that this frame shows as `view` (left, top, right, bottom in fractions of
    width and height), the names `findings`, the digest of the model input as `image_sha256`, how the model's maps are
    enlarged as `upsampling`, and what their values are as `map_scale`. `predictions.parquet` has a row per image and
    finding: image_id, finding, logit, probability, the `file` of the map and the `overlay` drawn of it.

    `overlays/<image>/<finding>.png` is the film with one map over it, from the lowest value of the map to its highest,
    and a cross at its peak; `sheets/<image>.png` has the film and all its overlays side by side. Both are patients'
    images.

    Args:
        overlays: The findings to draw, in a list or with commas between; true for all of them, false for no pictures.
    """

    def __init__(self, overlays: bool | list[str] | str = True) -> None:
        super().__init__()
        self.overlays = overlays

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the run's folder; refuse a trainer that limits batches, and findings that are not the dataset's."""
        if stage != "predict":
            return
        check_no_limit(trainer, "predict")
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        self._drawn = _to_draw(self.overlays, data.findings)
        self._pictures = file_names(record.image_id for record in data.records) if self._drawn else []
        self._findings, self._file_of = data.findings, file_names(one.replace("/", "_") for one in data.findings)
        self._images: list[_Predicted] = []
        self._skipped: list[tuple[int, str]] = []
        self._notes: list[Note] = []
        self.folder = open_run_folder(trainer, pl_module.name, data.name)  # type: ignore[arg-type]
        (self.folder / "saliency").mkdir(exist_ok=True)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Prediction | None, batch: Batch, *place: int
    ) -> None:
        """Write maps and pictures of a batch; a `UserError` if the disk is full or the output cannot be used."""
        self._skipped += [(failure.index, f"{failure.image_id}: {failure.reason}") for failure in batch.failures]
        self._notes += batch.notes
        if outputs is None:
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        model: SaliencyModel = pl_module  # type: ignore[assignment]
        truth = batch.truth
        check_output(outputs, truth, model.name, data.findings)
        nothing = torch.full((len(batch), len(data.findings)), torch.nan)
        given = (nothing if score is None else score for score in (outputs.logits, outputs.probabilities))
        logits, probabilities = (score.double().cpu().numpy() for score in given)
        assert isinstance(outputs.shown, Maps)  # models that answer refuse `predict`
        saliency = outputs.shown.values.float().cpu()
        for row, (index, image_id) in enumerate(zip(truth.index.tolist(), truth.image_ids, strict=True)):
            # Names of images may hold anything, slashes included; the position keeps the file names apart.
            file_name = f"saliency/{index:06d}_{re.sub(r'[^A-Za-z0-9.-]+', '_', image_id)[:100]}.npz"
            image = _Predicted(index, image_id, file_name, logits[row], probabilities[row])
            self._images.append(image)
            with _named_disk(self.folder):
                with atomic_writer(self.folder / file_name) as file:
                    np.savez_compressed(
                        file,
                        saliency=saliency[row].numpy(),
                        view=truth.views[row],
                        findings=np.array(data.findings),
                        image_sha256=np.array(batch.image_sha256[row]),
                        upsampling=np.array(model.saliency_upsample),
                        map_scale=np.array(model.map_scale),
                    )
                if self._drawn:
                    film = shown(batch.display[row].cpu().numpy())
                    views = [truth.views[row]] * len(self._drawn)
                    maps = saliency_on_grid(saliency[row, self._drawn], views, film.shape, model.saliency_upsample)
                    self._draw(image, film, normalise(maps).numpy(), model.name)

    def _draw(self, image: _Predicted, film: NDArray[np.uint8], maps: NDArray[np.float32], model: str) -> None:
        """Write the pictures of a film (H, W) with the maps (K, H, W) of the findings that are drawn."""
        tiles = [film_tile(film, image.image_id.rpartition("/")[2])]
        for column, one in zip(self._drawn, maps, strict=True):
            tiles.append(map_tile(film, one, self._findings[column], float(image.probabilities[column])))
            _save(tiles[-1], self.folder / self._overlay(image, column))
        foot = (
            f"{model}. The number is the probability of the finding. Each map runs from its own lowest value to its "
            "highest; + marks its peak."
        )
        _save(sheet(tiles, foot), self.folder / "sheets" / f"{self._pictures[image.index]}.png")

    def _overlay(self, image: _Predicted, column: int) -> str:
        return f"overlays/{self._pictures[image.index]}/{self._file_of[column]}.png"

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prove that each image was predicted exactly once, write the table, and name every image left out."""
        gathered = gather((self._images, self._skipped, self._notes))
        images = sorted((image for part, _, _ in gathered for image in part), key=lambda image: image.index)
        skipped = sorted(reason for _, part, _ in gathered for reason in part)
        if not trainer.is_global_zero:
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        check_each_once([image.index for image in images] + [index for index, _ in skipped], len(data.records))
        pairs = [(image, column) for image in images for column in range(len(data.findings))]
        overlays = [self._overlay(*pair) if pair[1] in self._drawn else None for pair in pairs]
        table = pa.table(
            {
                "image_id": pa.array([image.image_id for image, _ in pairs], pa.string()),
                "finding": pa.array([data.findings[column] for _, column in pairs], pa.string()),
                "logit": np.array([image.logits[column] for image, column in pairs], np.float64),
                "probability": np.array([image.probabilities[column] for image, column in pairs], np.float64),
                "file": pa.array([image.file for image, _ in pairs], pa.string()),
                "overlay": pa.array(overlays, pa.string()),
            }
        )
        with _named_disk(self.folder), atomic_writer(self.folder / "predictions.parquet") as file:
            pq.write_table(table, file, **WRITING)
        if trainer.progress_bar_callback is not None:
            trainer.progress_bar_callback.teardown(trainer, pl_module, "predict")
        console = Console(markup=False, highlight=False)
        for _, reason in skipped:
            console.print(f"Skipped {reason}", style="yellow", soft_wrap=True)
        odd: dict[str, list[str]] = {}
        for note in sorted({*data.notes, *(note for _, _, part in gathered for note in part)}):
            odd.setdefault(note.text, []).append(note.image_id)
        for text, names in odd.items():
            console.print(f"{text[0].upper()}{text[1:]}: {len(names)} (first: {names[0]}).", style="yellow")
        said = f"{len(images)} image{'' if len(images) == 1 else 's'}"
        if self._drawn and images:
            said += f". Look at {self.folder / 'sheets'}; overlays, maps and scores lie beside it."
        else:
            said += f". Predictions: {self.folder}"
        console.print(said, soft_wrap=True)


def _to_draw(overlays: bool | list[str] | str, findings: Sequence[str]) -> list[int]:
    """Return the places of the findings that are drawn."""
    if isinstance(overlays, bool):
        return [*range(len(findings))] if overlays else []
    wanted = chosen(overlays)
    if unknown := [finding for finding in wanted if finding not in findings]:
        raise UserError(
            f"--overlays: {', '.join(unknown)} is not asked for. The findings of this prediction are "
            f"{', '.join(findings)}; or give false for no pictures.",
            exit_status=2,
        )
    return [place for place, finding in enumerate(findings) if finding in wanted]


def _save(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # More compression takes several times as long and saves a tenth.
    picture.save(path, compress_level=1)


@contextmanager
def _named_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The prediction cannot be written to {folder}: {error.strerror or error}. Make room, leave out the "
            "pictures with --overlays false, or give another folder with --trainer.default_root_dir."
        ) from error
