"""The page about a set: its facts are right and bounded, and no name can break it."""

import base64
import hashlib
import io
import json
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_sets import HOSTILE, damaged, grainy, pets, run, save_images
from fakes import damage, encoded, hdf5, paint
from PIL import Image

import converters
from asyncreader import FormatError, ParamsError
from asyncreader.tools.describe import count_labels
from asyncreader.tools.look import ImageLooker
from asyncreader.tools.report import LONGEST, Facts, gather, looking, page
from asyncreader.tools.report.facts import histogram, ratios


def states(facts: Facts) -> dict[str, str]:
    return {check.name: check.state for check in facts.checks}


class Parsed(HTMLParser):
    """Tags with their attributes, and the text outside style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.sources: dict[str, list[str]] = {"style": [], "script": []}
        self._inside: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in self.sources else None

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text.append(data)
        else:
            self.sources[self._inside].append(data)

    def every(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)


@pytest.fixture(scope="module")
def set_of_pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets(tmp_path_factory.mktemp("pets"))


# -- facts ---------------------------------------------------------------------------------------


def test_duplicates_and_single_colours_are_found(set_of_pets: Path) -> None:
    """Copies, copies with different labels, and pictures of one colour: each by record number."""
    facts = gather({"path": set_of_pets})
    assert (facts.count, facts.looked) == (24, 24)
    assert [(g.tally.name, g.tally.samples, len(g.thumbs)) for g in facts.groups] == [
        ("cat", 10, 10),
        ("dog", 8, 8),
        ("eel", 6, 6),
    ]
    copies = [(c.samples, c.labels, [row.record for row in c.rows]) for c in facts.copies]
    assert copies == [(2, 2, [4, 12]), (3, 1, [1, 2, 3])]
    assert (facts.extra_copies, facts.compared) == (3, 24)
    assert (facts.copy_groups, facts.torn_groups) == (2, 1)
    assert facts.copies[0].rows[1].path == "dog/12.png"
    assert [row.record for row in facts.flat] == [20]
    assert facts.bad == ()
    assert facts.sizes == [((30, 40), 18), ((40, 30), 6)]  # height first
    with h5py.File(set_of_pets) as file:
        np.testing.assert_array_equal(facts.bytes_each, np.diff(file["offsets"][:]))
    assert ratios(facts.widths, facts.heights) == [("3:4", 6), ("4:3", 18)]
    assert states(facts) == {
        "Structure": "ok",
        "Checksums": "ok",
        "Images": "ok",
        "Duplicates": "bad",
        "Content": "look",
        "Classes": "ok",
    }
    assert facts.verdict == "24 of 24 samples: 4 checks passed, 2 to look at"


def test_copies_are_counted_beyond_those_listed(tmp_path: Path) -> None:
    """Groups whose labels differ come first, and all are counted, though a hundred are listed."""
    pixels = np.random.default_rng(0).integers(0, 256, (150, 8, 8, 3), np.uint8)
    data = np.concatenate([pixels, pixels, pixels[:30]])
    labels = np.zeros((330, 2))
    labels[150:270, 1] = 1  # of 120 pictures the second copy says otherwise
    labels[[140, 290], 0] = np.nan  # which is no difference
    facts = gather({"path": hdf5(tmp_path / "twice.h5", data=data, labels=labels)})
    assert (facts.extra_copies, facts.copy_groups, facts.torn_groups) == (180, 150, 120)
    assert len(facts.copies) == 100
    assert all(group.labels == 2 for group in facts.copies)
    words = page(facts)
    assert "in 120 groups copies carry different labels" in words
    assert "100 of 150 groups, those whose labels differ first:" in words


def test_what_cannot_be_shown_has_not_passed(set_of_pets: Path, tmp_path: Path) -> None:
    """Changed bytes are listed with their record and origin, and the page is made all the same. A
    check of pictures passes only if every one that was looked at can be shown, and a check of what
    is in them only if there is one."""
    facts = gather({"path": damaged(set_of_pets, tmp_path / "d.h5", 5, 19)})
    assert facts.bad_count == 2
    assert [(row.record, row.words, row.path) for row in facts.bad] == [
        (5, "cat", "cat/05.png"),
        (19, "eel", "eel/19.png"),
    ]
    found = {check.name: check for check in facts.checks}
    words = "2 of 24 samples cannot be shown"
    assert (found["Images"].state, found["Images"].words) == ("bad", words)
    assert found["Checksums"].state == "bad"
    assert "match their checksums" in page(facts)
    assert facts.verdict == "24 of 24 samples: 2 checks passed, 4 to look at"
    none = gather({"path": damaged(set_of_pets, tmp_path / "n.h5", *range(24))})
    assert (none.bad_count, len(none.bytes_each)) == (24, 0)
    passed = {name for name, state in states(none).items() if state == "ok"}
    assert passed == {"Structure", "Classes"}


@pytest.mark.parametrize("bad", [[1], [0, 1, 2]])
def test_what_cannot_be_decoded_is_a_fact(tmp_path: Path, bad: list[int]) -> None:
    """Bytes that are no picture, packed as they are elsewhere, are bad but not wrong bytes."""
    good = encoded(np.zeros((8, 8, 3), np.uint8))
    data = [good[:-20] if n in bad else good for n in range(3)]
    facts = gather({"path": hdf5(tmp_path / "f.h5", data=data)})
    assert [row.record for row in facts.bad] == bad
    found = states(facts)
    assert (found["Checksums"], found["Images"]) == ("look", "bad")
    if len(bad) == 1:
        assert [[row.record for row in c.rows] for c in facts.copies] == [[0, 2]]
    else:
        assert found["Duplicates"] == "look"


@pytest.mark.parametrize("limit", [1, 2, 5, 23])
def test_only_so_many_are_looked_at(limit: int, set_of_pets: Path, monkeypatch: Any) -> None:
    """With a limit exactly so many samples are read, those of thumbnails and of the table of
    duplicates included; which, depends on the seed only."""
    read: set[int] = set()
    look = ImageLooker.look

    def noted(self: ImageLooker, record: int, side: int) -> Any:
        read.add(record)
        return look(self, record, side)

    monkeypatch.setattr(ImageLooker, "look", noted)
    seen: list[tuple[int, int]] = []
    facts = gather(
        {"path": set_of_pets}, limit=limit, progress=lambda done, total: seen.append((done, total))
    )
    assert facts.looked == len(read) == len(facts.bytes_each) == limit
    assert seen[-1] == (limit, limit)
    assert 1 <= sum(len(group.thumbs) for group in facts.groups) <= limit
    assert facts.compared == 24  # recorded checksums cost no reading
    text = " ".join(Parsed(page(facts)).text)
    assert f"{limit} of 24 samples were looked at" in text
    first = set(read)
    read.clear()
    gather({"path": set_of_pets}, limit=limit)
    assert read == first


def test_a_set_that_is_larger_than_memory(tmp_path: Path) -> None:
    """What is drawn of 200 million samples takes no table of them."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # its place in a sparse file
        plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((200_000_000, 2))
        h5py.h5d.create(file.id, b"data", h5py.h5t.STD_U8LE, space, plan)
    tracemalloc.start()
    facts = gather({"path": tmp_path / "f.h5"}, limit=5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (facts.count, facts.looked) == (200_000_000, 5)
    assert peak < 100_000_000


def test_duplicates_of_a_large_set_are_shown(tmp_path: Path) -> None:
    """Of a set that is looked at in part, recorded duplicates still have their pictures."""
    pixels = np.random.default_rng(0).integers(0, 256, (400, 8, 8, 3), np.uint8)
    pixels[390:] = pixels[:10]
    save_images(tmp_path / "in", {f"{n % 2}/{n:03}.png": one for n, one in enumerate(pixels)})
    converters.convert(tmp_path / "in", tmp_path / "many.h5", encoding="original")
    facts = gather({"path": tmp_path / "many.h5"}, limit=60)
    assert facts.looked == 60
    assert [group.rows[0].thumb is not None for group in facts.copies] == [True] * 10


def test_thumbnails_are_bounded(set_of_pets: Path, monkeypatch: Any) -> None:
    """So many thumbnails in all and of a class, and the page says how many classes have none."""
    monkeypatch.setattr(looking, "THUMBS", 2)
    monkeypatch.setattr(looking, "OF_A_CLASS", 1)
    facts = gather({"path": set_of_pets}, limit=5)
    assert [len(group.thumbs) for group in facts.groups] == [1, 1, 0]
    assert "1 class has no image here." in " ".join(Parsed(page(facts)).text)
    monkeypatch.setattr(looking, "IN_FULL", 10)
    bounded = gather({"path": set_of_pets}, limit=5)
    assert bounded.compared == bounded.looked == 5


@pytest.mark.parametrize(
    ("labels", "classed"),
    [
        (np.arange(12) % 3, True),
        (np.array([True, False] * 6), True),
        (np.arange(12) * 10**12, False),
        (np.linspace(0, 1, 12), False),
        (np.full(12, np.nan), False),
        (np.arange(24).reshape(12, 2), False),
        (np.zeros((12, 2, 2), "f4"), False),
        (None, False),
    ],
    ids=lambda value: "none" if value is None else f"{getattr(value, 'dtype', value)}",
)
def test_labels_of_any_kind(labels: Any, classed: bool, tmp_path: Path) -> None:
    """Labels that are no classes, several a sample, or none: the page shows what there is."""
    more = {} if labels is None else {"labels": labels}
    facts = gather({"path": hdf5(tmp_path / "f.h5", data=paint(12, (9, 8, 3)), **more)})
    assert facts.classed is classed
    assert sum(len(group.thumbs) for group in facts.groups) == 12
    headings = re.findall(r"<h3>label( \d)?</h3>", page(facts))
    assert len(headings) == (0 if labels is None or classed else labels.size // 12)


def test_empty_and_uneven_classes_want_a_look(tmp_path: Path) -> None:
    """A class without samples, or eleven times as many in one as in another, is said."""
    assert count_labels(np.array([0, 2, 2]), ("a", "b", "c")) == [
        (0, "a", 1),
        (1, "b", 0),
        (2, "c", 2),
    ]
    for labels, state in (([0] * 11 + [1], "look"), ([0] * 10 + [1], "ok")):
        path = hdf5(tmp_path / f"{state}.h5", data=paint(len(labels), (9, 8, 3)), labels=labels)
        assert states(gather({"path": path}))["Classes"] == state


def test_single_numbers_are_refused(tmp_path: Path) -> None:
    """They have no page; nor has a part of a set."""
    path = hdf5(tmp_path / "f.h5", data=np.zeros(4))
    with pytest.raises(FormatError, match="single numbers"):
        gather({"path": path})
    with pytest.raises(ParamsError, match="whole dataset"):
        gather({"path": path, "subset": slice(2)})


def test_samples_of_different_length(tmp_path: Path) -> None:
    """They are drawn as lines on one scale, with their lengths; equal, empty and damaged ones are
    found, and a page shows all that."""
    rows = [np.arange(n, dtype="f4") for n in (5, 0, 9, 9, 700_000, 3)]
    rows[5] -= 77_777
    path = tmp_path / "rows.h5"
    with converters.Writer(path, variable_length=True) as writer:
        for number, row in enumerate(rows):
            writer.add(row, number % 2, path=f"r/{number}")
    damage(path, rows[5].tobytes())
    facts = gather({"path": path})
    assert (facts.shape, facts.lengths.tolist()) == ("any length", [5, 0, 9, 9, 700_000])
    assert facts.bytes_each.tolist() == [20, 0, 36, 36, 2_800_000]
    assert [copies.rows[0].record for copies in facts.copies] == [2]
    assert [(row.record, row.path) for row in facts.bad] == [(5, "r/5")]
    assert facts.notes == ("data: lines from 0 to 7e+05",)
    assert set(states(facts)) == {*("Structure", "Checksums", "Samples", "Duplicates", "Classes")}
    assert [len(group.thumbs) for group in facts.groups] == [3, 2]
    text = page(facts)
    assert "any length" in "".join(Parsed(text).text)
    assert json.dumps(facts.to_dict()["lengths"]) == (
        '{"min": 0, "median": 9.0, "max": 700000, "mean": 140004.6}'
    )


@pytest.mark.parametrize(
    ("params", "count", "shape", "lengths"),
    [
        ({"data_field": "actions"}, 15, "3", []),
        ({"data_field": "actions", "window": 2}, 12, "2 x 3", []),
        ({"data_field": ["actions", "done"], "window": "episode"}, 3, "any length x 3", [4, 5, 6]),
        ({"data_field": "scan", "episodes": "none", "patch": (2, 4, 4)}, 2, "2 x 4 x 4", []),
    ],
)
def test_samples_that_are_no_images(
    tmp_path: Path, params: dict[str, Any], count: int, shape: str, lengths: list[int]
) -> None:
    """A page shows rows, windows, whole episodes and patches as a sheet does, with their labels."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for number in range(3):
            rows = np.full((4 + number, 3), number, "f4")
            file[f"data/demo_{number}/actions"] = rows + np.arange(4 + number)[:, None]
            file[f"data/demo_{number}/done"] = np.arange(4 + number) % 2
        file["scan"] = np.random.default_rng(0).random((2, 4, 8, 8))
    given = {name: value for name, value in params.items() if value != "none"}
    labels = "done" if given["data_field"] == "actions" else None
    facts = gather({"path": tmp_path / "set.h5", "labels_field": labels, **given})
    assert (facts.count, facts.shape, facts.lengths.tolist()) == (count, shape, lengths)
    assert sum(len(group.thumbs) for group in facts.groups) == count
    assert facts.classed == (labels is not None)
    assert facts.heights.size == 0
    assert "Image size" not in page(facts)


# -- charts --------------------------------------------------------------------------------------


def test_shares_are_of_all_samples(tmp_path: Path) -> None:
    """A share in a table is of all samples, those of rows that are left out included."""
    save_images(tmp_path / "in", {f"{n}.png": Image.new("RGB", (10 + n, 9)) for n in range(100)})
    converters.convert(tmp_path / "in", tmp_path / "s.h5", encoding="original", no_labels=True)
    made = page(gather({"path": tmp_path / "s.h5"}))
    (table,) = re.findall("Height \u00d7 width.*?</table>", made, re.DOTALL)
    assert re.findall(r"[\d.]+%", table) == ["1.0%"] * 50


def test_histograms_hold_every_value() -> None:
    """The bars of a chart add up to the values given, whatever their spread."""
    rng = np.random.default_rng(0)
    for values in (
        rng.normal(size=500),
        rng.integers(0, 5, 300),
        10 ** rng.uniform(0, 9, 200),
        np.array([1.0, np.nan, 2.0, np.inf]),
        np.array([-5, 10**15]),
        np.array([0.1, 0.1 + 2e-17, 0.2]),
    ):
        chart = histogram(values, "x")
        assert sum(bar.values for bar in chart.bars) == chart.values == np.isfinite(values).sum()


def test_bars_stand_in_the_page(tmp_path: Path) -> None:
    """A chart of labels shows every value in its bars; a column of one value, or of none, is said
    in words."""
    labels = np.stack([np.arange(12) * 1.5, np.full(12, 7), np.full(12, np.nan)], axis=1)
    made = page(gather({"path": hdf5(tmp_path / "f.h5", data=paint(12, (9, 8, 3)), labels=labels)}))
    assert sum(map(int, re.findall(r"<rect[^>]*><title>[^<]*: (\d+)</title>", made))) == 12
    assert "<p>all 7 value</p>" in made
    assert "<p class=quiet>no values</p>" in made


# -- the page ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose class names and paths try to break out of the page."""
    folder = tmp_path_factory.mktemp("hostile")
    noise = np.random.default_rng(0).integers(0, 256, (len(HOSTILE), 20, 20, 3), np.uint8)
    for number, name in enumerate(HOSTILE):
        images = (np.full((20, 20, 3), 7, np.uint8), noise[number])
        named = {f"{n}'\"><b>.png": image for n, image in enumerate(images)}
        save_images(folder / "in" / name, named)
    converters.convert(folder / "in", folder / "h<b>.lmdb", encoding="png")
    return folder / "h<b>.lmdb"


def test_names_cannot_break_the_page(hostile: Path) -> None:
    """Hostile class names and paths are text: no tag, attribute or policy comes from them."""
    facts = gather({"path": hostile})
    assert facts.copies  # so that names, labels and paths stand in every table
    assert facts.flat
    made = page(facts)
    parsed = Parsed(made)
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"b\u2028", "iframe", "object", "embed", "base", "form", "video"}
    assert len(list(parsed.every("script"))) == len(list(parsed.every("style"))) == 1
    assert len([1 for tag, _ in parsed.tags if tag == "b"]) == len(facts.checks)
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert "style" not in attributes
    for image in parsed.every("img"):
        assert (image["src"] or "").startswith("data:image/")
        assert set(image) <= {"src", "width", "height", "alt", "title", "decoding", "class"}
    text = "".join(parsed.text)
    for name in HOSTILE:
        assert name in text or name.encode("unicode_escape").decode() in text
    assert "\u202e" not in made


@pytest.mark.parametrize("make", [pets, grainy])
def test_every_picture_of_a_page_decodes(make: Any, tmp_path: Path) -> None:
    """Pillow decodes every picture of a page to the size that its tag says: none is cut short,
    however large its data: URI is."""
    facts = gather({"path": make(tmp_path)})
    images = list(Parsed(page(facts)).every("img"))
    assert len(images) >= facts.count
    for image in images:
        head, _, data = (image["src"] or "").partition(",")
        assert head in ("data:image/png;base64", "data:image/jpeg;base64")
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as picture:
            picture.load()
            assert picture.size == (int(image["width"] or 0), int(image["height"] or 0))


def test_the_policy_allows_this_style_and_this_script_only(set_of_pets: Path) -> None:
    """default-src 'none', and the hashes are those of the one style and the one script."""
    made = page(gather({"path": set_of_pets}))
    parsed = Parsed(made)
    (policy,) = (
        meta["content"]
        for meta in parsed.every("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for kind in ("style", "script"):
        digest = hashlib.sha256("".join(parsed.sources[kind]).encode()).digest()
        assert rules[f"{kind}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
    for tag, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#")), tag
    assert not re.search(r"https?:|url\(|@import|fetch\(|innerHTML", made)


def test_a_page_names_the_set_as_it_was_asked_for(set_of_pets: Path, monkeypatch: Any) -> None:
    """A set named by a relative path is called so: its page does not tell the folders above it. A
    value that is longer than any path takes 4,096 letters of a page."""
    monkeypatch.chdir(set_of_pets.parent)
    facts = gather({"path": set_of_pets.name})
    assert facts.path == set_of_pets.name
    assert str(set_of_pets.parent) not in page(facts)
    long = replace(facts, fingerprint="<" * 1_000_000)
    assert re.findall("(?:&lt;)+[.]{3}", page(long)) == ["&lt;" * LONGEST + "..."]


def test_the_same_set_gives_the_same_page(set_of_pets: Path, monkeypatch: Any) -> None:
    """The page depends on the set and the seed only, not on threads or the time."""
    monkeypatch.setattr(looking, "OF_A_CLASS", 2)
    one = page(gather({"path": set_of_pets}, jobs=1))
    assert one == page(gather({"path": set_of_pets}, jobs=4))
    assert one != page(gather({"path": set_of_pets}, seed=1))


# -- the command ---------------------------------------------------------------------------------


def test_the_command_writes_one_page(set_of_pets: Path, tmp_path: Path) -> None:
    """--html writes the page alone, with --output a sheet, too, and says what it found; --json
    tells every fact but the pictures."""
    target, sheet = tmp_path / "pets.html", tmp_path / "s.png"
    words = ["preview", set_of_pets, "--html", target]
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    says = r"24 of 24 samples: 4 checks passed, 2 to look at; [\d.]+ kB in .*pets\.html\n"
    assert re.fullmatch(says, result.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["pets.html"]
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>\n")
    result = run(*words, "--output", sheet, "-q", "--count", "2")
    assert (result.exit_code, result.output, sheet.is_file()) == (0, "", True)
    told = json.loads(run(*words, "--json").stdout)["report"]
    assert told["page_bytes"] == target.stat().st_size
    assert told["sizes"][0] == {"width": 40, "height": 30, "samples": 18}
    assert told["copies"][0] == {"samples": 2, "labels": 2, "records": [4, 12]}
    assert told["near_constant_list"][0]["record"] == 20
    assert told["classes"][2] == {"label": 2, "class": "eel", "samples": 6}
    assert {check["state"] for check in told["checks"]} == {"ok", "look", "bad"}
