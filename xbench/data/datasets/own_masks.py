"""A dataset of the user's own: a folder of images and a folder of masks."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import Annotation
from xbench.data.datasets.downloaded import ImageAnnotations
from xbench.data.datasets.own import OwnDataset
from xbench.data.decoding import decode_image
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.processes import usable_cores

_SUFFIXES = (".png", ".jpg", ".jpeg")


class MaskFolderDataset(OwnDataset):
    """Images with one mask image per outlined finding: 0 outside the lesion, one other value inside.

    A mask of zeros makes the finding absent. An image without masks is left out unless a table of labels names it or
    `without_mask` is `absent`.

    Args:
        root: Folder of the images.
        findings: Findings in the names of the masks, as `{nodule: Nodule, eff: Pleural Effusion}`.
        masks: Folder of the masks, PNG files of the same size as their images; images in it are not radiographs.
        pattern: Path of a mask below `masks` without its ending. By default `{finding}/{image}`, or `{image}` if
            `findings` has a single name.
        labels: A table of labels, with columns `image` and one for each finding: 1, 0, or unknown (empty or -1).
        without_mask: Label of a finding with neither a mask nor a label: `unknown` or `absent`.
        **kwargs: `name`, `split`, `recognition_only`, `patient`, `image_list` and the options of every dataset.
    """

    name = "masks"
    layout = "the images, and masks/<finding>/<image>.png"

    def __init__(
        self,
        root: str,
        findings: dict[str, str] | list[str],
        masks: str = "masks",
        pattern: str | None = None,
        labels: str | None = None,
        without_mask: Literal["unknown", "absent"] = "unknown",
        name: str = "masks",
        **kwargs: Any,
    ) -> None:
        super().__init__(root, findings, name=name, **kwargs)
        if self.annotations is not None:
            raise UsageError("--data.annotations: masks are in --data.masks, labels in --data.labels.")
        self.masks, self.labels = Path(self.place(masks) or masks), self.place(labels)
        self.pattern = pattern or ("{image}" if len(self.names) == 1 else "{finding}/{image}")
        self.without_mask = without_mask
        fields = sorted(re.findall(r"{(\w*)}", self.pattern))
        if fields not in (["image"], ["finding", "image"]) or (len(fields) == 1 and len(self.names) > 1):
            raise UsageError(
                f"--data.pattern {self.pattern}: write {{image}} once, and {{finding}} once if there are several."
            )

    def image_key(self, path: Path) -> str | None:
        masks, image = os.path.abspath(self.masks), os.path.abspath(path)
        return None if image.startswith(f"{masks}{os.sep}") else super().image_key(path)

    def where_images_are(self) -> str:
        return f"{super().where_images_are()} Masks are matched with images by --data.pattern {self.pattern}."

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        if not self.masks.is_dir():
            raise UserError(f"{self.name}: --data.masks {self.masks} is not a folder, here or in {self.root}.")
        index = Folder(self.masks, lambda path: path.relative_to(self.masks).with_suffix("").as_posix(), _SUFFIXES)
        labels = {} if self.labels is None else self.read_labels(self.reading(self.labels), "image")
        drawn: defaultdict[str, list[Annotation]] = defaultdict(list)
        masked: defaultdict[tuple[str, str], bool] = defaultdict(bool)
        masks: dict[tuple[str, str], Path] = {}
        for key, (path, *more) in index.images.items():
            match = self._match(key, path)
            if match is None:
                continue
            if other := more[0] if more else masks.get(match):
                image, label = match
                raise UserError(f"{self.name}: {image} has two masks of {label}, {path} and {other}. Keep one there.")
            masks[match] = self.reading(path)
        with ThreadPoolExecutor(usable_cores()) as threads:
            empty = [*threads.map(self._is_empty, masks.values())]
        for ((image, label), path), is_empty in zip(masks.items(), empty, strict=True):
            finding = self.names[label]
            masked[image, finding] |= not is_empty
            if not is_empty:
                drawn[image] += self.drawn(finding, path, image)
        self.check_drawn(self.masks, {finding for _, finding in masked})
        flags = {image: dict(found) for image, found in labels.items()}
        for (image, finding), found in masked.items():
            stated = flags.setdefault(image, {}).setdefault(finding, int(found))
            if stated != found:
                raise UserError(
                    f"{self.name}: {self.labels} calls {finding} {'present' if stated else 'absent'} on {image}, and "
                    f"its mask has {'pixels' if found else 'no pixels'}. Correct one of them."
                )
        if self.without_mask == "absent":
            for image in {*self._images, *flags} - {*labels}:
                flags[image] = dict.fromkeys(self.findings, 0) | flags.get(image, {})
        return [ImageAnnotations(image, found, tuple(drawn[image])) for image, found in flags.items()]

    def _match(self, key: str, path: Path) -> tuple[str, str] | None:
        """Return the image and label of a mask; None, with a note, for another label."""
        fitting = {}
        for label in self.names if "{finding}" in self.pattern else list(self.names)[:1]:
            if found := re.fullmatch(_expression(self.pattern, re.escape(label)), key):
                fitting[label] = self.listed_key(found["image"])
        known = {label: image for label, image in fitting.items() if image in self._images} or fitting
        if len(known) == 1:
            ((label, image),) = known.items()
            return image, label
        if not known and (other := re.fullmatch(_expression(self.pattern, "[^/]+"), key)):
            try:
                self.finding_of(other["finding"], other["image"])
            except UserError as error:
                raise UserError(f"{self.name}: the mask {path}: {error}.") from None
            return None
        fits = f"may be of {' or '.join(known)}" if known else "does not fit"
        raise UserError(f"{self.name}: the mask {path} {fits} by --data.pattern {self.pattern}. Rename it there.")

    def _is_empty(self, path: Path) -> bool:
        values = np.flatnonzero(np.bincount(decode_image(path).ravel(), minlength=256))
        with Image.open(path) as picture:
            clear = "A" in picture.getbands() or "transparency" in picture.info
            clear = clear and np.ptp(picture.convert("RGBA").getchannel("A").getextrema()) > 0
        if len(values) > 2 or (len(values) == 2 and values[0]) or clear:
            what = "has transparent pixels" if clear else f"has {len(values)} gray values, from {values[0]}"
            raise UserError(
                f"{self.name}: the mask {path} {what}. A mask has 0 outside the lesion and one other value inside: "
                "save it as a gray PNG (JPEG blurs edges), and split a map of several findings into one mask each."
            )
        return not np.any(values)


def _expression(pattern: str, finding: str) -> str:
    return re.escape(pattern).replace(r"\{image\}", "(?P<image>.+)").replace(r"\{finding\}", f"(?P<finding>{finding})")
