"""Predictions made elsewhere, by image and finding, from any kind of file."""

from __future__ import annotations

import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from xbench.findings.names import canonical, names_of
from xbench.predictions.asking import Reply
from xbench.predictions.chexlocalize import Pair, decoded, drawn_in, read_drawn, read_pickle
from xbench.predictions.files import ARRAYS, PICTURES, Files, as_map, named, read_npy, read_npz, read_picture
from xbench.predictions.tables import Ids, read_answered, read_reports, read_scores
from xbench.runtime.errors import UsageError
from xbench.runtime.files import IMAGE_SUFFIXES

Kind = Literal["maps", "probabilities", "boxes", "raw answers", "reports", "answers in words"]
Value = TypeVar("Value")


class Names:
    """Images and findings of a dataset, and their names in files.

    `given` maps names to findings, as in `--names`, and replaces all other names of these findings; `own` maps names in
    the dataset's files to findings and adds to the usual ones.
    """

    def __init__(
        self,
        images: Sequence[str],
        findings: Sequence[str],
        given: Mapping[str, str] | None = None,
        own: Mapping[str, str] | None = None,
    ) -> None:
        self.images, self.findings = images, findings
        self.words: dict[str, list[str]] = {}
        self._meant: dict[str, list[str]] = defaultdict(list, {"": [""]})  # texts about a whole image
        for finding in findings:
            replaced, added = (
                [word for word, name in (names or {}).items() if _fold(name) == _fold(finding)]
                for names in (given, own)
            )
            self.words[finding] = replaced or [*names_of(finding), *added]
            for word in {*map(_fold, self.words[finding])}:
                self._meant[word].append(finding)
        self._whole, self._bare, self._last = {*images}, defaultdict[str, list[str]](list), defaultdict(list)
        for image in images:
            self._bare[_without_ending(image)].append(image)
            self._last[_without_ending(image).rpartition("/")[2]].append(image)

    def _images(self, name: str) -> list[str]:
        if name in self._whole:
            return [name]
        bare = _without_ending(name)
        below = self._last.get(bare.rpartition("/")[2], ())
        return self._bare.get(bare) or [image for image in below if _without_ending(image).endswith(f"/{bare}")]

    def match(self, theirs: Mapping[Pair, Value], option: str) -> tuple[dict[Pair, Value], list[Pair]]:
        """Return values by pair of the dataset, and unknown pairs; refuse ambiguous names and repeated pairs."""
        found: dict[Pair, Value] = {}
        called: dict[Pair, Pair] = {}
        unknown: list[Pair] = []
        theirs_mean = {
            word: self._meant.get(_fold(word)) or self._meant.get(_fold(canonical(word) or word), [])
            for word in {finding for _, finding in theirs}
        }
        for (image, finding), value in theirs.items():
            images, findings = self._images(image), theirs_mean[finding]
            for name, meant in ((image, images), (finding, findings)):
                if len(meant) > 1:
                    which = f"{', '.join(map(repr, meant[:5]))}{', ...' if len(meant) > 5 else ''}"
                    wanted = f"{option}: {name!r} may mean any of {which}: write the whole name, or give --names."
                    raise UsageError(wanted)
            if not images or not findings:
                unknown.append((image, finding))
                continue
            pair = images[0], findings[0]
            if pair in found:
                name, *both = (", ".join(filter(None, of)) for of in (pair, called[pair], (image, finding)))
                raise UsageError(f"{option}: {name} has two entries, {' and '.join(both)}: leave one out.")
            found[pair], called[pair] = value, (image, finding)
        return found, unknown


Map = NDArray[np.float32]
"""Map of an image and a finding (h, w)."""


class Source:
    """Predictions by image and finding."""

    maps: Collection[Pair] = ()

    def __init__(
        self,
        scores: Mapping[Pair, tuple[float, float]] | None = None,
        texts: Mapping[Pair, Reply] | None = None,
        unknown: Sequence[Pair | str] = (),
    ) -> None:
        self.scores = scores or {}  # logit and probability by pair
        self.texts = texts or {}  # in the format of a model: answers by pair, reports by image and ""
        self.unknown = unknown  # pairs and files that match no pair of the dataset

    def read(self, image: str) -> dict[str, Map]:
        """Return the maps of an image by finding; raise a UserError for damaged files."""
        return {}


class Drawn(Source):
    """Masks drawn by people, as in CheXlocalize's human benchmark, read as maps of 0 and 1."""

    def __init__(self, path: Path, names: Names) -> None:
        self._path = path
        self._masks, unknown = names.match(read_drawn(path) or {}, "--predictions")
        super().__init__(unknown=[", ".join(pair) for pair in unknown])
        self.maps = self._masks.keys()
        self._findings = names.findings

    def read(self, image: str) -> dict[str, Map]:
        """Return the masks of an image by finding."""
        maps = {}
        for finding in self._findings:
            if (image, finding) in self._masks:
                with named(self._path, of=f"image {image}, finding {finding}"):
                    maps[finding] = decoded(self._masks[image, finding])
        return maps


class MapFiles(Source):
    """Maps in a folder or an archive, in one file per image and finding or one npz file per image.

    `pattern` is the path of a file below `root` without its extension; `scores` is a table, or `pickled`.
    """

    def __init__(self, root: Path, names: Names, pattern: str = "{image}/{finding}", scores: str | None = None) -> None:
        if "{image}" not in pattern or {*"{}"} & {*pattern.replace("{image}", "").replace("{finding}", "")}:
            raise UsageError(f"--pattern {pattern}: it must have {{image}} and may have {{finding}}.")
        self._root, self._findings = Files(root), names.findings
        with_finding = "{finding}" in pattern
        endings = (*ARRAYS, *PICTURES, ".pkl") if with_finding else (".npz",)
        stems: dict[str, str] = {}
        unknown: list[str] = []
        for name in self._root.names:
            stem, dot, ending = name.rpartition(".")
            if (dot + ending).lower() not in endings:
                unknown.append(name)
            elif (twin := stems.setdefault(_fold(stem), name)) != name:
                raise UsageError(f"{root} holds {twin} and {name}, which are the same image and finding.")
        self._pairs: dict[Pair, tuple[str, str | None]] = {}
        used: dict[str, Pair] = {}
        whole, folded = {*names.images}, _fold(pattern)
        usual = [ending for ending in IMAGE_SUFFIXES if any(ending in stem for stem in stems)]
        for image in names.images:
            bare = _without_ending(image)
            called = [*map(_fold, (image, *({bare, *(f"{bare}{ending}" for ending in usual)} - whole)))]
            for finding in names.findings if with_finding else [""]:
                words = [*map(_fold, names.words.get(finding, [""]))]
                keys = {folded.format(image=one, finding=word) for one in called for word in words}
                files = sorted(stems[key] for key in keys if key in stems)
                what = f"image {image}, finding {finding or 'any'}"
                if len(files) > 1:
                    raise UsageError(f"{root} holds {' and '.join(files)}, both for {what}.")
                for name in files:
                    if (other := used.setdefault(name, (image, finding))) != (image, finding):
                        raise UsageError(f"{root}: {name} fits {', '.join(other)} and {what}.")
                    if with_finding:
                        self._pairs[image, finding] = name, None
                    else:
                        unknown += self._find_arrays(name, image, names)
        self.maps = self._pairs.keys()
        unknown = sorted([*unknown, *({*stems.values()} - {*used})])
        if scores == "pickled":
            super().__init__(self._pickled_scores(), unknown=unknown)
        else:
            table = {} if scores is None else read_scores(Path(scores).expanduser())
            matched, lost = names.match(table, "--scores")
            super().__init__(matched, unknown=[*unknown, *(f"the score of {', '.join(pair)}" for pair in lost)])

    def read(self, image: str) -> dict[str, Map]:
        """Return the maps of an image by finding."""
        maps: dict[str, Map] = {}
        opened: dict[str, dict[str, NDArray[Any]]] = {}
        for finding in self._findings:
            if (image, finding) not in self._pairs:
                continue
            name, key = self._pairs[image, finding]
            with named(self._root.root, name, f"image {image}, finding {finding}"):
                if name not in opened:
                    opened[name] = _arrays(name, self._root.read(name))
                arrays = opened[name]
                if key is None and len(arrays) != 1:
                    raise ValueError(f"it holds {len(arrays)} arrays instead of one: {', '.join(arrays)[:100]}")
                maps[finding] = as_map(arrays[next(iter(arrays)) if key is None else key])
        return maps

    def _pickled_scores(self) -> dict[Pair, tuple[float, float]]:
        scores = {}
        for (image, finding), (name, _) in self._pairs.items():
            if name.lower().endswith(".pkl"):
                content = self._root.read(name)
                with named(self._root.root, name, f"image {image}, finding {finding}"):
                    if (probability := read_pickle(content)[1]) is not None:
                        if not 0 <= probability <= 1:
                            raise ValueError(f"its prob is {probability}, outside of 0 to 1")
                        scores[image, finding] = probability, probability
        return scores

    def _find_arrays(self, name: str, image: str, names: Names) -> list[str]:
        """Find the findings among the arrays of an npz file; return the rest."""
        keys: dict[str, str] = {}
        with named(self._root.root, name, f"image {image}"):
            with zipfile.ZipFile(io.BytesIO(self._root.read(name))) as file:
                members = [member.removesuffix(".npy") for member in file.namelist()]
            for key in members:
                if (twin := keys.setdefault(_fold(key), key)) != key:
                    raise ValueError(f"{twin} and {key} are the same finding")
            for finding in names.findings:
                called = [keys.pop(word) for word in {*map(_fold, names.words[finding])} if word in keys]
                if len(called) > 1:
                    raise ValueError(f"{' and '.join(sorted(called))} are both {finding}")
                for key in called:
                    self._pairs[image, finding] = name, key
        return [f"{name}: {key}" for key in keys.values()]


def kind_of(path: Path) -> Kind:
    """Return the kind of content by file extension, first line (CSV) or content (JSON)."""
    suffix = "" if path.is_dir() else path.suffix.lower()
    if suffix == ".csv":
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            head = [name.strip() for name in file.readline(2**16).replace('"', "").split(",")]
        corners = [name for name in head if re.fullmatch(r"[xywh]|width|height|[xy]_?(\d|min|max)", name, re.I)]
        if len(corners) > 3 and "x0" not in head:
            wanted = "Boxes need x0, y0, x1 and y1 (left, top, right and bottom): rename or convert them."
            raise UsageError(f"{path} has the columns {', '.join(corners)}. {wanted}")
        return read_answered(path)[0] if "x0" in head else "probabilities"
    if suffix == ".parquet":
        return "probabilities"
    if suffix == ".jsonl" or (suffix == ".json" and drawn_in(path) != "masks"):
        return read_answered(path)[0]
    return "maps"


def open_source(kind: Kind, path: Path, names: Names, pattern: str, scores: str | None, ids: Ids | None) -> Source:
    """Open predictions and match them with the dataset; raise a UserError if unreadable or ambiguous."""
    if kind == "maps":
        drawn = path.is_file() and path.suffix.lower() == ".json"
        return Drawn(path, names) if drawn else MapFiles(path, names, pattern, scores)
    if kind == "probabilities":
        table, unknown = names.match(read_scores(path), "--predictions")
        return Source(table, unknown=unknown)
    reports = kind == "reports"
    texts = read_reports(path) if reports else read_answered(path, ids)[1]
    matched, lost = names.match(texts, "--predictions")
    return Source(texts=matched, unknown=[image if reports else (image, finding) for image, finding in lost])


def _arrays(name: str, content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in a file by name; an array without a name is called `map`."""
    match name.lower()[-4:]:
        case ".npz":
            return read_npz(content)
        case ".pkl":
            return {"map": read_pickle(content)[0]}
        case ending:
            return {"map": read_npy(content) if ending == ".npy" else read_picture(content)}


def _fold(name: str) -> str:
    return name.replace(" ", "_").casefold()


def _without_ending(image: str) -> str:
    stem, dot, ending = image.rpartition(".")
    return stem if (dot + ending).lower() in IMAGE_SUFFIXES else image
