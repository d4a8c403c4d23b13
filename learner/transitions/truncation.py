"""Sampling that leaves tokens out or moves their probabilities, beyond the temperature. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEUTRAL: dict[str, tuple[float, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
}
"""Numbers of vLLM's sampling settings that change nothing."""
CONSTRAINTS = (
    "logit_bias", "bad_words", "allowed_token_ids", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar",
)  # fmt: skip
"""Settings that are not in force when empty."""


THINKING_BUDGET = "thinking_token_budget"
"""Setting by which vLLM ends thoughts: it puts their end in place of sampled tokens, with a log-probability of 0."""
MIN_TEMPERATURE = 0.01
"""vLLM samples at this temperature where a request asks for a smaller one above 0."""


def find_forced(sampling: Mapping[str, Any], logprobs: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return ``bool[T]``: the tokens that the engine put in, so that nobody sampled them.

    A sampled token with a log-probability of 0 has no gradient, so it may count as one of them.
    """
    return np.equal(logprobs, 0) & bool(sampling.get(THINKING_BUDGET))


def find_truncations(sampling: Mapping[str, Any]) -> list[str]:
    """List the settings by which the engine sampled from another distribution than the learner computes.

    The engine records the probability after them; the learner has the softmax of the logits at the temperature.
    """
    names = [name for name, neutral in NEUTRAL.items() if sampling.get(name) not in (None, *neutral)]
    names += [name for name in CONSTRAINTS if sampling.get(name)]
    response_format = sampling.get("response_format")
    if response_format and response_format != {"type": "text"}:
        names.append("response_format")
    if sampling.get("tool_choice") not in (None, "none", "auto"):
        names.append("tool_choice")
    return names
