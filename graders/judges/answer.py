"""A judge's answer, and the record of a call. Pure."""

from dataclasses import dataclass

import msgspec


class JudgeAnswer(msgspec.Struct, frozen=True):
    """Text of an answer, and the tokens that it took."""

    text: str
    prompt_tokens: int = 0
    response_tokens: int = 0


@dataclass(frozen=True, slots=True)
class JudgeCall:
    """One question to a judge, answered by the endpoint or from the cache."""

    grader: str
    model: str
    request_sha256: str
    answer: JudgeAnswer
    is_cached: bool
    cost: float
    started_ns: int
    ended_ns: int
