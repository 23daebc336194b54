"""Existing predictions in place of a model, for the command `score`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn

from xbench.findings.names import is_folder_name
from xbench.geometry.grid import Upsampling
from xbench.geometry.preprocessing import WholeRadiograph
from xbench.models.answering import AnsweringModel, Ask
from xbench.predictions.asking import TEXTS, Question, Reply
from xbench.predictions.declared import contradictions, preprocessing_of, shape_problem
from xbench.predictions.source import Drawn, Kind, Names, Source, kind_of, open_source
from xbench.runs.predicted import StoredPredictions, holds_predictions
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UsageError
from xbench.runtime.notes import DOUBT_NOTE
from xbench.types import Batch, Failure, Maps, MapScale, Note, Prediction

_APPLIES = {
    "maps": "frame scores pattern missing sizes upsampling map-scale",
    "stored predictions": "missing sizes",
    "probabilities": "missing",
    "boxes": "frame",
    "raw answers": "frame family",
    "reports": "family missing",
    "answers in words": "family missing",
}
_IN_WORDS: Mapping[str, tuple[Kind, Ask]] = {"report": ("reports", "report"), "words": ("answers in words", "where")}
_NEEDED = {
    ("maps", "frame"): "--frame whole, or the preprocessing of a radiograph, such as --frame shortest:512,crop:480",
    ("maps", "scores"): "--scores TABLE, or --scores none to skip recognition",
    ("boxes", "frame"): "--frame, the meaning of their numbers, such as fraction_whole (0 to 1) or pixels_sent",
    ("raw answers", "family"): "--family, their format",
}


class External(AnsweringModel):
    """Reads maps, probabilities, boxes, points, raw answers or texts from files.

    Args:
        predictions: Output of `xbench predict` or `test`; a folder, zip or tar of maps (npy, npz, png, tiff, and
            CheXlocalize's pkl); masks or points that people drew (json); a table of probabilities (CSV, parquet); boxes
            (CSV, COCO results, JSON lines), raw answers (JSON lines) or texts (JSON lines, CSV, parquet).
        label: Name of the model in results and folders.
        frame: Part of a radiograph that a map shows: `whole`, or steps such as `shortest:512,crop:480`. For boxes and
            answers the meaning of their numbers: a name in `xbench.predictions.conventions`, such as `pixels_sent`.
        family: Format of raw answers: a name in `xbench.predictions.FAMILIES`; `report` for a report of each image,
            `words` for answers in words about findings.
        scores: With maps: a table of probabilities, `none`, or `pickled` (`prob` in CheXlocalize's pickles).
        pattern: Path of a map below `predictions`, without its ending; `{image}/{finding}` if None.
        names: Findings' names in the files, and xbench's names.
        missing: How to treat a pair without prediction: `stop`, the default; `skip` leaves out the image, which is
            counted and named, and findings without any prediction; `flat` counts a missing map as a miss.
        extra: How to treat predictions for unknown images or findings: `stop` or `ignore`.
        sizes: Whether all maps have the `same` size, or `any`, which requires `--data.batch_size 1`.
        upsampling: How to enlarge maps; `bilinear` if None.
        map_scale: What the values of maps are, if they compare between images; `none` if None.
    """

    name = "external"
    asked_in_words = False

    def __init__(
        self,
        predictions: str,
        label: str,
        frame: str | None = None,
        family: str | None = None,
        scores: str | None = None,
        pattern: str | None = None,
        names: dict[str, str] | None = None,
        missing: Literal["stop", "skip", "flat"] | None = None,
        extra: Literal["stop", "ignore"] = "stop",
        sizes: Literal["same", "any"] | None = None,
        upsampling: Upsampling | None = None,
        map_scale: MapScale | None = None,
    ) -> None:
        if not is_folder_name(label):
            raise UsageError(f"--name {label!r} cannot be part of a folder's name. Give another name.")
        path = Path(predictions).expanduser()
        if not path.exists():
            raise UsageError(f"--predictions {predictions}: no such file or folder.")
        own, ask = _IN_WORDS.get(family or "") or (None, "boxes")
        kind = own or ("stored predictions" if holds_predictions(path) else kind_of(path))
        options = {"frame": frame, "family": family, "scores": scores, "pattern": pattern, "missing": missing}
        options |= {"sizes": sizes, "upsampling": upsampling, "map_scale": map_scale}
        given = [name.replace("_", "-") for name, value in options.items() if value is not None]
        for option in given:
            flat = option == "missing" and missing == "flat"
            if option not in _APPLIES[kind].split() or (flat and "sizes" not in _APPLIES[kind]):
                raise UsageError(f"--{option}{' flat' * flat} does not apply to {kind}, as in {path}. Omit it.")
        if lacking := [text for (of, option), text in _NEEDED.items() if of == kind and option not in given]:
            raise UsageError(f"--predictions {predictions} contains {kind}: give {lacking[0]}.")
        answers = kind in ("boxes", "raw answers")
        super().__init__((ask == "boxes" and family) or "endpoint", frame if answers else None, ask=ask)
        self.answers, whole = answers, answers or ask != "boxes"
        self.name, self._scored = label, not whole and scores != "none"
        self._kind, self._path, self._frame, self._scores, self._names = kind, path, frame, scores, names
        self._pattern, self._extra = pattern or "{image}/{finding}", extra
        self._missing, self._sizes = missing or "stop", sizes or "same"
        self._left_out: list[str] = []
        self._incomplete: set[str] = set()
        undecoded = kind == "probabilities"
        self.preprocessing = WholeRadiograph() if whole or undecoded else preprocessing_of(frame or "whole")
        self.preprocessing.unseen, self.preprocessing.undecoded = True, undecoded
        if not whole:
            self.saliency_upsample, self.map_scale = upsampling or "bilinear", map_scale or "none"

    def setup(self, stage: str) -> None:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        own, images = getattr(data, "names", None), [record.image_id for record in data.records]
        self._pairs = [(one.image_id, query.name) for one in data.records for query in one.looked_for(data.findings)]
        looked_for = [*dict.fromkeys([*data.findings, *(name for _, name in self._pairs)])]
        names = Names(images, looked_for, self._names, own if isinstance(own, Mapping) else None)
        scores = None if self._scores == "none" else self._scores
        source: Source
        if self._kind == "stored predictions":
            source = stored = StoredPredictions(self._path, names)
            self.saliency_upsample, self.map_scale = stored.upsampling, stored.map_scale
            self.map_sigma = stored.map_sigma
            self._scored = bool(stored.scores)
        else:
            source = open_source(self._kind, self._path, names, self._pattern, scores, getattr(data, "coco_ids", None))
        super().setup(stage)
        self.source = source
        self._ask_negatives = self.asks in TEXTS
        if self.asks == "report":
            self._pairs = [(image, "") for image in images]
        data.notes += self._doubted(contradictions(source.scores, self.findings))
        present = {finding for _, finding in (*source.maps, *source.scores)}
        # Findings with queries of their own stay; their images are left out instead.
        kept = present | {query.finding for record in data.records for query in record.queries or ()}
        if self._missing == "skip" and present:
            self._left_out = [finding for finding in self.findings if finding not in kept]
        if self._left_out:
            data.leave_out(self._left_out)
            self.findings = tuple(data.findings)
            self._pairs = [pair for pair in self._pairs if pair[1] not in self._left_out]
            silent = f"{self._path} has nothing about {', '.join(self._left_out)}"
            rank_zero_warn(f"--predictions {silent}: the run omits these findings, because of --missing skip.")
        if problems := self._problems(data.name, images):
            what = f"{self._path}, for {len(images)} images and {len(self.findings)} findings"
            raise UsageError(f"--predictions {what}: {'; '.join(problems)}.")
        if source.unknown:
            data.notes += self._ignored(data.name)
        if self.answers:
            data.notes += self._unmentioned({record.image_id: record.labels for record in data.records})
        for image, _ in [*source.maps][:1]:
            self._size = next(iter(source.read(image).values())).shape

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Leave out images that lack a prediction, and apply what predictions state about their images."""
        images = [*zip(batch.truth.index.tolist(), batch.truth.image_ids, strict=True)]
        reason = "its prediction is missing, and --missing skip was given."
        if lost := [Failure(index, image, reason) for index, image in images if image in self._incomplete]:
            batch = batch.only([row for row, (_, image) in enumerate(images) if image not in self._incomplete])
            batch.failures = [*batch.failures, *lost]
        if isinstance(self.source, StoredPredictions):
            stated = [self.source.shown(image) for image in batch.truth.image_ids]
            truth = replace(batch.truth, views=[view for view, _ in stated])
            batch = replace(batch, truth=truth, image_sha256=[sha256 for _, sha256 in stated])
        if self._missing == "flat":
            flat = [(image, name) for image, name in _pairs(batch) if (image, name) not in self.source.maps]
            notes = [Note(f"the map of {finding} is missing and counts as a miss", image) for image, finding in flat]
            batch.notes = [*batch.notes, *notes]
        return batch

    def score(self, batch: Batch) -> Prediction:
        if self.answers or self.asks in TEXTS:
            return super().score(batch)
        shown = self._shown(batch)
        if not self._scored:
            return Prediction(None, None, shown)
        numbers = [self.source.scores[pair] for pair in _pairs(batch)]
        logits, probabilities = torch.tensor(numbers, dtype=torch.float64, device=self.device).unbind(-1)
        return Prediction(logits, probabilities, shown)

    def _shown(self, batch: Batch) -> Maps | None:
        if not self.source.maps:
            return None
        pairs = _pairs(batch)
        maps = [self._maps(one, [name for image, name in pairs if image == one]) for one in batch.truth.image_ids]
        if len({one.shape[1:] for one in maps}) > 1:
            raise UsageError(f"{self.name}: maps differ in size. Give --data.batch_size 1.")
        if self._kind == "maps":
            each = zip(maps, batch.truth.image_sizes, batch.truth.image_ids, strict=True)
            odd = [(shape_problem(one.shape[1:], size, self._frame or ""), image) for one, size, image in each]
            batch.notes += self._doubted([(text, image) for text, image in odd if text])
        saliency = torch.cat(maps).to(self.device)
        return Maps(saliency, saliency.isnan().all(-1).all(-1))

    def questions_about(self, batch: Batch) -> list[Question]:
        """Return the questions of a batch, without absent findings that have no answer in words."""
        truth, needed = batch.truth, self._missing != "skip"
        return [
            question
            for question in super().questions_about(batch)
            if self.asks != "where"
            or (truth.image_ids[question.row], question.finding) in self.source.texts
            or (needed and truth.labels[question.pair] == 1)
        ]

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        pairs = [(batch.truth.image_ids[query.row], query.finding) for query in queries]
        lost = [pair for pair in pairs if pair not in self.source.texts]
        if lost and self._kind != "boxes":
            hint = "Add it, as an empty text if the model gave none, or choose other images with --data.image_list"
            if self._ask_negatives:
                hint += ". Answers about absent findings must be complete, or left out altogether"
            what = f"{self._path} has no answer about image {lost[0][0]}, finding {lost[0][1]}"
            raise UsageError(f"{what}. {hint}.")
        return [self.source.texts.get(pair, Reply('{"boxes": []}')) for pair in pairs]

    def provenance(self) -> dict[str, Any]:
        tables = [] if self._scores in (None, "none", "pickled") else [Path(str(self._scores)).expanduser()]
        read = self.source.files if isinstance(self.source, StoredPredictions) else [self._path, *tables]
        about: dict[str, Any] = {"predictions_sha256": _digest(read)}
        if self.answers:
            return super().provenance() | about | {"extra": self._extra}
        if self.asks in TEXTS:
            return about | {"ask": self.asks, "missing": self._missing, "extra": self._extra}
        maps = self._kind != "probabilities"
        about |= {"frame": self._frame, "scores": self._scores} if maps else {}
        about |= {"missing": self._missing, "extra": self._extra}
        about |= {"sizes": self._sizes} if maps else {}
        if not maps or self._missing == "skip":
            about["findings_left_out"] = ", ".join(self._left_out)
        return about

    def _maps(self, image: str, names: Sequence[str]) -> torch.Tensor:
        """Return the maps of an image (K, h, w), NaN for missing ones and drawings that are empty."""
        found = self.source.read(image)
        expected = next(iter(found.values())).shape if found and self._sizes == "any" else self._size
        for name, one in found.items():
            if one.shape != expected:
                what = f"the map of image {image}, finding {name} is {one.shape}, but the first one is {expected}"
                hint = "If this is intended, give --sizes any; the maps of one image must still have one size"
                raise UsageError(f"{self._path}: {what}. {hint}.")
        if isinstance(self.source, Drawn):
            found = {name: one for name, one in found.items() if one.any()}
        maps = torch.full((len(names), *expected), nan)
        for place, name in enumerate(names):
            if name in found:
                maps[place] = torch.from_numpy(found[name])
        return maps

    def _problems(self, dataset: str, images: Sequence[str]) -> list[str]:
        source, problems, pairs = self.source, [], self._pairs
        wanted: dict[str, Collection[tuple[str, str]]] = {"score": source.scores} if self._scored else {}
        if source.maps or self._kind == "maps":
            wanted["map"] = source.maps
        wanted |= {"text": source.texts} if self.asks == "report" else {}
        for what, there in wanted.items():
            lost = [pair for pair in pairs if pair not in there]
            if self._missing == "skip":
                self._incomplete |= {image for image, _ in lost}
            elif lost and (what, self._missing) != ("map", "flat"):
                skip = "--missing skip leaves out such images, and findings without any prediction"
                problems.append(f"no {what} for {_count(lost)}: {skip}")
        if source.unknown and self._extra == "stop":
            ignore = "--extra ignore leaves them out"
            problems.append(f"predictions of no image and finding of {dataset}: {_count(source.unknown)}: {ignore}")
        shown = source.texts or source.maps
        expected = shown or self._kind not in ("probabilities", "stored predictions")
        if expected and not any(pair in shown for pair in pairs):
            look = f"check --pattern, which is {self._pattern}" if self._kind == "maps" else "compare the names"
            look += f"; the first image is called {images[0]}"
            problems.append(f"no pair of image and finding has a prediction: {look}")
        elif len(self._incomplete) == len(images):
            has = {what: {finding for _, finding in there} for what, there in wanted.items()}
            bare = [f"{name} has no {what}" for name in self.findings for what in has if name not in has[what]]
            lost_all = f"every image lacks a {' or a '.join(sorted(wanted))}, so no image is left"
            problems.append(f"{lost_all}: {'; '.join(bare[:5])}")
        return problems

    def _doubted(self, doubts: Sequence[tuple[str, str]]) -> list[Note]:
        for text in dict.fromkeys(text for text, _ in doubts):
            rank_zero_warn(f"{self.name}: {DOUBT_NOTE}: {text}.")
        return [Note(f"{DOUBT_NOTE}: {text}", image) for text, image in doubts]

    def _ignored(self, dataset: str) -> list[Note]:
        """Warn of predictions that `--extra ignore` leaves out, and note the images of pairs."""
        source, lost = self.source, len(self.source.unknown)
        count = lost + len(source.maps) + len(source.scores) + len(source.texts)
        half = ": half of them or more, so the file may use other names" if lost >= count / 2 else ""
        text = (
            f"{lost} of {count} predictions ({100 * lost / count:.1f}%) belong to no image and finding of {dataset}, "
            f"and --extra ignore left them out{half}"
        )
        rank_zero_warn(f"{text}. The first: {'; '.join(map(_in_words, source.unknown[:3]))}.")
        images = [pair[0] for pair in source.unknown if not isinstance(pair, str)]
        return [Note(text, image if image.isprintable() else repr(image)) for image in images]

    def _unmentioned(self, labels: Mapping[str, Mapping[str, int]]) -> list[Note]:
        """Note present findings that boxes omit, and whether absent ones are mentioned; set whether these are asked."""
        texts = self.source.texts
        self._ask_negatives = any(labels[image].get(finding) == 0 for image, finding in texts)
        present = [(image, finding) for image in labels for finding in self.findings if labels[image].get(finding) == 1]
        lost = [pair for pair in present if pair not in texts]
        silent = {image for image, _ in lost} - {image for image, _ in texts}
        text = f"{self._path.name} has no box for {len(lost)} of {len(present)} positive pairs"
        incomplete = f"a finding is present, but {self._path.name} has no row for the image; the file may be incomplete"
        notes = [Note(text, image) for image, _ in lost] + [Note(incomplete, image) for image in sorted(silent)]
        notes = notes if self._kind == "boxes" else []
        if not self._ask_negatives:
            text = f"{self._path.name} has no entry about an image without the finding, so no false alarms are counted"
            absent = (image for image in labels if any(labels[image].get(finding) == 0 for finding in self.findings))
            notes += [Note(text, image) for image in absent]
        return notes


def _pairs(batch: Batch) -> list[tuple[str, str]]:
    truth = batch.truth
    return [(truth.image_ids[row], query.name) for row, query in zip(truth.image.tolist(), truth.queries, strict=True)]


def _in_words(unknown: str | tuple[str, str]) -> str:
    return unknown if isinstance(unknown, str) else ", ".join(filter(None, unknown))


def _count(names: Sequence[str | tuple[str, str]]) -> str:
    return f"{len(names)} ({'; '.join(map(_in_words, names[:5]))}{'; ...' if len(names) > 5 else ''})"


def _digest(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for root in paths:
        for path in sorted(one for one in root.rglob("*") if one.is_file()) if root.is_dir() else [root]:
            place = path.relative_to(root).as_posix() if root.is_dir() else ""
            found.update(f"{place} {file_sha256(path)}\n".encode())
    return found.hexdigest()
