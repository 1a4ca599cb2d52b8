"""The hostile corpus: files that make a careless program read, run, allocate or write too much.

Nothing binary is kept: ``python tests/faults/hostile/make.py FOLDER`` makes all of it, and the
tests make each attack when they try it. Every attack is a function in one of the modules here.
"""

from .corpus import ATTACKS, Attack


def all_attacks() -> dict[str, Attack]:
    """Every attack by its name."""
    from . import (  # noqa: F401
        folders,
        images,
        lmdb_files,
        several_fields,
        shard_files,
        shown_names,
    )
    from .hdf5 import arrays, bombs, compact, files, filters, lengths, links, types  # noqa: F401
    from .stores import attacks as stores

    if "store_virtual" not in ATTACKS:
        stores.register()

    return ATTACKS
