"""Faults on purpose: asyncreader meets what breaks a loader, and every outcome is counted.

``python tests/faults/run.py`` runs a short form of every case, ``--long`` the one whose figures
SECURITY.md and README show. A case is a small file ``case_<name>.py`` here (see case.py).
"""
