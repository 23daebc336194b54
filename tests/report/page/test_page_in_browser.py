from __future__ import annotations

import shutil
from pathlib import Path

import axe_core_python
import pytest
from intervened import falls, intervene
from playwright.sync_api import expect, sync_playwright
from synthetic import write_run

from xbench.report.page.write import write_page
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.tables.contents import all_tables

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: none of its usual names is on the PATH")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
AXE = Path(axe_core_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 360, "height": 740}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report(three_runs, tmp_path_factory):
    root = tmp_path_factory.mktemp("browser")
    for name, skill in (("kad", 0.5), ("carzero", 0.8)):
        write_run(root, name, "rsna", skill=skill, images=30, findings=("Pneumonia",))
    analysis = analyze(collect([three_runs, root]))
    write_page(analysis, all_tables(analysis), root / "index.html", cases=5)
    return root / "index.html"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page(browser, report):
    """One page for all tests, for it takes seconds to load; each leaves it as it was."""
    context = browser.new_context(viewport=WIDE, color_scheme="light", reduced_motion="reduce")
    opened = context.new_page()
    opened.asked, opened.complaints = [], []

    def refuse(route):
        if route.request.url == report.as_uri():
            route.continue_()
        else:
            opened.asked.append(route.request.url)
            route.abort()

    context.route("**/*", refuse)
    opened.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.goto(report.as_uri())
    opened.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    yield opened
    context.close()


def first_column(page, table):
    return page.eval_on_selector_all(f"#table-{table} tbody tr", "rows => rows.map(row => row.cells[0].textContent)")


def values(page, table, column):
    read = "(rows, column) => rows.map(row => Number(row.cells[column].dataset.value))"
    return page.eval_on_selector_all(f"#table-{table} tbody tr", read, column)


def strip(page):
    return page.locator("#case-strip button").count()


def press(page, target, *keys):
    element = page.locator(target) if isinstance(target, str) else target
    element.focus()
    for key in keys:
        page.keyboard.press(key)
    return element


CLIPPED = """() => [...document.querySelectorAll(
    'h1, h2, .say, .say em, .plain, .n span, .v, .lb, .bar .what, .col caption, .col th span, .keys li, .ruler i, .xt')]
  .filter((part) => part.checkVisibility() && part.getClientRects().length)
  .filter((part) => {
    const box = part.getBoundingClientRect(), fold = part.closest('details:not([open])');
    return !fold && box.width > 2 && (box.left < -0.5 || box.right > innerWidth + 0.5
      || (part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).overflow !== 'visible'));
  }).map((part) => part.outerHTML.slice(0, 120))"""


SCROLLING = """() => [...document.querySelectorAll('div.scroll')]
  .filter((box) => box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1)
  .map((box) => [box.ariaLabel, box.scrollWidth, box.clientWidth])"""


@pytest.mark.parametrize("size", [WIDE, NARROW, PHONE], ids=["1440", "360", "390"])
def test_the_answer_is_on_the_first_screen_and_nothing_is_cut(page, size):
    page.set_viewport_size(size)
    page.evaluate("() => scrollTo(0, 0)")
    for part in (".say", ".ladder tbody tr:last-child", ".share"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= size["height"], f"{part} ends at {box['y'] + box['height']}"
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(SCROLLING) == [], "tables cut no column and no row"
    # Charts follow the size of the window when the browser comes to it.
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=size["width"])
    page.set_viewport_size(WIDE)


def test_charts_have_floors_intervals_and_a_row_for_each_series(page):
    rows = page.locator(".ladder tbody tr")
    assert rows.count() == 3, "all of the first dataset, as CLIP was not run on the second"
    assert page.locator("#ranking .none").all_text_contents() == ["not run"]
    for row in rows.all():
        assert row.locator(".ci").count() == row.locator(".floor").count() == row.locator("svg.sym").count() - 1 == 1
    places = page.evaluate(
        """() => [...document.querySelectorAll('.axis .sym')].map((mark) => {
          const axis = mark.parentElement.getBoundingClientRect(), box = mark.getBoundingClientRect();
          const drawn = (box.left + box.width / 2 - axis.left) / axis.width;
          return [drawn, Number(mark.style.getPropertyValue('--p')) / 100];
        }).filter(([drawn]) => Number.isFinite(drawn) && drawn >= 0)"""
    )
    assert len(places) > 10 and all(abs(drawn - said) < 0.01 for drawn, said in places)


def test_sorting_by_click_and_by_key(page):
    before = first_column(page, "grounding")
    buttons = page.locator("#table-grounding thead button")
    heading = page.locator("#table-grounding thead tr:last-child th").nth(1)
    buttons.nth(1).click()
    found = values(page, "grounding", 1)
    assert heading.get_attribute("aria-sort") == "descending" and found == sorted(found, reverse=True)
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending" and values(page, "grounding", 1) == sorted(found)
    page.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") == "none" and first_column(page, "grounding") == before
    # CLIP was not run on the second dataset: it stays last in either order.
    for _ in range(2):
        buttons.nth(4).click()
        assert first_column(page, "grounding")[-1] == "CLIP"
    buttons.nth(4).click()
    interval = page.locator("#table-grounding .interval").first
    for shown in (False, True):
        press(page, "#table-grounding .show-intervals", "Space")
        assert interval.is_visible() == shown


def test_a_series_is_followed_through_all_charts(page):
    button = press(page, page.locator("#ranking .names button", has_text="KAD"), "Enter")
    assert button.get_attribute("aria-pressed") == "true"
    key = button.get_attribute("data-follow")
    opacity = "(mark) => getComputedStyle(mark).opacity"
    assert page.locator(f".ladder .axis .sym.{key}").evaluate(opacity) == "1"
    others = page.locator(f".axis .sym:not(.{key})")
    assert {others.nth(place).evaluate(opacity) for place in range(3)} == {"0.16"}
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    button.blur()
    assert page.locator("main[data-follow]").count() == 0


def test_filters_of_cases(page):
    everything, reset = strip(page), page.locator("#case-filters button[type=reset]")
    page.locator("#case-dataset").select_option("RSNA Pneumonia")
    assert page.locator("#case-title").text_content() == "Pneumonia, RSNA Pneumonia \u00b7 1 of 5"
    assert page.locator("#case-finding option").all_text_contents() == ["all", "Pneumonia"]
    page.locator("#case-dataset").select_option("")
    page.locator("#case-reason").select_option("Near miss")
    assert 0 < strip(page) < everything and "Near miss" in page.locator("#case-about").text_content()
    page.locator("#case-reason").select_option("")
    counts = page.locator("#case-outcome .n").all_text_contents()
    assert int(counts[0]) == everything == sum(map(int, counts[1:]))
    for label, count in zip(page.locator("#case-outcome label").all(), counts, strict=True):
        label.click()
        assert strip(page) == int(count)
        assert page.locator("#case").is_visible() == (count != "0") == (not page.locator("#case-none").is_visible())
    reset.click()
    page.locator("#case-order").select_option("-1")
    dice = []
    for button in page.locator("#case-strip button").all():
        button.click()
        dice.append(float(page.locator("#case-said").text_content().split("Dice at threshold 0.5: ")[1].rstrip("%.")))
    assert dice == sorted(dice, reverse=True)
    reset.click()
    # The runs of RSNA are of two models; CLIP has the cases of the other dataset alone.
    page.locator("#case-model").select_option("CLIP")
    expect(page.locator("#case-strip button")).to_have_count(5)
    reset.click()
    expect(page.locator("#case-strip button")).to_have_count(everything)


def test_a_case_is_large_with_its_map_and_region(page):
    page.locator("#case-views").scroll_into_view_if_needed()
    sides = [page.locator(f"#case-views .{kind} .view").bounding_box() for kind in ("plain", "mapped", "annotated")]
    assert all(box["width"] > 360 and box["y"] == sides[0]["y"] for box in sides)
    view = page.locator("#case-views .mapped .view")
    painted = """canvas => canvas.width > 1
      && canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"""
    page.wait_for_function(painted, arg=view.locator("canvas").element_handle())
    for switch, layer in (("region", ".region"), ("peak", ".peaks")):
        style = f"element => getComputedStyle(element.querySelector('{layer}')).visibility"
        for shown in ("hidden", "visible"):
            press(page, f"#show-{switch}", "Space")
            assert view.evaluate(style) == shown
    press(page, "#opacity", "Home")
    assert view.locator("canvas").evaluate("canvas => getComputedStyle(canvas).opacity") == "0.1"
    press(page, "#opacity", "End")


def test_cases_by_keyboard_and_by_link(page, report):
    title = page.locator("#case-title")
    total = strip(page)
    press(page, "#case", "ArrowRight", "ArrowRight")
    expect(title).to_contain_text(f"3 of {total}")
    press(page, "#case-next", "Enter", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft")
    expect(title).to_contain_text(f"{total} of {total}")
    assert page.locator("#case-strip [aria-current]").count() == 1
    # In a list of choices the arrows are its own.
    press(page, "#case-finding", "ArrowRight")
    page.locator("#case-filters button[type=reset]").click()
    other = page.locator("#case-others button").first
    name = other.locator("span:not(.view)").text_content()
    page.locator("#case-strip button").nth(1).click()
    shown = page.locator("#case-about").text_content()
    page.locator("#case-others button").first.click()
    assert page.locator("#case-model").input_value() == name
    assert page.locator("#case-about").text_content() == shown
    link = page.locator("#case-link").evaluate("link => link.href")
    page.locator("#case-filters button[type=reset]").click()
    page.locator("#case-outcome label").last.click()
    page.evaluate("address => { location.hash = new URL(address).hash; }", link)
    expect(page.locator("#case-about")).to_have_text(shown)
    assert page.locator("#case-model").input_value() == name
    expect(page.locator("#case")).to_be_focused()
    page.evaluate("() => { location.hash = '#case=nowhere/a/b/c'; }")
    expect(page.locator("#case-none")).to_contain_text("not in this report")
    page.evaluate("() => { location.hash = ''; }")
    page.locator("#case-filters button[type=reset]").click()


def test_arrows_step_through_the_cases_after_a_click_on_a_filter(page):
    title, outcomes = page.locator("#case-title"), page.locator("#case-outcome label:not(.none)")
    page.locator("#case-filters button[type=reset]").click()
    # Also where the click chooses what is chosen already.
    for label in (outcomes.last, outcomes.last, outcomes.first):
        label.click()
        chosen = page.locator("#case-outcome :checked").input_value()
        place, total = map(int, title.text_content().rpartition(" \u00b7 ")[2].split(" of "))
        page.keyboard.press("ArrowRight")
        expect(title).to_contain_text(f" \u00b7 {place % total + 1} of {strip(page)}")
        assert page.locator("#case-outcome :checked").input_value() == chosen
    # By keyboard the filters are changed as ever.
    press(page, page.locator("#case-outcome :checked"), "ArrowDown")
    assert page.locator("#case-outcome :checked").input_value() != chosen
    page.locator("#case-filters button[type=reset]").click()


def test_cases_and_points_open_with_the_run_that_the_answer_is_about(browser, tmp_path):
    for size, skill in ((224, 0.6), (320, 0.9)):
        write_run(tmp_path, "clip", skill=skill, images=40, image_size=size, stamp=f"2026-01-01_00-00-{size % 60:02d}")
    analysis = analyze(collect([tmp_path]))
    write_page(analysis, all_tables(analysis), tmp_path / "index.html", cases=3)
    page = browser.new_page(viewport=WIDE)
    page.goto((tmp_path / "index.html").as_uri())
    assert page.locator("#case-model option").all_text_contents() == ["CLIP (320 px)", "CLIP"]
    assert "Outcomes for CLIP," in page.locator(".lightbox h2").text_content()
    shown = page.locator("#recognition fieldset label:has(:checked)")
    assert shown.text_content() == "CLIP" and page.locator("#recognition .set:visible").count() == 1
    assert page.locator("#case-model").input_value() == "CLIP"
    page.locator("#case-model").select_option("CLIP (320 px)")
    page.locator("#case-filters button[type=reset]").click()
    expect(page.locator("#case-model")).to_have_value("CLIP")
    page.close()


def test_five_cases_are_printed_whole_and_of_every_outcome(page):
    press(page, "#case", "ArrowRight")
    about = page.locator("#case-about").text_content()
    outcomes = page.locator("#case-outcome label:not(.none)").count() - 1
    page.emulate_media(media="print")
    printed = page.locator("#case-paper article")
    assert page.locator("#case").is_hidden() and printed.count() == 5
    assert printed.first.locator("p").first.text_content() == about, "the case in sight comes first"
    said = printed.locator("p:last-child").all_text_contents()
    assert len({("not recognized" not in text, "Peak on the lesion" in text) for text in said}) == outcomes
    sizes = page.locator("#case-paper canvas").evaluate_all("drawn => drawn.map((one) => one.width)")
    assert sizes == [56] * 5, "maps are painted"
    page.emulate_media(media="screen")
    page.locator("#case-filters button[type=reset]").click()


def test_dark_theme_on_the_screen_and_light_on_paper(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    assert press(page, "#theme", "Enter").get_attribute("aria-pressed") == "true"
    assert page.evaluate(ground) != light
    page.emulate_media(media="print")
    assert page.evaluate(ground) == light, "paper is white in either theme"
    page.emulate_media(media="screen")
    page.locator("#theme").click()


def test_without_scripts(browser, report):
    bare = browser.new_page(viewport=NARROW, color_scheme="dark", reduced_motion="reduce", java_script_enabled=False)
    bare.goto(report.as_uri())
    # The style sheet alone follows the system's theme.
    assert bare.locator("body").evaluate("body => getComputedStyle(body).backgroundColor") == "rgb(18, 23, 29)"
    assert bare.locator(".ladder").is_visible() and bare.locator(".matrix, .grid").first.is_visible()
    skip = bare.locator(".skip")
    assert skip.evaluate("link => link.getBoundingClientRect().bottom <= 0")
    bare.keyboard.press("Tab")
    expect(skip).to_be_focused()
    assert skip.evaluate("link => link.getBoundingClientRect().top >= 0")
    bare.keyboard.press("Enter")
    expect(bare.locator("main")).to_be_focused()
    bare.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(page, theme):
    # Three rows of each table stand for all, and charts are as screen readers have them.
    page.evaluate(
        """() => document.querySelectorAll('tbody tr:nth-child(n+4), #case-strip li:nth-child(n+4)')
          .forEach((part) => part.remove())"""
    )
    page.add_script_tag(content=AXE)
    if theme == "dark":
        page.locator("#theme").click()
    # The theme changes nothing but the contrast.
    options = {"resultTypes": ["violations"], **({"runOnly": ["color-contrast"]} if theme == "dark" else {})}
    found = page.evaluate("asked => axe.run(...asked)", ["html", options])
    assert found["passes"]
    assert [(entry["id"], entry["nodes"][0]["html"][:200]) for entry in found["violations"]] == []
    page.keyboard.press("Escape")


def test_interventions_are_on_the_first_screen_and_legible(browser, tmp_path):
    intervene(write_run(tmp_path, "clip", images=120), falls(0, noise=0), ("mean", "blur", "inpaint"))
    analysis = analyze(collect([tmp_path]))
    write_page(analysis, all_tables(analysis), tmp_path / "index.html", cases=1)
    for size, scheme in ((PHONE, "light"), (WIDE, "dark")):
        shown = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        shown.goto((tmp_path / "index.html").as_uri())
        assert "and does not use it." in shown.locator(".say").text_content()
        for part in (".say", ".ladder tbody tr:last-child", ".share"):
            box = shown.locator(part).bounding_box()
            assert box["y"] + box["height"] <= size["height"], part
        assert shown.evaluate(CLIPPED) == [] and shown.locator(".triples figure").count() == 18
        widths = shown.locator(".triples img").evaluate_all("all => all.map((one) => one.clientWidth)")
        assert min(widths) > 90, "films are large enough to see"
        assert shown.evaluate("document.documentElement.scrollWidth") <= size["width"]
        shown.add_script_tag(content=AXE)
        found = shown.evaluate("axe.run('#interventions', {resultTypes: ['violations']})")
        assert [(entry["id"], entry["nodes"][0]["html"][:200]) for entry in found["violations"]] == []
        shown.close()


def test_nothing_was_asked_and_nothing_went_wrong(page):
    # Last, so that it covers everything done above.
    assert page.asked == []
    assert page.complaints == []


def test_a_long_judgement_and_two_tables_side_by_side_fit_the_phone(browser, tmp_path):
    for model in ("clip", "kad"):
        intervene(write_run(tmp_path, model, images=20), falls(0), ("mean",))
    analysis = analyze(collect([tmp_path]))
    write_page(analysis, all_tables(analysis), tmp_path / "index.html", cases=1)
    shown = browser.new_page(viewport=PHONE)
    shown.goto((tmp_path / "index.html").as_uri())
    assert "too few lesions to tell whether they use the lesion" in shown.locator(".say").text_content()
    assert shown.evaluate(CLIPPED) == [] and shown.locator(".by-two").count() == 2
    assert shown.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    shown.close()
