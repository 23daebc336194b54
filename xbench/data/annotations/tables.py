"""Read annotation files, CSV and JSON, with clear errors for everything that may be wrong in them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from xbench.runtime.errors import UserError
from xbench.runtime.files import check_readable
from xbench.runtime.strict import check_distinct, decimal, unique_keys

AGAIN = "Use the file as its owners publish it."
"""Default advice about a damaged annotation file."""

# Ten times the largest file of the seven datasets; values may take twenty times their size in memory.
_MAX_BYTES = 2**27
# Nine times the rows of any dataset; reading them takes five seconds.
_MAX_LINES = 1_000_000
# Brackets and colons. The largest file of the seven datasets has room for a million outline points.
_MAX_PARTS = 3_000_000
_number = lru_cache(2**14)(decimal)  # most coordinates occur many times
_HEADERS = {"imageid", "image_id", "id", "image index", "filepath", "path", "patientid", "file_name", "image", "name"}


@dataclass(slots=True)  # frozen dataclasses take three times as long to create, and every box has a row
class Row:
    """A row of a table: line number, 1-based, and stripped values by column; unless `ended`, it may be cut off."""

    dataset: str
    path: Path
    line: int
    values: dict[str, str]
    ended: bool = True
    advice: str = AGAIN

    def __getitem__(self, column: str) -> str:
        """Return a value, stripped; KeyError if the file has no such column."""
        return self.values[column]

    def get(self, column: str) -> str:
        """Return a value, stripped; empty if the file has no such column."""
        return self.values.get(column, "")

    def name(self, column: str) -> str:
        """Return a value; UserError if it is empty."""
        if not self.values[column]:
            raise self.error(f"{column} is empty")
        return self.values[column]

    def number(self, column: str) -> float:
        """Return a value as a finite number; UserError if it is not one."""
        try:
            return _number(self.values[column])
        except ValueError:
            raise self.error(f"{column} is {self.values[column][:40]!r}, not a number") from None

    def flag(self, column: str) -> int | None:
        """Return a label: 1, 0, or None for unknown (empty or -1); UserError for other values."""
        if not self.values[column]:
            return None
        if self.values[column] in ("0", "1"):  # nearly all of them
            return int(self.values[column])
        value = self.number(column)
        if value not in (1, 0, -1):
            raise self.error(f"{column} is {self.values[column]!r}; a label is 1, 0, or -1 for unknown")
        return None if value == -1 else int(value)

    def blamed(self) -> Row:
        """Return a context in which a `UserError` becomes one about this row."""
        # Five times as fast as a generator context manager, and every box enters two.
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError):
            raise self.error(reason(error)) from None

    def error(self, problem: str) -> UserError:
        """Return an error about this row."""
        # A quoted value may hold line breaks or a hundred thousand characters.
        said = " ".join(problem.split())
        said = said if len(said) <= 500 else f"{said[:497]}..."
        return UserError(f"{self.dataset}: {self.path}, line {self.line}: {said}. {self.advice}")


def read_csv(
    dataset: str, path: Path, columns: Sequence[str], header: Sequence[str] | None = None, advice: str = AGAIN
) -> Iterator[Row]:
    """Read a table row by row, skipping empty lines; UserError if it is unreadable, incomplete or cut off.

    Args:
        header: Names by position, for a file whose own header cannot be split at its commas; the first two names must
            match, and rows may lack values after these columns.
    """
    try:
        _check_table(dataset, path, advice)
        with open(path, "rb") as binary:
            binary.seek(max(0, os.path.getsize(path) - 1000))
            rest = binary.read().rstrip(b" \t,")
        ended = not rest or rest.endswith((b"\n", b"\r"))
        with open(path, newline="", encoding="utf-8-sig") as file:
            # Strict, because an unclosed quotation mark would swallow the rest of the file.
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            while names and not names[-1]:
                del names[-1]
            optional: list[str] = []
            if header is not None and names[:2] == [*header[:2]]:
                names, optional = list(header), names[len(header) :]
            if missing := [column for column in columns if column not in names]:
                found = repr(", ".join(names[:20])[:200]) if names else "none"
                expected = f"Expected columns: {', '.join(columns)}"
                raise UserError(f"{dataset}: {path} lacks {', '.join(missing)}. {expected}; found: {found}. {advice}")
            check_distinct(names, "column")
            stripped = ([*map(str.strip, values)] for values in reader)
            filled = ((values, reader.line_num) for values in stripped if any(values))
            width = 0
            all_names = [*names, *optional]
            for (values, line), (after, _) in pairwise(chain(filled, [([], 0)])):
                row = Row(dataset, path, line, dict(zip(all_names, values, strict=False)), ended or bool(after), advice)
                if not row.ended and len(values) < width:
                    raise row.error(f"the file is cut off: {len(values)} values, {width} in the row before")
                width = len(values)
                # Otherwise a row that was cut off would have empty values.
                if len(values) < len(names) or (header is None and any(values[len(names) :])):
                    raise row.error(f"{len(values)} values for the {len(names)} columns {', '.join(names[:20])}")
                yield row
            if not (ended or width):
                raise UserError(f"{dataset}: {path} ends within its first line: it is cut off. {advice}")
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{dataset}: the annotation file {path} cannot be read: {error}. {advice}") from error


def read_json(dataset: str, path: Path, advice: str = AGAIN) -> Any:
    """Read a JSON file; a `UserError` ends with the advice."""
    try:
        check_file(path)
        content = path.read_bytes()
        # An empty list takes thirty times its size in memory. Compressed masks contain a few million brackets.
        if (parts := sum(map(content.count, (b"[", b"{", b":")))) > _MAX_PARTS:
            raise ValueError(f"it has {parts:,} lists and entries; more than {_MAX_PARTS:,} are not read")
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{dataset}: the annotation file {path} cannot be read: {error}. {advice}") from error


def read_image_list(dataset: str, path: Path) -> list[str]:
    """Return the first column of a text or CSV file, without a usual header; UserError if unreadable or empty."""
    try:
        _check_table(dataset, path, AGAIN)
        with open(path, newline="", encoding="utf-8-sig") as file:
            entries = [row[0].strip(" \t\"'") for row in csv.reader(file, skipinitialspace=True) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        advice = "Give a text or CSV file in UTF-8 with an image at the start of each line."
        raise UserError(f"{dataset}: the list of images {path} cannot be read: {error}. {advice}") from error
    if entries and entries[0].casefold() in _HEADERS:
        del entries[0]
    if not any(entries):
        raise UserError(f"{dataset}: the list of images {path} is empty. Name an image at the start of each line.")
    return [entry for entry in entries if entry]


def _check_table(dataset: str, path: Path, advice: str) -> None:
    check_file(path)
    with open(path, "rb") as file:
        lines = sum(part.count(b"\n") for part in iter(lambda: file.read(2**20), b""))
    if lines > _MAX_LINES:
        raise UserError(f"{dataset}: {path} has {lines:,} lines; more than {_MAX_LINES:,} are not read. {advice}")


def reason(error: Exception) -> str:
    """Return an error's message as part of a sentence."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")


def check_file(path: Path) -> None:
    """Raise an OSError for archives, and for devices, pipes and oversized files, which would be read without end."""
    check_readable(path, _MAX_BYTES)
    with open(path, "rb") as file:
        if file.read(4).startswith((b"\x1f\x8b", b"PK\x03\x04")):
            raise OSError("it is packed (gzip or zip): unpack it, and name the file inside")
