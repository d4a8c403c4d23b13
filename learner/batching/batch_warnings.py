"""Warnings about settings that do not fit a batch: one log line for the first time, a metric for every step. Pure."""

from collections.abc import Mapping, MutableSet

IGNORED_REWARDS = "rewards/ignored"
"""Calls with a step reward that the credit method does not use."""
TRUNCATED_SHARE = "truncated_share"
"""Share of trained tokens sampled with truncation, penalties or constraints."""
TRUNCATED_CALLS = "truncated"
"""Calls by the setting, as ``truncated/top_k``."""
IGNORE_STEP_REWARDS = {"identical", "last_call", "discounted"}
"""Credit methods that share the outcome alone."""


def find_warnings(metrics: Mapping[str, float], credit: str) -> dict[str, str]:
    """Return sentences for the log, by the name of the metric that each is about."""
    sentences = {}
    if metrics.get(IGNORED_REWARDS):
        sentences[IGNORED_REWARDS] = (
            f"{metrics[IGNORED_REWARDS]:g} calls have a reward of their own, which credit {credit} ignores: "
            "credit reward_to_go or gigpo uses it"
        )
    if share := metrics.get(TRUNCATED_SHARE):
        names = [name.partition("/")[2] for name in metrics if name.startswith(f"{TRUNCATED_CALLS}/")]
        sentences[TRUNCATED_SHARE] = (
            f"{share:.0%} of the trained tokens were sampled with {', '.join(sorted(names))}: their recorded "
            "log-probabilities are of another distribution than the learner's, and ratios are off with nothing moved"
        )
    return sentences


def find_new_warnings(metrics: Mapping[str, float], credit: str, known: MutableSet[str]) -> list[str]:
    """Return sentences about metrics that are not in ``known``, and add these to it."""
    sentences = {what: text for what, text in find_warnings(metrics, credit).items() if what not in known}
    known |= sentences.keys()
    return list(sentences.values())
