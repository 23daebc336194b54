"""What `check` does: look at everything that a run would depend on, without running the model."""

from __future__ import annotations

import importlib.metadata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from packaging.requirements import Requirement
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.utils.data import DataLoader

from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.datasets.downloaded import Source
from xbench.data.decoding import unreadable
from xbench.data.records import Radiograph, Record
from xbench.data.samples import Samples, covers_nothing
from xbench.data.workers.isolation import one_thread
from xbench.findings.published import paper
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models.answering import AnsweringModel
from xbench.models.base import VLM, SaliencyModel
from xbench.runtime.errors import UserError
from xbench.types import Failure, Sample

# What is listed on the screen of one kind; all are in the file.
_LISTED = 20

# Of the contact sheet: pictures, pixels of a side and of a caption, pictures a row.
_MOST = 48
_SIDE = 320
_CAPTION = 40
_COLUMNS = 6
_OUTLINE = (255, 196, 0)


def check(
    data: ChestXrayDataModule | UserError, model: SaliencyModel | UserError, folder: Path, progress: bool
) -> None:
    """Look at files, annotations, checkpoint and versions, and print everything that is wrong with them at once.

    The data module is not set up yet. In place of a part that could not be built stands the reason. The contact sheet
    and the full list of problems go to `folder`. Raise a `UserError` if something is wrong.
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
            counts = [(report.positives[f], report.negatives[f], len(report.regions[f])) for f in data.findings]
            asked = (model.asked_of(*count) for count in counts)
            console.print(f"A run asks {sum(asked):,} questions about {report.images:,} images.")
        if cells := choose_cells(data, report.regions):
            write_contact_sheet(folder / "contact_sheet.png", data, cells)
            console.print(f"Annotations to look at: {folder / 'contact_sheet.png'}", soft_wrap=True)
        problems += report.problems
        if not isinstance(model, UserError):
            problems += check_model(model, data.findings)
    listing = folder / "problems.txt"
    if not problems:
        listing.unlink(missing_ok=True)
        console.print("Nothing is wrong.")
        return
    for problem in problems[:_LISTED]:
        console.print(f"- {problem}", style="red", soft_wrap=True, markup=False)
    folder.mkdir(parents=True, exist_ok=True)
    # On the screen the first of them stand for all.
    named = [f"Image {image} has no file." for image in report.missing]
    listing.write_text("".join(f"{line}\n" for line in (*problems, *named)), encoding="utf-8")
    raise UserError(f"{_count(problems, 'problem')}; all of them are listed in {listing}.")


class Cell(NamedTuple):
    """A picture of the sheet: an image and the finding whose region is outlined."""

    record: Record
    finding: str


@dataclass
class DatasetReport:
    """What is in a dataset and what is wrong with it.

    Attributes:
        annotations: Boxes, polygons and masks in the files.
        regions: Positive images whose annotations could be drawn and cover something.
        problems: What keeps images from being scored, each a sentence.
        missing: Annotated images without a file, of which one of the problems names the first.
        notes: Images by what is odd about them.
    """

    images: int = 0
    positives: Counter[str] = field(default_factory=Counter)
    annotations: Counter[str] = field(default_factory=Counter)
    regions: defaultdict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    negatives: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)


def check_dataset(data: ChestXrayDataModule, preprocessing: Preprocessing | None, progress: bool) -> DatasetReport:
    """Read the annotation files, then decode every image, draw every annotation, and try the preprocessing if given.

    The data module is not set up yet.
    """
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

    for record in records:
        report.positives.update(finding for finding, label in record.labels.items() if label == 1)
        report.negatives.update(finding for finding, label in record.labels.items() if label == 0)
        if isinstance(record.source, Source):
            report.annotations.update(annotation.finding for annotation in record.source.annotations)
    vanished = {covers_nothing(finding) for finding in data.findings}
    notes = list(data.notes)
    present = [record for record in records if not record.missing]
    # Straight from the files: what is prepared was right when it was prepared, which says nothing about the files now.
    steps = preprocessing or Preprocessing(stretch((224, 224)))
    samples = Samples(present, data.load, data.findings, steps, data.grid, data.gamma, timeout=data.timeout)
    loader: DataLoader[Sample | Failure] = DataLoader(
        samples, batch_size=None, num_workers=data.num_workers, worker_init_fn=one_thread
    )
    bar = track(loader, "Reading images", len(present), disable=not progress, transient=True)
    for record, sample in zip(present, bar, strict=True):
        if isinstance(sample, Failure):
            report.problems.append(f"Image {unreadable(sample.image_id, sample.reason)}")
            continue
        notes += sample.notes
        report.problems += [
            f"Image {note.image_id}: {note.text}. Compare its coordinates, or its mask, with the image."
            for note in sample.notes
            if note.text in vanished
        ]
        for query, scored in zip(sample.truth.queries, sample.truth.scored.tolist(), strict=True):
            if scored and query.text is None:
                report.regions[query.name].append(record)
    for note in sorted(notes):
        report.notes.setdefault(note.text, []).append(note.image_id)
    return report


def check_model(model: SaliencyModel, findings: Sequence[str]) -> list[str]:
    """Return what is wrong with a model that could be built: its checkpoint fitted, for otherwise it would not be.

    One behind a server is looked for there, and sent nothing.
    """
    if isinstance(model, AnsweringModel):
        return model.problems(findings)
    if not isinstance(model, VLM):
        return []
    problems = []
    for finding in findings:
        try:
            if not [*model.prompts_of(finding)]:
                problems.append(f"{model.name} has no prompt for {finding}.")
        except UserError as error:
            problems.append(str(error))
    return list(dict.fromkeys(problems))


def check_versions() -> list[str]:
    """Return which installed packages are not those that xbench asks for."""
    problems = []
    for text in importlib.metadata.requires("xbench") or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"The package {requirement} is not installed: pip install '{requirement}'.")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            problems.append(f"{requirement.name} {installed} is installed; xbench needs {requirement}.")
    return problems


def _print_report(data: ChestXrayDataModule, report: DatasetReport, console: Console) -> None:
    """Print the counts beside the published ones, and what is odd."""
    split = paper()["splits"].get(data.name)
    published = paper()["positives"][data.name] if data.split == split else []
    table = Table(title=f"{data.name} ({data.split}), images: {report.images}", title_justify="left", box=None)
    table.add_column("finding", style="bold", no_wrap=True)
    for heading in ("positive", "drawn", "region", "negative", "unknown"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number in range(len(published)):
        table.add_column(f"publ.{number + 1}", justify="right", no_wrap=True, style="dim")
    for finding in data.findings:
        positives, negatives = report.positives[finding], report.negatives[finding]
        drawn = report.annotations[finding], len(report.regions[finding])
        own = [str(n) for n in (positives, *drawn, negatives, report.images - positives - negatives)]
        theirs = ["-" if (n := counted["counts"][finding]) is None else str(n) for counted in published]
        table.add_row(finding, *own, *theirs)
    console.print(table)
    console.print("drawn: boxes, polygons and masks in the files; region: positive images that have one.", style="dim")
    for number, counted in enumerate(published, start=1):
        console.print(f"publ.{number}: positive images, {counted['by']}.", style="dim")
    if published:
        console.print(f"Published are {paper()['remarks'][data.name]}.", style="dim")
    elif split:
        console.print(f"Published counts are of the split {split}, and not shown beside another.", style="dim")
    for text, images in report.notes.items():
        console.print(f"{_count(images, 'image')}: {text} ({_first(images)}).", style="yellow", markup=False)


def _count(images: Sequence[str], noun: str) -> str:
    return f"{len(images)} {noun}{'' if len(images) == 1 else 's'}"


def _first(images: Sequence[str]) -> str:
    return ", ".join(images[:3]) + (" ..." if len(images) > 3 else "")


def choose_cells(data: ChestXrayDataModule, regions: Mapping[str, Sequence[Record]]) -> list[Cell]:
    """Choose up to 48 pictures, every finding in turn, spread evenly over its images with a region."""
    share = -(-_MOST // max(1, sum(bool(records) for records in regions.values())))
    columns = []
    for finding in data.findings:
        records = regions.get(finding, [])
        places = np.linspace(0, len(records) - 1, min(share, len(records))).round().astype(int)
        columns.append([Cell(records[place], finding) for place in places])
    return [cell for row in zip_longest(*columns) for cell in row if cell is not None][:_MOST]


def write_contact_sheet(path: Path, data: ChestXrayDataModule, cells: Sequence[Cell]) -> None:
    """Load the chosen images and write the sheet as PNG; UserError if one cannot be read, or the file not written."""
    columns = min(_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * _SIDE, rows * (_SIDE + _CAPTION)), "black")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for number, cell in enumerate(cells):
        x, y = number % columns * _SIDE, number // columns * (_SIDE + _CAPTION)
        radiograph = data.load(cell.record)
        picture = Image.fromarray(_outline(radiograph, cell.finding))
        sheet.paste(picture, (x + (_SIDE - picture.width) // 2, y + (_SIDE - picture.height) // 2))
        height, width = radiograph.image.shape
        pen.text((x + 6, y + _SIDE + 3), f"{cell.finding}  {width} x {height}", "white", font)
        name = cell.record.image_id
        name = name if len(name) <= 40 else f"{name[:18]}...{name[-18:]}"
        pen.text((x + 6, y + _SIDE + 20), name, "grey", font)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(path)
    except OSError as error:
        raise UserError(f"The contact sheet {path} cannot be written: {error.strerror or error}.") from error


def _outline(radiograph: Radiograph, finding: str) -> NDArray[np.uint8]:
    """The radiograph fitted into a square, in colour, with the region's outline."""
    image = radiograph.image
    scale = (_SIDE - 4) / max(image.shape)
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    small = cv2.cvtColor(cv2.resize(image, size, interpolation=cv2.INTER_AREA), cv2.COLOR_GRAY2RGB)
    covered = cv2.resize(radiograph.regions[finding].astype(np.float32), size, interpolation=cv2.INTER_AREA)
    # Whatever is covered at all, so that the smallest lesion shows.
    contours, _ = cv2.findContours((covered > 0).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(small, contours, -1, _OUTLINE, 1, cv2.LINE_8)
    return small.astype(np.uint8, copy=False)
