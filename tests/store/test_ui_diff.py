"""Two rollouts aligned by message."""

from typing import Any

from lightningbus.store.ui.rollouts.diff import TranscriptMessage, align, compare_words, message_text, transcript_of


def chat(*texts: str) -> list[TranscriptMessage]:
    roles = ("user", "assistant")
    return [TranscriptMessage(roles[index % 2], text, index // 2) for index, text in enumerate(texts)]


def shape(rows: list[dict[str, Any]]) -> list[tuple[bool, bool, bool]]:
    return [(row["same"], row["a"] is not None, row["b"] is not None) for row in rows]


def test_equal_messages_stand_in_one_row_and_changed_words_are_marked() -> None:
    rows = align(chat("2 + 2?", "It is 4.", "Sure?"), chat("2 + 2?", "It is 5.", "Sure?"))
    assert shape(rows) == [(True, True, True), (False, True, True), (True, True, True)]
    assert rows[1]["a"]["pieces"] == [("It is ", False), ("4", True), (".", False)]
    assert rows[1]["b"]["pieces"] == [("It is ", False), ("5", True), (".", False)]


def test_a_message_that_only_one_has_stands_alone() -> None:
    assert shape(align(chat("a", "b", "c"), chat("a"))) == [
        (True, True, True),
        (False, True, False),
        (False, True, False),
    ]
    assert shape(align([], chat("a"))) == [(False, False, True)]
    other_role = align([TranscriptMessage("user", "x", 0)], [TranscriptMessage("tool", "y", 0)])
    assert shape(other_role) == [(False, True, False), (False, False, True)]


def test_no_message_is_lost_whatever_the_order() -> None:
    first, second = chat("a", "b", "c", "d"), chat("c", "b", "x", "d", "e")
    rows = align(first, second)
    for name, messages in (("a", first), ("b", second)):
        texts = ["".join(text for text, _ in row[name]["pieces"]) for row in rows if row[name]]
        assert texts == [message.text for message in messages]


def test_a_very_long_message_is_marked_whole() -> None:
    long = "word " * 5000
    assert compare_words(long, "word") == ([(long, True)], [("word", True)])


def test_messages_of_any_kind_are_text() -> None:
    assert message_text({"role": "user", "content": [{"type": "text", "text": "hi"}, "there"]}) == 'hi\n"there"'
    assert '"name": "add"' in message_text({"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]})
    assert message_text({"role": "user", "content": ""}) == "" and message_text("cut") == "cut"
    assert transcript_of([{"call": 0, "messages": [["odd"]], "answer": "yes"}]) == [
        TranscriptMessage("message", '[\n  "odd"\n]', 0),
        TranscriptMessage("assistant", "yes", 0),
    ]
