"""What a run says in words, as a vocabulary reads it, and where its maps, boxes and regions lie. Needs no torch."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from xbench.findings.names import canonical
from xbench.geometry.location import STANDARD, LungField, locate, place_of
from xbench.geometry.shapes import Shape, connected_parts
from xbench.predictions import family_named
from xbench.predictions.conventions import Convention
from xbench.predictions.files import Files, named, read_csv, read_picture
from xbench.predictions.reading import without_boxes
from xbench.predictions.source import Names
from xbench.predictions.words import Stated, TextReading, TextStatus, Vocabulary
from xbench.runs.answers import AnswerRow
from xbench.runs.files import MENTIONS, OF_WORDS, READ_TEXTS
from xbench.runs.finished import FinishedRun
from xbench.runtime.errors import UsageError
from xbench.runtime.strict import decimal

_PHRASE = re.compile("<obj>(.*?)</obj>", re.DOTALL)
_Pair = tuple[str, str]
"""Image and finding."""


@dataclass(frozen=True)
class Words:
    """The texts of a run as a vocabulary reads them; of a run of boxes the words around these.

    Attributes:
        file: The user's own vocabulary; that of the package if None.
        lungs: Lung fields by image; that of the standard view where an image has none.
        strict: Whether a finding's own name alone counts, and no other that answers for it.
        of_maps: Whether peaks of maps are places too, and answered boxes count instead of the words around them.
    """

    run: FinishedRun
    file: Path | None = None
    lungs: Mapping[str, LungField] = field(default_factory=dict)
    strict: bool = False
    of_maps: bool = False

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words that texts are read by."""
        return Vocabulary.of(self.file)

    @cached_property
    def texts(self) -> list[tuple[AnswerRow, str, TextReading]]:
        """Texts in the dataset's order, without boxes and tags, and what is read of each."""
        rows = [*chain(*self.run.texts.values())] or self._located * (not self.of_maps)
        asked = [canonical(row.group or row.finding) or row.finding or None for row in rows]
        texts = [(row, without_boxes(row.raw), of) for row, of in zip(rows, asked, strict=True)]
        return [(row, text, self.vocabulary.read(text, of, row.finish)) for row, text, of in texts]

    @cached_property
    def _readings(self) -> dict[_Pair, TextReading]:
        return {(row.image_id, row.finding): reading for row, _, reading in self.texts}

    @cached_property
    def _located(self) -> list[AnswerRow]:
        return [row for row in chain(*self.run.answers.values()) if row.query == "locate"]

    @cached_property
    def _points(self) -> Mapping[_Pair, list[tuple[float, float]]]:
        """Peaks of maps, or centers of boxes; those of a phrase of a report are of all that it mentions."""
        found, run = defaultdict[_Pair, list[tuple[float, float]]](list), self.run
        if self.of_maps and run.draws_maps:
            scores = run.image_scores
            for place, column in np.argwhere(~np.isnan(scores.peak_x)).tolist():
                peak = float(scores.peak_x[place, column]), float(scores.peak_y[place, column])
                found[scores.image_ids[place], run.results.findings[column]].append(peak)
        for row in self._located:
            found[row.image_id, row.finding] += [*_centers(row.boxes or ()), *(row.points or ())]
        about = run.results.provenance.get("model") or {}
        for row, _, _ in self.texts if "frame" in about else ():
            for phrase in _PHRASE.findall(row.raw) if row.query == "report" else ():
                size, reading = (row.width, row.height), self.vocabulary.read(without_boxes(phrase))
                answer = family_named(about["family"]).read(phrase, None, Convention.named(about["frame"]), size)
                for finding in run.results.findings:
                    if self._stated(reading, finding, self.strict).status in ("asserted", "uncertain"):
                        found[row.image_id, finding] += _centers(answer.boxes)
        return found

    @cached_property
    def _items(self) -> Mapping[_Pair, Sequence[Shape]]:
        known = self.run.instances
        unions = ((pair, region) for *pair, region in self.run.regions() if (*pair,) not in known)
        return known | {(image_id, name): connected_parts(region) for (image_id, name), region in unions}

    def reads(self, finding: str) -> bool:
        """Tell whether texts are read for a finding."""
        return canonical(finding) in {*self.vocabulary.findings, *self.vocabulary.accepts}

    def _stated(self, reading: TextReading, finding: str, strict: bool) -> Stated:
        return self.vocabulary.stated(reading, canonical(finding) or finding, strict)

    def view(self, image_id: str, finding: str) -> dict[str, Any]:
        """Return what is stated of a pair: in words, by its own name alone, and by peaks or boxes; None without."""
        reading = self._readings.get((image_id, finding)) or self._readings.get((image_id, ""))
        words, own = (reading and self._stated(reading, finding, strict) for strict in (self.strict, True))
        points = self._points.get((image_id, finding)) or ()
        places: Any = place_of(points, self.lungs.get(image_id, STANDARD))
        return {"words": words, "own": own, "place": Stated("asserted", *places) if points else None}

    def truth(self, image_id: str, finding: str) -> dict[str, Any]:
        """Return where the items of a pair lie, and whether its finding has sides and zones."""
        items, lungs = self._items.get((image_id, finding)), self.lungs.get(image_id, STANDARD)
        sided = canonical(finding) not in self.vocabulary.unsided
        return {"location": items and locate(items, lungs), "sided": sided}

    def about(self) -> dict[str, Any]:
        """Return how words were read, and shares of texts by what became of them."""
        readings = [reading for _, _, reading in self.texts]
        counts = Counter({status: 0 for status in get_args(TextStatus)} | {"viewer_frame": 0, "contradicts_itself": 0})
        for reading in readings:
            asserted = {mention.finding for mention in reading.mentions if mention.status == "asserted"}
            denied = {
                mention.finding
                for mention in reading.mentions
                if mention.status == "negated" and not (mention.sides or mention.zones)
            }
            flags = {flag for mention in reading.mentions for flag in mention.flags}
            counts.update(
                [reading.status, *flags & {"viewer_frame"}, *["contradicts_itself"] * bool(asserted & denied)]
            )
        settings = {
            "vocabulary": self.vocabulary.sha256,
            "lungs": "given" if self.lungs else "standard",
            "strict": self.strict,
            "of_maps": self.of_maps,
        }
        shares = {name: count / len(readings) if readings else None for name, count in counts.items()}
        unread = [finding for finding in self.run.results.findings if not self.reads(finding)]
        return {"settings": settings, "texts": {"count": len(readings), **shares}, "findings_not_read": unread}

    def tables(self) -> dict[str, pa.Table]:
        """Return the texts and their mentions by file."""
        rows: dict[str, list[dict[str, Any]]] = {READ_TEXTS: [], MENTIONS: []}
        for row, text, reading in self.texts:
            about = {"index": row.index, "image_id": row.image_id, "asked": row.finding or None}
            text = text.encode("utf-8", "replace").decode()
            read = {"text": text, "finish": row.finish, "status": reading.status, "vocabulary": self.vocabulary.sha256}
            rows[READ_TEXTS].append(about | read)
            rows[MENTIONS] += [about | asdict(mention) for mention in reading.mentions]
        return {name: pa.Table.from_pylist(of, OF_WORDS[name]) for name, of in rows.items()}


def read_lungs(path: Path, images: Sequence[str]) -> dict[str, LungField]:
    """Read the lung fields of images: masks in a folder or an archive, or a CSV file of midline, top and bottom."""
    fields: dict[_Pair, LungField] = {}
    with named(path):
        if path.suffix == ".csv":
            for _, row in read_csv(path, "image", "midline", "top", "bottom"):
                fields[row["image"], ""] = LungField(*(decimal(row[name]) for name in ("midline", "top", "bottom")))
        else:
            files = Files(path)
            for name in files.names:
                fields[name, ""] = LungField.of_mask(read_picture(files.read(name)) > 0)
    found = {image: of for (image, _), of in Names(images, [""]).match(fields, "--lungs")[0].items()}
    if lacking := [image for image in images if image not in found]:
        raise UsageError(f"--lungs {path} has nothing for {len(lacking)} images (first: {lacking[0]}): add them.")
    return found


def _centers(boxes: Sequence[tuple[float, float, float, float]]) -> list[tuple[float, float]]:
    return [((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in boxes]
