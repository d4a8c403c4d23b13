"""``python -m docs.reference``: write the generated parts of all pages."""

from docs.reference.pages import PARTS

for part in PARTS:
    part.write()
