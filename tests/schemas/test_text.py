"""Texts that are cut for a line of a log or an error."""

from lightningbus.schemas.text import cut_at_word


def test_a_text_that_fits_is_one_line() -> None:
    assert cut_at_word("one\n  two ", 7) == "one two"


def test_a_long_text_ends_after_a_whole_word() -> None:
    assert cut_at_word("code (AUTHENTICATION_FAILED) (version 25)", 36) == "code (AUTHENTICATION_FAILED) …"
    assert all(len(cut_at_word("aa bbbb cc", limit)) <= limit for limit in range(2, 12))


def test_a_long_word_is_cut_itself() -> None:
    assert cut_at_word("a" * 20, 10) == "a" * 8 + " …"
