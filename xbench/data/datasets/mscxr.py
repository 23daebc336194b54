"""MS-CXR: radiographs of MIMIC-CXR with phrases about eight findings, and boxes of each phrase."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import ClassVar

from xbench.data.annotations.folder import Folder
from xbench.data.annotations.items import image_size
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.data.datasets.phrases import ImagePhrases
from xbench.findings.names import FINDINGS, canonical
from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UserError

_NUMBERS = ("x", "y", "w", "h", "image_height", "image_width")
# Counts reported for version 1.1.0: pairs of an image and a phrase, by finding and in all.
_REPORTED = {
    **{"Atelectasis": 61, "Cardiomegaly": 333, "Consolidation": 117, "Edema": 46, "Lung Opacity": 82},
    **{"Pleural Effusion": 96, "Pneumonia": 182, "Pneumothorax": 245, "phrases": 1162},
    **{"phrases whatever their category": 1160, "boxes": 1448, "images": 1047, "patients": 851},
}


class MSCXR(DownloadedDataset):
    """MS-CXR 1.1.0 as downloaded; physionet.org/content/ms-cxr.

    Each row of the table is a box of a phrase: x, y, width and height in pixels of the MIMIC-CXR image, with the
    image's size. A pair is an image, a category and a phrase; its region is the union of its boxes. There are no
    negatives. Smaller copies of the images are accepted, and noted, if they have the same proportions.

    Args:
        root: Folder with the table and the images of MIMIC-CXR-JPG or MIMIC-CXR, in any folders, one file of each.
        **kwargs: `annotations`, `image_list` and the options of every dataset.
    """

    name = "mscxr"
    findings = FINDINGS["mscxr"]
    splits = ("all", "train", "val", "test")
    layout = "MS_CXR_Local_Alignment_v1.1.0.csv and files/p10/<patient>/<study>/<image>.jpg"
    files: ClassVar = {"annotations": ("MS_CXR_Local_Alignment_v1.1.0.csv", "MS_CXR_Local_Alignment_v1.0.0.csv")}
    states_sizes = True
    phrases = True
    exhaustive = False  # MIMIC-CXR has far more images

    def read_annotations(self, folder: Folder) -> Iterable[ImageAnnotations]:
        phrases: defaultdict[str, ImagePhrases] = defaultdict(lambda: ImagePhrases("en"))
        sizes: dict[str, tuple[int, int]] = {}
        pairs, boxes = set(), 0
        columns = ("dicom_id", "category_name", "label_text", "path", *_NUMBERS)
        for row in self.rows(self.file(folder), columns if self.split == "all" else (*columns, "split")):
            image, category = self.listed_key(row.name("dicom_id")), row.name("category_name")
            finding, text = canonical(category), row.name("label_text")
            *box, height, width = (row.number(column) for column in _NUMBERS)
            if patient := re.search(r"\bp\d{4,}\b", row["path"]):
                self._patients[image] = patient[0]
            boxes += 1
            pairs.add((image, finding, " ".join(text.split()).casefold()))
            # It may be val or validation.
            if self.split != "all" and not row["split"].casefold().startswith(self.split):
                continue
            if finding not in self.findings:
                self.note(f"a phrase about {category!r} was left out: it is not one of the eight findings", image)
                continue
            with row.blamed():
                phrases[image].add(text, finding, 1, [Shape.from_corner_and_size(*box)])
                if sizes.setdefault(image, size := image_size(int(height), int(width))) != size:
                    raise UserError(f"{image} has another size here than in an earlier row")
        found = Counter(str(finding) for _, finding, _ in pairs) | {"boxes": boxes, "phrases": len(pairs)}
        found |= {"images": len({image for image, *_ in pairs}), "patients": len({*self._patients.values()})}
        found |= {"phrases whatever their category": len({(image, text) for image, _, text in pairs})}
        self.compare(found, _REPORTED)
        return [of_image.case(image, sizes[image]) for image, of_image in phrases.items()]
