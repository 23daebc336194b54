"""PadChest-GR: radiographs with report sentences in two languages, and boxes of two readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.tables import read_json
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.data.datasets.phrases import ImagePhrases
from xbench.findings.names import FINDINGS, canonical
from xbench.geometry.shapes import FRACTIONS, Shape

# Counts in its paper (arXiv 2411.05085).
_REPORTED = {
    **{"images": 4555, "images with a positive sentence": 3099, "positive sentences": 7037},
    **{"positive sentences with a box": 6217, "negative sentences": 3422},
}
_OF_TABLE = {"patients": 4459, "images of train": 3185, "images of validation": 455, "images of test": 915}


class PadChestGR(DownloadedDataset):
    """PadChest-GR as downloaded; bimcv.cipf.es/bimcv-projects/padchest-gr.

    A pair is an image and a sentence of its report. Boxes are fractions of width and height. A region is the union of
    the main reader's boxes; the second reader's measure agreement. A positive sentence without a box is present without
    a region. A sentence that is not abnormal has the label 0 and no region. A sentence's finding is the first of its
    labels that `xbench list findings` knows, if any. 16-bit images are stretched between the percentiles 0.5 and 99.5
    of their pixels.

    Args:
        root: Folder of the download, with its images unpacked.
        language: Sentences in English (`en`) or Spanish (`es`).
        readers: Readers whose boxes make the region: `main`, `second` or `both`.
        progression: `any` sentence, only those that describe a change since an earlier image (`stated`), or only the
            others (`none`).
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "padchestgr"
    findings = FINDINGS["padchestgr"]
    splits = ("test", "validation", "train", "all")
    layout = "grounded_reports_20240819.json, master_table.csv and PadChest_GR/<image>.png"
    files: ClassVar = {
        "annotations": ("grounded_reports_20240819.json",),
        "table": ("master_table.csv@test", "master_table.csv@validation", "master_table.csv@train"),
    }
    percentiles = (0.5, 99.5)
    phrases = True
    exhaustive = False  # the images of all splits lie in one folder

    def __init__(
        self,
        root: str,
        language: Literal["en", "es"] = "en",
        readers: Literal["main", "second", "both"] = "main",
        progression: Literal["any", "stated", "none"] = "any",
        **kwargs: Any,
    ) -> None:
        super().__init__(root, **kwargs)
        self.language, self.readers, self.progression = language, readers, progression

    def image_key(self, path: Path) -> str | None:
        # An earlier image of one study may be the image of another.
        return None if "prior_studies" in str(path.relative_to(self.root).parent) else path.stem

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        table = self.optional_file(folder, "master_table.csv") if self.split == "all" else self.file(folder, "table")
        splits: dict[str, str] = {}
        for row in self.rows(table, ("ImageID", "PatientID", "split")) if table else ():
            image = self.listed_key(row.name("ImageID"))
            splits[image], self._patients[image] = row["split"].casefold(), row["PatientID"] or image
            projection = row.get("Projection") or row.get("ViewPosition_DICOM")
            self._stated[image] = row.get("PatientSex_DICOM"), row.get("PatientAge"), projection
        counts = Counter(f"images of {split}" for split in splits.values())
        counts["patients"] = len({*self._patients.values()})
        path, cases = self.file(folder), []
        content = read_json(self.name, path)
        with self.blamed(path, "the list of studies"):
            studies = [(self.listed_key(study["ImageID"]), study.get("findings") or []) for study in content]
        for image, sentences in studies:
            with self.blamed(path, f"the findings of {image}"):
                sentences = list(sentences)
            phrases, before, noted = ImagePhrases(self.language), counts["positive sentences"], len(self.notes)
            for number, sentence in enumerate(sentences, start=1):
                with self.blamed(path, f"sentence {number} of {image}"):
                    self._read_sentence(image, sentence, phrases, counts)
            counts["images"] += 1
            counts["images with a positive sentence"] += counts["positive sentences"] > before
            if self.split == "all" or splits.get(image) == self.split:
                cases.append(phrases.case(image))
            else:
                del self.notes[noted:]
        self.compare(counts, _REPORTED | (_OF_TABLE if table else {}))
        return cases

    def _read_sentence(self, image: str, sentence: Any, phrases: ImagePhrases, counts: Counter[str]) -> None:
        text, abnormal = sentence[f"sentence_{self.language}"], sentence["abnormal"]
        if not isinstance(abnormal, bool):
            raise ValueError(f"abnormal is {abnormal!r:.40}, not true or false")
        drawn = {who: self._boxes(image, sentence, who) for who in ("main", "second")}
        counts["positive sentences" if abnormal else "negative sentences"] += 1
        counts["positive sentences with a box"] += abnormal and bool(drawn["main"])
        if self.progression != "any" and bool(sentence.get("progression")) != (self.progression == "stated"):
            return
        if not abnormal and any(drawn.values()):
            self.note("boxes of a sentence about what is absent, left out", image)
            drawn = {}
        named = (canonical(str(label)) for label in sentence.get("labels") or ())
        finding = next((name for name in named if name in self.findings), None)
        own = [box for who, boxes in drawn.items() if self.readers in (who, "both") for box in boxes]
        others = [box for who, boxes in drawn.items() if self.readers not in (who, "both") for box in boxes]
        if not text:
            self.note("a sentence that does not exist in this language, left out", image)
        elif phrases.add(text, finding, int(abnormal), own, others):
            self.note("a sentence that is both present and absent; it is present", image)

    def _boxes(self, image: str, sentence: Any, reader: str) -> list[Shape]:
        drawn = []
        for box in sentence.get("boxes" if reader == "main" else "extra_boxes") or ():
            left, top, right, bottom = map(float, box)
            if not max(map(abs, (left, top, right, bottom))) <= 2:
                raise ValueError(f"the box {box!r:.80} is not in fractions of the image")
            if right > left and bottom > top:
                drawn.append(Shape("box", FRACTIONS, np.array([left, top, right, bottom]), reader))
            else:
                self.note("a box that ends before it begins, or holds nothing, left out", image)
        return drawn
