"""Makes the whole corpus: ``python tests/faults/hostile/make.py FOLDER``, a folder an attack.

To try other readers, or other programs, on it. Next to the attacks lie ``outside/`` (the canaries)
and ``plugins/`` (for HDF5_PLUGIN_PATH), whose library makes ``plugin-was-loaded`` when it is.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # run as a file: by the same names as in pytest
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.path.insert(1, str(Path(__file__).resolve().parents[3]))

from faults.hostile import all_attacks
from faults.hostile.corpus import Corpus


def main(folder: str) -> int:
    """Make all of it; 0 when done."""
    corpus = Corpus(Path(folder))
    for attack in all_attacks().values():
        made, made_in = corpus.prepare(attack)
        made_in.rename(made_in.with_name(attack.name))
        said = " ".join((attack.make.__doc__ or "").split())
        print(f"{attack.name}: {said} [{Path(made.path).name}]")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
