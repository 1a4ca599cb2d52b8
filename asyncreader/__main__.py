"""``python -m asyncreader`` is the ``asyncreader`` command."""

import os
import sys

# -m looks for modules where it is run, first of all, and a converters.py there is the user's own.
# Where this package was found in that folder itself, it is a checkout.
if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

from .cli.main import main

main()
