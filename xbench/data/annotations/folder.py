"""The files of a download, found wherever below its folder they lie."""

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
from xbench.runtime.paths import IMAGE_SUFFIXES as IMAGE_SUFFIXES

_TABLES = (".csv", ".json", ".txt")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".rar", *(f"{table}.gz" for table in _TABLES))


def names_in(split: str, names: Sequence[str]) -> list[str]:
    """Return the names of files of a split: `{split}` stands for it, and what ends in @SPLIT is of that split alone."""
    return [name.format(split=split) for name, _, only in (one.partition("@") for one in names) if only in ("", split)]


def absent(root: Path, wanted: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the lists of names, such as `jsons/*.json`, without a single match below a folder; skip empty lists."""
    missing = {key: names for key, names in wanted.items() if names}
    for place, files in _walk(root):
        paths = [f"{place}/{file}".lower() for file in files]
        for key in [key for key in missing if any(fnmatch.filter(paths, f"*/{one.lower()}") for one in missing[key])]:
            del missing[key]
        # A download may have a hundred thousand files more.
        if not missing:
            break
    return missing


class Folder:
    """Index of the files below a folder.

    Images are looked up in the index and no name is ever joined to a path, so that nothing in an annotation file can
    lead out of the folder. Links are followed, for parts of a download often lie on another disk. Hidden files and
    folders are left aside.

    Args:
        root: The folder.
        key: What annotation files call an image, told from its path; None for a file that is no image of the dataset.
        suffixes: Endings of image files, in lower case.

    Attributes:
        images: Files of each image by its key, in the order of their paths.
        archives: Archives.
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
        self.images = dict(images)

    def find(self, *names: str) -> list[Path]:
        """Return the CSV, JSON and text files of these names, in capitals or not."""
        return [path for name in names for path in self._tables.get(name.lower(), ())]

    def packed(self, *names: str) -> list[Path]:
        """Return the archives that are called after one of these files, such as `table.csv.gz`."""
        return [path for path in self.archives if path.name.lower().startswith(tuple(map(str.lower, names)))]

    def ending(self, suffix: str) -> list[Path]:
        """Return the CSV, JSON or text files with this ending, sorted by name."""
        return [path for name in sorted(self._tables) if name.endswith(suffix) for path in self._tables[name]]

    def in_folder(self, *names: str) -> dict[str, list[Path]]:
        """Return the images that lie in a folder of one of these names below the root, or in the root if it is one."""
        chosen: dict[str, list[Path]] = {}
        top = self.root.absolute().name
        for image, paths in self.images.items() if names else ():
            if inside := [path for path in paths if {*names} & {top, *path.relative_to(self.root).parts[:-1]}]:
                chosen[image] = inside
        return chosen

    def choose(
        self, dataset: str, names: Sequence[str], layout: str, option: str = "", splits: Sequence[str] = ()
    ) -> Path:
        """Return the one file that has one of these names, or the first of several of the same content.

        The `UserError` that there is none has the `layout` that is expected, the option that may name the file, and
        where else it may be, given all splits, its own first.
        """
        found = self.find(*names)
        if len(found) > 1 and not _equal(found):
            advice = f"choose one with --data.{option}" if option else "set --data.root to a folder that holds one"
            raise UserError(
                f"{dataset}: several annotation files lie under {self.root}: {', '.join(map(str, found))}. Their "
                f"contents differ: {advice}."
            )
        if found:
            return found[0]
        elsewhere = f" A file elsewhere is named with --data.{option}." if option else ""
        raise UserError(
            f"{dataset}: no {' or '.join(names)} lies under {self.root}. {self.hint(names, splits)}Expected in "
            f"--data.root: {layout}.{elsewhere}"
        )

    def hint(self, names: Sequence[str], splits: Sequence[str] = ()) -> str:
        """Say where else a file of the first split may be: of another, in a folder above, or still in an archive."""
        if packed := self.packed(*names):
            return f"There is {packed[0]}: unpack it. "
        for split in splits:
            for path in self.find(*(name.replace(splits[0], split) for name in names)):
                return f"There is {path}, of the split {split}: --data.split {split} takes it. "
        # Not further up: a stranger's file of the same name would be the likelier find.
        for above in [*self.root.absolute().parents][:3]:
            if near := [above / name for name in names if (above / name).is_file()]:
                return f"There is {near[0]}: did you mean --data.root {above}? "
            with suppress(OSError):
                if near := [path for name in names for path in sorted(above.glob(f"*/{name}"))]:
                    return f"There is {near[0]}: set --data.root to the folder that holds both it and the images. "
        first = ", ".join(map(str, self.archives[:3]))
        return f"There are archives that are not unpacked ({first}): unpack them. " if first else ""


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders below a folder, itself first, each with its files; hidden ones are left aside."""
    seen = set()
    for place, folders, files in os.walk(root, followlinks=True):
        # A link may lead back up.
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        # Folders before links, which may lead to one of them: it is to be found where it lies.
        folders[:] = sorted(
            (folder for folder in folders if not folder.startswith(".")),
            key=lambda folder: (os.path.islink(os.path.join(place, folder)), folder),
        )
        yield place, sorted(file for file in files if not file.startswith("."))


def _equal(paths: Sequence[Path]) -> bool:
    """Tell whether files are copies of each other."""
    try:
        for path in paths:
            check_file(path)
        return all(filecmp.cmp(paths[0], path, shallow=False) for path in paths[1:])
    except OSError:
        return False
