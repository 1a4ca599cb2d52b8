"""Faults on purpose: asyncreader meets what breaks a loader, and every outcome is counted.

test_cases.py runs a short form of every case, and with ``--long`` the one whose figures
docs/reliability.md shows. A case is in a file ``case_<name>.py`` (see case.py): of hostile files
here, of damaged ones in damage/, of programs that end, are killed or run for long in programs/.
"""

import sys
from pathlib import Path

#: Where the helpers of all tests are, also for the processes that cases start.
SUPPORT = str(Path(__file__).resolve().parents[1] / "support")
if SUPPORT not in sys.path:
    sys.path.append(SUPPORT)
