"""The beginning of the last message of a call, for lists of calls."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.schemas.spans import Span
from lightningbus.store.ingest.rows.call_rows import PREVIEW_CHARS, model_call_row
from tests.factories import model_call

CHARACTERS = st.characters(exclude_categories=["Cs"])
CONTENTS = st.text(CHARACTERS) | st.text(st.sampled_from('x"\\\n\u2028\x00😀é'), max_size=3 * PREVIEW_CHARS)


def previews(request: str, response: str = "") -> tuple[str, str]:
    call = model_call(0, [1], [2], request=request, response=response)
    span = Span(trace_id="1" * 32, span_id="1" * 16, name="chat", start_ns=1, end_ns=2, call=call)
    row = model_call_row(call, span)
    return row["request_preview"], row["response_preview"]


@given(CONTENTS, st.booleans(), st.sampled_from([(", ", ": "), (",", ":")]))
def test_it_is_the_first_characters_of_the_last_message(
    content: str, is_ascii: bool, separators: tuple[str, str]
) -> None:
    messages = [{"role": "system", "content": "first"}, {"role": "user", "content": content}]
    text = json.dumps({"messages": messages}, ensure_ascii=is_ascii, separators=separators)
    assert previews(text)[0] == content[:PREVIEW_CHARS]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"prompt": "once \\"upon\\" a time"}', 'once "upon" a time'),
        ('{"content": [{"type": "text", "text": "parts"}]}', "parts"),
        ('{"role": "assistant", "content": null}', '{"role": "assistant", "content": null}'),
        ('{"content": "is cut off', "is cut off"),
        ('{"content": "of a\nform that JSON does not have"}', '{"content": "of a\nform that JSON does not have"}'),
        ("no JSON at all " * 30, ("no JSON at all " * 30)[:PREVIEW_CHARS]),
        ("", ""),
    ],
)
def test_other_texts_are_shown_from_their_beginning(text: str, expected: str) -> None:
    assert previews(text, text) == (expected, expected)
