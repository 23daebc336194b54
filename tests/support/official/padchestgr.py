"""PadChest-GR: 16-bit PNG files, sentences in two languages with boxes of two readers. All sentences are invented."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from official.base import Official
from official.films import draw_film, place

# Of each sentence: its canonical finding, labels, English, Spanish, boxes of the two readers, how something changed.
_Sentence = tuple[str | None, list[str], str, str, tuple[int, ...], str | None]
_LARGE: _Sentence = ("Cardiomegaly", ["cardiomegaly"], "Invented large heart.", "Corazón inventado.", (1, 1), "worse")
_DOTS: _Sentence = ("Nodule", ["nodule"], "Invented dots.", "Puntos inventados.", (2, 0), None)
_HAZE: _Sentence = (None, ["alveolar pattern"], "Invented haze.", "Bruma inventada.", (1, 2), None)
_UNSEEN: _Sentence = ("Rib Fracture", ["callus", "rib fracture"], "Old break.", "Rotura antigua.", (0, 0), None)
# Of what is absent nothing is drawn.
_DRY: _Sentence = (None, [], "No invented fluid.", "Sin líquido inventado.", (), None)
_CLEAR: _Sentence = (None, [], "Nothing else.", "Nada más.", (), None)
_IMAGES: tuple[tuple[str, tuple[int, int], list[_Sentence]], ...] = (
    ("test", (360, 300), [_LARGE, _DRY]),
    ("test", (310, 400), [_DOTS, _HAZE, _CLEAR]),
    ("test", (333, 333), [_UNSEEN, _DRY, _CLEAR]),
    ("test", (300, 350), [_LARGE, _DOTS, _DOTS]),
    ("test", (280, 300), [_DRY]),
    ("validation", (350, 300), [_HAZE]),
    ("train", (350, 280), [_LARGE]),
    ("train", (270, 290), [_CLEAR]),
)


def write_padchestgr(root: Path, outside: bool = False, language: str = "en", readers: str = "main") -> Official:
    """Write eight images, the last two of one patient; one is also an earlier image of another."""
    official = Official(root)
    studies, rows = [], []
    for number, (split, size, sentences) in enumerate(_IMAGES):
        name = f"2168401113669640128192{number:017d}_{number}"
        levels = 3000 + 40 * draw_film(number, *size).astype(np.int64)
        # A few pixels far outside of the rest, as of a marker.
        levels[0, :20], levels[1, :20] = 0, 65535
        low, high = (np.percentile(levels, share) for share in (0.5, 99.5))
        shown = np.rint((np.clip(levels, low, high) - low) * 255 / (high - low)).astype(np.uint8)
        file = official.add(name, shown, root / "Padchest_GR_files" / "PadChest_GR" / f"{name}.png", split, "all")
        Image.fromarray(levels.astype(np.uint16)).save(file)
        official.annotate(name, {})
        official.patients[name] = f"{min(number, 6):040d}"
        findings = []
        for at, (finding, labels, english, spanish, counts, progression) in enumerate(sentences):
            entry: dict[str, Any] = {"sentence_en": english, "sentence_es": spanish, "progression": progression}
            entry["abnormal"] = bool(counts)
            boxes: list[tuple[Any, ...]] = []
            for reader, key, count in zip(("main", "second"), ("boxes", "extra_boxes"), counts, strict=bool(counts)):
                drawn = [[*place("padchestgr", name, at, key, which)] for which in range(count)]
                if outside and not studies and key == "boxes":
                    drawn[0][2] = 1.25
                pixels = [[round(edge * side) for edge, side in zip(box, size[::-1] * 2, strict=True)] for box in drawn]
                boxes += [(*box, reader) for box in pixels if readers in (reader, "both")]
                entry |= {key: drawn, "labels": labels}
            findings.append(entry)
            official.say(name, finding, entry[f"sentence_{language}"], language, int(bool(counts)), boxes)
        studies.append({"StudyID": name[:39], "ImageID": file.name, "PreviousStudyID": None, "findings": findings})
        rows += [[name[:39], file.name, official.patients[name], split, "True"]] * len(findings)
    earlier = root / "PadChest_GR_progression_prior_studies"
    earlier.mkdir()
    (earlier / next(iter(official.files.values())).name).write_bytes(b"not read")
    (root / "grounded_reports_20240819.json").write_text(json.dumps(studies))
    with open(root / "master_table.csv", "w", newline="") as table:
        csv.writer(table).writerows([["StudyID", "ImageID", "PatientID", "split", "study_is_benchmark"], *rows])
    return official
