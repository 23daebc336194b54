"""Tables on disk, each page with a checksum: a bit that a disk or a copy has turned must not become another number.

The description at a file's end has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

__all__ = ["WRITING", "open_table"]

WRITING: Final[dict[str, Any]] = {"compression": "zstd", "write_page_checksum": True}
"""How tables are written: options of pyarrow."""


def open_table(path: Path) -> pq.ParquetFile:
    """Open a table.

    Raises:
        OSError: It cannot be read, or, when that is read, a page is damaged.
        pyarrow.ArrowInvalid: It is no such file.
    """
    return pq.ParquetFile(path, page_checksum_verification=True)
