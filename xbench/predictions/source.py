"""One way to ask for predictions, whatever files they lie in."""

from __future__ import annotations

import hashlib
import io
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.errors import UserError
from xbench.geometry.grid import View
from xbench.predictions.files import ARRAYS, PICTURES, Files, as_map, named, read_npy, read_npz, read_picture
from xbench.predictions.pickled import read_pickle
from xbench.predictions.scores import Scores
from xbench.protocol.findings import canonical, names_of
from xbench.runtime.digests import file_sha256

Pair = tuple[str, str]
"""An image of the dataset and a finding of it."""


@dataclass(frozen=True)
class Frame:
    """What a prediction of `xbench predict` says of itself: the rest is declared."""

    view: View
    image_sha256: str
    upsampling: str
    map_scale: str


class Source(ABC):
    """Predictions of images and findings of a dataset.

    Attributes:
        maps: The pairs that have a map.
        scores: Logit and probability of the pairs that have them.
        unknown: What is there and belongs to no pair of the dataset.
    """

    maps: Collection[Pair]
    scores: Mapping[Pair, tuple[float, float]]
    unknown: Sequence[str]

    @abstractmethod
    def read(self, image_id: str, findings: Sequence[str]) -> list[NDArray[np.float32] | None]:
        """Return the maps (h, w) of an image, None for those that are missing; a UserError for damaged ones."""

    def frame(self, image_id: str) -> Frame | None:
        """Return what the files themselves say of the frame of an image; None if it is declared."""
        return None


class PredictRun(Source):
    """What `xbench predict` wrote."""

    def __init__(self, folder: Path, images: Sequence[str], findings: Sequence[str]) -> None:
        self._folder = folder
        with named(folder, "predictions.parquet"):
            rows = pq.read_table(folder / "predictions.parquet").to_pylist()
            pairs = [(row["image_id"], row["finding"]) for row in rows]
            if len({*pairs}) < len(pairs):
                raise ValueError("it has two rows of an image and a finding")
            wanted = {*images}, {*findings}
            self.unknown = [f"{one}, {other}" for one, other in pairs if one not in wanted[0] or other not in wanted[1]]
            self.scores = {pair: (row["logit"], row["probability"]) for pair, row in zip(pairs, rows, strict=True)}
            self.maps = self.scores.keys()
            self._files = {row["image_id"]: row["file"] for row in rows}
            if any(PurePosixPath(file).parts[:1] != ("saliency",) or ".." in file for file in self._files.values()):
                raise ValueError("it names files that lie elsewhere")
        self._last: tuple[str, dict[str, NDArray[np.generic]]] = "", {}

    def read(self, image_id: str, findings: Sequence[str]) -> list[NDArray[np.float32] | None]:
        """Return the maps (h, w) of an image."""
        arrays = self._arrays(image_id)
        with named(self._folder, self._files[image_id], f"image {image_id}"):
            names = [str(name) for name in arrays["findings"]]
            if arrays["saliency"].ndim != 3 or len(arrays["saliency"]) != len(names):
                raise ValueError(f"{len(names)} findings and maps of shape {arrays['saliency'].shape}")
            maps = [as_map(arrays["saliency"][names.index(finding)]) for finding in findings]
            return [*maps]

    def frame(self, image_id: str) -> Frame:
        """Return the view, the digest of the model input, and how the model's maps are enlarged."""
        arrays = self._arrays(image_id)
        if not {"upsampling", "map_scale"} <= {*arrays}:
            raise UserError(
                f"{self._folder} was written by an earlier version of xbench, which did not note how its maps are "
                "enlarged and what their values are: run predict again.",
                exit_status=2,
            )
        with named(self._folder, self._files[image_id], f"image {image_id}"):
            left, top, right, bottom = map(float, arrays["view"])
            if not (left < right and top < bottom and abs(left) + abs(top) + abs(right) + abs(bottom) < 1e6):
                raise ValueError(f"{left}, {top}, {right}, {bottom} is no view")
            said = [str(arrays[name]) for name in ("image_sha256", "upsampling", "map_scale")]
            return Frame((left, top, right, bottom), *said)

    def _arrays(self, image_id: str) -> dict[str, NDArray[np.generic]]:
        if self._last[0] != image_id:
            name = self._files[image_id]
            with named(self._folder, name, f"image {image_id}"):
                self._last = image_id, read_npz((self._folder / name).read_bytes())
        return self._last[1]


class MapFiles(Source):
    """Maps in a folder or an archive: a file for each image and finding, or an npz file for each image.

    Args:
        root: The folder or archive.
        pattern: Path of a file below `root` without its ending. Without `{finding}` in it, files are npz, and their
            arrays are called as the findings are.
        names: What the files call a finding, and its name, where that is not understood by itself.
        scores: Probabilities, as the table calls images and findings.
    """

    def __init__(
        self,
        root: Path,
        images: Sequence[str],
        findings: Sequence[str],
        pattern: str = "{image}/{finding}",
        names: Mapping[str, str] | None = None,
        scores: Scores | None = None,
    ) -> None:
        if "{image}" not in pattern or {*"{}"} & {*pattern.replace("{image}", "").replace("{finding}", "")}:
            raise UserError(f"--pattern {pattern}: it must have {{image}} and may have {{finding}}.", exit_status=2)
        self._root, self._given = Files(root), folded(names)
        endings = (*ARRAYS, *PICTURES, ".pkl") if "{finding}" in pattern else (".npz",)
        stems: dict[str, str] = {}
        self.unknown = []
        for name in self._root.names:
            stem, dot, ending = name.rpartition(".")
            if (dot + ending).lower() not in endings:
                self.unknown.append(name)
            elif (twin := stems.setdefault(_fold(stem), name)) != name:
                raise UserError(f"{root} holds {twin} and {name}, which are one image and finding.", exit_status=2)
        self._of: dict[str, str] = {}
        self._pairs: dict[Pair, tuple[str, str | None]] = {}
        used: dict[str, Pair | str] = {}
        with_finding = "{finding}" in pattern
        for image in images:
            for finding in findings if with_finding else [""]:
                found = {
                    stems[key]
                    for one in _spellings_of_image(image)
                    for other in self._spellings(finding)
                    if (key := _fold(pattern.format(image=one, finding=other))) in stems
                }
                if len(found) > 1:
                    raise UserError(
                        f"{root} holds {' and '.join(sorted(found))}, which are both of image {image} and finding "
                        f"{finding or 'any'}.",
                        exit_status=2,
                    )
                for name in found:
                    what: Pair | str = (image, finding) if with_finding else image
                    if used.setdefault(name, what) != what:
                        raise UserError(f"{root}: {name} fits {used[name]} and {what}.", exit_status=2)
                    if with_finding:
                        self._pairs[image, finding] = name, None
                    else:
                        self._pairs |= self._in_npz(name, image, findings)
        self.unknown = sorted([*self.unknown, *({*stems.values()} - {*used})])
        self.maps = self._pairs.keys()
        self.scores = self._match(scores, images, findings) if scores is not None else {}

    def read(self, image_id: str, findings: Sequence[str]) -> list[NDArray[np.float32] | None]:
        """Return the maps (h, w) of an image."""
        maps: list[NDArray[np.float32] | None] = []
        opened: dict[str, dict[str, NDArray[np.generic]]] = {}
        for finding in findings:
            name, key = self._pairs.get((image_id, finding), (None, None))
            if name is None:
                maps.append(None)
                continue
            content = b"" if name in opened else self._root.read(name)
            with named(self._root.root, name, f"image {image_id}, finding {finding}"):
                if name.lower().endswith(".npz"):
                    arrays = opened[name] = opened.get(name) or read_npz(content)
                    if key is None and len(arrays) != 1:
                        raise ValueError(f"it holds {len(arrays)} arrays, and not one: {', '.join(arrays)[:100]}")
                    maps.append(as_map(arrays[key] if key is not None else next(iter(arrays.values()))))
                elif name.lower().endswith(".pkl"):
                    maps.append(as_map(read_pickle(content)[0]))
                else:
                    read = read_npy if name.lower().endswith(".npy") else read_picture
                    maps.append(as_map(read(content)))
        return maps

    def pickled_scores(self) -> dict[Pair, tuple[float, float]]:
        """Return the probabilities that pickled maps come with; a UserError if they are no probabilities."""
        found = {}
        for (image, finding), (name, _) in self._pairs.items():
            if name.lower().endswith(".pkl"):
                content = self._root.read(name)
                with named(self._root.root, name, f"image {image}, finding {finding}"):
                    probability = read_pickle(content)[1]
                    if probability is not None:
                        if not 0 <= probability <= 1:
                            raise ValueError(f"its prob is {probability}, and no probability from 0 to 1")
                        found[image, finding] = probability, probability
        return found

    def _in_npz(self, name: str, image: str, findings: Sequence[str]) -> dict[Pair, tuple[str, str | None]]:
        with named(self._root.root, name, f"image {image}"), zipfile.ZipFile(io.BytesIO(self._root.read(name))) as file:
            keys = {_fold(key.removesuffix(".npy")): key.removesuffix(".npy") for key in file.namelist()}
        found: dict[Pair, tuple[str, str | None]] = {}
        for finding in findings:
            theirs = {keys.pop(key) for other in self._spellings(finding) if (key := _fold(other)) in keys}
            if len(theirs) > 1:
                raise UserError(f"{name}: {' and '.join(sorted(theirs))} are both {finding}.", exit_status=2)
            if theirs:
                found[image, finding] = name, theirs.pop()
        self.unknown = [*self.unknown, *(f"{name}: {key}" for key in keys.values())]
        return found

    def _spellings(self, finding: str) -> list[str]:
        given = self._given.get(_fold(finding))
        return names_of(finding) if given is None else [given]

    def _match(self, scores: Scores, images: Sequence[str], findings: Sequence[str]) -> dict[Pair, tuple[float, float]]:
        ours, unknown = matched(scores, images, findings, self._given, "--scores")
        self.unknown = [*self.unknown, *(f"the score of {image}, {finding}" for image, finding in unknown)]
        return {pair: scores[theirs] for pair, theirs in ours.items()}


def matched(
    theirs: Iterable[Pair], images: Sequence[str], findings: Sequence[str], names: Mapping[str, str], option: str
) -> tuple[dict[Pair, Pair], list[Pair]]:
    """Find the images and findings of a dataset among those that a file names.

    Args:
        theirs: As the file calls them.
        images: Of the dataset; the file may leave an ending out.
        findings: Of the dataset; capital letters and `_` for a space make no difference.
        names: What the file calls a finding, by the folded name.
        option: For messages.

    Returns:
        What the file calls each pair that it has, and what belongs to no pair.

    Raises:
        UserError: A pair is there under two names.
    """
    known: dict[str, str] = {}
    for image in images:
        for one in _spellings_of_image(image):
            if known.setdefault(one, image) != image:
                del known[one]
    ours = {_fold(names.get(_fold(finding), finding)): finding for finding in findings}
    found: dict[Pair, Pair] = {}
    unknown: list[Pair] = []
    for image, finding in theirs:
        pair = known.get(image), ours.get(_fold(finding)) or ours.get(_fold(canonical(finding) or finding))
        if pair[0] is None or pair[1] is None:
            unknown.append((image, finding))
        elif (pair[0], pair[1]) in found:
            raise UserError(f"{option}: image {pair[0]} and finding {pair[1]} have two.", exit_status=2)
        else:
            found[pair[0], pair[1]] = image, finding
    return found, unknown


def folded(names: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a file calls findings, by their folded names, from names of findings by what the file calls them."""
    return {_fold(ours): theirs for theirs, ours in (names or {}).items()}


def digest(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of files, or of all files in folders, and of their places below these."""
    found = hashlib.sha256()
    for root in paths:
        for path in sorted(one for one in root.rglob("*") if one.is_file()) if root.is_dir() else [root]:
            place = path.relative_to(root).as_posix() if root.is_dir() else ""
            found.update(f"{place} {file_sha256(path)}\n".encode())
    return found.hexdigest()


def _fold(name: str) -> str:
    return name.replace(" ", "_").casefold()


def _spellings_of_image(image: str) -> tuple[str, ...]:
    """An image may be called without the ending of its file."""
    stem = PurePosixPath(image).with_suffix("").as_posix()
    return (image,) if stem == image else (image, stem)
