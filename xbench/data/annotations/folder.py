"""Index of the files of a download, in any folder below its root."""

from __future__ import annotations

import filecmp
import fnmatch
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from xbench.data.annotations.tables import check_file
from xbench.runtime.errors import UserError
from xbench.runtime.files import IMAGE_SUFFIXES as IMAGE_SUFFIXES

_TABLES = (".csv", ".json", ".txt")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".rar", *(f"{table}.gz" for table in _TABLES))


def names_in(split: str, names: Sequence[str]) -> list[str]:
    """Return the file names for a split: replace `{split}`, and keep names that end in @SPLIT for that split only."""
    return [name.format(split=split) for name, _, only in (one.partition("@") for one in names) if only in ("", split)]


def absent(root: Path, wanted: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the lists of names, such as `jsons/*.json`, without a match below a folder; skip empty lists."""
    missing = {key: names for key, names in wanted.items() if names}
    for place, files in _walk(root):
        paths = [f"{place}/{file}".lower() for file in files]
        for key in [key for key in missing if any(fnmatch.filter(paths, f"*/{one.lower()}") for one in missing[key])]:
            del missing[key]
        if not missing:
            break
    return missing


class Folder:
    """Index of the files below a folder, without hidden ones.

    Names from annotation files are looked up here and never joined to a path, so they cannot lead outside the folder.
    Links are followed, because parts of a download often lie on another disk.

    Args:
        key: Returns an image's name in the annotation files from its path; None for a file that is not an image.
        suffixes: Endings of image files, in lower case.
    """

    def __init__(self, root: Path, key: Callable[[Path], str | None], suffixes: Sequence[str] = IMAGE_SUFFIXES) -> None:
        self.root = root
        self.archives: list[Path] = []
        self._tables: defaultdict[str, list[Path]] = defaultdict(list)
        images: defaultdict[str, list[Path]] = defaultdict(list)
        for place, files in _walk(root):
            for file in files:
                lower = file.lower()
                path = Path(place, file)
                if lower.endswith(tuple(suffixes)):
                    if (name := key(path)) is not None:
                        images[name].append(path)
                elif lower.endswith(_TABLES):
                    self._tables[lower].append(path)
                elif lower.endswith(_ARCHIVES):
                    self.archives.append(path)
        self.images = dict(images)  # files by key, both in the order of their paths

    def find(self, *names: str) -> list[Path]:
        """Return the CSV, JSON and text files with these names; case does not matter."""
        return [path for name in names for path in self._tables.get(name.lower(), ())]

    def packed(self, *names: str) -> list[Path]:
        """Return the archives named after one of these files, such as `table.csv.gz`."""
        return [path for path in self.archives if path.name.lower().startswith(tuple(map(str.lower, names)))]

    def ending(self, suffix: str) -> list[Path]:
        """Return the CSV, JSON or text files with this ending, sorted by name."""
        return [path for name in sorted(self._tables) if name.endswith(suffix) for path in self._tables[name]]

    def in_folder(self, *names: str) -> dict[str, list[Path]]:
        """Return the images in folders with one of these names below the root, or in the root if it has such a name."""
        chosen: dict[str, list[Path]] = {}
        top = self.root.absolute().name
        for image, paths in self.images.items() if names else ():
            if inside := [path for path in paths if {*names} & {top, *path.relative_to(self.root).parts[:-1]}]:
                chosen[image] = inside
        return chosen

    def choose(
        self, dataset: str, names: Sequence[str], layout: str, option: str = "", splits: Sequence[str] = ()
    ) -> Path:
        """Return the file with one of these names, or the first with equal content; else UserError, with a hint."""
        found = self.find(*names)
        if len(found) > 1 and not _equal(found):
            advice = f"choose one with --data.{option}" if option else "set --data.root to a folder that holds one"
            raise UserError(
                f"{dataset}: several annotation files lie under {self.root}: {', '.join(map(str, found))}. Their "
                f"contents differ: {advice}."
            )
        if found:
            return found[0]
        elsewhere = f" Name a file elsewhere with --data.{option}." if option else ""
        raise UserError(
            f"{dataset}: no {' or '.join(names)} lies under {self.root}. {self.hint(names, splits)}Expected in "
            f"--data.root: {layout}.{elsewhere}"
        )

    def hint(self, names: Sequence[str], splits: Sequence[str] = ()) -> str:
        """Suggest where a file of the first split may be: under another split, in a folder above, or in an archive."""
        if packed := self.packed(*names):
            return f"There is {packed[0]}: unpack it. "
        for split in splits:
            for path in self.find(*(name.replace(splits[0], split) for name in names)):
                return f"There is {path}, of the split {split}: --data.split {split} takes it. "
        for above in [*self.root.absolute().parents][:3]:
            if near := [above / name for name in names if (above / name).is_file()]:
                return f"There is {near[0]}: did you mean --data.root {above}? "
            with suppress(OSError):
                if near := [path for name in names for path in sorted(above.glob(f"*/{name}"))]:
                    return f"There is {near[0]}: set --data.root to the folder that holds both it and the images. "
        first = ", ".join(map(str, self.archives[:3]))
        return f"There are archives that are not unpacked ({first}): unpack them. " if first else ""


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    seen = set()
    for place, folders, files in os.walk(root, followlinks=True):
        # A link may lead back to a parent.
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        # Folders before links, so that a folder is reported under its own path.
        shown = [folder for folder in folders if not folder.startswith(".")]
        folders[:] = sorted(shown, key=lambda folder: (os.path.islink(os.path.join(place, folder)), folder))
        yield place, sorted(file for file in files if not file.startswith("."))


def _equal(paths: Sequence[Path]) -> bool:
    try:
        for path in paths:
            check_file(path)
        return all(filecmp.cmp(paths[0], path, shallow=False) for path in paths[1:])
    except OSError:
        return False
