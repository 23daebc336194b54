"""Turn records into samples: decode, resize, and align image and annotations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

from xbench.data.changes import changes_of
from xbench.data.records import TIMEOUT, Grid, PreparedImage, Radiograph, Record
from xbench.data.store import PreparedStore
from xbench.data.workers.isolation import TimedOutError, isolated
from xbench.findings.conditions import HIDING, Intervention
from xbench.geometry.grid import FULL_VIEW
from xbench.geometry.preprocessing import Preprocessing
from xbench.geometry.regions import Coverage, covers_nothing
from xbench.geometry.shapes import FRACTIONS, UNKNOWN, Shape
from xbench.runs.files import IMAGES, PICTURES, TRUTH
from xbench.runs.images import image_rows, jpeg, shrunk, table_of, truth_table
from xbench.runs.journal import encoded
from xbench.runtime.errors import UserError
from xbench.types import Batch, Change, Failure, Note, Sample, Truth

_LONGEST_SIDE = 1024  # pixels of a kept radiograph; thousands of full-size films would be too much to keep

_EMPTY = np.zeros((0, 0), np.uint8)
_UNDECODED = PreparedImage(_EMPTY, FULL_VIEW, _EMPTY, (), ())


@dataclass(frozen=True)
class Samples(Dataset[Sample | Failure]):
    """Samples made from records on demand, in worker processes."""

    records: Sequence[Record]
    load: Callable[[Record], Radiograph]  # decodes an image and draws its annotations
    findings: Sequence[str]
    preprocessing: Preprocessing  # the model's
    grid: Grid
    gamma: float  # share of a grid pixel that an annotation must cover
    store: PreparedStore | None = None
    timeout: float = TIMEOUT  # seconds that decoding an image in a worker process may take
    interventions: Sequence[Intervention] = ()
    chosen: Mapping[str, frozenset[str]] = field(default_factory=dict)  # names of the queries to change, by image

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Sample | Failure:
        started = time.perf_counter()
        record = self.records[index]
        undecoded = self.preprocessing.undecoded and not record.missing
        try:
            prepared, changes = (_UNDECODED, ()) if undecoded else self.read(record)
        except UserError as error:
            return Failure(index, record.image_id, str(error), isinstance(error, TimedOutError))
        queries = record.looked_for(self.findings)
        covered = dict(zip(prepared.findings, prepared.coverage, strict=True))
        coverage = [covered.get(query.name) for query in queries]
        labels = [record.labels.get(query.name, -1) for query in queries]
        shapes = [prepared.instances.get(query.name, ()) for query in queries]
        agreement = [prepared.reader_agreement.get(query.name, (nan, nan)) for query in queries]
        about = index, record.image_id, record.patient_id, prepared.view, prepared.image_size
        truth = Truth.of_image(*about, queries, labels, coverage, self.gamma, shapes, agreement)
        return Sample(
            image=torch.empty(0) if self.preprocessing.unseen else self.preprocessing.normalise(prepared.pixels),
            display=torch.from_numpy(prepared.display),
            image_sha256=None if undecoded else prepared.sha256(),
            truth=truth,
            notes=tuple(Note(text, record.image_id) for text in prepared.notes),
            regions=[
                (index, record.image_id, query, label == 1, cut, items)
                for query, label, cut, items in zip(queries, labels, coverage, shapes, strict=True)
                if cut is not None
            ],
            picture=jpeg(shrunk(prepared.display, _LONGEST_SIDE)) if truth.scored.any() else None,
            changes=changes,
            seconds=time.perf_counter() - started,
        )

    @staticmethod
    def collate(items: list[Sample | Failure]) -> Batch:
        """Make a batch, and encode tables of the run here to spare the process with the network."""
        batch, samples = Batch.collate(items), [item for item in items if isinstance(item, Sample)]
        regions = [region for sample in samples for region in sample.regions]
        films = zip(batch.truth.image_ids, samples, strict=True)
        pictures = [(image_id, sample.picture) for image_id, sample in films if sample.picture is not None]
        rows = image_rows(batch)
        tables = {IMAGES: table_of(IMAGES, rows), TRUTH: truth_table(regions), PICTURES: table_of(PICTURES, pictures)}
        content = {name: bytearray(encoded(table)) for name, table in tables.items() if table.num_rows}
        batch.kept = {name: torch.frombuffer(part, dtype=torch.uint8) for name, part in content.items()}
        batch.rows_hash = hash(rows)
        return batch

    def read(self, record: Record) -> tuple[PreparedImage, Sequence[Change]]:
        """Read an image from the store, or decode, resize and change it; UserError if that is impossible."""
        # The store has no radiograph to change.
        changed = record.image_id in self.chosen and any(one in HIDING for one in self.interventions)
        stored = None if self.store is None or changed else self.store.read(record)
        return (stored, ()) if stored else isolated(self._decode, record, self.timeout)

    def _decode(self, record: Record) -> tuple[PreparedImage, Sequence[Change]]:
        radiograph = self.load(record)
        prepared = self._prepared(record, radiograph)
        drawn = self.chosen.get(record.image_id, frozenset()) & {*prepared.findings}
        names = [query.name for query in record.looked_for(self.findings)]
        pairs = {place: name for place, name in enumerate(names) if name in drawn}
        return prepared, changes_of(record, radiograph, prepared, pairs, self.interventions, self.preprocessing)

    def _prepared(self, record: Record, radiograph: Radiograph) -> PreparedImage:
        image, regions, agreement = radiograph.image, radiograph.regions, radiograph.reader_agreement
        pixels, view = self.preprocessing.pixels(image)
        size = (image.shape[0], image.shape[1]) if self.grid == "native" else self.grid
        annotated = [query.name for query in record.looked_for(self.findings) if query.name in regions]
        drawn = tuple(finding for finding in annotated if regions[finding].any())
        # Only if present: an empty mask of an absent finding is normal.
        empty = [finding for finding in annotated if finding not in drawn and record.labels.get(finding) == 1]
        display = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
        return PreparedImage(
            pixels,
            view,
            display.astype(np.uint8, copy=False),
            drawn,
            tuple(Coverage.of(regions[finding], size) for finding in drawn),
            (*radiograph.notes, *map(covers_nothing, empty)),
            {finding: agreement[finding] for finding in drawn if finding in agreement},
            (image.shape[0], image.shape[1]),
            {finding: items for finding in drawn if (items := _items(radiograph, finding))},
        )


def _items(radiograph: Radiograph, finding: str) -> tuple[Shape, ...]:
    """Return the items of a region, on the image if without a size; UserError for those that no run could read back."""
    items, size = radiograph.instances.get(finding, ()), radiograph.image.shape
    try:
        sized = [item.on(*size) if item.size in (UNKNOWN, FRACTIONS) else item for item in items]
        return tuple(Shape.checked(one.kind, one.size, one.coordinates, one.reader, one.outline) for one in sized)
    except (AttributeError, TypeError, UserError, ValueError) as error:
        raise UserError(
            f"Its `instances` of {finding} are not shapes of this image ({str(error).rstrip('.')}): pass "
            "xbench.geometry.shapes.Shape, such as Shape.from_corners(x0, y0, x1, y1), in pixels of the image."
        ) from error
