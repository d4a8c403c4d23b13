"""docs/troubleshooting.md has no error sentence that the code lacks."""

from tests.style.error_sentences import GAP, collect_sentences, list_rows, sentences_in

FROM_ELSEWHERE = {
    "adapters of … and of … start from different bases: use a node for each",
    "model … is not served; served: …",
    "no NATS server answers at …: start one with lightningbus bus…",
    "no inference node serves …, which the task may call (served: …) until the rollout's deadline",
    "the storage of the bus's server is full: …",
    "…: not stored within … s: the storage of the bus's server is full: …",
    "this installation of lightningbus is incomplete: … cannot be found; install it again by pip install "
    "--force-reinstall --no-deps and what you installed it from",
    "version … of … on the bus is ignored: this node is frozen",
    "… has whole weights, not adapters: use a node without lora.models for it",
}
"""Sentences that are put together where the collector does not look."""


def test_the_page_has_no_sentence_that_the_code_lacks() -> None:
    sentences = {sentence for lines in collect_sentences().values() for sentence in lines}
    assert sorted(list_rows() - sentences - FROM_ELSEWHERE) == []


def test_a_sentence_is_collected_with_gaps_for_what_varies() -> None:
    source = "def f(x):\n    raise UserError(f'{x} is no place: ' 'go home')\n\nexit_with('stop')\nprint('other')\n"
    assert sorted(sentences_in(source)) == ["stop", f"{GAP} is no place: go home"]
