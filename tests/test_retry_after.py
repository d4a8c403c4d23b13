"""The seconds that an endpoint asks to wait: a number or a date, or nonsense."""

import pytest

from lightningbus.common.retry_after import read_retry_after

NOW = 784_111_777.0
"""6 November 1994, 08:49:37, in seconds since 1970."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120), ("0.5", 0.5), ("-3", 0), ("Sun, 06 Nov 1994 08:50:37 GMT", 60), ("nan", 0), ("1e999", 0),
        ("Sun, 06 Nov 1994 08:48:37 GMT", 0), ("Sun, 06 Nov 1994 08:50:37 -0000", 60), ("soon", 0), ("", 0),
        ("Sun, 06 Nov 99999 08:50:37 GMT", 0),
    ],
)  # fmt: skip
def test_a_number_and_a_date_are_seconds_and_nonsense_is_none(text: str, seconds: float) -> None:
    assert read_retry_after({"Retry-After": text}, NOW) == seconds


def test_no_header_is_no_wait() -> None:
    assert read_retry_after({}, NOW) == 0
