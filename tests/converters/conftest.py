"""The folder that most of these tests pack."""

from pathlib import Path

import pytest
from converter_corpus import write_small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 pictures of 20x30 in three classes."""
    return write_small(tmp_path_factory.mktemp("folder"))
