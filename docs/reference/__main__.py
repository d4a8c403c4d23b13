"""``python -m docs.reference``: write the generated parts of all pages, and the blocking Python API."""

from docs.reference.blocking_api import TARGET, render_blocking_api
from docs.reference.pages import PARTS

if __name__ == "__main__":
    for part in PARTS:
        part.write()
    TARGET.write_text(render_blocking_api(), "utf-8")
