"""Arguments that are sent while they come begin as any serialisation of them does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.runners.protocol.answers.json_prefix import JsonPrefix

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)
STYLES: tuple[dict[str, Any], ...] = ({}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": True})


def prefix_of(text: str, cuts: Any = None) -> JsonPrefix:
    prefix, grown = JsonPrefix(), ""
    while text:
        length = cuts.randrange(1, 5) if cuts else len(text)
        grown += prefix.feed(text[:length])
        text = text[length:]
    assert grown == prefix.prefix
    return prefix


@given(OBJECTS, st.randoms(use_true_random=False))
def test_a_text_in_the_standard_form_is_certain_up_to_its_end(value: dict[str, Any], cuts: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    prefix = prefix_of(text, cuts)
    assert prefix.prefix == text and prefix.is_complete


@given(OBJECTS, st.sampled_from(STYLES), st.randoms(use_true_random=False))
def test_a_text_in_another_form_is_certain_as_far_as_both_agree(
    value: dict[str, Any], style: dict[str, Any], cuts: Any
) -> None:
    text = json.dumps(value, **{"ensure_ascii": False, **style})
    prefix = prefix_of(text, cuts).prefix
    assert text.startswith(prefix) and json.dumps(value, ensure_ascii=False).startswith(prefix)
    assert prefix


@given(OBJECTS, st.integers(min_value=0), st.text(alphabet='{}[],:"\\ 1eax', max_size=3), st.randoms())
def test_a_malformed_text_is_certain_up_to_the_fault(value: dict[str, Any], at: int, fault: str, cuts: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    at %= len(text)
    faulty = text[:at] + fault + text[at + len(fault) :]
    prefix = prefix_of(faulty, cuts)
    assert faulty.startswith(prefix.prefix)
    try:
        parsed = json.loads(faulty)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict) and not has_repeated_key(faulty):
        assert json.dumps(parsed, ensure_ascii=False).startswith(prefix.prefix)
    elif prefix.is_complete:
        json.loads(prefix.prefix)


def has_repeated_key(text: str) -> bool:
    repeated = []
    json.loads(text, object_pairs_hook=lambda pairs: repeated.append(len(pairs) - len(dict(pairs))) or dict(pairs))
    return any(repeated)


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("", ""),
        ("null", ""),
        ("[1]", ""),
        ('"text"', ""),
        ('{"a": 1.0}', '{"a": 1.0}'),
        ('{"a": 1.10}', '{"a": '),
        ('{"a": 1e5}', '{"a": '),
        ('{"a": -0}', '{"a": '),
        ('{"a": 12', '{"a": '),
        ('{"a": NaN}', '{"a": '),
        ('{"a": "\\u00e9"}', '{"a": "'),
        ('{"a": "\\u001b[0m"}', '{"a": "\\u001b[0m"}'),
        ('{"a": "\\u000a"}', '{"a": "'),
        ('{"a": "\\/"}', '{"a": "'),
        ('{"a": "x\\', '{"a": "x'),
        ('{"a": "\ud83d', '{"a": "'),
        ('{"a": 1}}', '{"a": 1}'),
        ('{"a": 1]', '{"a": 1'),
        ('{"a": [1}', '{"a": [1'),
        ('{"a" : 1}', '{"a"'),
        ('{"a": true,\n"b": 1}', '{"a": true,'),
    ],
)
def test_what_is_certain(text: str, certain: str) -> None:
    assert prefix_of(text).prefix == certain
