"""Faults on purpose: asyncreader meets what breaks a loader, and every outcome is counted.

``python tests/faults/run.py`` runs a short form of every case, ``--long`` the one whose figures
<<<<<<< HEAD
docs/reliability.md shows. A case is a small file ``case_<name>.py`` here (see case.py).
=======
SECURITY.md and docs/reliability.md show. A case is a file ``case_<name>.py`` here (see case.py).
>>>>>>> 42f36f9 (Every block of README and of docs/*.md runs in a test, page by page)
"""

import sys
from pathlib import Path

#: Where the helpers of all tests are, also for the processes that cases start.
SUPPORT = str(Path(__file__).resolve().parents[1] / "support")
if SUPPORT not in sys.path:
    sys.path.append(SUPPORT)
