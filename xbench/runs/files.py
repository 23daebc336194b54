"""Names of the files of a run, and tables on disk.

Each page of a table has a checksum: a bit that a disk or a copy has turned must not become another number. The
description at a file's end has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "CONFIG",
    "CURVES",
    "MAPS",
    "PER_CLASS",
    "PER_IMAGE",
    "PICTURES",
    "REGIONS",
    "RESULTS",
    "WRITING",
    "Table",
]

RESULTS, CONFIG = "results.json", "config.yaml"
"""Written last and first: a folder with a configuration and without results is an unfinished run."""
PER_CLASS, PER_IMAGE, CURVES = "per_class.csv", "per_image.parquet", "curves.parquet"
MAPS, REGIONS, PICTURES = "maps.parquet", "regions.parquet", "pictures.parquet"

WRITING: Final[dict[str, Any]] = {"compression": "zstd", "write_page_checksum": True}
"""How tables are written: options of pyarrow."""


class Table(pq.ParquetFile):
    """A table whose errors name its file, as pyarrow's own do not.

    Attributes:
        file_name: Name of the file.

    Raises:
        OSError: The file cannot be read or is no table; or, later, a page that is read is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.file_name = path.name
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
