"""Parts of JPEGs with restart markers, decoded without the rest: the pixels of the whole."""

import io
import re
from typing import Any

import cut_jpegs
import numpy as np
import pytest
from PIL import Image

from asyncreader.errors import DecodeError
from asyncreader.pixels import codec
from asyncreader.pixels.codec import jpeg
from asyncreader.pixels.encoded import put_views
from asyncreader.pixels.geometry import INTERPOLATIONS
from asyncreader.pixels.row_maker import RowView
from asyncreader.pixels.specs import OutputSpec, SampleSpec
from asyncreader.pixels.transform import plan_rows
from asyncreader.stats import Meter

PIXELS = cut_jpegs.picture(np.random.default_rng(5), 300, 400)
#: 4:2:0, with segments of 80 pixels.
MARKED = cut_jpegs.marked(PIXELS, "4:2:0", 5)
PART = (100, 130, 90, 100)


def decoded(data: bytes, part: tuple[int, int, int, int] | None = PART) -> codec.Decoded:
    return codec.decode_part(data, 3, header_of(data), codec.Shown(part))


def header_of(data: bytes) -> codec.ImageHeader:
    return codec.read_plain_header(data) or codec.read_header(data)


@pytest.mark.slow
def test_parts_of_pictures(long: bool) -> None:
    """A part of a JPEG with restart markers has the pixels of the whole: of every sampling, turn,
    size and interval, decoded in full size or smaller."""
    counts = cut_jpegs.compare_parts(1000 if long else 40)
    assert counts["cut"] > 150, counts


@pytest.mark.slow
def test_parts_of_damaged_files(long: bool) -> None:
    """What a damaged file gives for a part is an error, or the pixels of the whole file; where that
    is an error, those of the undamaged picture."""
    counts = cut_jpegs.compare_damaged(10_000 if long else 200)
    assert min(counts["error"], counts["both"], counts["elsewhere"]) > 20, counts


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_rows_of_a_slot(interpolation: str) -> None:
    """A picture with restart markers fills its row with what the same picture decoded whole does,
    bit for bit, whatever is cut out of it, and with what lies around it where that is averaged."""
    rng, data = np.random.default_rng(1), cut_jpegs.marked(PIXELS, "grey", 1)
    for size in [(64, 64), (30, 20), (3, 2), (1, 300), (300, 1)] * 4:
        wanted = OutputSpec(size=size, interpolation=interpolation, crop="random-resized")
        fill = plan_rows(SampleSpec(None, np.dtype("u1"), "HWC", "original"), wanted, "set")
        rows, draws = np.zeros(fill.allocate_shape(2), fill.dtype), rng.random(40)
        put_views((RowView(fill, draws, False, rows[0]),), data, Meter())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "read_plain_header", lambda _: None)
            put_views((RowView(fill, draws, False, rows[1]),), data, Meter())
        np.testing.assert_array_equal(rows[0], rows[1], str(size))


@pytest.mark.parametrize("sampling", cut_jpegs.ACROSS)
def test_less_is_decoded(sampling: str) -> None:
    """Of a JPEG with restart markers only the segments around the part are decoded."""
    data = cut_jpegs.marked(PIXELS, sampling, -(-400 // cut_jpegs.ACROSS[sampling]))
    found = decoded(data)
    assert cut_jpegs.is_cut(found)
    assert found.pixels.shape[0] < 130


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"restart_marker_blocks": 7},
        {"restart_marker_blocks": 5, "progressive": True},
        {"restart_marker_rows": 200},
    ],
    ids=["no markers", "not a divisor", "progressive", "one segment"],
)
def test_what_cannot_be_cut(options: dict[str, Any]) -> None:
    """Other JPEGs are decoded whole: without markers, with an interval that divides no row,
    progressive, or with one segment only."""
    held = io.BytesIO()
    Image.fromarray(PIXELS).save(held, "JPEG", **options)
    assert header_of(held.getvalue()).facts is None
    assert not cut_jpegs.is_cut(decoded(held.getvalue()))


def test_what_is_not_worth_cutting() -> None:
    """Where nearly all of a picture is wanted it is decoded whole, and so is a small one."""
    assert not cut_jpegs.is_cut(decoded(MARKED, (10, 10, 280, 380)))
    small = cut_jpegs.marked(PIXELS[:96, :96], "4:2:0", 2)
    assert not cut_jpegs.is_cut(decoded(small, (10, 10, 20, 20)))


def test_damage_in_the_part_is_the_error_of_the_whole_file() -> None:
    """Damage in what is cut out raises what decoding the whole file raises."""
    facts = jpeg.read_facts(MARKED)
    assert facts is not None
    bytes_of_scan = bytearray(MARKED)
    middle = (int(facts["scan"][0]) + len(MARKED)) // 2
    for at in range(middle - 60, middle + 60):
        if 0xFF not in bytes_of_scan[at - 1 : at + 2]:
            bytes_of_scan[at] = 0x55
    data = bytes(bytes_of_scan)
    errors = []
    for part in (PART, None):
        with pytest.raises(DecodeError) as caught:
            decoded(data, part)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_a_plain_header_is_what_the_decoder_reads() -> None:
    """What the compiled kernel says of a header is what the decoder and Pillow say of it; where it
    is damaged, the kernel says nothing or the decoder says the same, without a complaint."""
    rng = np.random.default_rng(4)
    sources = [cut_jpegs.drawn(rng, 60, 90) for _ in range(12)]
    counts = [0, 0]
    for number in range(3000):
        source = sources[number % len(sources)]
        facts = jpeg.read_facts(source)
        assert facts is not None
        data = bytearray(source)
        for _ in range(number % 3):
            at = int(rng.integers(2, int(facts["scan"][0])))
            bit = 1 << int(rng.integers(8))
            data[at] = data[at] ^ bit if rng.random() < 0.5 else int(rng.integers(256))
        plain = codec.read_plain_header(data)
        counts[plain is not None] += 1
        if plain is not None:
            assert plain._replace(facts=None) == codec.read_header(data)
    assert min(counts) > 500, counts


def test_a_header_that_is_cut_off_is_not_plain() -> None:
    """The beginning of a JPEG up to any byte of its header, and no bytes at all, are no plain
    JPEG."""
    facts = jpeg.read_facts(MARKED)
    assert facts is not None
    for size in range(int(facts["scan"][0]) + 1):
        assert jpeg.read_facts(MARKED[:size]) is None


def test_the_last_segment_is_read_to_its_last_byte() -> None:
    """Nothing is cut where the last segment that is needed has bytes left over, which the decoder
    of a part cannot notice, or holds no valid codes: the whole file is decoded."""
    facts = jpeg.read_facts(MARKED)
    assert facts is not None
    scan = int(facts["scan"][0])
    marks = [found.end() for found in re.finditer(rb"\xff[\xd0-\xd9]", MARKED[scan:])]
    out = np.empty(jpeg.most(MARKED) + 9, np.uint8)
    part = (100, 100, 190, 200)  # rows 6 to 11 and columns 1 and 2 of segments of 16 x 80
    ends = scan + marks[11 * 5 + 2] - 2
    for changed in (
        MARKED[:ends] + b"\x55" + MARKED[ends:],
        MARKED[: ends - 20] + MARKED[ends:],
        MARKED[: ends - 20] + b"\xff\0" * 10 + MARKED[ends:],
    ):
        assert jpeg.cut(MARKED, facts, part, 8, out) is not None
        assert jpeg.cut(changed, facts, part, 8, out) is None


def test_a_part_stays_within_its_memory() -> None:
    """Where the last segment of a part is longer than all that was left out before it, nothing is
    written behind the memory of the part."""
    pixels = np.full((256, 4096, 3), 255, np.uint8)  # a white sky above
    pixels[-16:] = np.random.default_rng(0).integers(0, 256, (16, 4096, 3))
    data = cut_jpegs.marked(pixels, "4:2:0", 256)
    facts = jpeg.read_facts(data)
    assert facts is not None
    memory = np.full(4 * len(data), 7, np.uint8)
    size = jpeg.most(data)
    for top in (20, 230):
        jpeg.cut(data, facts, (top, 0, 256, 4096), 8, memory[:size])
        assert (memory[size:] == 7).all()


def test_a_wrong_grid_is_not_cut() -> None:
    """Where the scan has another number of markers than the header says, nothing is cut."""
    facts = jpeg.read_facts(MARKED)
    assert facts is not None
    assert facts[["rows", "columns"]].tolist() == [(19, 5)]
    out = np.empty(jpeg.most(MARKED), np.uint8)
    part = (100, 100, 200, 200)
    assert jpeg.cut(MARKED, facts, part, 8, out) is not None
    for grid in ((19, 4), (19, 6), (18, 5), (10**9, 5)):
        wrong = facts.copy()
        wrong["rows"], wrong["columns"] = grid
        assert jpeg.cut(MARKED, wrong, part, 8, out) is None
