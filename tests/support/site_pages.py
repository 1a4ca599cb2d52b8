"""A hook of mkdocs: adds README as the first page, the list of all files of the product, and the
files outside docs/ that pages link to.

The pages in docs/ stay as a code host shows them: there a link to ../SECURITY.md leads to the file.
"""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # mkdocs loads this file by its path

from tree import page as tree_page

ROOT = Path(__file__).resolve().parents[2]

#: Files outside docs/ that are pages of the site.
PAGES = {"README.md": "index.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
PAGES |= {"tests/benchmarks/RESULTS.md": "results.md"}

_UP = re.compile(r"^(?:\.\./)+")
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(\]\()([\w./-]+)((?:#[\w-]*)?\))")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, and the other files that a page links to."""
    from mkdocs.structure.files import File

    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md"))]
    for name, page in PAGES.items():
        texts.append((ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=texts[-1]))
    files.append(File.generated(config, "files.md", content=tree_page()))
    targets = {_UP.sub("", target) for text in texts for _, target, _ in _LINK.findall(text)}
    for name in sorted(targets - set(PAGES)):
        outside = not name.startswith("docs/") and not (ROOT / "docs" / name).exists()
        if outside and (ROOT / name).is_file():
            content = (ROOT / name).read_bytes()
            files.append(File.generated(config, f"files/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turns links that leave docs/ into links to the pages and files that were added. A code host
    needs the bars of code in tables escaped; the site would show the escape.
    """

    def inside(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        name = _UP.sub("", target).removeprefix("docs/")
        name = PAGES.get(name, name)
        if files.get_file_from_path(name) is None and files.get_file_from_path(f"files/{name}"):
            name = f"files/{name}"
        return before + name + after

    plain = _CODE.sub(lambda code: code[0].replace("\\|", "|"), markdown)
    return _LINK.sub(inside, plain)
