"""Rows of recorded model calls, as ``lightningbus rollouts export`` writes them: tokens to learn from."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lightningbus.learner.batching.demonstrations import Demonstration
from lightningbus.learner.data_lines import Line, build_each
from lightningbus.learner.transitions.chats import demonstrated_call
from lightningbus.learner.transitions.tokenizer import find_vocabulary_size
from lightningbus.learner.transitions.transitions import Transition

ROLLOUT, CALL, PROMPT, RESPONSE = "rollout", "call", "prompt_ids", "response_ids"


class CallRow(NamedTuple):
    """A call, and the rollout that made it."""

    rollout: str
    call: Transition


def holds_calls(lines: Sequence[Line]) -> bool:
    """Return whether a file has rows of calls rather than chats or pairs, by its first line."""
    return bool(lines) and RESPONSE in lines[0][1]


def load_calls(path: Path, lines: Sequence[Line], model_path: Path) -> list[CallRow]:
    """Read the call of each row; raise ValueError with the line of a row that has no tokens of the model."""
    size, seen = find_vocabulary_size(model_path), dict[tuple[str, int], int]()

    def read(number: int, line: Mapping[str, Any]) -> CallRow:
        row = _read_row(line, size)
        first = seen.setdefault((row.rollout, row.call.index), number)
        if first != number:
            raise ValueError(f"call {row.call.index} of rollout {row.rollout!r} is in line {first} too")
        return row

    return build_each(path, lines, read)


def join_calls(rows: Iterable[CallRow]) -> list[Demonstration]:
    """Build a demonstration of each rollout, of its calls in their order, wherever in the file their rows are."""
    rollouts: dict[str, list[Transition]] = {}
    for row in rows:
        rollouts.setdefault(row.rollout, []).append(row.call)
    return [Demonstration(name, sorted(calls, key=lambda call: call.index)) for name, calls in rollouts.items()]


def _read_row(line: Mapping[str, Any], vocabulary_size: int | None) -> CallRow:
    for name in (ROLLOUT, CALL, PROMPT, RESPONSE):
        if line.get(name) is None:
            raise ValueError(f"it has no {name}: a row of a call has {ROLLOUT}, {CALL}, {PROMPT} and {RESPONSE}")
    rollout, index = line[ROLLOUT], line[CALL]
    if not isinstance(rollout, str | int):
        raise ValueError(f"{ROLLOUT} is not a name but {str(rollout)[:40]!r}")
    if not _is_count(index):
        raise ValueError(f"{CALL} is not the number of a call but {str(index)[:40]!r}")
    tokens = [_read_tokens(name, line[name], vocabulary_size) for name in (PROMPT, RESPONSE)]
    return CallRow(str(rollout), demonstrated_call(index, *tokens))


def _read_tokens(name: str, tokens: Any, vocabulary_size: int | None) -> list[int]:
    if not isinstance(tokens, list):
        raise ValueError(f"{name} is not a list of token ids but {str(tokens)[:40]!r}")
    for token in tokens:
        if not _is_count(token):
            raise ValueError(f"{name} has {str(token)[:40]!r}, which is not a token id")
        if vocabulary_size is not None and token >= vocabulary_size:
            raise ValueError(
                f"{name} has token {token}, but the model has {vocabulary_size}: it is of another model's calls"
            )
    return tokens


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
