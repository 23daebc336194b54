"""Command `check`: examine all inputs of a run without running the model."""

from __future__ import annotations

import importlib.metadata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from packaging.requirements import Requirement
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.utils.data import DataLoader

from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.datasets.downloaded import Source
from xbench.data.records import Radiograph, Record
from xbench.data.samples import Samples
from xbench.data.workers.isolation import one_thread
from xbench.findings.names import canonical
from xbench.findings.published import paper
from xbench.findings.queries import PHRASES
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.regions import covers_nothing
from xbench.models.answering import AnsweringModel
from xbench.models.base import SaliencyModel
from xbench.report.tiles import SIDE, film_tile, sheet, shown
from xbench.runtime.errors import UserError
from xbench.runtime.files import writing
from xbench.types import Failure, Note, Sample

# Problems of one kind on the screen; the file lists all.
_LISTED = 20

# Pictures of the contact sheet, and color of outlines.
_MOST = 48
_OUTLINE = (255, 196, 0)
_Cell = tuple[Record, str]  # with the name of the query


def check(data: ChestXrayDataModule | UserError, model: SaliencyModel | UserError, out: Path, progress: bool) -> None:
    """Check files, annotations, checkpoint and versions, and print all problems at once.

    The data module is not set up yet. A `UserError` replaces a part that could not be built. The contact sheet and the
    list of problems go to `out`. Raises a `UserError` if there are problems.
    """
    console = Console(markup=False, highlight=False)
    problems = check_versions() + [str(part) for part in (model, data) if isinstance(part, UserError)]
    report = DatasetReport()
    if not isinstance(data, UserError):
        preprocessing = None if isinstance(model, UserError) else model.preprocessing
        report = check_dataset(data, preprocessing, progress and console.is_terminal)
        if report.images:
            _print_report(data, report, console)
        if isinstance(model, AnsweringModel) and model.answers:
            counts, regions, phrases = report.counts, report.regions, report.phrases
            asked = (model.asked_of(counts[1][of], counts[0][of], len(regions[of]), phrases) for of in report.groups)
            console.print(f"A run asks {sum(asked):,} questions about {report.images:,} images.")
        if cells := choose_cells(data, report.regions):
            write_contact_sheet(out / "contact_sheet.png", data, cells)
            console.print(f"Annotations for review: {out / 'contact_sheet.png'}", soft_wrap=True)
        problems += report.problems
        if not isinstance(model, UserError):
            problems += model.problems(data.findings)
    listing = out / "problems.txt"
    if not problems:
        listing.unlink(missing_ok=True)
        console.print("No problems found.")
        return
    for problem in problems[:_LISTED]:
        console.print(f"- {problem}", style="red", soft_wrap=True, markup=False)
    out.mkdir(parents=True, exist_ok=True)
    named = [f"Image {image} has no file." for image in report.missing]
    listing.write_text("".join(f"{line}\n" for line in (*problems, *named)), encoding="utf-8")
    raise UserError(f"{_count(problems, 'problem')} found, listed in {listing}.")


@dataclass
class DatasetReport:
    """Content and problems of a dataset.

    `counts` has findings by label 1, 0 and -1, and annotated items by key None, empty if only regions are known.
    `regions` has positive images with a non-empty drawn annotation, and their queries, by finding.
    """

    images: int = 0
    counts: defaultdict[int | None, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    groups: list[str] = field(default_factory=list)  # findings, and the group of phrases without one, if any
    phrases: bool = False  # whether images have phrases of their own, which count for their findings
    regions: defaultdict[str, list[_Cell]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # annotated images without a file
    notes: list[Note] = field(default_factory=list)


def check_dataset(data: ChestXrayDataModule, preprocessing: Preprocessing | None, progress: bool) -> DatasetReport:
    """Read annotations, decode images, draw regions and try the preprocessing; `data` is not set up yet."""
    report = DatasetReport()
    data.notes = []
    try:
        records = data.checked_records(annotated=True)
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.images = len(records)
    if not records:
        report.problems.append(f"{data.name}: the split {data.split!r} holds no image.")
    report.missing = [record.image_id for record in records if record.missing]
    if report.missing:
        said = f"{_count(report.missing, 'annotated image')} without a file ({_first(report.missing)})"
        report.problems.append(f"{said}. {data.where_images_are()}")

    queries = [query for record in records for query in record.looked_for(data.findings)]
    report.groups = [*dict.fromkeys((*data.findings, *(query.finding or PHRASES for query in queries)))]
    report.phrases = any(query.text is not None for query in queries)
    vanished = {covers_nothing(query.name) for query in queries}
    sexes = {(record.patient_id, record.attributes.get("sex")) for record in records}
    for record in records:
        if record.patient_id is not None and {(record.patient_id, sex) for sex in ("F", "M")} <= sexes:
            report.notes.append(Note("patient recorded as both F and M", record.image_id))
        group_of = {query.name: query.finding or PHRASES for query in record.looked_for(data.findings)}
        for name, group in group_of.items():
            report.counts[record.labels.get(name, -1)][group] += 1
        if isinstance(record.source, Source):
            drawn = (annotation.finding for annotation in record.source.annotations)
            report.counts[None].update(group_of[name] for name in drawn if name in group_of)
    report.notes += data.notes
    present = [record for record in records if not record.missing]
    # Bypass prepared images, which may differ from the current files.
    steps = preprocessing or Preprocessing(stretch((224, 224)))
    samples = Samples(present, data.load, data.findings, steps, data.grid, data.gamma, timeout=data.timeout)
    loader: DataLoader[Sample | Failure] = DataLoader(
        samples, batch_size=None, num_workers=data.num_workers, worker_init_fn=one_thread
    )
    bar = track(loader, "Reading images", len(present), disable=not progress, transient=True)
    for record, sample in zip(present, bar, strict=True):
        if isinstance(sample, Failure):
            report.problems.append(f"Image {sample.image_id} cannot be read. {sample.reason}")
            continue
        report.notes += sample.notes
        report.problems += [
            f"Image {note.image_id}: {note.text}. Compare its coordinates or mask with the image."
            for note in sample.notes
            if note.text in vanished
        ]
        truth = sample.truth
        for query, scored, items in zip(truth.queries, truth.scored.tolist(), truth.shapes, strict=True):
            group = query.finding or PHRASES
            if scored:
                report.regions[group].append((record, query.name))
            if not isinstance(record.source, Source):
                report.counts[None][group] += len(items)
    return report


def check_versions() -> list[str]:
    """Return installed packages that do not match xbench's requirements."""
    problems = []
    for requirement in map(Requirement, importlib.metadata.requires("xbench") or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"The package {requirement} is not installed: pip install '{requirement}'.")
        else:
            if not requirement.specifier.contains(installed, prereleases=True):
                problems.append(f"{requirement.name} {installed} is installed; xbench needs {requirement}.")
    return problems


def _print_report(data: ChestXrayDataModule, report: DatasetReport, console: Console) -> None:
    split = paper()["splits"].get(data.name)
    published = paper()["positives"][data.name] if data.split == split else []
    table = Table(title=f"{data.name} ({data.split}), images: {report.images}", title_justify="left", box=None)
    table.add_column("finding", style="bold", no_wrap=True)
    for heading in ("positive", "items", "region", "negative", "unknown"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number in range(len(published)):
        table.add_column(f"publ.{number + 1}", justify="right", no_wrap=True, style="dim")
    for finding in report.groups:
        positives, negatives, unknown, items = (report.counts[label][finding] for label in (1, 0, -1, None))
        known = items if any(report.counts[None].values()) else None
        own = (positives, known, len(report.regions[finding]), negatives, unknown)
        theirs = (counted["counts"][finding] for counted in published)
        table.add_row(finding, *("-" if count is None else str(count) for count in (*own, *theirs)))
    console.print(table)
    what = "phrases" if report.phrases else "images"
    legend = f"items: annotated boxes, polygons and masks (-: not known); region: positive {what} with such an item."
    console.print(legend, style="dim")
    for number, counted in enumerate(published, start=1):
        console.print(f"publ.{number}: positive images, {counted['by']}.", style="dim")
    if published:
        console.print(f"Published counts: {paper()['remarks'][data.name]}.", style="dim")
    elif split:
        console.print(f"Published counts are for the split {split} only.", style="dim")
    for finding in data.findings:
        if (usual := canonical(finding) or finding) != finding:
            console.print(f"{finding} is {usual} in `xbench list findings`: use that name.", style="yellow")
    noted: dict[str, list[str]] = {}
    for note in sorted(report.notes):
        noted.setdefault(note.text, []).append(note.image_id)
    for text, images in noted.items():
        console.print(f"{_count(images, 'image')}: {text} ({_first(images)}).", style="yellow", markup=False)


def _count(images: Sequence[str], noun: str) -> str:
    return f"{len(images)} {noun}{'' if len(images) == 1 else 's'}"


def _first(images: Sequence[str]) -> str:
    return ", ".join(images[:3]) + (" ..." if len(images) > 3 else "")


def choose_cells(data: ChestXrayDataModule, regions: Mapping[str, Sequence[_Cell]]) -> list[_Cell]:
    """Choose up to 48 pictures, alternating findings, spread evenly over images with a region."""
    share = -(-_MOST // max(1, sum(bool(records) for records in regions.values())))
    columns = []
    for finding in (*data.findings, PHRASES):
        pairs = regions.get(finding, [])
        places = np.linspace(0, len(pairs) - 1, min(share, len(pairs))).round().astype(int)
        columns.append([pairs[place] for place in places])
    return [cell for row in zip_longest(*columns) for cell in row if cell is not None][:_MOST]


def write_contact_sheet(path: Path, data: ChestXrayDataModule, cells: Sequence[_Cell]) -> None:
    """Write a contact sheet of the chosen images as PNG."""
    tiles = []
    for record, name in cells:
        radiograph = data.load(record)
        height, width = radiograph.image.shape
        said = {query.name: query.text for query in record.looked_for(data.findings)}.get(name) or name
        said = said if len(said) <= 40 else f"{said[:37]}..."
        tiles.append(film_tile(outlined(radiograph, name), f"{said}  {width} x {height}", record.image_id))
    with writing(f"The contact sheet {path} cannot be written", "Give another --trainer.default_root_dir."):
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet(tiles, data.name).save(path)


def outlined(radiograph: Radiograph, finding: str) -> NDArray[np.uint8]:
    """Return a radiograph in a square (SIDE, SIDE, 3), with the outline of a region."""
    film = cv2.cvtColor(shown(radiograph.image), cv2.COLOR_GRAY2RGB)
    region = radiograph.regions[finding].astype(np.float32)
    covered = cv2.resize(region, film.shape[1::-1], interpolation=cv2.INTER_AREA)
    # Include partly covered pixels, so that the smallest lesion shows.
    contours, _ = cv2.findContours((covered > 0).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(film, contours, -1, _OUTLINE, 1, cv2.LINE_8)
    below, right = SIDE - film.shape[0], SIDE - film.shape[1]
    return np.asarray(cv2.copyMakeBorder(film, 0, below, 0, right, cv2.BORDER_CONSTANT), np.uint8)
