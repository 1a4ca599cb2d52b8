"""The hostile corpus: files made to read, run, allocate or write what their opener never asked for.

Nothing binary is kept: ``python tests/faults/attacks/make.py FOLDER`` makes all of it, and the
tests make each attack when they try it. Every attack is a function in one of the modules here.
"""

from __future__ import annotations

from .corpus import ATTACKS, Attack


def all_attacks() -> dict[str, Attack]:
    """Every attack by its name."""
    from . import (  # noqa: F401
        folders,
        hdf5_bombs,
        hdf5_compact,
        hdf5_files,
        hdf5_filters,
        hdf5_links,
        hdf5_types,
        images,
        lmdb_files,
        several_fields,
        shard_files,
        shown_names,
        stores,
    )

    if "store_virtual" not in ATTACKS:
        stores.register()

    return ATTACKS
