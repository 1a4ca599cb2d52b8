"""The page in a real browser: it loads, asks nobody, complains of nothing, sorts and filters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import h5py
import numpy as np
import pytest
from command_sets import HOSTILE, damaged, grainy, pets
from fakes import paint

from asyncreader.tools.report import gather, page

if chromium.find() is None:
    pytest.skip(
        f"no browser: none of {', '.join(chromium.NAMES)} is installed", allow_module_level=True
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.Page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small set with copies, one colour, and two damaged samples."""
    folder = tmp_path_factory.mktemp("report")
    target = folder / "pets.html"
    facts = gather({"path": damaged(pets(folder), folder / "d.h5", 5, 19)})
    target.write_text(page(facts), encoding="utf-8")
    return target


def names(browser: chromium.Page, table: str, column: int) -> list[str]:
    """The words of a table's column, in the order that is shown, hidden rows left out."""
    found: list[str] = browser.run(
        f"[...document.querySelectorAll('{table} tbody tr')].filter(r => r.offsetParent)"
        f".map(r => r.cells[{column}].innerText.trim())"
    )
    return found


def test_it_loads_and_asks_nobody(browser: chromium.Page, report: Path) -> None:
    """No request but for the page itself, no console message, no broken picture."""
    browser.open(report)
    assert browser.run("document.title") == "d.h5"
    assert browser.run("[...document.images].every(i => i.complete && i.naturalWidth > 0)") is True
    assert browser.run("document.images.length") > 20
    # the style was let in by the policy, too
    assert browser.run("getComputedStyle(document.querySelector('.tiles')).display") == "grid"
    assert browser.requests == []
    assert browser.complaints == []


def test_large_thumbnails_are_shown(browser: chromium.Page, tmp_path: Path) -> None:
    """The browser shows every picture of a page of photographs, in the size that its tag says."""
    target = tmp_path / "grain.html"
    target.write_text(page(gather({"path": grainy(tmp_path)})), encoding="utf-8")
    browser.open(target)
    assert browser.run("document.images.length") == 16
    assert browser.run(
        "[...document.images].every(i => i.complete && i.naturalWidth === +i.getAttribute('width')"
        " && i.naturalHeight === +i.getAttribute('height'))"
    )
    assert browser.complaints == []


def test_the_policy_holds(browser: chromium.Page, report: Path, tmp_path: Path) -> None:
    """What is put into the page afterwards neither runs nor loads: the policy is in force."""
    spoiled = tmp_path / "spoiled.html"
    extra = "<img src='http://localhost:9/x.png'><script>document.title = 'taken'</script></body>"
    spoiled.write_text(report.read_text(encoding="utf-8").replace("</body>", extra), "utf-8")
    browser.open(spoiled)
    assert browser.run("document.title") == "d.h5"
    assert len(browser.complaints) >= 2
    assert all("Content Security Policy" in str(entry) for entry in browser.complaints)


def test_a_click_shows_one_class(browser: chromium.Page, report: Path) -> None:
    """Pressing a class leaves its samples and table rows; pressing again brings all back."""
    browser.open(report)
    seen = "[...document.querySelectorAll('.sheet')].filter(s => s.offsetParent).length"
    assert browser.run(seen) == 3
    assert len(names(browser, "#copies", 1)) == 2
    browser.click("[data-class='1']")
    assert browser.run(seen) == 1
    shown = "[...document.querySelectorAll('figure')].filter(f => f.offsetParent).length"
    assert browser.run(shown) == 8
    assert names(browser, "#copies", 1) == ["2"]
    assert names(browser, "#bad", 2) == []
    assert browser.run("document.querySelector('[data-class=\"1\"]').ariaPressed") == "true"
    assert browser.run("document.getElementById('all').innerText").startswith("only dog")
    browser.click("[data-class='2']")
    assert names(browser, "#bad", 2) == ["eel"]
    browser.click("#all")
    assert browser.run(seen) == 3
    assert names(browser, "#bad", 2) == ["cat", "eel"]
    browser.click("[data-class='0']")
    browser.click("[data-class='0']")
    assert browser.run(seen) == 3
    assert browser.complaints == []


def test_columns_sort(browser: chromium.Page, report: Path) -> None:
    """Numbers sort from the largest down, then up; names from A to Z, then back."""
    browser.open(report)
    first = "#classes th:nth-child(1) button"
    second = "#classes th:nth-child(2) button"
    by_size = ["cat 0", "dog 1", "eel 2"]
    browser.click(second)
    assert names(browser, "#classes", 0) == by_size
    browser.click(second)
    assert names(browser, "#classes", 0) == by_size[::-1]
    assert browser.run("document.querySelector('#classes [aria-sort]').ariaSort") == "ascending"
    browser.click(first)
    assert names(browser, "#classes", 0) == by_size
    assert browser.run("document.querySelectorAll('#classes [aria-sort]').length") == 1
    browser.click("#bad th:nth-child(2)")  # anywhere in the head, not on its word alone
    assert names(browser, "#bad", 1) == ["19", "5"]
    assert browser.complaints == []


@pytest.mark.parametrize("width", [390, 1280])
def test_sizes_stay_on_one_line(browser: chromium.Page, report: Path, width: int) -> None:
    """A picture's width and height are read at one glance, in a narrow column, too."""
    browser.open(report, width)
    heights = "[...document.querySelectorAll('#sizes .one')].map(e => e.getClientRects().length)"
    assert set(browser.run(heights)) == {1}


def test_it_fits_a_phone(browser: chromium.Page, report: Path) -> None:
    """At 360 pixels nothing scrolls sideways, and a finger finds what it can press."""
    browser.open(report, 360, 740)
    assert browser.run("document.documentElement.scrollWidth") == 360
    assert browser.run("innerWidth") == 360
    heights = "[...document.querySelectorAll('.pick, .sort')].map(b => b.offsetHeight)"
    assert (
        min(height for height in browser.run(heights) if height) >= 24
    )  # WCAG 2.2, target size (minimum)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_can_be_read(browser: chromium.Page, report: Path, dark: bool) -> None:
    """The page follows the system's scheme, and its words stand out from the ground by 4.5."""
    browser.open(report, dark=dark)
    colours = browser.run(
        "['body', '.quiet', '.pick', '.ok .mark', '.look .mark', '.bad .mark'].map(q => "
        "getComputedStyle(document.querySelector(q)).color).concat("
        "getComputedStyle(document.body).backgroundColor)"
    )

    def light(colour: str) -> float:  # WCAG 2, relative luminance
        parts = np.array([float(n) for n in colour[4:-1].split(",")]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722)) + 0.05

    *words, ground = map(light, colours)
    assert (ground < 0.1) is dark
    for word in words:
        assert max(word, ground) / min(word, ground) >= 4.5


@pytest.mark.slow
def test_many_hostile_classes(browser: chromium.Page, tmp_path: Path) -> None:
    """1,000 classes can be searched, and their names stay text."""
    classes = [*HOSTILE, *(f"n{number:04}" for number in range(1000 - len(HOSTILE)))]
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["data"], file["labels"] = paint(1000, (8, 8, 3)), np.arange(1000)
    facts = gather({"path": tmp_path / "f.h5"})
    named = [
        group._replace(tally=group.tally._replace(name=name))
        for group, name in zip(facts.groups, classes, strict=True)
    ]
    target = tmp_path / "many.html"
    changed = type(facts)(**{**vars(facts), "groups": tuple(named)})
    target.write_text(page(changed), encoding="utf-8")
    browser.open(target, 360, 740)
    assert browser.run("document.documentElement.scrollWidth") == 360
    assert browser.run("document.querySelectorAll('.sheet').length") == 1000
    assert len(names(browser, "#classes", 0)) == 1000
    browser.run("document.getElementById('find').focus()")
    browser.call("Input.insertText", text="ONERROR")
    assert names(browser, "#classes", 0) == [f"{HOSTILE[0]} 0"]
    assert browser.requests == []
    assert browser.complaints == []
