"""The notebook runs from top to bottom, and what it trains answers in its new way."""

import pathlib

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("matplotlib")


def test_the_notebook_fine_tunes_and_plots():
    folder = pathlib.Path(__file__).parent.parent
    notebook = nbformat.read(folder / "finetune.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    last = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
    assert "after:  Arr, it be" in last
