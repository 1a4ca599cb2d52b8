"""The notebooks of docs/notebooks: ``python tests/support/notebooks.py [NAME ...]`` runs them, and
writes the outputs that changed (pip install -e '.[notebooks]').

Two outputs are alike if they differ in nothing but images, checksums, durations, rates and sizes;
those of a cell with the tag ``varies``, which shows measurements, always are.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

from project import ROOT

FOLDER = ROOT / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))

#: A notebook or a part of it, as its JSON.
Json: TypeAlias = dict[str, Any]

#: What the progress of a command does to a terminal: the line above is erased; and colours.
_ERASED = re.compile(r"[^\n]*\n\x1b\[1A\x1b\[2K")
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_IMAGE = re.compile(r"data:image/\w+;base64,[\w+/=]+")
#: What is said where no kernel was compiled before.
_COMPILING = re.compile(r"^asyncreader: compiling.*$", re.MULTILINE)
#: A checksum: decoders of images may differ in a bit between versions.
_DIGEST = re.compile(r"\b[0-9a-f]{16,}\b")
_MEASURED = re.compile(r"\d[\d.,]* ?(?=(?:s|ms|us|min|bytes|kB|MB|GB|/s|samples/s)\b)")

#: Says in the notebook's file which kernel runs it, and nothing of the machine.
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read(name: str) -> Json:
    """A notebook as it is kept."""
    found: Json = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return found


def run(notebook: Json) -> Json:
    """The notebook with the outputs of a new kernel that works in a temporary folder, as if that
    were a checkout's ``docs/notebooks``; the folder's own path is left out of them. It is short:
    commands fold lines that are long."""
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        beside = Path(folder) / "docs" / "notebooks"
        beside.mkdir(parents=True)
        (Path(folder) / "sample_data").symlink_to(ROOT / "sample_data")
        return _run(notebook, beside)


def _run(notebook: Json, beside: Path) -> Json:
    import nbclient
    import nbformat

    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    client = nbclient.NotebookClient(
        nbformat.reads(json.dumps(notebook), as_version=4),
        timeout=300,
        startup_timeout=300,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(beside)}},
    )
    ran: Json = json.loads(nbformat.writes(client.execute(env=env)))
    for cell in ran["cells"]:
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = as_seen("".join(output["text"])).splitlines(keepends=True)
    text = json.dumps(ran).replace(f"{beside}/", "").replace(f"{beside}", "docs/notebooks")
    return tidy(json.loads(text))


def as_seen(text: str) -> str:
    """What is left on a terminal of what a command writes, in black and white."""
    erased = 1
    while erased:
        text, erased = _ERASED.subn("", text)
    return _CONTROL.sub("", text).replace("\r\n", "\n")


def tidy(notebook: Json) -> Json:
    """What is kept: no times, ids or metadata of an editor, and no outputs that show nothing."""
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        tags = {"tags": cell["metadata"]["tags"]} if cell["metadata"].get("tags") else {}
        kept = {**cell, "id": f"cell-{number}", "metadata": tags}
        if cell["cell_type"] == "code":
            kept["outputs"] = [one for one in cell["outputs"] if _shows(one)]
        cells.append(kept)
    return {"cells": cells, "metadata": _METADATA, "nbformat": 4, "nbformat_minor": 5}


def _shows(output: Json) -> bool:
    return any(map(_text, output["data"].values())) if "data" in output else True


def _text(given: Any) -> str:
    return "".join(given) if isinstance(given, list) else str(given)


def comparable(cell: Json) -> object:
    """What two runs of a cell have in common."""
    if cell["cell_type"] != "code":
        return None
    outputs = cell["outputs"]
    if "varies" in cell["metadata"].get("tags", []):
        return bool(outputs)
    found = []
    for one in outputs:
        data = one.get("data", {"text": one.get("text", "")})
        # where there is more than text, that is what a reader sees
        kinds = sorted(set(data) - {"text/plain"}) or ["text/plain"]
        alike = [(kind, _alike(data[kind])) for kind in kinds]
        if any(text for _, text in alike):
            found.append([one["output_type"], *alike])
    return found


def _alike(part: Any) -> str:
    text = _COMPILING.sub("", _text(part))
    text = _DIGEST.sub("digest", _IMAGE.sub("image", text))
    return "".join(_MEASURED.sub("N ", text).split())  # lines may be folded elsewhere


def written(notebook: Json) -> str:
    """A notebook's file: as Jupyter writes it, with the keys in their order."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(names: list[str]) -> None:
    """Run notebooks; keep the outputs of cells that are as they were."""
    for name in names or NAMES:
        old = read(name)
        new = run(old)
        for number, (before, now) in enumerate(zip(old["cells"], new["cells"], strict=True)):
            if before["cell_type"] == "code" and before["outputs"]:
                if comparable(before) == comparable(now):
                    now["outputs"] = before["outputs"]
                else:
                    print(f"{name}: another output of cell {number}")
        (FOLDER / f"{name}.ipynb").write_text(written(tidy(new)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
