"""Image bytes <-> upright pixels.

Every encoding decodes to the same picture: (H, W, 3) RGB or (H, W, 1) grey, uint8, turned as
Pillow's ``ImageOps.exif_transpose`` turns it: by the orientation in EXIF (CIPA DC-008, tag 0x0112),
in ImageMagick's profile fields of a PNG, or in XMP. Alpha is dropped, 16-bit samples keep their
high byte (``decode_values`` reads all 16 bits), palettes are looked up, CMYK is converted as Pillow
does, and of an animation the first frame is taken. Dimensions come from the header and are compared
with ``MAX_PIXELS`` before any decoding, and decoders are strict: a damaged file is a DecodeError,
never a partly grey picture.
"""

from __future__ import annotations

from .decoding import INSTALL as INSTALL
from .decoding import Decoded as Decoded
from .decoding import Shown as Shown
from .decoding import check_size as check_size
from .decoding import check_structure as check_structure
from .decoding import decode as decode
from .decoding import decode_part as decode_part
from .decoding import decode_values as decode_values
from .decoding import encode as encode
from .decoding import find_imagecodecs as find_imagecodecs
from .decoding import reduction as reduction
from .decoding import with_channels as with_channels
from .headers import IMAGE_SUFFIXES as IMAGE_SUFFIXES
from .headers import ImageHeader as ImageHeader
from .headers import check_depth as check_depth
from .headers import read_header as read_header
from .headers import read_plain_header as read_plain_header
from .headers import sniff as sniff
from .jpeg import MAX_PIXELS as MAX_PIXELS
from .jpeg import Buffer as Buffer
