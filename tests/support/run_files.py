"""The files of a finished run, as tests compare them."""

from __future__ import annotations

import json
from pathlib import Path

TABLES = ("per_image.parquet", "curves.parquet", "maps.parquet", "regions.parquet", "pictures.parquet", "per_class.csv")


def read(folder: Path) -> dict[str, bytes | str]:
    """Files of the one finished run in a working directory, as `files_of` gives them."""
    (path,) = folder.glob("runs/*/*/results.json")
    assert not (path.parent / "journal").exists()
    return files_of(path.parent)


def files_of(run: Path) -> dict[str, bytes | str]:
    """Files of a run, the provenance taken out."""
    results = json.loads((run / "results.json").read_text())
    del results["provenance"]
    return {"results.json": json.dumps(results)} | {name: (run / name).read_bytes() for name in TABLES}


def change(folder: Path, **entries: object) -> None:
    """Change entries of a run's results.json; `__` parts the keys of a place."""
    path = folder / "results.json"
    content = json.loads(path.read_text())
    for place, value in entries.items():
        *parents, name = place.split("__")
        target = content
        for parent in parents:
            target = target[parent]
        target[name] = value
    path.write_text(json.dumps(content))
