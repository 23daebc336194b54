"""Predictions that were made elsewhere, in the place of a model: `score` runs this class as `test` runs any other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import nan, sqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn

from xbench.findings.names import is_folder_name
from xbench.geometry.grid import Upsampling
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models.answering import AnsweringModel
from xbench.models.base import SaliencyModel
from xbench.predictions.answered import read_answered
from xbench.predictions.asking import Query, Reply
from xbench.predictions.frame import preprocessing_of
from xbench.predictions.scores import read_scores
from xbench.predictions.segmentations import Segmentations
from xbench.predictions.source import MapFiles, PredictRun, Source, digest, matched, words_for
from xbench.runtime.errors import UserError
from xbench.types import DOUBT_NOTE, Batch, Failure, Maps, MapScale, Note, Prediction

LEFT_OUT = "its prediction is missing, and --missing skip was given"
"""The beginning of the reason that an image was left out."""


class Outside(SaliencyModel):
    """Looks predictions up in files, instead of making them.

    Args:
        predictions: What `xbench predict` wrote; or a folder, zip or tar of maps (npy, npz, png, tiff, and the pkl of
            CheXlocalize); or masks in run lengths (json), as those of CheXlocalize's human benchmark.
        label: What results and folders call the model.
        frame: What part of a radiograph a map shows: `whole`, or steps such as `shortest:512,crop:480`. What `xbench
            predict` wrote says it itself.
        scores: Table of probabilities (CSV, parquet), or `none`: nothing is said of recognition; or `pickled`:
            what CheXlocalize's pickles call `prob`.
        pattern: Path of a map below `predictions`, without its ending.
        names: What the files call a finding, and its name.
        missing: What a pair without prediction does: `stop`; `skip` leaves the whole image out, counted and named;
            and findings without any prediction out of the run; `flat` counts a missing map as a miss.
        extra: What predictions of other images or findings than the dataset's do: `stop` or `ignore`.
        sizes: Maps are all of the `same` size, or of `any`, which takes `--data.batch_size 1`.
        upsampling: How maps are enlarged; `bilinear` if not given.
        map_scale: What the values of maps are, so that maps of different images can be compared; `none` if not given.
    """

    name = "outside"

    def __init__(
        self,
        predictions: str,
        label: str,
        frame: str | None = None,
        scores: str | None = None,
        pattern: str = "{image}/{finding}",
        names: dict[str, str] | None = None,
        missing: Literal["stop", "skip", "flat"] = "stop",
        extra: Literal["stop", "ignore"] = "stop",
        sizes: Literal["same", "any"] = "same",
        upsampling: Upsampling | None = None,
        map_scale: MapScale | None = None,
    ) -> None:
        super().__init__()
        if not is_folder_name(label):
            raise UserError(f"--name {label!r} becomes part of a folder's name, which it cannot.", exit_status=2)
        self.name = label
        self._path = Path(predictions).expanduser()
        self._own = (self._path / "predictions.parquet").is_file()
        if not self._path.exists():
            raise UserError(f"--predictions {predictions}: there is no such file or folder.", exit_status=2)
        if self._own and (frame, scores, upsampling, map_scale) != (None, None, None, None):
            raise UserError(
                f"{predictions} is what `xbench predict` wrote, which says frame, scores, upsampling and map_scale "
                "itself: leave these options out.",
                exit_status=2,
            )
        if not self._own and frame is None:
            raise UserError(
                f"--predictions {predictions}: nothing says what part of a radiograph its maps show. Give --frame "
                "whole, or what was done to a radiograph before the model saw it, such as --frame "
                "shortest:512,crop:480.",
                exit_status=2,
            )
        if not self._own and scores is None:
            raise UserError(
                f"--predictions {predictions}: there are maps and no probabilities. Give --scores TABLE, or --scores "
                "none: nothing is then said of recognition.",
                exit_status=2,
            )
        self.preprocessing = Preprocessing(stretch((224, 224))) if frame is None else preprocessing_of(frame)
        self.recognises = scores != "none"  # whether predictions say if a finding is there
        self._pickled, self._frame = scores == "pickled", frame or "whole"
        self._scores = None if scores in (None, "none", "pickled") else Path(str(scores)).expanduser()
        self._said = {"frame": frame, "scores": scores, "missing": missing, "extra": extra, "sizes": sizes}
        self._pattern, self._names, self._missing, self._extra, self._sizes = pattern, names, missing, extra, sizes
        self.saliency_upsample = upsampling or "bilinear"
        self.map_scale = map_scale or "none"

    def input_problem(self, batch: Batch, seen: torch.Tensor | None = None) -> None:
        """No network sees the images."""

    def setup(self, stage: str) -> None:
        """Look for the predictions of all images and findings of the dataset; a UserError if they do not fit."""
        super().setup(stage)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        images, words = [record.image_id for record in data.records], words_for(self._names, data)
        if self._own:
            self.source: Source = PredictRun(self._path, images, self.findings)
        elif self._path.suffix.lower() == ".json":
            self.source = Segmentations(self._path, images, self.findings, words)
        else:
            scores = None if self._scores is None else read_scores(self._scores)
            self.source = MapFiles(self._path, images, self.findings, self._pattern, words, scores)
        pairs = [(image, finding) for image in images for finding in self.findings]
        scored: Mapping[tuple[str, str], tuple[float, float]] = self.source.scores
        if self._pickled and isinstance(self.source, MapFiles):
            scored = self.source.pickled_scores()
        elif not self.recognises:
            scored = dict.fromkeys(pairs, (nan, nan))
        self._numbers = scored
        data.notes += doubted(self.name, contradictions(scored, self.findings))
        if self._missing == "skip":
            said = {other for _, other in self.source.maps} | {other for _, other in scored if self.recognises}
            self._said["findings_left_out"] = ", ".join(leave_out_silent(self, data, self._path, said))
            pairs = [pair for pair in pairs if pair[1] in self.findings]
        without_map = [f"{one}, {other}" for one, other in pairs if (one, other) not in self.source.maps]
        without_score = [f"{one}, {other}" for one, other in pairs if (one, other) not in scored]
        problems = []
        if self._missing != "skip":
            problems += [] if not without_score else [f"no score for {_count(without_score)}"]
            problems += [] if not without_map or self._missing == "flat" else [f"no map for {_count(without_map)}"]
        if self._extra == "stop" and self.source.unknown:
            problems.append(f"predictions of no image and finding of {data.name}: {_count(self.source.unknown)}")
        self._incomplete = {
            one for one, other in pairs if (one, other) not in self.source.maps or (one, other) not in scored
        }
        if len(without_map) == len(pairs):
            problems.append(
                f"not one of the {len(pairs)} pairs of image and finding has a map: look at --pattern, which is "
                f"{self._pattern}; the first image is called {images[0]}"
            )
        elif self._missing == "skip" and len(self._incomplete) == len(images):
            lacking = {"map": {pair[1] for pair in self.source.maps}, "score": {pair[1] for pair in scored}}
            bare = [f"{one} has no {what}" for one in self.findings for what in lacking if one not in lacking[what]]
            problems.append(
                f"every image lacks a map or a score, so that none is left{': ' * bool(bare)}{'; '.join(bare[:5])}"
            )
        if problems:
            raise UserError(
                f"--predictions {self._path}, for {len(images)} images and {len(self.findings)} findings: "
                f"{'; '.join(problems)}. --missing skip leaves images out that lack something, and findings of which "
                "nothing is said; --missing flat counts a missing map as a miss, --extra ignore leaves "
                "predictions out that belong to nothing.",
                exit_status=2,
            )
        say_ignored(data, self.source.unknown, len(self.source.maps) + len(self.source.scores))
        some = next(image for image in images for finding in self.findings if (image, finding) in self.source.maps)
        if self._own and (frame := self.source.frame(some)) is not None:
            if frame.upsampling not in get_args(Upsampling):
                raise UserError(f"{self._path}: {frame.upsampling!r:.60} is no way to enlarge maps.", exit_status=2)
            self.saliency_upsample = frame.upsampling  # type: ignore[assignment]
            if frame.map_scale not in get_args(MapScale):
                raise UserError(f"{self._path}: {frame.map_scale!r:.60} is no scale of maps.", exit_status=2)
            self.map_scale = frame.map_scale  # type: ignore[assignment]
        self._size = next(one.shape for one in self.source.read(some, self.findings) if one is not None)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Leave out what has no prediction, and take frames from predictions that state them."""
        if self._missing == "skip":
            batch = without_images(batch, self._incomplete)
        truth = batch.truth
        if self._own and truth.image_ids:
            frames = [self.source.frame(image) for image in truth.image_ids]
            views, digests = zip(*((one.view, one.image_sha256) for one in frames if one is not None), strict=True)
            batch = replace(batch, truth=replace(truth, views=[*views]), image_sha256=[*digests])
        if self._missing == "flat":
            batch.notes = [
                *batch.notes,
                *(
                    Note(f"the map of {finding} is missing and counts as a miss", image)
                    for image in truth.image_ids
                    for finding in self.findings
                    if (image, finding) not in self.source.maps
                ),
            ]
        return batch

    def score(self, batch: Batch) -> Prediction:
        """Look up the predictions of a batch."""
        maps = [self._maps(image) for image in batch.truth.image_ids]
        sizes = {one.shape for one in maps}
        if not self._own:
            each = zip(maps, batch.truth.image_sizes, batch.truth.image_ids, strict=True)
            batch.notes += doubted(
                self.name,
                [
                    Note(odd, image)
                    for one, size, image in each
                    if (odd := shape_problem(one.shape[1:], size, self._frame))
                ],
            )
        if len(sizes) > 1:
            raise UserError(f"{self.name}: maps differ in size, so give --data.batch_size 1.", exit_status=2)
        numbers = torch.tensor(
            [[self._numbers[image, finding] for finding in self.findings] for image in batch.truth.image_ids],
            dtype=torch.float64,
        )
        logits, probabilities = numbers.to(self.device).unbind(-1)
        saliency = torch.stack(maps).to(self.device)
        shown = Maps(saliency, saliency.isnan().all(-1).all(-1))
        return Prediction(logits, probabilities, shown) if self.recognises else Prediction(None, None, shown)

    def provenance(self) -> dict[str, Any]:
        """Return the digest of the predictions, and what was declared about them."""
        paths = [self._path, *([] if self._scores is None else [self._scores])]
        return {"predictions_sha256": digest(paths), **self._said}

    def _maps(self, image: str) -> torch.Tensor:
        """Return the maps of an image (C, h, w), NaN for those that are missing."""
        found = self.source.read(image, self.findings)
        sizes = [one.shape for one in found if one is not None]
        expected = (sizes or [self._size])[0] if self._sizes == "any" else self._size
        for finding, one in zip(self.findings, found, strict=True):
            if one is not None and one.shape != expected:
                raise UserError(
                    f"{self._path}: the map of image {image}, finding {finding} is {one.shape}, and the first one is "
                    f"{expected}. If that is meant, give --sizes any; the maps of one image have one size all the "
                    "same.",
                    exit_status=2,
                )
        # An empty mask of a person is one that nobody drew.
        by_hand = isinstance(self.source, Segmentations)
        drawn = [None if one is None or (by_hand and not one.any()) else torch.from_numpy(one) for one in found]
        return torch.stack([torch.full(expected, nan) if one is None else one for one in drawn])


class OutsideScores(SaliencyModel):
    """Looks probabilities up in a table, and shows no map: nothing is said of grounding.

    Args:
        predictions: The table: CSV or parquet, as the `scores` of `Outside`.
        label: What results and folders call the model.
        names: What the file calls a finding, and its name.
        missing: What a pair without probability does: `stop`; `skip` leaves the whole image out, counted and named,
            and findings without any probability out of the run.
        extra: What probabilities of other images or findings than the dataset's do: `stop` or `ignore`.
    """

    name = "outside_scores"
    preprocessing = Preprocessing(stretch((224, 224)))

    def __init__(
        self,
        predictions: str,
        label: str,
        names: dict[str, str] | None = None,
        missing: Literal["stop", "skip"] = "stop",
        extra: Literal["stop", "ignore"] = "stop",
    ) -> None:
        super().__init__()
        if not is_folder_name(label):
            raise UserError(f"--name {label!r} becomes part of a folder's name, which it cannot.", exit_status=2)
        self._path = Path(predictions).expanduser()
        if not self._path.is_file():
            raise UserError(f"--predictions {predictions}: there is no such file.", exit_status=2)
        self.name, self._names, self._missing, self._extra = label, names, missing, extra
        self._left_out: list[str] = []

    def input_problem(self, batch: Batch, seen: torch.Tensor | None = None) -> None:
        """No network sees the images."""

    def setup(self, stage: str) -> None:
        """Look for the probabilities of all images and findings of the dataset; a UserError if they do not fit."""
        super().setup(stage)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        images, table = [record.image_id for record in data.records], read_scores(self._path)
        found, unknown = matched(table, images, self.findings, words_for(self._names, data), "--predictions")
        self._numbers = {pair: table[theirs] for pair, theirs in found.items()}
        data.notes += doubted(self.name, contradictions(self._numbers, self.findings))
        if self._missing == "skip":
            self._left_out = leave_out_silent(self, data, self._path, {finding for _, finding in found})
        pairs = [(image, finding) for image in images for finding in self.findings]
        lacking = [pair for pair in pairs if pair not in self._numbers]
        self._incomplete = {image for image, _ in lacking}
        problems = []
        if lacking and (self._missing == "stop" or len(self._incomplete) == len(images)):
            problems.append(f"no probability for {_count([', '.join(pair) for pair in lacking])}")
        if unknown and self._extra == "stop":
            problems.append(
                f"rows of no image and finding of {data.name}: {_count([', '.join(pair) for pair in unknown])}"
            )
        if problems:
            raise UserError(
                f"--predictions {self._path}, for {len(images)} images and {len(self.findings)} findings: "
                f"{'; '.join(problems)}. --missing skip leaves images out that lack something, and findings of which "
                "nothing is said; --extra ignore leaves rows out that belong to nothing.",
                exit_status=2,
            )
        say_ignored(data, unknown, len(found))

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Leave out what has no probability."""
        return without_images(batch, self._incomplete)

    def score(self, batch: Batch) -> Prediction:
        """Look up the probabilities of a batch."""
        numbers = torch.tensor(
            [[self._numbers[image, finding] for finding in self.findings] for image in batch.truth.image_ids],
            dtype=torch.float64,
        )
        logits, probabilities = numbers.to(self.device).unbind(-1)
        return Prediction(logits, probabilities, None)

    def provenance(self) -> dict[str, Any]:
        """Return the digest of the table, and what was declared about it."""
        said = {"missing": self._missing, "extra": self._extra, "findings_left_out": ", ".join(self._left_out)}
        return {"predictions_sha256": digest([self._path]), **said}


def shape_problem(shape: Sequence[int], image: tuple[int, int] | None, frame: str) -> str | None:
    """Return what is odd about maps (h, w) of an image (H, W) in a declared frame; a cell more or less is not."""
    height, width = shape

    def has_aspect(rows: int, columns: int) -> bool:
        return abs(height - width * rows / columns) <= 1 or abs(width - height * columns / rows) <= 1

    rows, columns = image if image is not None and frame == "whole" else (1, 1)
    if has_aspect(1, 1) or has_aspect(rows, columns):
        return None
    if has_aspect(columns, rows):
        return f"{DOUBT_NOTE}: maps have the shape of the image with rows and columns exchanged"
    return f"{DOUBT_NOTE}: maps are neither square nor as long and wide as what --frame {frame} declares"


def contradictions(numbers: Mapping[tuple[str, str], tuple[float, float]], findings: Sequence[str]) -> list[Note]:
    """Return notes on findings whose logits and probabilities order more than 1 % of the pairs of images differently.

    Pairs that are tied in either are not compared. Rounding may exchange neighbors, and no more than these.
    """
    from scipy.stats import kendalltau

    notes = []
    for finding in findings:
        of = {image: both for (image, other), both in numbers.items() if other == finding}
        both = np.array([*of.values()]).reshape(-1, 2)
        counts = (np.unique(part, axis=0, return_counts=True)[1] for part in (both[:, 0], both[:, 1], both))
        pairs, tied = len(of) * (len(of) - 1) // 2, [int((n * (n - 1) // 2).sum()) for n in counts]
        compared = pairs - tied[0] - tied[1] + tied[2]
        if compared < 1:  # nothing to compare, or no scores
            continue
        # Kendall's tau-b is (pairs in one order - pairs in the other) / sqrt((pairs - tied) * (pairs - tied)).
        agreement = kendalltau(*both.T).statistic * sqrt((pairs - tied[0]) * (pairs - tied[1]))
        if (share := round((compared - agreement) / 2) / compared) > 0.01:
            text = (
                f"{DOUBT_NOTE}: logits of {finding} order {share:.0%} of the pairs of images unlike its probabilities"
            )
            notes += [Note(text, image) for image in of]
    return notes


def doubted(model: str, notes: list[Note]) -> list[Note]:
    """Return notes, and warn of each once."""
    for text in dict.fromkeys(note.text for note in notes):
        rank_zero_warn(f"{model}: {text}.")
    return notes


def say_ignored(data: Any, unknown: Sequence[str] | Sequence[tuple[str, str]], known: int) -> None:
    """Warn of predictions that `--extra ignore` leaves out; if they are pairs, note their images too."""
    if not unknown:
        return
    share = len(unknown) / (len(unknown) + known)
    said = (
        f"{len(unknown)} of {len(unknown) + known} predictions ({100 * share:.1f} %) belong to no image and "
        f"finding of {data.name}, and --extra ignore left them out"
        f"{': half of them or more, so the file may use other names' if share >= 0.5 else ''}"
    )
    pairs = [one for one in unknown if not isinstance(one, str)]
    names = [", ".join(pair) for pair in pairs] or [*map(str, unknown)]
    rank_zero_warn(f"{said}. The first: {'; '.join(names[:3])}.")
    data.notes += [Note(said, image if image.isprintable() else repr(image)) for image, _ in pairs]


def leave_out_silent(model: SaliencyModel, data: Any, path: Path, said: Collection[str]) -> list[str]:
    """Leave findings out of a run of which predictions say nothing, with a warning; return them.

    Args:
        model: Of the predictions.
        data: The data module.
        path: Of the predictions.
        said: Findings of which they say something.
    """
    silent = [finding for finding in model.findings if finding not in said]
    if not silent or not said:
        return []
    data.leave_out(silent)
    model.findings = tuple(data.findings)
    rank_zero_warn(
        f"--predictions {path} says nothing of {', '.join(silent)}: the run is without these findings, as --missing "
        "skip says."
    )
    return silent


def without_images(batch: Batch, incomplete: Collection[str]) -> Batch:
    """Return a batch without the images whose predictions are incomplete, which are failures now."""
    truth = batch.truth
    rows = [row for row, image in enumerate(truth.image_ids) if image not in incomplete]
    left = [
        Failure(int(truth.index[row]), image, f"{LEFT_OUT}.")
        for row, image in enumerate(truth.image_ids)
        if image in incomplete
    ]
    batch = batch.only(rows)
    batch.failures = [*batch.failures, *left]
    return batch


class OutsideAnswers(AnsweringModel):
    """Looks answers up in a file, boxes or text, instead of asking for them.

    Where the file speaks of images without a finding, such images are asked too, and what it leaves out there has no
    box; if it never does, nobody knows whether the model was asked, and nothing is said of false alarms.

    Args:
        predictions: Boxes (CSV, COCO results, JSON lines) or raw answers (JSON lines).
        label: What results and folders call the model.
        frame: What the numbers mean: a name in `xbench.predictions.conventions`, such as `pixels_sent`.
        family: How raw answers are written: a name in `xbench.predictions.FAMILIES`.
        names: What the file calls a finding, and its name.
        extra: What answers about other images or findings than the dataset's do: `stop` or `ignore`.
    """

    name = "outside_answers"
    asked_in_words = False
    recognises = False

    def __init__(
        self,
        predictions: str,
        label: str,
        frame: str | None = None,
        family: str | None = None,
        names: dict[str, str] | None = None,
        extra: Literal["stop", "ignore"] = "stop",
    ) -> None:
        if not is_folder_name(label):
            raise UserError(f"--name {label!r} becomes part of a folder's name, which it cannot.", exit_status=2)
        self._path = Path(predictions).expanduser()
        if not self._path.is_file():
            raise UserError(f"--predictions {predictions}: there is no such file.", exit_status=2)
        self._answered = read_answered(self._path)
        if self._answered.kind == "boxes" and (frame is None or family is not None):
            raise UserError(
                f"--predictions {predictions} has boxes: --frame says what their numbers mean, such as fraction_whole "
                "(0 to 1 of the radiograph) or pixels_sent (its own pixels), and --family is for raw answers.",
                exit_status=2,
            )
        if self._answered.kind == "answers" and family is None:
            raise UserError(
                f"--predictions {predictions} has raw answers: --family says how they are written.", exit_status=2
            )
        super().__init__(family or "endpoint", frame)
        self.name, self._names, self._extra = label, names, extra

    def setup(self, stage: str) -> None:
        """Look for answers about all images and findings; a UserError if they do not fit."""
        super().setup(stage)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if self._path.suffix.lower() == ".json" and (ids := getattr(data, "coco_ids", None)) is not None:
            self._answered = read_answered(self._path, ids)
        images, texts = [record.image_id for record in data.records], self._answered.texts
        found, unknown = matched(texts, images, self.findings, words_for(self._names, data), "--predictions")
        if unknown and self._extra == "stop":
            raise UserError(
                f"--predictions {self._path} speaks of no image and finding of {data.name}: "
                f"{_count([', '.join(pair) for pair in unknown])}. --extra ignore leaves that out.",
                exit_status=2,
            )
        if not found:
            raise UserError(f"--predictions {self._path} speaks of nothing in {data.name}.", exit_status=2)
        say_ignored(data, unknown, len(found))
        self._texts_of = {pair: texts[theirs] for pair, theirs in found.items()}
        labels = {record.image_id: record.labels for record in data.records}
        present = [(image, finding) for image in images for finding in self.findings if labels[image].get(finding) == 1]
        unnamed = [pair for pair in present if pair not in found]
        if unnamed and self._answered.kind == "boxes":
            silent = {image for image, _ in unnamed} - {image for image, _ in found}
            said = (
                f"{self._path.name} gives no box for {len(unnamed)} of {len(present)} pairs of an image and a present "
                f"finding (misses), and does not mention {len(silent)} of these images: it may be incomplete"
            )
            data.notes += [Note(said, image) for image, _ in unnamed]
        self._ask_negatives = any(labels[image].get(finding) == 0 for image, finding in found)

    def ask(self, batch: Batch, queries: Sequence[Query]) -> list[Reply]:
        """Look the answers up; a UserError for raw ones that are missing."""
        replies = []
        for query in queries:
            pair = batch.truth.image_ids[query.row], query.finding
            text = self._texts_of.get(pair)
            if text is None and self._answered.kind == "answers":
                raise UserError(
                    f"{self._path} has no answer about image {pair[0]}, finding {pair[1]}. Add it, empty if nothing "
                    "was said, or choose other images with --data.image_list.",
                    exit_status=2,
                )
            replies.append(Reply('{"boxes": []}' if text is None else text))
        return replies

    def provenance(self) -> dict[str, Any]:
        """Return the digest of the predictions, and how they are read."""
        return super().provenance() | {"predictions_sha256": digest([self._path]), "extra": self._extra}


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} ({'; '.join(names[:5])}{'; ...' if len(names) > 5 else ''})"
