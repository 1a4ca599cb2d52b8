"""Image bytes to upright pixels: every variety against Pillow, damage and bombs."""

import contextlib
import io
import logging
import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from converter_corpus import png_chunk, png_file, saved
from fakes import encoded, pictures
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import jpeg_of, samplings, segment
from PIL import Image, ImageCms, ImageOps

from asyncreader import DecodeError
from asyncreader.pixels import codec
from asyncreader.pixels.codec import decode_values

NOISE = np.random.default_rng(5).integers(0, 256, (13, 17, 3), np.uint8)
PICTURE = pictures(4, (48, 64, 3))[3]


def with_orientation(turn: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = turn
    return exif


def pillow(data: bytes) -> np.ndarray:
    """Pillow's own upright RGB picture."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def noise(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(NOISE).convert(mode)


KINDS: dict[str, bytes] = {
    "jpeg": saved(Image.fromarray(PICTURE), "JPEG", quality=95),
    "jpeg progressive": saved(Image.fromarray(PICTURE), "JPEG", progressive=True),
    "jpeg 444": saved(Image.fromarray(PICTURE), "JPEG", subsampling=0),
    "jpeg grey": saved(Image.fromarray(PICTURE).convert("L"), "JPEG"),
    "jpeg cmyk": saved(Image.fromarray(PICTURE).convert("CMYK"), "JPEG"),
    "png": saved(noise(), "PNG"),
    "png grey": saved(noise("L"), "PNG"),
    "png alpha": saved(noise("RGBA"), "PNG"),
    "png grey alpha": saved(noise("LA"), "PNG"),
    "png palette": saved(noise().quantize(40), "PNG"),
    "png palette alpha": saved(noise().quantize(40), "PNG", transparency=3),
    "png colour key": saved(noise(), "PNG", transparency=(1, 2, 3)),
    "png one bit": saved(noise("1"), "PNG"),
    "webp": saved(Image.fromarray(PICTURE), "WEBP"),
    "webp lossless": saved(noise(), "WEBP", lossless=True),
    "webp alpha": saved(noise("RGBA"), "WEBP", lossless=True),
    "gif": saved(noise().quantize(64), "GIF"),
    "bmp": saved(noise(), "BMP"),
    "bmp palette": saved(noise().quantize(64), "BMP"),
    "tiff": saved(noise(), "TIFF"),
    "tiff lzw": saved(noise(), "TIFF", compression="tiff_lzw"),
    "tiff grey": saved(noise("L"), "TIFF"),
    "ppm": saved(noise(), "PPM"),
    "pgm": saved(noise("L"), "PPM"),
}
TURNED: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 95}, "PNG": {}, "WEBP": {"lossless": True}, "TIFF": {}
}  # fmt: skip


# -- decoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_equals_pillow(kind: str) -> None:
    """Each variety decodes to Pillow's RGB picture, exactly, or within rounding for JPEG; with one
    channel to its luma, as Pillow's mode L; from any buffer, and whatever memory is lent."""
    data = KINDS[kind]
    header = codec.read_header(data)
    found, wanted = codec.decode(data, 3), pillow(data)
    assert found.dtype == np.uint8
    assert found.shape == wanted.shape == (header.height, header.width, 3)
    assert header.kind == {"pgm": "ppm"}.get(kind.split()[0], kind.split()[0])
    difference = np.abs(found.astype(int) - wanted)
    assert difference.max() <= (3 if kind.startswith("jpeg") else 0)
    luma = np.asarray(Image.fromarray(found).convert("L"))
    np.testing.assert_array_equal(codec.decode(data, 1), luma[:, :, None])
    read_only = np.frombuffer(data, np.uint8)
    assert not read_only.flags.writeable
    for buffer in (memoryview(data), read_only, bytearray(data)):
        np.testing.assert_array_equal(codec.decode(buffer, 3), found)
    for size in (10, found.size - 1, found.size, found.size + 999):  # too little is not used
        scratch = np.full(size, 7, np.uint8)
        np.testing.assert_array_equal(codec.decode(data, 3, scratch=scratch), found)


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'
AGAIN = b"<x:xmpmeta><tiff:Orientation>%d</tiff:Orientation></x:xmpmeta>"


def png_with(data: bytes, *chunks: tuple[bytes, bytes], behind: bool = False) -> bytes:
    """A PNG with more chunks: behind its header, or behind its pixels."""
    at = len(data) - 12 if behind else 33
    return data[:at] + b"".join(png_chunk(*chunk) for chunk in chunks) + data[at:]


def profile(exif: bytes) -> bytes:
    """EXIF data as ImageMagick writes them into a text chunk of a PNG."""
    text = f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()
    return b"Raw profile type exif\0\0" + zlib.compress(text)


def exif_of(turn: int, kind: int = 3, order: str = "<") -> bytes:
    """EXIF data with an orientation that is stored as a number of that TIFF type."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    number = {1: "B3x", 3: "H2x", 4: "I", 9: "i", 11: "f"}[kind]
    entry = struct.pack(order + "HHI" + number, 0x0112, kind, 1, turn)
    return mark + struct.pack(order + "IH", 8, 1) + entry + bytes(4)


def turned_files(turn: int) -> dict[str, bytes]:
    """Pictures that say in one way or another how they are turned, or seem to."""
    photo, other = Image.fromarray(PICTURE), turn % 8 + 1
    jpeg, png = KINDS["jpeg"], KINDS["png"]
    xmp = b"http://ns.adobe.com/xap/1.0/\0"

    def app1(*bodies: bytes) -> bytes:
        return jpeg[:2] + b"".join(segment(0xE1, body) for body in bodies) + jpeg[2:]

    itxt = b"XML:com.adobe.xmp\0\0\0\0\0"
    tiff = b"MM\0*" + struct.pack(">IHHHI4s", 8, 2, 0x010F, 2, 4, b"abc\0")
    tiff += struct.pack(">HHIHHI", 0x0112, 3, 1, turn, 0, 0)
    files = {
        f"{kind.lower()} exif": saved(photo, kind, exif=with_orientation(turn), **options)
        for kind, options in TURNED.items()
    }
    files |= {
        "jpeg exif behind other segments and tags": jpeg[:2]
        + segment(0xFE, b"hello")
        + b"\xff"
        + segment(0xE1, b"Exif\0\0" + tiff)
        + jpeg[2:],
        "jpeg xmp": app1(xmp + XMP % turn),
        "jpeg xmp element": app1(xmp + AGAIN % turn),
        "jpeg exif before xmp": app1(xmp + XMP % other, b"Exif\0\0" + exif_of(turn)),
        "jpeg upright by exif": app1(b"Exif\0\0" + exif_of(1), xmp + XMP % turn),
        "jpeg exif that does not say": app1(
            b"Exif\0\0II*\0" + struct.pack("<IHHHI4sI", 8, 1, 0x10F, 2, 4, b"abc\0", 0),
            xmp + XMP % turn,
        ),
        "jpeg exif of no sense": app1(b"Exif\0\0" + exif_of(77), xmp + XMP % turn),
        "jpeg two xmp": app1(xmp + XMP % other, xmp + XMP % turn),
        "jpeg exif in two": app1(
            b"Exif\0\0" + exif_of(turn)[:13], b"Exif\0\0" + exif_of(turn)[13:]
        ),
        "jpeg marked twice": app1(b"Exif\0\0Exif\0\0" + exif_of(turn)),
        "png text": png_with(png, (b"tEXt", b"XML:com.adobe.xmp\0" + XMP % turn)),
        "png xmp": png_with(png, (b"iTXt", itxt + XMP % turn)),
        "png xmp behind": png_with(png, (b"iTXt", itxt + XMP % turn), behind=True),
        "png profile": png_with(png, (b"zTXt", profile(b"Exif\0\0" + exif_of(turn)))),
        "png profile behind": png_with(
            png, (b"zTXt", profile(b"Exif\0\0" + exif_of(turn))), behind=True
        ),
        "png exif behind": png_with(png, (b"eXIf", exif_of(turn)), behind=True),
        "png exif before profile": png_with(
            png, (b"zTXt", profile(exif_of(other))), (b"eXIf", exif_of(turn))
        ),
        "png profile of another kind": png_with(
            png, (b"tEXt", b"Raw profile type APP1\0" + profile(exif_of(turn))[23:])
        ),
        "png 16 bit": png_with(
            saved(Image.fromarray(NOISE[:, :, 0].astype(np.uint16)), "PNG"),
            (b"zTXt", profile(exif_of(turn))),
        ),
        "webp xmp": saved(photo, "WEBP", lossless=True, xmp=XMP % turn),
        "tiff xmp": saved(photo, "TIFF", tiffinfo={700: XMP % turn}),
        "tiff tag before xmp": saved(photo, "TIFF", tiffinfo={700: XMP % other, 274: turn}),
    }
    for kind in (1, 4, 9, 11):
        files[f"jpeg exif of type {kind}"] = app1(b"Exif\0\0" + exif_of(turn, kind, ">"))
    return files


@pytest.mark.parametrize("turn", [*range(10), 77])
def test_orientation_is_found_where_pillow_finds_it(turn: int) -> None:
    """In EXIF of any type and byte order, in XMP and in ImageMagick's fields, and in the same order
    of them; a number outside 1 to 8 means none."""
    for name, data in turned_files(turn).items():
        header, found = codec.read_header(data), codec.decode(data, 3)
        assert (header.height, header.width) == found.shape[:2], name
        wanted = pillow(data)
        assert found.shape == wanted.shape, name
        assert found.flags.c_contiguous, name
        if "16" not in name:
            assert np.abs(found.astype(int) - wanted).max() <= (3 if "jpeg" in name else 0), name
        numbers = decode_values(data)
        assert numbers.shape[:2] == found.shape[:2], name
        if "jpeg" not in name and "16" not in name:
            np.testing.assert_array_equal(numbers, found, name)


def test_damaged_exif_does_not_matter() -> None:
    """EXIF bytes of any kind never keep a JPEG's pixels from being read."""
    data = saved(Image.fromarray(PICTURE), "JPEG", exif=with_orientation(6))
    at = data.index(b"Exif\0\0")
    end = at + int.from_bytes(data[at - 2 : at], "big") - 2
    rng = np.random.default_rng(1)
    for _ in range(300):
        held = bytearray(data)
        for place in rng.integers(at, end, 3):
            held[place] = rng.integers(256)
        assert codec.decode(bytes(held), 3).shape in ((48, 64, 3), (64, 48, 3))


def test_sixteen_bit() -> None:
    """16-bit samples keep their high byte, grey and colour, in PNG, TIFF and PGM."""
    values = np.random.default_rng(2).integers(0, 1 << 16, (9, 11), np.uint16)
    grey = saved(Image.fromarray(values), "PNG")
    wanted = np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(codec.decode(grey, 3), wanted)
    tiff = saved(Image.fromarray(values), "TIFF")
    np.testing.assert_array_equal(codec.decode(tiff, 3), wanted)
    pgm = b"P5 11 9 65535\n" + values.astype(">u2").tobytes()
    np.testing.assert_array_equal(codec.decode(pgm, 3), wanted)
    plain = b"P2 11 9 65535\n" + b" ".join(b"%d" % value for value in values.ravel())
    np.testing.assert_array_equal(codec.decode(plain, 3), wanted)
    colour = np.random.default_rng(3).integers(0, 1 << 16, (9, 11, 3), np.uint16)
    png = png_file(9, 11, 16, 2, b"".join(b"\0" + row.astype(">u2").tobytes() for row in colour))
    np.testing.assert_array_equal(codec.decode(png, 3), (colour >> 8).astype(np.uint8))


def test_first_frame_of_an_animation() -> None:
    """Of an animation the first frame is taken."""
    frames = [Image.fromarray(np.full((8, 9, 3), value, np.uint8)) for value in (40, 200)]
    for kind in ("GIF", "WEBP"):
        options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        np.testing.assert_array_equal(codec.decode(data, 3), np.full((8, 9, 3), 40))


# -- JPEGs that are valid and unusual ------------------------------------------------------------


def shown_by_pillow(data: bytes) -> np.ndarray | None:
    try:
        return pillow(data)
    except (OSError, SyntaxError):
        return None


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_every_sampling(channels: int) -> None:
    """Each choice of sampling factors 1 to 4 gives the pixels that Pillow gives, or (where they do
    not divide each other: one in eight is tried) is refused by both, as a DecodeError that says
    so."""
    decoded = [
        check_sampling(jpeg_of(factors, seed=number))
        for number, factors in enumerate(samplings(channels))
        if number % 8 == 0 or is_whole(factors)
    ]
    assert sum(decoded) == {1: 16, 2: 0, 3: 34**2}[channels]


@pytest.mark.parametrize("transform", [None, 0, 1, 2, 9])
@pytest.mark.parametrize("channels", [3, 4])
def test_sampling_of_other_colours(channels: int, transform: int | None) -> None:
    """So with any colour transform that Adobe's segment may name, sensible or not, and with four
    channels."""
    adobe = segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes((transform or 0,)))
    rng = np.random.default_rng(channels)
    for number in range(60):
        factors = rng.choice([1, 2, 4] if number % 3 else [1, 2, 3, 4], (channels, 2)).tolist()
        if number < 5:
            factors = [[(1, 2, 1, 2, 4)[number], (1, 1, 2, 2, 1)[number]], *[[1, 1]] * channels][
                :channels
            ]
        data = jpeg_of(factors, seed=number, extra=b"" if transform is None else adobe)
        check_sampling(data)


def is_whole(factors: tuple[tuple[int, int], ...]) -> bool:
    """Whether they divide the largest of them, in either direction: else libjpeg decodes none."""
    return all(max(f[k] for f in factors) % f[k] == 0 for f in factors for k in (0, 1))


def check_sampling(data: bytes) -> bool:
    """Whether Pillow shows it, and so do we."""
    wanted = shown_by_pillow(data)
    if wanted is None:
        with pytest.raises(DecodeError, match="is not read"):
            codec.decode(data, 3)
        return False
    header = codec.check_structure(data)
    found = codec.decode(data, 3)
    np.testing.assert_array_equal(found, wanted)
    assert found.shape[:2] == (header.height, header.width)
    grey = data[data.index(b"\xff\xc0") + 9] == 1
    assert decode_values(data).shape[2] == (1 if grey else 3)
    return True


ICC = b"ICC_PROFILE\0"
JUNK = {
    "zeros": b"\0\0\0",
    "text": b"hello, world",
    "fill": b"\xff\xff\xff",
    "escaped": b"\xff\0\0",
    "marker of its own": b"\xff\xd0",
    "ICC of number 0": segment(0xE2, ICC + b"\0\1abc"),
    "ICC that lacks a part": segment(0xE2, ICC + b"\1\2abc"),
    "JFIF 2": segment(0xE0, b"JFIF\0\2\1\0\0\1\0\1\0\0"),
    "JFIF 0.00": segment(0xE0, b"JFIF\0\0\0\0\0\1\0\1\0\0"),
}


@pytest.mark.parametrize("name", JUNK)
@pytest.mark.parametrize("kind", ["jpeg", "jpeg progressive", "jpeg grey", "jpeg cmyk", "4:4:1"])
def test_junk_before_the_picture(kind: str, name: str) -> None:
    """Bytes between segments, and segments that only strict decoders mind, change no pixel, and do
    not hide the orientation."""
    data = (
        jpeg_of([(1, 4), (1, 1), (1, 1)], extra=segment(0xFE, b"x"))
        if kind == "4:4:1"
        else KINDS[kind]
    )
    turn = segment(0xE1, b"Exif\0\0" + exif_of(6))
    tables = data.index(b"\xff\xdb")
    wanted = codec.decoding.upright(codec.decode(data, 3), 6)
    junk = JUNK[name]
    for held in (
        data[:2] + junk + turn + data[2:] if junk[0] == 0xFF else None,
        data[:2] + turn + junk + data[2:],
        data[:tables] + junk + turn + junk + data[tables:],
    ):
        if held is None:
            continue
        assert shown_by_pillow(held) is not None
        assert codec.check_structure(held).orientation == 6
        with pytest.raises(DecodeError):
            codec.check_structure(held[: len(held) // 2])
        np.testing.assert_array_equal(codec.decode(held, 3), wanted)
        np.testing.assert_array_equal(
            np.abs(codec.decode(held, 3).astype(int) - pillow(held)) <= 3, True
        )
        if kind == "jpeg":
            small = codec.decode(held, 3, min_size=(32, 24))
            np.testing.assert_array_equal(
                small, codec.decoding.upright(codec.decode(data, 3, min_size=(24, 32)), 6)
            )


def test_damage_in_a_cmyk_jpeg() -> None:
    """A JPEG of four channels, whose pixels Pillow gives, is looked at as strictly as any other."""
    import simplejpeg

    data = KINDS["jpeg cmyk"]
    refused = 0
    for place in range(data.index(b"\xff\xda") + 20, len(data) - 20, 5):
        held = data[:place] + bytes((data[place] ^ 0x5A,)) + data[place + 1 :]
        try:
            simplejpeg.decode_jpeg(held, "CMYK")
        except ValueError:
            refused += 1
            with pytest.raises(DecodeError, match="damaged JPEG"):
                codec.decode(held, 3)
    assert refused > 10


@pytest.mark.parametrize("error", [ImportError("no _png"), MemoryError("no memory")])
@pytest.mark.parametrize(
    "where", ["simplejpeg.decode_jpeg", "imagecodecs.png_decode", "PIL.Image.open"]
)
def test_only_what_the_data_did_is_damage(
    monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    """A decoder that cannot be loaded, and memory that runs out, are no DecodeError; anything else
    that a decoder raises is."""
    data = KINDS[{"s": "jpeg", "i": "png", "P": "gif"}[where[0]]]
    raised: list[Exception] = [error, ZeroDivisionError("odd"), AssertionError("odder")]

    def fail(*_: object, **__: object) -> None:
        raise raised[0]

    monkeypatch.setattr(where, fail)
    with pytest.raises(type(error)):
        codec.decode(data, 3)
    while raised.pop(0) and raised:
        with pytest.raises(DecodeError, match="odd"):
            codec.decode(data, 3)


def test_sloppy_chunks_of_a_png_are_decoded_in_silence(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """A PNG with a bad colour profile, or with data behind its pixels, is decoded without a word
    from libpng; what others decode in the meantime is logged as ever."""
    import imagecodecs

    bad = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    bad[64:68] = b"\0\0\0\x63"
    rows = b"".join(b"\0" + row.tobytes() for row in NOISE)
    sloppy = [
        saved(noise(), "PNG", icc_profile=bytes(bad)),
        saved(noise("L"), "PNG", icc_profile=bytes(bad)),
        png_file(13, 17, 8, 2, rows + b"more"),
        png_with(KINDS["png"], (b"sRGB", b"\x09"), (b"zTXt", b"a\0\0b")),
    ]
    with caplog.at_level(logging.DEBUG):
        for data in sloppy:
            np.testing.assert_array_equal(codec.decode(data, 3), pillow(data))
            decode_values(data)
        with pytest.raises(DecodeError, match="damaged PNG; found "):
            codec.decode(sloppy[0][:-40], 3)
        assert not [record for record in caplog.records if record.name == "imagecodecs"]
        imagecodecs.png_decode(sloppy[0])
        assert "iCCP" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_damaged_pngs_do_not_end_the_process() -> None:
    """A damaged PNG takes no reference to None from the process: after 8,000 Python would abort."""
    pytest.importorskip("imagecodecs")
    before = sys.getrefcount(None)
    for k in range(500):
        with pytest.raises(DecodeError):
            decode_values(KINDS["png"][: 60 + k % 100])
    assert sys.getrefcount(None) > before - 100


def test_pngs_without_imagecodecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without imagecodecs PNGs have the same pixels, and what is damaged is refused; 16 bits of
    colours, which Pillow would halve, are an error that names the extra."""
    images = [NOISE, NOISE[:, :, :1], NOISE[:, :, :1].astype(np.uint16) * 257]
    files = [codec.encode(image, "png") for image in images]
    deep = codec.encode(NOISE.astype(np.uint16), "png")
    expected = [codec.decode(file, 3) for file in files]
    monkeypatch.setitem(sys.modules, "imagecodecs", None)  # type: ignore[arg-type]
    for image, file, pixels in zip(images, files, expected, strict=True):
        for one in (file, codec.encode(image, "png")):
            np.testing.assert_array_equal(codec.decode(one, 3), pixels)
            np.testing.assert_array_equal(decode_values(one), image)
    for at in range(33, len(files[0]) - 12, 29):
        broken = bytearray(files[0])
        broken[at] ^= 0x55
        try:
            pixels = codec.decode(bytes(broken), 3)
        except DecodeError:
            continue
        np.testing.assert_array_equal(pixels, expected[0])
    with pytest.raises(DecodeError):
        codec.decode(files[0][:-40], 3)
    for call in (lambda: decode_values(deep), lambda: codec.encode(NOISE.astype("<u2"), "png")):
        with pytest.raises(ImportError, match=r"need imagecodecs.*\[codecs\]"):
            call()


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_truncation(kind: str) -> None:
    """A file cut anywhere is a DecodeError, or the whole picture: never a partly grey one."""
    data = KINDS[kind]
    whole = codec.decode(data, 3)
    rng = np.random.default_rng(4)
    lengths = {*range(min(40, len(data))), *range(len(data) - 24, len(data))}
    lengths |= set(rng.integers(0, len(data), 60).tolist())
    for length in sorted(lengths):
        try:
            found = codec.decode(data[:length], 3)
        except DecodeError:
            continue
        # only what stands behind the last pixel was cut
        assert length > len(data) - 30
        np.testing.assert_array_equal(found, whole)


def test_a_decoder_that_names_no_reason() -> None:
    """simplejpeg raises KeyError of a header cut off: its number is not shown as a reason."""
    data = KINDS["jpeg"]
    for length in range(2, 700, 7):
        with pytest.raises(DecodeError) as caught:
            codec.decode(data[:length], 3)
        assert caught.value.found not in ("-1", "KeyError")


@pytest.mark.parametrize("kind", ["jpeg", "png", "png palette", "webp", "bmp", "gif"])
def test_structure_of_truncated_files(kind: str) -> None:
    """check_structure finds what is cut without decoding; whole files pass."""
    data = KINDS[kind]
    header = codec.check_structure(data)
    assert (header.height, header.width) == codec.decode(data, 3).shape[:2]
    # a file may be padded behind its end
    codec.check_structure(data + b"\0" * (0 if kind == "gif" else 5))
    for length in (0, 1, 5, 20, len(data) // 2, len(data) - 1):
        with pytest.raises(DecodeError):
            codec.check_structure(data[:length])


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes(kind: str) -> None:
    """Whatever is flipped in a file: pixels or a DecodeError, no other exception or warning."""
    data = KINDS[kind]
    rng = np.random.default_rng(6)
    for _ in range(60):
        held = bytearray(data)
        for place in rng.integers(0, len(held) if rng.random() < 0.5 else min(90, len(held)), 2):
            held[place] = rng.integers(256)
        for check in (lambda d: codec.decode(d, 3), codec.check_structure):
            try:
                check(bytes(held))
            except DecodeError as exc:
                assert exc.what  # noqa: PT017


def test_bombs() -> None:
    """A header that claims more than MAX_PIXELS is refused before anything is decoded."""
    side = 1 + int(codec.MAX_PIXELS**0.5)
    jpeg = bytearray(KINDS["jpeg"])
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 65_000, 65_000)
    bmp = bytearray(KINDS["bmp"])
    bmp[18:26] = struct.pack("<ii", side, side)
    tall = bytearray(KINDS["bmp"])
    tall[18:26] = struct.pack("<ii", 1 << 20, 1 << 20)
    bombs = [
        png_file(side, side, 8, 2, b"\0"),
        png_file(1, codec.MAX_PIXELS + 1, 8, 0, b"\0"),
        png_file(1 << 30, 1 << 30, 8, 2, b"\0"),
        png_file(0, 5, 8, 2, b"\0"),
        bytes(jpeg),
        bytes(bmp),
        bytes(tall),
        b"P6 60000 60000 255\n",
    ]
    for data in bombs:
        with pytest.raises(DecodeError, match=r"out of range|damaged"):
            codec.decode(data, 3)


@pytest.mark.slow
def test_compressed_bomb_in_a_chunk() -> None:
    """A PNG whose data inflate to more than its pixels need is bounded by its header."""
    data = png_file(4, 4, 8, 2, b"\0" * (50 << 20))
    with contextlib.suppress(DecodeError):
        assert codec.decode(data, 3).shape == (4, 4, 3)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"P6"),
        *(b"RIFF0000WEBP", b"hello world, this is text", b"%PDF-1.4", b"\0" * 100),
        *(b"<svg></svg>", b"P6 0 0 255\n"),
    ],
)
def test_not_an_image(data: bytes) -> None:
    """What is no image is a DecodeError, also where it begins like one."""
    with pytest.raises(DecodeError):
        codec.decode(data, 3)
    with pytest.raises(DecodeError):
        codec.check_structure(data)


def test_only_the_named_decoders_are_tried() -> None:
    """A file of a kind that is not read is refused by its first bytes, whatever Pillow could do."""
    for kind in ("ICO", "TGA", "PCX", "SGI"):
        with pytest.raises(DecodeError):
            codec.decode(saved(noise(), kind), 3)
    for mode in ("F", "I"):
        image = Image.fromarray(NOISE[:, :, 0].astype(np.float32 if mode == "F" else np.int32))
        with pytest.raises(DecodeError, match="not read"):
            codec.decode(saved(image, "TIFF"), 3)


# -- smaller in the DCT --------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(draw=st.data())
def test_dct_scaling_keeps_the_minimum(draw: st.DataObject) -> None:
    """A JPEG decoded smaller keeps both sides at least as long as asked for, turned or not."""
    height, width = (draw.draw(st.integers(1, 150)) for _ in range(2))
    turn = draw.draw(st.sampled_from([1, 3, 6, 8]))
    image = np.full((height, width, 3), 90, np.uint8)
    data = encoded(image, "JPEG", exif=with_orientation(turn))
    full = codec.decode(data, 3).shape
    low = [max(1, int(side * draw.draw(st.floats(0.02, 1.2)))) for side in full[:2]]
    found = codec.decode(data, 3, min_size=(low[0], low[1]))
    assert found.shape[0] >= min(low[0], full[0])
    assert found.shape[1] >= min(low[1], full[1])
    assert found.shape[0] <= full[0]
    # the same shape as the whole picture, but for rounding
    assert abs(found.shape[0] / full[0] - found.shape[1] / full[1]) <= 1 / min(found.shape[:2])
