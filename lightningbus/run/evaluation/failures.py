"""Failed rollouts in words: their number, and the most frequent reason. Pure."""

from collections import Counter
from collections.abc import Iterable

from lightningbus.schemas.text import shorten_line

MAX_ERROR_CHARS = 300


def describe_failures(outcomes: Iterable[tuple[str, str]]) -> str:
    """Count failed rollouts, with the most frequent reason: ``3 of 4 rollouts failed: agent_error: KeyError``.

    Empty if none failed. ``outcomes``: outcome and error of each rollout.
    """
    counted = Counter((outcome, " ".join(error.split())) for outcome, error in outcomes)
    failed = Counter({reason: count for reason, count in counted.items() if reason[0] != "ok"})
    if not failed:
        return ""
    num_failed, ((outcome, error), most) = failed.total(), failed.most_common(1)[0]
    reason = f"{outcome}: {shorten_line(error, MAX_ERROR_CHARS)}" if error else outcome
    often = f" ({most} times)" if most < num_failed else ""
    return f"{num_failed} of {counted.total()} rollouts failed: {reason}{often}"
