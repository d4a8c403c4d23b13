"""The oldest version of tokens that are still to be sampled, as nodes come, fall silent and come back."""

import pytest

from lightningbus.learner.rollouts.served_version import SWAP_SECONDS, ServedVersion
from lightningbus.schemas.fleet import Heartbeat


def node(id: str, version: int | None, state: str = "ready") -> Heartbeat:
    return Heartbeat(role="inference", id=id, model="policy", state=state, version=version, sent_at_ns=0)


def test_a_node_that_falls_silent_samples_on_with_the_version_it_had() -> None:
    served = ServedVersion("policy")
    assert served.oldest([node("a", 0)], 0.0, 0) == 0
    assert served.oldest([node("a", 0, "suspect")], 3.0, 1) == 0, "it is heard no more, and still samples"
    assert served.oldest([], 12.0, 1) == 0, "it may come back as it was"
    assert served.oldest([node("a", 0)], 13.0, 1) == 0
    assert served.oldest([node("a", 1)], 14.0, 1) == 1


def test_a_silent_node_counts_beside_others_until_it_is_gone() -> None:
    served = ServedVersion("policy")
    assert served.oldest([node("a", 0, "suspect"), node("b", 1)], 0.0, 1) == 0
    assert served.oldest([node("b", 1)], 10.0, 1) == 1


@pytest.mark.parametrize("state", ["ready", "suspect"])
def test_a_node_whose_swap_is_late_is_not_waited_for(state: str) -> None:
    served = ServedVersion("policy")
    nodes = [node("a", 0, state), node("b", 1)]
    assert served.oldest(nodes, 0.0, 1) == 0
    assert served.oldest(nodes, SWAP_SECONDS, 1) == 1


def test_a_first_node_begins_with_the_newest_version_of_the_moment_when_it_was_seen() -> None:
    served = ServedVersion("policy")
    assert served.oldest([], 0.0, None) is None
    assert served.oldest([], 0.0, 3) == 3
    assert served.oldest([node("a", None, "starting")], 1.0, 3) == 3
    assert served.oldest([node("a", None, "starting")], 2.0, 4) == 3
    assert served.oldest([node("a", 4)], 3.0, 4) == 4
