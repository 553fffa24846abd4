"""The notebooks are kept clean; `make docs` executes them."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_the_five_that_the_documentation_shows():
    shown = (ROOT / "docs" / "notebooks.md").read_text()
    listed = (ROOT / "notebooks" / "README.md").read_text()
    assert len(NOTEBOOKS) == 5
    for notebook in NOTEBOOKS:
        assert f"notebooks/{notebook.stem}\n" in shown
        assert f"({notebook.name})" in listed


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_its_code_compiles(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert cells[0]["cell_type"] == "markdown"
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    for cell in code:
        compile("".join(cell["source"]), notebook.name, "exec")
