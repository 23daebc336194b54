"""Names of the files of a run, errors of whoever reads them, and tables on disk.

Each page of a table has a checksum: a bit that a disk or a copy has turned must not become another number. The
description at a file's end has none.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from xbench.runtime.errors import UserError

RESULTS, CONFIG = "results.json", "config.yaml"
"""Written last and first: a folder with a configuration and without results is an unfinished run."""
PAIRS = "pairs.parquet"
"""A row per image, query and condition: what every number follows from."""
IMAGES, PREDICTIONS, TRUTH = "images.parquet", "predictions.parquet", "truth.parquet"
"""A row per image; per pair what the model gave, or per question of a model that answers; per annotated region."""
PICTURES = "pictures.parquet"
"""Patients' images, in a file of their own that can be deleted before a run is shared."""

TABLES: Final = (PAIRS, IMAGES, PREDICTIONS, TRUTH, PICTURES)

WRITING: Final[dict[str, Any]] = {"compression": "zstd", "write_page_checksum": True}
"""How tables are written: options of pyarrow."""


class RunFileError(UserError):
    """A file of a run is missing or cannot be read; `reason` says what is wrong, without the folder."""

    def __init__(self, message: str, exit_status: int = 1, reason: str = "") -> None:
        super().__init__(message, exit_status)
        self.reason = reason


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn errors of reading a run's files into a RunFileError that names the run's folder."""
    try:
        yield
    except FileNotFoundError as error:
        name = Path(error.filename or "file").name
        give = (
            "a run that was made with CaseKeeper among trainer.callbacks, as it is by default"
            if name in (IMAGES, PREDICTIONS, TRUTH, PICTURES)
            else f"a run, which holds its {RESULTS}"
        )
        raise RunFileError(
            f"{folder} is not the folder of a finished run: it has no {name}. Give the folder of {give}.",
            exit_status=2,
            reason=f"unfinished: it has no {name}",
        ) from None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, pa.ArrowException) as error:
        said = f"{type(error).__name__} {error}" if isinstance(error, LookupError) else str(error)
        said = " ".join(said.split())
        raise RunFileError(
            f"{folder}: a file of the run cannot be read: {said}", reason=f"unreadable: {said}"
        ) from None


class Table(pq.ParquetFile):  # type: ignore[misc, unused-ignore]
    """A table whose errors name its file, as pyarrow's own do not: an OSError for what is no table or is damaged."""

    def __init__(self, path: Path) -> None:
        self.file_name = path.name
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        with self._named():
            super().__init__(path, page_checksum_verification=True)

    def read(self, *args: Any, **kwargs: Any) -> pa.Table:
        """Read the table as pyarrow does."""
        with self._named():
            return super().read(*args, **kwargs)

    def read_row_group(self, i: int, *args: Any, **kwargs: Any) -> pa.Table:
        """Read a group of rows as pyarrow does, and see that it has as many as the table says."""
        with self._named():
            table = super().read_row_group(i, *args, **kwargs)
            if table.num_rows != self.metadata.row_group(i).num_rows:
                raise OSError(f"group {i} has {table.num_rows} rows, not as many as its description says")
            return table

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise OSError(f"{self.file_name}: {error}") from error
