"""The notebooks are executed; what they say is asserted in their own cells."""

from __future__ import annotations

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
@pytest.mark.filterwarnings("default")  # nbclient's own
def test_notebook(path, tmp_path):
    """Every cell runs, in a fresh kernel, and no outputs are checked in."""
    notebook = nbformat.read(path, as_version=4)
    assert [] == [cell.id for cell in notebook.cells if cell.get("outputs")]
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_there_are_notebooks():
    """The quickstart is there."""
    assert "01_quickstart.ipynb" in [path.name for path in NOTEBOOKS]
