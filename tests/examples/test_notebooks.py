"""The notebooks of docs/notebooks: they run, with the outputs that they show."""

import re

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
