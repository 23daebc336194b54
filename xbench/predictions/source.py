"""One way to ask for predictions, whatever files they lie in."""

from __future__ import annotations

import hashlib
import io
import zipfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.findings.names import canonical, names_of
from xbench.geometry.grid import View
from xbench.predictions.files import ARRAYS, PICTURES, Files, as_map, named, read_npy, read_npz, read_picture
from xbench.predictions.pickled import read_pickle
from xbench.predictions.scores import Scores
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UserError
from xbench.runtime.paths import IMAGE_SUFFIXES

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
        words: What `words_for` gives.
        scores: Probabilities, as the table calls images and findings.
    """

    def __init__(
        self,
        root: Path,
        images: Sequence[str],
        findings: Sequence[str],
        pattern: str = "{image}/{finding}",
        words: Mapping[str, Sequence[str]] | None = None,
        scores: Scores | None = None,
    ) -> None:
        if "{image}" not in pattern or {*"{}"} & {*pattern.replace("{image}", "").replace("{finding}", "")}:
            raise UserError(f"--pattern {pattern}: it must have {{image}} and may have {{finding}}.", exit_status=2)
        self._root = Files(root)
        self._words = {one: {*map(_fold, (words or {}).get(_fold(one), names_of(one)))} for one in findings}
        endings = (*ARRAYS, *PICTURES, ".pkl") if "{finding}" in pattern else (".npz",)
        stems: dict[str, str] = {}
        unknown: list[str] = []
        for name in self._root.names:
            stem, dot, ending = name.rpartition(".")
            if (dot + ending).lower() not in endings:
                unknown.append(name)
            elif (twin := stems.setdefault(_fold(stem), name)) != name:
                raise UserError(f"{root} holds {twin} and {name}, which are one image and finding.", exit_status=2)
        self._pairs: dict[Pair, tuple[str, str | None]] = {}
        used: dict[str, Pair | str] = {}
        with_finding, whole, folded = "{finding}" in pattern, {*images}, _fold(pattern)
        usual = [ending for ending in IMAGE_SUFFIXES if any(ending in stem for stem in stems)]
        for image in images:
            bare = _without_ending(image)
            called = [image, *({bare, *(f"{bare}{ending}" for ending in usual)} - whole)]
            for finding in findings if with_finding else [""]:
                found = {
                    stems[key]
                    for one in map(_fold, called)
                    for other in self._words.get(finding, [""])
                    if (key := folded.format(image=one, finding=other)) in stems
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
                        self._pairs |= self._in_npz(name, image, findings, unknown)
        self.unknown = sorted([*unknown, *({*stems.values()} - {*used})])
        self.maps = self._pairs.keys()
        self.scores = {}
        if scores is not None:
            ours, lost = matched(scores, images, findings, words or {}, "--scores")
            self.unknown += [f"the score of {image}, {finding}" for image, finding in lost]
            self.scores = {pair: scores[theirs] for pair, theirs in ours.items()}

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

    def _in_npz(
        self, name: str, image: str, findings: Sequence[str], unknown: list[str]
    ) -> dict[Pair, tuple[str, str | None]]:
        keys: dict[str, str] = {}
        with named(self._root.root, name, f"image {image}"), zipfile.ZipFile(io.BytesIO(self._root.read(name))) as file:
            for key in (member.removesuffix(".npy") for member in file.namelist()):
                if (twin := keys.setdefault(_fold(key), key)) != key:
                    raise ValueError(f"{twin} and {key} are one finding")
        found: dict[Pair, tuple[str, str | None]] = {}
        for finding in findings:
            theirs = [keys.pop(word) for word in self._words[finding] if word in keys]
            if len(theirs) > 1:
                raise UserError(f"{name}: {' and '.join(sorted(theirs))} are both {finding}.", exit_status=2)
            if theirs:
                found[image, finding] = name, theirs[0]
        unknown += [f"{name}: {key}" for key in keys.values()]
        return found


def matched(
    theirs: Iterable[Pair],
    images: Sequence[str],
    findings: Sequence[str],
    words: Mapping[str, Sequence[str]],
    option: str,
) -> tuple[dict[Pair, Pair], list[Pair]]:
    """Find the images and findings of a dataset among those that a file names.

    Args:
        theirs: As the file calls them.
        images: Of the dataset; the ending of an image file may be there or not.
        findings: Of the dataset; capital letters and `_` for a space make no difference.
        words: What `words_for` gives.
        option: For messages.

    Returns:
        What the file calls each pair that it has, and what belongs to no pair.

    Raises:
        UserError: A pair is there under two names, or a name may mean several images or findings.
    """
    image_of = _one_meant(images, option)
    ours: dict[str, str] = {}
    for finding in findings:
        for word in words.get(_fold(finding), [finding]):
            if ours.setdefault(_fold(word), finding) != finding:
                raise UserError(
                    f"{option}: {word!r} may mean {ours[_fold(word)]} or {finding}: say with --names what it means.",
                    exit_status=2,
                )
    found: dict[Pair, Pair] = {}
    unknown: list[Pair] = []
    for image, finding in theirs:
        pair = image_of(image), ours.get(_fold(finding)) or ours.get(_fold(canonical(finding) or finding))
        if pair[0] is None or pair[1] is None:
            unknown.append((image, finding))
        elif (twin := found.setdefault((pair[0], pair[1]), (image, finding))) != (image, finding):
            raise UserError(
                f"{option}: image {pair[0]} and finding {pair[1]} have two entries, {', '.join(twin)} and {image}, "
                f"{finding}.",
                exit_status=2,
            )
    return found, unknown


def words_for(names: Mapping[str, str] | None, data: object = None) -> dict[str, list[str]]:
    """Return what predictions may call findings, by the findings' folded names.

    Args:
        names: Findings by what the predictions call them, as `--names`; no other word stands for such a finding.
        data: The data module. If it has `names`, findings by what its own files call them, those words are understood
            beside the usual ones.
    """
    own, given = getattr(data, "names", None), defaultdict(list)
    known: dict[str, list[str]] = {}
    for word, finding in own.items() if isinstance(own, Mapping) else ():
        known.setdefault(_fold(finding), names_of(finding)).append(word)
    for word, finding in (names or {}).items():
        given[_fold(finding)].append(word)
    return known | given


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


def _without_ending(image: str) -> str:
    stem, dot, ending = image.rpartition(".")
    return stem if (dot + ending).lower() in IMAGE_SUFFIXES else image


def _one_meant(images: Sequence[str], option: str) -> Callable[[str], str | None]:
    """Return a function from a name to the image that it means, None if to none; a UserError if to several."""
    whole, bare = {*images}, defaultdict(list)
    for image in images:
        bare[_without_ending(image)].append(image)

    def meant(name: str) -> str | None:
        several = [name] if name in whole else bare.get(_without_ending(name), [])
        if len(several) > 1:
            raise UserError(
                f"{option}: {name!r} may mean each of {len(several)} images, {', '.join(map(repr, several[:5]))}"
                f"{', ...' if len(several) > 5 else ''}: write the whole name.",
                exit_status=2,
            )
        return several[0] if several else None

    return meant
