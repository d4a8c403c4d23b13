"""``python run_notebook.py NOTEBOOK OUT PARAMETERS``: run a notebook in the current directory, as Jupyter would.

``PARAMETERS`` is Python that is appended to the cell tagged ``parameters``. ``OUT`` gets the notebook with its outputs.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main(source: Path, out: Path, parameters: str) -> None:
    notebook = nbformat.read(source, as_version=4)
    (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    cell.source += f"\n{parameters}"
    resources = {"metadata": {"path": str(Path.cwd())}}
    client = NotebookClient(notebook, timeout=1500, kernel_name="python3", resources=resources)
    try:
        client.execute()
    finally:
        nbformat.write(notebook, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
