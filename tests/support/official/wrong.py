"""What goes wrong with downloads. All but `copy_of` change the files of what they are given, and nothing else."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

from official.base import Official


def copy_of(official: Official, root: Path) -> Official:
    """The same download in another folder, to be spoiled."""
    shutil.copytree(official.root, root)
    files = {image_id: root / file.relative_to(official.root) for image_id, file in official.files.items()}
    return replace(official, root=root, files=files)


def remove_image(official: Official, image_id: str) -> Path:
    """Delete an image that the annotations name."""
    official.files[image_id].unlink()
    return official.files[image_id]


def truncate_image(official: Official, image_id: str, share: float = 0.5) -> Path:
    """Cut off the end of an image file, as an interrupted download does."""
    path = official.files[image_id]
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


def add_stray_image(official: Official, image_id: str, name: str) -> Path:
    """Put a second copy of an image beside it, under a name that no annotation knows."""
    path = official.files[image_id]
    return Path(shutil.copyfile(path, path.with_name(name + path.suffix)))


def pack(folder: Path, suffix: str = ".zip") -> Path:
    """Replace a folder by the archive that it was unpacked from: `.zip` or `.tar.gz`."""
    archive = folder.with_name(folder.name + suffix)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for path in files:
                packed.write(path, path.relative_to(folder.parent))
    else:
        with tarfile.open(archive, "w:gz", compresslevel=1) as tape:
            for path in files:
                tape.add(path, path.relative_to(folder.parent))
    shutil.rmtree(folder)
    return archive
