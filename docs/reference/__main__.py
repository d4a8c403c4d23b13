"""``python -m docs.reference``: write the generated parts of all pages."""

from docs.reference.pages import PARTS

if __name__ == "__main__":
    for part in PARTS:
        part.write()
