"""What the stand-in for vLLM samples: each token follows from all before it, each log-probability from the weights.

So whoever reads a model call later can tell whether its tokens are exact, however often the answer broke off on its
way, and whether the version it is labelled with is the one the engine held.
"""

from array import array
from collections.abc import Sequence
from zlib import crc32

LONGEST = 12


def next_token(context: Sequence[int], vocabulary: int) -> int:
    """The one token that can follow."""
    return crc32(array("I", context).tobytes()) % vocabulary


def ends(token: int) -> bool:
    """Whether an answer ends with this token."""
    return token % 7 == 0


def logprob(version: int) -> float:
    """Log-probability of any token sampled by a version."""
    return -(version + 1) / 1000


def version_of(logprob: float) -> int:
    """The version that gives this log-probability."""
    return round(-logprob * 1000) - 1


def teacher_logprob(context: Sequence[int], token: int) -> float:
    """Log-probability that the teacher gives a token after those before it, in nats."""
    return -(1 + crc32(array("I", [*context, token]).tobytes()) % 4000) / 1000


def prompt_of(text: str, vocabulary: int) -> list[int]:
    """A prompt's tokens."""
    return [crc32(f"{place}{text}".encode()) % vocabulary for place in range(6)]


def flaw(
    prompt: Sequence[int], response: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], vocabulary: int
) -> str:
    """What is wrong with a recorded call; empty if nothing is."""
    if not len(response) == len(logprobs) == len(versions) or not response:
        return f"{len(response)} tokens, {len(logprobs)} log-probabilities, {len(versions)} versions"
    kept = [version_of(value) for value in logprobs]
    if kept != list(versions):
        return f"labelled {list(versions)}, but sampled by {kept}"
    if any(ends(token) for token in response[:-1]):
        return "goes on after its end"
    context = list(prompt)
    for token in response:
        if token != next_token(context, vocabulary):
            return "its tokens are not those the engine sampled"
        context.append(token)
    return ""
