"""`docs/models.md` shows what `make models` measured last, and enough families are right."""

import json

import pytest

from tests.families.__main__ import PAGE, RESULTS
from tests.families.families import FAMILIES
from tests.families.page import count_tested, fill, render

pytestmark = pytest.mark.unit


def test_the_page_shows_what_was_measured_last() -> None:
    results = json.loads(RESULTS.read_text())
    assert results.keys() <= FAMILIES.keys()
    assert PAGE.read_text("utf-8") == fill(PAGE.read_text("utf-8"), render(results)), "run `make models`"
    assert count_tested(results) > 0


def test_a_family_is_tested_refused_or_not_tried() -> None:
    right = {
        "attention": "sdpa",
        "is_packed": True,
        "difference": 4e-7,
        "rounding": 0.01,
        "has_names_of_its_files": True,
    }
    table = render(
        {
            "a": {"learner": right, "engine": {"differences": [1e-6, 2e-6]}, "lora": {"refused": "no | such <layer>"}},
            "b": {"learner": {**right, "is_packed": False}, "engine": {"differences": [2.5]}, "lora": {}},
            "c": {"learner": {"refused": "verl cannot train this model"}},
        }
    )
    assert table.splitlines()[0] == "1 of 3 families are right from the learner to the engine."
    assert table.splitlines()[4:] == [
        "| a | *tested*: sdpa, packed, 4e-07 | *tested*: 2e-06 | *refused*: no / such ‹layer› | same names |",
        "| b | *tested*: sdpa, padded, 4e-07 | *refused* by the engine check: 2 nats off | *not tried* | same names |",
        "| c | *refused*: verl cannot train this model | – | – | – |",
    ]
