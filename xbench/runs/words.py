"""Texts of a run read by a vocabulary, with positions of maps, boxes and regions. Needs no torch."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from xbench.findings.names import canonical
from xbench.geometry.location import STANDARD, LungField, apart, locate, place_of
from xbench.geometry.shapes import Shape
from xbench.predictions import family_named
from xbench.predictions.conventions import Convention
from xbench.predictions.files import Files, named, read_csv, read_picture
from xbench.predictions.json_grammar import without_boxes
from xbench.predictions.source import Names
from xbench.predictions.words import Stated, TextReading, TextStatus, Vocabulary
from xbench.runs.answers import AnswerRow
from xbench.runs.files import MENTIONS, OF_WORDS, READ_TEXTS
from xbench.runs.finished import FinishedRun
from xbench.runtime.errors import UsageError
from xbench.runtime.strict import decimal
from xbench.scoring.protocols.base import PairTruth, PairView

FIELD = ("midline", "top", "bottom")  # columns of lung fields, in order
_PHRASE = re.compile("<obj>(.*?)</obj>", re.DOTALL)


@dataclass(frozen=True)
class Words:
    """Texts of a run, or the words around boxes, read by a vocabulary."""

    run: FinishedRun
    file: Path | None = None  # the user's own vocabulary; None for the package's
    lungs: Mapping[str, LungField] = field(default_factory=dict)  # by image; the standard field elsewhere
    strict: bool = False  # whether only a finding's own name counts
    of_maps: bool = False  # whether to place peaks of maps, and boxes instead of the words around them

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.file)

    @cached_property
    def texts(self) -> list[tuple[AnswerRow, str, TextReading]]:
        """Texts in the dataset's order, without boxes and tags, and their reading."""
        texts = [(row, without_boxes(row.raw)) for row in self.run.texts or self.run.located * (not self.of_maps)]
        asked = [canonical(row.group or row.finding) or row.finding or None for row, _ in texts]
        read = self._vocabulary.read
        return [(row, text, read(text, of, row.finish)) for (row, text), of in zip(texts, asked, strict=True)]

    @cached_property
    def _points(self) -> Mapping[tuple[str, str], list[tuple[float, float]]]:
        """Peaks of maps, or centers of boxes, by image and finding; those of a phrase belong to all its mentions."""
        found, scores = defaultdict[tuple[str, str], list[tuple[float, float]]](list), self.run.image_scores
        about, findings = self.run.results.provenance.get("model") or {}, self.run.results.findings
        for at, column in np.argwhere(scores.scored & self.of_maps & self.run.draws_maps).tolist():
            x, y = float(scores.peak_x[at, column]), float(scores.peak_y[at, column])
            found[scores.image_ids[at], findings[column]] += [] if math.isnan(x) else [(x, y)]
        for row in self.run.located:
            found[row.image_id, row.finding] += [*map(_center, row.boxes or ()), *(row.points or ())]
        for row in self.run.texts if "frame" in about else ():
            for phrase in _PHRASE.findall(row.raw):
                family, frame = family_named(about["family"]), Convention.named(about["frame"])
                boxes = family.read(phrase, None, frame, (row.width, row.height)).boxes
                reading = self._vocabulary.read(without_boxes(phrase))
                for finding in findings:
                    stated = self._vocabulary.stated(reading, canonical(finding) or finding, self.strict)
                    if stated.status in ("asserted", "uncertain"):
                        found[row.image_id, finding] += map(_center, boxes)
        return found

    def pairs(self) -> Iterator[tuple[int, int, dict[str, float], PairView, PairTruth]]:
        """Yield readable pairs on frontal images: positions, lung field, words and region."""
        run, vocabulary, scores = self.run, self._vocabulary, self.run.image_scores
        readings = {(row.image_id, row.finding): reading for row, _, reading in self.texts}
        drawn = (((image_id, name), region) for image_id, name, region in run.regions())
        items = run.instances | {pair: (Shape.from_mask(of),) for pair, of in drawn if pair not in run.instances}
        cells = np.zeros((int(run.draws_maps),) * 2, np.float32)  # distinguishes maps from boxes
        for row, column in np.argwhere(scores.labels >= 0).tolist():
            pair = image_id, finding = scores.image_ids[row], run.results.findings[column]
            if finding in self.unread or run.attributes.get(image_id, {}).get("projection") == "lateral":
                continue
            name, lungs = canonical(finding) or finding, self.lungs.get(image_id, STANDARD)
            reading, points = readings.get(pair) or readings.get((image_id, "")), self._points.get(pair)
            words, own = (vocabulary.stated(reading, name, of) if reading else None for of in (self.strict, True))
            places: Any = ("asserted" if points else "", *place_of(points or (), lungs))
            view = PairView(cells, words=words, own=own, place=None if points is None else Stated(*places))
            label = int(scores.labels[row, column])
            location = locate(apart(items[pair]), lungs) if label and pair in items else None
            truth = PairTruth(label, location=location, sided=name not in vocabulary.unsided)
            yield row, column, asdict(lungs), view, truth

    @cached_property
    def unread(self) -> list[str]:
        """Findings of the run that the vocabulary lacks."""
        known = {*self._vocabulary.findings, *self._vocabulary.accepts}
        return [finding for finding in self.run.results.findings if canonical(finding) not in known]

    def about(self) -> dict[str, Any]:
        """Return how words were read, and shares of texts by outcome."""
        counts = Counter(dict.fromkeys((*get_args(TextStatus), "viewer_frame", "contradicts_itself"), 0))
        for _, _, reading in self.texts:
            asserted = {one.finding for one in reading.mentions if one.status == "asserted"}
            denied = {one.finding for one in reading.mentions if one.status == "negated" and not one.sides + one.zones}
            counts[reading.status] += 1
            counts["viewer_frame"] += any("viewer_frame" in one.flags for one in reading.mentions)
            counts["contradicts_itself"] += bool(asserted & denied)
        shares = {name: count / len(self.texts) if self.texts else None for name, count in counts.items()}
        settings = {"vocabulary": self._vocabulary.sha256, "strict": self.strict, "of_maps": self.of_maps}
        settings["lungs"] = "given" if self.lungs else "standard"
        return {"settings": settings, "texts": {"count": len(self.texts)} | shares, "findings_not_read": self.unread}

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables of texts and mentions by file; empty without texts."""
        rows: dict[str, list[dict[str, Any]]] = {READ_TEXTS: [], MENTIONS: []}
        for row, text, reading in self.texts:
            about = {"index": row.index, "image_id": row.image_id, "asked": row.finding or None}
            read = {"text": text.encode("utf-8", "replace").decode(), "finish": row.finish, "status": reading.status}
            rows[READ_TEXTS].append(about | read | {"vocabulary": self._vocabulary.sha256})
            rows[MENTIONS] += [about | asdict(mention) for mention in reading.mentions]
        return {name: pa.Table.from_pylist(of, OF_WORDS[name]) for name, of in rows.items() if self.texts}


def read_lungs(path: Path, images: Sequence[str]) -> dict[str, LungField]:
    """Read lung fields: masks in a folder or archive, or a CSV file of midline, top and bottom."""
    fields = {}
    with named(path):
        if path.suffix == ".csv":
            for where, row in read_csv(path, "image", *FIELD):
                with named(path, of=where):
                    fields[row["image"], ""] = LungField(*(decimal(row[name]) for name in FIELD))
        else:
            files = Files(path)
            for name in files.names:
                with named(path, name):
                    fields[name, ""] = LungField.of_mask(read_picture(files.read(name)) > 0)
    found = {image: lungs for (image, _), lungs in Names(images, ()).match(fields, "--lungs")[0].items()}
    if lacking := [image for image in images if image not in found]:
        raise UsageError(f"--lungs {path} lacks {len(lacking)} images (first: {lacking[0]}): add them.")
    return found


def _center(box: tuple[float, float, float, float]) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
