"""Texts that are shortened for a line of a log or an error."""

import pytest

from lightningbus.run.evaluation.failures import describe_failures
from lightningbus.schemas.text import shorten_line


def test_a_text_that_fits_is_one_line() -> None:
    assert shorten_line("one\n  two ", 7) == "one two"


def test_a_long_text_keeps_whole_words_of_both_ends() -> None:
    assert shorten_line("BadRequest: status 400 of http://127.0.0.1/v1: prompt is too long", 40) == (
        "BadRequest: … prompt is too long"
    )


@pytest.mark.parametrize("text", ["aa bbbb cc", "a" * 20, "a b " * 20, "é" * 20])
def test_no_text_is_longer_than_the_limit(text: str) -> None:
    assert all(len(shorten_line(text, limit)) <= limit for limit in range(3, 22))


def test_a_long_word_is_cut_itself() -> None:
    assert shorten_line("a" * 10 + "b" * 10, 12) == "aaa … bbbbbb"


def test_a_half_of_a_pair_is_replaced() -> None:
    assert shorten_line("\ud800", 10) == "?"


def test_the_reason_at_the_end_of_a_failure_stays() -> None:
    """An HTTP client puts address, headers and body before the reason, and the runner the place after it."""
    reason = "maximum context length is 4096 tokens, and the messages have 5120 (in solve, /home/ann/agent.py:42)"
    error = f"BadRequestError: Error code: 400 - {'x, ' * 300}{reason}"
    described = describe_failures([("agent_error", error)])
    assert described.startswith("1 of 1 rollouts failed: agent_error: BadRequestError: Error code: 400") and (
        described.endswith(reason)
    )
