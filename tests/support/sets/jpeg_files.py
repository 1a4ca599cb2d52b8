"""JPEG files of any sampling, written by a small encoder of noise (ITU-T T.81, baseline)."""

import struct
from collections.abc import Iterator, Sequence

import numpy as np

Factors = tuple[int, int]


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def jpeg_of(
    factors: Sequence[Factors],
    size: tuple[int, int] = (21, 37),
    seed: int = 0,
    extra: bytes = b"",
) -> bytes:
    """A JPEG of (H, W) ``size``, with a channel of noise for each of ``factors`` (horizontal,
    vertical). Its channels are in one scan where the standard allows it, else each in its own.
    ``extra``: segments behind the start."""
    rng = np.random.default_rng(seed)
    count, most = len(factors), (max(f[0] for f in factors), max(f[1] for f in factors))
    head = struct.pack(">BHHB", 8, *size, count)
    for channel, (across, down) in enumerate(factors):
        head += bytes((channel + 1, across << 4 | down, 0))
    # codes of four bits for DC differences of 0 to 11 bits, and for AC values of 0 to 4 bits
    tables = bytes((0x00, 0, 0, 0, 12, *[0] * 12, *range(12)))
    tables += bytes((0x10, 0, 0, 0, 5, *[0] * 12, *range(5)))
    parts = [
        b"\xff\xd8" + extra,
        segment(0xDB, b"\0" + b"\x10" * 64) + segment(0xC0, head) + segment(0xC4, tables),
    ]
    together = count > 1 and sum(across * down for across, down in factors) <= 10
    for channels in [range(count)] if together else [[channel] for channel in range(count)]:
        heads = b"".join(bytes((channel + 1, 0)) for channel in channels)
        parts.append(segment(0xDA, bytes((len(heads) // 2,)) + heads + b"\0\x3f\0"))
        units = blocks(factors, size, most, together, channels)
        noise = rng.integers(-15, 16, (units, 2)).tolist()
        bits = "".join(block(change // 2, wave) for change, wave in noise)
        bits += "1" * (-len(bits) % 8)
        parts.append(int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0"))
    return b"".join(parts) + b"\xff\xd9"


def blocks(
    factors: Sequence[Factors],
    size: tuple[int, int],
    most: Factors,
    together: bool,
    channels: Sequence[int],
) -> int:
    """Blocks of 8 x 8 in a scan."""
    if together:
        units = -(-size[1] // (8 * most[0])) * -(-size[0] // (8 * most[1]))
        return units * sum(across * down for across, down in factors)
    across, down = factors[channels[0]]
    wide, high = -(-size[1] * across // most[0]), -(-size[0] * down // most[1])
    return -(-wide // 8) * -(-high // 8)


def block(change: int, wave: int) -> str:
    """The bits of a block: the difference of its mean, and one wave."""
    mean = f"{abs(change).bit_length():04b}" + magnitude(change)
    return mean + (f"{abs(wave).bit_length():04b}" + magnitude(wave) if wave else "") + "0000"


def magnitude(value: int) -> str:
    bits = abs(value).bit_length()
    return f"{value if value > 0 else value + (1 << bits) - 1:0{bits}b}" if bits else ""


def samplings(channels: int) -> Iterator[tuple[Factors, ...]]:
    """Every choice of factors 1 to 4 for that many channels."""
    for number in range(16**channels):
        digits = [number >> 4 * channel & 15 for channel in range(channels)]
        yield tuple((1 + (digit >> 2), 1 + (digit & 3)) for digit in digits)
