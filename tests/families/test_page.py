"""`docs/models.md` shows what `make models` measured last, and enough families are right."""

import json

import pytest

from tests.families.__main__ import PAGE, RESULTS
from tests.families.families import FAMILIES
from tests.families.page import count_tested, fill, is_right, render

pytestmark = pytest.mark.unit

MIN_MEASURED = 50
"""Families of which it is known whether they are right."""
MIN_TRAINED = 30
"""Families that were trained for three steps."""


def test_the_page_shows_what_was_measured_last() -> None:
    results = json.loads(RESULTS.read_text())
    assert results.keys() <= FAMILIES.keys()
    assert PAGE.read_text("utf-8") == fill(PAGE.read_text("utf-8"), render(results)), "run `make models`"
    assert len(results) >= MIN_MEASURED and count_tested(results) > len(results) / 2
    trained = [item["training"] for item in results.values() if "training" in item]
    assert len(trained) >= MIN_TRAINED and all(is_right(training) for training in trained)


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
            "d": {
                "learner": {**right, "seconds": 1.25},
                "engine": {"differences": [1e-3], "seconds": 0.5},
                "lora": {"differences": [3e-6], "all_linear": "no experts"},
                "training": {"differences": [1e-12, 2e-12, 0.0]},
            },
        }
    )
    assert table.splitlines()[0] == (
        "1 of 4 families are right from the learner to the engine. "
        "Trained for three steps: 1, at most 2e-12 nats apart."
    )
    assert table.splitlines()[4:] == [
        "| a | *tested*: sdpa, packed, 4e-07 | *tested*: 2e-06 | *refused*: no / such ‹layer› | same names "
        "| *not tried* |",
        "| b | *tested*: sdpa, padded, 4e-07 | *refused* by the engine check: 2 nats off | *not tried* "
        "| same names | *not tried* |",
        "| c | *refused*: verl cannot train this model | – | – | – | – |",
        "| d | *tested*: sdpa, packed, 4e-07 | *rounded*: 1e-03 | attention alone *tested*: 3e-06; all *refused* "
        "| same names | *tested*: 2e-12 |",
        "",
        "The check takes the learner 1.25 s, at most 1.25 s of CPU, and the engine 0.50 s, at most 0.50 s.",
    ]
