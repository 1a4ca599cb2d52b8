"""The notebooks of docs/notebooks: they run, with the outputs that they show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import notebooks
import pytest
from project import ROOT


def test_notebooks_are_tidy() -> None:
    """Each notebook is below 100 kB, stands in the site's navigation, has outputs, and keeps
    nothing of the machine and the editor that ran it."""
    assert len(notebooks.NAMES) == 5
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in notebooks.NAMES:
        path = notebooks.FOLDER / f"{name}.ipynb"
        text, found = path.read_text(encoding="utf-8"), notebooks.read(name)
        assert path.stat().st_size < 100_000
        assert f": notebooks/{name}.ipynb\n" in site
        assert text == notebooks.written(notebooks.tidy(found))
        assert not re.search(r"(?<![\w.<])/(?:home|root|Users|work|mnt|scratch|tmp|var)/\w", text)
        code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
        assert sum(bool(cell["outputs"]) for cell in code) > len(code) // 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries that talk to the kernel
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_notebooks_run(name: str) -> None:
    """A new kernel gives each cell's kept output, but for measurements."""
    pytest.importorskip("nbclient", reason="pip install -e '.[notebooks]'")
    kept = notebooks.read(name)
    ran = notebooks.run(kept)
    for before, now in zip(kept["cells"], ran["cells"], strict=True):
        assert notebooks.comparable(now) == notebooks.comparable(before), "".join(now["source"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_progress_in_a_notebook(tmp_path: Path) -> None:
    """In a notebook's kernel convert() shows one output, replaced as it goes on and empty at
    the end; a batch is shown in the middle of a cell, as HTML."""
    nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[notebooks]'")
    nbformat = pytest.importorskip("nbformat")
    source = (
        "import numpy as np\nfrom asyncreader import AsyncReader, convert\n"
        "convert(np.zeros((2000, 4, 4, 3), np.uint8), 'a.h5')\n"
        "with AsyncReader('a.h5', batch_size=4) as reader:\n"
        "    next(iter(reader)).show(2)\n    print('behind')\n"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    said: list[Any] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc,name-defined]
        def process_message(self, message: Any, cell: Any, index: int) -> Any:
            said.append((message["msg_type"], message["content"]))
            return super().process_message(message, cell, index)

    Client(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    line, batch, behind = notebook.cells[0].outputs
    assert line.data == {"text/plain": ""}
    assert batch.data["text/html"].count("<img ") == 2
    assert behind.text == "behind\n"
    lines = [part["data"]["text/plain"] for kind, part in said if kind == "update_display_data"]
    first = next(part["data"]["text/plain"] for kind, part in said if kind == "display_data")
    assert re.match(r"converting: 2,000 of 2,000, [\d,]+/s$", [first, *lines][-2])
    assert lines[-1] == ""
