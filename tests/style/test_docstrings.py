"""The checks of docstrings that `make check` runs find what they should."""

from pathlib import Path

import pytest

from tests.style import backticks, docstrings
from tests.style.docstrings import Docstring


@pytest.mark.parametrize(
    ("text", "is_fragment"),
    [
        ("What the bus lost.", True),
        ("`Of` the stream.", True),
        ("Return what the bus lost.", False),
        ("Whether it is ready.", False),
        ("``rows``: of a table.", False),
        ("", False),
    ],
)
def test_a_fragment_is_known_by_its_first_word(text: str, is_fragment: bool) -> None:
    assert Docstring(Path(__file__), 1, text).is_fragment == is_fragment


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("Take ``rows`` as `Batch.add` does.", []),
        ("Take ``cells`` as `Batch.add` does.", ["cells"]),
        ("Take ``rows`` as `Batch.insert` does.", ["Batch.insert"]),
        ("Compute ``x_t`` of `N` tokens, ``[N, T]``; see ``a b``.", []),
    ],
)
def test_an_unknown_name_is_found(tmp_path: Path, text: str, unknown: list[str]) -> None:
    path = tmp_path / "module.py"
    path.write_text(f'def take(rows):\n    """{text}"""\n')
    names = backticks.find_unknown_names(path, frozenset(["Batch", "add"]), frozenset())
    assert [name for _, name in names] == unknown


MODULE = '''"""Module."""

LIMIT = 1
"""Limit."""


class Batch:
    """Class."""

    def __init__(self):
        self.rows = 0
        """Rows."""
        "no docstring".strip()
'''


def test_attributes_have_docstrings_too(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    texts = [docstring.text for docstring in docstrings.find_docstrings(path)]
    assert sorted(texts) == ["Class.", "Limit.", "Module.", "Rows."]
