"""docs/troubleshooting.md has every error sentence of the code, and none that the code lacks."""

from tests.style.error_sentences import GAP, collect_sentences, list_rows, sentences_in

FROM_ELSEWHERE = {
    "this installation of lightningbus is incomplete: … cannot be found; install it again by pip install "
    "--force-reinstall --no-deps and what you installed it from",
    "no ClickHouse answers at …: …",
    "no store is running and there is no run here: start lightningbus store, or give --sql URL",
    "no NATS server answers at …: start one with lightningbus bus…",
    "… line …: …",
    # What agents are told, and rollouts end with: tests/runners has them.
    "an event has a name, a reward or rewards",
    "endpoint … answered … until the rollout's deadline",
    "endpoint … answered …: check its url",
    "endpoint … cannot be reached: …",
    "endpoint … refuses the key in …: status …",
    "model … is external and has no versions; the task pins version …",
    "model … is not served; served: …",
    "no inference node serves …, which the task may call (served: …) until the rollout's deadline",
    "prompt … is of agent …",
    "the prompts cannot be looked up: …",
    "the task is pinned to version … of prompt …, which is not on the bus (…)",
    "the name of a reward has 1 to 64 printable characters: …",
    "the reward … is a number, not …",
    "version … of … on the bus is ignored: this node is frozen",
    "adapters of … and of … start from different bases: use a node for each",
    "… has whole weights, not adapters: use a node without lora.models for it",
}
"""Sentences that are put together where the collector does not look."""


def test_the_page_has_every_error_sentence() -> None:
    sentences = {sentence for lines in collect_sentences().values() for sentence in lines}
    missing = sorted(sentences - list_rows())
    assert missing == [], "add a row to docs/troubleshooting.md: what it says, why, and what to do"


def test_the_page_has_no_sentence_that_the_code_lacks() -> None:
    sentences = {sentence for lines in collect_sentences().values() for sentence in lines}
    assert sorted(list_rows() - sentences - FROM_ELSEWHERE) == []


def test_a_sentence_is_collected_with_gaps_for_what_varies() -> None:
    source = "def f(x):\n    raise UserError(f'{x} is no place: ' 'go home')\n\nexit_with('stop')\nprint('other')\n"
    assert sorted(sentences_in(source)) == ["stop", f"{GAP} is no place: go home"]
