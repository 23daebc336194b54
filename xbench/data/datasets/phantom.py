"""PhantomCXR as a dataset: drawn on demand, identical everywhere, nothing to download."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.phantom import FINDINGS, draw_phantom
from xbench.data.records import Radiograph, Record
from xbench.geometry.shapes import connected_parts
from xbench.runtime.errors import UsageError

_TRAINING_SEEDS = 1_000_000


class PhantomCXR(ChestXrayDataModule):
    """Procedurally drawn chest radiographs with eight findings whose regions are known to the pixel.

    Every image is annotated for all findings, and each connected part of a region is a lesion. Phantoms test the
    harness and saliency methods; they show nothing about a model's skill on patients.

    Args:
        images: Number of images.
        seed: Number of the set of phantoms. The demo model was trained on sets from 1,000,000 on.
        size: Height and width of the images in pixels, at least 32; one number for both. Another size shows the same
            anatomy with different film grain.
        marker: A finding with a shortcut: exactly the images with it have a letter in the upper right corner, 12 pixels
            high where the image has 320. A model can then recognize it without looking at it.
        **kwargs: The options of every dataset.
    """

    name = "phantom"
    findings = FINDINGS

    def __init__(
        self,
        images: int = 200,
        seed: int = 0,
        size: int | tuple[int, int] = 320,
        marker: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.images, self.seed, self.marker = images, seed, marker
        self.size = (size, size) if isinstance(size, int) else size
        for option, value, least in (("images", images, 1), ("seed", seed, 0), ("size", min(self.size), 32)):
            if value < least:
                raise UsageError(f"--data.{option} {value} must be at least {least}.")
        if marker not in (None, *FINDINGS):
            raise UsageError(f"--data.marker {marker} is not a finding of phantoms: give one of {', '.join(FINDINGS)}.")

    def read_records(self, annotated: bool) -> Sequence[Record]:
        if self.seed >= _TRAINING_SEEDS:
            rank_zero_warn(
                f"phantom: the demo model was trained on sets from {_TRAINING_SEEDS} on, which include set "
                f"{self.seed}. Its scores there are not those of unseen images; choose a smaller --data.seed."
            )
        records = []
        for k in range(self.images):
            drawing = self.seed, k, *self.size, self.marker
            labels = _Labels(drawing) if annotated else {}
            # The drawing does not depend on these attributes.
            about = {"sex": "FM"[k % 2], "age": 18 + 7 * k % 73, "projection": ("AP", "PA", "PA")[k % 3]}
            records.append(Record(f"phantom-{self.seed}-{k:06d}", labels, drawing, attributes=about))
        return records

    def load(self, record: Record) -> Radiograph:
        phantom = _draw(*record.source)
        instances = {finding: connected_parts(mask) for finding, mask in phantom.masks.items()}
        return Radiograph(phantom.image, phantom.masks, instances=instances)


_draw = lru_cache(maxsize=1)(draw_phantom)


class _Labels(Mapping[str, int]):
    """Labels of a phantom, known only once it is drawn, because a finding without room is absent."""

    def __init__(self, drawing: tuple[int, int, int, int, str | None]) -> None:
        self._drawing = drawing

    def __getitem__(self, finding: str) -> int:
        if finding not in FINDINGS:
            raise KeyError(finding)
        return int(finding in _draw(*self._drawing).masks)

    def __iter__(self) -> Iterator[str]:
        return iter(FINDINGS)

    def __len__(self) -> int:
        return len(FINDINGS)
