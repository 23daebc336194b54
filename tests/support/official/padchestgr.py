"""PadChest-GR: 16-bit PNG files, sentences in two languages with boxes of two readers. All sentences are invented."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from official.base import Official
from official.films import draw_film, place
from xbench.findings.queries import Query

# Of each sentence: its canonical finding, labels, English, Spanish, whether it is abnormal, how many boxes each of two
# readers drew, and how something changed.
_Sentence = tuple[str | None, list[str], str, str, bool, int, int, str | None]
_LARGE: _Sentence = (
    *("Cardiomegaly", ["cardiomegaly"], "Invented large heart.", "Corazón grande inventado.", True, 1, 1, "worse"),
)
_DOTS: _Sentence = ("Nodule", ["nodule"], "Invented dots.", "Puntos inventados.", True, 2, 0, None)
_HAZE: _Sentence = (None, ["alveolar pattern"], "Invented haze.", "Bruma inventada.", True, 1, 2, None)
_UNSEEN: _Sentence = ("Rib Fracture", ["callus", "rib fracture"], "Old break.", "Rotura antigua.", True, 0, 0, None)
_DRY: _Sentence = (None, [], "No invented fluid.", "Sin líquido inventado.", False, 0, 0, None)
_CLEAR: _Sentence = (None, [], "Nothing else.", "Nada más.", False, 0, 0, None)
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


def write_padchestgr(
    root: Path, outside: bool = False, language: Literal["en", "es"] = "en", readers: str = "main"
) -> Official:
    """Write eight images; the last two are of one patient. One is an earlier image of another, too.

    With `outside`, a box of the first image reaches beyond the frame. Queries, labels and masks are those of the
    language and the readers.
    """
    official = Official(root)
    studies, rows = [], []
    for number, (split, size, sentences) in enumerate(_IMAGES):
        name = f"2168401113669640128192{number:017d}_{number}"
        levels = 3000 + 40 * draw_film(number, *size).astype(np.int64)
        # A few pixels far outside of the rest, as of a marker.
        levels[0, :20], levels[1, :20] = 0, 65535
        low, high = (np.percentile(levels, share) for share in (0.5, 99.5))
        shown = np.rint((np.clip(levels, low, high) - low) * 255 / (high - low)).astype(np.uint8)
        file = official.add(name, shown, root / "Padchest_GR_files" / "PadChest_GR" / f"{name}.png", split)
        official.splits.setdefault("all", []).append(name)
        Image.fromarray(levels.astype(np.uint16)).save(file)
        official.annotate(name, {})
        official.patients[name] = f"{min(number, 6):040d}"
        findings: list[dict[str, Any]] = []
        for place_of, sentence in enumerate(sentences):
            findings.append(_entry(name, sentence, place_of, outside and not studies))
            _say(official, name, sentence, findings[-1], language, readers)
        studies.append({"StudyID": name[:39], "ImageID": file.name, "PreviousStudyID": None, "findings": findings})
        rows += [[name[:39], file.name, official.patients[name], split, "True"]] * len(findings)
    earlier = root / "PadChest_GR_progression_prior_studies"
    earlier.mkdir()
    (earlier / next(iter(official.files.values())).name).write_bytes(b"not read")
    (root / "grounded_reports_20240819.json").write_text(json.dumps(studies))
    with open(root / "master_table.csv", "w", newline="") as table:
        csv.writer(table).writerows([["StudyID", "ImageID", "PatientID", "split", "study_is_benchmark"], *rows])
    return official


def _entry(name: str, sentence: _Sentence, number: int, outside: bool) -> dict[str, Any]:
    _, labels, english, spanish, abnormal, boxes, extra, progression = sentence
    entry = {"sentence_en": english, "sentence_es": spanish, "abnormal": abnormal, "progression": progression}
    if not abnormal and not number:
        # Such keys may be missing.
        return entry
    drawn = {
        key: [[*place("padchestgr", name, number, key, which)] for which in range(count)]
        for key, count in (("boxes", boxes), ("extra_boxes", extra))
    }
    if outside and not number:
        drawn["boxes"][0][2] = 1.25
    return entry | drawn | {"labels": labels, "locations": []}


def _say(
    official: Official, name: str, sentence: _Sentence, entry: dict[str, Any], language: str, readers: str
) -> None:
    """Take up a sentence; one that is there again is the same phrase."""
    finding, height, width = sentence[0], *official.images[name].shape
    kinds = (("main", "boxes"), ("second", "extra_boxes"))
    boxes = [
        (*(round(edge * side) for edge, side in zip(box, (width, height) * 2, strict=True)), reader)
        for reader, key in kinds
        if readers in (reader, "both")
        for box in entry.get(key, ())
    ]
    text = entry[f"sentence_{language}"]
    same = [query for query in official.queries.get(name, ()) if query.text == text]
    number = 1 + sum(query.finding == finding for query in official.queries.get(name, ()))
    query = same[0] if same else Query(f"{finding or 'Phrase'} {number}", finding, text, language)
    official.say(name, query, int(sentence[4]), boxes)  # type: ignore[arg-type]
    if same:
        official.queries[name].pop()
