"""ml-pyxis' interface and files: samples of named arrays in LMDB, msgpack inside msgpack.

Layout: named databases ``data_db`` (key ``{:010}``, value a msgpack map name -> packed array) and
``meta_db`` (``nb_samples`` in ASCII digits, and the user's strings). A packed array is a msgpack
map of ``type`` (2), ``dtype`` (numpy's string), ``shape`` and ``data`` (C order), keys as bytes.

Files are read without the LMDB library, as bytes that are checked (sources/lmdb_tree.py), so a
damaged one is an error here, and a reader can be pickled, forked and shared by threads. Needs
``msgpack``: ``pip install 'asyncreader[pyxis]'``.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy.typing as npt

try:
    import msgpack
except ImportError as exc:  # pragma: no cover
    raise ImportError("asyncreader.faces.pyxis needs msgpack: pip install msgpack") from exc

Array: TypeAlias = npt.NDArray[Any]

_DATA_DB: Final = b"data_db"
_META_DB: Final = b"meta_db"
_NB_SAMPLES: Final = b"nb_samples"
_DIGITS: Final = 10
_NODE: Final = 8  # bytes of an LMDB node before its key
_STR, _NDARRAY = 1, 2
