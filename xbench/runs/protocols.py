"""Protocols on a stored run: from predictions to tables of pairs, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.geometry.location import LungField
from xbench.runs.files import MENTIONS, READ_TEXTS, WRITING, reading
from xbench.runs.files import Table as TableFile
from xbench.runs.finished import FinishedRun
from xbench.runs.images import SavedImage, no_maps
from xbench.runs.words import FIELD, Words
from xbench.runtime.digests import file_sha256
from xbench.runtime.files import atomic_writer, write_whole
from xbench.scoring.protocols import PROTOCOLS
from xbench.scoring.protocols.base import PairTruth, PairView, RunView, Table

FOLDER = "protocols"  # results of `rescore --protocol`
VOCABULARY = "words.yaml"
"""The user's own vocabulary in that folder."""
_Pair = tuple[dict[str, Any], PairView, PairTruth]  # columns of every protocol

# The empty region of all other pairs; on native grids it has millions of pixels.
_nowhere: Callable[..., Any] = lru_cache(maxsize=1)(np.zeros)


def run_view(run: FinishedRun) -> RunView:
    """Return the properties that decide which protocols can score a run."""
    shows = set() if np.isnan(run.image_scores.probabilities).all() else {"score"}
    shows |= {"words"} if run.texts else set()
    if not run.results.answered:
        return RunView(run.folder, frozenset(shows | ({"map"} if run.draws_maps else set())), run.map_scale or "none")
    located = run.located
    shows |= {run.results.answered} & {"boxes"}
    shows |= {"points"} if any(answer.points and not answer.boxes for answer in located) else set()
    unranked = (answer for answer in located if None in (answer.confidence or ()))
    first = next((f"a box of {answer.finding} on {answer.image_id}" for answer in unranked), "")
    return RunView(run.folder, frozenset(shows), unranked=first)


def score_images(run: FinishedRun, names: Sequence[str], images: Sequence[SavedImage]) -> dict[str, Table]:
    """Return the tables of pairs of saved images, by protocol with any pair."""
    return _tables(names, _pairs_of_maps(run, names, images))


def score_without_maps(run: FinishedRun, names: Sequence[str], words: Words) -> dict[str, Table]:
    """Return the tables of pairs of protocols for boxes, probabilities or words."""
    of_words = ((_about(run, row, at) | lungs, view, truth) for row, at, lungs, view, truth in words.pairs())
    pairs = {"score": _pairs_of_scores, "words": lambda _: of_words, "": _pairs_of_answers}
    kinds = {name: next((kind for kind in pairs if kind in PROTOCOLS[name].takes), "") for name in names}
    parts = ((of, [name for name in names if kinds[name] == kind]) for kind, of in pairs.items())
    return {name: table for of, some in parts if some for name, table in _tables(some, of(run)).items()}


def _tables(names: Sequence[str], pairs: Iterable[_Pair]) -> dict[str, Table]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for about, prediction, truth in pairs:
        scored = bool(truth.region.any()) or len(truth.boxes) > 0
        for protocol in (PROTOCOLS[name] for name in names):
            if (scored or protocol.negatives) and (values := protocol.measure(prediction, truth)) is not None:
                values = protocol.missed(values, truth.label == 1) if prediction.missing else values
                rows[protocol.name].append(about | values)
    tables: dict[str, Table] = {}
    for name, of_protocol in ((name, part) for name, part in rows.items() if part):
        columns = {key: [row[key] for row in of_protocol] for key in of_protocol[0]}
        # Lists vary with the number of detections.
        tables[name] = {
            key: np.fromiter(values, object) if isinstance(values[0], list) else np.array(values)
            for key, values in columns.items()
        }
    return tables


def _about(run: FinishedRun, row: int, column: int) -> dict[str, Any]:
    scores = run.image_scores
    chance = float(scores.region_area[row, column]) if scores.scored[row, column] else 0.0
    about = {"index": int(scores.index[row]), "image_id": scores.image_ids[row], "column": column}
    numbers = {"label": int(scores.labels[row, column]), "probability": float(scores.probabilities[row, column])}
    return about | numbers | {"chance": chance}


def _pairs_of_maps(run: FinishedRun, names: Sequence[str], images: Sequence[SavedImage]) -> Iterator[_Pair]:
    rules, scale = run.rules, run.map_scale or "none"
    sigma = (run.results.provenance.get("model") or {}).get("map_sigma", 0.0)
    negatives = any(PROTOCOLS[name].negatives for name in names)
    column_of = {finding: column for column, finding in enumerate(run.results.findings)}
    for image in images:
        if image.saliency is None:
            continue
        row, missing = run.row_of[image.image_id], no_maps(image.saliency)
        size = image.image_size if rules.grid == "native" else rules.grid
        # No protocol scores phrases: one finding may have several.
        for place, query in enumerate(image.queries):
            if (column := column_of.get(query.name)) is None:
                continue
            label, scored = int(run.image_scores.labels[row, column]), place in image.scored
            if not scored and (label < 0 or not negatives):
                continue
            region = image.regions[place].at(rules.gamma) if scored else _nowhere(size or (0, 0), np.bool_)
            cells = np.nan_to_num(image.saliency[place])
            prediction = PairView(cells, image.view, scale, rules.upsampling, sigma, bool(missing[place]))
            truth = PairTruth(label, region, image.instances.get(place, ()), rules.gamma)
            yield _about(run, row, column), prediction, truth


def _pairs_of_answers(run: FinishedRun) -> Iterator[_Pair]:
    column_of = {finding: column for column, finding in enumerate(run.results.findings)}
    located = [answer for answer in run.located if answer.finding in column_of]
    places = [(run.row_of[answer.image_id], column_of[answer.finding], answer) for answer in located]
    for row, column, answer in sorted(places, key=lambda place: place[:2]):
        label = int(run.image_scores.labels[row, column])
        if not answer.annotated and label != 0:
            continue
        boxes, true = (np.array(of or (), np.float64).reshape(-1, 4) for of in (answer.boxes, answer.annotated))
        # Boxes without a confidence cannot be ranked.
        confidence = np.array([np.nan if one is None else one for one in answer.confidence or ()])
        truth = PairTruth(label, boxes=true, separate=not answer.annotated or bool(answer.one_by_one))
        yield _about(run, row, column), PairView(boxes=boxes, confidence=confidence), truth


def _pairs_of_scores(run: FinishedRun) -> Iterator[_Pair]:
    scores = run.image_scores
    for row, column in np.argwhere((scores.labels >= 0) & ~np.isnan(scores.probabilities)).tolist():
        yield _about(run, row, column), PairView(), PairTruth(int(scores.labels[row, column]))


def is_native(run: FinishedRun) -> bool:
    """Return whether a run was scored on native grids."""
    return (run.results.provenance.get("data") or {}).get("grid") == "native"


def check_protocol(run: FinishedRun, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, stored and derived value of each number of a protocol."""
    place, findings, scores = f"{FOLDER}/{name}", run.results.findings, run.image_scores
    stored, table = read_protocol(run.folder, name), read_protocol_pairs(run.folder, name)
    rows = np.array([run.row_of.get(image_id, -1) for image_id in table["image_id"]], np.int64)
    known = (rows >= 0) & (table["column"] >= 0) & (table["column"] < len(findings)) & (name in PROTOCOLS)
    yield f"{place}.parquet / pairs of the run", int(known.sum()), len(rows)
    yield f"{place}.parquet / SHA-256", stored.pop("table_sha256", None), file_sha256(run.folder / f"{place}.parquet")
    if not known.all():
        return
    place_of, kept = (rows, table["column"]), dict(table)
    of_run: Table = {"index": scores.index[rows], "label": scores.labels[place_of]}
    of_run["probability"] = scores.probabilities[place_of]
    of_run["chance"] = np.where(scores.scored, scores.region_area, 0)[place_of]
    differ = {key: _different(kept[key], values) for key, values in of_run.items()}
    if not any(differ.values()):
        with reading(run.folder):
            content = PROTOCOLS[name].results(table, findings, is_native(run), stored["tuned"])
        if "words" in PROTOCOLS[name].takes:
            with reading(run.folder):
                words = _stored_words(run, stored["settings"], table)
                content |= words.about() | {"tables": {of: file_sha256(run.folder / of) for of in words.tables()}}
                for file, texts in words.tables().items():
                    yield file, TableFile(run.folder / file).read().to_pylist(), texts.to_pylist()
                again = score_without_maps(run, [name], words).get(name, {"index": rows[:0]})
                yield f"{place}.parquet / rows", len(rows), (count := len(again["index"]))
                differ |= {key: _different(kept[key], of) for key, of in again.items() if count == len(rows)}
        differ |= {key: _different(kept[key], table[key]) for key in table if table[key] is not kept.get(key)}
        yield f"{place}.json", stored, content
    for key, number in differ.items():
        yield f"{place}.parquet / {key} / pairs that do not follow", number, 0


def _different(first: NDArray[Any], second: NDArray[Any]) -> int:
    return int((~((first == second) | ((first != first) & (second != second)))).sum())


def _stored_words(run: FinishedRun, settings: Mapping[str, Any], table: Table) -> Words:
    fields = zip(table["image_id"], *(table[name] for name in FIELD), strict=True)
    lungs = {image_id: LungField(*of) for image_id, *of in fields if settings["lungs"] == "given"}
    file = run.folder / FOLDER / VOCABULARY
    return Words(run, file if file.exists() else None, lungs, settings["strict"], settings["of_maps"])


def write_words(words: Words) -> dict[str, Any]:
    """Write texts, mentions and the user's own vocabulary; return the settings and digests of tables."""
    run, digests = words.run.folder, {}
    own = words.file and words.file.read_bytes()
    for path in (run / READ_TEXTS, run / MENTIONS, run / FOLDER / VOCABULARY):
        path.unlink(missing_ok=True)
    if own:
        (run / FOLDER).mkdir(exist_ok=True)
        write_whole(run / FOLDER / VOCABULARY, own)
    for name, table in words.tables().items():
        with atomic_writer(run / name) as file:
            pq.write_table(table, file, **WRITING)
        digests[name] = file_sha256(run / name)
    return words.about() | {"tables": digests}


def write_protocol(run: Path, name: str, numbers: Mapping[str, Any], table: Mapping[str, NDArray[Any]]) -> Path:
    """Write a protocol's table of pairs, with null for NaN, and its numbers; return the latter's path."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    columns = {}
    for key, values in table.items():
        if values.ndim == 2:
            columns[key] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        elif values.dtype == object and isinstance(values[0], list):
            # The type of empty lists alone is float64.
            first = next((value for one in values for value in one), 0.0)
            columns[key] = pa.array(values.tolist(), pa.list_(pa.array([first]).type))
        else:
            columns[key] = pa.array(values, from_pandas=values.dtype.kind == "f")
    with atomic_writer(folder / f"{name}.parquet") as file:
        pq.write_table(pa.table(columns), file, **WRITING)
    content = {**numbers, "table_sha256": file_sha256(folder / f"{name}.parquet")}
    path = folder / f"{name}.json"
    write_whole(path, f"{json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)}\n")
    return path


def stored_protocols(run: Path) -> list[str]:
    """Return the names of the protocols that scored a run."""
    return sorted(path.stem for path in (run / FOLDER).glob("*.json"))


def read_protocol(run: Path, name: str) -> dict[str, Any]:
    """Read the numbers of a protocol, or raise a UserError."""
    with reading(run):
        content = json.loads((run / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("schema") != 1 or content.get("protocol") != name:
            raise ValueError(f"{FOLDER}/{name}.json holds what no run writes")
        return content


def read_protocol_pairs(run: Path, name: str) -> Table:
    """Read a protocol's table of pairs by column, with NaN for null, or raise a UserError."""
    with reading(run):
        table = TableFile(run / FOLDER / f"{name}.parquet").read()
        columns = {}
        for key in table.column_names:
            values = table[key].combine_chunks()
            if pa.types.is_fixed_size_list(values.type):
                columns[key] = np.asarray(values.flatten()).reshape(len(values), -1)
            else:
                columns[key] = values.to_numpy(zero_copy_only=False)
        return columns
