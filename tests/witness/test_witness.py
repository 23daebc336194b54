"""The witness: every number and every visible sentence that come out of stored predictions, compared to the last digit.

Three kinds of predictions on 24 phantoms (maps, boxes, probabilities alone), all drawn here from whole numbers, so that
no processor's convolutions matter, are scored, scored again by every named protocol, and reported. What comes out is
compared with the text files beside this one: `results.json` without its provenance, the numbers of the protocols, the
visible text of the report's page. A change that moves a digit writes them anew, `make witness UPDATE=1`, and says in
CHANGELOG.md by how much and why.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from xbench.cli import main

HERE = Path(__file__).parent
FINDINGS = ("Cardiomegaly", "Nodule", "Pneumothorax", "Pleural Effusion")
IMAGES, SIDE = 24, 64
PHANTOMS = tuple(f"--data.{option}" for option in (f"images={IMAGES}", f"size={SIDE}", "num_workers=0", "cache=false"))
QUIET = tuple(
    f"--trainer.{option}"
    for option in ("accelerator=cpu", "logger=false", "enable_progress_bar=false", "enable_model_summary=false")
)


class Visible(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden and (text := " ".join(data.split())):
            self.lines.append(text)


def leaves(content: Any, place: str = "") -> Iterator[str]:
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else None
    if parts is None:
        yield f"{place} = {json.dumps(content)}"
        return
    if not content:
        yield f"{place} = {json.dumps(content)}"
    if isinstance(content, list) and all(isinstance(one, float | int) for one in content):
        yield f"{place} = {json.dumps(content)}"
        return
    for name, value in parts:
        yield from leaves(value, f"{place} / {name}" if place else str(name))


def write_predictions(folder: Path, ids: list[str], findings: list[str]) -> None:
    """Write maps with probabilities, boxes, and probabilities alone, from whole numbers divided by powers of two."""
    with (folder / "scores.csv").open("w", newline="") as file, (folder / "boxes.csv").open("w", newline="") as drawn:
        scores, boxes = csv.writer(file), csv.writer(drawn)
        scores.writerow(["image", "finding", "probability"])
        boxes.writerow(["image", "finding", "x0", "y0", "x1", "y1", "score"])
        for place, image in enumerate(ids):
            (folder / "maps" / image).mkdir(parents=True)
            for column, finding in enumerate(findings):
                random = np.random.RandomState(100 * place + column)
                scores.writerow([image, finding, random.randint(0, 1024) / 1024])
                # Every fifth map has few values, so that its maximum is tied.
                cells = random.randint(0, 4 if (place + column) % 5 == 0 else 4096, (8, 8))
                np.save(folder / "maps" / image / f"{finding.replace(' ', '_')}.npy", (cells / 4096).astype(np.float32))
                for _ in range(random.randint(0, 3)):
                    x, y, width, height = random.randint(1, 30, 4).tolist()
                    boxes.writerow([image, finding, x, y, x + width, y + height, random.randint(0, 64) / 64])


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("witness")
    quiet = (*QUIET, f"--trainer.default_root_dir={root / 'runs'}")
    assert main(["test", "--config", "whole_image_phantom", *PHANTOMS, *quiet]) == 0
    (first,) = (root / "runs").glob("*/*/results.json")
    rows = pq.read_table(first.parent / "pairs.parquet", columns=["image_id", "finding"]).to_pydict()
    write_predictions(root, [*dict.fromkeys(rows["image_id"])], [*dict.fromkeys(rows["finding"])])
    score = ("score", "--config", "phantom", *PHANTOMS, *quiet, "--name")
    maps, boxes, scores = (str(root / name) for name in ("maps", "boxes.csv", "scores.csv"))
    assert main([*score, "maps", "--predictions", maps, "--scores", scores, "--frame", "whole"]) == 0
    assert main([*score, "boxes", "--predictions", boxes, "--frame", "pixels_sent"]) == 0
    assert main([*score, "table", "--predictions", scores]) == 0
    for run in sorted((root / "runs").glob("*/*/results.json")):
        assert main(["rescore", str(run.parent), "--protocol", "all"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        # Half of the time goes into files of figures, which the page does not show.
        patch.setattr("xbench.report.figures.write.save", lambda figure, path: None)
        assert main(["report", str(root / "runs"), "--out", str(root / "report")]) == 0
    return root


@pytest.mark.parametrize("kind", ["maps", "boxes", "table", "page"])
def test_no_digit_and_no_sentence_moves(kind: str, runs: Path):
    if kind == "page":
        page = Visible()
        page.feed((runs / "report" / "index.html").read_text(encoding="utf-8"))
        # Places, times, the command and the state of the code differ between two runs of the test.
        ours = rf"{re.escape(str(runs))}\S*|\d{{4}}-\d\d-\d\d[ T_]\d\d[:-]\d\d([:-]\d\d)?( UTC)?|xbench \d.*"
        pairs = zip(["", *page.lines], page.lines, strict=False)
        kept = [line for before, line in pairs if before != "Command" and not line.startswith('{ "versions"')]
        lines = [re.sub(ours, "...", line) for line in kept]
    else:
        (run,) = (path.parent for path in runs.glob(f"runs/{kind}_*/*/results.json"))
        results = json.loads((run / "results.json").read_text())
        # Files are compared between runs of one commit, not with those of other versions of libraries.
        del results["provenance"], results["tables"]
        lines = [*leaves(results)]
        for path in sorted((run / "protocols").glob("*.json")):
            protocol = json.loads(path.read_text())
            # The bytes of a table depend on the version of Arrow.
            del protocol["table_sha256"]
            lines += [*leaves(protocol, path.stem)]
    expected = HERE / f"{kind}.txt"
    if os.environ.get("UPDATE"):
        expected.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == expected.read_text(encoding="utf-8").splitlines()
