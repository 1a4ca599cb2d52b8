"""The page in a real browser: it loads, asks nobody, complains of nothing, sorts and filters."""

from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from command_sets import damaged, pets

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
