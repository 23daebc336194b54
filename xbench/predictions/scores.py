"""Tables of probabilities that were made elsewhere: CSV or parquet, a row a pair or a row an image."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from xbench.predictions.files import named
from xbench.runtime.errors import UserError
from xbench.runtime.strict import decimal

Scores = dict[tuple[str, str], tuple[float, float]]
"""Logit and probability by image and finding, as the file calls them."""

_MOST_ROWS = 2 * 10**7


def read_scores(path: Path) -> Scores:
    """Read a table of probabilities in [0, 1].

    Either a row for each image and finding, with the columns `image`, `finding`, `probability` and, if there are
    official raw scores, `logit` (the probability where there is none); or a row for each image, with `image` and a
    column for each finding. What is empty counts as missing.

    Raises:
        UserError: It cannot be read, names a pair twice, or holds something that is no probability.
    """
    with named(path):
        if path.suffix.lower() == ".parquet":
            file = pq.ParquetFile(path)
            # A damaged file may claim any number.
            if file.metadata.num_rows > _MOST_ROWS:
                raise ValueError(f"it says that it has {file.metadata.num_rows} rows")
            table = file.read()
        else:
            # Names of images that look like numbers keep their zeros.
            texts = dict.fromkeys(("image", "image_id", "finding"), pa.string())
            options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, column_types=texts)
            table = pyarrow.csv.read_csv(path, convert_options=options)
    columns = table.column_names
    image = next((name for name in ("image", "image_id") if name in columns), None)
    if image is None or len({*columns}) < len(columns):
        raise UserError(
            f"{path} has the columns {', '.join(columns)}: one must be called image, and no two alike.", exit_status=2
        )
    names = [None if value is None else str(value) for value in table[image].to_pylist()]
    found: Scores = {}
    if "finding" in columns and "probability" in columns:
        findings = [None if value is None else str(value) for value in table["finding"].to_pylist()]
        probabilities = table["probability"].to_pylist()
        logits = table["logit"].to_pylist() if "logit" in columns else probabilities
        _add(path, found, zip(names, findings, logits, probabilities, strict=True))
    else:
        for finding in columns:
            if finding != image:
                values = table[finding].to_pylist()
                _add(path, found, zip(names, [finding] * len(names), values, values, strict=True))
    return found


def _add(path: Path, found: Scores, rows: Iterable[tuple[str | None, str | None, object, object]]) -> None:
    for image, finding, logit, probability in rows:
        if image is None or finding is None:
            raise UserError(f"{path} has a row without image or finding.", exit_status=2)
        if (image, finding) in found:
            raise UserError(f"{path} has two scores of image {image} and finding {finding}.", exit_status=2)
        if logit is None or probability is None:
            continue
        # As text, for one cell that is not a number makes text of its whole column.
        with suppress(ValueError):
            found[image, finding] = decimal(str(logit)), decimal(str(probability))
        if not 0 <= found.get((image, finding), (0.0, -1.0))[1] <= 1:
            raise UserError(
                f"{path}: image {image}, finding {finding}: {probability!r} with logit {logit!r} is no probability "
                "from 0 to 1.",
                exit_status=2,
            )
