"""``python -m asyncreader`` is the ``asyncreader`` command."""

from .cli import main

main()
