"""Make the pictures of README and docs from the runs and the report of `make demo`: needs a Chromium.

    python scripts/screenshots.py runs/report/index.html

The runs lie two folders above the page. Pages change: look at all pictures afterwards.
"""

from __future__ import annotations

import argparse
import io
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from rich.console import Console

from xbench.callbacks.console_summary import _table
from xbench.cli import main as xbench
from xbench.data.phantom import draw_phantom
from xbench.runs.finished import FinishedRun

OUT = Path(__file__).parents[1] / "docs/assets"


def pictures(report: Path, page: Page) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each picture and its PNG."""
    page.goto(report.resolve().as_uri())
    page.wait_for_timeout(1500)
    yield "report", page.screenshot()
    page.goto(f"{report.resolve().as_uri()}#cases")
    page.locator("#cases").scroll_into_view_if_needed()
    page.wait_for_timeout(1500)
    page.locator("#case-outcome label.outside").click()
    page.wait_for_timeout(500)
    yield "case", page.locator("#case").screenshot()

    run = min((report.parents[1] / "demo_phantom").iterdir())
    console = Console(record=True, width=80, file=io.StringIO(), markup=False)
    console.print("$ xbench test --config demo\n", _table(FinishedRun.open(run).results))
    # The style sheet asks another server for its font.
    page.set_content(console.export_svg(title="xbench").replace("@font-face", "@media none"))
    yield "console", page.locator("svg").first.screenshot()

    with tempfile.TemporaryDirectory() as folder:
        xbench(["check", "--config", "demo", f"--trainer.default_root_dir={folder}"])
        (sheet,) = Path(folder).rglob("contact_sheet.png")
        yield "contact-sheet", sheet.read_bytes()

        films = (draw_phantom(0, number, 512, 512) for number in itertools.count())
        film = next(film for film in films if len(film.masks) == 3)
        Image.fromarray(film.image).save(f"{folder}/film.png")
        words = ("--data.root", f"{folder}/film.png", "--data.findings", ",".join(film.masks))
        xbench(["predict", "--config", "demo_folder", *words, f"--trainer.default_root_dir={folder}"])
        (sheet,) = Path(folder).rglob("sheets/*.png")
        yield "overlays", sheet.read_bytes()


def shrink(name: str, png: bytes) -> Image.Image:
    """Return a picture of at most 1,200 pixels a side (films: 860) in 256 colors; of the contact sheet two rows."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if name == "contact-sheet":
        image = image.crop((0, 0, image.width, round(image.width * 0.268)))
    image.thumbnail((860, 860) if name == "overlays" else (1200, 1200))
    return image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.FLOYDSTEINBERG)


def main() -> None:
    """Write the pictures into docs/assets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="index.html of the report of make demo")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pictures")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        programs = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        browser = playwright.chromium.launch(executable_path=next(filter(None, programs)), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 960})
        for name, png in pictures(given.report, page):
            shrink(name, png).save(given.out / f"{name}.png", optimize=True)
            print(given.out / f"{name}.png")


if __name__ == "__main__":
    main()
